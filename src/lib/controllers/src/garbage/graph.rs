//! The ownership graph, from metadata watches. An object without owners costs a slot of 33 bytes.

use super::recent::RecentMap;
use crate::monitor::{MetadataListener, Observed, qualified};
use crate::queue::WorkQueue;
use ferrokube_client::DiscoveredResource;
use ferrokube_trace::TraceContext;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Finalizer of foreground deletion.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of orphaning deletion.
pub(super) const ORPHAN: &str = "orphan";

/// Looking through dependents for longer is followed by a pause, as many times as long.
const LONG: Duration = Duration::from_millis(1);
const PAUSES: u32 = 10;
const MAX_PAUSE: Duration = Duration::from_secs(10);

pub(super) type Uid = Arc<str>;

/// A queued task. Namespaces take turns: each task has the hash of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum GarbageTask {
    /// Check whether a dependent's owners exist.
    Dependent(Uid, u32),
    /// Process an owner in deletion with one of our finalizers.
    Owner(Uid, u32),
}

impl GarbageTask {
    /// Hash of the object's namespace.
    pub(super) fn namespace(&self) -> u32 {
        let (Self::Dependent(_, namespace) | Self::Owner(_, namespace)) = self;
        *namespace
    }
}

#[derive(Clone, Debug)]
pub(super) struct ObjectLocation {
    pub(super) resource: Arc<DiscoveredResource>,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl ObjectLocation {
    /// Whether an object here can have an owner there: cluster-scoped, or in the same namespace.
    fn can_refer_to(&self, owner: &Self) -> bool {
        !owner.resource.namespaced || self.namespace == owner.namespace
    }
}

/// An object with owners.
#[derive(Clone, Debug)]
pub(super) struct Dependent {
    pub(super) location: ObjectLocation,
    pub(super) uid: Uid,
    pub(super) resource_version: String,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) terminating: bool,
}

impl Dependent {
    /// The task that checks its owners.
    pub(super) fn task(&self) -> GarbageTask {
        GarbageTask::Dependent(self.uid.clone(), hash(self.location.namespace.as_deref()))
    }
}

/// An object in deletion that waits for us.
#[derive(Clone, Debug)]
pub(super) struct DyingOwner {
    pub(super) location: ObjectLocation,
    pub(super) uid: Uid,
    pub(super) foreground: bool,
}

impl DyingOwner {
    fn task(&self) -> GarbageTask {
        GarbageTask::Owner(self.uid.clone(), hash(self.location.namespace.as_deref()))
    }
}

/// The graph. Written by the monitor, read by the workers.
pub(super) struct OwnerGraph {
    state: Mutex<GraphState>,
    queue: WorkQueue<GarbageTask>,
}

#[derive(Default)]
struct GraphState {
    uid_keys: [RandomState; 2],
    /// Every object seen, with its resource and the list in which it was last seen.
    live: HashMap<UidHash, LiveObject>,
    dependents: HashMap<UidHash, Arc<Dependent>>,
    /// Dependents by owner.
    owned: HashMap<UidHash, HashSet<UidHash>>,
    dying: HashMap<UidHash, DyingOwner>,
    /// Owners in deletion whose dependents take long to read, with the pause until these are read
    /// again, whatever happens to one of them.
    pauses: HashMap<UidHash, Duration>,
    /// Watched resources, referenced by index. Slots of forgotten resources are reused.
    resources: Vec<Option<ResourceSlot>>,
    /// Slot indexes by resource name.
    indexes: HashMap<String, u16>,
    /// Owners whose deletion was seen while they had dependents, and whether they were namespaced.
    departed: RecentMap<bool>,
    /// Resources listed completely at least once.
    listed: HashSet<String>,
}

/// Stands for a uid in a third of its memory. Keyed, so that no client finds two uids with
/// the same hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct UidHash([u64; 2]);

