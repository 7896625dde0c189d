//! Logs of containers on a runtime in memory, which makes the files and whose containers are the
//! test.

use crate::node::StaticNode;
use ferrokube_cri::{CallCode, CriError, path};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const POD: &str = "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}";
const SMALL: &str = "containerLogMaxSize: 1Ki\ncontainerLogMaxFiles: 4\n";

/// Waits until the container runs; the path of its log.
async fn running(node: &StaticNode) -> PathBuf {
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    node.runtime.running("a").remove(0).report.log_path.into()
}

fn names(log: &Path) -> Vec<String> {
    let entries = fs::read_dir(log.parent().expect("a directory")).expect("it is there");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a text")).collect();
    names.sort();
    names
}

fn grow(log: &Path) {
    let mut file = File::options().append(true).open(log).expect("the log");
    file.write_all(&[b'x'; 2048]).expect("room");
}

#[tokio::test(start_paused = true)]
async fn fault_57_logs_are_rotated_by_size_compressed_and_bounded_in_number() {
    let node = StaticNode::new();
    node.write("a.yaml", POD);
    let _kubelet = node.kubelet_with(SMALL);
    let log = running(&node).await;
    for round in 1..=6 {
        assert_eq!(fs::metadata(&log).expect("the new log").len(), 0);
        grow(&log);
        node.runtime.until(|runtime| runtime.count(path::reopen_container_log) == round).await;
        let names = names(&log);
        assert_eq!(names.len(), (round + 1).min(4), "{names:?}");
        let compressed = names.iter().filter(|name| name.ends_with(".gz")).count();
        assert_eq!(compressed, (round - 1).min(2), "all but the newest: {names:?}");
    }
    node.remove("a.yaml");
    node.runtime.until(|runtime| runtime.sandboxes().is_empty()).await;
    while log.parent().and_then(Path::parent).expect("the pod's").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_change_costs_the_runtime_no_calls_of_its_own() {
    let node = StaticNode::new();
    node.write("a.yaml", POD);
    let _kubelet = node.kubelet_with(SMALL);
    running(&node).await;
    // Lists of all pods are made every second, checks of logs every 10 seconds.
    let after = async |lists: usize| {
        node.runtime.until(|runtime| runtime.count(path::list_containers) > lists).await;
        [path::container_status, path::pod_sandbox_status].map(|path| node.runtime.count(path))
    };
    let before = after(40).await;
    assert_eq!(after(200).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_the_runtime_does_not_reopen_keeps_its_name_until_it_does() {
    let node = StaticNode::new();
    node.write("a.yaml", POD);
    let refused = CriError::new(CallCode::Unknown, "refused");
    node.runtime.fail(path::reopen_container_log, Some(refused));
    let _kubelet = node.kubelet_with(SMALL);
    let log = running(&node).await;
    grow(&log);
    node.runtime.until(|runtime| runtime.count(path::reopen_container_log) >= 3).await;
    node.runtime.fail(path::reopen_container_log, None);
    while names(&log).len() < 2 {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    // A kubelet that was killed between the rename and the call.
    let tries = node.runtime.count(path::reopen_container_log);
    fs::remove_file(&log).expect("it is there");
    node.runtime.until(|runtime| runtime.count(path::reopen_container_log) > tries).await;
    while !log.exists() {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn logs_go_with_the_container_that_is_removed() {
    let node = StaticNode::new();
    node.write("a.yaml", POD);
    let _kubelet = node.kubelet_with(SMALL);
    let log = running(&node).await;
    grow(&log);
    node.runtime.until(|runtime| runtime.count(path::reopen_container_log) == 1).await;
    for attempt in 0..2_u32 {
        let is_it = |report: &ferrokube_cri::ContainerReport| {
            report.metadata.as_ref().is_some_and(|it| it.attempt == attempt)
        };
        node.runtime
            .until(|runtime| runtime.running("a").iter().any(|seen| is_it(&seen.report)))
            .await;
        let id = node.runtime.running("a").remove(0).report.id;
        node.runtime.exit(&id, 1);
    }
    while names(&log) != ["1.log", "2.log"] {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}
