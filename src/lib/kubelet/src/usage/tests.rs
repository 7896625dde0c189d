//! Summaries and metrics of a runtime in memory.

use super::pods::{DiskSamples, RuntimeLists};
use super::*;
use crate::assemble::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{
    CallCode, ContainerConfig, ContainerMetadata, CpuUsage, CreateContainerRequest,
    LinuxPodSandboxStats, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes,
    PodSandboxConfig, PodSandboxStats, ProcessUsage, RunPodSandboxRequest, StartContainerRequest,
    UInt64Value, path,
};
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A pod whose containers run.
async fn start(runtime: &Runtime, pod: &str, containers: &[&str]) -> String {
    let uid = format!("uid-{pod}");
    let config = PodSandboxConfig {
        labels: labels(&[(POD_NAME, pod), (POD_NAMESPACE, "default"), (POD_UID, &uid)]),
        ..PodSandboxConfig::default()
    };
    let config = Some(config);
    let request = RunPodSandboxRequest { config, ..RunPodSandboxRequest::default() };
    let sandbox = runtime.run_pod_sandbox(request).await.expect("a sandbox").pod_sandbox_id;
    for name in containers {
        let metadata = Some(ContainerMetadata { name: (*name).to_owned(), attempt: 0 });
        let labels = labels(&[(CONTAINER_NAME, name), (POD_UID, &uid)]);
        let config = ContainerConfig { metadata, labels, ..ContainerConfig::default() };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(config),
            ..CreateContainerRequest::default()
        };
        let container_id = runtime.create_container(request).await.expect("created").container_id;
        let started = runtime.start_container(StartContainerRequest { container_id }).await;
        started.expect("started");
    }
    sandbox
}

struct CollectorUnderTest {
    fake: Arc<FakeRuntime>,
    collector: Arc<UsageCollector>,
}

impl CollectorUnderTest {
    async fn new() -> Self {
        let fake = Arc::<FakeRuntime>::default();
        let runtime = Runtime::new(Arc::clone(&fake) as Arc<_>);
        start(&runtime, "web", &["main", "side"]).await;
        start(&runtime, "done", &["main"]).await;
        let done = fake.containers().pop().expect("the last one").report.id;
        fake.exit(&done, 0);
        fake.uses("main", 3_000_000_000, 1 << 20);
        fake.uses("side", 500_000_000, 1 << 10);
        let collector = Arc::new(UsageCollector::new(&runtime, "n1", "/".into()));
        Self { fake, collector }
    }

