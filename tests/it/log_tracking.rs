//! Rules that keep log tracking harmless (decisions D1 to D5), and turning its gate on, off and on
//! again, with the real process.

use crate::FERROKUBE;
use ferrokube_testkit::{
    ApiResponse, BOUND, Client, Cluster, Launch, json_lines, newest_kubectl, wait_until,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs;

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const INITIAL: &str = "0af7651916cd43dd8448eb211c80319c";
const OFF: &str = "--feature-gates=LogTracking=false";

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}

fn ids(object: &Value) -> [Option<&str>; 3] {
    ["trace-id", "span-id", "initial-trace-id"]
        .map(|id| object["metadata"]["annotations"][format!("trace.kubernetes.io/{id}")].as_str())
}

fn metric(metrics: &str, name: &str) -> u64 {
    let line = metrics
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

async fn apply(client: &Client, object: &Value, query: &str) -> ApiResponse {
    let path = format!("{CONFIGMAPS}/{}?{query}", object["metadata"]["name"].as_str().unwrap());
    let request = client
        .request(Method::PATCH, &path)
        .header("content-type", "application/apply-patch+yaml")
        .body(object.to_string());
    client.send(request).await.unwrap()
}

#[tokio::test]
async fn d5_a_thousand_reapplies_write_nothing() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let object = config_map("a", "1");
    let first = apply(&admin, &object, "fieldManager=m").await;
    assert_eq!(first.status, 201, "{}", first.text);
    let metrics = async || admin.get("/metrics").await.unwrap().text;
    let mut unmoved = 0;
    for _ in 0..20 {
        let before = metric(&metrics().await, "ferrokube_store_revision ");
        for _ in 0..50 {
            let again = apply(&admin, &object, "fieldManager=m").await;
            assert_eq!((again.status, &again.body), (200, &first.body));
        }
        unmoved += u32::from(metric(&metrics().await, "ferrokube_store_revision ") == before);
    }
    // What the server writes on its own moves it now and then, a reapply would each time.
    assert!(unmoved > 0);
    let metrics = metrics().await;
    assert!(metric(&metrics, "ferrokube_trace_stamps_total{outcome=\"skipped\"}") >= 1000);
    // Also by a controller that writes back what it read before the ids changed.
    let mut stale = first.body.clone();
    stale["metadata"]["annotations"] = json!({"trace.kubernetes.io/trace-id": "stale"});
    stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let put = admin.put(&format!("{CONFIGMAPS}/a"), &stale).await.unwrap();
    assert_eq!((put.status, ids(&put.body)), (200, ids(&first.body)));
}

#[tokio::test]
async fn applies_with_stale_ids_do_not_conflict_and_ids_have_no_owner() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let first = apply(&admin, &config_map("a", "1"), "fieldManager=one").await;
    // As from an older `kubectl get -o yaml`: ids other than the stored ones.
    let mut stale = config_map("a", "1");
    stale["metadata"]["annotations"] = first.body["metadata"]["annotations"].clone();
    admin
        .merge(&format!("{CONFIGMAPS}/a"), &json!({"metadata": {"labels": {"l": "1"}}}))
        .await
        .unwrap();
    for (manager, force) in [("one", ""), ("two", ""), ("two", "&force=true")] {
        let applied = apply(&admin, &stale, &format!("fieldManager={manager}{force}")).await;
        assert_eq!(applied.status, 200, "{manager}: {}", applied.text);
        assert_eq!(ids(&applied.body)[2], ids(&first.body)[2]);
        assert_ne!(
            ids(&applied.body)[0],
            ids(&first.body)[0],
            "the label's write is the last change"
        );
        assert!(
            !applied.body["metadata"]["managedFields"].to_string().contains("trace.kubernetes.io"),
            "{}",
            applied.text
        );
    }
}

