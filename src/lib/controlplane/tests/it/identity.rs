//! Authentication, impersonation and authorization.

use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_auth::{Access, Authorizer, Decision};
use ferrokube_serve::CloseConnection;
use http::{Request, Version};
use std::sync::Arc;

/// Allows everything.
struct Anything;

impl Authorizer for Anything {
    fn authorize(&self, _access: &Access<'_>) -> Decision {
        Decision::Allow("test".into())
    }
}

#[tokio::test]
async fn fault_52_no_way_to_be_anonymous_gets_past_the_open_paths() {
    let server = TestServer::with(|builder| builder.authorizer(Arc::new(Anything))).await;
    let (nobody, alice) = (("authorization", ""), ("authorization", "Bearer alice"));
    let as_user = |name: &'static str| ("impersonate-user", name);
    let callers: [&[(&str, &str)]; 6] = [
        &[nobody],
        &[nobody, as_user("admin"), ("impersonate-group", "system:masters")],
        &[alice, as_user("system:anonymous")],
        &[alice, as_user("system:anonymous"), ("impersonate-group", "system:masters")],
        &[alice, as_user("jane"), ("impersonate-group", "system:unauthenticated")],
        &[("authorization", "Bearer system:anonymous")],
    ];
    for caller in callers {
        for path in [CONFIGMAPS, "/api", "/metrics"] {
            let answer = server.send("GET", path, caller, "").await;
            assert_eq!(
                (answer.code, answer.reason().as_str()),
                (403, "Forbidden"),
                "{caller:?} {path}"
            );
        }
        let health = server.send("GET", "/healthz", caller, "").await.code;
        assert_eq!(
            health,
            if caller.len() > 1 && caller[0] == nobody { 403 } else { 200 },
            "{caller:?}"
        );
    }
    assert_eq!(server.send("GET", CONFIGMAPS, &[alice, as_user("jane")], "").await.code, 200);
}

#[tokio::test]
async fn wrong_tokens_are_401_everywhere_and_no_token_is_anonymous() {
    let server = TestServer::new().await;
    for path in [CONFIGMAPS, "/version", "/healthz", "/nope"] {
        let answer = server.send("GET", path, &[("authorization", "Bearer bad")], "").await;
        assert_eq!((answer.code, answer.reason().as_str()), (401, "Unauthorized"), "{path}");
    }
    for none in ["", "Basic YTpi", "Bearer", "Negotiate x"] {
        let answer = server.send("GET", CONFIGMAPS, &[("authorization", none)], "").await;
        assert_eq!((answer.code, answer.reason().as_str()), (403, "Forbidden"), "{none}");
        assert!(answer.text().contains("system:anonymous"));
    }
}

#[tokio::test]
async fn fault_37_an_unauthenticated_answer_closes_its_http2_connection() {
    let server = TestServer::new().await;
    let cases = [
        ("/version", None, 200, true),
        (CONFIGMAPS, None, 403, true),
        (CONFIGMAPS, Some("Bearer bad"), 401, true),
        (CONFIGMAPS, Some("Bearer admin"), 200, false),
        (CONFIGMAPS, Some("Bearer alice"), 403, false),
        ("/nope", Some("Bearer admin"), 404, false),
    ];
    for version in [Version::HTTP_2, Version::HTTP_11] {
        for (path, credentials, code, is_unknown) in cases {
            let mut request = Request::builder().uri(path).version(version);
            if let Some(credentials) = credentials {
                request = request.header("authorization", credentials);
            }
            let request = request.body(ferrokube_serve::empty()).unwrap();
            let response = server.plane.call(request).await;
            let closes = response.extensions().get::<CloseConnection>().is_some();
            assert_eq!(
                (response.status().as_u16(), closes),
                (code, is_unknown && version == Version::HTTP_2),
                "{version:?} {credentials:?} {path}"
            );
        }
    }
}

#[tokio::test]
async fn fault_51_a_wrong_token_closes_its_http1_connection() {
    let server = TestServer::new().await;
    let cases = [
        ("/version", None, 200, false),
        (CONFIGMAPS, None, 403, false),
        (CONFIGMAPS, Some("Bearer bad"), 401, true),
        ("/healthz", Some("Bearer bad"), 401, true),
        (CONFIGMAPS, Some("Bearer admin"), 200, false),
        (CONFIGMAPS, Some("Bearer alice"), 403, false),
    ];
    for (path, credentials, code, closes) in cases {
        let mut request = Request::builder().uri(path);
        if let Some(credentials) = credentials {
            request = request.header("authorization", credentials);
        }
        let response = server.plane.call(request.body(ferrokube_serve::empty()).unwrap()).await;
        let is_closing = response.headers().get("connection").is_some_and(|it| it == "close");
        assert_eq!(
            (response.status().as_u16(), is_closing),
            (code, closes),
            "{credentials:?} {path}"
        );
    }
}

#[tokio::test]
async fn anonymous_reads_the_open_paths_only() {
    let server = TestServer::new().await;
    let cases = [
        ("/version", 200),
        ("/healthz", 200),
        ("/livez", 200),
        ("/readyz", 200),
        ("/livez/ping", 403),
        ("/api", 403),
        ("/apis", 403),
        ("/openapi/v2", 403),
        ("/metrics", 403),
        ("/", 403),
    ];
    for (path, code) in cases {
        assert_eq!(
            server.send("GET", path, &[("authorization", "")], "").await.code,
            code,
            "{path}"
        );
    }
}

