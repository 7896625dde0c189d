//! Admission webhooks over HTTPS: what they decide, and what faulty ones cannot do.

mod server;

use crate::FERROKUBE;
use crate::objects::config_map;
use ferrokube_testkit::{BOUND, Client, Cluster, newest_kubectl, wait_until};
use serde_json::{Value, json};
use server::ReviewServer;
use std::time::{Duration, Instant};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A webhook that reviews config maps with label `w: LABEL`.
fn hook(server: &ReviewServer, path: &str, label: &str) -> Value {
    json!({"name": format!("{path}.example.com"), "clientConfig": server.config(path),
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            "operations": ["CREATE", "UPDATE"]}],
        "objectSelector": {"matchLabels": {"w": label}},
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1})
}

async fn register(admin: &Client, mutates: bool, name: &str, webhooks: Vec<Value>) {
    let (plural, kind) = if mutates {
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
    } else {
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
    };
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": name}, "webhooks": webhooks});
    let answer = admin.post(&format!("{GROUP}/{plural}"), &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
}

fn labelled(name: &str, label: &str) -> Value {
    let mut object = config_map(name, None);
    object["metadata"]["labels"] = json!({"w": label});
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_why_a_webhook_denies() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let mut hook = hook(&server, "deny", "");
    hook["objectSelector"] = json!({});
    register(&admin, false, "deny", vec![hook]).await;
    let kubectl = newest_kubectl();
    let output = kubectl.run(&cluster.kubeconfig(), &["create", "configmap", "a"]);
    assert!(!output.ok);
    let want = "admission webhook \"deny.example.com\" denied the request: not today";
    assert!(output.stderr.contains(want), "{}", output.stderr);
    assert!(output.stderr.contains("Warning: think again"), "{}", output.stderr);
    // It is in effect until its removal is acknowledged.
    let path = format!("{GROUP}/validatingwebhookconfigurations/deny");
    assert_eq!(admin.delete(&path).await.unwrap().status, 200);
    let output = kubectl.run(&cluster.kubeconfig(), &["create", "configmap", "a"]);
    assert!(output.ok, "{}", output.stderr);
}

#[tokio::test]
async fn l28_l29_reviews_carry_the_ids_of_the_request() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    register(&admin, true, "m", vec![hook(&server, "label", "a")]).await;
    let mut allow = hook(&server, "allow", "a");
    allow["objectSelector"] = json!({"matchLabels": {"reviewed": "yes"}});
    register(&admin, false, "v", vec![allow]).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = admin
        .request(reqwest::Method::POST, CONFIG_MAPS)
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))
        .header("initial-trace-id", "0af7651916cd43dd8448eb211c80319c")
        .header("content-type", "application/json")
        .body(labelled("a", "a").to_string());
    let written = admin.send(request).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    let annotations = &written.body["metadata"]["annotations"];
    assert_eq!(annotations["trace.kubernetes.io/trace-id"], trace);
    for path in ["label", "allow"] {
        let reviews = server.reviews(path);
        let [review] = reviews.as_slice() else { panic!("{reviews:?}") };
        let head = review.head.to_lowercase();
        assert!(head.contains(&format!("traceparent: 00-{trace}-")), "{head}");
        assert!(head.contains("initial-trace-id: 0af7651916cd43dd8448eb211c80319c"), "{head}");
        assert_eq!(review.review["request"]["operation"], "CREATE");
    }
    assert_eq!(written.body["metadata"]["labels"], json!({"reviewed": "yes"}));
}

#[tokio::test]
async fn fault_33_faulty_webhooks_fail_the_write_or_are_left_out() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let faults = ["hang", "redirect", "html", "broken", "huge", "lie"];
    let closed = faults.map(|path| hook(&server, path, path));
    let open = faults.map(|path| {
        let mut hook = hook(&server, path, &format!("{path}-open"));
        hook["name"] = json!(format!("{path}-open.example.com"));
        hook["failurePolicy"] = json!("Ignore");
        hook
    });
    register(&admin, false, "v", closed.into_iter().chain(open).collect()).await;
    for path in faults {
        let refused = admin.post(CONFIG_MAPS, &labelled(path, path)).await.unwrap();
        assert_eq!((refused.status, &refused.body["reason"]), (500, &json!("InternalError")));
        let message = refused.body["message"].as_str().unwrap();
        let want =
            format!("Internal error occurred: failed calling webhook \"{path}.example.com\": ");
        assert!(message.starts_with(&want), "{message}");
        assert!(!refused.text.contains("secret-of-the-backend"), "{}", refused.text);
        let label = format!("{path}-open");
        let written = admin.post(CONFIG_MAPS, &labelled(path, &label)).await.unwrap();
        assert_eq!(written.status, 201, "{}", written.text);
    }
    assert!(!cluster.log().contains("secret-of-the-backend"));
    let metrics = admin.get("/metrics").await.unwrap().text;
    let want = "apiserver_admission_webhook_fail_open_count{name=\"lie-open.example.com\",type=\"validating\"} 1";
    assert!(metrics.contains(want), "{metrics}");
}

