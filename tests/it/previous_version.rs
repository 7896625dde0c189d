//! Upgrades and downgrades between this version and the one before, on the same data directory:
//! this program, emulating it, or the program of an earlier commit, which the environment names:
//!
//!     FERROKUBE_PREVIOUS=/path/to/ferrokube cargo test --test it -- previous_version
//!
//! `tests/previous` builds the commit before the Feature API, 192bf06c.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;

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
struct Previous {
    program: OsString,
    flags: &'static [&'static str],
}

/// Number of the format in which a server stores.
fn format(cluster: &Cluster) -> String {
    let text = std::fs::read_to_string(cluster.data_dir().join("store/FORMAT")).unwrap();
    text.trim().rsplit(' ').next().unwrap().to_owned()
}

/// A controller manager of the version before does its work, and reports nothing.
async fn manages(cluster: &Cluster, previous: &Previous, namespace: &str) {
    let admin = cluster.admin().unwrap();
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("manager");
    let program = previous.program.as_ref();
    let manager = ManagerProcess::start_of(program, &cluster.kubeconfig(), log, previous.flags);
    made(&admin, "/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
    let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
    wait_until("its controllers run", BOUND, || async {
        let account = admin.get(&account).await.unwrap();
        if account.status == 200 { Ok(()) } else { Err(manager.log()) }
    })
    .await;
}

/// Nothing is left of the features that are off.
async fn is_clean(admin: &Client) {
    let leases = admin.get(LEASES).await.unwrap().text;
    assert!(leases.contains("\"l0\"") && !leases.contains("strategy"), "{leases}");
    let first = admin.get(&format!("{MAPS}/first")).await.unwrap();
    assert_eq!(first.status, 200, "{}", first.text);
    assert!(!first.text.contains("trace.kubernetes.io"), "{}", first.text);
}

/// Twice from the version before to this one and back, with features used meanwhile, and turned off
/// before they would not be known.
async fn up_and_down(previous: &Previous) {
    let launch = Launch::new(&previous.program).role("apiserver");
    let launch = previous.flags.iter().fold(launch, |launch, flag| launch.flag(*flag));
    let mut cluster: Cluster = launch.start().unwrap();
    made(&cluster.admin().unwrap(), MAPS, json!({"metadata": {"name": "first"}})).await;
    let old = format(&cluster);
    let flags = |gates: &str| ["--feature-evaluation-time=1s".to_owned(), gates.to_owned()];
    let with = flags("--feature-gates=FeatureAPI=true,CoordinatedLeaderElection=true");
    let without = flags("--feature-gates=FeatureAPI=true,LogTracking=false");
    cluster.terminate().unwrap();
    for round in 0..2 {
        cluster.set_binary(FERROKUBE);
        cluster.restart_with(&with.each_ref().map(String::as_str)).unwrap();
        let admin = cluster.admin().unwrap();
        assert_eq!(admin.get(&format!("{MAPS}/first")).await.unwrap().status, 200);
        state(&admin, "CoordinatedLeaderElection", "On").await;
        state(&admin, "LogTracking", "On").await;
        made(&admin, LEASES, lease(&format!("l{round}"))).await;
        manages(&cluster, previous, &format!("n{round}")).await;
        cluster.terminate().unwrap();
        cluster.restart_with(&without.each_ref().map(String::as_str)).unwrap();
        let admin = cluster.admin().unwrap();
        state(&admin, "CoordinatedLeaderElection", "Off").await;
        state(&admin, "LogTracking", "Off").await;
        is_clean(&admin).await;
        manages(&cluster, previous, &format!("m{round}")).await;
        cluster.terminate().unwrap();
        cluster.set_binary(&previous.program);
        let new = format(&cluster);
        if new == old {
            cluster.restart_with(previous.flags).unwrap();
            let admin = cluster.admin().unwrap();
            is_clean(&admin).await;
            assert_eq!(admin.get(FEATURES).await.unwrap().status, 404);
            cluster.terminate().unwrap();
        } else {
            // Older than the format: it refuses, and leaves the directory as it is.
            let refused = cluster.restart_with(previous.flags).unwrap_err().to_string();
            assert!(refused.contains(&format!("has format {new}")), "{refused}");
            assert_eq!(cluster.wait().unwrap().code(), Some(1));
            assert_eq!(format(&cluster), new);
        }
    }
}

#[tokio::test]
async fn p08_features_survive_upgrade_downgrade_upgrade_of_the_program() {
    let flags = &["--emulated-version=1.35"];
    up_and_down(&Previous { program: FERROKUBE.into(), flags }).await;
}

#[tokio::test]
async fn p08_p29_features_survive_upgrades_of_an_earlier_program() {
    let Some(program) = std::env::var_os("FERROKUBE_PREVIOUS") else {
        // Not by a macro, whose output is only shown of tests that fail.
        let why = "NOT RUN: upgrades of an earlier program, which FERROKUBE_PREVIOUS would name \
                   (tests/previous builds one)";
        return writeln!(std::io::stderr(), "{why}").unwrap();
    };
    up_and_down(&Previous { program, flags: &[] }).await;
}
