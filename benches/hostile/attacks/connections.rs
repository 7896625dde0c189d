//! Connections that cost the server more than the client.

use super::{AttackTally, at_once};
use crate::testbed::Testbed;
use crate::wire::{Wire, WireProtocol};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Headers sent byte by byte.
pub(super) async fn slow_heads(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(400, |_| async {
        let Ok(mut wire) = Wire::connect(&stage, WireProtocol::Http1).await else {
            return tally.count("refused");
        };
        if wire.stream.write_all(b"GET /api HTTP/1.1\r\nhost: x\r\nx-slow: ").await.is_err() {
            return tally.count("cut");
        }
        tally.count("connection");
        while wire.stream.write_all(b"x").await.is_ok() && wire.stream.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        tally.count("cut");
    })
    .await;
}

/// Incomplete heads, just short enough to be exempt from the budget.
pub(super) async fn half_heads(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let head = format!("GET /api HTTP/1.1\r\nhost: x\r\nx-long: {}", "x".repeat(63 * 1024));
    at_once(1000, |_| async {
        let Ok(mut wire) = Wire::connect(&stage, WireProtocol::Http1).await else {
            return tally.count("refused");
        };
        if wire.stream.write_all(head.as_bytes()).await.is_err()
            || wire.stream.flush().await.is_err()
        {
            return tally.count("cut");
        }
        tally.count("half a head");
        let mut byte = [0];
        while matches!(wire.stream.read(&mut byte).await, Ok(1..)) {}
        tally.count("cut");
    })
    .await;
}

/// Handshakes without requests, for their signatures.
pub(super) async fn handshakes(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(16, |_| async {
        match Wire::connect(&stage, WireProtocol::Http2).await {
            Ok(_) => tally.count("handshake"),
            Err(_) => tally.count("refused"),
        }
    })
    .await;
}

/// TLS key updates; libraries accept a few between data.
pub(super) async fn key_updates(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(16, |_| async {
        let Ok(Wire { mut stream, .. }) = Wire::connect(&stage, WireProtocol::Http1).await else {
            return tally.count("refused");
        };
        loop {
            for _ in 0..20 {
                if stream.get_mut().1.refresh_traffic_keys().is_err() {
                    return tally.count("no TLS 1.3");
                }
            }
            if stream.write_all(b"x").await.is_err() || stream.flush().await.is_err() {
                return tally.count("cut");
            }
        }
    })
    .await;
}

/// Silent sockets from five addresses, kept open until the server closes them.
pub(super) async fn silent_sockets(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    at_once(2000, |index| {
        let from = Ipv4Addr::new(127, 0, 0, 2 + (index % 5) as u8);
        let (stage, tally) = (&stage, &tally);
        async move {
            let Ok(tcp) = Wire::tcp(stage, from, None).await else { return tally.count("refused") };
            tally.count("connected");
            let mut byte = [0];
            loop {
                let ready = tcp.readable().await;
                match tcp.try_read(&mut byte) {
                    Err(error)
                        if error.kind() == std::io::ErrorKind::WouldBlock && ready.is_ok() => {}
                    _ => return tally.count("cut"),
                }
            }
        }
    })
    .await;
}
