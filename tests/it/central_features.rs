//! Features that are set in one place, with an API server and controller managers as processes.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use ferrokube_features::transition::is_canary;
use ferrokube_testkit::{BOUND, Cluster, Launch, wait_until};
use serde_json::json;
use std::process::Command;

const LOG_TRACKING: &str =
    "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/LogTracking";
const NAMESPACES: &str = "/api/v1/namespaces";

fn server(flags: &[&str]) -> Cluster {
    let mut launch = Launch::new(FERROKUBE).role("apiserver").flag("--feature-evaluation-time=1s");
    for flag in flags {
        launch = launch.flag(*flag);
    }
    launch.start().unwrap()
}

fn manager(cluster: &Cluster, log: &tempfile::TempDir, name: &str) -> ManagerProcess {
    let flags = ["--leader-elect=false", "--log-level=debug"];
    ManagerProcess::start(&cluster.kubeconfig(), log.path().join(name), &flags)
}

/// Whether the lines that follow about a new namespace have ids; waits for one that is `expected`.
async fn logs_ids(
    cluster: &Cluster,
    manager: &ManagerProcess,
    (name, expected): (&str, bool),
) -> bool {
    let admin = cluster.admin().unwrap();
    let before = manager.log().len();
    let made = admin.post(NAMESPACES, &json!({"metadata": {"name": name}})).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    let has_ids = |line: &String| line.contains("trace_id");
    let lines = || {
        let log = manager.log();
        let lines = log[before..].lines().filter(|line| line.contains(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until("a line about the namespace", BOUND, || async {
        let found = lines().into_iter().find(|line| !expected || has_ids(line));
        found.ok_or_else(|| manager.log())
    })
    .await;
    lines().iter().any(has_ids)
}

async fn follows(manager: &ManagerProcess, enabled: bool, times: usize) {
    let line = format!("enabled={enabled}");
    wait_until("the manager follows the API", BOUND, || async {
        let log = manager.log();
        let found =
            log.lines().filter(|one| one.contains("follows the API") && one.contains(&line));
        if found.count() == times { Ok(()) } else { Err(log) }
    })
    .await;
}

/// Restarts the server with other flags at the address that its clients know.
fn restarted_at(cluster: &mut Cluster, flags: &[&str]) {
    let url = cluster.url().to_owned();
    let port = format!("--secure-port={}", url.rsplit(':').next().unwrap());
    let flags = [&["--feature-evaluation-time=1s", port.as_str()], flags].concat();
    cluster.terminate().unwrap();
    cluster.restart_with(&flags).unwrap();
    assert_eq!(cluster.url(), url);
}

/// The managers have no flag, and go on running.
#[tokio::test]
async fn f05_f16_a_flag_of_the_server_sets_other_processes() {
    let mut cluster = server(&["--feature-gates=FeatureAPI=true"]);
    let logs = tempfile::tempdir().unwrap();
    let managers = ["one", "two"].map(|name| manager(&cluster, &logs, name));
    assert!(logs_ids(&cluster, &managers[0], ("before", true)).await);
    restarted_at(&mut cluster, &["--feature-gates=FeatureAPI=true,LogTracking=false"]);
    for manager in &managers {
        follows(manager, false, 1).await;
    }
    assert!(!logs_ids(&cluster, &managers[0], ("quiet", false)).await);
}

#[tokio::test]
async fn f06_f17_the_api_switches_running_processes() {
    let cluster = server(&["--feature-gates=FeatureAPI=true", "--dynamic-features=LogTracking"]);
    let logs = tempfile::tempdir().unwrap();
    let managers = [manager(&cluster, &logs, "one"), manager(&cluster, &logs, "two")];
    let admin = cluster.admin().unwrap();
    let state = |wanted: &'static str| {
        let admin = &admin;
        wait_until(wanted, BOUND, move || async move {
            let feature = admin.get(LOG_TRACKING).await.unwrap();
            let is_wanted = feature.body["status"]["state"] == wanted;
            if is_wanted { Ok(()) } else { Err(feature.text) }
        })
    };
    state("On").await;
    assert!(logs_ids(&cluster, &managers[0], ("before", true)).await);
    for round in 1..=2 {
        for (desired, enabled, end) in [("Disabled", false, "Off"), ("Enabled", true, "On")] {
            let patch = json!({"spec": {"desired": desired}});
            let patched = admin.merge(LOG_TRACKING, &patch).await.unwrap();
            assert_eq!(patched.status, 200, "{}", patched.text);
            for manager in &managers {
                follows(manager, enabled, round).await;
            }
            state(end).await;
            let name = format!("ns-{round}-{enabled}");
            assert_eq!(logs_ids(&cluster, &managers[0], (&name, enabled)).await, enabled);
            let made = admin.get(&format!("{NAMESPACES}/{name}")).await.unwrap();
            assert_eq!(made.text.contains("trace.kubernetes.io"), enabled, "{}", made.text);
        }
    }
}

/// Silence is not agreement.
#[tokio::test]
async fn the_lease_of_a_leader_says_which_features_it_uses() {
    const LEASE: &str =
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
    let cluster = server(&["--feature-gates=FeatureAPI=true,LogTracking=false"]);
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("manager");
    let manager = ManagerProcess::start(&cluster.kubeconfig(), log, &[]);
    let admin = cluster.admin().unwrap();
    wait_until("its Lease has the value", BOUND, || async {
        let lease = admin.get(LEASE).await.unwrap();
        let uses = lease.body["metadata"]["annotations"]["features.k8s.io/uses"].as_str();
        let is_there = uses.is_some_and(|uses| uses.contains("LogTracking=false"));
        if is_there { Ok(()) } else { Err(format!("{} {}", lease.text, manager.log())) }
    })
    .await;
}

/// Name of a manager among its like: host and port.
async fn component(manager: &ManagerProcess) -> String {
    let port = wait_until("the manager listens", BOUND, || async {
        let log = manager.log();
        let line = log.lines().find(|line| line.contains("listening for health and metrics"));
        let address = line.and_then(|line| line.split("address=").nth(1));
        let port = address.and_then(|text| text.split([' ', '"']).next()?.rsplit(':').next());
        port.map(str::to_owned).ok_or(log.clone())
    })
    .await;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    format!("{}:{port}", host.trim())
}

#[tokio::test]
async fn f19_a_canary_is_on_in_some_processes_first() {
    let cluster = server(&["--feature-gates=FeatureAPI=true", "--dynamic-features=LogTracking"]);
    let logs = tempfile::tempdir().unwrap();
    let managers = ["one", "two", "three"].map(|name| manager(&cluster, &logs, name));
    let mut components = Vec::new();
    for manager in &managers {
        components.push(component(manager).await);
    }
    let chosen = |percent| {
        let of = |name: &String| is_canary(name, "LogTracking", percent);
        components.iter().map(of).collect::<Vec<bool>>()
    };
    // Some of them, unless all have the same hash.
    let percent = (1..100).find(|percent| chosen(*percent).contains(&true)).unwrap();
    let chosen = chosen(percent);
    let admin = cluster.admin().unwrap();
    let set = |spec: serde_json::Value| {
        let admin = &admin;
        async move {
            let patched = admin.merge(LOG_TRACKING, &json!({ "spec": spec })).await.unwrap();
            assert_eq!(patched.status, 200, "{}", patched.text);
        }
    };
    let state = |wanted: &'static str| {
        let admin = &admin;
        wait_until(wanted, BOUND, move || async move {
            let feature = admin.get(LOG_TRACKING).await.unwrap();
            let is_wanted = feature.body["status"]["state"] == wanted;
            if is_wanted { Ok(()) } else { Err(feature.text) }
        })
    };
    // Only a feature whose status says that it is dynamic can be set.
    state("On").await;
    set(json!({"desired": "Disabled"})).await;
    state("Off").await;
    for manager in &managers {
        follows(manager, false, 1).await;
    }
    set(json!({"desired": "Enabled", "canaryPercent": percent})).await;
    state("TurningOn").await;
    for (manager, _) in managers.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
        follows(manager, true, 1).await;
    }
    for (manager, _) in managers.iter().zip(&chosen).filter(|(_, chosen)| !**chosen) {
        follows(manager, true, 0).await;
    }
    let held = admin.get(LOG_TRACKING).await.unwrap();
    assert_eq!(held.body["status"]["state"], "TurningOn", "{}", held.text);
    set(json!({"canaryPercent": null})).await;
    for manager in &managers {
        follows(manager, true, 1).await;
    }
    state("On").await;
}

