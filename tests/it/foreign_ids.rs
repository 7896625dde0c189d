//! Ids sent, copied or edited by clients, with real processes: which are trusted, which replaced,
//! and what controllers and `ferrokube trace` do with the rest.

use crate::FERROKUBE;
use crate::objects::{config_map, made};
use crate::trails::{Process, audited, id};
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, Launch, json_lines, wait_until};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const INITIAL: &str = "0af7651916cd43dd8448eb211c80319c";
const IDS: [&str; 3] = ["trace-id", "span-id", "initial-trace-id"];

async fn send(
    client: &Client,
    (method, path): (Method, &str),
    headers: &[(&str, &str)],
    body: &Value,
) -> ApiResponse {
    let request = client.request(method, path).header("content-type", "application/json");
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    client.send(request.body(body.to_string())).await.unwrap()
}

async fn created(client: &Client, name: &str, headers: &[(&str, &str)]) -> Value {
    let answer = send(client, (Method::POST, CONFIGMAPS), headers, &config_map(name, None)).await;
    assert_eq!(answer.status, 201, "{headers:.100?}: {}", answer.text);
    answer.body
}

/// An API server with static tokens (name, user, groups).
fn with_users(launch: Launch, users: &[(&str, &str, &str)]) -> (Cluster, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    let lines: String = users
        .iter()
        .map(|(token, user, groups)| format!("{token},{user},uid-{token},\"{groups}\"\n"))
        .collect();
    ferrokube_testkit::write_secret(&tokens, &lines);
    (
        launch
            .role("apiserver")
            .flag(format!("--token-auth-file={}", tokens.display()))
            .start()
            .unwrap(),
        directory,
    )
}