/// A resource in its watched version, and the number of its last list.
struct ResourceSlot {
    resource: Arc<DiscoveredResource>,
    list: u32,
}

#[derive(Clone, Copy)]
struct LiveObject {
    resource: u16,
    /// Hashes of namespace and name: enough to detect a wrong reference without storing the
    /// strings. A collision only leaves a wrong reference alone.
    namespace: u32,
    name: u32,
    list: u32,
}

impl OwnerGraph {
    pub(super) fn new(queue: WorkQueue<GarbageTask>) -> Self {
        Self { state: Mutex::default(), queue }
    }

    pub(super) fn dependent(&self, uid: &str) -> Option<Arc<Dependent>> {
        let state = self.lock();
        state.dependents.get(&state.uid_hash(uid)).cloned()
    }

    pub(super) fn dying(&self, uid: &str) -> Option<DyingOwner> {
        let state = self.lock();
        state.dying.get(&state.uid_hash(uid)).cloned()
    }

    /// The dependents of an owner that can refer to it: a user that knows its uid can write it into
    /// an object of another namespace, which must not delay the owner.
    pub(super) fn owned_by(&self, uid: &str, owner: &ObjectLocation) -> Vec<Arc<Dependent>> {
        let state = self.lock();
        let dependents = state
            .owned
            .get(&state.uid_hash(uid))
            .into_iter()
            .flatten()
            .filter_map(|dependent| state.dependents.get(dependent));
        dependents.filter(|dependent| dependent.location.can_refer_to(owner)).cloned().collect()
    }

