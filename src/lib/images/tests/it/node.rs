//! A node with a runtime in memory.

use ferrokube_cri::testing::FakeRuntime;
use ferrokube_cri::{Runtime, Transport};
use ferrokube_images::{
    ImageManager, PodIdentity, PullConfig, PullError, PullEvent, PullEvents, PullMetrics,
    PullPolicy, PullRequest,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct PodEvents(Mutex<Vec<(Instant, String, PullEvent)>>);

impl PullEvents for PodEvents {
    fn report(&self, pod: &PodIdentity, event: PullEvent) {
        self.0.lock().push((Instant::now(), pod.name.clone(), event));
    }
}

impl PodEvents {
    /// Reasons of a pod's events, with the seconds since `start`.
    pub(crate) fn of(&self, pod: &str, start: Instant) -> Vec<(u64, &'static str)> {
        let events = self.0.lock();
        let own = events.iter().filter(|(_, name, _)| name == pod);
        own.map(|(at, _, event)| ((*at - start).as_secs(), event.reason)).collect()
    }

    /// Containers that events are about.
    pub(crate) fn fields(&self) -> Vec<String> {
        self.0.lock().iter().map(|(_, _, event)| event.field.clone()).collect()
    }

    pub(crate) fn messages(&self, pod: &str) -> Vec<String> {
        let events = self.0.lock();
        let own = events.iter().filter(|(_, name, _)| name == pod);
        own.map(|(_, _, event)| event.message.clone()).collect()
    }
}

pub(crate) struct PullNode {
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) events: Arc<PodEvents>,
    pub(crate) metrics: Arc<PullMetrics>,
    pub(crate) manager: ImageManager,
    pub(crate) start: Instant,
}

/// In parallel, without a rate.
pub(crate) fn parallel(limit: Option<u32>) -> PullConfig {
    PullConfig { is_serial: false, max_parallel: limit, registry_qps: 0, ..PullConfig::default() }
}

impl PullNode {
    pub(crate) fn new(config: PullConfig) -> Self {
        let runtime = Arc::new(FakeRuntime::default());
        Self::behind(config, Arc::clone(&runtime), runtime)
    }

    pub(crate) fn behind(
        config: PullConfig,
        runtime: Arc<FakeRuntime>,
        transport: Arc<dyn Transport>,
    ) -> Self {
        let (events, metrics) = (Arc::<PodEvents>::default(), Arc::<PullMetrics>::default());
        let manager = ImageManager::new(
            Runtime::new(transport),
            config,
            Arc::clone(&events) as Arc<dyn PullEvents>,
            Arc::clone(&metrics),
        );
        Self { runtime, events, metrics, manager, start: Instant::now() }
    }

    /// A pod of this name starts to need an image.
    pub(crate) fn pod(&self, pod: &str, image: &str) -> JoinHandle<Result<String, PullError>> {
        self.spawn(request(pod, image))
    }

    pub(crate) fn spawn(&self, request: PullRequest) -> JoinHandle<Result<String, PullError>> {
        let manager = self.manager.clone();
        tokio::spawn(async move { manager.ensure(&request).await })
    }

    pub(crate) fn metrics(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("a string takes all");
        text
    }
}

pub(crate) fn request(pod: &str, image: &str) -> PullRequest {
    PullRequest {
        pod: PodIdentity {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: format!("uid-{pod}"),
        },
        field: "spec.containers{main}".to_owned(),
        image: image.to_owned(),
        policy: PullPolicy::IfNotPresent,
        credentials: Vec::new(),
        own_credentials: 0,
        sandbox: None,
        runtime_handler: String::new(),
        annotations: BTreeMap::new(),
    }
}

/// Lets all tasks run until they wait.
pub(crate) async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}