#[tokio::test]
async fn d4_status_leases_and_events_are_never_stamped() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "namespace": "default"}});
    for (path, object) in [(LEASES, lease), (EVENTS, event)] {
        let made = admin.post(path, &object).await.unwrap();
        assert_eq!((made.status, ids(&made.body)), (201, [None; 3]), "{}", made.text);
    }
    let namespace = admin
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
        )
        .await
        .unwrap()
        .body;
    let condition = json!({"status": {"conditions": [{"type": "T", "status": "True"}]}});
    let updated = admin.merge("/api/v1/namespaces/n/status", &condition).await.unwrap();
    assert_eq!(updated.status, 200, "{}", updated.text);
    assert_ne!(
        updated.body["metadata"]["resourceVersion"], namespace["metadata"]["resourceVersion"],
        "it was written"
    );
    assert_eq!(
        ids(&updated.body),
        ids(&namespace),
        "the scale's ids are not lost to the status write that follows"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_the_write_and_a_diff_without_changes_is_empty() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").start().unwrap();
    let admin = cluster.admin().unwrap();
    let file = cluster.data_dir().join("a.yaml");
    fs::write(&file, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: default\ndata:\n  k: v\n").unwrap();
    let file = file.to_str().unwrap().to_owned();
    let kubectl = newest_kubectl();
    // Created without apply, so that the first server-side apply only changes ownership.
    for make in [&["create", "-f"][..], &["apply", "-f"], &["apply", "--server-side", "-f"]] {
        let run = |words: &[&str]| {
            kubectl.run(&cluster.kubeconfig(), &[words, &[file.as_str()]].concat())
        };
        let made = run(make);
        assert!(made.ok, "{}", made.stderr);
        // A server-side apply after a client-side one rewrites kubectl's own annotation, which is a
        // change.
        let is_client_side = make.len() == 2 && make[0] == "apply";
        for diff in [&["diff", "--server-side", "-f"][..], &["diff", "-f"]]
            .into_iter()
            .skip(usize::from(is_client_side))
        {
            let shown = run(diff);
            assert!(
                shown.ok && !shown.stdout.contains("trace.kubernetes.io"),
                "{make:?} {diff:?}: {}{}",
                shown.stdout,
                shown.stderr
            );
        }
        assert!(kubectl.run(&cluster.kubeconfig(), &["delete", "configmap", "a"]).ok);
    }
    let stored = admin.post(CONFIGMAPS, &config_map("b", "1")).await.unwrap().body;
    let shown = admin
        .merge(&format!("{CONFIGMAPS}/b?dryRun=All"), &json!({"data": {"k": "2"}}))
        .await
        .unwrap()
        .body;
    let [trace, span, initial] = ids(&shown);
    assert!(
        trace.is_some()
            && trace != ids(&stored)[0]
            && span != ids(&stored)[1]
            && initial == ids(&stored)[2],
        "{shown}"
    );
    assert_eq!(admin.get(&format!("{CONFIGMAPS}/b")).await.unwrap().body, stored);
    let created =
        admin.post(&format!("{CONFIGMAPS}?dryRun=All"), &config_map("c", "1")).await.unwrap().body;
    assert!(ids(&created).iter().all(Option::is_some), "{created}");
}

#[tokio::test]
async fn l22_bad_headers_never_fail_a_request_and_a_foreign_initial_id_is_seen_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    ferrokube_testkit::write_secret(&tokens, "root,root,u1,system:masters\njane,jane,u2\n");
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--token-auth-file={}", tokens.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let edit = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    let bound = admin
        .post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &edit)
        .await
        .unwrap();
    assert_eq!(bound.status, 201, "{}", bound.text);
    let zero = "00-00000000000000000000000000000000-0000000000000000-00";
    let oversized = format!("{PARENT}-{}", "x".repeat(20_000));
    let cases: [&[(&str, &str)]; 7] = [
        &[("traceparent", "junk"), ("initial-trace-id", "junk")],
        &[("traceparent", zero), ("initial-trace-id", "00000000000000000000000000000000")],
        &[("traceparent", &oversized), ("initial-trace-id", &oversized)],
        &[
            ("traceparent", PARENT),
            ("traceparent", PARENT),
            ("initial-trace-id", INITIAL),
            ("initial-trace-id", INITIAL),
        ],
        &[("traceparent", ""), ("initial-trace-id", "")],
        &[("traceparent", &PARENT[..54])],
        &[("initial-trace-id", "0AF7651916CD43DD8448EB211C80319C")],
    ];
    let root = cluster.with_token("root").unwrap();
    for (number, headers) in cases.iter().enumerate() {
        let made = post_with(&root, &format!("bad-{number}"), headers).await;
        let [trace, span, initial] = ids(&made);
        assert!(
            trace.is_some_and(|id| id.len() == 32) && span.is_some_and(|id| id.len() == 16),
            "{headers:?}: {made}"
        );
        assert_eq!(initial, trace, "its own trace begins its family");
        assert!(!["4bf92f3577b34da6a3ce929d0e0e4736", INITIAL].contains(&trace.unwrap()));
    }
    let both = [("traceparent", PARENT), ("initial-trace-id", INITIAL)];
    let trusted = post_with(&root, "trusted", &both).await;
    assert_eq!(
        (ids(&trusted)[0], ids(&trusted)[2]),
        (Some("4bf92f3577b34da6a3ce929d0e0e4736"), Some(INITIAL))
    );
    assert_ne!(ids(&trusted)[1], Some("00f067aa0ba902b7"), "L20: a span of its own");
    let foreign = post_with(&cluster.with_token("jane").unwrap(), "foreign", &both).await;
    assert_eq!(ids(&foreign)[0], ids(&foreign)[2]);
    assert_ne!(ids(&foreign)[2], Some(INITIAL));
    let event = json_lines(&cluster.data_dir().join("audit.log"))
        .into_iter()
        .find(|event| event["objectRef"]["name"] == "foreign")
        .unwrap();
    assert_eq!(
        event["annotations"]["trace.kubernetes.io/refused-initial-trace-id"], INITIAL,
        "{event}"
    );
    assert_eq!(event["annotations"]["trace.kubernetes.io/link"], &PARENT[3..52], "{event}");
    let metrics = admin.get("/metrics").await.unwrap().text;
    for (origin, least) in [("adopted", 1), ("linked", 1), ("started", 8)] {
        assert!(
            metric(&metrics, &format!("ferrokube_trace_contexts_total{{origin=\"{origin}\"}}"))
                >= least,
            "{origin}: {metrics}"
        );
    }
}

