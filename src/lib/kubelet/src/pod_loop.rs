//! Reconciles the node's pods: a worker for each desired pod, termination of all others.

use crate::api::ApiPods;
use crate::assemble::{GRACE, POD_NAME, POD_NAMESPACE, POD_UID, grace};
use crate::background::{in_background, unless_panicked};
use crate::csi;
use crate::desired::{DesiredPods, LastDesired};
use crate::directories::own_pods;
use crate::ending::{EndingPod, end};
use crate::ends::PodEnd;
use crate::eviction::is_critical;
use crate::eviction::pressure::refusal;
use crate::host_ports;
use crate::node::PodNode;
use crate::pod::NodePod;
use crate::room::{NodeRoom, lack};
use crate::static_pods::read_directory;
use crate::status::EVICTED;
use crate::worker::{self, WorkerError};
use ferrokube_cri::{ContainerPhase, CriError, ListContainersRequest, ListPodSandboxRequest};
use ferrokube_trace::TraceContext;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Interval between lists of the runtime: the max delay until a container's exit is noticed.
const RELIST: Duration = Duration::from_secs(1);
/// Limit of the questions to a runtime that was down.
const RELEARN: Duration = Duration::from_secs(10);
/// Interval of searches for files and volumes of pods that are gone.
const ORPHANS: Duration = Duration::from_secs(60);
/// Retry interval of a failed termination.
const END_RETRY: Duration = Duration::from_secs(10);

/// The loop that starts and ends the workers of pods.
pub(crate) struct PodLoop {
    node: Arc<PodNode>,
    sources: PodSources,
    workers: BTreeMap<String, PodWorker>,
    ending: BTreeMap<String, EndingTask>,
    /// Limit of the requests of all pods, once read.
    room: Option<NodeRoom>,
    /// Whether the runtime was down, and was not asked since what it can: it may be another
    /// release.
    is_runtime_down: bool,
    /// Asks a runtime that was down; true if it answered. At most one task.
    questions: JoinSet<bool>,
    /// Last search for volumes of pods that are gone.
    orphans_at: Option<Instant>,
    /// Stops what previous kubelets have left of pods that have finished. At most one task.
    stopping: JoinSet<()>,
}

/// Sources of the node's pods.
pub(crate) struct PodSources {
    /// Directory of files.
    pub(crate) static_pods: Option<PathBuf>,
    /// Interval between scans of the directory.
    pub(crate) interval: Duration,
    pub(crate) api: Option<Arc<ApiPods>>,
    /// Static pods, for their mirrors.
    pub(crate) found: watch::Sender<Vec<NodePod>>,
}

struct PodWorker {
    /// As it is now; a change wakes the worker.
    pod: watch::Sender<Arc<NodePod>>,
    task: JoinHandle<()>,
    /// Why its last change was not accepted.
    refused: Option<String>,
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

impl Drop for EndingTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl PodLoop {
    /// A loop without workers.
    pub(crate) fn new(node: &Arc<PodNode>, sources: PodSources) -> Self {
        let node = Arc::clone(node);
        Self {
            node,
            sources,
            workers: BTreeMap::new(),
            ending: BTreeMap::new(),
            room: None,
            is_runtime_down: false,
            questions: JoinSet::new(),
            orphans_at: None,
            stopping: JoinSet::new(),
        }
    }

