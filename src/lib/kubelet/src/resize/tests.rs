//! Pods of an API server whose resources change, a runtime in memory.

use super::*;
use crate::api::ApiPods;
use crate::eviction::figures::{FigureSource, NodeFigures, ResourceFigure};
use crate::fixture;
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{CallCode, Runtime, path};
use ferrokube_images::{PodIdentity, PullEvent, PullEvents};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// 8 GiB, of which nothing is used.
struct IdleMachine;

impl FigureSource for IdleMachine {
    fn read(&self, _: &Path, _: Option<&Path>) -> NodeFigures {
        let memory = Some(ResourceFigure { capacity: 8 << 30, available: 8 << 30 });
        NodeFigures { memory, ..NodeFigures::default() }
    }
}

#[derive(Default)]
struct ResizeReasons(Mutex<Vec<&'static str>>);

impl PullEvents for ResizeReasons {
    fn report(&self, _: &PodIdentity, event: PullEvent) {
        self.0.lock().push(event.reason);
    }
}

struct ResizeFixture {
    runtime: Arc<FakeRuntime>,
    node: Arc<PodNode>,
    pods: Arc<ApiPods>,
    events: Arc<ResizeReasons>,
    task: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for ResizeFixture {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ResizeFixture {
    /// A kubelet on a runtime, which may have pods of the one before.
    fn start(runtime: &Arc<FakeRuntime>, pods: Vec<Pod>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let client = Runtime::new(Arc::clone(runtime) as Arc<_>);
        let events = Arc::<ResizeReasons>::default();
        let fields = ", imageGCHighThresholdPercent: 100";
        let kubelet =
            fixture::kubelet(client, fields, folder.path(), Arc::clone(&events) as Arc<_>)
                .figures(Arc::new(IdleMachine));
        let api = Arc::<ApiPods>::default();
        api.set(pods);
        let (node, _, loops) = kubelet.loops(Some(Arc::clone(&api)));
        let task = tokio::spawn(loops);
        let runtime = Arc::clone(runtime);
        Self { runtime, node, pods: api, events, task, _folder: folder }
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Memory limit of the container that runs.
    fn limit(&self) -> Option<i64> {
        let linux = self.runtime.running("c").pop()?.config.linux?;
        Some(linux.resources?.memory_limit_in_bytes)
    }

    fn status(&self) -> Option<ContainerStatus> {
        self.node.statuses.of("u")?.container_statuses?.pop()
    }

    fn condition(&self, kind: &str) -> Option<PodCondition> {
        let status = self.node.statuses.of("u")?;
        status.conditions?.into_iter().find(|it| it.type_ == kind)
    }

    fn has_event(&self, reason: &str) -> bool {
        self.events.0.lock().contains(&reason)
    }
}

/// A pod with this memory for its container.
fn pod(memory: &str, policy: &str) -> Pod {
    let resources = json!({"limits": {"memory": memory}, "requests": {"memory": memory}});
    let pod = json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "r.io/c:v1", "resources": resources,
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]},
    });
    serde_json::from_value(pod).unwrap()
}