const PULLS: &str =
    "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/MaxParallelImagePulls";

/// A kubelet whose runtime does not answer: its gates need none.
fn kubelet(cluster: &Cluster, directory: &tempfile::TempDir) -> ManagerProcess {
    let mut command = Command::new(FERROKUBE);
    command
        .args(["kubelet", "--hostname-override=node-a", "--node-ip=127.0.0.1"])
        .args(["--address=127.0.0.1", "--port=0", "--max-parallel-image-pulls=2"])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .arg("--root-dir")
        .arg(directory.path().join("kubelet"))
        .arg("--container-runtime-endpoint")
        .arg(format!("unix://{}", directory.path().join("none.sock").display()));
    ManagerProcess::spawn(&mut command, directory.path().join("log"))
}

/// Waits until the kubelet has reported a value: only it asks this gate.
async fn reported(cluster: &Cluster, state: &str, enabled: bool) {
    let admin = cluster.admin().unwrap();
    wait_until("the kubelet reports its value", BOUND, || async {
        let feature = admin.get(PULLS).await.unwrap();
        let status = &feature.body["status"];
        let uses = status["uses"].as_array().map_or(&[][..], Vec::as_slice);
        let is_reported = uses.iter().any(|one| one["enabled"] == enabled);
        if status["state"] == state && is_reported { Ok(()) } else { Err(feature.text) }
    })
    .await;
}

/// It follows, and reports, also after the API server was away.
#[tokio::test]
async fn f05_f16_the_api_lifts_the_limit_of_a_running_kubelet() {
    const FLAGS: [&str; 2] =
        ["--feature-gates=FeatureAPI=true", "--dynamic-features=MaxParallelImagePulls"];
    let mut cluster = server(&FLAGS);
    let directory = tempfile::tempdir().unwrap();
    let kubelet = kubelet(&cluster, &directory);
    reported(&cluster, "On", true).await;
    for (round, (desired, state, enabled)) in
        [("Disabled", "Off", false), ("Enabled", "On", true), ("Disabled", "Off", false)]
            .into_iter()
            .enumerate()
    {
        if round == 2 {
            restarted_at(&mut cluster, &FLAGS);
        }
        let patch = json!({"spec": {"desired": desired}});
        let patched = cluster.admin().unwrap().merge(PULLS, &patch).await.unwrap();
        assert_eq!(patched.status, 200, "{}", patched.text);
        follows(&kubelet, enabled, round / 2 + 1).await;
        reported(&cluster, state, enabled).await;
        assert_eq!(kubelet.log().matches("follows the API").count(), round + 1);
    }
}
