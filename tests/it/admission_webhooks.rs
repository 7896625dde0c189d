//! Admission and conversion webhooks over HTTPS: what they decide, and what faulty ones cannot do.

mod selection;
mod server;
mod services;

use crate::FERROKUBE;
use crate::objects::config_map;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_pki::{Pki, Subject};
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, json_lines, newest_kubectl, wait_until};
use serde_json::{Value, json};
use server::ReviewServer;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A webhook that reviews config maps with label `w: LABEL`.
fn hook(server: &ReviewServer, path: &str, label: &str) -> Value {
    let seconds = if path == "hang" { 1 } else { 30 };
    json!({"name": format!("{path}.example.com"), "clientConfig": server.config(path),
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            "operations": ["CREATE", "UPDATE"]}],
        "objectSelector": {"matchLabels": {"w": label}},
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": seconds})
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
    assert_eq!(annotation(&cluster, "deny.example.com/why"), "it is late");
    // It is in effect until its removal is acknowledged.
    let path = format!("{GROUP}/validatingwebhookconfigurations/deny");
    assert_eq!(admin.delete(&path).await.unwrap().status, 200);
    let output = kubectl.run(&cluster.kubeconfig(), &["create", "configmap", "a"]);
    assert!(output.ok, "{}", output.stderr);
}

/// The value of an annotation in the audit log.
fn annotation(cluster: &Cluster, key: &str) -> String {
    let events = json_lines(&cluster.data_dir().join("audit.log"));
    let found = events.iter().find_map(|event| event["annotations"][key].as_str());
    found.unwrap_or_else(|| panic!("no {key} in {events:?}")).to_owned()
}

/// A configuration of both webhook steps, for `--admission-control-config-file`.
fn admission_config(directory: &Path, kubeconfig: &str) -> PathBuf {
    let private = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let kubeconfig = private("kubeconfig", kubeconfig);
    let section = |step: &str| {
        json!({"name": step, "configuration": {"apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": kubeconfig}})
    };
    let steps = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(section);
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration", "plugins": steps});
    private("admission.json", &config.to_string())
}

#[tokio::test]
async fn webhooks_behind_services_get_the_credentials_of_their_user() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(&directory.path().join("pki")).unwrap();
    let subject = Subject { common_name: "apiserver", organizations: &[] };
    let client = pki.client(&subject, Duration::from_secs(3600)).unwrap();
    let server = ReviewServer::with_clients(Some(pki.client_ca_pem())).await;
    let [chain, key] = [&client.chain_pem, &client.key_pem].map(|pem| STANDARD.encode(pem));
    let user = |more: &str| {
        format!("{{client-certificate-data: {chain}, client-key-data: {key}, {more}}}")
    };
    let kubeconfig = format!(
        "users: [{{name: reviews.hooks.svc, user: {}}}, {{name: '127.0.0.1:{}', user: {}}}]",
        user("token: of-the-service"),
        server.port,
        user("username: 'n', password: p"),
    );
    let config = admission_config(directory.path(), &kubeconfig);
    let cluster = Launch::new(FERROKUBE)
        .flag(format!("--admission-control-config-file={}", config.display()))
        .flag(format!("--service-address=reviews.hooks:443=127.0.0.1:{}", server.port))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let mut by_service = hook(&server, "label", "a");
    by_service["clientConfig"] = server.service_config("/label");
    register(&admin, true, "m", vec![by_service]).await;
    let mut by_url = hook(&server, "allow", "a");
    by_url["objectSelector"] = json!({"matchLabels": {"reviewed": "yes"}});
    register(&admin, false, "v", vec![by_url]).await;
    let written = admin.post(CONFIG_MAPS, &labelled("a", "a")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    for (path, want) in [("label", "Bearer of-the-service"), ("allow", "Basic bjpw")] {
        let reviews = server.reviews(path);
        let [review] = reviews.as_slice() else { panic!("{reviews:?}") };
        let want = format!("authorization: {want}");
        assert!(review.head.contains(&want), "{}", review.head);
    }
    // A port that the operator has not listed.
    let mut unlisted = hook(&server, "allow", "b");
    unlisted["clientConfig"] = server.service_config("/allow");
    unlisted["clientConfig"]["service"]["port"] = json!(444);
    register(&admin, false, "w", vec![unlisted]).await;
    let refused = admin.post(CONFIG_MAPS, &labelled("b", "b")).await.unwrap();
    assert_eq!(refused.status, 500, "{}", refused.text);
    let want = "no service port 444 found for service \\\"reviews\\\"";
    assert!(refused.text.contains(want), "{}", refused.text);
    assert!(!cluster.log().contains("of-the-service"), "credentials in the log");
}

