//! The Feature API with real processes: the story of a feature that stores fields, by commands.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::process::{Command, Output};

const FEATURES: &str = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const EVALUATION: &str = "--feature-evaluation-time=1s";
const OBJECTS: usize = 200;

fn feature_admin(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(FERROKUBE);
    command.arg("feature-admin").arg("--kubeconfig").arg(cluster.kubeconfig()).args(arguments);
    command.output().unwrap()
}

fn succeeds(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = feature_admin(cluster, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text} {output:?}");
    text
}

fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"strategy": "OldestEmulationVersion"},
    })
}

/// Tasks of CoordinatedLeaderElection, in order.
const TASKS: [&str; 4] = [
    "ClearField(leases.coordination.k8s.io: spec.preferredHolder)",
    "ClearField(leases.coordination.k8s.io: spec.strategy)",
    "DeleteCollection(leasecandidates.coordination.k8s.io)",
    "WaitForUses",
];

/// Tasks in each event of a watch of the feature, from a revision until it is off. The one about
/// the strategy is there while any Lease has one.
async fn tasks_seen(admin: &Client, revision: &str) -> Vec<Vec<String>> {
    let query = "watch=true&fieldSelector=metadata.name%3DCoordinatedLeaderElection";
    let path = format!("{FEATURES}?{query}&resourceVersion={revision}");
    let mut events = admin.watch(&path).await.unwrap();
    let mut seen: Vec<Vec<String>> = Vec::new();
    loop {
        let event = events.next().await.unwrap().expect("the watch goes on");
        let status = &event["object"]["status"];
        if status["state"] == "On" {
            // The server reports its use.
            continue;
        }
        let tasks = status["transitionTasks"].as_array().cloned().unwrap_or_default();
        let tasks: Vec<String> =
            tasks.iter().map(|task| task.as_str().unwrap().to_owned()).collect();
        if status["state"] == "Off" {
            assert!(tasks.is_empty(), "{event}");
            return seen;
        }
        assert_eq!(status["state"], "TurningOff", "{event}");
        let leases = admin.get(LEASES).await.unwrap().text;
        let is_used = leases.contains("\"strategy\":");
        assert!(!is_used || tasks.iter().any(|task| task == TASKS[1]), "{tasks:?}: {leases}");
        if seen.last() != Some(&tasks) {
            seen.push(tasks);
        }
    }
}