async fn post_with(client: &Client, name: &str, headers: &[(&str, &str)]) -> Value {
    let mut request = client
        .request(Method::POST, CONFIGMAPS)
        .header("content-type", "application/json")
        .body(config_map(name, "1").to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.status, 201, "{headers:.100?}: {}", answer.text);
    answer.body
}

/// Fields that differ between runs.
const OWN: [&str; 6] =
    ["uid", "creationTimestamp", "time", "auditID", "resourceVersion", "selfLink"];

/// The text without the values of those fields.
fn without_own(text: &str) -> String {
    let mut text = text.to_owned();
    for field in OWN {
        let key = format!("\"{field}\":\"");
        let parts: Vec<&str> = text.split(&key).collect();
        let rest =
            parts[1..].iter().map(|part| part.split_once('"').map_or(*part, |(_, rest)| rest));
        text = std::iter::once(parts[0]).chain(rest).collect::<Vec<_>>().join(&key);
    }
    text
}

/// The text without the id annotations, if an object has no others.
fn without_ids(text: &str) -> String {
    let begin = "\"annotations\":{\"trace.kubernetes.io/";
    let mut parts = text.split(begin);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |whole, part| whole + part.split_once("},").map_or("", |(_, rest)| rest))
}

/// Requests with all verbs, with and without id headers; returns the responses.
async fn conversation(client: &Client) -> Vec<String> {
    let mut answers = Vec::new();
    let mut requests = Vec::new();
    for name in ["a", "b"] {
        let body = config_map(name, "1").to_string();
        requests.push(
            client
                .request(Method::POST, CONFIGMAPS)
                .header("content-type", "application/json")
                .body(body),
        );
        let one = format!("{CONFIGMAPS}/{name}");
        let merge = json!({"data": {"k": "2"}}).to_string();
        requests.push(
            client
                .request(Method::PATCH, &one)
                .header("content-type", "application/merge-patch+json")
                .body(merge),
        );
        let apply = format!("{one}?fieldManager=m&force=true");
        requests.push(
            client
                .request(Method::PATCH, &apply)
                .header("content-type", "application/apply-patch+yaml")
                .body(config_map(name, "3").to_string()),
        );
        requests.push(
            client
                .request(Method::PUT, &one)
                .header("content-type", "application/json")
                .body(config_map(name, "4").to_string()),
        );
        requests.push(client.request(Method::GET, &one));
        requests.push(client.request(Method::GET, CONFIGMAPS));
        requests.push(client.request(Method::DELETE, &one));
        requests.push(client.request(Method::GET, &one));
    }
    for (number, request) in requests.into_iter().enumerate() {
        let request = if number % 2 == 0 {
            request.header("traceparent", PARENT).header("initial-trace-id", INITIAL)
        } else {
            request
        };
        let answer = client.send(request).await.unwrap();
        answers.push(format!("{} {}", answer.status, without_own(&answer.text)));
    }
    answers
}