    /// Never returns; when dropped, pods keep running.
    pub(crate) async fn run(mut self) {
        let mut files: Option<Vec<NodePod>> = None;
        let mut read_at: Option<Instant> = None;
        let (mut last, mut last_desired) = (BTreeMap::new(), LastDesired::default());
        let mut changes = self.sources.api.as_ref().map(|api| api.changes());
        // Of the machine, and so the same until the next start.
        let room = self.node.allocatable().await;
        self.room = Some(NodeRoom { room, pods: self.node.max_pods });
        loop {
            if read_at.is_none_or(|at| at.elapsed() >= self.sources.interval) {
                read_at = Some(Instant::now());
                files = self.read().or(files);
                let new = files.clone().unwrap_or_default();
                self.sources.found.send_if_modified(|old| {
                    let is_changed = *old != new;
                    *old = new;
                    is_changed
                });
            }
            // Before the pods are read: what changes meanwhile is read again.
            let state = (read_at, changes.as_mut().map(|it| *it.borrow_and_update()));
            match self.listed().await {
                Ok(current) => {
                    *self.node.listed_at.lock() = Instant::now();
                    self.wake_changed(&last, &current);
                    let desired = last_desired.of(state, || {
                        let bound = self.sources.api.as_ref().map(|api| api.all());
                        DesiredPods::of(files.as_deref(), bound)
                    });
                    self.reconcile(desired, &current);
                    self.end_orphans(desired, &current).await;
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

    async fn listed(&mut self) -> Result<BTreeMap<String, ListedPod>, CriError> {
        self.node.learn_version().await?;
        let listed = self.relist().await;
        if listed.is_err() {
            self.is_runtime_down = true;
            self.questions.abort_all();
        } else if self.is_runtime_down {
            self.ask_again();
        }
        listed
    }

    /// Asks the runtime what it can. In the background: images may have a service of their own,
    /// which holds up no pod.
    fn ask_again(&mut self) {
        if let Some(Ok(true)) = self.questions.try_join_next() {
            self.is_runtime_down = false;
        } else if self.questions.is_empty() {
            let node = Arc::clone(&self.node);
            let asked = async move { tokio::time::timeout(RELEARN, node.relearn()).await };
            self.questions.spawn(async move { matches!(asked.await, Ok(Ok(()))) });
        }
    }

    fn read(&self) -> Option<Vec<NodePod>> {
        let Some(directory) = &self.sources.static_pods else { return Some(Vec::new()) };
        let pods = read_directory(directory, &self.node.name);
        pods.inspect_err(|error| {
            tracing::warn!(%error, "cannot list the directory of static pods");
        })
        .ok()
    }

    /// The runtime's pods: name, grace period, and a digest of their state.
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
                // Without the label it is another kubelet's pod, which must not be terminated.
                grace,
                context: context(annotation),
                is_running: false,
                digest: 0,
            });
        }
        for container in containers {
            let Some(uid) = container.labels.get(POD_UID) else { continue };
            (&container.id, container.state).hash(digests.entry(uid.clone()).or_default());
            let is_running = container.state == ContainerPhase::Running as i32;
            if let Some(pod) = pods.get_mut(uid).filter(|_| is_running) {
                pod.is_running = true;
            }
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
                worker.pod.send_modify(|_| {});
            }
        }
    }