#[tokio::test]
async fn a_webhook_made_with_kube_rs_mutates_and_denies() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    register(&admin, true, "m", vec![hook(&server, "kube-rs", "a")]).await;
    let written = admin.post(CONFIG_MAPS, &labelled("a", "a")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    let labels = &written.body["metadata"]["labels"];
    assert_eq!(labels["operation"], "CREATE", "{labels}");
    assert!(labels["writer"].as_str().is_some_and(|writer| !writer.is_empty()), "{labels}");
    let mut refused = labelled("b", "a");
    refused["data"] = json!({"refused": "1"});
    let refused = admin.post(CONFIG_MAPS, &refused).await.unwrap();
    let want = "admission webhook \"kube-rs.example.com\" denied the request: no such key";
    assert_eq!(refused.body["message"], want);
    assert_eq!(server.accepted.load(Ordering::Relaxed), 1, "its connection is used again");
    let reviewed = annotation(&cluster, "mutation.webhook.admission.k8s.io/round_0_index_0");
    let reviewed: Value = serde_json::from_str(&reviewed).unwrap();
    let expected = json!({"configuration": "m", "webhook": "kube-rs.example.com", "mutated": true});
    assert_eq!(reviewed, expected);
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
    let faults = ["hang", "redirect", "html", "broken", "huge", "lie", "long-head", "many-fields"];
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
    let hooks = ["managers", "identity", "grow"].map(|path| hook(&server, path, path));
    register(&admin, true, "m", hooks.into()).await;
    let managers = admin.post(CONFIG_MAPS, &labelled("a", "managers")).await.unwrap();
    assert_eq!(managers.status, 201, "{}", managers.text);
    assert!(!managers.text.contains("evil"), "{}", managers.text);
    assert_eq!(server.reviews("managers").len(), 1);
    let identity = admin.post(CONFIG_MAPS, &labelled("b", "identity")).await.unwrap();
    assert_eq!(identity.status, 201, "{}", identity.text);
    assert!(!identity.text.contains("\"mine\""), "{}", identity.text);
    assert_eq!(server.reviews("identity").len(), 1);
    let grown = admin.post(CONFIG_MAPS, &labelled("c", "grow")).await.unwrap();
    assert_eq!(grown.status, 422, "{}", grown.text);
    assert_eq!(server.reviews("grow").len(), 1);
}

#[tokio::test]
async fn a_patch_that_makes_another_kind_fails_the_write() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    register(&admin, true, "m", vec![hook(&server, "retype", "a")]).await;
    let refused = admin.post(CONFIG_MAPS, &labelled("a", "a")).await.unwrap();
    let want = "Internal error occurred: no kind \"Other\" is registered for version \"v1\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"";
    assert_eq!((refused.status, &refused.body["message"]), (500, &json!(want)));
}

