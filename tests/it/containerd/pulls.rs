//! Bounded pulls (KEP-3673) on a real runtime. What is in progress is what the registry sees.

use super::engine::Containerd;
use ferrokube_images::{
    ImageManager, PodIdentity, PullConfig, PullError, PullEvent, PullEvents, PullMetrics,
    PullPolicy, PullRequest,
};
use ferrokube_testkit::BOUND;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Pods and the reasons of their events, in order.
struct Events(watch::Sender<Vec<(String, &'static str)>>);

impl PullEvents for Events {
    fn report(&self, pod: &PodIdentity, event: PullEvent) {
        self.0.send_modify(|events| events.push((pod.name.clone(), event.reason)));
    }
}

impl Events {
    /// Waits until a number of events satisfy a condition.
    async fn until(&self, count: usize, is_it: impl Fn(&str, &str) -> bool) {
        let mut changes = self.0.subscribe();
        let enough = |events: &Vec<(String, &'static str)>| {
            events.iter().filter(|(pod, reason)| is_it(pod, reason)).count() >= count
        };
        let waited = tokio::time::timeout(BOUND, changes.wait_for(enough)).await.is_ok();
        assert!(waited, "{count} events: {:?}", self.0.borrow());
    }

    fn reasons(&self, pod: &str) -> Vec<&'static str> {
        let events = self.0.borrow();
        events.iter().filter(|(name, _)| name == pod).map(|(_, reason)| *reason).collect()
    }
}

/// A kubelet's image manager on the runtime.
struct PullingNode<'a> {
    containerd: &'a Containerd,
    manager: ImageManager,
    events: Arc<Events>,
}

impl<'a> PullingNode<'a> {
    fn new(containerd: &'a Containerd, is_serial: bool, max_parallel: Option<u32>) -> Self {
        let config =
            PullConfig { is_serial, max_parallel, registry_qps: 0, ..PullConfig::default() };
        let events = Arc::new(Events(watch::channel(Vec::new()).0));
        let manager = ImageManager::new(
            containerd.runtime(),
            config,
            Arc::clone(&events) as Arc<dyn PullEvents>,
            Arc::<PullMetrics>::default(),
        );
        containerd.registry.hold();
        Self { containerd, manager, events }
    }

    /// A pod that needs an image, once it is pulling or queued.
    async fn pod(&self, pod: &str, image: &str) -> JoinHandle<Result<String, PullError>> {
        let request = PullRequest {
            pod: PodIdentity {
                namespace: "default".to_owned(),
                name: pod.to_owned(),
                uid: format!("uid-{pod}"),
            },
            field: String::new(),
            image: self.containerd.registry.image(image),
            policy: PullPolicy::IfNotPresent,
            credentials: Vec::new(),
            own_credentials: 0,
            sandbox: None,
            runtime_handler: String::new(),
            annotations: BTreeMap::new(),
        };
        let manager = self.manager.clone();
        let task = tokio::spawn(async move { manager.ensure(&request).await });
        self.events.until(1, |name, _| name == pod).await;
        task
    }

    /// Distinct images, each needed by a pod of its name, in this order.
    async fn pods(&self, prefix: &str, count: usize) -> Vec<PodPull> {
        let mut pods = Vec::new();
        for number in 0..count {
            let name = format!("{prefix}{number:02}");
            self.containerd.registry.add_small(&name);
            let task = self.pod(&name, &name).await;
            pods.push(PodPull { name, task });
        }
        pods
    }
}

struct PodPull {
    name: String,
    task: JoinHandle<Result<String, PullError>>,
}

fn names(pods: &[PodPull]) -> Vec<String> {
    pods.iter().map(|pod| pod.name.clone()).collect()
}