    /// Whether all objects of these resources were seen; only then is it known that an owner has no
    /// more dependents.
    pub(super) fn has_listed<'a>(
        &self,
        resources: impl Iterator<Item = &'a DiscoveredResource>,
    ) -> bool {
        let state = self.lock();
        let mut resources = resources;
        resources.all(|resource| state.listed.contains(&qualified(resource)))
    }

    /// Whether the owner's deletion was seen, and a dependent with or without a namespace could
    /// refer to it.
    pub(super) fn saw_deletion(&self, owner: &str, dependent_namespaced: bool) -> bool {
        self.lock()
            .departed
            .get(owner)
            .is_some_and(|namespaced| dependent_namespaced || !namespaced)
    }

    /// Whether an owner lives in a namespace where the dependent cannot refer to it.
    pub(super) fn lives_elsewhere(&self, owner: &str, dependent: &ObjectLocation) -> bool {
        let state = self.lock();
        let Some(seen) = state.live.get(&state.uid_hash(owner)) else { return false };
        state.slot(seen.resource).is_some_and(|slot| slot.resource.namespaced)
            && seen.namespace != hash(dependent.namespace.as_deref())
    }

    pub(super) fn queue(&self, task: GarbageTask, cause: Option<TraceContext>) {
        let pause = match &task {
            GarbageTask::Owner(uid, _) => {
                let state = self.lock();
                state.pauses.get(&state.uid_hash(uid)).copied()
            }
            GarbageTask::Dependent(..) => None,
        };
        match pause {
            Some(pause) => self.queue.add_after(task, cause, pause),
            None => self.queue.add(task, cause),
        }
    }

    /// Notes how long it took to look through the dependents of an owner in deletion: a tenant
    /// makes a hundred thousand, and each change of one is an event.
    pub(super) fn took(&self, owner: &Uid, took: Duration) {
        let mut state = self.lock();
        let key = state.uid_hash(owner);
        if took >= LONG && state.dying.contains_key(&key) {
            state.pauses.insert(key, (took * PAUSES).min(MAX_PAUSE));
        } else {
            state.pauses.remove(&key);
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, GraphState> {
        self.state.lock()
    }
}

impl MetadataListener for OwnerGraph {
    fn list_begins(&self, resource: &DiscoveredResource) {
        let mut state = self.lock();
        let index = state.index(resource);
        if let Some(slot) = &mut state.resources[usize::from(index)] {
            slot.list += 1;
        }
    }

    fn list_ends(&self, resource: &DiscoveredResource) {
        let mut state = self.lock();
        let index = state.index(resource);
        let list = state.slot(index).map_or(0, |slot| slot.list);
        state.listed.insert(qualified(resource));
        let missed: Vec<UidHash> = state
            .live
            .iter()
            .filter(|(_, seen)| seen.resource == index && seen.list != list)
            .map(|(uid, _)| *uid)
            .collect();
        let tasks: Vec<GarbageTask> =
            missed.into_iter().flat_map(|uid| state.remove(uid)).collect();
        drop(state);
        // The cause of missed deletions is unknown.
        tasks.into_iter().for_each(|task| self.queue(task, None));
    }

    fn applied(&self, resource: &DiscoveredResource, object: &Observed) {
        let tasks = self.lock().apply(resource, &object.metadata);
        tasks.into_iter().for_each(|task| self.queue(task, object.cause));
    }

    fn deleted(&self, resource: &DiscoveredResource, object: &Observed) {
        let uid = object.metadata.uid.as_deref().unwrap_or_default();
        let mut state = self.lock();
        state.note_departed(uid, resource.namespaced);
        let key = state.uid_hash(uid);
        let tasks = state.remove(key);
        drop(state);
        // The last state carries the ids of the deletion, to which all that follows belongs.
        tasks.into_iter().for_each(|task| self.queue(task, object.cause));
    }

    fn forgotten(&self, resource: &DiscoveredResource) {
        // Not deletions: dependents elsewhere are decided by live reads, which fail while the kind
        // is unknown.
        let mut state = self.lock();
        let index = state.index(resource);
        state.listed.remove(&qualified(resource));
        let gone: Vec<UidHash> = state
            .live
            .iter()
            .filter(|(_, seen)| seen.resource == index)
            .map(|(uid, _)| *uid)
            .collect();
        for uid in gone {
            state.remove(uid);
        }
        state.resources[usize::from(index)] = None;
        state.indexes.remove(&qualified(resource));
    }
}

fn hash(word: Option<&str>) -> u32 {
    let mut hasher = DefaultHasher::new();
    word.hash(&mut hasher);
    hasher.finish() as u32
}

impl GraphState {
    fn uid_hash(&self, uid: &str) -> UidHash {
        UidHash(self.uid_keys.each_ref().map(|key| key.hash_one(uid)))
    }

    /// The resource's slot, created if needed, updated to the served version.
    fn index(&mut self, resource: &DiscoveredResource) -> u16 {
        let Self { resources, indexes, .. } = self;
        let index = *indexes.entry(qualified(resource)).or_insert_with(|| {
            let free = resources.iter().position(Option::is_none).unwrap_or(resources.len());
            if free == resources.len() {
                resources.push(None);
            }
            u16::try_from(free).expect("far fewer resources are served at a time")
        });
        match &mut resources[usize::from(index)] {
            Some(slot)
                if slot.resource.resource != resource.resource
                    || slot.resource.namespaced != resource.namespaced =>
            {
                slot.resource = Arc::new(resource.clone());
            }
            Some(_) => {}
            empty => *empty = Some(ResourceSlot { resource: Arc::new(resource.clone()), list: 0 }),
        }
        index
    }

    fn slot(&self, index: u16) -> Option<&ResourceSlot> {
        self.resources.get(usize::from(index)).and_then(Option::as_ref)
    }

    fn apply(&mut self, resource: &DiscoveredResource, metadata: &ObjectMeta) -> Vec<GarbageTask> {
        let Some(uid) = metadata.uid.as_deref() else { return Vec::new() };
        let key = self.uid_hash(uid);
        let index = self.index(resource);
        let Some(slot) = self.slot(index) else { return Vec::new() };
        let (resource, list) = (slot.resource.clone(), slot.list);
        let (namespace, name) =
            (hash(metadata.namespace.as_deref()), hash(metadata.name.as_deref()));
        self.live.insert(key, LiveObject { resource: index, namespace, name, list });
        let terminating = metadata.deletion_timestamp.is_some();
        let has_owners = metadata.owner_references.as_ref().is_some_and(|all| !all.is_empty());
        if !has_owners && !terminating && !self.dependents.contains_key(&key) {
            // Most objects: copied for nothing.
            self.dying.remove(&key);
            self.pauses.remove(&key);
            return Vec::new();
        }
        let location = ObjectLocation {
            resource,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone().unwrap_or_default(),
        };
        let finalizers = metadata.finalizers.clone().unwrap_or_default();
        let uid = Uid::from(uid);
        let mut tasks = self.note_dying(&uid, &location, &finalizers, terminating);
        let owners = metadata.owner_references.clone().unwrap_or_default();
        let resource_version = metadata.resource_version.clone().unwrap_or_default();
        let dependent =
            Dependent { location, uid, resource_version, owners, finalizers, terminating };
        tasks.extend(self.note_dependent(dependent));
        tasks
    }

    fn note_dying(
        &mut self,
        uid: &Uid,
        location: &ObjectLocation,
        finalizers: &[String],
        terminating: bool,
    ) -> Vec<GarbageTask> {
        let foreground = finalizers.iter().any(|finalizer| finalizer == FOREGROUND);
        if !terminating || !(foreground || finalizers.iter().any(|finalizer| finalizer == ORPHAN)) {
            let key = self.uid_hash(uid);
            self.dying.remove(&key);
            self.pauses.remove(&key);
            return Vec::new();
        }
        let dying = DyingOwner { location: location.clone(), uid: uid.clone(), foreground };
        let task = dying.task();
        self.dying.insert(self.uid_hash(uid), dying);
        vec![task]
    }

    fn note_dependent(&mut self, dependent: Dependent) -> Vec<GarbageTask> {
        let uid = self.uid_hash(&dependent.uid);
        let before = self.dependents.remove(&uid);
        let mut tasks = Vec::new();
        if let Some(before) = before.filter(|before| before.owners != dependent.owners) {
            let now: HashSet<&str> =
                dependent.owners.iter().map(|owner| owner.uid.as_str()).collect();
            for owner in before.owners.iter().filter(|owner| !now.contains(owner.uid.as_str())) {
                tasks.extend(self.disown(&owner.uid, uid));
            }
        }
        if dependent.owners.is_empty() {
            return tasks;
        }
        for owner in &dependent.owners {
            let owner = self.uid_hash(&owner.uid);
            self.owned.entry(owner).or_default().insert(uid);
            // A changed reference can end a foreground deletion's wait.
            tasks.extend(self.dying.get(&owner).map(DyingOwner::task));
        }
        if dependent.owners.iter().any(|owner| !self.fits(owner, &dependent.location)) {
            tasks.push(dependent.task());
        }
        self.dependents.insert(uid, Arc::new(dependent));
        tasks
    }

    /// Whether the owner is live, with the referenced kind and name, and not being deleted.
    fn fits(&self, owner: &OwnerReference, dependent: &ObjectLocation) -> bool {
        let key = self.uid_hash(&owner.uid);
        let Some(seen) = self.live.get(&key) else { return false };
        let Some(ResourceSlot { resource, .. }) = self.slot(seen.resource) else { return false };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let same_kind = resource.resource.kind == owner.kind && resource.resource.group == group;
        let reachable =
            !resource.namespaced || seen.namespace == hash(dependent.namespace.as_deref());
        same_kind
            && reachable
            && seen.name == hash(Some(&owner.name))
            && !self.dying.contains_key(&key)
    }

    fn disown(&mut self, owner: &str, dependent: UidHash) -> Option<GarbageTask> {
        let owner = self.uid_hash(owner);
        if let Some(owned) = self.owned.get_mut(&owner) {
            owned.remove(&dependent);
            if owned.is_empty() {
                self.owned.remove(&owner);
            }
        }
        self.dying.get(&owner).map(DyingOwner::task)
    }

    fn note_departed(&mut self, uid: &str, namespaced: bool) {
        if !self.owned.contains_key(&self.uid_hash(uid)) {
            return;
        }
        self.departed.insert(uid, namespaced);
    }

    /// Handles a deletion: its dependents must be checked, and its owners may proceed.
    fn remove(&mut self, uid: UidHash) -> Vec<GarbageTask> {
        if self.live.remove(&uid).is_none() {
            return Vec::new();
        }
        // Maps keep their capacity: release that of a hundred thousand deleted objects.
        if self.live.capacity() > 8 * self.live.len().max(512) {
            self.live.shrink_to(2 * self.live.len());
        }
        self.dying.remove(&uid);
        self.pauses.remove(&uid);
        let mut tasks = Vec::new();
        if let Some(gone) = self.dependents.remove(&uid) {
            for owner in &gone.owners {
                tasks.extend(self.disown(&owner.uid, uid));
            }
        }
        let owned = self.owned.get(&uid).into_iter().flatten();
        tasks.extend(
            owned
                .filter_map(|dependent| self.dependents.get(dependent))
                .map(|dependent| dependent.task()),
        );
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::GroupVersionKind;
    use kube::discovery::ApiResource;

    fn gears(version: &str) -> DiscoveredResource {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("ex.com", version, "Gear"),
            "gears",
        );
        DiscoveredResource { resource, namespaced: true, verbs: Vec::new() }
    }

    fn metadata(uid: &str, owner: Option<(&str, &str)>) -> Observed {
        let owner = owner.map(|(name, uid)| OwnerReference {
            api_version: "ex.com/v1".into(),
            kind: "Gear".into(),
            name: name.into(),
            uid: uid.into(),
            ..OwnerReference::default()
        });
        let owner_references = owner.map(|owner| vec![owner]);
        ObjectMeta {
            name: Some(format!("gear-{uid}")),
            namespace: Some("u".into()),
            uid: Some(uid.into()),
            owner_references,
            ..ObjectMeta::default()
        }
        .into()
    }

    fn list(graph: &OwnerGraph, resource: &DiscoveredResource, objects: &[Observed]) {
        graph.list_begins(resource);
        objects.iter().for_each(|object| graph.applied(resource, object));
        graph.list_ends(resource);
    }

    #[test]
    fn a_resource_that_is_served_in_another_version_is_known_by_that() {
        let graph = OwnerGraph::new(WorkQueue::default());
        let objects = [metadata("a", None), metadata("b", Some(("gear-a", "a")))];
        let version = || {
            graph
                .dependent("b")
                .map(|dependent| dependent.location.resource.resource.version.clone())
        };
        list(&graph, &gears("v1"), &objects);
        assert_eq!(version().as_deref(), Some("v1"));
        list(&graph, &gears("v2"), &objects);
        assert_eq!(version().as_deref(), Some("v2"));
        assert_eq!(graph.lock().resources.len(), 1);
        // Deleted and recreated: old knowledge is gone, and nothing grows.
        graph.forgotten(&gears("v2"));
        assert_eq!(version(), None);
        assert!(graph.lock().live.is_empty() && graph.lock().owned.is_empty());
        list(&graph, &gears("v3"), &objects);
        assert_eq!(version().as_deref(), Some("v3"));
        assert_eq!(graph.lock().resources.len(), 1);
        assert!(graph.queue.is_empty(), "every owner lives");
    }

    #[tokio::test(start_paused = true)]
    async fn fault_34_an_owner_of_many_is_looked_at_for_a_part_of_the_time() {
        let graph = OwnerGraph::new(WorkQueue::default());
        let mut owner = metadata("a", None);
        owner.metadata.deletion_timestamp =
            serde_json::from_value("2026-01-01T00:00:00Z".into()).ok();
        owner.metadata.finalizers = Some(vec![FOREGROUND.to_owned()]);
        let dependent = metadata("b", Some(("gear-a", "a")));
        list(&graph, &gears("v1"), &[owner, dependent.clone()]);
        let began = tokio::time::Instant::now();
        let (sender, mut looked) = tokio::sync::mpsc::unbounded_channel();
        let work = graph.queue.run("test", 1, |task, _| {
            if let GarbageTask::Owner(uid, _) = &task {
                graph.took(uid, Duration::from_millis(50));
                graph.applied(&gears("v1"), &dependent);
            }
            let _ = sender.send((matches!(task, GarbageTask::Owner(..)), began.elapsed()));
            async { Ok::<_, std::io::Error>(crate::queue::Next::Done) }
        });
        let all = async {
            let mut owners = Vec::new();
            while owners.len() < 3 {
                owners.extend(looked.recv().await.filter(|(is_owner, _)| *is_owner));
            }
            owners
        };
        let owners =
            tokio::select! { () = work => panic!("it runs until dropped"), all = all => all };
        let between = |at: usize| (owners[at + 1].1 - owners[at].1).as_millis();
        assert!(between(0) >= 500 && between(1) >= 500, "{owners:?}");
        graph.deleted(&gears("v1"), &metadata("a", None));
        assert!(graph.lock().pauses.is_empty());
    }

    #[test]
    fn a_reference_with_another_name_is_looked_at() {
        let graph = OwnerGraph::new(WorkQueue::default());
        list(&graph, &gears("v1"), &[metadata("a", None), metadata("b", Some(("gear-a", "a")))]);
        assert!(graph.queue.is_empty());
        graph.applied(&gears("v1"), &metadata("c", Some(("wheel", "a"))));
        assert_eq!(graph.queue.len(), 1);
    }

    #[test]
    fn a_reference_from_another_namespace_makes_no_dependent() {
        let graph = OwnerGraph::new(WorkQueue::default());
        let within = |namespace: &str, uid: &str| {
            let Observed { mut metadata, cause } = metadata(uid, Some(("gear-a", "a")));
            metadata.namespace = Some(namespace.into());
            Observed { metadata, cause }
        };
        list(
            &graph,
            &gears("v1"),
            &[metadata("a", None), within("u", "near"), within("far", "far")],
        );
        let location = |namespaced: bool, namespace: Option<&str>| ObjectLocation {
            resource: Arc::new(DiscoveredResource { namespaced, ..gears("v1") }),
            namespace: namespace.map(str::to_owned),
            name: "gear-a".into(),
        };
        let owned_by = |owner: &ObjectLocation| {
            let mut uids: Vec<String> = graph
                .owned_by("a", owner)
                .iter()
                .map(|dependent| dependent.uid.to_string())
                .collect();
            uids.sort_unstable();
            uids
        };
        assert_eq!(owned_by(&location(true, Some("u"))), ["near"]);
        assert_eq!(owned_by(&location(false, None)), ["far", "near"]);
    }

    #[test]
    fn only_seen_deletions_are_remembered_as_such() {
        let graph = OwnerGraph::new(WorkQueue::default());
        list(&graph, &gears("v1"), &[metadata("a", None), metadata("b", Some(("gear-a", "a")))]);
        graph.forgotten(&gears("v1"));
        assert!(!graph.saw_deletion("a", true));
        list(&graph, &gears("v1"), &[metadata("a", None), metadata("b", Some(("gear-a", "a")))]);
        graph.deleted(&gears("v1"), &metadata("a", None));
        assert!(graph.saw_deletion("a", true));
        assert!(
            !graph.saw_deletion("a", false),
            "a cluster-scoped object cannot have had this owner"
        );
    }
}
