//! kill -9 of the kubelet at random moments: nothing is lost, and nothing runs twice.

use super::node::{NODE, NodeUnderTest, PODS};
use super::pods::WAIT;
use ferrokube_cri::{ContainerPhase, ListContainersRequest, ListPodSandboxRequest};
use ferrokube_testkit::{BOUND, wait_until};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Kills, unless `FERROKUBE_KILLS` says otherwise.
const KILLS: u32 = 3;

/// A moment between a kubelet's start and the next kill; not reproducible, as schedules are not.
fn moment() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Duration::from_millis(u64::from(now.subsec_nanos()) / 1000 % 1500)
}

/// Running containers of each pod, by name of the pod.
async fn running(node: &NodeUnderTest) -> BTreeMap<String, usize> {
    let listed = node.containerd.runtime().list_containers(ListContainersRequest::default()).await;
    let mut pods = BTreeMap::new();
    for container in listed.unwrap().containers {
        if container.state == ContainerPhase::Running as i32 {
            let pod = container.labels.get("io.kubernetes.pod.name").cloned();
            *pods.entry(pod.unwrap_or_default()).or_default() += 1;
        }
    }
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_9_of_the_kubelet_at_random_moments_loses_and_duplicates_nothing() {
    let Some(mut node) = NodeUnderTest::start().await else { return };
    let kills = std::env::var("FERROKUBE_KILLS").ok().and_then(|text| text.parse().ok());
    let kills: u32 = kills.unwrap_or(KILLS);
    let is_running = |pod: &serde_json::Value| pod["status"]["phase"] == "Running";
    for round in 0..kills {
        let name = format!("p{round}");
        let main = node.busybox("main", WAIT);
        let spec = json!({"nodeName": NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": [main]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": spec});
        node.create(PODS, &pod).await;
        if round >= 2 {
            let gone = format!("{PODS}/p{}", round - 2);
            assert!(node.admin.delete(&gone).await.unwrap().status < 300);
        }
        // Not a wait for anything: the moment is what is tested.
        tokio::time::sleep(moment()).await;
        node.restart_kubelet();
        // Within a round no pod has two containers or sandboxes at any time that is seen.
        assert!(running(&node).await.values().all(|count| *count <= 1));
    }
    let last = kills.saturating_sub(2)..kills;
    for round in 0..last.start {
        node.until_gone(&format!("p{round}")).await;
    }
    let mut wanted = BTreeMap::new();
    for round in last {
        let name = format!("p{round}");
        let pod = node.until(&name, "the pod runs", is_running).await;
        let status = &pod["status"]["containerStatuses"][0];
        // The runtime cancels the start that a killed kubelet waited for; it counts as failed.
        let cancelled = u64::from(status["lastState"]["terminated"]["reason"] == "StartError");
        assert_eq!(status["restartCount"], cancelled, "{pod}");
        wanted.insert(name, 1);
    }
    let settled = || async {
        let sandboxes =
            node.containerd.runtime().list_pod_sandbox(ListPodSandboxRequest::default()).await;
        let sandboxes = sandboxes.unwrap().items.len();
        let seen = (running(&node).await, sandboxes);
        if seen == (wanted.clone(), wanted.len()) { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    wait_until("there is one of each and nothing else", BOUND, settled).await;
}
