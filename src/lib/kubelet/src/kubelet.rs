//! The node's pods: which ones there should be, a worker for each, and the end of the others.

use crate::api::{ApiObjects, ApiPods, NodeApi};
use crate::assemble::{GRACE, POD_NAME, POD_NAMESPACE, POD_UID, grace};
use crate::board::StatusBoard;
use crate::config::KubeletConfig;
use crate::desired::DesiredPods;
use crate::ending::{EndingPod, end};
use crate::eviction::{
    self, EvictionPolicy, Evictions, FigureSource, MachineFigures, NodePressure, refusal,
};
use crate::log_files::{self, LogRotation};
use crate::objects::{NoObjects, PodObjects};
use crate::pod::NodePod;
use crate::server::{KubeletServer, ServedNode};
use crate::static_pods::read_directory;
use crate::worker;
use ferrokube_cri::{
    CriError, ListContainersRequest, ListPodSandboxRequest, Runtime, VersionRequest,
};
use ferrokube_images::{ImageCollection, ImageManager, PullEvent, PullEvents};
use ferrokube_trace::TraceContext;
use parking_lot::Mutex;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Interval of looks at the runtime's lists: how late an ended container is noticed.
const RELIST: Duration = Duration::from_secs(1);
/// Time between two tries to end a pod.
const END_RETRY: Duration = Duration::from_secs(10);

/// Directories.
#[derive(Clone, Debug)]
pub struct KubeletPaths {
    /// Of pods' own files: `/var/lib/kubelet`.
    pub root: PathBuf,
    /// Of logs: `/var/log/pods`.
    pub logs: PathBuf,
}

/// What workers share.
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
    /// What the node is short of now.
    pub(crate) pressure: Mutex<NodePressure>,
    pub(crate) evictions: Evictions,
    /// Pods that have a worker, by UID.
    pub(crate) active: Mutex<BTreeMap<String, NodePod>>,
    /// Name and version, once known.
    version: Mutex<Option<(String, String)>>,
}

impl PodNode {
    /// Reports an event of a pod.
    pub(crate) fn report(&self, pod: &NodePod, reason: &'static str, message: String) {
        self.event(pod, PullEvent { is_warning: false, reason, message });
    }

    /// Reports an event of type `Warning`.
    pub(crate) fn warn(&self, pod: &NodePod, reason: &'static str, message: String) {
        self.event(pod, PullEvent { is_warning: true, reason, message });
    }

    fn event(&self, pod: &NodePod, event: PullEvent) {
        if let Some(events) = &self.events {
            events.report(&pod.identity(), event);
        }
    }

    /// Asks the runtime for its name and version, unless they are known.
    pub(crate) async fn learn_version(&self) -> Result<(), CriError> {
        if self.version.lock().is_none() {
            let version = self.runtime.version(VersionRequest::default()).await?;
            *self.version.lock() = Some((version.runtime_name, version.runtime_version));
        }
        Ok(())
    }

    /// As it is in container ids.
    pub(crate) fn runtime_name(&self) -> String {
        self.version.lock().as_ref().map_or_else(String::new, |(name, _)| name.clone())
    }

    /// As a Node shows it.
    pub(crate) fn runtime_version(&self) -> String {
        let version = self.version.lock();
        let shown = |(name, version): &(String, String)| format!("{name}://{version}");
        version.as_ref().map_or_else(String::new, shown)
    }

    /// A future for another task, with the ids of this one.
    pub(crate) fn in_context_of_caller<F: Future>(
        &self,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let context = ferrokube_trace::current().unwrap_or_else(TraceContext::root);
        ferrokube_trace::scoped(context, tracing::Span::none(), future)
    }
}

/// A kubelet: it runs static pods, and with an API server the pods of its node.
pub struct Kubelet {
    node: PodNode,
    static_pods: Option<PathBuf>,
    interval: Duration,
    rotation: LogRotation,
    collection: ImageCollection,
    api: Option<NodeApi>,
    server: Option<KubeletServer>,
}

impl Kubelet {
    /// Of this node; nothing happens before [`Self::run`]. Paths may be relative.
    pub fn new(
        name: &str,
        config: &KubeletConfig,
        runtime: Runtime,
        images: ImageManager,
        paths: KubeletPaths,
    ) -> Self {
        // The runtime has a working directory of its own. Only an empty path fails.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let paths = KubeletPaths { root: absolute(paths.root), logs: absolute(paths.logs) };
        Self {
            node: PodNode {
                runtime,
                images,
                paths,
                statuses: StatusBoard::default(),
                events: None,
                host_ips: Vec::new(),
                name: name.to_owned(),
                objects: Arc::new(NoObjects),
                figures: Arc::new(MachineFigures),
                thresholds: config.eviction.clone(),
                pressure: Mutex::default(),
                evictions: Evictions::default(),
                active: Mutex::default(),
                version: Mutex::default(),
            },
            static_pods: config.static_pod_path.as_ref().map(PathBuf::from),
            interval: config.file_check_frequency,
            rotation: config.log_rotation,
            collection: config.image_collection,
            api: None,
            server: None,
        }
    }

