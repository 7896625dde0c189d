//! Mistakes of a program fail the build, and leave nothing open or locked.

use crate::choices::NoMaps;
use crate::support::{TestPlane, builder};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::native::{KindBody, NativeKind, NativeSubresource};
use ferrokube_resource::{Bundle, Scope, Verbs};
use ferrokube_server::api::connect::{ConnectResource, LocateCall, LocateFuture};
use ferrokube_server::api::{DocumentRoute, Limits};
use ferrokube_server::registry::ComputedResource;
use ferrokube_server::registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_server::{
    AuthenticatorKind, BuildError, ControlPlane, ControlPlaneBuilder, FrontProxyConfig,
    ListenerConfig, ServiceAccountConfig,
};
use std::sync::Arc;
use std::time::Duration;

type MakeKindBody = fn() -> KindBody;
type Choose = fn(ControlPlaneBuilder) -> ControlPlaneBuilder;

/// Never called.
struct NoHandler;

impl ComputedResource for NoHandler {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        Box::pin(std::future::ready(Ok(object)))
    }
}

fn build(choose: impl FnOnce(ControlPlaneBuilder) -> ControlPlaneBuilder) -> BuildError {
    let directory = tempfile::tempdir().unwrap();
    choose(builder(&directory)).build().map(drop).expect_err("a mistake")
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_fail_the_build() {
    let generic = ferrokube_resources::bundle;
    let mistakes: Vec<(BuildError, &str)> = vec![
        (
            build(|builder| builder.bundle(generic().without(["pods"]))),
            "bundle generic has no kind \"pods\": kinds are named PLURAL.GROUP",
        ),
        (
            build(|builder| builder.bundle(generic()).bundle(generic())),
            "two kinds are called configmaps",
        ),
        (
            build(|builder| {
                builder.bundle(generic().without(["rolebindings.rbac.authorization.k8s.io"]))
            }),
            "clusterrolebindings do not work without rolebindings, which are left out",
        ),
        (
            build(|builder| builder.bundle(generic()).without_admission(["PodSecurity"])),
            "no admission step \"PodSecurity\" to leave out; there are",
        ),
        (
            build(|builder| {
                builder.admission(|_| Arc::new(NoMaps)).admission(|_| Arc::new(NoMaps))
            }),
            "two admission steps are called NoMaps",
        ),
        (
            build(|builder| builder.bundle(storeless())),
            "quotes.example.com is not stored and has no handler",
        ),
        (
            build(|builder| {
                builder.bundle(generic()).computed("configmaps", "", |_| Arc::new(NoHandler))
            }),
            "a handler for configmaps, which no bundle serves",
        ),
        (
            build(|builder| {
                builder.bundle(generic()).computed("configmaps", "scale", |_| Arc::new(NoHandler))
            }),
            "a handler for configmaps/scale, which no bundle serves",
        ),
        (
            build(|builder| builder.bundle(generic().roles("clusterrole"))),
            "malformed roles of bundle generic: \"clusterrole\"",
        ),
        (
            build(|builder| builder.builtin_authenticators([AuthenticatorKind::BootstrapTokens])),
            "bootstrap tokens do not work without secrets, which are left out",
        ),
    ];
    for (error, words) in mistakes {
        assert!(error.to_string().starts_with(words), "{error}");
    }
    let nowhere = ControlPlane::builder().build().map(drop).expect_err("no directory");
    assert!(matches!(nowhere, BuildError::NoDirectory | BuildError::Input(_)), "{nowhere}");
}

fn storeless() -> Bundle {
    const QUOTES: NativeKind = NativeKind::new(
        "example.com",
        ["quotes", "quote", "Quote"],
        Scope::Cluster,
        KindBody::default,
    );
    Bundle::new("quotes").kind(QUOTES).schemas(
        "definition\tfield\ttype\nio.k8s.api.example.v1.Quote\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\n",
    )
}

/// A kind that is stored in `prefix`, with the schema of quotes.
fn stored(name: &'static str, body: fn() -> KindBody) -> Bundle {
    let names = match name {
        "quotes" => ["quotes", "quote", "Quote"],
        _ => ["jokes", "joke", "Joke"],
    };
    let kind = NativeKind::new("example.com", names, Scope::Namespaced, body);
    let schemas = match name {
        "quotes" => {
            "definition\tfield\ttype\nio.k8s.api.example.v1.Quote\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\n"
        }
        _ => {
            "definition\tfield\ttype\nio.k8s.api.example.v1.Joke\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\n"
        }
    };
    Bundle::new(name).kind(kind).schemas(schemas)
}

/// With rights to one of the kinds, a user would read the other.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_do_not_share_storage() {
    let quotes =
        || stored("quotes", || KindBody { storage: Some("quotes"), ..KindBody::default() });
    let cases: [(MakeKindBody, &str); 5] = [
        (
            || KindBody { storage: Some("quotes"), ..KindBody::default() },
            r#"jokes.example.com cannot be stored in "quotes": quotes.example.com are stored in "quotes""#,
        ),
        (
            || KindBody { storage: Some("quotes/default"), ..KindBody::default() },
            r#"jokes.example.com cannot be stored in "quotes/default": quotes.example.com are"#,
        ),
        (
            || KindBody { storage: Some(""), ..KindBody::default() },
            r#"jokes.example.com cannot be stored in "": a segment is empty"#,
        ),
        (
            || KindBody { storage: Some("a/../b"), ..KindBody::default() },
            r#"jokes.example.com cannot be stored in "a/../b": a segment"#,
        ),
        (
            || KindBody { storage: Some("jokes/"), ..KindBody::default() },
            r#"jokes.example.com cannot be stored in "jokes/": a segment"#,
        ),
    ];
    for (body, words) in cases {
        let bundles = [quotes(), stored("jokes", body)];
        let error = ferrokube_resources::compose(&bundles).map(drop).expect_err(words);
        assert!(error.to_string().starts_with(words), "{error}");
    }
}

