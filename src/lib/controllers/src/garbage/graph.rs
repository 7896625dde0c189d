//! Who owns whom, as the metadata watches tell it. Compact: objects without owners cost 40 bytes.

use crate::monitor::{Sink, qualified};
use crate::queue::Queue;
use ferrokube_client::{DiscoveredResource, cause};
use ferrokube_trace::TraceContext;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// The finalizer of foreground deletion.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that keeps dependents.
pub(super) const ORPHAN: &str = "orphan";

/// An object's uid.
pub(super) type Uid = Arc<str>;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Task {
    /// Look at a dependent: are its owners there?
    Dependent(Uid),
    /// Look at an owner that is being deleted with a finalizer of ours.
    Owner(Uid),
}

/// Where an object is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) resource: Arc<DiscoveredResource>,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// An object that has owners.
#[derive(Clone, Debug)]
pub(super) struct Dependent {
    pub(super) place: Place,
    pub(super) uid: Uid,
    pub(super) resource_version: String,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) terminating: bool,
}

/// An object that is being deleted and waits for us.
#[derive(Clone, Debug)]
pub(super) struct Dying {
    pub(super) place: Place,
    pub(super) uid: Uid,
    pub(super) foreground: bool,
}

/// The graph; the monitor writes it, the workers read it.
pub(super) struct Graph {
    state: Mutex<State>,
    queue: Queue<Task>,
}

#[derive(Default)]
struct State {
    /// Every object that was seen: which resource it is of, and in which list it was seen last.
    live: HashMap<Uid, Seen>,
    dependents: HashMap<Uid, Dependent>,
    /// By owner's uid.
    owned: HashMap<Uid, HashSet<Uid>>,
    dying: HashMap<Uid, Dying>,
    resources: Vec<(Arc<DiscoveredResource>, u32)>,
    /// Their places, by name.
    indexes: HashMap<String, u16>,
    /// Resources that were listed to the end at least once.
    listed: HashSet<String>,
}

#[derive(Clone, Copy)]
struct Seen {
    resource: u16,
    /// Of the namespace: enough to see that a reference crosses namespaces, without its name for every object. Equal hashes of two namespaces only
    /// leave a wrong reference alone.
    namespace: u32,
    list: u32,
}

impl Graph {
    pub(super) fn new(queue: Queue<Task>) -> Self {
        Self { state: Mutex::default(), queue }
    }

    pub(super) fn dependent(&self, uid: &str) -> Option<Dependent> {
        self.lock().dependents.get(uid).cloned()
    }

    pub(super) fn dying(&self, uid: &str) -> Option<Dying> {
        self.lock().dying.get(uid).cloned()
    }

    /// The objects that refer to an owner.
    pub(super) fn owned_by(&self, uid: &str) -> Vec<Dependent> {
        let state = self.lock();
        state.owned.get(uid).into_iter().flatten().filter_map(|dependent| state.dependents.get(dependent)).cloned().collect()
    }

    /// Whether all objects of these resources were seen: only then is it known that an owner has no further dependents.
    pub(super) fn has_listed<'a>(&self, resources: impl Iterator<Item = &'a DiscoveredResource>) -> bool {
        let state = self.lock();
        let mut resources = resources;
        resources.all(|resource| state.listed.contains(&qualified(resource)))
    }

    /// Queues a task because of an action.
    pub(super) fn queue(&self, task: Task, cause: Option<TraceContext>) {
        self.queue.add(task, cause);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }
}

impl Sink for Graph {
    fn list_begins(&self, resource: &DiscoveredResource) {
        let mut state = self.lock();
        let index = state.index(resource);
        state.resources[usize::from(index)].1 += 1;
    }

    fn list_ends(&self, resource: &DiscoveredResource) {
        let mut state = self.lock();
        let index = state.index(resource);
        let list = state.resources[usize::from(index)].1;
        state.listed.insert(qualified(resource));
        let missed: Vec<Uid> = state.live.iter().filter(|(_, seen)| seen.resource == index && seen.list != list).map(|(uid, _)| uid.clone()).collect();
        let tasks: Vec<Task> = missed.iter().flat_map(|uid| state.remove(uid)).collect();
        drop(state);
        // Who deleted what was missed cannot be known.
        tasks.into_iter().for_each(|task| self.queue(task, None));
    }

    fn applied(&self, resource: &DiscoveredResource, metadata: ObjectMeta) {
        let cause = cause(&metadata);
        let tasks = self.lock().apply(resource, metadata);
        tasks.into_iter().for_each(|task| self.queue(task, cause));
    }

    fn deleted(&self, _resource: &DiscoveredResource, metadata: ObjectMeta) {
        // The last state carries the ids of the deletion: what follows from it belongs to it.
        let cause = cause(&metadata);
        let tasks = self.lock().remove(metadata.uid.as_deref().unwrap_or_default());
        tasks.into_iter().for_each(|task| self.queue(task, cause));
    }

    fn forgotten(&self, resource: &DiscoveredResource) {
        // Not deletions: dependents elsewhere are judged by live reads, which fail while the kind is unknown.
        let mut state = self.lock();
        let index = state.index(resource);
        state.listed.remove(&qualified(resource));
        let gone: Vec<Uid> = state.live.iter().filter(|(_, seen)| seen.resource == index).map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            state.remove(&uid);
        }
    }
}