    /// Starts workers for desired pods, and terminates all others.
    fn reconcile(&mut self, desired: &DesiredPods, current: &BTreeMap<String, ListedPod>) {
        self.collect_ended(desired);
        for ending in &desired.ending {
            let uid = &ending.uid;
            let is_over = self.node.ends.is_over(uid);
            if !(is_over && self.node.ends.get(uid) == Some(PodEnd::Deleted)) {
                let context = ending.pod.as_ref().map_or_else(TraceContext::root, NodePod::context);
                self.end(ending.clone(), context);
            }
        }
        self.end_finished(desired);
        // Before all sources were read, no pod is terminated for being absent.
        if desired.is_complete {
            let is_missing = |uid: &String| !desired.knows(uid);
            let gone: Vec<String> =
                self.workers.keys().filter(|uid| is_missing(uid)).cloned().collect();
            for uid in gone {
                let Some(worker) = self.workers.get(&uid) else { continue };
                let pod = NodePod::clone(&worker.pod.borrow());
                let context = pod.context();
                let grace = grace(&pod);
                let pod = Some(pod);
                self.end(EndingPod { uid, grace, pod, end: PodEnd::Removed }, context);
            }
            for (uid, pod) in current.iter().filter(|(uid, _)| is_missing(uid)) {
                if let Some(grace) = pod.grace.filter(|_| !self.ending.contains_key(uid)) {
                    let uid = uid.clone();
                    let removed = EndingPod { uid, grace, pod: None, end: PodEnd::Removed };
                    self.end(removed, pod.context);
                }
            }
        }
        self.reject(desired, current);
        // Those that run already first: what they have is not for others.
        let (running, new): (Vec<_>, Vec<_>) =
            desired.wanted.iter().partition(|pod| current.contains_key(&pod.uid));
        for pod in running.into_iter().chain(new) {
            // The previous pod, or this one, is still terminating and occupies its paths, names and
            // ports.
            let name = pod.full_name();
            let has_ports = |other: &EndingTask| {
                other.pod.pod.as_ref().is_some_and(|other| host_ports::conflict(pod, other))
            };
            let is_ending = self.ending.contains_key(&pod.uid)
                || self.ending.values().any(has_ports)
                || current.iter().any(|(uid, other)| *uid != pod.uid && other.full_name == name);
            if self.has_ended(pod) || is_ending {
                continue;
            }
            if let Some(worker) = self.workers.get(&pod.uid) {
                self.update(worker, pod);
                continue;
            }
            // Pods adopted from a previous kubelet keep running.
            if current.contains_key(&pod.uid) || !self.is_refused(pod) {
                let worker = self.start(Arc::clone(pod));
                self.workers.insert(pod.uid.clone(), worker);
            }
        }
    }

    /// Ends pods of workers that have finished for the API only: another client has written their
    /// phase.
    fn end_finished(&mut self, desired: &DesiredPods) {
        for uid in &desired.finished {
            let Some(worker) = self.workers.get(uid) else { continue };
            let pod = NodePod::clone(&worker.pod.borrow());
            if !self.has_finished(&pod) {
                let (grace, context) = (grace(&pod), pod.context());
                let (uid, pod, end) = (uid.clone(), Some(pod), PodEnd::Refused);
                self.end(EndingPod { uid, grace, pod, end }, context);
            }
        }
    }

    /// Completes the work of previous kubelets that were killed. Ends pods that are gone and have
    /// left files or CSI volumes: the runtime need not know them, if their sandbox was not made.
    /// Stops those that have finished.
    async fn end_orphans(&mut self, desired: &DesiredPods, current: &BTreeMap<String, ListedPod>) {
        if !desired.is_complete || self.orphans_at.is_some_and(|at| at.elapsed() < ORPHANS) {
            return;
        }
        self.orphans_at = Some(Instant::now());
        let root = self.node.paths.root.clone();
        // Earlier kubelets of this program have not marked their directories.
        let found = in_background(move || Ok((own_pods(&root)?, csi::pods_with_volumes(&root)?)));
        let (own, mounted) = found.await.unwrap_or_default();
        let running = current.iter().filter(|(_, pod)| pod.is_running && pod.grace.is_some());
        let running = running.map(|(uid, _)| uid.clone());
        let finished: BTreeSet<String> = mounted.iter().cloned().chain(running).collect();
        self.stop_finished(desired, current, finished);
        for uid in own.into_iter().chain(mounted) {
            let is_known = desired.knows(&uid) || current.contains_key(&uid);
            if !is_known && !self.ending.contains_key(&uid) {
                let removed = EndingPod { uid, grace: 0, pod: None, end: PodEnd::Removed };
                self.end(removed, TraceContext::root());
            }
        }
    }

    /// Stops what is left of those of some pods that have finished and have no worker.
    fn stop_finished(
        &mut self,
        desired: &DesiredPods,
        current: &BTreeMap<String, ListedPod>,
        some: BTreeSet<String>,
    ) {
        while self.stopping.try_join_next().is_some() {}
        let is_left = |uid: &String| {
            let has_task = self.workers.contains_key(uid) || self.ending.contains_key(uid);
            desired.finished.contains(uid) && !has_task
        };
        let left: Vec<String> = some.into_iter().filter(is_left).collect();
        if left.is_empty() || !self.stopping.is_empty() {
            return;
        }
        let grace = |uid: String| (current.get(&uid).and_then(|pod| pod.grace).unwrap_or(0), uid);
        let left: Vec<(i64, String)> = left.into_iter().map(grace).collect();
        let node = Arc::clone(&self.node);
        self.stopping.spawn(async move {
            for (grace, uid) in left {
                if let Err(error) = worker::stop_finished(&node, &uid, grace).await {
                    tracing::warn!(uid, %error, "cannot stop a pod that has finished");
                }
            }
        });
    }

