//! The Feature API with real processes: the story of a feature that stores fields, by commands.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::process::{Command, Output};

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
    cluster.terminate().unwrap();
    let off = "--feature-gates=FeatureAPI=true,LogTracking=false";
    cluster.restart_with(&[EVALUATION, off]).unwrap();
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