    /// Reports events of pods there.
    #[must_use]
    pub fn events(mut self, events: Arc<dyn PullEvents>) -> Self {
        self.node.events = Some(events);
        self
    }

    /// Takes what the machine has and what is left of it from there.
    #[must_use]
    pub fn figures(mut self, figures: Arc<dyn FigureSource>) -> Self {
        self.node.figures = figures;
        self
    }

    /// Addresses of the node, which its pods show.
    #[must_use]
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.node.host_ips = addresses.iter().map(ToString::to_string).collect();
        self
    }

    /// Runs the node's pods of this API server, too.
    #[must_use]
    pub fn api(mut self, api: NodeApi) -> Self {
        self.node.objects = Arc::new(ApiObjects::new(api.client.clone()));
        self.api = Some(api);
        self
    }

    /// Serves logs, commands and ports of the pods, to users whom the API server authorizes: without
    /// one there is no server.
    #[must_use]
    pub fn server(mut self, server: KubeletServer) -> Self {
        self.server = Some(server);
        self
    }

    /// Runs the node's pods. Never returns; dropped, pods go on without a kubelet.
    pub async fn run(mut self) {
        let (api, server) = (self.api.take(), self.server.take());
        let (node, files, loops) = self.loops(api.as_ref().map(|api| Arc::clone(&api.pods)));
        match api {
            Some(api) => {
                let served = ServedNode {
                    node: Arc::clone(&node),
                    pods: Arc::clone(&api.pods),
                    files: files.clone(),
                    client: api.client.clone(),
                };
                let serving = async {
                    if let Some(server) = server {
                        server.run(served).await;
                    }
                };
                _ = tokio::join!(loops, api.run(&node, files), serving);
            }
            None => loops.await,
        }
    }

    /// What runs with and without an API server, whose pods may be given; and the static pods.
    pub(crate) fn loops(
        self,
        api: Option<Arc<ApiPods>>,
    ) -> (Arc<PodNode>, watch::Receiver<Vec<NodePod>>, impl Future<Output = ()>) {
        let Self { node, static_pods, interval, rotation, collection, .. } = self;
        let node = Arc::new(node);
        let (found, files) = watch::channel(Vec::new());
        let pods = PodLoop {
            node: Arc::clone(&node),
            static_pods,
            interval,
            api,
            found,
            workers: BTreeMap::new(),
            ending: BTreeMap::new(),
            ended: BTreeSet::new(),
            refused: BTreeSet::new(),
        };
        let own = Arc::clone(&node);
        let loops = async move {
            let rotating = log_files::run(&own, rotation);
            let keeping = eviction::run(&own, collection);
            _ = tokio::join!(pods.run(), rotating, keeping);
        };
        (node, files, loops)
    }
}

/// The loop that starts and ends the workers of pods.
struct PodLoop {
    node: Arc<PodNode>,
    static_pods: Option<PathBuf>,
    interval: Duration,
    api: Option<Arc<ApiPods>>,
    /// Static pods, for their mirrors.
    found: watch::Sender<Vec<NodePod>>,
    workers: BTreeMap<String, PodWorker>,
    ending: BTreeMap<String, EndingTask>,
    /// UIDs of pods that have ended and that the API server still has.
    ended: BTreeSet<String>,
    /// Of pods that were not let in for what the node is short of.
    refused: BTreeSet<String>,
}

struct PodWorker {
    pod: NodePod,
    wake: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Drop for PodWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct EndingTask {
    pod: EndingPod,
    task: JoinHandle<()>,
}

impl PodLoop {
    async fn run(mut self) {
        let mut files: Option<Vec<NodePod>> = None;
        let mut read_at: Option<Instant> = None;
        let mut last = BTreeMap::new();
        let mut changes = self.api.as_ref().map(|api| api.changes());
        loop {
            if read_at.is_none_or(|at| at.elapsed() >= self.interval) {
                read_at = Some(Instant::now());
                files = self.read().or(files);
                let new = files.clone().unwrap_or_default();
                self.found.send_if_modified(|old| {
                    let is_changed = *old != new;
                    *old = new;
                    is_changed
                });
            }
            if let Some(changes) = &mut changes {
                changes.mark_unchanged();
            }
            match self.listed().await {
                Ok(current) => {
                    self.wake_changed(&last, &current);
                    let bound = self.api.as_ref().map(|api| api.all());
                    let desired = DesiredPods::of(files.as_deref(), bound);
                    self.reconcile(&desired, &current);
                    last = current;
                }
                Err(error) => tracing::warn!(%error, "cannot list the runtime's pods"),
            }
            let changed = async {
                match &mut changes {
                    Some(changes) => _ = changes.changed().await,
                    None => std::future::pending().await,
                }
            };
            let _ = tokio::time::timeout(RELIST, changed).await;
        }
    }