/// Otherwise the right to create `jokes/tell` would be a right to create jokes.
#[tokio::test(flavor = "multi_thread")]
async fn subresources_have_handlers() {
    fn body() -> KindBody {
        KindBody {
            storage: Some("jokes"),
            subresources: &[NativeSubresource {
                name: "tell",
                kind: None,
                verbs: Verbs::CREATE,
                reset: &[],
            }],
            ..KindBody::default()
        }
    }
    let error = build(|builder| builder.bundle(stored("jokes", body)));
    let words = "jokes.example.com/tell has no handler: call ControlPlaneBuilder::computed";
    assert_eq!(error.to_string(), words);
    let handler = |_: &_| -> Arc<dyn ComputedResource> { Arc::new(NoHandler) };
    let twice = build(|builder| {
        let builder = builder.bundle(stored("jokes", body));
        builder.computed("jokes.example.com", "tell", handler).computed(
            "jokes.example.com",
            "tell",
            handler,
        )
    });
    assert_eq!(twice.to_string(), "two handlers for jokes.example.com/tell");
}

struct Nowhere;

impl ConnectResource for Nowhere {
    fn locate<'a>(&'a self, _call: LocateCall<'a>) -> LocateFuture<'a> {
        Box::pin(std::future::ready(Err(Failure::bad_request("nowhere"))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_subresources_lead_somewhere() {
    fn body() -> KindBody {
        KindBody {
            storage: Some("jokes"),
            subresources: &[NativeSubresource {
                name: "hear",
                kind: None,
                verbs: Verbs::CONNECT,
                reset: &[],
            }],
            ..KindBody::default()
        }
    }
    let error = build(|builder| builder.bundle(stored("jokes", body)));
    let words = "jokes.example.com/hear connects to nothing: call ControlPlaneBuilder::connection";
    assert_eq!(error.to_string(), words);
    let nowhere = |_: &_| -> Arc<dyn ConnectResource> { Arc::new(Nowhere) };
    for (names, words) in [
        (["hear", "hear"], "two handlers for jokes.example.com/hear"),
        (["hear", "tell"], "a handler for jokes.example.com/tell, which no bundle serves"),
    ] {
        let error = build(|builder| {
            names.into_iter().fold(builder.bundle(stored("jokes", body)), |builder, name| {
                builder.connection("jokes.example.com", name, nowhere)
            })
        });
        assert_eq!(error.to_string(), words);
    }
}

/// Without their authenticator, there are no tokens to request.
#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_there_is_no_subresource_for_them() {
    let plane = TestPlane::start(|builder| {
        let accounts = ["namespaces", "serviceaccounts", "secrets"];
        builder
            .bundle(ferrokube_resources::bundle().only(accounts))
            .builtin_authenticators([AuthenticatorKind::ClientCertificates])
    })
    .await;
    let discovery = plane.get("/api/v1").await.1;
    assert!(!discovery.contains("serviceaccounts/token"), "{discovery}");
    let path = "/api/v1/namespaces/default/serviceaccounts/mine/token";
    let (code, text) = plane.post(path, &json!({"metadata": {"name": "mine"}})).await;
    assert_eq!(code, 404, "{text}");
}

fn page(text: &'static str) -> Arc<DocumentRoute> {
    let produce = Box::new(|| text.into());
    Arc::new(DocumentRoute { media_type: "text/plain", produce })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_neither_takes_nor_opens_a_path_of_the_server() {
    for path in [
        "/",
        "/api",
        "/apis",
        "/apis/",
        "/api/v1/mine",
        "/metrics",
        "/metrics/",
        "/healthz/mine",
        "/readyz",
        "/openapi/v2",
        "/version",
        "//metrics",
        "/debug/",
        "/debug/api_priority_and_fairness/dump_queues",
        "mine",
    ] {
        let error = build(|builder| builder.route(path, true, |_| page("mine")));
        assert!(matches!(&error, BuildError::Path(taken) if taken == path), "{path}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_route_that_serves_a_path_decides_who_may_read_it() {
    let plane = TestPlane::start(|builder| {
        builder
            .bundle(ferrokube_resources::bundle())
            .route("/open/", true, |_| page("open"))
            .route("/open/closed", false, |_| page("closed"))
            .route("/closed/", false, |_| page("closed"))
            .route("/closed/open", true, |_| page("open"))
    })
    .await;
    for (path, code) in [
        ("/open/", 200),
        ("/open/below", 200),
        ("/open/closed", 403),
        ("/closed/below", 403),
        ("/closed/open", 200),
        ("/metrics", 403),
    ] {
        let (found, text) = plane.send("GET", path, "jane", "").await;
        assert_eq!(found, code, "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_cannot_work_fail_the_build() {
    let cases: [(Choose, &str); 5] = [
        (
            |builder| builder.front_proxies(FrontProxyConfig::default()),
            "front proxies need a ca_file",
        ),
        (
            |builder| {
                builder.service_accounts(ServiceAccountConfig {
                    issuer: String::new(),
                    ..ServiceAccountConfig::default()
                })
            },
            "service account tokens need an issuer",
        ),
        (
            |builder| builder.limits(Limits { mutating_inflight: 0, ..Limits::default() }),
            "readonly_inflight and mutating_inflight must be greater than 0",
        ),
        (
            |builder| builder.limits(Limits { request: Duration::ZERO, ..Limits::default() }),
            "the timeout of requests must be greater than 0",
        ),
        (
            |builder| {
                builder.listener(ListenerConfig {
                    address: (std::net::Ipv4Addr::LOCALHOST, 0).into(),
                    admin_lifetime: Duration::from_millis(1),
                    ..ListenerConfig::default()
                })
            },
            "admin_lifetime must be at least 1 second",
        ),
    ];
    for (choose, words) in cases {
        let error = build(choose);
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn without_a_runtime_the_build_fails() {
    let error = build(|builder| builder);
    assert!(matches!(error, BuildError::Runtime(_)), "{error}");
}
