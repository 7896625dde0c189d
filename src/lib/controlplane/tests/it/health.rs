//! Probes, bootstrap, metrics, mounted routes.

use crate::support::TestServer;
use ferrokube_controlplane::{BootstrapStep, DocumentRoute, StartError, StepError};
use std::sync::Arc;
use tokio::sync::oneshot;

fn no() -> StepError {
    StepError::Failed("no".to_owned())
}

/// A step that runs once, until the channel ends it.
fn waiting(until: oneshot::Receiver<()>) -> BootstrapStep {
    let mut until = Some(until);
    Box::new(move |_| {
        let until = until.take().unwrap();
        Box::pin(async move { until.await.map_err(|error| StepError::Failed(error.to_string())) })
    })
}

#[tokio::test]
async fn readiness_waits_for_every_step() {
    let (done, wait) = oneshot::channel::<()>();
    let server = TestServer::stopped(|builder| builder.post_start("mine", waiting(wait)));
    assert_eq!((server.get("/readyz").await.code, server.plane.is_ready()), (500, false));
    let plane = server.plane.clone();
    let starting = tokio::spawn(async move { plane.start().await });
    while server.get("/readyz/poststarthook/start-system-namespaces-controller").await.code != 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.get("/readyz/poststarthook/mine").await.code, 500);
    assert_eq!(server.get("/version").await.code, 200, "it answers before it is ready");
    done.send(()).unwrap();
    starting.await.unwrap().unwrap();
    assert_eq!(server.get("/readyz").await.text(), "ok");
    let names: Vec<String> =
        ["default", "kube-node-lease", "kube-public", "kube-system"].map(str::to_owned).to_vec();
    let list = server.get("/api/v1/namespaces").await.json();
    assert_eq!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>(),
        names
    );
}

#[tokio::test]
async fn a_failed_step_keeps_the_server_from_becoming_ready() {
    let server = TestServer::stopped(|builder| {
        builder.post_start("mine", Box::new(|_| Box::pin(async { Err(no()) })))
    });
    let error = server.plane.start().await.unwrap_err();
    assert!(matches!(&error, StartError::Step { step, why } if step == "mine" && why == "no"));
    assert!(!server.plane.is_ready());
    let verbose = server.get("/readyz?verbose").await;
    assert_eq!(verbose.code, 500);
    assert!(
        verbose.text().contains("[-]poststarthook/mine failed")
            && verbose.text().contains("[+]ping ok"),
        "{}",
        verbose.text()
    );
}

#[tokio::test]
async fn a_second_start_waits_for_the_first() {
    let (done, wait) = oneshot::channel::<()>();
    let server = TestServer::stopped(|builder| builder.post_start("mine", waiting(wait)));
    let (plane, other) = (server.plane.clone(), server.plane.clone());
    let both = tokio::spawn(async move { tokio::join!(plane.start(), other.start()) });
    while server.get("/readyz/poststarthook/start-system-namespaces-controller").await.code != 200 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!server.plane.is_ready(), "a step is still running");
    done.send(()).unwrap();
    let (first, second) = both.await.unwrap();
    assert!(first.is_ok() && second.is_ok() && server.plane.is_ready());
}