/// Lets the pulls end one by one, oldest first; each time the window moves by one.
async fn end_in_order(node: &PullingNode<'_>, pods: Vec<PodPull>, limit: usize) {
    let registry = &node.containerd.registry;
    let names = names(&pods);
    for (at, pod) in pods.into_iter().enumerate() {
        let window = &names[at..names.len().min(at + limit)];
        registry.until_held(window).await;
        for later in names.iter().skip(at + limit) {
            assert_eq!(node.events.reasons(later), ["Queued"], "{later} waits for {window:?}");
        }
        registry.release(&pod.name);
        pod.task.await.unwrap().unwrap();
    }
    assert_eq!(registry.seen().most, limit.min(names.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_pulled_within_the_limit_and_in_order() {
    let Some(containerd) = Containerd::start().await else { return };
    twenty_images_at_limit_three(&containerd).await;
    serialized_pulls_are_one_at_a_time(&containerd).await;
    fourteen_pods_of_one_image_cause_one_pull(&containerd).await;
    a_stuck_pull_stops_no_other_and_a_deleted_pod_leaves_the_queue(&containerd).await;
    a_damaged_image_fails_and_frees_its_place(&containerd).await;
}

async fn twenty_images_at_limit_three(containerd: &Containerd) {
    let node = PullingNode::new(containerd, false, Some(3));
    let pods = node.pods("limited", 20).await;
    end_in_order(&node, pods, 3).await;
}

async fn serialized_pulls_are_one_at_a_time(containerd: &Containerd) {
    let node = PullingNode::new(containerd, true, None);
    let pods = node.pods("serial", 4).await;
    end_in_order(&node, pods, 1).await;
}

async fn fourteen_pods_of_one_image_cause_one_pull(containerd: &Containerd) {
    let node = PullingNode::new(containerd, false, None);
    let registry = &containerd.registry;
    registry.add_small("same");
    let mut pods = Vec::new();
    for number in 0..14 {
        pods.push(node.pod(&format!("same{number}"), "same").await);
    }
    registry.until_held(&["same".to_owned()]).await;
    registry.release("same");
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    // A pull resolves its tag, whatever the runtime then shares among pulls.
    let resolved = registry.seen().resolved;
    assert_eq!(resolved, ["same"], "one pull");
}

async fn a_stuck_pull_stops_no_other_and_a_deleted_pod_leaves_the_queue(containerd: &Containerd) {
    let node = PullingNode::new(containerd, false, Some(2));
    let registry = &containerd.registry;
    let mut pods = node.pods("stuck", 6).await;
    let (deleted, stuck) = (pods.remove(2), pods.remove(0));
    deleted.task.abort();
    assert!(deleted.task.await.is_err_and(|error| error.is_cancelled()));
    for pod in pods {
        registry.until_held(&[stuck.name.clone(), pod.name.clone()]).await;
        registry.release(&pod.name);
        pod.task.await.unwrap().unwrap();
    }
    assert!(!stuck.task.is_finished());
    let seen = registry.seen();
    assert_eq!(seen.most, 2);
    assert!(!seen.resolved.contains(&deleted.name), "a deleted pod's image: {seen:?}");
    // The runtime gives up a pull whose last pod is deleted.
    stuck.task.abort();
    registry.until_held(&[]).await;
}

async fn a_damaged_image_fails_and_frees_its_place(containerd: &Containerd) {
    let node = PullingNode::new(containerd, true, None);
    let registry = &containerd.registry;
    registry.add_damaged("damaged");
    let damaged = node.pod("damaged", "damaged").await;
    let next = node.pods("after", 1).await.remove(0);
    registry.until_held(&["damaged".to_owned()]).await;
    assert_eq!(node.events.reasons(&next.name), ["Queued"]);
    registry.release("damaged");
    let error = damaged.await.unwrap().unwrap_err();
    assert_eq!(error.reason, "ErrImagePull");
    assert!(error.message.contains("digest"), "{error}");
    registry.until_held(std::slice::from_ref(&next.name)).await;
    registry.release(&next.name);
    next.task.await.unwrap().unwrap();
}
