//! The listener over real sockets: protocols, client certificates, limits, panics, reload, drain.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod support;

use ferrokube_pki::{LEAF_LIFETIME, Pair, Pki, Subject};
use ferrokube_serve::reload::{LoadedFiles, TlsFiles};
use ferrokube_serve::{ListenerLimits, Server};
use http_body_util::{BodyExt, Full};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

#[tokio::test]
async fn speaks_both_protocols_as_agreed_in_the_handshake() {
    let setup = setup(ListenerLimits::default());
    assert_eq!(
        text(setup.http1(None).await.send_request(get("/")).await.unwrap()).await,
        "HTTP/1.1"
    );
    assert_eq!(text(setup.http2().await.0.send_request(get("/")).await.unwrap()).await, "HTTP/2.0");
}

/// A request may compute for long.
#[tokio::test]
async fn fault_38_the_first_request_of_a_connection_runs_outside_the_lobby() {
    let setup = setup(ListenerLimits::default());
    let answer = setup.http1(None).await.send_request(get("/thread")).await.unwrap();
    let (http1, other) = (text(answer).await, setup.http2().await.0.send_request(get("/thread")));
    let http2 = text(other.await.unwrap()).await;
    assert!(http1 != "lobby" && http2 != "lobby", "{http1}, {http2}");
}

#[tokio::test]
async fn referenced_bytes_arrive_on_both_protocols_even_if_read_slowly() {
    let setup = setup(ListenerLimits::default());
    let want: Vec<u8> = (0..LENT_FRAMES)
        .flat_map(|at| [lent(at, 10), lent(at, 3000), lent(at, 20_000)].concat())
        .collect();
    let (mut second, _connection) = setup.http2().await;
    for response in [
        setup.http1(None).await.send_request(get("/lent")).await.unwrap(),
        second.send_request(get("/lent")).await.unwrap(),
    ] {
        let (mut body, mut all) = (response.into_body(), Vec::new());
        while let Some(frame) = bounded(body.frame()).await {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
            // Yields, so that the server meets a full socket and a closed window.
            tokio::task::yield_now().await;
        }
        assert!(all == want, "{} of {} bytes", all.len(), want.len());
    }
}

