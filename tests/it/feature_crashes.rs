//! A feature is turned off by two API servers on one etcd, of which one is killed at every step.

use crate::FERROKUBE;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{BOUND, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::time::Instant;

const FEATURE: &str = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/LogTracking";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OBJECTS: usize = 60;

async fn feature(server: &Cluster) -> Option<Value> {
    let found = server.admin().unwrap().get(FEATURE).await.ok()?;
    (found.status == 200).then_some(found.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_etcd_lose_no_task_when_killed_at_every_step() {
    let Some(executable) = EtcdProcess::executables().pop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
    let storage = format!("--etcd-servers={}", etcd.url());
    let flags = |gates: &str| {
        let gates = format!("--feature-gates=FeatureAPI=true,{gates}");
        // Longer than a busy machine takes from a start to the first look.
        [storage.clone(), "--feature-evaluation-time=5s".to_owned(), gates]
    };
    let start = || {
        let launch = Launch::new(FERROKUBE).role("apiserver");
        flags("LogTracking=true").into_iter().fold(launch, Launch::flag).start().unwrap()
    };
    let mut servers = [start(), start()];
    let admin = servers[0].admin().unwrap();
    for number in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        let made = admin.post(MAPS, &map).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    }
    wait_until("objects have ids", BOUND, || async {
        let map = json!({"metadata": {"name": "late"}, "data": {"k": "v"}});
        _ = admin.delete(&format!("{MAPS}/late")).await.unwrap();
        let made = admin.post(MAPS, &map).await.unwrap().text;
        if made.contains("trace.kubernetes.io/") { Ok(()) } else { Err(made) }
    })
    .await;
    let off = flags("LogTracking=false");
    let off: Vec<&str> = off.iter().map(String::as_str).collect();
    for server in &mut servers {
        server.restart_with(&off).unwrap();
    }
    let (mut step, mut kills, began) = (Value::Null, 0, Instant::now());
    loop {
        let alive = &servers[(kills + 1) % 2];
        let Some(seen) = feature(alive).await else { continue };
        if seen["status"]["state"] == "Off" {
            break;
        }
        assert!(began.elapsed() < 4 * BOUND, "after {kills} kills: {seen}");
        // What is stored of the transition; conditions also say who waits for whom.
        let status = &seen["status"];
        let is_evaluating = status.get("useEvaluationTime").is_some();
        let now = json!([status["state"], status["transitionTasks"], is_evaluating]);
        if now == step {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            continue;
        }
        step = now;
        let killed = &mut servers[kills % 2];
        killed.kill().unwrap();
        killed.restart().unwrap();
        kills += 1;
    }
    assert!(kills >= 1, "no step was seen");
    for server in &servers {
        let maps = server.admin().unwrap().get(MAPS).await.unwrap().text;
        assert!(maps.contains("\"m1\"") && !maps.contains("\"trace.kubernetes.io/"), "{maps}");
    }
}
