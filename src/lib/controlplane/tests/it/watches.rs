//! Watches, frame by frame.

use crate::support::{BOUND, CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_serve::Body;
use http_body_util::BodyExt;
use std::time::Duration;

/// Reads the lines of a watch.
struct Lines {
    body: Body,
    buffer: Vec<u8>,
}

impl Lines {
    async fn open(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Self {
        let response = server.open(path, headers).await;
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next bytes; `None` at the end.
    async fn frame(&mut self) -> Option<bytes::Bytes> {
        let frame =
            tokio::time::timeout(BOUND, self.body.frame()).await.expect("a frame comes in time")?;
        Some(frame.unwrap().into_data().unwrap().into_bytes())
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(ferrokube_apimachinery::json::read_value(&line).unwrap());
            }
            let frame = self.frame().await?;
            self.buffer.extend_from_slice(&frame);
        }
    }

    /// Type and name of the next event.
    async fn brief(&mut self) -> String {
        let event = self.next().await.expect("the watch goes on");
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            event["object"]["metadata"]["name"].as_str().unwrap_or("-")
        )
    }
}

async fn version(server: &TestServer) -> String {
    server.get(CONFIGMAPS).await.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_watch_is_the_history_of_what_is_written() {
    let server = TestServer::new().await;
    let from = version(&server).await;
    let mut lines =
        Lines::open(&server, &format!("{CONFIGMAPS}?watch=1&resourceVersion={from}"), &[]).await;
    let created = server.configmap("a").await.json();
    assert_eq!(lines.next().await.unwrap(), json!({"type": "ADDED", "object": created}));
    let patch = [("content-type", "application/merge-patch+json")];
    let patched = server
        .send("PATCH", &format!("{CONFIGMAPS}/a"), &patch, r#"{"data":{"k":"w"}}"#)
        .await
        .json();
    assert_eq!(lines.next().await.unwrap(), json!({"type": "MODIFIED", "object": patched}));
    server.send("DELETE", &format!("{CONFIGMAPS}/a"), &[], "").await;
    let deleted = lines.next().await.unwrap();
    assert_eq!(
        (deleted["type"].as_str(), deleted["object"]["data"]["k"].as_str()),
        (Some("DELETED"), Some("w"))
    );
    let number = |object: &Value| {
        object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    };
    assert!(number(&deleted["object"]) > number(&patched));
}

#[tokio::test]
async fn watchers_of_one_form_get_the_same_bytes() {
    let server = TestServer::new().await;
    let path = format!("{CONFIGMAPS}?watch=1&resourceVersion={}", version(&server).await);
    let mut one = Lines::open(&server, &path, &[]).await;
    let mut two = Lines::open(&server, &path, &[]).await;
    let mut partial = Lines::open(
        &server,
        &path,
        &[("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")],
    )
    .await;
    server.configmap("a").await;
    let (first, second) = (one.frame().await.unwrap(), two.frame().await.unwrap());
    assert_eq!(first.as_ptr(), second.as_ptr(), "encoded once");
    let event = partial.next().await.unwrap();
    assert_eq!(
        (event["object"]["kind"].as_str(), event["object"].get("data")),
        (Some("PartialObjectMetadata"), None)
    );
}

#[tokio::test]
async fn streaming_lists_end_with_their_bookmark() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let query =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut lines = Lines::open(&server, &format!("{CONFIGMAPS}?{query}"), &[]).await;
    assert_eq!(lines.brief().await, "ADDED a");
    let bookmark = lines.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    let metadata = &bookmark["object"]["metadata"];
    assert_eq!(
        (bookmark["object"]["kind"].as_str(), &metadata["annotations"]),
        (Some("ConfigMap"), &json!({"k8s.io/initial-events-end": "true"}))
    );
    // Other kinds have their zero fields, like a Go struct.
    for (path, part, fields) in [
        ("/api/v1/namespaces?labelSelector=none&", "spec", json!({})),
        ("/apis/rbac.authorization.k8s.io/v1/roles?", "rules", Value::Null),
        (
            "/apis/rbac.authorization.k8s.io/v1/rolebindings?",
            "roleRef",
            json!({"apiGroup": "", "kind": "", "name": ""}),
        ),
        (
            "/apis/certificates.k8s.io/v1/certificatesigningrequests?",
            "spec",
            json!({"request": null, "signerName": ""}),
        ),
    ] {
        let bookmark =
            Lines::open(&server, &format!("{path}{query}"), &[]).await.next().await.unwrap();
        assert_eq!(
            (bookmark["type"].as_str(), bookmark["object"].get(part)),
            (Some("BOOKMARK"), Some(&fields)),
            "{path}"
        );
        assert_eq!(
            bookmark["object"]["metadata"].as_object().unwrap().len(),
            2,
            "{path}: {bookmark}"
        );
    }
    let mut table = Lines::open(
        &server,
        &format!("{CONFIGMAPS}?{query}"),
        &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
    )
    .await;
    let added = table.next().await.unwrap();
    assert_eq!(added["object"]["rows"][0]["cells"][0], "a");
    assert!(added["object"]["columnDefinitions"].is_array());
    let bookmark = table.next().await.unwrap();
    assert_eq!(
        (bookmark["type"].as_str(), &bookmark["object"]["columnDefinitions"]),
        (Some("BOOKMARK"), &Value::Null)
    );
    assert_eq!(
        bookmark["object"]["rows"][0]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test]
async fn protobuf_watches_are_length_delimited() {
    let server = TestServer::new().await;
    let path = format!("{CONFIGMAPS}?watch=1&resourceVersion={}", version(&server).await);
    let response = server.open(&path, &[("accept", "application/vnd.kubernetes.protobuf")]).await;
    assert_eq!(
        response.headers()["content-type"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let mut body = response.into_body();
    let created = server.configmap("a").await.json();
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap().into_bytes();
    let length = usize::try_from(u32::from_be_bytes(frame[..4].try_into().unwrap())).unwrap();
    assert_eq!(length, frame.len() - 4);
    let at = frame.windows(4).position(|window| window == b"k8s\0").unwrap();
    let object =
        ferrokube_resources::messages().read("k8s.io.api.core.v1.ConfigMap", &frame[at..]).unwrap();
    assert_eq!(object.into_value(), created);
}

#[tokio::test]
async fn watches_that_are_rejected() {
    let server = TestServer::new().await;
    let watch = format!("{CONFIGMAPS}?watch=1");
    assert_eq!(server.get_as(&watch, "application/yaml").await.code, 406);
    for (query, code) in [
        ("labelSelector=!!", 400),
        ("timeoutSeconds=abc", 400),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("sendInitialEvents=true", 422),
    ] {
        assert_eq!(server.get(&format!("{watch}&{query}")).await.code, code, "{query}");
    }
    for query in [
        "continue=x",
        "continue=x&resourceVersion=0",
        "continue=x&resourceVersion=1&resourceVersionMatch=NotOlderThan&sendInitialEvents=true",
    ] {
        let refused = server.get(&format!("{watch}&{query}")).await;
        let why = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            refused.code == 422
                && why.contains("resourceVersionMatch is forbidden when continue is provided"),
            "{query}: {why}"
        );
    }
    let from = version(&server).await;
    assert_eq!(
        server
            .get(&format!("{watch}&continue=x&timeoutSeconds=-1&resourceVersion={from}"))
            .await
            .code,
        200,
        "the token is ignored"
    );
    server.configmap("a").await;
    assert_eq!(server.get(&format!("{CONFIGMAPS}/a?watch=true")).await.json()["kind"], "ConfigMap");
}

/// As in kube-apiserver: options, selectors, name, version, and the form at last.
#[tokio::test]
async fn errors_in_the_options_of_a_watch_precede_those_of_its_form() {
    let server = TestServer::new().await;
    let [one, list, table, yaml] = [
        "application/json",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/yaml",
    ];
    let named = "/api/v1/watch/namespaces/default/configmaps/b?fieldSelector";
    let all = format!("{CONFIGMAPS}?watch=1");
    for (path, accept, code, part) in [
        (format!("{all}&sendInitialEvents=true"), list, 422, "requires setting"),
        (format!("{all}&resourceVersion=x"), list, 500, "invalid syntax"),
        (format!("{all}&resourceVersion=x"), yaml, 500, "invalid syntax"),
        (all.clone(), list, 406, "you requested PartialObjectMetadataList"),
        (format!("{all}&includeObject=x&resourceVersionMatch=Exact"), table, 422, "is invalid"),
        (format!("{all}&includeObject=x"), table, 400, "includeObject"),
        (format!("{named}=x=y"), one, 400, "is not a known field selector"),
        (format!("{named}=metadata.name=c&sendInitialEvents=true"), one, 422, "for list"),
        (format!("{named}=metadata.name=c&resourceVersion=x"), one, 400, "match requested name"),
    ] {
        let answer = server.get_as(&path, accept).await;
        let text = answer.text();
        assert!(answer.code == code && text.contains(part), "{path} {accept}: {text}");
    }
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout() {
    let server = TestServer::paused(|builder| builder).await;
    let mut lines =
        Lines::open(&server, &format!("{CONFIGMAPS}?watch=1&timeoutSeconds=3"), &[]).await;
    let began = tokio::time::Instant::now();
    assert_eq!(lines.next().await, None);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn fault_41_a_watch_whose_timeout_is_in_the_past_ends_at_once_and_absurd_ones_are_bounded() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    for query in ["timeoutSeconds=-1", "timeoutSeconds=-9223372036854775808"] {
        let mut lines = Lines::open(
            &server,
            &format!("{CONFIGMAPS}?watch=1&resourceVersion={}&{query}", version(&server).await),
            &[],
        )
        .await;
        assert_eq!(lines.next().await, None);
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(
        server.get(&format!("{CONFIGMAPS}?watch=1&timeoutSeconds=9223372036854775808")).await.code,
        400
    );
}

#[tokio::test]
async fn watches_end_when_the_server_does() {
    let server = TestServer::new().await;
    let mut lines = Lines::open(
        &server,
        &format!("{CONFIGMAPS}?watch=1&resourceVersion={}", version(&server).await),
        &[],
    )
    .await;
    server.plane.begin_shutdown();
    assert_eq!(lines.next().await, None);
    assert!(!server.plane.is_ready());
    assert_eq!(server.get("/readyz").await.code, 500);
    assert_eq!(server.get("/livez").await.code, 200);
}

#[tokio::test]
async fn the_legacy_watch_path_works() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    server.configmap("b").await;
    let mut all = Lines::open(&server, "/api/v1/watch/namespaces/default/configmaps", &[]).await;
    assert_eq!((all.brief().await, all.brief().await), ("ADDED a".into(), "ADDED b".into()));
    let mut one = Lines::open(&server, "/api/v1/watch/namespaces/default/configmaps/b", &[]).await;
    assert_eq!(one.brief().await, "ADDED b");
}

/// The defaults of a streaming list are those of the parameter, without a version and from 0.
#[tokio::test]
async fn a_watch_by_its_path_alone_is_no_streaming_list() {
    let server = TestServer::paused(|builder| builder).await;
    server.configmap("a").await;
    let path =
        "/api/v1/watch/namespaces/default/configmaps?allowWatchBookmarks=true&timeoutSeconds=1";
    let mut by_path = Lines::open(&server, path, &[]).await;
    assert_eq!(by_path.brief().await, "ADDED a");
    assert_eq!(by_path.next().await, None);
    let zero = format!("{path}&watch=true&resourceVersion=00");
    let mut from_zero = Lines::open(&server, &zero, &[]).await;
    assert_eq!(from_zero.brief().await, "ADDED a");
    assert_eq!(from_zero.next().await, None);
    let mut by_both = Lines::open(&server, &format!("{path}&watch=true"), &[]).await;
    assert_eq!(by_both.brief().await, "ADDED a");
    assert_eq!(by_both.brief().await, "BOOKMARK -");
}

/// A watch whose client reads nothing holds one frame of a backlog; the rest stays in the history.
#[tokio::test]
async fn fault_18_a_backlog_comes_in_frames_of_bounded_size_and_long_objects_are_not_copied() {
    let server = TestServer::new().await;
    let from = version(&server).await;
    for at in 0..100 {
        server
            .post(
                CONFIGMAPS,
                &json!({"metadata": {"name": format!("c{at}")}, "data": {"k": "v".repeat(1000)}}),
            )
            .await;
    }
    for query in ["resourceVersion=0".to_owned(), format!("resourceVersion={from}")] {
        let mut lines = Lines::open(&server, &format!("{CONFIGMAPS}?watch=1&{query}"), &[]).await;
        let (mut events, mut frames) = (0, 0);
        while events < 100 {
            let frame = lines.frame().await.unwrap();
            assert!(frame.len() <= 12 * 1024, "{} bytes", frame.len());
            frames += 1;
            events += frame.iter().filter(|byte| **byte == b'\n').count();
        }
        assert!((12..30).contains(&frames), "several events go together: {frames} frames");
    }
    // Watchers share the stored bytes of a long object.
    let large = server
        .post(
            CONFIGMAPS,
            &json!({"metadata": {"name": "large"}, "data": {"k": "v".repeat(500_000)}}),
        )
        .await
        .json();
    let path = format!(
        "{CONFIGMAPS}?watch=1&resourceVersion={}",
        large["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() - 1
    );
    let mut chunks = Vec::new();
    for _ in 0..2 {
        let mut body = server.open(&path, &[]).await.into_body();
        chunks.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let places: Vec<*const u8> = chunks
        .iter()
        .map(|chunk| {
            let mut slices = [std::io::IoSlice::new(&[]); 4];
            let count = bytes::Buf::chunks_vectored(chunk, &mut slices);
            slices[..count][1].as_ptr()
        })
        .collect();
    assert_eq!(places[0], places[1]);
    let event: Value =
        ferrokube_apimachinery::json::read_value(&chunks.remove(0).into_bytes()).unwrap();
    assert_eq!(event, json!({"type": "ADDED", "object": large}));
}

#[tokio::test]
async fn watches_of_a_user_are_bounded() {
    let server = TestServer::new().await;
    let open = async || {
        let request = http::Request::builder()
            .uri(format!("{CONFIGMAPS}?watch=1&resourceVersion=1"))
            .header("authorization", "Bearer reader");
        server.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await
    };
    let mut watches = Vec::new();
    let refused = loop {
        let watch = open().await;
        if watch.status() != 200 {
            break watch;
        }
        watches.push(watch);
        assert!(watches.len() < 4_000, "each counts as a connection");
    };
    assert!(watches.len() > 1_000);
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["retry-after"].as_bytes()),
        (429, b"1".as_slice())
    );
    assert_eq!(
        server.open(&format!("{CONFIGMAPS}?watch=1&resourceVersion=1"), &[]).await.status(),
        200,
        "others have theirs"
    );
    watches.pop();
    assert_eq!(open().await.status(), 200);
}