#[tokio::test]
async fn the_first_request_of_a_client_that_gathers_writes_waits_for_nothing() {
    let setup = setup(ListenerLimits::default());
    let client = setup
        .pki
        .client(&Subject { common_name: "someone", organizations: &[] }, LEAF_LIFETIME)
        .unwrap();
    // A delayed ACK takes at least 40 ms each time; a busy machine is that slow now and then.
    bounded(async {
        loop {
            let mut sender = setup.http1(Some(&client)).await;
            let begun = std::time::Instant::now();
            sender.send_request(get("/")).await.unwrap();
            if begun.elapsed() < Duration::from_millis(35) {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn head_has_a_length_and_no_body_on_both_protocols() {
    let setup = setup(ListenerLimits::default());
    let head = || {
        http::Request::head("https://localhost/")
            .header("host", "localhost")
            .body(Full::default())
            .unwrap()
    };
    let (mut second, _connection) = setup.http2().await;
    for (response, length) in [
        (bounded(setup.http1(None).await.send_request(head())).await.unwrap(), "HTTP/1.1".len()),
        (bounded(second.send_request(head())).await.unwrap(), "HTTP/2.0".len()),
    ] {
        assert_eq!(response.headers()["content-length"], length.to_string());
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "");
    }
    assert_eq!(text(bounded(second.send_request(get("/"))).await.unwrap()).await, "HTTP/2.0");
}

#[tokio::test]
async fn fault_53_a_client_certificate_counts_only_if_a_ca_verifies_it() {
    let setup = setup(ListenerLimits::default());
    let peer = async |pair: Option<Pair>| {
        text(setup.http1(pair.as_ref()).await.send_request(get("/peer")).await.unwrap()).await
    };
    assert_eq!(peer(None).await, "0 0 false");
    let subject = Subject { common_name: "someone", organizations: &["group"] };
    assert_eq!(peer(Some(setup.pki.client(&subject, LEAF_LIFETIME).unwrap())).await, "1 0 false");
    // For servers only.
    assert_eq!(peer(Some(setup.pki.serving(&["localhost".into()]).unwrap())).await, "0 0 true");
    // From another CA.
    let directory = tempfile::tempdir().unwrap();
    let other = Pki::open(&directory.path().join("pki")).unwrap();
    let foreign = other.client(&subject, LEAF_LIFETIME).unwrap();
    assert_eq!(peer(Some(foreign.clone())).await, "0 0 true");
    // Replacing CAs affects connections that are open already.
    let mut open = setup.http1(Some(&foreign)).await;
    assert_eq!(text(open.send_request(get("/peer")).await.unwrap()).await, "0 0 true");
    setup.tls.replace_client_ca(other.client_ca_pem().as_bytes()).unwrap();
    assert_eq!(text(open.send_request(get("/peer")).await.unwrap()).await, "1 0 false");
    setup
        .tls
        .replace_cas(
            Some(setup.pki.client_ca_pem().as_bytes()),
            Some(other.client_ca_pem().as_bytes()),
        )
        .unwrap();
    assert_eq!(text(open.send_request(get("/peer")).await.unwrap()).await, "0 1 false");
}

#[tokio::test]
async fn a_certificate_that_expires_on_an_open_connection_is_ignored() {
    let mut setup = setup(ListenerLimits::default());
    setup.pki = setup.pki.with_lifetime(Duration::from_secs(2));
    let subject = Subject { common_name: "short", organizations: &[] };
    // Until it counts: on a busy machine it may expire before the first request.
    let mut open = bounded(async {
        loop {
            let pair = setup.pki.client(&subject, LEAF_LIFETIME).unwrap();
            let mut open = setup.http1(Some(&pair)).await;
            if text(open.send_request(get("/peer")).await.unwrap()).await == "1 0 false" {
                return open;
            }
        }
    })
    .await;
    bounded(async {
        while text(open.send_request(get("/peer")).await.unwrap()).await != "0 0 true" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_panic_answers_500_and_the_connection_lives_on() {
    let setup = setup(ListenerLimits::default());
    let mut sender = setup.http1(None).await;
    for path in ["/panic", "/panic-at-once"] {
        let response = sender.send_request(get(path)).await.unwrap();
        assert_eq!(response.status(), 500);
        assert_eq!(text(response).await, "by the hook");
    }
    assert_eq!(text(sender.send_request(get("/")).await.unwrap()).await, "HTTP/1.1");
    let (mut sender, _connection) = setup.http2().await;
    assert_eq!(sender.send_request(get("/panic")).await.unwrap().status(), 500);
    assert_eq!(sender.send_request(get("/")).await.unwrap().status(), 200);
    assert_eq!(setup.stats.panics.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let setup = setup(ListenerLimits::default());
    let mut sender = setup.http1(None).await;
    let post = |body: String| {
        http::Request::post("/body").header("host", "localhost").body(Full::from(body)).unwrap()
    };
    assert_eq!(
        text(sender.send_request(post("x".repeat(1000))).await.unwrap()).await,
        "x".repeat(1000)
    );
    assert_eq!(text(sender.send_request(post("x".repeat(1001))).await.unwrap()).await, "too large");
    let mut stream = setup.connect("http/1.1", None).await;
    stream
        .write_all(b"POST /body-soon HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc")
        .await
        .unwrap();
    assert!(bounded(read_to_end(&mut stream)).await.contains("did not arrive in time"));
}

#[tokio::test]
async fn fault_38_slow_and_silent_clients_are_cut() {
    let setup = setup(ListenerLimits {
        handshake: Duration::from_millis(200),
        header: Duration::from_millis(200),
        ..ListenerLimits::default()
    });
    // No ClientHello.
    let mut socket = TcpStream::connect(setup.address).await.unwrap();
    assert_eq!(bounded(socket.read(&mut [0; 64])).await.unwrap_or(0), 0);
    // A handshake, then silence; also on HTTP/2.
    for alpn in ["http/1.1", "h2"] {
        bounded(read_to_end(&mut bounded(setup.connect_in_time(alpn)).await)).await;
    }
    // A head byte by byte: every byte in time, the whole not. The same for a second request.
    let mut stream = bounded(async {
        loop {
            let mut stream = setup.connect_in_time("http/1.1").await;
            let mut answer = [0; 4096];
            if stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok()
                && stream.read(&mut answer).await.is_ok_and(|_| answer.starts_with(b"HTTP/1.1 200"))
            {
                return stream;
            }
        }
    })
    .await;
    let drip = async {
        loop {
            if stream.write_all(b"G").await.is_err() || stream.flush().await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    bounded(drip).await;
    bounded(async {
        while setup.stats.open.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// hyper reads ahead: it has the first bytes before the response is sent.
#[tokio::test]
async fn fault_38_a_head_that_begins_with_the_request_before_it_is_timed() {
    let setup = setup(ListenerLimits {
        header: Duration::from_millis(200),
        idle: BOUND * 2,
        ..ListenerLimits::default()
    });
    for request in [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc",
        "POST /body HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ] {
        // On a busy machine the first head may be late.
        bounded(async {
            loop {
                let mut stream = setup.connect_in_time("http/1.1").await;
                let sent = format!("{request}GET / HTTP/1.1\r\nhost:");
                if stream.write_all(sent.as_bytes()).await.is_ok()
                    && read_to_end(&mut stream).await.starts_with("HTTP/1.1 200")
                {
                    break;
                }
            }
        })
        .await;
    }
}

/// The bytes of a tunnel are neither timed nor counted as heads.
#[tokio::test]
async fn a_tunnel_outlives_the_head_timeout_and_carries_any_number_of_bytes() {
    const HEAD: &[u8] =
        b"GET /tunnel HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let header = Duration::from_millis(200);
    let setup =
        setup(ListenerLimits { header, unfinished_bytes: 16 << 10, ..ListenerLimits::default() });
    bounded(async {
        let mut stream = loop {
            let mut stream = setup.connect_in_time("http/1.1").await;
            let mut answer = Vec::new();
            if stream.write_all(HEAD).await.is_err() {
                continue;
            }
            while !answer.ends_with(b"\r\n\r\n")
                && let Ok(byte) = stream.read_u8().await
            {
                answer.push(byte);
            }
            if answer.starts_with(b"HTTP/1.1 101") {
                break stream;
            }
        };
        for length in [1, 64 << 10, 1] {
            let mut echo = vec![0; length];
            stream.write_all(&vec![b'x'; length]).await.unwrap();
            stream.read_exact(&mut echo).await.unwrap();
            tokio::time::sleep(2 * header).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_outlives_the_head_timeout_but_not_the_idle_limit() {
    let header = Duration::from_millis(100);
    let patient = setup(ListenerLimits { header, ..ListenerLimits::default() });
    let strict =
        setup(ListenerLimits { idle: Duration::from_millis(400), ..ListenerLimits::default() });
    // On a busy machine a head may not be in time.
    bounded(async {
        loop {
            let mut sender = patient.http1(None).await;
            if sender.send_request(get("/")).await.is_err() {
                continue;
            }
            tokio::time::sleep(2 * header).await;
            assert!(sender.ready().await.is_ok(), "it is idle, and no head is late");
            if sender.send_request(get("/")).await.is_ok_and(|answer| answer.status() == 200) {
                break;
            }
        }
    })
    .await;
    let mut sender = strict.http1(None).await;
    assert_eq!(sender.send_request(get("/")).await.unwrap().status(), 200);
    bounded(async {
        while sender.ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn fault_39_heads_that_are_wrong_or_too_large_are_refused() {
    let setup = setup(ListenerLimits { header_bytes: 16 << 10, ..ListenerLimits::default() });
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(600));
    let large = format!("GET / HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "b".repeat(20 << 10));
    let cases = [
        ("GARBAGE\r\n\r\n", "400"),
        ("\x16\x03\x01\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n", "501"),
        ("GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"),
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "400"),
        ("GET / HTTP/4.0\r\nhost: x\r\n\r\n", "505"),
        ("GET / HTTP/1.1\r\nbad header: x\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nhost : x\r\n\r\n", "400"),
        (&many, "431"),
        (&large, "431"),
    ];
    for (head, status) in cases {
        let mut stream = setup.connect("http/1.1", None).await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = bounded(read_to_end(&mut stream)).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{:?}: {answer}",
            &head[..head.len().min(80)]
        );
        let (fields, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            fields.to_lowercase().contains("content-type: text/plain; charset=utf-8"),
            "{fields}"
        );
        assert!(!body.is_empty(), "{fields}");
    }
}

#[tokio::test]
async fn fault_39_a_broken_head_after_good_ones_is_answered_and_a_length_beside_chunks_does_not_count()
 {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("http/1.1", None).await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    stream
        .write_all(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: nonsense\r\n\r\n{}")
        .await
        .unwrap();
    let rest = bounded(read_to_end(&mut stream)).await;
    assert!(rest.ends_with("\r\n\r\nUnsupported transfer encoding"), "{rest}");

    let mut stream = setup.connect("http/1.1", None).await;
    let both = b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(both).await.unwrap();
    let answer = bounded(read_to_end(&mut stream)).await;
    assert!(answer.ends_with("hello") && answer.matches("HTTP/1.1 ").count() == 1, "{answer}");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_slots_are_returned() {
    let setup = setup(ListenerLimits { connections: 2, ..ListenerLimits::default() });
    let first = setup.connect("http/1.1", None).await;
    let _second = setup.connect("http/1.1", None).await;
    assert!(setup.try_connect("http/1.1", None).await.is_err());
    assert_eq!(setup.stats.refused.load(Ordering::Relaxed), 1);
    drop(first);
    bounded(async {
        while setup.try_connect("http/1.1", None).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_handler_can_close_an_http2_connection() {
    let setup = setup(ListenerLimits::default());
    let (mut sender, connection) = setup.http2().await;
    assert_eq!(text(sender.send_request(get("/close")).await.unwrap()).await, "bye");
    bounded(connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn fault_18_a_reader_that_stalls_is_cut_off() {
    let stall = Duration::from_millis(200);
    let setup = setup(ListenerLimits { stall, ..ListenerLimits::default() });
    let quiet = [
        ("h2", ask_without_window(&setup, 6 + 1, &["/watch"]).await),
        ("still connecting", setup.connect("h2", None).await),
    ];
    // Streams that are not polled any more: no window from the start, less than a chunk, exactly
    // one chunk, whole responses in one or many frames.
    for (window, path) in
        [(0, "/watch"), (3, "/watch"), (6, "/watch"), (3, "/"), (0, "/large"), (1 << 16, "/large")]
    {
        let cut = setup.stats.stalled.load(Ordering::Relaxed);
        let mut stream =
            ask_without_window(&setup, window, &["/", path][usize::from(window > 10)..]).await;
        let _ = bounded(stream.read_to_end(&mut Vec::new())).await;
        assert_eq!(
            setup.stats.stalled.load(Ordering::Relaxed),
            cut + 1,
            "{path} with {window} bytes"
        );
    }
    // HTTP/1.1: the socket is the window.
    let cut = setup.stats.stalled.load(Ordering::Relaxed);
    let mut stream = setup.connect("http/1.1", None).await;
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    bounded(async {
        while setup.stats.stalled.load(Ordering::Relaxed) == cut {
            tokio::time::sleep(stall).await;
        }
    })
    .await;
    // An idle watch waits for the server, not for its client.
    bounded(async {
        while setup.stats.open.load(Ordering::Relaxed) > quiet.len() as u64 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(setup.stats.open.load(Ordering::Relaxed), quiet.len() as u64);
}

/// A connection with a small receive buffer and these requests, which reads nothing.
async fn ask_and_stall(setup: &Setup, alpn: &str, paths: &[&str]) -> TlsStream<TcpStream> {
    if alpn == "h2" {
        return ask_without_window(setup, 1 << 20, paths).await;
    }
    let mut stream = setup.connect(alpn, None).await;
    stream
        .write_all(format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", paths[0]).as_bytes())
        .await
        .unwrap();
    stream
}

/// Waits until no more chunks are made for stalled clients.
async fn wait_until_settled() -> usize {
    bounded(async {
        let mut seen = 0;
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let made = UNSENT.1.load(Ordering::Relaxed);
            if made == std::mem::replace(&mut seen, made) && made > 0 {
                return UNSENT.0.load(Ordering::Relaxed);
            }
        }
    })
    .await
}

#[tokio::test]
async fn fault_18_a_reader_that_stalls_holds_one_piece_and_under_pressure_it_is_cut() {
    const STREAMS: usize = 50;
    let mut setup = setup(ListenerLimits::default());
    setup.receive_bytes = 64 << 10;
    let mut stalled = Vec::new();
    for _ in 0..STREAMS {
        stalled.push(ask_and_stall(&setup, "http/1.1", &["/events"]).await);
    }
    let held = wait_until_settled().await;
    assert!(
        (1..=STREAMS * (16 << 10)).contains(&held),
        "{} bytes for each of {STREAMS} connections",
        held / STREAMS
    );
    stalled.push(ask_and_stall(&setup, "h2", &["/events"; STREAMS]).await);
    let more = wait_until_settled().await - held;
    assert!(more <= STREAMS * (16 << 10), "{} bytes for each of {STREAMS} streams", more / STREAMS);
    drop(stalled);
    // A machine that lets its client read nothing for two seconds gets another attempt.
    bounded(async { while !only_stalled_readers_are_cut(STREAMS).await {} }).await;
}

/// Long before the stall limit: there is no room for all of them. Returns whether the one that
/// reads was served all the time.
async fn only_stalled_readers_are_cut(streams: usize) -> bool {
    let mut setup = setup(ListenerLimits { held_bytes: 1 << 20, ..ListenerLimits::default() });
    let mut moving =
        setup.http1(None).await.send_request(get("/slow-frames")).await.unwrap().into_body();
    setup.receive_bytes = 64 << 10;
    let mut stalled = Vec::new();
    for _ in 0..streams {
        stalled.push(ask_and_stall(&setup, "http/1.1", &["/frames"]).await);
    }
    let mut more = 10;
    while more > 0 {
        let is_over = setup.stats.stalled.load(Ordering::Relaxed) >= 30
            && setup.stats.held.bytes() <= 1 << 20;
        more -= usize::from(is_over);
        if moving.frame().await.is_none_or(|frame| frame.is_err()) {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn fault_45_an_upgrade_that_nobody_grants_changes_nothing() {
    let setup = setup(ListenerLimits::default());
    let mut stream = setup.connect("http/1.1", None).await;
    for upgrade in ["websocket", "SPDY/3.1", "h2c"] {
        let head = format!(
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {upgrade}\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 1024];
        let length = bounded(stream.read(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("HTTP/1.1"),
            "{upgrade}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_drain_finishes_requests_ends_watches_and_takes_no_more() {
    let setup = setup(ListenerLimits::default());
    let (mut http2, _connection) = setup.http2().await;
    let watch = http2.send_request(get("/watch")).await.unwrap();
    let mut http1 = setup.http1(None).await;
    let hang =
        tokio::spawn(async move { text(http1.send_request(get("/hang")).await.unwrap()).await });
    setup.handler.hung.acquire().await.unwrap().forget();
    setup.trigger.begin();
    assert_eq!(bounded(text(watch)).await, "begin end");
    bounded(async {
        while TcpStream::connect(setup.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    setup.handler.release.add_permits(1);
    assert_eq!(bounded(hang).await.unwrap(), "released");
    assert_eq!(bounded(setup.serving).await.unwrap(), 0);
}

#[tokio::test]
async fn a_drain_does_not_wait_for_silent_clients() {
    let setup = setup(ListenerLimits {
        handshake: Duration::from_secs(600),
        drain: Duration::from_secs(600),
        ..ListenerLimits::default()
    });
    let _silent = TcpStream::connect(setup.address).await.unwrap();
    // It has been accepted.
    drop(setup.http1(None).await);
    setup.trigger.begin();
    assert_eq!(bounded(setup.serving).await.unwrap(), 0);
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_end() {
    let setup =
        setup(ListenerLimits { drain: Duration::from_millis(200), ..ListenerLimits::default() });
    let mut http1 = setup.http1(None).await;
    let hang = tokio::spawn(async move { http1.send_request(get("/hang")).await.is_err() });
    setup.handler.hung.acquire().await.unwrap().forget();
    setup.trigger.begin();
    assert_eq!(bounded(setup.serving).await.unwrap(), 1);
    assert!(bounded(hang).await.unwrap());
}

#[tokio::test]
async fn fault_53_certificates_are_replaced_under_load_without_a_failed_request() {
    let setup = setup(ListenerLimits::default());
    let mut kept = setup.http1(None).await;
    for _ in 0..20 {
        let pair = setup.pki.serving(&["localhost".into()]).unwrap();
        setup.tls.replace_serving(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
        assert_eq!(setup.http1(None).await.send_request(get("/")).await.unwrap().status(), 200);
        assert_eq!(kept.send_request(get("/")).await.unwrap().status(), 200);
    }
    assert!(setup.tls.replace_serving(b"nonsense", b"nonsense").is_err());
    let other = setup.pki.serving(&["localhost".into()]).unwrap();
    let mixed = setup.pki.serving(&["localhost".into()]).unwrap();
    assert!(
        setup.tls.replace_serving(other.chain_pem.as_bytes(), mixed.key_pem.as_bytes()).is_err()
    );
    assert_eq!(setup.http1(None).await.send_request(get("/")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn certificate_files_are_reloaded() {
    let setup = setup(ListenerLimits::default());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |pair: &Pair| {
        ferrokube_pki::files::write(
            &path("tls.crt"),
            pair.chain_pem.as_bytes(),
            ferrokube_pki::files::FileMode::Public,
        )
        .unwrap();
        ferrokube_pki::files::write(
            &path("tls.key"),
            pair.key_pem.as_bytes(),
            ferrokube_pki::files::FileMode::Private,
        )
        .unwrap();
    };
    write(&setup.pki.serving(&["localhost".into()]).unwrap());
    let files = TlsFiles {
        serving: Some((path("tls.crt"), path("tls.key"))),
        client_ca_pem: setup.pki.client_ca_pem().into(),
        ..TlsFiles::default()
    };
    let loaded = files.apply(&setup.tls, &LoadedFiles::default()).unwrap();
    let second = setup.pki.serving(&["localhost".into()]).unwrap();
    write(&second);
    tokio::spawn(files.watch(
        setup.tls.clone(),
        loaded,
        Duration::from_millis(20),
        setup.trigger.shutdown(),
    ));
    let wanted = CertificateDer::from_pem_slice(second.chain_pem.as_bytes()).unwrap();
    bounded(async {
        while setup.connect("h2", None).await.get_ref().1.peer_certificates().unwrap()[0] != wanted
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn fault_52_equal_cas_are_refused_after_a_reload_as_at_start() {
    let setup = setup(ListenerLimits::default());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let pki = |name: &str| Pki::open(&path(name)).unwrap();
    let (clients, proxies) = (pki("clients"), pki("proxies"));
    let write = |name: &str, pem: &str| std::fs::write(path(name), pem).unwrap();
    write("clients.crt", clients.client_ca_pem());
    write("proxies.crt", proxies.client_ca_pem());
    let files = TlsFiles {
        client_ca: Some(path("clients.crt")),
        proxy_ca: Some(path("proxies.crt")),
        ..TlsFiles::default()
    };
    let loaded = files.apply(&setup.tls, &LoadedFiles::default()).unwrap();
    let subject = Subject { common_name: "someone", organizations: &[] };
    let mut open = setup.http1(Some(&clients.client(&subject, LEAF_LIFETIME).unwrap())).await;
    assert_eq!(text(open.send_request(get("/peer")).await.unwrap()).await, "1 0 false");
    write("proxies.crt", clients.client_ca_pem());
    let error = files.apply(&setup.tls, &loaded).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot use {}", path("proxies.crt").display()));
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("share a key"));
    assert_eq!(
        text(open.send_request(get("/peer")).await.unwrap()).await,
        "1 0 false",
        "a client did not become a front proxy"
    );
    assert!(files.apply(&setup.tls, &LoadedFiles::default()).is_err(), "as at start");
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_it() {
    let setup = setup(ListenerLimits::default());
    let error =
        Server::bind(setup.address, setup.tls.clone(), ListenerLimits::default()).err().unwrap();
    assert_eq!(error.to_string(), format!("cannot listen on {}", setup.address));
}
