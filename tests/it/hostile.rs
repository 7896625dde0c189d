//! Faults 37-39: misbehaving raw sockets. The server keeps serving others.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster};
use reqwest::Method;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

fn connect(cluster: &Cluster) -> TcpStream {
    let stream = TcpStream::connect(cluster.url().trim_start_matches("https://")).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

#[tokio::test]
async fn fault_38_silent_and_garbage_sockets_do_not_block_others() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let silent: Vec<_> = (0..500).map(|_| connect(&cluster)).collect();
    let nonsense: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\xff\xff",
        &[0; 4096],
        &[0xff; 4096],
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    ];
    for bytes in nonsense {
        let mut stream = connect(&cluster);
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut answer);
        assert!(answer.len() < 1024);
    }
    let admin = cluster.admin().unwrap();
    for _ in 0..20 {
        assert_eq!(admin.get("/readyz").await.unwrap().status, 200);
    }
    // Cut by the server's handshake timeout.
    let mut first = silent.into_iter().next().unwrap();
    let read = tokio::task::spawn_blocking(move || first.read(&mut [0; 16])).await.unwrap();
    // Not the read timeout of this side.
    let cut = match &read {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    assert!(cut, "{read:?}");
}

#[tokio::test]
async fn fault_40_hostile_paths_are_refused_and_nothing_is_written() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    // Of all names but the one that a controller creates meanwhile.
    const OTHERS: &str = "/api/v1/configmaps?fieldSelector=metadata.name!=kube-root-ca.crt";
    let before = admin.get(OTHERS).await.unwrap().body;
    let address = cluster.url().trim_start_matches("https://").to_owned();
    for path in [
        "/api/v1/namespaces/%2e%2e/configmaps",
        "/api/v1/namespaces/a%2fb/configmaps/x",
        "/api/v1/namespaces/%00/configmaps",
        "/api/v1/namespaces/..;/configmaps",
        "/api//v1/namespaces",
    ] {
        let request = admin.request(Method::POST, path).header("content-type", "application/json");
        let answer = admin
            .send(request.body(r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#))
            .await
            .unwrap();
        assert!((400..500).contains(&answer.status), "{path} at {address}: {}", answer.text);
    }
    let long = format!("/api/v1/namespaces/{}/configmaps", "a".repeat(60_000));
    let answer = admin.get(&long).await.unwrap();
    assert!(
        answer.status == 200 && answer.body["items"] == serde_json::json!([])
            || (400..500).contains(&answer.status),
        "{}",
        answer.text
    );
    let after = admin.get(OTHERS).await.unwrap().body;
    assert_eq!(before["items"], after["items"]);
}

#[tokio::test]
async fn fault_35_bodies_that_are_too_large_or_too_deep_are_refused() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let post = |body: String| {
        admin
            .request(Method::POST, "/api/v1/namespaces/default/configmaps")
            .header("content-type", "application/json")
            .body(body)
    };
    let large = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{{"a":"{}"}}}}"#,
        "x".repeat(4 << 20)
    );
    // The server may stop reading before the client stops writing; then there is no response to
    // read.
    if let Ok(answer) = admin.send(post(large)).await {
        assert_eq!(answer.status, 413, "{}", answer.text);
    }
    for body in ["[".repeat(3_000_000), "{\"a\":".repeat(500_000)] {
        // Too deep, or before that, too many values.
        if let Ok(answer) = admin.send(post(body)).await {
            assert!(matches!(answer.status, 400 | 413), "{}: {}", answer.status, answer.text);
        }
    }
    assert_eq!(admin.get("/livez").await.unwrap().status, 200);
}
