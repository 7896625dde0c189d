//! State shared by all parts of the kubelet: the node, its clock and directories.

use crate::background::in_background;
use crate::board::StatusBoard;
use crate::config::dns::ClusterDns;
use crate::csi::CsiDrivers;
use crate::ends::PodEnds;
use crate::eviction::figures::{FigureSource, MachineFigures};
use crate::eviction::pressure::NodePressure;
use crate::eviction::threshold::{EvictionPolicy, EvictionSignal, left};
use crate::fields::NodeFacts;
use crate::next::WallTime;
use crate::objects::{NoObjects, PodObjects};
use crate::pod::NodePod;
use crate::process_limit::ProcessLimit;
use crate::pull_secrets::providers::CredentialProviders;
use crate::room::PodRoom;
use crate::usage::volumes::MeasuredVolumes;
use ferrokube_cri::{CriError, Runtime, VersionRequest};
use ferrokube_images::{ImageManager, PullEvent, PullEvents};
use ferrokube_trace::TraceContext;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Directories.
#[derive(Clone, Debug)]
pub struct KubeletPaths {
    /// Directory of pods' own files: `/var/lib/kubelet`.
    pub root: PathBuf,
    /// Directory of logs: `/var/log/pods`.
    pub logs: PathBuf,
}

/// State shared by workers.
pub(crate) struct PodNode {
    pub(crate) runtime: Runtime,
    pub(crate) images: ImageManager,
    pub(crate) paths: KubeletPaths,
    pub(crate) statuses: StatusBoard,
    pub(crate) events: Option<Arc<dyn PullEvents>>,
    pub(crate) host_ips: Vec<String>,
    pub(crate) name: String,
    pub(crate) objects: Arc<dyn PodObjects>,
    pub(crate) figures: Arc<dyn FigureSource>,
    pub(crate) thresholds: EvictionPolicy,
    pub(crate) dns: ClusterDns,
    pub(crate) providers: CredentialProviders,
    pub(crate) csi: Arc<CsiDrivers>,
    /// As they were measured last.
    pub(crate) volumes: MeasuredVolumes,
    /// Max number of pods.
    pub(crate) max_pods: usize,
    /// As the runtime allows it, once that is known.
    /// As this machine enforces it.
    configured_limit: Mutex<ProcessLimit>,
    /// As the present runtime enforces it.
    process_limit: Mutex<ProcessLimit>,
    /// Resources under pressure.
    pub(crate) pressure: Mutex<NodePressure>,
    pub(crate) ends: PodEnds,
    /// Pods that have a worker, by UID.
    pub(crate) active: Mutex<BTreeMap<String, Arc<NodePod>>>,
    /// Bytes of the machine's memory, once read.
    memory: OnceCell<u64>,
    /// When the runtime last listed its pods; at first, when the kubelet started.
    pub(crate) listed_at: Mutex<Instant>,
    /// Name and version, once known.
    version: Mutex<Option<(String, String)>>,
}

impl PodNode {
    /// Without an API server. Paths are absolute.
    pub(crate) fn new(
        name: &str,
        runtime: Runtime,
        images: ImageManager,
        paths: KubeletPaths,
        thresholds: EvictionPolicy,
    ) -> Self {
        let csi = Arc::new(CsiDrivers::new(&paths.root));
        Self {
            runtime,
            images,
            paths,
            statuses: StatusBoard::default(),
            events: None,
            host_ips: Vec::new(),
            name: name.to_owned(),
            objects: Arc::new(NoObjects),
            figures: Arc::new(MachineFigures),
            thresholds,
            dns: ClusterDns::default(),
            providers: CredentialProviders::default(),
            csi,
            volumes: MeasuredVolumes::default(),
            max_pods: usize::MAX,
            configured_limit: Mutex::default(),
            process_limit: Mutex::default(),
            pressure: Mutex::default(),
            ends: PodEnds::default(),
            active: Mutex::default(),
            memory: OnceCell::new(),
            listed_at: Mutex::new(Instant::now()),
            version: Mutex::default(),
        }
    }

    /// Reports an event of a pod.
    pub(crate) fn report(&self, pod: &NodePod, reason: &'static str, message: String) {
        self.event(pod, PullEvent { is_warning: false, reason, message, field: String::new() });
    }