async fn contexts(admin: &Client, origin: &str) -> u64 {
    let metrics = admin.get("/metrics").await.unwrap().text;
    let name = format!("ferrokube_trace_contexts_total{{origin=\"{origin}\"}} ");
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(&name))
        .unwrap_or_else(|| panic!("no {name} in {metrics}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn d1_only_the_default_identities_are_trusted() {
    let accounts = "system:serviceaccounts,system:serviceaccounts";
    let users = [
        ("master", "alice", "system:masters".to_owned(), "adopted"),
        ("node", "system:node:n1", "system:nodes".to_owned(), "adopted"),
        ("manager", "system:kube-controller-manager", String::new(), "adopted"),
        (
            "controller",
            "system:serviceaccount:kube-system:namespace-controller",
            format!("{accounts}:kube-system"),
            "adopted",
        ),
        ("robot", "system:serviceaccount:default:robot", format!("{accounts}:default"), "linked"),
        ("scheduler", "system:kube-scheduler", String::new(), "linked"),
        ("monitor", "mona", "system:monitoring".to_owned(), "linked"),
        ("jane", "jane", String::new(), "linked"),
    ];
    let table: Vec<(&str, &str, &str)> =
        users.iter().map(|(token, user, groups, _)| (*token, *user, groups.as_str())).collect();
    let (cluster, _tokens) = with_users(Launch::new(FERROKUBE).flag("--storage=memory"), &table);
    let admin = cluster.admin().unwrap();
    for (token, user, _, want) in &users {
        for origin in ["adopted", "linked"] {
            let before = contexts(&admin, origin).await;
            let answer = send(
                &cluster.with_token(token).unwrap(),
                (Method::GET, "/version"),
                &[("traceparent", PARENT)],
                &Value::Null,
            )
            .await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(
                contexts(&admin, origin).await - before,
                u64::from(origin == *want),
                "{user} is {want}"
            );
        }
    }
    let before = contexts(&admin, "linked").await;
    let anonymous = cluster.anonymous().unwrap();
    assert_eq!(
        send(&anonymous, (Method::GET, "/version"), &[("traceparent", PARENT)], &Value::Null)
            .await
            .status,
        200
    );
    assert_eq!(contexts(&admin, "linked").await, before + 1, "nobody is believed least of all");
}

#[tokio::test]
async fn l37_the_event_that_watchers_see_is_the_write_with_its_ids() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let mut watch = admin.watch(&format!("{CONFIGMAPS}?watch=true")).await.unwrap();
    let created = made(&admin, CONFIGMAPS, config_map("a", None)).await;
    let changed =
        admin.merge(&format!("{CONFIGMAPS}/a"), &json!({"data": {"k": "2"}})).await.unwrap().body;
    assert_ne!(id(&changed, "trace-id"), id(&created, "trace-id"));
    for (kind, written) in [("ADDED", created), ("MODIFIED", changed)] {
        let event = tokio::time::timeout(BOUND, watch.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(
            event,
            json!({"type": kind, "object": written}),
            "one event, and it has the ids"
        );
    }
}

#[tokio::test]
async fn p24_copied_or_edited_ids_are_replaced_without_conflict() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let parent = made(&admin, CONFIGMAPS, config_map("parent", None)).await;
    let mut child = config_map("child", Some(&parent));
    child["metadata"]["annotations"] = parent["metadata"]["annotations"].clone();
    let child = made(&admin, CONFIGMAPS, child).await;
    assert!(IDS.iter().all(|name| id(&child, name) != id(&parent, name)), "{child}");
    assert_eq!(id(&child, "initial-trace-id"), id(&child, "trace-id"));

    let edits = json!({"trace.kubernetes.io/trace-id": "\u{1b}[31m", "trace.kubernetes.io/span-id": null, "trace.kubernetes.io/initial-trace-id": "x".repeat(4096)});
    let edited = admin
        .merge(&format!("{CONFIGMAPS}/child"), &json!({"metadata": {"annotations": edits}}))
        .await
        .unwrap();
    assert_eq!((edited.status, &edited.body), (200, &child), "a change of nothing but ids is none");
    let edited = admin
        .merge(
            &format!("{CONFIGMAPS}/child"),
            &json!({"metadata": {"annotations": edits}, "data": {"k": "2"}}),
        )
        .await
        .unwrap()
        .body;
    assert_eq!(id(&edited, "initial-trace-id"), id(&child, "initial-trace-id"));
    assert_eq!(
        (id(&edited, "trace-id").len(), id(&edited, "span-id").len(), &edited["data"]["k"]),
        (32, 16, &json!("2"))
    );
    assert_ne!(id(&edited, "trace-id"), id(&child, "trace-id"));
}

#[tokio::test]
async fn l09_l22_a_tracestate_of_any_kind_changes_nothing() {
    let (cluster, _tokens) = with_users(
        Launch::new(FERROKUBE).flag("--storage=memory"),
        &[("root", "root", "system:masters")],
    );
    let root = cluster.with_token("root").unwrap();
    let (long, many) = (format!("a={}", "x".repeat(8000)), vec!["a=b"; 500].join(","));
    for (number, state) in
        ["", "vendor=1,other=2", "=,=", "a=1,a=2", "\u{e9}", &long, &many].into_iter().enumerate()
    {
        let headers = [
            ("traceparent", PARENT),
            ("tracestate", state),
            ("tracestate", "again=1"),
            ("initial-trace-id", INITIAL),
        ];
        let object = created(&root, &format!("c{number}"), &headers).await;
        assert_eq!(
            (id(&object, "trace-id"), id(&object, "initial-trace-id")),
            (TRACE, INITIAL),
            "{state:.40}"
        );
    }
    let future = created(
        &root,
        "future",
        &[(
            "traceparent",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later",
        )],
    )
    .await;
    assert_eq!(id(&future, "trace-id"), TRACE, "a later version is read as far as it is known");
    for (name, parent) in [
        ("upper", PARENT.to_uppercase()),
        ("version-ff", format!("ff{}", &PARENT[2..])),
        ("more", format!("{PARENT}-00")),
    ] {
        assert_ne!(
            id(&created(&root, name, &[("traceparent", &parent)]).await, "trace-id"),
            TRACE,
            "{parent}"
        );
    }
    // Larger than the limit for all headers: only this request is refused.
    match root
        .send(root.request(Method::GET, CONFIGMAPS).header("traceparent", "x".repeat(1 << 20)))
        .await
    {
        Ok(answer) => assert_eq!(answer.status, 431),
        Err(error) => assert!(
            cluster
                .with_token("root")
                .unwrap()
                .get("/version")
                .await
                .is_ok_and(|answer| answer.status == 200),
            "{error}"
        ),
    }
}

