//! What clients can make the listener hold: unread responses, unfinished heads, connections that do
//! not close.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod support;

use ferrokube_serve::ListenerLimits;
use futures::future::join_all;
use http_body_util::BodyExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A GET with END_STREAM.
fn request(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        b"\x82\x87\x41\x09localhost\x04",
        &[u8::try_from(path.len()).unwrap()][..],
        path.as_bytes(),
    ]
    .concat();
    frame(1, 5, stream, &fields)
}

/// The next frame: kind, flags, stream, payload; `None` at the end of the connection.
async fn next_frame(stream: &mut TlsStream<TcpStream>) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    stream.read_exact(&mut header).await.ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((
        header[3],
        header[4],
        u32::from_be_bytes([header[5], header[6], header[7], header[8]]),
        payload,
    ))
}

#[tokio::test]
async fn fault_18_small_answers_that_nobody_takes_count_and_are_bounded() {
    // A machine that lets its client read nothing for two seconds gets another attempt.
    bounded(async { while !small_answers_are_bounded().await {} }).await;
}

/// Whether a client that reads was served all the time.
async fn small_answers_are_bounded() -> bool {
    const BOUND_BYTES: usize = 4 << 20;
    const CONNECTIONS: usize = 20;
    let setup = setup(ListenerLimits { held_bytes: BOUND_BYTES, ..ListenerLimits::default() });
    let mut moving =
        setup.http1(None).await.send_request(get("/slow-frames")).await.unwrap().into_body();
    // 64 MB of responses, each within one chunk.
    let connect = || ask_without_window(&setup, 0, &["/small"; 200]);
    let stalled = join_all(std::iter::repeat_with(connect).take(CONNECTIONS)).await;
    let mut most = 0;
    while setup.stats.stalled.load(Ordering::Relaxed) == 0 || setup.stats.held.bytes() > BOUND_BYTES
    {
        if moving.frame().await.is_none_or(|frame| frame.is_err()) {
            return false;
        }
        most = most.max(UNSENT.0.load(Ordering::Relaxed));
    }
    if most == 0 {
        // The first clients were cut while the last ones connected.
        return false;
    }
    assert!((BOUND_BYTES / 2..3 * BOUND_BYTES).contains(&most), "{most} bytes");
    assert!(setup.stats.shed.load(Ordering::Relaxed) > 0);
    drop((stalled, moving));
    bounded(async {
        while setup.stats.held.bytes() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    true
}

#[tokio::test]
async fn fault_18_what_is_encrypted_and_not_taken_counts() {
    for alpn in ["h2", "http/1.1"] {
        let mut setup = setup(ListenerLimits { held_bytes: 64 << 10, ..ListenerLimits::default() });
        setup.receive_bytes = 4 << 10;
        let mut stream = setup.connect(alpn, None).await;
        let ask = if alpn == "h2" {
            let windows = [
                frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]),
                frame(8, 0, 0, &0x7000_0000_u32.to_be_bytes()),
            ]
            .concat();
            [PREFACE, &windows, &request(1, "/events")].concat()
        } else {
            b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()
        };
        stream.write_all(&ask).await.unwrap();
        bounded(async {
            while setup.stats.stalled.load(Ordering::Relaxed) < 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn fault_38_unfinished_heads_share_a_bound_and_the_oldest_go_first() {
    const SHARED_BYTES: usize = 1 << 20;
    let header = Duration::from_secs(600);
    let filler = "b".repeat(60 << 10);
    let http1 =
        (["GET / HTTP/1.1\r\nhost: x\r\na: ", &filler].concat().into_bytes(), b"\r\n\r\n".to_vec());
    let fields =
        [b"\x82\x87\x41\x09localhost\x84\x40\x01a\x7f\x81\xdf\x03", filler.as_bytes()].concat();
    let blocks: Vec<Vec<u8>> = fields
        .chunks(16 << 10)
        .enumerate()
        .map(|(at, block)| frame(if at == 0 { 1 } else { 9 }, u8::from(at == 0), 1, block))
        .collect();
    let http2 = ([PREFACE, &frame(4, 0, 0, b""), &blocks.concat()].concat(), frame(9, 4, 1, b""));
    for (alpn, (begin, end)) in [("http/1.1", http1), ("h2", http2)] {
        let setup = setup(ListenerLimits {
            header,
            unfinished_bytes: SHARED_BYTES,
            ..ListenerLimits::default()
        });
        let mut all = Vec::new();
        for _ in 0..40 {
            let mut stream = setup.connect(alpn, None).await;
            stream.write_all(&begin).await.unwrap();
            all.push(stream);
        }
        bounded(async {
            while setup.stats.open.load(Ordering::Relaxed) > (SHARED_BYTES / (50 << 10)) as u64 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut newest = all.pop().unwrap();
        newest.write_all(&end).await.unwrap();
        let mut seen = Vec::new();
        bounded(async {
            while !seen.windows(6).any(|bytes| bytes == b"HTTP/1" || bytes == b"HTTP/2") {
                assert!(newest.read_buf(&mut seen).await.unwrap() > 0, "{alpn}");
            }
        })
        .await;
        bounded(read_to_end(&mut all[0])).await;
    }
}

#[tokio::test]
async fn fault_38_a_frame_that_is_not_finished_counts_as_a_head() {
    let setup = setup(ListenerLimits {
        header: Duration::from_secs(600),
        unfinished_bytes: 64 << 10,
        ..ListenerLimits::default()
    });
    let mut all = Vec::new();
    for kind in [1, 4, 0x77].repeat(5) {
        let mut stream = setup.connect("h2", None).await;
        let whole = frame(kind, 4, u32::from(kind != 4), &[0; 16 << 10]);
        stream
            .write_all(&[PREFACE, &frame(4, 0, 0, b""), &whole[..whole.len() - 1]].concat())
            .await
            .unwrap();
        all.push(stream);
    }
    bounded(async {
        while setup.stats.open.load(Ordering::Relaxed) > 6 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn fault_37_a_connection_that_is_closed_takes_no_request_whatever_its_client_acknowledges() {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("h2", None).await;
    let hello =
        [PREFACE, &frame(4, 0, 0, b""), &request(1, "/hang"), &request(3, "/close")].concat();
    stream.write_all(&hello).await.unwrap();
    let mut refused = 0;
    let mut answered = Vec::new();
    bounded(async {
        while let Some((kind, _, id, payload)) = next_frame(&mut stream).await {
            match kind {
                0 => answered.push((id, String::from_utf8(payload).unwrap())),
                3 => {
                    assert_eq!(
                        payload,
                        7_u32.to_be_bytes(),
                        "refused, so that another connection may try again"
                    );
                    refused += 1;
                }
                _ => continue,
            }
            // Requests continue, no PING is acknowledged.
            if refused < 20 {
                let _ = stream.write_all(&request(5 + 2 * refused, "/close")).await;
            } else if refused == 20 {
                refused += 1;
                setup.handler.release.add_permits(1);
            }
        }
    })
    .await;
    answered.retain(|(_, text)| !text.is_empty());
    assert_eq!(answered, [(3, "bye".to_owned()), (1, "released".to_owned())]);
    assert_eq!(refused, 21);
}

#[tokio::test]
async fn fault_37_a_drain_ends_when_a_client_acknowledges_nothing() {
    let setup =
        setup(ListenerLimits { drain: Duration::from_secs(600), ..ListenerLimits::default() });
    let mut stream = setup.connect("h2", None).await;
    stream.write_all(&[PREFACE, &frame(4, 0, 0, b""), &request(1, "/")].concat()).await.unwrap();
    while bounded(next_frame(&mut stream)).await.unwrap().0 != 0 {}
    setup.trigger.begin();
    assert_eq!(bounded(setup.serving).await.unwrap(), 0);
}

#[tokio::test]
async fn fault_38_a_client_may_send_little_of_a_body_that_nobody_reads() {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("h2", None).await;
    stream.write_all(&[PREFACE, &frame(4, 0, 0, b""), &request(1, "/")].concat()).await.unwrap();
    let (mut of_stream, mut of_connection) = (0, 65_535);
    loop {
        let (kind, flags, id, payload) = bounded(next_frame(&mut stream)).await.unwrap();
        match (kind, id) {
            (4, 0) if flags & 1 == 0 => {
                let window = payload
                    .chunks(6)
                    .find(|setting| setting[..2] == [0, 4])
                    .map_or(65_535, |setting| u32::from_be_bytes(setting[2..].try_into().unwrap()));
                of_stream = window;
            }
            (8, 0) => of_connection += u32::from_be_bytes(payload.try_into().unwrap()),
            (0, 1) => break,
            _ => {}
        }
    }
    assert!(
        (1..=64 << 10).contains(&of_stream) && of_connection <= 256 << 10,
        "{of_stream} {of_connection}"
    );
}

#[tokio::test]
async fn a_client_that_sends_all_of_a_refused_body_sees_the_response() {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("http/1.1", None).await;
    let body = vec![b'x'; 3 << 20];
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    // Answered and closed by now; a reset would fail this write.
    let mut start = [0; 15];
    bounded(stream.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    for part in body.chunks(64 << 10) {
        bounded(stream.write_all(part)).await.unwrap();
        tokio::task::yield_now().await;
    }
    stream.flush().await.unwrap();
    assert!(bounded(read_to_end(&mut stream)).await.ends_with("HTTP/1.1"));
    // And one that sends no more is not waited for.
    let mut stream = setup.connect("http/1.1", None).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(bounded(read_to_end(&mut stream)).await.ends_with("HTTP/1.1"));
    bounded(async {
        while setup.stats.open.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
