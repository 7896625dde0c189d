//! Probes and hooks of static pods on a runtime in memory.

use crate::node::StaticNode;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{CallCode, CriError, path};
use std::time::Duration;

fn attempt(runtime: &FakeRuntime, name: &str) -> Option<u32> {
    let running = runtime.running(name);
    running.first().map(|seen| seen.report.metadata.as_ref().map_or(0, |it| it.attempt))
}

#[tokio::test(start_paused = true)]
async fn a_container_that_fails_its_liveness_probe_is_killed_and_started_again() {
    let node = StaticNode::new();
    node.write(
        "a.yaml",
        "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1, livenessProbe: \
         {exec: {command: [alive]}, periodSeconds: 5, terminationGracePeriodSeconds: 7}}]}",
    );
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.count(path::exec_sync) >= 10).await;
    assert_eq!(attempt(&node.runtime, "a"), Some(0), "a probe that passes changes nothing");
    node.runtime.exec_exits("alive", 1);
    let before = node.runtime.calls().len();
    node.runtime.until(|runtime| runtime.count(path::stop_container) >= 1).await;
    node.runtime.exec_exits("alive", 0);
    let calls = node.runtime.calls();
    let killed = calls[before..].iter().take_while(|call| call.path != path::stop_container);
    let probes = killed.filter(|call| call.path == path::exec_sync).count();
    assert_eq!(probes, 3, "kubelet's default threshold");
    node.runtime.until(|runtime| attempt(runtime, "a") == Some(1)).await;
    // The new container may have been probed once before the command passed again.
    assert_eq!(node.events("Unhealthy")[..3], ["Liveness probe failed: "; 3]);
    assert_eq!(node.events("Killing"), ["Container a failed liveness probe, will be restarted"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(attempt(&node.runtime, "a"), Some(1), "the new container is probed again");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_the_runtime_does_not_run_kills_nothing() {
    let node = StaticNode::new();
    node.write(
        "a.yaml",
        "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1, livenessProbe: \
         {exec: {command: [alive]}}}]}",
    );
    let down = CriError::new(CallCode::Unavailable, "down");
    node.runtime.fail(path::exec_sync, Some(down));
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.count(path::exec_sync) >= 10).await;
    assert_eq!(node.runtime.count(path::stop_container), 0);
    let said = "Liveness probe errored and resulted in unknown state: rpc error: code = \
                Unavailable desc = down";
    assert_eq!(node.events("Unhealthy")[0], said);
    node.runtime.exec_exits("alive", 1);
    node.runtime.fail(path::exec_sync, None);
    node.runtime.until(|runtime| runtime.count(path::stop_container) >= 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_startup_probe_holds_back_other_probes_and_later_containers() {
    let node = StaticNode::new();
    node.runtime.exec_exits("up", 1);
    node.write(
        "a.yaml",
        "metadata: {name: a}\nspec: {initContainers: [{name: side, image: r.io/s:v1, \
         restartPolicy: Always, startupProbe: {exec: {command: [up]}, failureThreshold: 100}, \
         livenessProbe: {exec: {command: [up]}}}], containers: [{name: a, image: r.io/a:v1}]}",
    );
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.count(path::exec_sync) >= 20).await;
    assert!(node.runtime.running("a").is_empty(), "the sidecar has not started");
    assert_eq!(attempt(&node.runtime, "side"), Some(0), "its liveness does not count yet");
    node.runtime.exec_exits("up", 0);
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_never_starts_up_is_killed() {
    let node = StaticNode::new();
    node.runtime.exec_exits("up", 1);
    node.write(
        "a.yaml",
        "metadata: {name: a}\nspec: {restartPolicy: Never, containers: [{name: a, image: \
         r.io/a:v1, startupProbe: {exec: {command: [up]}, failureThreshold: 2}}]}",
    );
    let _kubelet = node.kubelet();
    // The pod is over: its sandbox goes.
    node.runtime.until(|runtime| runtime.count(path::stop_pod_sandbox) >= 1).await;
    assert_eq!(node.runtime.count(path::start_container), 1);
    assert_eq!(node.events("Killing"), ["Container a failed startup probe"]);
}

const HOOKS: &str = "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1, \
                     lifecycle: {postStart: {exec: {command: [hello]}}, preStop: {exec: {command: \
                     [bye]}}}}]}";

#[tokio::test(start_paused = true)]
async fn a_pod_whose_file_went_without_a_kubelet_ends_with_its_hook() {
    let node = StaticNode::new();
    node.write("a.yaml", HOOKS);
    let kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.count(path::exec_sync) >= 1).await;
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    kubelet.abort();
    node.remove("a.yaml");
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.sandboxes().is_empty()).await;
    let calls = node.runtime.calls();
    let acts: Vec<_> = calls
        .iter()
        .map(|call| call.path)
        .filter(|path| [path::exec_sync, path::stop_container].contains(path))
        .collect();
    assert_eq!(acts, [path::exec_sync, path::exec_sync, path::stop_container]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_kills_the_container_until_it_passes() {
    let node = StaticNode::new();
    node.runtime.exec_exits("hello", 1);
    node.write("a.yaml", HOOKS);
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.count(path::stop_container) >= 2).await;
    assert!(node.events("FailedPostStartHook").len() >= 2);
    node.runtime.exec_exits("hello", 0);
    // The back-off is by the wall clock, which is not paused.
    let stays = async || {
        node.runtime.until(|runtime| attempt(runtime, "a") >= Some(2)).await;
        let running = attempt(&node.runtime, "a");
        tokio::time::sleep(Duration::from_secs(600)).await;
        running == attempt(&node.runtime, "a")
    };
    // One more may have failed before the command passed.
    assert!(stays().await || stays().await);
}
