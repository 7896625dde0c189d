//! Upgrades and downgrades between this version and the one before, on the same data directory: the
//! program of an earlier commit, which the environment names, or else this one, emulating it.
//!
//!     FERROKUBE_PREVIOUS=/path/to/ferrokube cargo test --test it -- previous_version
//!
//! The commit before the Feature API is 192bf06c.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::ffi::OsString;

const FEATURES: &str = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

async fn state(admin: &Client, feature: &str, wanted: &str) {
    let path = format!("{FEATURES}/{feature}");
    wait_until(wanted, BOUND, || async {
        let found = admin.get(&path).await.unwrap();
        if found.body["status"]["state"] == wanted { Ok(()) } else { Err(found.text) }
    })
    .await;
}

async fn made(admin: &Client, collection: &str, object: Value) {
    let answer = admin.post(collection, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
}

fn lease(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"strategy": "OldestEmulationVersion"}})
}

/// The version before: its program, and the flags that make it that version.
fn previous() -> (OsString, &'static [&'static str]) {
    match std::env::var_os("FERROKUBE_PREVIOUS") {
        Some(program) => (program, &[]),
        None => (FERROKUBE.into(), &["--emulated-version=1.35"]),
    }
}

#[tokio::test]
async fn p08_features_survive_upgrade_downgrade_upgrade_of_the_program() {
    let (previous, emulation) = previous();
    let launch = Launch::new(&previous).role("apiserver");
    let launch = emulation.iter().fold(launch, |launch, flag| launch.flag(*flag));
    let mut cluster: Cluster = launch.start().unwrap();
    made(&cluster.admin().unwrap(), MAPS, json!({"metadata": {"name": "first"}})).await;
    let flags = |gates: &str| ["--feature-evaluation-time=1s".to_owned(), gates.to_owned()];
    let with = flags("--feature-gates=FeatureAPI=true,CoordinatedLeaderElection=true");
    let without = flags("--feature-gates=FeatureAPI=true,LogTracking=false");
    for round in 0..2 {
        cluster.terminate().unwrap();
        cluster.set_binary(FERROKUBE);
        cluster.restart_with(&with.each_ref().map(String::as_str)).unwrap();
        let admin = cluster.admin().unwrap();
        assert_eq!(admin.get(&format!("{MAPS}/first")).await.unwrap().status, 200);
        state(&admin, "CoordinatedLeaderElection", "On").await;
        state(&admin, "LogTracking", "On").await;
        made(&admin, LEASES, lease(&format!("l{round}"))).await;
        // A controller manager of the version before does its work, and reports nothing.
        let logs = tempfile::tempdir().unwrap();
        let manager = ManagerProcess::start_of(
            previous.as_ref(),
            &cluster.kubeconfig(),
            logs.path().join("manager"),
            emulation,
        );
        let namespace = format!("n{round}");
        let path = format!("/api/v1/namespaces/{namespace}");
        made(&admin, "/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
        wait_until("its controllers run", BOUND, || async {
            let account = admin.get(&format!("{path}/serviceaccounts/default")).await.unwrap();
            if account.status == 200 { Ok(()) } else { Err(manager.log()) }
        })
        .await;
        drop(manager);
        // Turned off before the downgrade, nothing is left.
        cluster.terminate().unwrap();
        cluster.restart_with(&without.each_ref().map(String::as_str)).unwrap();
        let admin = cluster.admin().unwrap();
        state(&admin, "CoordinatedLeaderElection", "Off").await;
        state(&admin, "LogTracking", "Off").await;
        cluster.terminate().unwrap();
        cluster.set_binary(&previous);
        cluster.restart_with(emulation).unwrap();
        let admin = cluster.admin().unwrap();
        let leases = admin.get(LEASES).await.unwrap().text;
        assert!(leases.contains("\"l0\"") && !leases.contains("strategy"), "{leases}");
        assert_eq!(admin.get(&format!("{MAPS}/first")).await.unwrap().status, 200);
        assert_eq!(admin.get(FEATURES).await.unwrap().status, 404);
    }
}