fn hash(namespace: Option<&str>) -> u32 {
    let mut hasher = DefaultHasher::new();
    namespace.hash(&mut hasher);
    hasher.finish() as u32
}

impl State {
    fn index(&mut self, resource: &DiscoveredResource) -> u16 {
        let resources = &mut self.resources;
        *self.indexes.entry(qualified(resource)).or_insert_with(|| {
            resources.push((Arc::new(resource.clone()), 0));
            u16::try_from(resources.len() - 1).unwrap_or(u16::MAX)
        })
    }

    fn apply(&mut self, resource: &DiscoveredResource, metadata: ObjectMeta) -> Vec<Task> {
        let Some(uid) = metadata.uid.as_deref().map(Uid::from) else { return Vec::new() };
        let index = self.index(resource);
        let (resource, list) = self.resources[usize::from(index)].clone();
        self.live.insert(uid.clone(), Seen { resource: index, namespace: hash(metadata.namespace.as_deref()), list });
        let place = Place { resource, namespace: metadata.namespace, name: metadata.name.unwrap_or_default() };
        let finalizers = metadata.finalizers.unwrap_or_default();
        let terminating = metadata.deletion_timestamp.is_some();
        let mut tasks = self.note_dying(&uid, &place, &finalizers, terminating);
        let owners = metadata.owner_references.unwrap_or_default();
        let resource_version = metadata.resource_version.unwrap_or_default();
        let dependent = Dependent { place, uid, resource_version, owners, finalizers, terminating };
        tasks.extend(self.note_dependent(dependent));
        tasks
    }

    fn note_dying(&mut self, uid: &Uid, place: &Place, finalizers: &[String], terminating: bool) -> Vec<Task> {
        let foreground = finalizers.iter().any(|finalizer| finalizer == FOREGROUND);
        if !terminating || !(foreground || finalizers.iter().any(|finalizer| finalizer == ORPHAN)) {
            self.dying.remove(uid);
            return Vec::new();
        }
        self.dying.insert(uid.clone(), Dying { place: place.clone(), uid: uid.clone(), foreground });
        vec![Task::Owner(uid.clone())]
    }

    fn note_dependent(&mut self, dependent: Dependent) -> Vec<Task> {
        let uid = dependent.uid.clone();
        let before = self.dependents.remove(&uid);
        let mut tasks = Vec::new();
        for owner in before.iter().flat_map(|before| &before.owners) {
            if !dependent.owners.iter().any(|now| now.uid == owner.uid) {
                tasks.extend(self.disown(&owner.uid, &uid));
            }
        }
        if dependent.owners.is_empty() {
            return tasks;
        }
        for owner in &dependent.owners {
            self.owned.entry(Uid::from(owner.uid.as_str())).or_default().insert(uid.clone());
            // A change of the reference can end a foreground deletion's wait.
            tasks.extend(self.dying.get(owner.uid.as_str()).map(|dying| Task::Owner(dying.uid.clone())));
        }
        if dependent.owners.iter().any(|owner| !self.fits(owner, &dependent.place)) {
            tasks.push(Task::Dependent(uid.clone()));
        }
        self.dependents.insert(uid, dependent);
        tasks
    }

    /// Whether the owner was seen, of the kind that the reference says, and is not on its way out.
    fn fits(&self, owner: &OwnerReference, dependent: &Place) -> bool {
        let Some(seen) = self.live.get(owner.uid.as_str()) else { return false };
        let Some((resource, _)) = self.resources.get(usize::from(seen.resource)) else { return false };
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let same_kind = resource.resource.kind == owner.kind && resource.resource.group == group;
        let reachable = !resource.namespaced || seen.namespace == hash(dependent.namespace.as_deref());
        // Names are not kept for every object; a reference with the right uid but another name is found by the live read of objects that are also
        // owners of something wrong, and never deletes anything wrongly.
        same_kind && reachable && !self.dying.contains_key(owner.uid.as_str())
    }

    fn disown(&mut self, owner: &str, dependent: &Uid) -> Option<Task> {
        if let Some(owned) = self.owned.get_mut(owner) {
            owned.remove(dependent);
            if owned.is_empty() {
                self.owned.remove(owner);
            }
        }
        self.dying.get(owner).map(|dying| Task::Owner(dying.uid.clone()))
    }

    /// The object is gone: its dependents must be looked at, and its owners may go on.
    fn remove(&mut self, uid: &str) -> Vec<Task> {
        let Some((uid, _)) = self.live.remove_entry(uid) else { return Vec::new() };
        // A table keeps its room: that of a hundred thousand objects that are gone would be held for ever.
        if self.live.capacity() > 8 * self.live.len().max(512) {
            self.live.shrink_to(2 * self.live.len());
        }
        self.dying.remove(&uid);
        let mut tasks = Vec::new();
        if let Some(gone) = self.dependents.remove(&uid) {
            for owner in &gone.owners {
                tasks.extend(self.disown(&owner.uid, &uid));
            }
        }
        tasks.extend(self.owned.get(&uid).into_iter().flatten().cloned().map(Task::Dependent));
        tasks
    }
}