    async fn summary(&self) -> Value {
        let text = self.collector.summary(false).await.expect("a summary");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Outcomes of readers at the same time.
    async fn read(&self, readers: usize) -> Vec<Result<String, UsageError>> {
        join_all((0..readers).map(|_| self.collector.summary(false))).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_summary_has_kubelets_form() {
    let test = CollectorUnderTest::new().await;
    let summary = test.summary().await;
    let node = &summary["node"];
    assert_eq!(node["nodeName"], "n1");
    for path in [
        "/startTime",
        "/cpu/time",
        "/cpu/usageCoreNanoSeconds",
        "/memory/availableBytes",
        "/memory/usageBytes",
        "/memory/workingSetBytes",
        "/memory/rssBytes",
        "/fs/availableBytes",
        "/fs/capacityBytes",
        "/fs/usedBytes",
        "/fs/inodesFree",
        "/fs/inodes",
        "/fs/inodesUsed",
        "/runtime/imageFs/usedBytes",
        "/runtime/containerFs/usedBytes",
        "/swap/swapUsageBytes",
    ] {
        assert!(node.pointer(path).is_some_and(|value| !value.is_null()), "{path}: {node}");
    }
    let time = node["cpu"]["time"].as_str().expect("a time");
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    let pods = summary["pods"].as_array().expect("a list");
    assert_eq!(pods.len(), 1, "only that with containers that run: {summary}");
    let web = &pods[0];
    assert_eq!(web["podRef"], json!({"name": "web", "namespace": "default", "uid": "uid-web"}));
    assert_eq!(web["cpu"]["usageCoreNanoSeconds"], 3_500_000_000_u64);
    assert_eq!(web["memory"]["workingSetBytes"], (1 << 20) + (1 << 10));
    let names = ["main", "side"].map(Value::from);
    let seen = web["containers"].as_array().expect("a list").iter().map(|it| it["name"].clone());
    assert_eq!(seen.collect::<Vec<_>>(), names);
    assert_eq!(web["containers"][0]["cpu"]["usageCoreNanoSeconds"], 3_000_000_000_u64);
    assert!(web["containers"][0]["startTime"].is_string());
    assert_eq!(web["containers"][0].get("id"), None);
    let short = test.collector.summary(true).await.expect("a summary");
    let short: Value = serde_json::from_str(&short).expect("JSON");
    assert_eq!(short["node"].get("fs"), None);
    assert_eq!(short["pods"][0]["cpu"], web["cpu"]);
}

#[tokio::test(start_paused = true)]
async fn metrics_have_kubelets_names_and_a_failure_is_one_of_them() {
    let test = CollectorUnderTest::new().await;
    let text = test.collector.metrics().await;
    let of_pod = "{namespace=\"default\",pod=\"web\"} ";
    let main = "{container=\"main\",namespace=\"default\",pod=\"web\"} ";
    for start in [
        "# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time".to_owned(),
        "# TYPE node_cpu_usage_seconds_total counter".to_owned(),
        "# TYPE container_memory_working_set_bytes gauge".to_owned(),
        "node_cpu_usage_seconds_total ".to_owned(),
        "node_memory_working_set_bytes ".to_owned(),
        format!("container_cpu_usage_seconds_total{main}3 "),
        format!("container_memory_working_set_bytes{main}1048576 "),
        format!("container_start_time_seconds{main}"),
        format!("pod_cpu_usage_seconds_total{of_pod}3.5 "),
        format!("pod_memory_working_set_bytes{of_pod}1049600 "),
        "resource_scrape_error 0".to_owned(),
    ] {
        let count = text.lines().filter(|line| line.starts_with(&start)).count();
        assert_eq!(count, 1, "{start:?} in {text}");
    }
    tokio::time::advance(FRESH).await;
    test.fake.fail(path::list_container_stats, Some(CriError::new(CallCode::Unknown, "broken")));
    let text = test.collector.metrics().await;
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["resource_scrape_error 1"]);
    let why = test.collector.summary(false).await.expect_err("it is broken").to_string();
    assert!(why.starts_with("failed to list pod stats: failed to list all container"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn readers_at_the_same_time_cause_one_collection() {
    let test = CollectorUnderTest::new().await;
    let calls = || test.fake.count(path::list_container_stats);
    test.fake.hold(path::list_container_stats, true);
    let release = async {
        test.fake.until(|fake| fake.count(path::list_container_stats) > 0).await;
        tokio::time::sleep(COLLECTION_TIMEOUT / 2).await;
        test.fake.hold(path::list_container_stats, false);
    };
    let (outcomes, ()) = tokio::join!(test.read(50), release);
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(calls(), 1, "the others wait for its outcome");
    test.summary().await;
    assert_eq!(calls(), 1, "which counts for a moment");
    tokio::time::advance(FRESH).await;
    test.summary().await;
    assert_eq!(calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_hangs_is_called_once_for_all_readers() {
    let test = CollectorUnderTest::new().await;
    test.fake.hold(path::list_container_stats, true);
    let before = Instant::now();
    let outcomes = test.read(50).await;
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(before.elapsed().as_secs(), COLLECTION_TIMEOUT.as_secs(), "not one after another");
    assert_eq!(test.fake.count(path::list_container_stats), 1);
    // A reader that does not wait leaves its turn to the next.
    let short = tokio::time::timeout(FRESH, test.read(1)).await;
    assert!(short.expect("the failure counts for a moment")[0].is_err());
    tokio::time::advance(FRESH).await;
    let left = tokio::time::timeout(FRESH, test.read(1)).await;
    assert!(left.is_err(), "it hangs");
    test.fake.hold(path::list_container_stats, false);
    test.summary().await;
}

#[tokio::test]
async fn a_pods_own_numbers_are_the_runtimes_where_it_has_them() {
    let number = |value| Some(UInt64Value { value });
    let interface = NetworkInterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: number(7),
        ..NetworkInterfaceUsage::default()
    };
    let (timestamp, interfaces) = (5, Vec::new());
    let usage = LinuxPodSandboxStats {
        cpu: Some(CpuUsage { timestamp, usage_core_nano_seconds: number(9), ..Default::default() }),
        network: Some(NetworkUsage { timestamp, default_interface: Some(interface), interfaces }),
        process: Some(ProcessUsage { timestamp, process_count: number(3) }),
        ..LinuxPodSandboxStats::default()
    };
    let lists = async |sandbox_stats| {
        let runtime = Arc::<FakeRuntime>::default();
        let calls = Runtime::new(Arc::clone(&runtime) as Arc<_>);
        start(&calls, "web", &["main"]).await;
        let containers = calls.list_containers(ListContainersRequest::default()).await;
        let stats = calls.list_container_stats(ListContainerStatsRequest::default()).await;
        RuntimeLists {
            sandboxes: runtime.sandboxes(),
            containers: containers.expect("a list").containers,
            container_stats: stats.expect("a list").stats,
            sandbox_stats,
        }
    };
    let attributes = |id: &str| PodSandboxAttributes { id: id.to_owned(), ..Default::default() };
    let sandbox = lists(Vec::new()).await.sandboxes.remove(0).id;
    let own =
        PodSandboxStats { attributes: Some(attributes(&sandbox)), linux: Some(usage.clone()) };
    let other = PodSandboxStats { attributes: Some(attributes("other")), linux: Some(usage) };
    let shown = async |stats| {
        let pods = lists(stats).await.pods(&mut DiskSamples::new(1));
        serde_json::to_value(&pods).expect("JSON")[0].clone()
    };
    let pod = shown(vec![own]).await;
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 9);
    assert_eq!(
        pod["network"],
        json!({"time": "1970-01-01T00:00:00Z", "name": "eth0", "rxBytes": 7})
    );
    assert_eq!(pod["process_stats"], json!({"process_count": 3}));
    let pod = shown(vec![other]).await;
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 0, "the sum of its containers");
    assert_eq!(pod.get("network"), None);
}