    async fn listed(&self) -> Result<BTreeMap<String, ListedPod>, CriError> {
        self.node.learn_version().await?;
        self.relist().await
    }

    fn read(&self) -> Option<Vec<NodePod>> {
        let Some(directory) = &self.static_pods else { return Some(Vec::new()) };
        let pods = read_directory(directory, &self.node.name);
        pods.inspect_err(|error| {
            tracing::warn!(%error, "cannot list the directory of static pods");
        })
        .ok()
    }

    /// The pods that the runtime has: name, grace period, and a digest of their state.
    async fn relist(&self) -> Result<BTreeMap<String, ListedPod>, CriError> {
        let runtime = &self.node.runtime;
        let sandboxes = runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await?.items;
        let containers =
            runtime.list_containers(ListContainersRequest::default()).await?.containers;
        let mut digests: BTreeMap<String, DefaultHasher> = BTreeMap::new();
        let mut pods: BTreeMap<String, ListedPod> = BTreeMap::new();
        for sandbox in sandboxes {
            let Some(uid) = sandbox.labels.get(POD_UID) else { continue };
            (&sandbox.id, sandbox.state).hash(digests.entry(uid.clone()).or_default());
            let grace = sandbox.annotations.get(GRACE).and_then(|text| text.parse().ok());
            let annotation = |key: &str| sandbox.annotations.get(key).map(String::as_str);
            let label = |key: &str| sandbox.labels.get(key).map_or("", String::as_str);
            pods.entry(uid.clone()).or_insert_with(|| ListedPod {
                full_name: format!("{}/{}", label(POD_NAMESPACE), label(POD_NAME)),
                // A pod of another kubelet has none: it is not ours to end.
                grace,
                context: context(annotation),
                digest: 0,
            });
        }
        for container in containers {
            let Some(uid) = container.labels.get(POD_UID) else { continue };
            (&container.id, container.state).hash(digests.entry(uid.clone()).or_default());
        }
        for (uid, pod) in &mut pods {
            pod.digest = digests.get(uid).map_or(0, Hasher::finish);
        }
        Ok(pods)
    }

    fn wake_changed(
        &self,
        last: &BTreeMap<String, ListedPod>,
        current: &BTreeMap<String, ListedPod>,
    ) {
        for (uid, worker) in &self.workers {
            let digest = |pods: &BTreeMap<String, ListedPod>| pods.get(uid).map(|pod| pod.digest);
            if digest(last) != digest(current) {
                worker.wake.send_modify(|changes| *changes += 1);
            }
        }
    }

    /// Ends what is not wanted, and starts workers of what is.
    fn reconcile(&mut self, desired: &DesiredPods, current: &BTreeMap<String, ListedPod>) {
        self.collect_ended(desired);
        for ending in &desired.ending {
            if !self.ended.contains(&ending.uid) {
                let context = ending.pod.as_ref().map_or_else(TraceContext::root, NodePod::context);
                self.end(ending.clone(), context);
            }
        }
        // Unknown until all sources were read: nothing is ended for being missing before.
        if desired.is_complete {
            let is_missing = |uid: &String| !desired.knows(uid);
            let gone: Vec<String> =
                self.workers.keys().filter(|uid| is_missing(uid)).cloned().collect();
            for uid in gone {
                let Some(worker) = self.workers.get(&uid) else { continue };
                let (pod, context) = (worker.pod.clone(), worker.pod.context());
                let grace = grace(&pod);
                self.end(
                    EndingPod { uid, grace, pod: Some(pod), is_deleted: false, evicted: None },
                    context,
                );
            }
            for (uid, pod) in current.iter().filter(|(uid, _)| is_missing(uid)) {
                if let Some(grace) = pod.grace.filter(|_| !self.ending.contains_key(uid)) {
                    let uid = uid.clone();
                    let ending =
                        EndingPod { uid, grace, pod: None, is_deleted: false, evicted: None };
                    self.end(ending, pod.context);
                }
            }
        }
        for (identity, context, message) in &desired.rejected {
            self.node.statuses.reject(identity.clone(), *context, "NotImplemented", message);
        }
        for pod in &desired.wanted {
            // The pod of before, or this one, is still ending: paths and names are its own.
            let name = pod.full_name();
            let is_ending = self.ending.contains_key(&pod.uid)
                || current.iter().any(|(uid, other)| *uid != pod.uid && other.full_name == name);
            if self.is_evicted(pod) || is_ending || self.workers.contains_key(&pod.uid) {
                continue;
            }
            // What ran under another kubelet goes on.
            if current.contains_key(&pod.uid) || !self.is_refused(pod) {
                let worker = self.start(pod.clone());
                self.workers.insert(pod.uid.clone(), worker);
            }
        }
    }