/// The DELETED event of an object that leaves a selection has its state before the change, at the
/// revision of the change. A patch in the watch's version builds on the change all the same.
#[tokio::test]
async fn fault_22_an_exit_from_a_selection_reverts_no_write_of_another_version() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let version = |name: &str, field: &str| {
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema":
            {"type": "object", "properties": {"spec": {"type": "object",
                "properties": {field: {"type": "integer"}}}}}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": "things.ex.com"},
        "spec": {"group": "ex.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version("v1", "size"), version("v2", "amount")],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": server.config("convert")}}}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = admin.post(definitions, &definition).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    let path = |version: &str| format!("/apis/ex.com/{version}/namespaces/default/things");
    let thing = json!({"apiVersion": "ex.com/v1", "kind": "Thing",
        "metadata": {"name": "a", "labels": {"in": "yes"}}, "spec": {"size": 1}});
    wait_until("things are served", BOUND, || async {
        let made = admin.post(&path("v1"), &thing).await.unwrap();
        if made.status == 201 { Ok(()) } else { Err(made.text) }
    })
    .await;
    let selected = format!("{}?watch=true&labelSelector=in%3Dyes", path("v2"));
    let mut watch = admin.watch(&selected).await.unwrap();
    let added = watch.next().await.unwrap().unwrap();
    assert_eq!((&added["type"], &added["object"]["spec"]["amount"]), (&json!("ADDED"), &json!(1)));
    let change = json!({"metadata": {"labels": {"in": "no"}}, "spec": {"size": 2}});
    let left = admin.merge(&format!("{}/a", path("v1")), &change).await.unwrap();
    assert_eq!(left.status, 200, "{}", left.text);
    let gone = watch.next().await.unwrap().unwrap();
    assert_eq!((&gone["type"], &gone["object"]["spec"]["amount"]), (&json!("DELETED"), &json!(1)));
    let note = json!({"metadata": {"annotations": {"note": "x"}}});
    let noted = admin.merge(&format!("{}/a", path("v2")), &note).await.unwrap();
    assert_eq!((noted.status, &noted.body["spec"]["amount"]), (200, &json!(2)), "{}", noted.text);
    let stored = admin.get(&format!("{}/a", path("v1"))).await.unwrap().body;
    assert_eq!(
        (&stored["spec"]["size"], &stored["metadata"]["labels"]["in"]),
        (&json!(2), &json!("no"))
    );
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
    let count = |path: &str, name: &str| {
        // Controllers write config maps, too.
        let of_name = |one: &server::ReceivedReview| one.review["request"]["name"] == name;
        server.reviews(path).into_iter().filter(of_name).count()
    };
    let counts = (count("mark", "a"), count("label", "a"));
    assert_eq!(counts, (2, 1), "again after the change of the other");

    // A null for what is not there is no change.
    let deleted = admin.delete(&format!("{GROUP}/mutatingwebhookconfigurations/m")).await.unwrap();
    assert_eq!(deleted.status, 200, "{}", deleted.text);
    let hooks = ["label-once", "nothing"].map(|path| {
        let mut hook = hook(&server, path, "once");
        hook["reinvocationPolicy"] = json!("IfNeeded");
        hook
    });
    register(&admin, true, "n", hooks.into()).await;
    let written = admin.post(CONFIG_MAPS, &labelled("b", "once")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    assert_eq!((count("label-once", "b"), count("nothing", "b")), (1, 1));
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
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let lease = json!({"metadata": {"name": "own"}});
    let by_component = admin
        .request(reqwest::Method::POST, leases)
        .header("content-type", "application/json")
        .header("impersonate-user", "system:kube-controller-manager")
        .body(lease.to_string());
    let elected = admin.send(by_component).await.unwrap();
    assert_eq!(elected.status, 201, "{}", elected.text);
    let refused = admin.post(leases, &json!({"metadata": {"name": "another"}})).await.unwrap();
    assert_eq!(refused.status, 500, "{}", refused.text);
    let constraints = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE"], "resources": ["secrets"]}]});
    let policy = json!({"metadata": {"name": "p"},
        "spec": {"matchConstraints": constraints, "validations": [{"expression": "true"}]}});
    let made = admin.post(&format!("{GROUP}/validatingadmissionpolicies"), &policy).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
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

#[tokio::test]
async fn thirty_webhooks_review_one_write() {
    const MANY: usize = 30;
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let hooks = |path: &dyn Fn(usize) -> String| -> Vec<Value> {
        let hook = |number| {
            let mut hook = hook(&server, &path(number), "a");
            hook["name"] = json!(format!("n{number:02}.example.com"));
            hook
        };
        (0..MANY).map(hook).collect()
    };
    register(&admin, true, "m", hooks(&|number| format!("label-{number:02}"))).await;
    register(&admin, false, "v", hooks(&|_| "allow".to_owned())).await;
    let written = admin.post(CONFIG_MAPS, &labelled("a", "a")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    let labels = written.body["metadata"]["labels"].as_object().unwrap();
    assert_eq!(labels.len(), 1 + MANY, "{labels:?}");
    // Each mutating one sees what those before it have done; the others see all of it, once.
    for number in 0..MANY {
        let reviews = server.reviews(&format!("label-{number:02}"));
        let [review] = reviews.as_slice() else { panic!("{number}: {}", reviews.len()) };
        let seen = &review.review["request"]["object"]["metadata"]["labels"];
        assert_eq!(seen.as_object().unwrap().len(), 1 + number, "{seen}");
    }
    let reviews = server.reviews("allow");
    assert_eq!(reviews.len(), MANY);
    for review in reviews {
        let seen = &review.review["request"]["object"]["metadata"]["labels"];
        assert_eq!(seen, &written.body["metadata"]["labels"]);
    }
}

#[tokio::test]
async fn a_webhook_writes_through_the_api_while_it_reviews() {
    let server = ReviewServer::start().await;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    server.admin.set(admin.clone()).unwrap();
    let mut creates = hook(&server, "creates", "a");
    creates["sideEffects"] = json!("NoneOnDryRun");
    register(&admin, true, "m", vec![creates]).await;
    let tried = admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &labelled("dry", "a")).await;
    assert_eq!(tried.unwrap().body["data"]["seen"], "1");
    let written = admin.post(CONFIG_MAPS, &labelled("a", "a")).await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text);
    // Both were reviewed, the part within the review of the whole.
    for name in ["a", "part-of-a"] {
        let stored = admin.get(&format!("{CONFIG_MAPS}/{name}")).await.unwrap();
        assert_eq!(stored.body["data"]["seen"], "1", "{}", stored.text);
    }
    for name in ["dry", "part-of-dry"] {
        assert_eq!(admin.get(&format!("{CONFIG_MAPS}/{name}")).await.unwrap().status, 404);
    }
    let of_a = |one: &server::ReceivedReview| one.review["request"]["name"] == "a";
    assert_eq!(server.reviews("creates").into_iter().filter(of_a).count(), 1);
}
