//! The node's pods: which ones there should be, a worker for each, and the end of the others.

use crate::assemble::{GRACE, POD_NAME, POD_UID};
use crate::config::KubeletConfig;
use crate::static_pods::{StaticPod, read_directory};
use crate::worker;
use ferrokube_cri::{CriError, ListContainersRequest, ListPodSandboxRequest, Runtime};
use ferrokube_images::ImageManager;
use ferrokube_trace::TraceContext;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
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
}

impl PodNode {
    /// A future for another task, with the ids of this one.
    pub(crate) fn in_context_of_caller<F: Future>(
        &self,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let context = ferrokube_trace::current().unwrap_or_else(TraceContext::root);
        ferrokube_trace::scoped(context, tracing::Span::none(), future)
    }
}

/// A kubelet without an API server: it runs static pods.
pub struct Kubelet {
    node: Arc<PodNode>,
    name: String,
    static_pods: Option<PathBuf>,
    interval: Duration,
    workers: BTreeMap<String, PodWorker>,
    ending: BTreeMap<String, JoinHandle<()>>,
}

struct PodWorker {
    name: String,
    grace: i64,
    context: TraceContext,
    wake: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Drop for PodWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
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
            node: Arc::new(PodNode { runtime, images, paths }),
            name: name.to_owned(),
            static_pods: config.static_pod_path.as_ref().map(PathBuf::from),
            interval: config.file_check_frequency,
            workers: BTreeMap::new(),
            ending: BTreeMap::new(),
        }
    }

    /// Runs the node's pods. Never returns; dropped, pods go on without a kubelet.
    pub async fn run(mut self) {
        let mut wanted: Option<Vec<StaticPod>> = None;
        let mut read_at: Option<Instant> = None;
        let mut last = BTreeMap::new();
        loop {
            if read_at.is_none_or(|at| at.elapsed() >= self.interval) {
                read_at = Some(Instant::now());
                wanted = self.read().or(wanted);
            }
            match self.relist().await {
                Ok(current) => {
                    self.wake_changed(&last, &current);
                    // Unknown until the directory was read once: nothing is ended before.
                    if let Some(wanted) = &wanted {
                        self.reconcile(wanted, &current);
                    }
                    last = current;
                }
                Err(error) => tracing::warn!(%error, "cannot list the runtime's pods"),
            }
            tokio::time::sleep(RELIST).await;
        }
    }

    fn read(&self) -> Option<Vec<StaticPod>> {
        let Some(directory) = &self.static_pods else { return Some(Vec::new()) };
        let pods = read_directory(directory, &self.name);
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
            pods.entry(uid.clone()).or_insert_with(|| ListedPod {
                name: sandbox.labels.get(POD_NAME).cloned().unwrap_or_default(),
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
    fn reconcile(&mut self, wanted: &[StaticPod], current: &BTreeMap<String, ListedPod>) {
        let uids: BTreeSet<&str> = wanted.iter().map(|pod| pod.uid.as_str()).collect();
        self.ending.retain(|_, task| !task.is_finished());
        let gone: Vec<String> =
            self.workers.keys().filter(|uid| !uids.contains(uid.as_str())).cloned().collect();
        for uid in gone {
            if let Some(worker) = self.workers.remove(&uid) {
                self.end(uid, worker.grace, worker.context);
            }
        }
        for (uid, pod) in current {
            let is_ours = !self.workers.contains_key(uid) && !self.ending.contains_key(uid);
            if let Some(grace) = pod.grace.filter(|_| is_ours && !uids.contains(uid.as_str())) {
                self.end(uid.clone(), grace, pod.context);
            }
        }
        for pod in wanted {
            // The pod of before, or this one, is still ending: paths and names are its own.
            let is_ending = self.ending.contains_key(&pod.uid)
                || current.iter().any(|(uid, other)| *uid != pod.uid && other.name == pod.name);
            if !is_ending && !self.workers.contains_key(&pod.uid) {
                let worker = self.start(pod.clone());
                self.workers.insert(pod.uid.clone(), worker);
            }
        }
    }

    fn start(&self, pod: StaticPod) -> PodWorker {
        let (wake, changes) = watch::channel(0);
        let context = context(|key| pod.annotations.get(key).map(String::as_str));
        let (name, grace) = (pod.name.clone(), crate::assemble::grace(&pod));
        tracing::info!(namespace = pod.namespace, pod = name, uid = pod.uid, "pod added");
        let work = worker::run(Arc::clone(&self.node), pod, changes);
        let task = tokio::spawn(ferrokube_trace::scoped(context, tracing::Span::none(), work));
        PodWorker { name, grace, context, wake, task }
    }

    fn end(&mut self, uid: String, grace: i64, context: TraceContext) {
        tracing::info!(uid, grace, "pod removed");
        let (node, own) = (Arc::clone(&self.node), uid.clone());
        let work = async move {
            while let Err(error) = worker::end(&node, &own, grace).await {
                tracing::warn!(uid = own, %error, "cannot end the pod");
                tokio::time::sleep(END_RETRY).await;
            }
        };
        let task = tokio::spawn(ferrokube_trace::scoped(context, tracing::Span::none(), work));
        self.ending.insert(uid, task);
    }

    /// Names of the pods that have a worker.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.workers.values().map(|worker| worker.name.as_str())
    }
}

/// A pod that the runtime has.
struct ListedPod {
    name: String,
    grace: Option<i64>,
    context: TraceContext,
    digest: u64,
}

/// The ids of a pod's last change; without any, a trace of its own.
fn context<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> TraceContext {
    let cause = ferrokube_trace::annotation::read(annotation);
    cause.map_or_else(TraceContext::root, |cause| cause.child())
}