/// The conversation's log lines, without fields that differ between runs.
fn lines(cluster: &Cluster) -> Vec<String> {
    let own = ["took_us=", "audit_id="];
    let about_it = |line: &&str| {
        line.contains("path=/api/v1/namespaces/default/configmaps")
            || line.contains("path=\"/api/v1/namespaces/default/configmaps")
    };
    let log = cluster.log();
    let line = |line: &str| {
        line.split(' ')
            .skip(1)
            .filter(|word| !own.iter().any(|own| word.starts_with(own)))
            .collect::<Vec<_>>()
            .join(" ")
    };
    log.lines().filter(about_it).map(line).collect()
}

/// Polls, because the log has its own thread.
async fn lines_of(cluster: &Cluster) -> Vec<String> {
    let all = || async {
        Some(lines(cluster)).filter(|lines| lines.len() == 16).ok_or_else(|| cluster.log())
    };
    wait_until("the requests are in the log", BOUND, all).await
}

#[tokio::test]
async fn p02_l07_off_is_byte_equal() {
    let launch = || {
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").flag("--log-level=debug")
    };
    let (on, off) = (launch().start().unwrap(), launch().flag(OFF).start().unwrap());
    let with = conversation(&on.admin().unwrap()).await;
    let without = conversation(&off.admin().unwrap()).await;
    assert!(with.iter().any(|answer| answer.contains("trace.kubernetes.io/")));
    assert!(!without.iter().any(|answer| answer.contains("trace.kubernetes.io/")));
    assert_eq!(with.iter().map(|answer| without_ids(answer)).collect::<Vec<_>>(), without);
    let (with, without) = (lines_of(&on).await, lines_of(&off).await);
    for (with, without) in with.iter().zip(&without) {
        let bare: Vec<&str> = with
            .split(' ')
            .filter(|word| {
                !["trace_id=", "span_id=", "initial_trace_id="]
                    .iter()
                    .any(|id| word.starts_with(id))
            })
            .collect();
        assert!(with.contains(" trace_id=") && !without.contains("trace_id="), "{with}\n{without}");
        assert_eq!(bare.join(" "), *without);
    }
}

