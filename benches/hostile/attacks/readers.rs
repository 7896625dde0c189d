//! Expensive reads, and readers that stop reading.

use super::{AttackTally, at_once};
use crate::testbed::{TENANT, TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol, frame, push_frame};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIST: &str = "/api/v1/namespaces/store/configmaps";

/// Compares every object with many selector terms.
pub(super) async fn selectors(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let terms: Vec<_> = (0..700).map(|number| format!("k{number}!%3Dv")).collect();
    let path = format!("{LIST}?labelSelector={}", terms.join(","));
    at_once(8, |_| read(&stage, &tally, &path)).await;
}

/// Reads whole lists.
pub(super) async fn lists(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(32, |_| read(&stage, &tally, LIST)).await;
}

async fn read(stage: &Testbed, tally: &AttackTally, path: &str) {
    read_as(stage, tally, (path, TENANT, "")).await;
}

/// Reads a whole response, with additional request headers.
pub(super) async fn read_as(
    stage: &Testbed,
    tally: &AttackTally,
    (path, token, headers): (&str, &str, &str),
) {
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http1).await else {
        return tally.count("refused");
    };
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{headers}connection: close\r\n\r\n"
    );
    if wire.stream.write_all(head.as_bytes()).await.is_err() {
        return tally.count("cut");
    }
    let mut buffer = vec![0; 256 * 1024];
    let mut status = String::new();
    while let Ok(length @ 1..) = wire.stream.read(&mut buffer).await {
        if status.is_empty() {
            status = String::from_utf8_lossy(buffer.get(9..12.min(length)).unwrap_or_default())
                .into_owned();
        }
    }
    tally.count(if status.is_empty() { "cut".to_owned() } else { status });
}

/// Sends a request with a small receive buffer and never reads.
pub(super) async fn stall(stage: &Testbed, tally: &AttackTally, path: &str, accept: &str) {
    let connected = async {
        let tcp = Wire::tcp(stage, Ipv4Addr::LOCALHOST, Some(4096)).await?;
        Wire::over(stage, WireProtocol::Http1, tcp).await
    };
    let Ok(mut wire) = connected.await else { return tally.count("refused") };
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TENANT}\r\naccept: {accept}\r\n\r\n"
    );
    match wire.stream.write_all(head.as_bytes()).await {
        Ok(()) => tally.count("stalled"),
        Err(_) => return tally.count("cut"),
    }
    std::future::pending::<()>().await;
}

/// Whole lists in each format.
pub(super) async fn stalled_lists(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let forms = [
        ("application/yaml", ""),
        ("application/json;as=Table;g=meta.k8s.io;v=v1", "?includeObject=Object"),
        ("application/json", ""),
        ("application/vnd.kubernetes.protobuf", ""),
        ("application/json", "?pretty=true"),
    ];
    at_once(100, |index| {
        let (accept, query) = forms[index % forms.len()];
        let (stage, tally) = (&stage, &tally);
        async move { stall(stage, tally, &format!("{LIST}{query}"), accept).await }
    })
    .await;
}

/// HTTP/2 watchers with a zero window, and objects that change.
pub(super) async fn stalled_watches(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let watching = at_once(20, |_| {
        streams(&stage, &tally, "/api/v1/namespaces/tenant/configmaps?watch=1", &[])
    });
    let writing = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Ok(mut wire) = Wire::connect(&stage, WireProtocol::Http1).await else {
            return tally.count("refused");
        };
        let text = "x".repeat(100_000);
        for number in 0..500 {
            let body = format!(
                r#"{{"metadata":{{"generateName":"e"}},"data":{{"number":"{number}","text":"{text}"}}}}"#
            );
            let answer = wire
                .post(
                    "/api/v1/namespaces/tenant/configmaps",
                    TENANT,
                    "application/json",
                    body.as_bytes(),
                )
                .await;
            tally.answer(&answer);
            if answer.is_err() {
                return;
            }
        }
    };
    tokio::join!(watching, writing);
}

/// Responses just too short for streaming, with a zero window.
pub(super) async fn stalled_objects(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let path = keep(&stage, &tally, "stalled", 15_600).await;
    at_once(40, |index| {
        let (stage, tally, path) = (&stage, &tally, &path);
        async move { requests(stage, tally, (path, TENANTS[index % 8], 250), &[(4, 0)]).await }
    })
    .await;
}

/// A large object, compressed for many readers.
pub(super) async fn gzip(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let path = keep(&stage, &tally, "zipped", 1_400_000).await;
    at_once(200, |index| {
        let (stage, tally, path) = (&stage, &tally, &path);
        async move {
            read_as(stage, tally, (path, TENANTS[index % 8], "accept-encoding: gzip\r\n")).await
        }
    })
    .await;
}

/// Stores an object of `bytes` bytes. Returns its path.
async fn keep(stage: &Testbed, tally: &AttackTally, name: &str, bytes: usize) -> String {
    const PATH: &str = "/apis/hostile.example.com/v1/namespaces/tenant/bags";
    let text: String = (0..bytes / 8).map(|number| format!("{number:08x}")).collect();
    let body = format!(
        r#"{{"apiVersion":"hostile.example.com/v1","kind":"Bag","metadata":{{"name":"{name}"}},"text":"{text}"}}"#
    );
    let stored = async {
        Wire::connect(stage, WireProtocol::Http1)
            .await?
            .post(PATH, TENANT, "application/json", body.as_bytes())
            .await
    };
    tally.answer(&stored.await);
    format!("{PATH}/{name}")
}

/// Lists with a zero window.
pub(super) async fn window_zero(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(20, |_| streams(&stage, &tally, LIST, &[(4, 0)])).await;
}

/// 100 requests on a connection that is never read.
async fn streams(stage: &Testbed, tally: &AttackTally, path: &str, settings: &[(u16, u32)]) {
    requests(stage, tally, (path, TENANT, 100), settings).await;
}

/// `number` requests on a connection that is never read.
async fn requests(
    stage: &Testbed,
    tally: &AttackTally,
    (path, token, number): (&str, &str, u32),
    settings: &[(u16, u32)],
) {
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http2).await else {
        return tally.count("refused");
    };
    if wire.preface(settings).await.is_err() {
        return tally.count("cut");
    }
    let block = wire.header_block("GET", path, token);
    let mut bytes = Vec::new();
    for index in 0..number {
        push_frame(
            &mut bytes,
            frame::HEADERS,
            frame::END_HEADERS | frame::END_STREAM,
            2 * index + 1,
            &block,
        );
    }
    match wire.stream.write_all(&bytes).await {
        Ok(()) => tally.count(format!("{number} streams")),
        Err(_) => return tally.count("cut"),
    }
    std::future::pending::<()>().await;
}