    /// Reports an event of type `Warning`.
    pub(crate) fn warn(&self, pod: &NodePod, reason: &'static str, message: String) {
        self.event(pod, PullEvent { is_warning: true, reason, message, field: String::new() });
    }

    /// Reports an event of a container.
    pub(crate) fn report_of(
        &self,
        pod: &NodePod,
        container: &str,
        reason: &'static str,
        message: String,
    ) {
        let field = pod.field(container);
        self.event(pod, PullEvent { is_warning: false, reason, message, field });
    }

    /// Reports an event of type `Warning` of a container.
    pub(crate) fn warn_of(
        &self,
        pod: &NodePod,
        container: &str,
        reason: &'static str,
        message: String,
    ) {
        let field = pod.field(container);
        self.event(pod, PullEvent { is_warning: true, reason, message, field });
    }

    fn event(&self, pod: &NodePod, event: PullEvent) {
        if let Some(events) = &self.events {
            events.report(&pod.identity(), event);
        }
    }

    pub(crate) fn process_limit(&self) -> ProcessLimit {
        self.process_limit.lock().clone()
    }

    pub(crate) fn limit_processes(&self, limit: ProcessLimit) {
        *self.configured_limit.lock() = limit.clone();
        *self.process_limit.lock() = limit;
    }

    /// Queries the runtime's name and version, once, and whether it can limit processes.
    pub(crate) async fn learn_version(&self) -> Result<(), CriError> {
        if self.version.lock().is_none() {
            self.read_version().await?;
        }
        Ok(())
    }

    /// Queries what may have changed while the runtime was down: its version, and whether it bounds
    /// pulls itself.
    pub(crate) async fn relearn(&self) -> Result<(), CriError> {
        self.read_version().await?;
        self.images.learn_capabilities().await.map(|_| ())
    }

    async fn read_version(&self) -> Result<(), CriError> {
        let version = self.runtime.version(VersionRequest::default()).await?;
        let configured = self.configured_limit.lock().clone();
        *self.process_limit.lock() = configured.on(&self.runtime).await?;
        *self.version.lock() = Some((version.runtime_name, version.runtime_version));
        Ok(())
    }

    /// The scheme of container ids.
    pub(crate) fn runtime_name(&self) -> String {
        self.version.lock().as_ref().map_or_else(String::new, |(name, _)| name.clone())
    }

    /// As a Node shows it.
    pub(crate) fn runtime_version(&self) -> String {
        let version = self.version.lock();
        let shown = |(name, version): &(String, String)| format!("{name}://{version}");
        version.as_ref().map_or_else(String::new, shown)
    }

    /// Node facts for the downward API. `pod_ips` is empty before the sandbox exists.
    pub(crate) async fn facts(&self, pod_ips: Vec<String>) -> NodeFacts {
        let read = || async {
            let (source, root) = (Arc::clone(&self.figures), self.paths.root.clone());
            let figures = in_background(move || Ok(source.read(&root, None))).await;
            figures.ok().and_then(|figures| Some(figures.memory?.capacity)).ok_or(())
        };
        NodeFacts {
            node: self.name.clone(),
            memory: self.memory.get_or_try_init(read).await.copied().unwrap_or(0),
            host_ips: self.host_ips.clone(),
            pod_ips,
        }
    }

    /// CPU and memory that pods may request.
    pub(crate) async fn allocatable(&self) -> PodRoom {
        let (source, root) = (Arc::clone(&self.figures), self.paths.root.clone());
        let figures = in_background(move || Ok(source.read(&root, None))).await.unwrap_or_default();
        let left = |_| left(&self.thresholds.thresholds, EvictionSignal::Memory, &figures);
        let memory = figures.memory.map_or(u64::MAX, left);
        let number = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        PodRoom { cpu: number(cpus() as u64).saturating_mul(1000), memory: number(memory) }
    }

    /// Carries the current trace ids into a future for another task.
    pub(crate) fn in_context_of_caller<F: Future>(
        &self,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let context = ferrokube_trace::current().unwrap_or_else(TraceContext::root);
        ferrokube_trace::scoped(context, tracing::Span::none(), Box::pin(future))
    }
}

/// Processors that this process may use, read once: asking the control groups is slow.
pub(crate) fn cpus() -> usize {
    static CPUS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));
    *CPUS
}

pub(crate) fn now() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
