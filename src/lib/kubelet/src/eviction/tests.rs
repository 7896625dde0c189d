//! Pods of an API server on a node that gets short of something: a runtime in memory, figures of
//! the test.

use super::figures::FigureSource;
use super::*;
use crate::api::ApiPods;
use crate::fixture;
use bytes::Bytes;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{
    RunPodSandboxRequest, Runtime, RuntimeStatusResponse, Transport, TransportFuture, encoded,
};
use ferrokube_images::{PodIdentity, PullEvent, PullEvents};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use serde_json::json;
use std::path::Path;
use std::{fs, io};
use tokio::task::JoinHandle;

/// Figures that a test sets. Images take room of a disk of 100 MiB.
struct TestFigures {
    memory: Mutex<u64>,
    runtime: Arc<FakeRuntime>,
}

impl FigureSource for TestFigures {
    fn read(&self, _: &Path, _: Option<&Path>) -> NodeFigures {
        let memory = ResourceFigure { capacity: 8 << 30, available: *self.memory.lock() };
        let images = self.runtime.images().len() as u64 * (20 << 20);
        let disk = ResourceFigure {
            capacity: 100 << 20,
            available: (100_u64 << 20).saturating_sub(images),
        };
        NodeFigures { memory: Some(memory), node_disk: Some(disk), ..NodeFigures::default() }
    }
}