#[tokio::test]
async fn d2_baggage_of_those_who_may_propagate_is_a_family_and_others_is_refused() {
    let launch = Launch::new(FERROKUBE).flag("--feature-gates=LogTrackingInterop=true");
    let (cluster, _tokens) =
        with_users(launch, &[("root", "root", "system:masters"), ("jane", "jane", "")]);
    let admin = cluster.admin().unwrap();
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let subjects =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "jane"}, "roleRef": role, "subjects": subjects});
    made(&admin, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
        .await;
    let baggage = format!("user=1;p,initial-trace-id={INITIAL}");
    let headers = [("traceparent", PARENT), ("baggage", baggage.as_str())];
    let object = created(&cluster.with_token("root").unwrap(), "believed", &headers).await;
    assert_eq!((id(&object, "trace-id"), id(&object, "initial-trace-id")), (TRACE, INITIAL));
    let object = created(&cluster.with_token("jane").unwrap(), "refused", &headers).await;
    assert!(
        id(&object, "trace-id") != TRACE && id(&object, "initial-trace-id") != INITIAL,
        "{object}"
    );
    let events = json_lines(&cluster.data_dir().join("audit.log"));
    let event = events.into_iter().find(|event| event["objectRef"]["name"] == "refused").unwrap();
    assert_eq!(audited(&event, "refused-initial-trace-id"), INITIAL);
}

/// An object from a server without ids, with KEP-5915's annotation: the controller's work belongs
/// to the annotated trace.
#[tokio::test]
async fn d3_kep_5915s_annotation_is_the_cause_of_a_reconcile() {
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--feature-gates=LogTracking=false")
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("manager.log");
    let mut manager = Command::new(FERROKUBE);
    manager.arg("controller-manager").arg("--kubeconfig").arg(cluster.kubeconfig());
    manager.args([
        "--secure-port=0",
        "--log-level=debug",
        "--leader-elect=false",
        "--feature-gates=LogTrackingInterop=true",
    ]);
    let _manager = Process::start(manager, &log);
    for (name, value) in [("garbage", "edited by hand"), ("traced", PARENT)] {
        let annotations = json!({"tracing.k8s.io/traceparent": value});
        made(&admin, NAMESPACES, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": annotations}})).await;
    }
    let reconciled = |name: &'static str| {
        let log = log.clone();
        wait_until("the namespace is reconciled", BOUND, move || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let line = text
                .lines()
                .find(|line| {
                    line.contains(&format!("key={name} ")) && line.contains(": reconciled")
                })
                .map(str::to_owned);
            async move { line.ok_or(text) }
        })
    };
    assert!(!reconciled("garbage").await.contains("trace_id="));
    let line = reconciled("traced").await;
    assert!(
        line.contains(&format!("trace_id={TRACE} ")) && !line.contains("span_id=00f067aa0ba902b7"),
        "an action of its own in the named trace: {line}"
    );
}

#[tokio::test]
async fn l11_an_object_with_garbage_ids_is_reported() {
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--feature-gates=LogTracking=false")
        .start()
        .unwrap();
    let mut object = config_map("a", None);
    object["metadata"]["annotations"] = json!({"trace.kubernetes.io/trace-id": "\u{1b}[31m", "trace.kubernetes.io/initial-trace-id": "../../etc/passwd"});
    made(&cluster.admin().unwrap(), CONFIGMAPS, object).await;
    let output = Command::new(FERROKUBE)
        .args(["trace", "configmap/a", "--data-dir"])
        .arg(cluster.data_dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("has no ids") && !said.contains('\u{1b}'), "{said}");
}
