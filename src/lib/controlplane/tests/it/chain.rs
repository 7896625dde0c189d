//! The request filters.

use crate::support::{CONFIGMAPS, TestServer};
use bytes::Bytes;
use ferrokube_apimachinery::document::json;
use ferrokube_controlplane::Limits;
use ferrokube_features::{Gates, KubernetesVersion};
use ferrokube_trace::TraceContext;
use std::time::Duration;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const INITIAL: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test]
async fn every_answer_has_its_headers() {
    let server = TestServer::new().await;
    for path in ["/api/v1/namespaces/default", "/api/v1/namespaces/none", "/nope", "/version"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("cache-control"), "no-cache, private", "{path}");
        assert_eq!(answer.header("audit-id").len(), 36, "{path}");
    }
    assert_eq!(
        server.send("GET", "/version", &[("audit-id", "mine-1")], "").await.header("audit-id"),
        "mine-1"
    );
    for bad in ["x".repeat(65), "a b".to_owned()] {
        assert_ne!(
            server.send("GET", "/version", &[("audit-id", &bad)], "").await.header("audit-id"),
            bad
        );
    }
}

#[tokio::test]
async fn fault_30_a_panic_affects_one_request_only() {
    let server = TestServer::new().await;
    let answer = server.configmap("panic").await;
    assert_eq!((answer.code, answer.reason().as_str()), (500, "InternalError"));
    assert!(!answer.text().contains("a write that panics"), "the panic's words stay in the log");
    assert_eq!(server.configmap("a").await.code, 201);
    assert!(server.get("/metrics").await.text().contains("apiserver_request_panics_total 1"));
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = TestServer::with(|builder| {
        builder.limits(Limits { body_bytes: 1000, ..Limits::default() })
    })
    .await;
    let answer = server.send("POST", CONFIGMAPS, &[], vec![b'x'; 1001]).await;
    assert_eq!((answer.code, answer.reason().as_str()), (413, "RequestEntityTooLarge"));
    assert_eq!(server.send("POST", CONFIGMAPS, &[], vec![b'x'; 1000]).await.code, 400);
    assert_eq!(server.configmap("a").await.code, 201);
}

#[tokio::test]
async fn fault_35_deep_bodies_are_refused_in_every_form() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let deep = |open: &str, close: &str| {
        Bytes::from(format!("{{\"x\":{}1{}}}", open.repeat(100_000), close.repeat(100_000)))
    };
    for (method, path, kind) in [
        ("POST", CONFIGMAPS.to_owned(), "application/json"),
        ("POST", CONFIGMAPS.to_owned(), "application/yaml"),
        ("PUT", format!("{CONFIGMAPS}/a"), "application/json"),
        ("PATCH", format!("{CONFIGMAPS}/a"), "application/merge-patch+json"),
        ("PATCH", format!("{CONFIGMAPS}/a"), "application/json-patch+json"),
        ("PATCH", format!("{CONFIGMAPS}/a"), "application/strategic-merge-patch+json"),
        ("PATCH", format!("{CONFIGMAPS}/a?fieldManager=m"), "application/apply-patch+yaml"),
        ("DELETE", format!("{CONFIGMAPS}/a"), "application/json"),
    ] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let answer =
                server.send(method, &path, &[("content-type", kind)], deep(open, close)).await;
            assert_eq!(answer.code, 400, "{method} {path} {kind}");
        }
    }
    assert_eq!(server.get(&format!("{CONFIGMAPS}/a")).await.code, 200);
}

#[tokio::test]
async fn requests_time_out() {
    let server = TestServer::new().await;
    let answer = server.get(&format!("{CONFIGMAPS}?timeout=1ns")).await;
    assert_eq!((answer.code, answer.header("content-type")), (504, "text/plain; charset=utf-8"));
    let status = answer.json();
    assert_eq!((&status["reason"], &status["details"]), (&json!("Timeout"), &json!({})));
    let message = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(status["message"], message);
    assert_eq!(server.get(&format!("{CONFIGMAPS}?timeout=junk")).await.code, 400);
    assert_eq!(
        server
            .send(
                "POST",
                &format!("{CONFIGMAPS}?timeout=1ns"),
                &[],
                r#"{"metadata":{"name":"late"}}"#
            )
            .await
            .code,
        504
    );
    assert_eq!(
        server.get(&format!("{CONFIGMAPS}/late")).await.code,
        404,
        "an expired write does nothing"
    );
}

