//! Many nodes against one API server:
//! `cargo bench -p ferrokube-kubelet --bench nodes -- [--nodes N] [--pods N] [--seconds N]`.
//!
//! Each node is a kubelet as it is, on a runtime in memory: it registers, renews its lease, watches
//! its pods and services, and writes statuses. All are in this process; the server is another.
//! Prints what the server takes of processor and memory, and what another client's creates take
//! meanwhile, first while pods start, then at rest. `FERROKUBE_BINARY` selects another executable.
#![allow(clippy::unwrap_used, reason = "a measurement that fails should say why")]

use ferrokube_client::Connection;
use ferrokube_cri::Runtime;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_images::{ImageManager, PullMetrics};
use ferrokube_kubelet::{
    EventSink, FigureSource, Kubelet, KubeletConfig, KubeletConfigFile, KubeletPaths, NodeApi,
    NodeFigures, NodeIdentity, ResourceFigure,
};
use ferrokube_testkit::{Client, Cluster, Launch, built_binary};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Nodes that share connections: as many as nodes would be more than a process has files.
const NODES_PER_CONNECTION: usize = 10;
/// Pods that are created at a time.
const CREATORS: usize = 16;
/// Pause between two creates of the other client.
const PROBE_PAUSE: Duration = Duration::from_millis(20);
/// Unit of CPU times in `/proc/PID/stat`, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
const CONFIG: &[u8] = b"{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
    registryPullQPS: 0, serializeImagePulls: false}";

/// A machine that has enough of everything.
struct Plenty;

impl FigureSource for Plenty {
    fn read(&self, _: &Path, _: Option<&Path>) -> NodeFigures {
        let enough = Some(ResourceFigure { capacity: 1 << 40, available: 1 << 39 });
        NodeFigures { memory: enough, node_disk: enough, ..NodeFigures::default() }
    }
}

struct BenchSize {
    nodes: usize,
    pods: usize,
    seconds: u64,
}

impl BenchSize {
    fn given() -> Self {
        let arguments: Vec<String> = std::env::args().collect();
        let of = |flag: &str, default: usize| {
            let at = arguments.iter().position(|word| word == flag);
            at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
        };
        let seconds = u64::try_from(of("--seconds", 60)).unwrap();
        Self { nodes: of("--nodes", 5_000), pods: of("--pods", 30_000), seconds }
    }
}

/// The nodes have threads of their own, so that the other client waits for the server only.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let size = BenchSize::given();
    let binary = built_binary().unwrap();
    let server = Launch::new(binary).flag("--profile=kubernetes").start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nodes = Builder::new_multi_thread().enable_all().build().unwrap();
    let begun = Instant::now();
    nodes.spawn(run_nodes(size.nodes, server.kubeconfig(), folder.path().to_owned()));
    until_listed(&server, "/api/v1/nodes", size.nodes).await;
    println!("{} nodes registered in {:.1} s", size.nodes, begun.elapsed().as_secs_f64());

    let starting = measure(&server, create_pods(&server, &size)).await;
    print(&format!("{} pods created and started", size.pods), &starting);
    let at_rest = measure(&server, tokio::time::sleep(Duration::from_secs(size.seconds))).await;
    print("at rest", &at_rest);
    nodes.shutdown_background();
}

/// Never returns.
async fn run_nodes(count: usize, kubeconfig: PathBuf, folder: PathBuf) {
    let mut kubelets = JoinSet::new();
    let mut connection = None;
    for number in 0..count {
        if number % NODES_PER_CONNECTION == 0 {
            connection = Some(Connection::from_kubeconfig(&kubeconfig).await.unwrap());
        }
        let client = connection.as_ref().unwrap().client().unwrap();
        kubelets.spawn(kubelet(&name(number), client, &folder).run());
    }
    kubelets.join_all().await;
}

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