/// Exercises annotations with a prefix; returns the responses, with the prefix replaced by that of
/// the ids.
async fn annotating(client: &Client, prefix: &str) -> Vec<String> {
    let key = |name: &str| format!("{prefix}{name}");
    let with = |value: &str, ids: Value| {
        let mut object = config_map("a", value);
        object["metadata"]["annotations"] = ids;
        object.to_string()
    };
    let one = format!("{CONFIGMAPS}/a");
    let (apply, merge, strategic) = (
        "application/apply-patch+yaml",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    );
    let pointer = format!("/metadata/annotations/{}", key("span-id").replace('/', "~1"));
    let requests = [
        (
            Method::POST,
            CONFIGMAPS.to_owned(),
            "application/json",
            with("1", json!({key("trace-id"): "mine", key("initial-trace-id"): INITIAL})),
        ),
        (
            Method::PATCH,
            one.clone(),
            merge,
            json!({"metadata": {"annotations": {key("trace-id"): "changed", key("span-id"): "1"}}})
                .to_string(),
        ),
        (
            Method::PATCH,
            one.clone(),
            merge,
            json!({"metadata": {"annotations": {key("trace-id"): "changed"}}}).to_string(),
        ),
        (
            Method::PATCH,
            one.clone(),
            strategic,
            json!({"metadata": {"annotations": {key("initial-trace-id"): null, "other": "1"}}})
                .to_string(),
        ),
        (
            Method::PATCH,
            one.clone(),
            "application/json-patch+json",
            json!([{"op": "replace", "path": pointer, "value": "2"}]).to_string(),
        ),
        (
            Method::PATCH,
            format!("{one}?fieldManager=m"),
            apply,
            with("1", json!({key("trace-id"): "applied"})),
        ),
        (
            Method::PATCH,
            format!("{one}?fieldManager=m&force=true"),
            apply,
            with("1", json!({key("trace-id"): "applied"})),
        ),
        (
            Method::PATCH,
            format!("{one}?fieldManager=n"),
            apply,
            with("1", json!({key("trace-id"): "other"})),
        ),
        (Method::PATCH, format!("{one}?fieldManager=m"), apply, with("1", json!({}))),
        (
            Method::PUT,
            one.clone(),
            "application/json",
            with("1", json!({key("trace-id"): "put", key("invented"): ""})),
        ),
        (Method::PUT, one.clone(), "application/json", config_map("a", "1").to_string()),
        (Method::DELETE, one.clone(), "application/json", String::new()),
    ];
    let mut answers = Vec::new();
    for (method, path, media_type, body) in requests {
        let request = client
            .request(method, &path)
            .header("content-type", media_type)
            .header("traceparent", PARENT)
            .header("initial-trace-id", INITIAL);
        let answer = client.send(request.body(body)).await.unwrap();
        let stored = client.get(&one).await.unwrap();
        answers.push(
            format!(
                "{} {} {}",
                answer.status,
                without_own(&answer.text),
                without_own(&stored.text)
            )
            .replace(prefix, "trace.kubernetes.io/"),
        );
    }
    answers
}

#[tokio::test]
async fn p02_off_the_three_keys_are_annotations_like_any_other() {
    let launch = || {
        Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory").flag(OFF).start().unwrap()
    };
    let (one, other) = (launch(), launch());
    let ids = annotating(&one.admin().unwrap(), "trace.kubernetes.io/").await;
    // A meaningless prefix of the same length that sorts in the same place.
    let plain = annotating(&other.admin().unwrap(), "trade.kubernetes.io/").await;
    assert_eq!(ids, plain);
    let codes: Vec<&str> = ids.iter().map(|answer| &answer[..3]).collect();
    assert_eq!(
        codes,
        ["201", "200", "200", "200", "200", "409", "200", "409", "200", "200", "200", "200"],
        "{ids:#?}"
    );
    assert!(ids[6].contains("f:trace.kubernetes.io/trace-id"), "{}", ids[6]);
}