    /// Reports pods that cannot be run. One that runs continues as it was accepted; without a
    /// worker, after a restart of the kubelet, nothing could supervise it, so it is terminated.
    fn reject(&mut self, desired: &DesiredPods, current: &BTreeMap<String, ListedPod>) {
        for (identity, context, message) in &desired.rejected {
            let uid = &identity.uid;
            if let Some(worker) = self.workers.get_mut(uid) {
                if worker.refused.as_ref() != Some(message) {
                    let warning = format!("the change of the pod has no effect: {message}");
                    self.node.warn(&worker.pod.borrow(), "NotImplemented", warning);
                    worker.refused = Some(message.clone());
                }
                continue;
            }
            self.node.statuses.reject(identity.clone(), *context, "NotImplemented", message);
            let grace = current.get(uid).and_then(|running| running.grace);
            if let Some(grace) = grace.filter(|_| !self.ending.contains_key(uid)) {
                let (uid, end) = (uid.clone(), PodEnd::Refused);
                self.end(EndingPod { uid, grace, pod: None, end }, *context);
            }
        }
    }

    /// Whether a pod has terminated or is terminating.
    fn has_ended(&mut self, pod: &NodePod) -> bool {
        let Some(end) = self.node.ends.get(&pod.uid) else { return false };
        // Only such ends are requested outside this loop.
        if let PodEnd::Failed { grace, .. } = end
            && !self.node.ends.is_over(&pod.uid)
        {
            let (uid, context) = (pod.uid.clone(), pod.context());
            self.end(EndingPod { uid, grace, pod: Some(pod.clone()), end }, context);
        }
        true
    }

    /// Whether a new pod is rejected for lack of resources; reports it if so.
    fn is_refused(&self, pod: &NodePod) -> bool {
        let pressure = *self.node.pressure.lock();
        let ports = || (host_ports::TAKEN.0, host_ports::TAKEN.1.to_owned());
        let refused = refusal(pod, pressure).map(|message| (EVICTED, message));
        let refused = refused.or_else(|| self.lacks_room(pod));
        let refused = refused.or_else(|| self.has_taken_ports(pod).then(ports));
        let Some((reason, message)) = refused else { return false };
        tracing::warn!(namespace = pod.namespace, pod = pod.name, message, "pod refused");
        self.node.warn(pod, reason, message.clone());
        self.node.statuses.reject(pod.identity(), pod.context(), reason, &message);
        self.node.ends.begin(&pod.uid, PodEnd::Refused);
        self.node.ends.over(&pod.uid);
        true
    }

