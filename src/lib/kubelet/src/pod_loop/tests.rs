//! Pods that meet defects of the kubelet, and a runtime that is replaced; a runtime in memory.

use super::*;
use crate::fixture;
use ferrokube_cri::limit::{EXTENSION, LimitedRuntime};
use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{CallCode, Runtime, Transport, TransportFuture, path};
use ferrokube_images::{PodIdentity, PullEvent, PullEvents};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest time, of the paused clock, until a pod has recovered.
const RECOVERY: Duration = Duration::from_secs(600);

/// Panics at the first event of each of these reasons.
struct PanickingEvents(Mutex<BTreeSet<&'static str>>);

impl PullEvents for PanickingEvents {
    fn report(&self, _: &PodIdentity, event: PullEvent) {
        let panics = self.0.lock().remove(event.reason);
        assert!(!panics, "on purpose");
    }
}

fn pod(metadata: &Value) -> Pod {
    let mut meta = json!({"name": "p", "namespace": "default", "uid": "u1"});
    meta.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let probe = json!({"exec": {"command": ["alive"]}, "periodSeconds": 1});
    let container = json!({"name": "c", "image": "r.io/c:v1", "livenessProbe": probe});
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn fault_30_a_panic_of_a_pods_tasks_is_a_failure_that_is_repeated() {
    let (fake, folder) = (Arc::<FakeRuntime>::default(), tempfile::tempdir().unwrap());
    let reasons = BTreeSet::from(["Created", "Unhealthy", "Killing"]);
    let events = Arc::new(PanickingEvents(Mutex::new(reasons)));
    let runtime = Runtime::new(Arc::clone(&fake) as Arc<_>);
    let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100";
    let kubelet = fixture::kubelet(runtime, fields, folder.path(), Arc::clone(&events) as Arc<_>);
    let pods = Arc::<ApiPods>::default();
    pods.set([pod(&json!({}))]);
    let (node, _, loops) = kubelet.loops(Some(Arc::clone(&pods)));
    let task = tokio::spawn(loops);
    let recovers = async |what: &str, is_it: &dyn Fn(&FakeRuntime) -> bool| {
        let recovered = tokio::time::timeout(RECOVERY, fake.until(is_it)).await;
        assert!(recovered.is_ok(), "{what}: {:?}", fake.containers());
    };
    recovers("the worker starts the container", &|fake| !fake.running("c").is_empty()).await;
    assert!(!events.0.lock().contains("Created"), "it has panicked");
    let first = fake.running("c").remove(0).report.id;
    fake.exec_exits("alive", 1);
    let is_killed = |fake: &FakeRuntime| fake.count(path::stop_container) > 0;
    recovers("the container is probed again, and killed", &is_killed).await;
    assert!(!events.0.lock().contains("Unhealthy"), "it has panicked");
    fake.exec_exits("alive", 0);
    let is_new = |fake: &FakeRuntime| {
        let running = fake.running("c");
        running.len() == 1 && running[0].report.id != first
    };
    recovers("it is started again", &is_new).await;

    events.0.lock().insert("Killing");
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 1});
    pods.set([pod(&deleted)]);
    recovers("the pod ends", &|fake| fake.sandboxes().is_empty()).await;
    assert!(!events.0.lock().contains("Killing"), "it has panicked");
    let is_over = async {
        while !node.ends.is_over("u1") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(RECOVERY, is_over).await.expect("its object can be removed");
    task.abort();
}

/// A runtime that bounds pulls itself, until another release of it is installed.
struct ReplacedRuntime {
    first: LimitedRuntime,
    second: Arc<FakeRuntime>,
    is_replaced: AtomicBool,
}

impl Transport for ReplacedRuntime {
    fn call(&self, path: &'static str, request: bytes::Bytes) -> TransportFuture<'_> {
        match self.is_replaced.load(Ordering::Relaxed) {
            true => self.second.call(path, request),
            false => self.first.call(path, request),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_was_down_is_asked_again_what_it_can() {
    let (fake, folder) = (Arc::<FakeRuntime>::default(), tempfile::tempdir().unwrap());
    let replaced = Arc::new(ReplacedRuntime {
        first: LimitedRuntime::new(Arc::clone(&fake) as Arc<_>),
        second: Arc::clone(&fake),
        is_replaced: AtomicBool::new(false),
    });
    let fields = ", evictionHard: {memory.available: 0%}, imageGCHighThresholdPercent: 100, \
                  serializeImagePulls: false, maxParallelImagePulls: 1";
    let events = Arc::new(PanickingEvents(Mutex::default()));
    let runtime = Runtime::new(Arc::clone(&replaced) as Arc<_>);
    let kubelet = fixture::kubelet(runtime, fields, folder.path(), events);
    let pods = Arc::<ApiPods>::default();
    pods.set([]);
    let (node, _, loops) = kubelet.loops(Some(Arc::clone(&pods)));
    assert!(node.images.learn_capabilities().await.unwrap());
    let task = tokio::spawn(loops);
    fake.until(|fake| fake.count(path::list_containers) > 0).await;
    replaced.is_replaced.store(true, Ordering::Relaxed);
    let down = CriError::new(CallCode::Unavailable, "no such file");
    fake.fail(path::list_pod_sandbox, Some(down));
    let failed = fake.count(path::list_pod_sandbox);
    fake.until(|fake| fake.count(path::list_pod_sandbox) > failed + 1).await;
    fake.fail(path::list_pod_sandbox, None);
    pods.set([pod(&json!({}))]);
    fake.until(|fake| !fake.running("c").is_empty()).await;
    let pulls = fake.pulls();
    assert!(!pulls[0].annotations.contains_key(EXTENSION), "{:?}", pulls[0].annotations);
    assert!(fake.count(path::version) > 1, "its version may be new");
    task.abort();
}
