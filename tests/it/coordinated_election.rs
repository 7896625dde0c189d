//! Coordinated leader election with controller managers as processes.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};

const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/kube-system/leasecandidates";
const GATE: &str = "--feature-gates=CoordinatedLeaderElection=true";
const TIMES: [&str; 4] = [
    GATE,
    "--leader-elect-lease-duration=10s",
    "--leader-elect-renew-deadline=8s",
    "--leader-elect-retry-period=500ms",
];

async fn lease(admin: &Client, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    wait_until(what, BOUND, || async {
        let found = admin.get(LEASE).await.unwrap();
        if is_wanted(&found.body["spec"]) {
            Ok(found.body["spec"].clone())
        } else {
            Err(found.text)
        }
    })
    .await
}

/// Answers the coordinator's pings of a candidate that is no process.
async fn answer(admin: &Client, name: &str) {
    let path = format!("{CANDIDATES}/{name}");
    let found = admin.get(&path).await.unwrap().body;
    let now = jiff::Timestamp::now();
    let renewal = json!({"spec": {"renewTime": format!("{now:.6}")}});
    if found["spec"]["pingTime"] != Value::Null {
        assert_eq!(admin.merge(&path, &renewal).await.unwrap().status, 200);
    }
}

fn holder(spec: &Value) -> &str {
    spec["holderIdentity"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn the_coordinator_replaces_a_dead_leader_and_prefers_an_older_version() {
    let cluster: Cluster = Launch::new(FERROKUBE).role("apiserver").flag(GATE).start().unwrap();
    let admin = cluster.admin().unwrap();
    let logs = tempfile::tempdir().unwrap();
    let start =
        |name: &str| ManagerProcess::start(&cluster.kubeconfig(), logs.path().join(name), &TIMES);
    let one = start("one");
    let first = lease(&admin, "a leader", |spec| spec["acquireTime"] != Value::Null).await;
    assert_eq!(first["strategy"], "OldestEmulationVersion");
    let first = holder(&first).to_owned();
    let candidate = admin.get(&format!("{CANDIDATES}/{first}")).await.unwrap();
    assert_eq!(candidate.body["spec"]["emulationVersion"], "1.36.0", "{}", candidate.text);
    let other = start("two");
    wait_until("another candidate", BOUND, || async {
        let all = admin.get(CANDIDATES).await.unwrap();
        let count = all.body["items"].as_array().map_or(0, Vec::len);
        if count == 2 { Ok(()) } else { Err(all.text) }
    })
    .await;
    drop(one);
    let second =
        lease(&admin, "another leader", |spec| !["", first.as_str()].contains(&holder(spec))).await;
    assert_eq!(second["strategy"], "OldestEmulationVersion");
    let second = holder(&second).to_owned();
    // It has read that it was chosen.
    wait_until("the second leads", BOUND, || async {
        let log = other.log();
        if log.contains("became leader") { Ok(()) } else { Err(log) }
    })
    .await;
    // A candidate of an older version, as a downgrade starts it.
    let older = json!({"metadata": {"name": "older"}, "spec": {
        "leaseName": "kube-controller-manager", "strategy": "OldestEmulationVersion",
        "binaryVersion": "1.36.0", "emulationVersion": "1.35.0",
        "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let made = admin.post(CANDIDATES, &older).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    wait_until("the older one holds the lease", BOUND, || async {
        answer(&admin, "older").await;
        let spec = admin.get(LEASE).await.unwrap().body["spec"].clone();
        if holder(&spec) == "older" { Ok(()) } else { Err(format!("{spec} {second}")) }
    })
    .await;
    // The process that held it gave it up by itself.
    wait_until("the leader ends", BOUND, || async {
        let log = other.log();
        if log.contains("could not be renewed in time") { Ok(()) } else { Err(log) }
    })
    .await;
}