#[tokio::test]
async fn p04_p05_on_off_on() {
    let mut cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let used = admin.post(CONFIGMAPS, &config_map("used", "1")).await.unwrap().body;
    assert!(ids(&used).iter().all(Option::is_some));

    cluster.restart_with(&[OFF]).unwrap();
    let admin = cluster.admin().unwrap();
    let kept = admin
        .merge(&format!("{CONFIGMAPS}/used"), &json!({"data": {"k": "2"}}))
        .await
        .unwrap()
        .body;
    assert_eq!(ids(&kept), ids(&used), "stored ids stay as they are");
    // With the gate off they are plain annotations: patches see and may remove them.
    let operations = json!([{"op": "remove", "path": "/metadata/annotations/trace.kubernetes.io~1span-id"}, {"op": "add", "path": "/metadata/annotations/k", "value": "v"}]);
    let patch = admin
        .request(Method::PATCH, &format!("{CONFIGMAPS}/used"))
        .header("content-type", "application/json-patch+json");
    let edited = admin.send(patch.body(operations.to_string())).await.unwrap();
    assert_eq!(
        (edited.status, ids(&edited.body)),
        (200, [ids(&used)[0], None, ids(&used)[2]]),
        "{}",
        edited.text
    );
    let bare = admin.post(CONFIGMAPS, &config_map("bare", "1")).await.unwrap().body;
    assert_eq!((ids(&bare), &bare["metadata"]["annotations"]), ([None; 3], &Value::Null));
    assert_eq!(admin.delete(&format!("{CONFIGMAPS}/bare")).await.unwrap().status, 200);
    let bare = admin.post(CONFIGMAPS, &config_map("bare", "1")).await.unwrap().body;
    // With the gate off anybody may edit them: invalid ids are ignored later.
    let edited = admin.post(CONFIGMAPS, &config_map("edited", "1")).await.unwrap().body;
    assert_eq!(ids(&edited), [None; 3]);
    let garbage = json!({"metadata": {"annotations": {"trace.kubernetes.io/trace-id": "\u{1b}[31m", "trace.kubernetes.io/initial-trace-id": "garbage"}}});
    assert_eq!(
        ids(&admin.merge(&format!("{CONFIGMAPS}/edited"), &garbage).await.unwrap().body)[2],
        Some("garbage")
    );

    cluster.restart_with(&[]).unwrap();
    let admin = cluster.admin().unwrap();
    let again = admin
        .merge(&format!("{CONFIGMAPS}/used"), &json!({"data": {"k": "3"}}))
        .await
        .unwrap()
        .body;
    assert_eq!(ids(&again)[2], ids(&used)[2], "L03: the family is for life");
    assert_ne!(ids(&again)[0], ids(&used)[0]);
    let healed = admin
        .merge(&format!("{CONFIGMAPS}/edited"), &json!({"data": {"k": "2"}}))
        .await
        .unwrap()
        .body;
    assert_eq!(
        (ids(&healed)[0].map(str::len), ids(&healed)[1].map(str::len), ids(&healed)[2]),
        (Some(32), Some(16), None),
        "{healed}"
    );
    assert!(healed["metadata"]["managedFields"].to_string().contains("f:data"), "{healed}");
    assert_eq!(
        admin.get(&format!("{CONFIGMAPS}/bare")).await.unwrap().body,
        bare,
        "nothing is written by switching"
    );
    let late = admin
        .merge(&format!("{CONFIGMAPS}/bare"), &json!({"data": {"k": "2"}}))
        .await
        .unwrap()
        .body;
    assert!(
        ids(&late)[0].is_some() && ids(&late)[2].is_none(),
        "L36: no family is invented later: {late}"
    );
}

/// Live store bytes per object of a kind, with the gate on and off.
async fn bytes_per_object(cluster: &Cluster, prefix: &str, annotations: &Value) -> u64 {
    let admin = cluster.admin().unwrap();
    let bytes = || async {
        metric(&admin.get("/metrics").await.unwrap().text, "ferrokube_store_live_bytes ")
    };
    let before = bytes().await;
    for number in 0..10 {
        let mut object = config_map(&format!("{prefix}{number}"), "1");
        object["metadata"]["annotations"] = annotations.clone();
        assert_eq!(admin.post(CONFIGMAPS, &object).await.unwrap().status, 201);
    }
    bytes().await.saturating_sub(before) / 10
}

#[tokio::test]
async fn p19_ids_take_189_bytes_of_an_object() {
    let launch = || Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory");
    let (on, off) = (launch().start().unwrap(), launch().flag(OFF).start().unwrap());
    // An object without annotations also gains the map: `"annotations":{},`.
    for (prefix, annotations, bytes) in
        [("with", json!({"a": "b"}), 189), ("without", Value::Null, 189 + 16)]
    {
        let attempt = std::cell::Cell::new(0);
        // Again if the server has written something of its own meanwhile.
        wait_until("ids take as much", BOUND, async || {
            attempt.set(attempt.get() + 1);
            let prefix = format!("{prefix}-{:03}-", attempt.get());
            let with = bytes_per_object(&on, &prefix, &annotations).await;
            let added = with.checked_sub(bytes_per_object(&off, &prefix, &annotations).await);
            if added == Some(bytes) { Ok(()) } else { Err(format!("{prefix}: {added:?}")) }
        })
        .await;
    }
}