    fn has_finished(&self, pod: &NodePod) -> bool {
        let phase = self.node.statuses.of(&pod.uid).and_then(|status| status.phase);
        matches!(phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Why the unfinished pods leave too little for this one. Critical pods start anyway.
    fn lacks_room(&self, pod: &NodePod) -> Option<(&'static str, String)> {
        let room = self.room.filter(|_| !is_critical(pod))?;
        let active = self.node.active.lock();
        let others = active.values().filter(|other| !self.has_finished(other));
        lack(pod, others.map(|other| &**other), room)
    }

    /// Whether an unfinished pod uses a host port of this one.
    fn has_taken_ports(&self, pod: &NodePod) -> bool {
        let active = self.node.active.lock();
        active.values().any(|other| host_ports::conflict(pod, other) && !self.has_finished(other))
    }

    /// Collects the results of finished terminations.
    fn collect_ended(&mut self, desired: &DesiredPods) {
        let finished: Vec<String> = self
            .ending
            .iter()
            .filter(|(_, ending)| ending.task.is_finished())
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in finished {
            self.ending.remove(&uid);
            self.node.ends.over(&uid);
        }
        if desired.is_complete {
            let is_known = |uid: &str| desired.knows(uid) || self.ending.contains_key(uid);
            self.node.ends.retain(is_known);
            self.node.statuses.retain(is_known);
        }
    }

    fn start(&self, pod: Arc<NodePod>) -> PodWorker {
        tracing::info!(namespace = pod.namespace, pod = pod.name, uid = pod.uid, "pod added");
        self.node.active.lock().insert(pod.uid.clone(), Arc::clone(&pod));
        let (context, uid) = (pod.context(), pod.uid.clone());
        let (pod, changes) = watch::channel(pod);
        let node = Arc::clone(&self.node);
        let work = async move {
            // A pod that meets a defect keeps a worker.
            while unless_panicked(worker::run(Arc::clone(&node), changes.clone())).await.is_none() {
                tracing::error!(uid, "the worker of a pod panicked, restarting it");
                tokio::time::sleep(worker::RETRY).await;
            }
        };
        // Boxed: `scoped` has room for it twice.
        let work = ferrokube_trace::scoped(context, tracing::Span::none(), Box::pin(work));
        let task = tokio::spawn(work);
        PodWorker { pod, task, refused: None }
    }

    /// Hands a worker its pod if the API has changed it.
    fn update(&self, worker: &PodWorker, pod: &Arc<NodePod>) {
        if Arc::ptr_eq(&worker.pod.borrow(), pod) {
            return;
        }
        worker.pod.send_if_modified(|old| {
            let is_changed = **old != **pod;
            *old = Arc::clone(pod);
            is_changed
        });
        self.node.active.lock().insert(pod.uid.clone(), Arc::clone(pod));
    }

    /// Terminates a pod in the background; may shorten the grace period of a terminating one.
    fn end(&mut self, pod: EndingPod, context: TraceContext) {
        self.workers.remove(&pod.uid);
        self.node.active.lock().remove(&pod.uid);
        if let Some(ending) = self.ending.get(&pod.uid) {
            if ending.pod.grace <= pod.grace {
                return;
            }
            ending.task.abort();
        }
        self.node.ends.begin(&pod.uid, pod.end.clone());
        tracing::info!(uid = pod.uid, grace = pod.grace, "pod removed");
        let (node, own) = (Arc::clone(&self.node), pod.clone());
        let work = async move {
            let mut said = String::new();
            let attempt = async || {
                let ended = unless_panicked(end(&node, &own)).await;
                ended.unwrap_or(Err(WorkerError::Panicked))
            };
            while let Err(error) = attempt().await {
                let why = error.to_string();
                tracing::warn!(uid = own.uid, why, "cannot end the pod");
                if let Some(pod) = own.pod.as_ref().filter(|_| why != said) {
                    node.warn(pod, "FailedKillPod", format!("error killing pod: {why}"));
                    said = why;
                }
                tokio::time::sleep(END_RETRY).await;
            }
            if let Some(pod) = own.pod.filter(|_| own.end == PodEnd::Deleted) {
                node.statuses.ended(pod.identity(), pod.context());
            }
        };
        let work = ferrokube_trace::scoped(context, tracing::Span::none(), Box::pin(work));
        let task = tokio::spawn(work);
        self.ending.insert(pod.uid.clone(), EndingTask { pod, task });
    }
}

/// A pod listed by the runtime.
struct ListedPod {
    full_name: String,
    grace: Option<i64>,
    context: TraceContext,
    /// Whether any of its containers does.
    is_running: bool,
    digest: u64,
}

/// The ids of a pod's last change; without any, a trace of its own.
fn context<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> TraceContext {
    let cause = ferrokube_trace::annotation::read(annotation);
    cause.map_or_else(TraceContext::root, |cause| cause.child())
}

#[cfg(test)]
mod tests;
