//! Floods over real sockets: frames and connections that cost the client less than the server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod support;

use ferrokube_serve::ListenerLimits;
use std::sync::atomic::Ordering;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A GET with END_STREAM, from the static table and a literal path.
fn request(stream: u32, flags: u8, path: &str) -> Vec<u8> {
    let fields = [
        b"\x82\x87\x41\x09localhost\x04",
        &[u8::try_from(path.len()).unwrap()][..],
        path.as_bytes(),
    ]
    .concat();
    frame(1, flags, stream, &fields)
}

fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &8_u32.to_be_bytes())
}

/// Writes a flood while reading; returns whether the server closed the connection.
async fn is_cut(setup: &Setup, hello: &[u8], flood: &[u8], times: usize) -> bool {
    let mut stream = setup.connect("h2", None).await;
    stream.write_all(&[PREFACE, &frame(4, 0, 0, b""), hello].concat()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let reads = tokio::spawn(async move {
        let mut scratch = [0; 1 << 14];
        while let Ok(1..) = reader.read(&mut scratch).await {}
    });
    let writes = async {
        for _ in 0..times {
            if writer.write_all(flood).await.is_err() {
                return true;
            }
        }
        let _ = writer.flush().await;
        reads.await.is_ok()
    };
    bounded(writes).await
}

#[tokio::test]
async fn fault_37_floods_of_cheap_frames_are_cut() {
    let setup = setup(ListenerLimits::default());
    let open = request(1, 4, "/hang");
    let floods: [(&str, &[u8], Vec<u8>); 9] = [
        ("ping", b"", frame(6, 0, 0, &[0; 8])),
        ("ping answers nobody asked for", b"", frame(6, 1, 0, &[0; 8])),
        ("settings", b"", frame(4, 0, 0, b"")),
        (
            "settings that change windows",
            &open,
            [frame(4, 0, 0, &[0, 4, 0, 0, 0, 1]), frame(4, 0, 0, &[0, 4, 0, 0, 0, 2])].concat(),
        ),
        ("empty data", &open, frame(0, 0, 1, b"")),
        ("padded empty data", &open, frame(0, 8, 1, &[0])),
        ("window updates of a byte", &open, frame(8, 0, 1, &1_u32.to_be_bytes())),
        ("priority", b"", frame(2, 0, 3, &[0, 0, 0, 0, 0])),
        ("unknown frames", b"", frame(0x77, 0, 0, b"x")),
    ];
    for (what, hello, flood) in &floods {
        assert!(is_cut(&setup, hello, &flood.repeat(1000), 100).await, "{what}");
    }
    // The library itself cuts two of them.
    assert!(setup.stats.flooded.load(Ordering::Relaxed) >= floods.len() as u64 - 2);
    assert!(
        is_cut(&setup, &request(1, 0, "/"), &frame(9, 0, 1, b"\x40\x01a\x01b").repeat(1000), 100)
            .await,
        "continuation"
    );
    let (mut other, _connection) = setup.http2().await;
    assert_eq!(text(bounded(other.send_request(get("/"))).await.unwrap()).await, "HTTP/2.0");
}

#[tokio::test]
async fn fault_37_rapid_reset_ends_the_connection() {
    let setup = setup(ListenerLimits::default());
    // Raw frames, so that each request and its reset arrive together.
    let flood: Vec<u8> =
        (1..4000_u32).step_by(2).flat_map(|id| [request(id, 5, "/"), reset(id)].concat()).collect();
    assert!(is_cut(&setup, b"", &flood, 1).await);
    let handled = setup.stats.requests.load(Ordering::Relaxed);
    assert!(handled < 1000, "{handled} requests were begun");
    assert_eq!(
        text(setup.http1(None).await.send_request(get("/")).await.unwrap()).await,
        "HTTP/1.1"
    );
}

#[tokio::test]
async fn cancelled_requests_end_neither_the_connection_nor_its_watches() {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("h2", None).await;
    stream
        .write_all(&[PREFACE, &frame(4, 0, 0, b""), &request(1, 5, "/watch")].concat())
        .await
        .unwrap();
    // A client that cancels all the streams it may have open, several times.
    let mut id = 3;
    for _ in 0..2 {
        let burst: Vec<u8> = (0..200_u32)
            .flat_map(|at| [request(id + 2 * at, 5, "/hang"), reset(id + 2 * at)].concat())
            .collect();
        stream.write_all(&burst).await.unwrap();
        id += 400;
    }
    stream.write_all(&request(id, 5, "/")).await.unwrap();
    let mut seen = Vec::new();
    until(&mut stream, &mut seen, b"HTTP/2.0").await;
    until(&mut stream, &mut seen, b"begin").await;
    setup.trigger.begin();
    until(&mut stream, &mut seen, b"end").await;
}

/// Reads until these bytes arrived.
async fn until(stream: &mut TlsStream<TcpStream>, seen: &mut Vec<u8>, wanted: &[u8]) {
    let reads = async {
        while !seen.windows(wanted.len()).any(|bytes| bytes == wanted) {
            assert!(stream.read_buf(seen).await.unwrap() > 0, "the connection ended");
        }
    };
    bounded(reads).await;
}

/// A GET with a path of any length, in CONTINUATION frames if needed.
fn long_request(stream: u32, path: &[u8]) -> Vec<u8> {
    let mut block = b"\x82\x87\x41\x09localhost\x04".to_vec();
    // An integer with a prefix of 7 bits (RFC 7541, section 5.1).
    let mut rest = path.len() - 127;
    block.push(127);
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
    block.extend_from_slice(path);
    let pieces: Vec<&[u8]> = block.chunks(16 << 10).collect();
    let last = pieces.len() - 1;
    let frames = pieces.iter().enumerate().map(|(at, piece)| {
        let end_headers = if at == last { 4 } else { 0 };
        if at == 0 {
            frame(1, 1 | end_headers, stream, piece)
        } else {
            frame(9, end_headers, stream, piece)
        }
    });
    frames.flatten().collect()
}

#[tokio::test]
async fn large_heads_are_taken_and_what_is_too_large_ends_only_its_request() {
    let setup = setup(ListenerLimits::default());
    let large = || {
        http::Request::get("https://localhost/")
            .header("host", "localhost")
            .header("x", "y".repeat(700 << 10))
            .body(Default::default())
            .unwrap()
    };
    assert_eq!(bounded(setup.http1(None).await.send_request(large())).await.unwrap().status(), 200);
    let (mut second, _connection) = setup.http2().await;
    assert_eq!(bounded(second.send_request(large())).await.unwrap().status(), 200);

    let mut stream = setup.connect("h2", None).await;
    stream
        .write_all(&[PREFACE, &frame(4, 0, 0, b""), &request(1, 5, "/watch")].concat())
        .await
        .unwrap();
    let mut seen = Vec::new();
    until(&mut stream, &mut seen, b"begin").await;
    // Selectors of 60 KB; of 200 KB, more than a URL may have; and larger than the limit on a head.
    for (id, length) in [(3, 60 << 10), (5, 200 << 10), (7, 1200 << 10)] {
        stream
            .write_all(&long_request(
                id,
                &[b"/x?labelSelector=", vec![b'a'; length].as_slice()].concat(),
            ))
            .await
            .unwrap();
    }
    stream.write_all(&request(9, 5, "/")).await.unwrap();
    bounded(async {
        while seen.windows(8).filter(|bytes| *bytes == b"HTTP/2.0").count() < 2 {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "the connection ended");
        }
    })
    .await;
    setup.trigger.begin();
    until(&mut stream, &mut seen, b"end").await;
}