#[tokio::test]
async fn fault_33_patches_cannot_take_over_what_the_server_owns() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let paths = ["managers", "identity", "grow"];
    register(&admin, true, "m", paths.map(|path| hook(&server, path, path)).into()).await;
    let managers = admin.post(CONFIG_MAPS, &labelled("a", "managers")).await.unwrap();
    assert_eq!(managers.status, 201, "{}", managers.text);
    assert!(!managers.text.contains("evil"), "{}", managers.text);
    let identity = admin.post(CONFIG_MAPS, &labelled("b", "identity")).await.unwrap();
    assert_eq!(identity.status, 201, "{}", identity.text);
    assert!(!identity.text.contains("\"mine\""), "{}", identity.text);
    let grown = admin.post(CONFIG_MAPS, &labelled("c", "grow")).await.unwrap();
    assert!(matches!(grown.status, 413 | 422), "{}", grown.status);
}

#[tokio::test]
async fn webhooks_that_change_what_the_other_changed_end() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let hooks = ["mark", "label"].map(|path| {
        let mut hook = hook(&server, path, "loop");
        hook["reinvocationPolicy"] = json!("IfNeeded");
        hook["objectSelector"] = json!({});
        hook
    });
    register(&admin, true, "m", hooks.into()).await;
    let written = admin.post(CONFIG_MAPS, &config_map("a", None)).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    let count = |path: &str| {
        // Controllers write config maps, too.
        let of_a = |one: &server::ReceivedReview| one.review["request"]["name"] == "a";
        server.reviews(path).into_iter().filter(of_a).count()
    };
    assert_eq!((count("mark"), count("label")), (2, 1), "again after the change of the other");
}

#[tokio::test]
async fn fault_32_a_webhook_for_everything_that_is_down_locks_nobody_out() {
    let server = ReviewServer::start().await;
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let mut down = hook(&server, "hang", "");
    down["clientConfig"]["url"] = json!("https://127.0.0.1:1/");
    down["objectSelector"] = json!({});
    down["rules"] = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"],
        "operations": ["*"]}]);
    register(&admin, true, "m", vec![down.clone()]).await;
    register(&admin, false, "v", vec![down]).await;
    let refused = admin.post(CONFIG_MAPS, &config_map("a", None)).await.unwrap();
    assert_eq!(refused.status, 500, "{}", refused.text);
    cluster.restart().unwrap();
    let admin = cluster.admin().unwrap();
    for plural in ["mutatingwebhookconfigurations/m", "validatingwebhookconfigurations/v"] {
        let deleted = admin.delete(&format!("{GROUP}/{plural}")).await.unwrap();
        assert_eq!(deleted.status, 200, "{}", deleted.text);
    }
    let written = admin.post(CONFIG_MAPS, &config_map("a", None)).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
}

#[tokio::test]
async fn a_hung_webhook_holds_up_only_what_it_reviews() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let mut hung = hook(&server, "hang", "hang");
    hung["timeoutSeconds"] = json!(30);
    register(&admin, false, "v", vec![hung]).await;
    let waiting: Vec<_> = (0..300)
        .map(|number| {
            let admin = cluster.admin().unwrap();
            tokio::spawn(async move {
                admin.post(CONFIG_MAPS, &labelled(&format!("h{number}"), "hang")).await
            })
        })
        .collect();
    wait_until("calls hang", BOUND, || async {
        let hanging = server.reviews("hang").len();
        if hanging >= 16 { Ok(()) } else { Err(hanging.to_string()) }
    })
    .await;
    let began = Instant::now();
    for number in 0..10 {
        let written = admin.post(CONFIG_MAPS, &config_map(&format!("n{number}"), None)).await;
        assert_eq!(written.unwrap().status, 201);
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