fn kubelet(name: &str, client: kube::Client, folder: &Path) -> Kubelet {
    let config: KubeletConfig =
        KubeletConfigFile::parse(CONFIG).unwrap().settings.finish().unwrap();
    let runtime = Runtime::new(Arc::new(FakeRuntime::unrecorded()));
    let (sink, queue) = EventSink::new();
    let sink = Arc::new(sink);
    let events = Arc::clone(&sink) as Arc<_>;
    let images =
        ImageManager::new(runtime.clone(), config.pulls, events, PullMetrics::default().into());
    let own = folder.join(name);
    let paths = KubeletPaths { root: own.join("root"), logs: own.join("logs") };
    let identity = NodeIdentity {
        name: name.to_owned(),
        host_name: name.to_owned(),
        addresses: vec!["127.0.0.1".parse().unwrap()],
        server_port: None,
        version: "v1.36.0".to_owned(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        is_registered: true,
        max_pods: config.max_pods,
        status_interval: config.node_status_update_frequency,
        report_interval: config.node_status_report_frequency,
        lease_duration: config.node_lease_duration,
    };
    Kubelet::new(name, &config, runtime, images, paths)
        .events(sink)
        .figures(Arc::new(Plenty))
        .addresses(&identity.addresses.clone())
        .api(NodeApi::new(client, identity, queue))
}

/// Waits until a list has this many objects.
async fn until_listed(server: &Cluster, path: &str, count: usize) {
    let admin = server.admin().unwrap();
    let path = format!("{path}{}limit=1", if path.contains('?') { '&' } else { '?' });
    loop {
        let response = admin.get(&path).await.unwrap();
        let list = response.body;
        let items = list["items"].as_array().map_or(0, Vec::len);
        let rest = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        // A refused list has no items either.
        if response.status == 200 && items + usize::try_from(rest).unwrap() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Creates the pods, and waits until none of them is pending.
async fn create_pods(server: &Cluster, size: &BenchSize) {
    let mut creators = JoinSet::new();
    let (pods, nodes) = (size.pods, size.nodes);
    for creator in 0..CREATORS {
        let admin = server.admin().unwrap();
        creators.spawn(async move {
            for number in (creator..pods).step_by(CREATORS) {
                let pod = json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": format!("pod-{number:06}")},
                    "spec": {"nodeName": name(number % nodes), "automountServiceAccountToken": false,
                        "containers": [{"name": "main", "image": "r.io/main:v1"}]}});
                while admin.post("/api/v1/namespaces/default/pods", &pod).await.unwrap().status != 201 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
    creators.join_all().await;
    until_listed(server, "/api/v1/namespaces/default/pods?fieldSelector=status.phase!=Running", 0)
        .await;
}

struct ServerCost {
    took: Duration,
    cpu_seconds: f64,
    resident_kib: u64,
    /// Durations of the other client's creates, shortest first.
    creates: Vec<Duration>,
    /// Creates that were not answered with 201.
    failures: usize,
}

/// The server's cost during an activity.
async fn measure(server: &Cluster, what: impl Future<Output = ()>) -> ServerCost {
    let (begun, before) = (Instant::now(), cpu_seconds(server));
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let probing = tokio::spawn(probe(server.admin().unwrap(), sender));
    what.await;
    probing.abort();
    let (took, cpu_seconds) = (begun.elapsed(), cpu_seconds(server) - before);
    let (mut creates, mut failures) = (Vec::new(), 0);
    while let Some(create) = receiver.recv().await {
        match create {
            Some(duration) => creates.push(duration),
            None => failures += 1,
        }
    }
    creates.sort();
    ServerCost { took, cpu_seconds, resident_kib: resident_kib(server), creates, failures }
}

/// Creates config maps in sequence. Sends the duration of each, `None` if it failed.
async fn probe(admin: Client, creates: mpsc::UnboundedSender<Option<Duration>>) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "probe-"}, "data": {"key": "x".repeat(1000)}});
    loop {
        let begun = Instant::now();
        let created = admin.post("/api/v1/namespaces/default/configmaps", &map).await;
        let is_created = created.is_ok_and(|response| response.status == 201);
        let _ = creates.send(is_created.then(|| begun.elapsed()));
        tokio::time::sleep(PROBE_PAUSE).await;
    }
}

fn cpu_seconds(server: &Cluster) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

fn resident_kib(server: &Cluster) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0)
}

fn print(what: &str, cost: &ServerCost) {
    let at = |share: usize| {
        let last = cost.creates.len().saturating_sub(1);
        let create = cost.creates.get(last * share / 100).copied().unwrap_or_default();
        create.as_secs_f64() * 1000.0
    };
    let seconds = cost.took.as_secs_f64();
    println!(
        "{what}: {seconds:.1} s, server {:.1} % of a core, {} MiB; {} creates, {} failed, p50 {:.1} ms, p99 {:.1} ms",
        100.0 * cost.cpu_seconds / seconds,
        cost.resident_kib >> 10,
        cost.creates.len(),
        cost.failures,
        at(50),
        at(99),
    );
}