#[tokio::test]
async fn fault_50_the_authorized_action_is_the_one_done() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    server.rules.asked.lock().unwrap().clear();
    let cases = [
        (CONFIGMAPS.to_owned(), "admin list default/configmaps//"),
        (format!("{CONFIGMAPS}/a"), "admin get default/configmaps/a/"),
        (format!("{CONFIGMAPS}/%61"), "admin get default/configmaps/a/"),
        ("/api/v1/configmaps".to_owned(), "admin list /configmaps//"),
        ("/api/v1/namespaces/default".to_owned(), "admin get default/namespaces/default/"),
        (
            format!("{CONFIGMAPS}?fieldSelector=metadata.name%3Da"),
            "admin list default/configmaps/a/",
        ),
    ];
    for (path, want) in cases {
        let answer = server.get(&path).await;
        assert_eq!(answer.code, 200, "{path}");
        let asked = std::mem::take(&mut *server.rules.asked.lock().unwrap());
        assert_eq!(asked, [want], "{path}");
        if let Some(items) = answer.json()["items"].as_array() {
            assert!(items.iter().all(|item| item["metadata"]["namespace"] == "default"));
        }
    }
}

#[tokio::test]
async fn fault_40_hostile_paths_never_reach_the_authorizer() {
    let server = TestServer::new().await;
    for path in [
        "/api/v1/namespaces/%2e%2e/configmaps",
        "/api/v1/namespaces/n/configmaps/%2e%2e",
        "/api/v1/namespaces/n/configmaps/..%2f..",
    ] {
        server.rules.asked.lock().unwrap().clear();
        let answer = server.send("GET", path, &[("authorization", "Bearer reader")], "").await;
        assert!(answer.code >= 400, "{path}");
        assert!(!answer.headers.contains_key("x-content-type-options"), "{path}");
        assert_eq!(*server.rules.asked.lock().unwrap(), Vec::<String>::new(), "{path}");
    }
}

#[tokio::test]
async fn empty_segments_are_authorized_and_not_found() {
    let server = TestServer::new().await;
    for path in [
        "/api/v1/namespaces/n//configmaps",
        "/apis/apps//deployments",
        "/api//v1/configmaps",
        "/api/v1//configmaps",
    ] {
        server.rules.asked.lock().unwrap().clear();
        let answer = server.send("GET", path, &[("authorization", "Bearer alice")], "").await;
        assert_eq!((answer.code, server.rules.asked.lock().unwrap().len()), (403, 1), "{path}");
        for method in ["GET", "POST", "DELETE"] {
            assert_eq!(server.send(method, path, &[], "{}").await.code, 404, "{method} {path}");
        }
    }
    for path in ["/apis//v1", "/apis//"] {
        let answer = server.get(path).await;
        assert_eq!((answer.code, answer.text().as_str()), (404, "404 page not found\n"), "{path}");
    }
}

#[tokio::test]
async fn paths_that_are_open_are_open_for_reads() {
    let server = TestServer::new().await;
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(
            server.send("GET", path, &[("authorization", "")], "").await.code,
            200,
            "{path}"
        );
        for method in ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            let answer = server.send(method, path, &[("authorization", "")], "").await;
            assert_eq!(
                (answer.code, answer.header("x-content-type-options")),
                (403, "nosniff"),
                "{method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn fault_50_a_namespaced_path_has_no_cluster_object() {
    let server = TestServer::new().await;
    assert_eq!(
        server.get("/apis/rbac.authorization.k8s.io/v1/namespaces/default/clusterroles").await.code,
        404
    );
    assert_eq!(
        server
            .get("/apis/rbac.authorization.k8s.io/v1/namespaces/default/clusterroles/x")
            .await
            .code,
        404
    );
    assert_eq!(server.get("/api/v1/configmaps/a").await.code, 404);
}

#[tokio::test]
async fn authorization_comes_before_everything_about_the_object() {
    let server = TestServer::new().await;
    let as_reader = [("authorization", "Bearer reader")];
    assert_eq!(server.send("GET", CONFIGMAPS, &as_reader, "").await.code, 200);
    assert_eq!(server.send("POST", CONFIGMAPS, &as_reader, "{").await.code, 403);
    assert_eq!(
        server
            .send(
                "GET",
                "/apis/none.example.com/v1/things",
                &[("authorization", "Bearer alice")],
                ""
            )
            .await
            .code,
        403
    );
}

#[tokio::test]
async fn fault_52_impersonation_needs_a_right_for_every_part() {
    let server = TestServer::new().await;
    let with = |more: &'static [(&'static str, &'static str)]| {
        [&[("authorization", "Bearer impersonator")], more].concat()
    };
    let jane = server.send("GET", CONFIGMAPS, &with(&[("impersonate-user", "jane")]), "").await;
    assert_eq!(jane.code, 403);
    assert!(jane.text().contains("\\\"jane\\\" cannot list"), "{}", jane.text());
    for more in [
        &[("impersonate-user", "jane"), ("impersonate-group", "system:masters")][..],
        &[("impersonate-user", "admin")],
        &[("impersonate-user", "jane"), ("impersonate-uid", "1")],
    ] {
        let answer = server
            .send(
                "GET",
                CONFIGMAPS,
                &[&[("authorization", "Bearer impersonator")], more].concat(),
                "",
            )
            .await;
        assert_eq!(answer.code, 403);
        assert!(answer.text().contains("cannot impersonate"), "{}", answer.text());
    }
    assert_eq!(
        server.send("GET", CONFIGMAPS, &with(&[("impersonate-group", "g")]), "").await.code,
        400
    );
}
