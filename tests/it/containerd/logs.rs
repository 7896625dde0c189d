//! Rotation of logs on a real runtime, under stock kubectl that follows them.

use super::node::{NodeUnderTest, PODS};
use super::streams::{Kube, KubectlProcess, pod, trusts};
use ferrokube_testkit::{BOUND, newest_kubectl, wait_until};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Counts, a few hundred lines at a time, until it is stopped.
const SCRIPT: &str = "i=0; until test -e /shared/stop; do n=0; while test $n -lt 300; do echo $i; \
                      i=$((i+1)); n=$((n+1)); done; sleep 0.1; done; echo end; exec sleep 100000";

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_57_kubectl_that_follows_a_log_loses_no_line_when_it_is_rotated() {
    // Enough files that a slow follower finds all: the bound has a test of its own.
    let settings = json!({"containerLogMaxSize": "16Ki", "containerLogMaxFiles": 1000,
        "containerLogMonitorInterval": "3s"});
    let Some(node) = NodeUnderTest::start_with(settings).await else { return };
    let shared = node.containerd.path("shared");
    fs::create_dir(&shared).unwrap();
    let mut counting = node.busybox("main", SCRIPT);
    counting["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    let mut counting = pod("counting", &[counting]);
    counting["spec"]["volumes"] = json!([{"name": "shared", "hostPath": {"path": shared}}]);
    node.create(PODS, &counting).await;
    node.until("counting", "it runs", |pod| {
        pod["status"]["containerStatuses"][0]["started"] == true
    })
    .await;
    trusts(&node).await;
    let kube = Kube { kubectl: newest_kubectl(), node: &node, websockets: "true" };
    let mut follow = kube.command(&["logs", "-f", "counting"]);
    let mut process =
        KubectlProcess(follow.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap());
    let output = BufReader::new(process.0.stdout.take().unwrap());
    let (sender, begun) = tokio::sync::oneshot::channel();
    let reading = tokio::task::spawn_blocking(move || {
        let mut sender = Some(sender);
        let lines = output.lines().map_while(Result::ok);
        let lines = lines.inspect(|_| _ = sender.take().map(|sender| sender.send(())));
        lines.take_while(|line| line != "end").collect::<Vec<String>>()
    });
    // Of what was rotated before, kubectl reads nothing, as from any kubelet.
    tokio::time::timeout(BOUND, begun).await.expect("a line arrives").unwrap();
    let logs = node.containerd.path("pod-logs");
    let all = || {
        let mut found = Vec::new();
        files(&logs, &mut found);
        found
    };
    let before = all().len();
    wait_until("the log was rotated three times", BOUND, || async {
        let found = all();
        if found.len() >= before + 3 { Ok(()) } else { Err(format!("{found:?}\n{}", node.log())) }
    })
    .await;
    let is_compressed = |path: &PathBuf| path.extension().is_some_and(|it| it == "gz");
    assert!(all().iter().any(is_compressed), "{:?}", all());
    fs::write(shared.join("stop"), "").unwrap();
    let lines = tokio::time::timeout(BOUND, reading).await.expect("the last line arrives").unwrap();
    assert!(lines.len() >= 300, "{} lines", lines.len());
    let first: usize = lines[0].parse().unwrap();
    let wrong = lines.iter().enumerate().find(|(at, line)| **line != (first + at).to_string());
    assert_eq!(wrong, None, "of {} from {first}", lines.len());
}