#[tokio::test]
async fn a_feature_is_on_used_off_and_gone_by_commands() {
    let mut cluster = Launch::new(FERROKUBE)
        .role("all-in-one")
        .flag(EVALUATION)
        .flag("--feature-gates=FeatureAPI=true,CoordinatedLeaderElection=true")
        .start()
        .unwrap();
    succeeds(&cluster, &["wait", "CoordinatedLeaderElection", "--for", "state=On"]);
    let admin = cluster.admin().unwrap();
    // A server acts on a state some time after clients see it.
    wait_until("Leases keep the field", BOUND, || async {
        let probe = format!("{LEASES}?dryRun=All");
        let made = admin.post(&probe, &lease("probe")).await.unwrap();
        made.body["spec"].get("strategy").map(drop).ok_or(made.text)
    })
    .await;
    for number in 0..OBJECTS {
        let made = admin.post(LEASES, &lease(&format!("l{number}"))).await.unwrap();
        assert_eq!(made.body["spec"]["strategy"], "OldestEmulationVersion", "{}", made.text);
    }
    let unsafe_now = feature_admin(&cluster, &["check-downgrade", "--to", "1.35"]);
    let text = String::from_utf8_lossy(&unsafe_now.stdout).into_owned();
    assert_eq!(unsafe_now.status.code(), Some(1), "{text}");
    assert!(text.contains("CoordinatedLeaderElection: "), "{text}");
    let feature = admin.get(&format!("{FEATURES}/CoordinatedLeaderElection")).await.unwrap();
    let revision = feature.body["metadata"]["resourceVersion"].as_str().unwrap();
    cluster.terminate().unwrap();
    let off = "--feature-gates=FeatureAPI=true,LogTracking=false";
    cluster.restart_with(&[EVALUATION, off]).unwrap();
    let each_once: Vec<Vec<&str>> = (0..4).map(|done| TASKS[done..].to_vec()).collect();
    assert_eq!(tasks_seen(&cluster.admin().unwrap(), revision).await, each_once);
    succeeds(&cluster, &["wait", "CoordinatedLeaderElection", "--for", "state=Off"]);
    succeeds(&cluster, &["wait", "LogTracking", "--for", "state=Off"]);
    // Until no other is in transition.
    succeeds(&cluster, &["watch"]);
    let admin = cluster.admin().unwrap();
    let leases = admin.get(LEASES).await.unwrap().text;
    assert_eq!(leases.matches("\"name\":\"l").count(), OBJECTS);
    assert!(!leases.contains("strategy") && !leases.contains("trace.kubernetes.io"), "{leases}");
    succeeds(&cluster, &["check-downgrade", "--to", "1.35"]);
    succeeds(&cluster, &["check-upgrade", "--to", "1.37"]);
    let list = succeeds(&cluster, &["list"]);
    assert!(list.starts_with("NAME  ") && list.contains("FeatureAPI"), "{list}");
    let described = succeeds(&cluster, &["describe", "LogTracking"]);
    assert!(described.starts_with("LogTracking: Off\n"), "{described}");
    let shown = newest_kubectl()
        .run(&cluster.kubeconfig(), &["get", "feat", "-n", "kube-system", "LogTracking"])
        .stdout;
    assert!(shown.contains("STATE") && shown.contains("1.36=off"), "{shown}");
    let fixed = feature_admin(&cluster, &["enable", "LogTracking"]);
    let why = String::from_utf8_lossy(&fixed.stderr).into_owned();
    assert_eq!(fixed.status.code(), Some(2), "{why}");
    assert!(
        why.contains(
            "LogTracking is not dynamic: restart with --feature-gates=LogTracking=true of"
        ),
        "{why}"
    );
}

/// What the roles of components permit.
#[tokio::test]
async fn f02_components_add_their_values_and_write_nothing_else() {
    let launch = Launch::new(FERROKUBE).role("apiserver").flag("--storage=memory");
    let cluster = launch.flag(EVALUATION).flag("--feature-gates=FeatureAPI=true").start().unwrap();
    succeeds(&cluster, &["wait", "LogTracking", "--for", "state=On"]);
    let admin = cluster.admin().unwrap();
    let feature = format!("{FEATURES}/LogTracking");
    let components = [
        ("system:kube-controller-manager", "system:authenticated"),
        ("system:node:a", "system:nodes"),
    ];
    for (number, (user, group)) in components.into_iter().enumerate() {
        let send = async |method: &str, path: &str, body: &Value| {
            let request = admin
                .request(method.parse().unwrap(), path)
                .header("impersonate-user", user)
                .header("impersonate-group", group)
                .header("content-type", "application/merge-patch+json")
                .body(body.to_string());
            admin.send(request).await.unwrap()
        };
        let version = format!("1.3{number}");
        let used = json!({"status": {"uses": [{"version": version, "enabled": true}]}});
        let added = send("PATCH", &format!("{feature}/uses"), &used).await;
        assert_eq!(added.status, 200, "{user}: {}", added.text);
        let uses = added.body["status"]["uses"].as_array().unwrap();
        let own = uses.iter().find(|one| one["version"] == version).unwrap();
        assert_eq!(own["reporter"], user, "{}", added.text);
        let status = format!("{feature}/status");
        for (method, path) in
            [("PATCH", &*feature), ("PATCH", &*status), ("DELETE", &*feature), ("POST", FEATURES)]
        {
            let refused = send(method, path, &json!({"spec": {"desired": "Disabled"}})).await;
            assert_eq!(refused.status, 403, "{user} {method} {path}: {}", refused.text);
        }
    }
}