/// The pod by another name, which is its container's, too.
fn named(name: &str, mut pod: Pod) -> Pod {
    (pod.metadata.name, pod.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
    pod.spec.as_mut().unwrap().containers[0].name = name.to_owned();
    pod
}

fn memory(status: &ContainerStatus) -> Value {
    json!([status.resources.as_ref().unwrap().limits, status.allocated_resources])
}

#[tokio::test(start_paused = true)]
async fn a_running_container_gets_other_resources_without_a_restart() {
    let runtime = Arc::<FakeRuntime>::default();
    let node = ResizeFixture::start(&runtime, vec![pod("1Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(1 << 30)).await;
    node.until(|node| node.status().is_some_and(|status| status.resources.is_some())).await;
    assert_eq!(memory(&node.status().unwrap()), json!([{"memory": "1Gi"}, {"memory": "1Gi"}]));
    let first = runtime.running("c")[0].report.id.clone();
    node.pods.set([pod("2Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(2 << 30)).await;
    node.until(|node| memory(&node.status().unwrap())[0]["memory"] == "2Gi").await;
    assert_eq!(runtime.running("c")[0].report.id, first);
    assert!(node.has_event("ResizeCompleted"));
    let calls = runtime.count(path::update_container_resources);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((calls, runtime.count(path::update_container_resources)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_limit_below_the_usage_waits_until_less_is_used() {
    let runtime = Arc::<FakeRuntime>::default();
    let node = ResizeFixture::start(&runtime, vec![pod("2Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(2 << 30)).await;
    runtime.uses("c", 1, 1 << 30);
    node.pods.set([pod("512Mi", "NotRequired")]);
    node.until(|node| node.condition("PodResizeInProgress").is_some()).await;
    let condition = node.condition("PodResizeInProgress").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("True", Some("Error")));
    assert!(condition.message.unwrap().contains("below its current usage (1073741824)"));
    assert_eq!(node.limit(), Some(2 << 30));
    assert_eq!(memory(&node.status().unwrap())[0]["memory"], "2Gi", "what it has");
    runtime.uses("c", 1, 1 << 20);
    node.until(|node| node.limit() == Some(512 << 20)).await;
    node.until(|node| node.condition("PodResizeInProgress").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_node_has_not_is_not_given() {
    let runtime = Arc::<FakeRuntime>::default();
    let node = ResizeFixture::start(&runtime, vec![pod("1Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(1 << 30)).await;
    let reason = |node: &ResizeFixture| node.condition("PodResizePending")?.reason;
    node.pods.set([pod("9Gi", "NotRequired")]);
    node.until(|node| reason(node).as_deref() == Some("Infeasible")).await;
    let message = node.condition("PodResizePending").unwrap().message.unwrap();
    assert!(message.starts_with("Node didn't have enough capacity: memory, requested: 9663676416"));
    let other = named("a", pod("4Gi", "NotRequired"));
    node.pods.set([pod("1Gi", "NotRequired"), other.clone()]);
    node.until(|node| !node.runtime.running("a").is_empty()).await;
    node.until(|node| node.condition("PodResizePending").is_none()).await;
    node.pods.set([pod("5Gi", "NotRequired"), other]);
    node.until(|node| reason(node).as_deref() == Some("Deferred")).await;
    assert_eq!(node.limit(), Some(1 << 30));
    // The other one goes.
    node.pods.set([pod("5Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(5 << 30)).await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_may_want_a_restart() {
    let runtime = Arc::<FakeRuntime>::default();
    let node = ResizeFixture::start(&runtime, vec![pod("1Gi", "RestartContainer")]);
    node.until(|node| node.limit() == Some(1 << 30)).await;
    node.pods.set([pod("2Gi", "RestartContainer")]);
    node.until(|node| node.limit() == Some(2 << 30)).await;
    assert_eq!(runtime.running("c")[0].report.metadata.as_ref().unwrap().attempt, 1);
    assert_eq!(runtime.count(path::update_container_resources), 0);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(runtime.running("c")[0].report.metadata.as_ref().unwrap().attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn the_next_kubelet_knows_what_containers_have_and_finishes_a_resize() {
    let runtime = Arc::<FakeRuntime>::default();
    let refused = CriError::new(CallCode::Unknown, "busy");
    runtime.fail(path::update_container_resources, Some(refused));
    let before = ResizeFixture::start(&runtime, vec![pod("1Gi", "NotRequired")]);
    before.until(|node| node.limit() == Some(1 << 30)).await;
    before.pods.set([pod("2Gi", "NotRequired")]);
    before.until(|node| node.has_event("ResizeError")).await;
    drop(before);
    runtime.fail(path::update_container_resources, None);
    let first = runtime.running("c")[0].report.id.clone();
    let node = ResizeFixture::start(&runtime, vec![pod("2Gi", "NotRequired")]);
    node.until(|node| node.limit() == Some(2 << 30)).await;
    drop(node);
    // After a resize the status says what the container has, not how it was created.
    let calls = runtime.count(path::update_container_resources);
    let mut resized = pod("2Gi", "NotRequired");
    let status = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "",
        "ready": true, "restartCount": 0, "containerID": format!("fake://{first}"),
        "resources": {"limits": {"memory": "2Gi"}, "requests": {"memory": "2Gi"}}}]});
    resized.status = serde_json::from_value(status).unwrap();
    let node = ResizeFixture::start(&runtime, vec![resized]);
    node.until(|node| node.status().is_some_and(|status| status.resources.is_some())).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(runtime.count(path::update_container_resources), calls);
    assert_eq!(runtime.running("c")[0].report.id, first);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_room_is_refused_and_those_that_run_come_first() {
    let runtime = Arc::<FakeRuntime>::default();
    let first = pod("5Gi", "NotRequired");
    let node = ResizeFixture::start(&runtime, vec![first.clone()]);
    node.until(|node| node.limit() == Some(5 << 30)).await;
    drop(node);
    // Listed before the one that runs.
    let other = named("a", pod("4Gi", "NotRequired"));
    let node = ResizeFixture::start(&runtime, vec![other, first]);
    let status = |node: &ResizeFixture| node.node.statuses.of("a");
    node.until(|node| status(node).is_some()).await;
    let refused = status(&node).unwrap();
    assert_eq!(refused.reason.as_deref(), Some("OutOfmemory"));
    let words = "Pod was rejected: Node didn't have enough resource: memory, requested: 4294967296, \
                 used: 5368709120, capacity: ";
    assert!(refused.message.unwrap().starts_with(words));
    assert!(node.has_event("OutOfmemory"));
    assert_eq!(node.limit(), Some(5 << 30));
    assert!(runtime.running("a").is_empty());
}