#[tokio::test]
async fn a_start_after_one_that_failed_or_was_dropped_fails_too() {
    let fails = TestServer::stopped(|builder| {
        builder.post_start("mine", Box::new(|_| Box::pin(async { Err(no()) })))
    });
    for _ in 0..2 {
        let error = fails.plane.start().await.unwrap_err();
        assert!(matches!(&error, StartError::Step { .. }), "{error}");
    }
    let hangs = TestServer::stopped(|builder| {
        builder.post_start("mine", Box::new(|_| Box::pin(std::future::pending())))
    });
    let dropped = {
        let mut start = std::pin::pin!(hangs.plane.start());
        std::future::poll_fn(|context| {
            assert!(start.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        hangs.plane.clone()
    };
    let error = dropped.start().await.unwrap_err();
    assert!(matches!(&error, StartError::Dropped), "{error}");
    assert!(!dropped.is_ready() && !fails.plane.is_ready());
}

#[tokio::test]
async fn steps_of_one_name_are_done_when_all_are() {
    let (done, wait) = oneshot::channel::<()>();
    let server = TestServer::stopped(|builder| {
        let builder = builder.post_start("mine", Box::new(|_| Box::pin(async { Ok(()) })));
        builder.post_start("mine", waiting(wait))
    });
    let plane = server.plane.clone();
    let starting = tokio::spawn(async move { plane.start().await });
    while server.get("/readyz/poststarthook/start-system-namespaces-controller").await.code != 200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.get("/readyz/poststarthook/mine").await.code, 500);
    done.send(()).unwrap();
    starting.await.unwrap().unwrap();
    assert_eq!(server.get("/readyz/poststarthook/mine").await.code, 200);
}

#[tokio::test]
async fn checks_by_name() {
    let server = TestServer::new().await;
    for probe in ["healthz", "livez", "readyz"] {
        assert_eq!(server.get(&format!("/{probe}")).await.text(), "ok");
        assert_eq!(server.get(&format!("/{probe}/ping")).await.text(), "ok");
        assert_eq!(server.get(&format!("/{probe}/etcd")).await.text(), "ok");
        assert_eq!(server.get(&format!("/{probe}/none")).await.code, 404);
        assert!(
            server
                .get(&format!("/{probe}?verbose"))
                .await
                .text()
                .contains(&format!("{probe} check passed"))
        );
        let excluding = server
            .get(&format!("/{probe}?verbose&exclude=nothing&exclude=etcd&exclude=b"))
            .await
            .text();
        assert!(excluding.contains("[+]etcd excluded: ok\n"), "{excluding}");
        assert!(
            excluding.contains(
                "warn: some health checks cannot be excluded: no matches for \"b\",\"nothing\"\n"
            ),
            "{excluding}"
        );
    }
}

/// Lines that kube-apiserver's end-to-end test of its probes expects, in any order.
#[tokio::test]
async fn checks_have_kube_apiservers_names() {
    let server = TestServer::with(|builder| {
        builder.post_start("rbac/bootstrap-roles", Box::new(|_| Box::pin(async { Ok(()) })))
    })
    .await;
    let hooks = [
        "start-apiserver-admission-initializer",
        "generic-apiserver-start-informers",
        "start-apiextensions-informers",
        "start-apiextensions-controllers",
        "crd-informer-synced",
        "bootstrap-controller",
        "start-system-namespaces-controller",
        "start-service-ip-repair-controllers",
        "rbac/bootstrap-roles",
        "scheduling/bootstrap-system-priority-classes",
        "start-cluster-authentication-info-controller",
        "start-kube-aggregator-informers",
        "apiservice-registration-controller",
        "apiservice-status-local-available-controller",
        "apiservice-status-remote-available-controller",
        "kube-apiserver-autoregistration",
        "apiservice-openapi-controller",
        "storage-readiness",
    ];
    for (probe, own) in [("healthz", "etcd"), ("livez", "etcd"), ("readyz", "informer-sync")] {
        let text = server.get(&format!("/{probe}?verbose=1")).await.text();
        let lines: Vec<&str> = text.lines().collect();
        let hooks = hooks.iter().map(|hook| format!("[+]poststarthook/{hook} ok"));
        for want in hooks.chain(
            ["ping", "log", own, "autoregister-completion"].map(|name| format!("[+]{name} ok")),
        ) {
            assert_eq!(
                lines.iter().filter(|line| **line == want).count(),
                1,
                "{probe}: {want} in {text}"
            );
        }
    }
}

#[tokio::test]
async fn the_liveness_probe_sees_a_store_that_is_closed() {
    let server = TestServer::new().await;
    server.plane.registry().store().close().await;
    assert_eq!(server.get("/livez/ping").await.code, 200);
}

#[tokio::test]
async fn unknown_resources_make_no_series() {
    let server = TestServer::new().await;
    for at in 0..1500 {
        for path in [
            format!("/apis/g{at}/v1/things"),
            format!("/api/v{at}/configmaps"),
            format!("/api/v1/configmaps/a/s{at}"),
        ] {
            assert_eq!(
                server.send("GET", &path, &[("authorization", "")], "").await.code,
                403,
                "{path}"
            );
        }
    }
    server.configmap("a").await;
    let text = server.get("/metrics").await.text();
    assert!(
        text.lines().filter(|line| line.starts_with("apiserver_request_total")).count() < 10,
        "{text}"
    );
    assert!(
        text.contains(r#"verb="POST",group="",version="v1",resource="configmaps""#),
        "clients cannot use up the labels: {text}"
    );
}

#[tokio::test]
async fn metrics_show_what_the_listener_counts() {
    use std::sync::atomic::Ordering;
    let server = TestServer::new().await;
    let stats = std::sync::Arc::new(ferrokube_serve::ListenerStats::default());
    for (number, counter) in [
        &stats.open,
        &stats.accepted,
        &stats.refused,
        &stats.handshakes_failed,
        &stats.stalled,
        &stats.flooded,
        &stats.shed,
    ]
    .into_iter()
    .enumerate()
    {
        counter.store(number as u64 + 1, Ordering::Relaxed);
    }
    server.plane.show_listener(stats);
    let text = server.get("/metrics").await.text();
    for (name, count) in
        ["open", "accepted", "refused", "handshakes_failed", "stalled", "flooded", "shed"]
            .into_iter()
            .zip(1..)
    {
        assert!(
            text.contains(&format!("ferrokube_connections_{name} {count}\n")),
            "{name}: {text}"
        );
    }
}

#[tokio::test]
async fn metrics_count_requests_and_watches() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let watch = server.open("/api/v1/configmaps?watch=1", &[]).await;
    let text = server.get("/metrics").await.text();
    assert!(
        text.contains(
            r#"apiserver_request_total{verb="POST",group="",version="v1",resource="configmaps",subresource="",scope="resource",dry_run="",code="201"} 1"#
        ),
        "{text}"
    );
    assert!(text.contains("apiserver_longrunning_requests 1"));
    assert!(text.contains("apiserver_storage_objects{resource=\"configmaps\"} 1"), "{text}");
    drop(watch);
    assert!(server.get("/metrics").await.text().contains("apiserver_longrunning_requests 0"));
}

#[tokio::test]
async fn metrics_are_prometheus_text_unless_open_metrics_are_asked_for() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    for accept in ["*/*", "text/html", "application/json"] {
        let answer = server.get_as("/metrics", accept).await;
        assert_eq!(
            answer.header("content-type"),
            "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
            "{accept}"
        );
        let text = answer.text();
        assert!(
            text.contains("# TYPE apiserver_request_total counter\n") && !text.contains("# EOF"),
            "{text}"
        );
    }
    let answer = server.get_as("/metrics", "application/openmetrics-text;version=1.0.0").await;
    assert_eq!(
        answer.header("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(answer.text().ends_with("# EOF\n"));
}

#[tokio::test]
async fn outcomes_of_health_checks_are_counted() {
    let server = TestServer::new().await;
    for path in ["/readyz", "/readyz?exclude=log", "/livez", "/readyz/ping"] {
        assert_eq!(server.get(path).await.code, 200);
    }
    let text = server.get("/metrics/slis").await.text();
    for line in [
        "# TYPE kubernetes_healthchecks_total counter",
        r#"kubernetes_healthcheck{name="etcd",type="readyz"} 1"#,
        r#"kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"} 2"#,
        r#"kubernetes_healthchecks_total{name="etcd",status="success",type="livez"} 1"#,
        r#"kubernetes_healthchecks_total{name="log",status="success",type="readyz"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 2"#,
    ] {
        assert!(text.lines().any(|known| known == line), "{line} in {text}");
    }
    assert!(!text.contains("healthz") && !text.contains("error"), "{text}");
    let starting = TestServer::stopped(|builder| builder);
    assert_eq!(starting.get("/readyz").await.code, 500);
    let text = starting.get("/metrics/slis").await.text();
    for line in [
        r#"kubernetes_healthcheck{name="informer-sync",type="readyz"} 0"#,
        r#"kubernetes_healthchecks_total{name="informer-sync",status="error",type="readyz"} 1"#,
    ] {
        assert!(text.lines().any(|known| known == line), "{line} in {text}");
    }
}

#[tokio::test]
async fn clients_cannot_create_series_at_will() {
    let server = TestServer::new().await;
    for at in 0..1500 {
        server.get(&format!("/apis/g{at}.example.com/v1/things")).await;
    }
    let text = server.get("/metrics").await.text();
    assert!(text.matches("apiserver_request_total{").count() < 4200);
}

/// A server with an issuer's keys.
async fn with_keys(is_public: bool) -> TestServer {
    let keys = DocumentRoute {
        media_type: "application/jwk-set+json",
        produce: Box::new(|| br#"{"keys":[]}"#.to_vec()),
    };
    TestServer::with(|builder| builder.route("/openid/v1/jwks", is_public, Arc::new(keys))).await
}

#[tokio::test]
async fn who_may_not_read_the_keys_does_not_learn_their_form() {
    let server = with_keys(false).await;
    let anonymous = [("authorization", ""), ("accept", "application/json")];
    let refused = server.send("GET", "/openid/v1/jwks", &anonymous, "").await;
    let why = "forbidden: User \"system:anonymous\" cannot get path \"/openid/v1/jwks\"";
    assert_eq!((refused.code, refused.json()["message"].as_str()), (403, Some(why)));
    assert_eq!(server.get_as("/openid/v1/jwks", "application/json").await.code, 406);
}

#[tokio::test]
async fn mounted_routes_serve_their_paths() {
    let server = with_keys(true).await;
    let path = "/openid/v1/jwks";
    let refused = server.get_as(path, "application/json").await;
    let why = "406: Not Acceptable\n\nAvailable representations: application/jwk-set+json";
    assert_eq!((refused.code, refused.json()["message"].as_str()), (406, Some(why)));
    assert_eq!(
        server.send("POST", path, &[("accept", "text/html")], "").await.code,
        405,
        "the method comes first"
    );
    assert_eq!(server.get_as(&format!("{path}/"), "application/jwk-set+json").await.code, 200);
    let answer = server.get_as(path, "application/jwk-set+json, */*").await;
    assert_eq!(
        (answer.code, answer.header("content-type"), answer.text().as_str()),
        (200, "application/jwk-set+json", r#"{"keys":[]}"#)
    );
    assert_eq!(
        server.send("GET", path, &[("authorization", "")], "").await.code,
        200,
        "open to everybody"
    );
    assert_eq!(server.get("/openid/v1/other").await.code, 404);
    assert!(
        server.get("/").await.json()["paths"].as_array().unwrap().iter().any(|other| other == path)
    );
}
