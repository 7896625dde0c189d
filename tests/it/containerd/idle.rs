//! What a kubelet takes that has nothing to do: memory and processor time with 20 pods on
//! containerd.
//!
//! For figures of a release build over a longer time:
//! `FERROKUBE_BINARY=target/release/ferrokube FERROKUBE_IDLE_SECONDS=60 cargo test --test it
//! containerd::idle -- --nocapture`

use super::node::{KubeletProgram, NODE, NodeUnderTest, PODS};
use super::pods::WAIT;
use crate::FERROKUBE;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, Instant};

const COUNT: usize = 20;
/// Measured time, unless `FERROKUBE_IDLE_SECONDS` says otherwise.
const SECONDS: u64 = 10;
/// Time after the last pod's start, in which its status is written, caches are filled, and unused
/// code is unmapped.
const SETTLING: Duration = Duration::from_secs(12);
/// Limit of memory: of a release build all that is resident, of a debug build, whose code is large,
/// without pages of the executable.
const MAX_BYTES: u64 = 25 << 20;
/// Limit of processor time of a release build: part of a core.
const MAX_SHARE: f64 = 0.005;
/// Unit of times in `/proc/PID/stat`, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A value of `/proc/PID/status`, in bytes.
fn memory(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Processor time of a process in seconds.
fn used(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name, which may have blanks.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_kubelet_with_twenty_pods_takes_little() {
    let given = std::env::var_os("FERROKUBE_BINARY");
    let is_release = given.is_some();
    let binary = given.map_or_else(|| FERROKUBE.into(), Into::into);
    let program = KubeletProgram { binary, log_level: "info", settings: json!({}) };
    let Some(node) = NodeUnderTest::run(program).await else { return };
    for number in 0..COUNT {
        let spec = json!({"nodeName": NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": [node.busybox("main", WAIT)]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("p{number}")}, "spec": spec});
        node.create(PODS, &pod).await;
    }
    let runs = |pod: &Value| pod["status"]["phase"] == "Running";
    for number in 0..COUNT {
        node.until(&format!("p{number}"), "it runs", runs).await;
    }
    tokio::time::sleep(SETTLING).await;
    let seconds = std::env::var("FERROKUBE_IDLE_SECONDS").ok().and_then(|text| text.parse().ok());
    let (before, begun) = (used(node.pid()), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(SECONDS))).await;
    let share = (used(node.pid()) - before) / begun.elapsed().as_secs_f64();
    let [resident, own] = ["VmRSS", "RssAnon"].map(|name| memory(node.pid(), name));
    eprintln!(
        "kubelet with {COUNT} pods: {:.1} MB resident, {:.1} of them its own, {:.2} % of a core",
        resident as f64 / 1e6,
        own as f64 / 1e6,
        share * 100.0
    );
    // A debug build takes about ten times the time.
    let max_share = if is_release { MAX_SHARE } else { 20.0 * MAX_SHARE };
    assert!(share <= max_share, "{share} of a core");
    let bytes = if is_release { resident } else { own };
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
}
