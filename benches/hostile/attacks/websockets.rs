//! Commands in a container by websocket, whose frames and pings the server translates for a
//! kubelet.

use super::{AttackTally, at_once};
use crate::testbed::{TENANTS, Testbed};
use crate::wire::{Wire, WireProtocol};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// First byte of a message, and of a ping.
const MESSAGE: u8 = 0x82;
const PING: u8 = 0x89;
/// Payload of the longest message that is accepted.
const LONGEST: usize = 1 << 20;

/// 256 commands: of a third of them a message without its last byte, of a third pings of 1 MiB, of
/// a third pings without end whose replies are not read.
pub(super) async fn frames(stage: Arc<Testbed>, tally: Arc<AttackTally>) {
    let mut unfinished = frame(MESSAGE, LONGEST);
    unfinished.pop();
    let sent = [unfinished, frame(PING, LONGEST), frame(PING, 125).repeat(100)];
    at_once(256, |index| {
        let (stage, tally, sent) = (&stage, &tally, &sent);
        async move {
            let Some(mut wire) = command(stage, tally, TENANTS[index % 8]).await else { return };
            while wire.stream.write_all(&sent[index % 3]).await.is_ok() {
                if index % 3 == 0 {
                    tally.count("unfinished message");
                    std::future::pending::<()>().await;
                }
                tally.count("pings");
            }
            tally.count("cut");
        }
    })
    .await;
}

/// Begins a command; `None` if it is refused.
async fn command(stage: &Testbed, tally: &AttackTally, token: &str) -> Option<Wire> {
    const PATH: &str =
        "/api/v1/namespaces/tenant/pods/target/exec?container=c&command=cat&stdin=true&stdout=true";
    let Ok(mut wire) = Wire::connect(stage, WireProtocol::Http1).await else {
        tally.count("refused");
        return None;
    };
    let head = format!(
        "GET {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
    );
    let mut begin = [0; 12];
    let answered = async {
        wire.stream.write_all(head.as_bytes()).await?;
        wire.stream.read_exact(&mut begin).await
    };
    if answered.await.is_err() {
        tally.count("cut");
        return None;
    }
    let status = String::from_utf8_lossy(&begin[9..]).into_owned();
    tally.count(status.as_str());
    (status == "101").then_some(wire)
}

/// A client's frame of zeros, masked with zeros.
fn frame(first: u8, length: usize) -> Vec<u8> {
    let mut frame = vec![first];
    if length < 126 {
        frame.push(0x80 | length as u8);
    } else {
        frame.push(0x80 | 127);
        frame.extend((length as u64).to_be_bytes());
    }
    frame.extend([0; 4]);
    frame.resize(frame.len() + length, 0);
    frame
}