    /// Whether a pod was evicted; ends it, unless that was done.
    fn is_evicted(&mut self, pod: &NodePod) -> bool {
        let evicted = self.node.evictions.message(&pod.uid);
        if evicted.is_some() && !self.node.evictions.is_over(&pod.uid) {
            let (uid, is_deleted) = (pod.uid.clone(), false);
            let own = EndingPod { uid, grace: 0, pod: Some(pod.clone()), is_deleted, evicted };
            self.end(own, pod.context());
            return true;
        }
        evicted.is_some()
    }

    /// Whether a new pod is not let in for what the node is short of; shows that.
    fn is_refused(&mut self, pod: &NodePod) -> bool {
        if self.refused.contains(&pod.uid) {
            return true;
        }
        let pressure = *self.node.pressure.lock();
        let Some(message) = refusal(pod, pressure) else { return false };
        tracing::warn!(namespace = pod.namespace, pod = pod.name, message, "pod refused");
        self.node.warn(pod, "Evicted", message.clone());
        self.node.statuses.reject(pod.identity(), pod.context(), "Evicted", &message);
        self.refused.insert(pod.uid.clone());
        true
    }

    /// Notes which pods have ended.
    fn collect_ended(&mut self, desired: &DesiredPods) {
        let finished: Vec<String> = self
            .ending
            .iter()
            .filter(|(_, ending)| ending.task.is_finished())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in finished {
            let Some(EndingTask { pod, .. }) = self.ending.remove(&uid) else { continue };
            self.node.evictions.ended(&uid);
            if pod.is_deleted {
                self.ended.insert(uid);
            }
        }
        if desired.is_complete {
            self.ended.retain(|uid| desired.knows(uid));
            self.refused.retain(|uid| desired.knows(uid));
            self.node.evictions.retain(|uid| desired.knows(uid));
            let is_ending = |uid: &str| self.ending.contains_key(uid);
            self.node.statuses.retain(|uid| desired.knows(uid) || is_ending(uid));
        }
    }

    fn start(&self, pod: NodePod) -> PodWorker {
        let (wake, changes) = watch::channel(0);
        tracing::info!(namespace = pod.namespace, pod = pod.name, uid = pod.uid, "pod added");
        self.node.active.lock().insert(pod.uid.clone(), pod.clone());
        let work = worker::run(Arc::clone(&self.node), pod.clone(), changes);
        let task =
            tokio::spawn(ferrokube_trace::scoped(pod.context(), tracing::Span::none(), work));
        PodWorker { pod, wake, task }
    }

    /// Ends a pod in the background; one that is ending may get less time.
    fn end(&mut self, pod: EndingPod, context: TraceContext) {
        self.workers.remove(&pod.uid);
        self.node.active.lock().remove(&pod.uid);
        if let Some(ending) = self.ending.get(&pod.uid) {
            if ending.pod.grace <= pod.grace {
                return;
            }
            ending.task.abort();
        }
        tracing::info!(uid = pod.uid, grace = pod.grace, "pod removed");
        let (node, own) = (Arc::clone(&self.node), pod.clone());
        let work = async move {
            while let Err(error) = end(&node, &own).await {
                tracing::warn!(uid = own.uid, %error, "cannot end the pod");
                tokio::time::sleep(END_RETRY).await;
            }
            if let Some(pod) = own.pod.filter(|_| own.is_deleted) {
                node.statuses.ended(pod.identity(), pod.context());
            }
        };
        let task = tokio::spawn(ferrokube_trace::scoped(context, tracing::Span::none(), work));
        self.ending.insert(pod.uid.clone(), EndingTask { pod, task });
    }
}

/// A pod that the runtime has.
struct ListedPod {
    full_name: String,
    grace: Option<i64>,
    context: TraceContext,
    digest: u64,
}

/// The ids of a pod's last change; without any, a trace of its own.
fn context<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> TraceContext {
    let cause = ferrokube_trace::annotation::read(annotation);
    cause.map_or_else(TraceContext::root, |cause| cause.child())
}