#[derive(Default)]
struct Reasons(Mutex<Vec<(String, &'static str)>>);

impl PullEvents for Reasons {
    fn report(&self, pod: &PodIdentity, event: PullEvent) {
        self.0.lock().push((pod.name.clone(), event.reason));
    }
}

/// A runtime that names its sandbox image, which it does not pin.
struct WithSandboxImage(Arc<FakeRuntime>);

impl Transport for WithSandboxImage {
    fn call(&self, path: &'static str, request: Bytes) -> TransportFuture<'_> {
        let answered = self.0.call(path, request);
        if path != ferrokube_cri::path::status {
            return answered;
        }
        let info = BTreeMap::from([(
            "config".to_owned(),
            json!({"containerd": {}, "sandboxImage": "r.io/pause:3"}).to_string(),
        )]);
        let named = RuntimeStatusResponse { info, ..RuntimeStatusResponse::default() };
        // Fields of two messages in a row are one message.
        Box::pin(async move { Ok([&answered.await?[..], &encoded(&named)].concat().into()) })
    }
}

struct ShortNode {
    runtime: Arc<FakeRuntime>,
    figures: Arc<TestFigures>,
    pods: Arc<ApiPods>,
    node: Arc<PodNode>,
    events: Arc<Reasons>,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for ShortNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ShortNode {
    fn new(pods: Vec<Pod>) -> Self {
        Self::with("", pods)
    }

    /// With these fields of its configuration.
    fn with(fields: &str, pods: Vec<Pod>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Arc::<FakeRuntime>::default();
        let client = Runtime::new(Arc::new(WithSandboxImage(Arc::clone(&runtime))));
        let events = Arc::<Reasons>::default();
        let figures =
            Arc::new(TestFigures { memory: Mutex::new(4 << 30), runtime: Arc::clone(&runtime) });
        let kubelet =
            fixture::kubelet(client, fields, folder.path(), Arc::clone(&events) as Arc<_>)
                .figures(Arc::clone(&figures) as Arc<_>);
        let api = Arc::<ApiPods>::default();
        api.set(pods);
        let (node, _, loops) = kubelet.loops(Some(Arc::clone(&api)));
        let task = tokio::spawn(loops);
        Self { runtime, figures, pods: api, node, events, task, _folder: folder }
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn status(&self, uid: &str) -> PodStatus {
        self.node.statuses.of(uid).unwrap_or_default()
    }

    fn is_evicted(&self, uid: &str) -> bool {
        let status = self.status(uid);
        let phase = (status.phase.as_deref(), status.reason.as_deref());
        phase == (Some("Failed"), Some("Evicted"))
    }

    fn runs(&self, container: &str) -> bool {
        !self.runtime.running(container).is_empty()
    }
}

/// With a container of its own name; requests of memory as given.
fn pod(name: &str, request: Option<&str>) -> Pod {
    let resources = request.map_or(json!({}), |memory| json!({"requests": {"memory": memory}}));
    let container =
        json!({"name": name, "image": format!("r.io/{name}:v1"), "resources": resources});
    let metadata = json!({"name": name, "namespace": "default", "uid": name});
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    serde_json::from_value(pod).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_short_of_memory_evicts_one_pod_and_lets_none_in() {
    let (modest, greedy) = (pod("modest", Some("1Gi")), pod("greedy", Some("1Mi")));
    let node = ShortNode::new(vec![modest.clone(), greedy]);
    node.until(|node| node.runs("modest") && node.runs("greedy")).await;
    node.runtime.uses("modest", 1, 900 << 20);
    node.runtime.uses("greedy", 1, 64 << 20);
    *node.figures.memory.lock() = 99 << 20;
    node.until(|node| node.is_evicted("greedy")).await;
    *node.figures.memory.lock() = 4 << 30;
    assert_eq!(
        node.status("greedy").message.as_deref(),
        Some(
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 99Mi. \
             Container greedy was using 64Mi, request is 1Mi, has larger consumption of memory. "
        )
    );
    assert!(!node.runs("greedy") && node.runs("modest"));
    let conditions = node.status("greedy").conditions.unwrap_or_default();
    assert!(conditions.iter().any(|it| it.type_ == "DisruptionTarget" && it.status == "True"));
    assert!(node.events.0.lock().contains(&("greedy".to_owned(), "Evicted")));
    assert!(node.node.pressure.lock().memory, "for a while");
    // The API server has the previous pods, and new ones.
    let mut failed = pod("greedy", None);
    failed.status = Some(node.status("greedy"));
    let (best_effort, important) = (pod("late", None), pod("requesting", Some("1Mi")));
    node.pods.set([modest.clone(), failed.clone(), best_effort, important]);
    node.until(|node| node.is_evicted("late") && node.runs("requesting")).await;
    let message = node.status("late").message.unwrap_or_default();
    assert_eq!(message, "Pod was rejected: The node had condition: [MemoryPressure]. ");
    tokio::time::sleep(Duration::from_secs(320)).await;
    assert!(!node.node.pressure.lock().memory);
    node.pods.set([modest, failed, pod("later", None)]);
    node.until(|node| node.runs("later")).await;
    assert!(!node.runs("greedy") && node.runs("modest"), "it was one, and does not come back");
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_evicts_after_its_grace_period_and_until_enough_is_reclaimed() {
    let fields = ", evictionSoft: {memory.available: 500Mi}, \
        evictionSoftGracePeriod: {memory.available: 2m}, \
        evictionMinimumReclaim: {memory.available: 100Mi}, evictionMaxPodGracePeriod: 7";
    let node = ShortNode::with(fields, vec![pod("a", None), pod("b", None)]);
    node.until(|node| node.runs("a") && node.runs("b")).await;
    let available = |mebibytes: u64| *node.figures.memory.lock() = mebibytes << 20;
    let both_run = || node.runs("a") && node.runs("b");
    available(400);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(node.node.pressure.lock().memory, "the condition does not wait");
    available(700);
    tokio::time::sleep(Duration::from_secs(60)).await;
    available(400);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(both_run(), "it begins again");
    node.until(|_| !both_run()).await;
    // Above the threshold, but not by enough.
    available(550);
    node.until(|node| node.is_evicted("a") && node.is_evicted("b")).await;
    let message = node.status("a").message.unwrap_or_default();
    assert!(message.contains("Threshold quantity: 500Mi"), "{message}");
    assert_eq!(
        node.node.ends.get("a").map(|end| matches!(end, PodEnd::Failed { grace: 7, .. })),
        Some(true)
    );
    available(600);
    tokio::time::sleep(Duration::from_secs(20)).await;
    node.pods.set([pod("c", Some("1Mi"))]);
    node.until(|node| node.runs("c")).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(node.runs("c"));
}

#[tokio::test(start_paused = true)]
async fn fault_58_a_full_disk_costs_unused_images_before_pods() {
    let node = ShortNode::new(vec![pod("a", None)]);
    node.until(|node| node.runs("a")).await;
    for image in ["r.io/pause:3", "r.io/old:v1"] {
        node.runtime.add_image(image);
    }
    // Old enough to be removed.
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert_eq!(node.runtime.images().len(), 3, "60 % is not full");
    for image in ["r.io/new:v1", "r.io/newer:v1"] {
        node.runtime.add_image(image);
    }
    node.until(|node| node.runtime.images().len() < 5).await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    let images = node.runtime.images();
    assert!(images.contains(&"r.io/a:v1".to_owned()), "in use: {images:?}");
    assert!(images.contains(&"r.io/pause:3".to_owned()), "of sandboxes: {images:?}");
    assert!(node.runs("a") && !node.node.pressure.lock().disk);
    assert!(!node.events.0.lock().iter().any(|(_, reason)| *reason == "Evicted"));
}

#[tokio::test(start_paused = true)]
async fn fault_58_a_pod_that_fills_its_volume_is_evicted_and_no_other() {
    let with_volume = |name: &str| {
        let mut made = pod(name, None);
        let volume = json!([{"name": "v", "emptyDir": {"sizeLimit": "64Ki"}}]);
        made.spec.as_mut().unwrap().volumes = serde_json::from_value(volume).unwrap();
        made
    };
    let pods = ["full", "small", "deep"].map(with_volume);
    let node = ShortNode::new(pods.into());
    node.until(|node| ["full", "small", "deep"].iter().all(|name| node.runs(name))).await;
    let write = |name: &str, kibibytes: usize| {
        let volume = empty_directory(&node.node.paths.root, name, "v");
        let mut file = fs::File::create(volume.join("data")).unwrap();
        io::Write::write_all(&mut file, &vec![1; kibibytes << 10]).unwrap();
        // Some file systems count blocks only then.
        file.sync_all().unwrap();
    };
    write("small", 32);
    write("full", 128);
    node.until(|node| node.is_evicted("full")).await;
    let message = node.status("full").message.unwrap_or_default();
    assert_eq!(message, "Usage of EmptyDir volume \"v\" exceeds the limit \"64Ki\". ");
    // Deeper than is counted: no way around a limit.
    let deep = empty_directory(&node.node.paths.root, "deep", "v").join("d/".repeat(200));
    fs::create_dir_all(deep).unwrap();
    node.until(|node| node.is_evicted("deep")).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(node.runs("small") && !node.runs("full"));
    assert!(!node.node.pressure.lock().disk, "the node has room");
}

#[tokio::test(start_paused = true)]
async fn a_pod_past_its_active_deadline_ends_as_failed() {
    let started_long_ago = |name: &str, deadline: Option<i64>| {
        let mut made = pod(name, None);
        made.spec.as_mut().unwrap().active_deadline_seconds = deadline;
        let status = json!({"startTime": "2020-01-01T00:00:00Z"});
        made.status = serde_json::from_value(status).unwrap();
        made
    };
    let mut fresh = started_long_ago("fresh", Some(1000));
    fresh.status = None;
    let node = ShortNode::new(vec![fresh.clone(), started_long_ago("old", None)]);
    node.until(|node| node.runs("fresh") && node.runs("old")).await;
    let shorter = started_long_ago("old", Some(5));
    node.pods.set([fresh.clone(), shorter.clone(), started_long_ago("late", Some(5))]);
    let is_over = |node: &ShortNode, name: &str| {
        let status = node.status(name);
        let phase = (status.phase.as_deref(), status.reason.as_deref());
        phase == (Some("Failed"), Some("DeadlineExceeded"))
    };
    node.until(|node| is_over(node, "old") && is_over(node, "late")).await;
    let status = node.status("old");
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(status.message.as_deref(), Some(message));
    assert_eq!(status.start_time.unwrap().0.to_string(), "2020-01-01T00:00:00Z");
    assert!(status.conditions.unwrap().iter().all(|it| it.type_ != "DisruptionTarget"));
    node.until(|node| !node.runs("old")).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(node.runs("fresh") && !node.runs("old") && !node.runs("late"));
    let events = node.events.0.lock().clone();
    let said = events.iter().filter(|(_, reason)| *reason == "DeadlineExceeded");
    assert_eq!(said.count(), 2, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_pod_reaches_its_volumes_and_its_containers() {
    let with = |label: &str, image: &str| {
        let mut made = pod("a", None);
        made.metadata.labels = Some(BTreeMap::from([("l".to_owned(), label.to_owned())]));
        let spec = made.spec.as_mut().unwrap();
        spec.containers[0].image = Some(image.to_owned());
        let volume = json!([{"name": "v", "downwardAPI": {"items":
            [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]);
        spec.volumes = serde_json::from_value(volume).unwrap();
        made
    };
    let node = ShortNode::new(vec![with("1", "r.io/a:v1")]);
    node.until(|node| node.runs("a")).await;
    let folder = assemble::pod_directory(&node.node.paths.root, "a");
    let file = folder.join("volumes/kubernetes.io~downward-api/v/labels");
    assert_eq!(fs::read_to_string(&file).unwrap(), "l=\"1\"");
    let first = node.runtime.running("a").remove(0).report.id;
    let begun = Instant::now();
    node.pods.set([with("2", "r.io/a:v1")]);
    node.until(|_| fs::read_to_string(&file).is_ok_and(|text| text == "l=\"2\"")).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "at once, not with the next look");
    assert_eq!(node.runtime.running("a")[0].report.id, first);

    node.pods.set([with("2", "r.io/a:v2")]);
    let image = |node: &ShortNode| {
        let running = node.runtime.running("a").pop()?;
        Some(running.config.image?.user_specified_image)
    };
    node.until(|node| image(node).as_deref() == Some("r.io/a:v2")).await;
    assert_eq!(node.runtime.sandboxes().len(), 1);
    assert_eq!(node.runtime.running("a")[0].config.metadata.as_ref().unwrap().attempt, 1);
    assert!(node.events.0.lock().contains(&("a".to_owned(), "Killing")));
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_joins_a_pod_that_runs_once() {
    let plain = pod("a", None);
    let node = ShortNode::new(vec![plain.clone()]);
    node.until(|node| node.runs("a")).await;
    let first = node.runtime.running("a").remove(0).report.id;
    let mut debugged = plain;
    let added = json!([{"name": "look", "image": "r.io/look:v1", "targetContainerName": "a"}]);
    debugged.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(added).unwrap();
    node.pods.set([debugged]);
    node.until(|node| node.runs("look")).await;
    let look = node.runtime.running("look").remove(0);
    let linux = look.config.linux.unwrap_or_default();
    let options = linux.security_context.and_then(|it| it.namespace_options).unwrap();
    assert_eq!((options.pid, &options.target_id), (3, &first), "it sees its target's processes");
    let state = |node: &ShortNode| node.status("a").ephemeral_container_statuses?.remove(0).state;
    node.until(|node| state(node).is_some_and(|state| state.running.is_some())).await;
    node.runtime.exit(&look.report.id, 1);
    node.until(|node| state(node).is_some_and(|state| state.terminated.is_some())).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!node.runs("look") && node.runtime.running("a")[0].report.id == first);
    assert_eq!(node.status("a").phase.as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn a_port_of_the_node_is_of_one_pod_at_a_time() {
    let with_port = |name: &str| {
        let mut made = pod(name, None);
        let port = json!([{"containerPort": 80, "hostPort": 8080}]);
        made.spec.as_mut().unwrap().containers[0].ports = serde_json::from_value(port).unwrap();
        made
    };
    let (first, second) = (with_port("first"), with_port("second"));
    let node = ShortNode::new(vec![first.clone()]);
    node.until(|node| node.runs("first")).await;
    assert_eq!(node.runtime.sandboxes().len(), 1);
    node.pods.set([first, second]);
    let refused = |node: &ShortNode| node.status("second").reason.as_deref() == Some("NodePorts");
    node.until(refused).await;
    assert_eq!(
        node.status("second").message.as_deref(),
        Some(
            "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the \
             requested pod ports"
        )
    );
    assert!(node.runs("first") && !node.runs("second"));
    // Free again when the first has gone.
    node.pods.set([with_port("third")]);
    node.until(|node| node.runs("third")).await;
}

#[tokio::test(start_paused = true)]
async fn fault_62_a_pod_that_no_kubelet_accepts_does_not_run_on() {
    let accepted = pod("a", None);
    let mut changed = accepted.clone();
    changed.spec.as_mut().unwrap().host_users = Some(false);
    let node = ShortNode::new(vec![accepted.clone()]);
    node.until(|node| node.runs("a")).await;
    node.pods.set([changed.clone()]);
    let told = ("a".to_owned(), "NotImplemented");
    node.until(|node| node.events.0.lock().contains(&told)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(node.runs("a"), "it goes on as it was accepted");
    assert_eq!(node.status("a").phase.as_deref(), Some("Running"));
    assert_eq!(node.events.0.lock().iter().filter(|event| **event == told).count(), 1);

    // The next kubelet finds it in the runtime, and cannot accept it.
    let node = ShortNode::new(vec![changed]);
    let config = assemble::sandbox(&NodePod::from_api(&accepted).unwrap(), Path::new("/unused"), 0);
    let request = RunPodSandboxRequest { config: Some(config), ..RunPodSandboxRequest::default() };
    Runtime::new(Arc::clone(&node.runtime) as Arc<_>).run_pod_sandbox(request).await.unwrap();
    node.until(|node| node.runtime.sandboxes().is_empty()).await;
    assert_eq!(node.status("a").phase.as_deref(), Some("Failed"));
}