#[tokio::test]
async fn fault_38_a_request_whose_body_stalls_gets_a_504() {
    let limits = Limits { request: Duration::from_secs(5), ..Limits::default() };
    let server = TestServer::paused(|builder| builder.limits(limits)).await;
    let silent = ferrokube_serve::stream(futures::stream::pending());
    let request = http::Request::builder()
        .method("POST")
        .uri(CONFIGMAPS)
        .header("authorization", "Bearer admin")
        .body(silent)
        .unwrap();
    assert_eq!(server.plane.call(request).await.status(), 504);
}

/// The ids in the registry's last write.
fn last(server: &TestServer) -> TraceContext {
    server.admission.contexts.lock().unwrap().last().unwrap().1
}

#[tokio::test]
async fn l22_trusted_contexts_are_joined_others_are_linked() {
    let server = TestServer::new().await;
    let trace = [("traceparent", PARENT), ("initial-trace-id", INITIAL)];
    let body = |name: &str| json!({"metadata": {"name": name}}).to_string();
    server.send("POST", CONFIGMAPS, &trace, body("a")).await;
    let joined = last(&server);
    assert_eq!(joined.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(joined.parent_span_id.unwrap().to_string(), "00f067aa0ba902b7");
    assert_eq!(joined.initial.unwrap().to_string(), INITIAL);
    assert_eq!(joined.link, None);

    // May write but not propagate: a trace of its own, linked to the claimed one.
    let mut headers = vec![("authorization", "Bearer writer")];
    headers.extend(trace);
    assert_eq!(server.send("POST", CONFIGMAPS, &headers, body("b")).await.code, 201);
    let asked = server.rules.asked.lock().unwrap().clone();
    assert!(asked.contains(&"writer propagate /trace-context".to_owned()), "{asked:?}");
    let linked = last(&server);
    assert_ne!(linked.trace_id, joined.trace_id);
    assert_eq!((linked.parent_span_id, linked.initial), (None, None), "nothing of it is believed");
    let (trace_id, span_id) = linked.link.unwrap();
    assert_eq!(
        (trace_id.to_string(), span_id.to_string()),
        ("4bf92f3577b34da6a3ce929d0e0e4736".into(), "00f067aa0ba902b7".into())
    );

    // The authenticated user's rights count, not the impersonated one's.
    let mut headers = vec![("impersonate-user", "jane"), ("impersonate-group", "system:masters")];
    headers.extend(trace);
    server.send("POST", CONFIGMAPS, &headers, body("c")).await;
    assert_eq!(last(&server).trace_id, joined.trace_id);
    assert_eq!(server.admission.contexts.lock().unwrap().last().unwrap().0.name, "jane");
}

#[tokio::test]
async fn d2_baggage_brings_the_initial_id_where_the_gate_is_on() {
    let baggage = format!("a=b, initial-trace-id={INITIAL};p");
    for (setting, header, want) in [
        ("LogTrackingInterop=true", None, Some(INITIAL)),
        (
            "LogTrackingInterop=true",
            Some("4bf92f3577b34da6a3ce929d0e0e4736"),
            Some("4bf92f3577b34da6a3ce929d0e0e4736"),
        ),
        ("LogTrackingInterop=false", None, None),
        ("", None, None),
    ] {
        let gates = Gates::new(KubernetesVersion::CURRENT, &setting.parse().unwrap()).unwrap().0;
        let server = TestServer::with(|builder| builder.gates(gates)).await;
        let mut headers = vec![("baggage", baggage.as_str())];
        headers.extend(header.map(|id| ("initial-trace-id", id)));
        assert_eq!(
            server
                .send("POST", CONFIGMAPS, &headers, json!({"metadata": {"name": "a"}}).to_string())
                .await
                .code,
            201
        );
        assert_eq!(last(&server).initial.map(|id| id.to_string()).as_deref(), want, "{setting}");
        let counted =
            server.get("/metrics").await.text().contains("ferrokube_trace_baggage_total 1");
        assert_eq!(
            counted,
            want == Some(INITIAL),
            "the header comes first, and baggage counts only where it is used"
        );
    }
}

#[tokio::test]
async fn l22_malformed_ids_are_ignored() {
    let server = TestServer::new().await;
    for (parent, initial) in [
        ("junk", "junk"),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", "0"),
        (PARENT, "00000000000000000000000000000000"),
    ] {
        let name = format!("c{}", parent.len() + initial.len());
        let answer = server
            .send(
                "POST",
                CONFIGMAPS,
                &[("traceparent", parent), ("initial-trace-id", initial)],
                json!({"metadata": {"name": name}}).to_string(),
            )
            .await;
        assert_eq!(answer.code, 201);
        assert_eq!(last(&server).initial, None);
    }
}
