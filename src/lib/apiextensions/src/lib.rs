//! Custom resources: a loop that follows the CustomResourceDefinitions, says which names they have,
//! serves them, and removes the objects of those that are deleted.
//!
//! A definition is served as soon as its write is acknowledged: the handler waits for the loop
//! ([`Custom::settled`]), which puts definitions into the catalog before it writes any status.

mod build;
mod cleanup;
mod hooks;
mod names;
mod review;
mod rules;
mod scale;
mod status;
mod webhook;

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::Reason;
use ferrokube_registry::offload::{INTERNAL, block_in_place, leave_worker};
use ferrokube_registry::{Informer, Local, Notice, Registry};
use ferrokube_schema::Schema;
use ferrokube_storage::Key;
use names::{Decided, Names};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The group of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// A write waits so long for its definition to be served.
const SETTLE: Duration = Duration::from_millis(500);
/// Between two tries of a status or a removal that failed.
const RETRY: Duration = Duration::from_secs(1);

/// What requests need of the loop.
pub struct Custom {
    observed: watch::Sender<u64>,
}

impl Default for Custom {
    fn default() -> Self {
        Self { observed: watch::Sender::new(0) }
    }
}

impl Custom {
    /// Waits until the loop has followed a write of a definition; not for ever, since that write is
    /// done in any case.
    pub async fn settled(&self, revision: u64) {
        let mut observed = self.observed.subscribe();
        let _ = tokio::time::timeout(SETTLE, observed.wait_for(|seen| *seen >= revision)).await;
    }
}

/// One definition, as it is now. What is needed of it again and again is beside it: the object
/// itself is let go when there is nothing to do about it, since a thousand parsed definitions are a
/// hundred times as large as their bytes.
struct Known {
    object: Option<Arc<Document>>,
    key: Key,
    group: String,
    plural: String,
    requested: Names,
    shape: Shape,
    /// The revision that created it.
    since: u64,
    /// The names that it has.
    accepted: Names,
    decided: Decided,
    /// What was put into the catalog last.
    served: Option<Served>,
    /// Why its objects cannot be served.
    broken: Option<String>,
}

/// What tells whether anything but the status of a definition changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    uid: String,
    generation: i64,
    terminating: bool,
}

impl Shape {
    fn of(object: &Document) -> Self {
        let generation =
            object.get(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(1);
        Self { uid: object.uid().to_owned(), generation, terminating: object.is_terminating() }
    }
}

/// What is to be decided again.
#[derive(Default)]
struct Undecided {
    /// Groups in which names may have become free: all their definitions.
    groups: BTreeSet<String>,
    /// Definitions that are new, or changed but for their names.
    names: BTreeSet<String>,
}

/// What tells one state of a served definition from another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    shape: Shape,
    names: Names,
}

/// The loop's state.
pub struct Follower {
    registry: Registry,
    client: Local,
    metadata: Option<Arc<Schema>>,
    known: BTreeMap<String, Known>,
    /// The definitions of each group.
    members: HashMap<String, BTreeSet<String>>,
    /// The names of bundled kinds, by group.
    natives: HashMap<String, Vec<Names>>,
    /// The names that are taken, by group: what is decided for a new definition does not need a
    /// look at all others.
    taken: HashMap<String, names::Taken>,
    /// Definitions that are being deleted.
    terminating: BTreeSet<String>,
    /// Definitions whose status is to be looked at.
    dirty: BTreeSet<String>,
    removing: HashSet<String>,
    removals: JoinSet<String>,
}

impl Follower {
    /// Serves every definition that there is; [`Self::run`] goes on from there. `None` when
    /// definitions are not served.
    pub fn start(registry: &Registry, custom: &Custom) -> Option<(Self, Informer)> {
        let client = Local::new(registry, GROUP, "v1", PLURAL)?;
        let mut informer = Informer::new(registry, GROUP, "v1", PLURAL)?;
        let metadata = client
            .served()
            .version()
            .schema
            .properties
            .get("metadata")
            .map(|property| Arc::clone(property.schema.shared()));
        let mut follower = Self {
            registry: registry.clone(),
            client,
            metadata,
            known: BTreeMap::new(),
            members: HashMap::new(),
            natives: names::natives(registry.catalog()),
            taken: HashMap::new(),
            terminating: BTreeSet::new(),
            dirty: BTreeSet::new(),
            removing: HashSet::new(),
            removals: JoinSet::new(),
        };
        follower.observe(vec![Notice::Replaced(informer.snapshot())], custom);
        Some((follower, informer))
    }

    /// Follows until the store closes.
    pub async fn run(mut self, mut informer: Informer, custom: impl AsRef<Custom>) {
        loop {
            self.settle_statuses().await;
            self.begin_removals();
            let retry = if self.dirty.is_empty() { Duration::from_secs(3600) } else { RETRY };
            tokio::select! {
                found = informer.next() => match found {
                    // A definition may be large, and its patterns and rules are read again.
                    Some(found) => block_in_place(|| self.observe(found.read(), custom.as_ref())),
                    None => return,
                },
                Some(ended) = self.removals.join_next() => self.removal_ended(ended.ok()),
                () = tokio::time::sleep(retry) => {}
            }
        }
    }

    fn removal_ended(&mut self, name: Option<String>) {
        match name {
            Some(name) => _ = self.removing.remove(&name),
            // It panicked: which one is not known. All are looked at again.
            None => self.removing.clear(),
        }
    }

    /// Takes notices in, and brings the catalog up to date.
    fn observe(&mut self, notices: Vec<Notice>, custom: &Custom) {
        let mut last = 0;
        let mut undecided = Undecided::default();
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    let names: HashSet<&str> = all.iter().map(|(key, _)| key.name()).collect();
                    let gone: Vec<String> = self
                        .known
                        .keys()
                        .filter(|name| !names.contains(name.as_str()))
                        .cloned()
                        .collect();
                    gone.iter().for_each(|name| self.remove(name, &mut undecided));
                    last = self.registry.store().revision().0;
                    all.into_iter()
                        .for_each(|(key, object)| self.insert(&key, object, &mut undecided));
                }
                Notice::Changed(key, object) => {
                    last = object.meta("resourceVersion").parse().unwrap_or(last);
                    self.insert(&key, object, &mut undecided);
                }
                Notice::Removed(key) => {
                    self.remove(key.name(), &mut undecided);
                    last = self.registry.store().revision().0;
                }
            }
        }
        undecided.groups.iter().for_each(|group| self.accept_names(group));
        undecided.names.iter().for_each(|name| self.accept_names_of(name, &undecided.groups));
        custom.observed.send_if_modified(|seen| {
            let newer = last > *seen;
            *seen = last.max(*seen);
            newer
        });
    }

    fn insert(&mut self, key: &Key, object: Arc<Document>, undecided: &mut Undecided) {
        let name = key.name().to_owned();
        let (shape, requested) = (Shape::of(&object), Names::requested(&object));
        match self.known.get(&name) {
            // Most changes are of the status, which decides nothing.
            Some(known) if known.shape == shape => {}
            Some(known) if known.requested != requested || known.shape.uid != shape.uid => {
                undecided.groups.insert(group(&object).to_owned());
            }
            _ => _ = undecided.names.insert(name.clone()),
        }
        if shape.terminating {
            self.terminating.insert(name.clone());
        } else {
            self.terminating.remove(&name);
        }
        self.dirty.insert(name.clone());
        match self.known.get_mut(&name) {
            Some(known) if known.shape.uid == shape.uid => {
                known.object = Some(object);
                known.shape = shape;
                known.requested = requested;
            }
            _ => {
                self.members.entry(group(&object).to_owned()).or_default().insert(name.clone());
                let known = Known {
                    key: key.clone(),
                    group: group(&object).to_owned(),
                    plural: plural(&object).to_owned(),
                    requested,
                    shape,
                    since: self
                        .registry
                        .store()
                        .get(key)
                        .map_or(0, |entry| entry.create_revision.0),
                    accepted: Names::accepted(&object),
                    decided: Decided::default(),
                    served: None,
                    broken: None,
                    object: Some(object),
                };
                self.known.insert(name, known);
            }
        }
    }

    fn remove(&mut self, name: &str, undecided: &mut Undecided) {
        let Some(known) = self.known.remove(name) else { return };
        self.terminating.remove(name);
        if let Some(members) = self.members.get_mut(&known.group) {
            members.remove(name);
        }
        if known.served.is_some() {
            self.registry.catalog().remove(&known.group, &known.plural);
        }
        undecided.groups.insert(known.group);
        self.dirty.remove(name);
    }

    /// The object of a definition; read again if it was let go.
    fn object(&self, known: &Known) -> Option<Arc<Document>> {
        known.object.clone().or_else(|| self.client.stored(&known.key).map(Arc::new))
    }

    /// Decides the names of a group's definitions, in the order of their creation, and serves those
    /// that have theirs.
    fn accept_names(&mut self, group_name: &str) {
        let Some(members) = self.members.get(group_name).filter(|members| !members.is_empty())
        else {
            self.members.remove(group_name);
            self.taken.remove(group_name);
            return;
        };
        let mut members: Vec<(u64, String)> =
            members.iter().map(|name| (self.known[name].since, name.clone())).collect();
        members.sort_unstable();
        let mut taken = names::Taken::default();
        self.natives.get(group_name).into_iter().flatten().for_each(|names| taken.take("", names));
        members.iter().for_each(|(_, name)| taken.take(name, &self.known[name].accepted));
        members.iter().for_each(|(_, name)| self.decide(name, &mut taken));
        self.taken.insert(group_name.to_owned(), taken);
    }

    /// The same for one definition when nothing became free; `done` are the groups that were
    /// decided as a whole.
    fn accept_names_of(&mut self, name: &str, done: &BTreeSet<String>) {
        let Some(known) = self.known.get(name) else { return };
        let group_name = known.group.clone();
        match self.taken.remove(&group_name) {
            Some(mut taken) => {
                if !done.contains(&group_name) {
                    self.decide(name, &mut taken);
                }
                self.taken.insert(group_name, taken);
            }
            None => self.accept_names(&group_name),
        }
    }

    fn decide(&mut self, name: &str, taken: &mut names::Taken) {
        let known = self.known.get_mut(name).expect("the caller has it");
        let decided = names::decide(name, &known.requested, &known.accepted, taken);
        if known.decided != decided {
            self.dirty.insert(name.to_owned());
        }
        taken.take(name, &decided.accepted);
        known.accepted = decided.accepted.clone();
        known.decided = decided;
        let (conflicts, served) = (
            known.decided.conflict.is_some(),
            Served { shape: known.shape.clone(), names: known.accepted.clone() },
        );
        if known.served.as_ref() == Some(&served) {
            return;
        }
        let known = &self.known[name];
        let Some(object) = self.object(known) else { return };
        // Who may write statuses can say that it is established: that counts among definitions, and
        // never against what the server itself relies on.
        let keeps = status::is_established(&object) && !known.decided.wants_bundled;
        if !conflicts || keeps {
            self.serve(name, &object, served);
        }
    }

    /// Puts a definition into the catalog that is another one than before. A broken one leaves what
    /// was served as it was.
    fn serve(&mut self, name: &str, object: &Document, served: Served) {
        tracing::debug!(k8s.name = name, "a custom resource definition is made ready");
        let known = self.known.get_mut(name).expect("the caller has it");
        match build::definition(object, &known.accepted, self.metadata.clone(), known.since) {
            Ok(built) => {
                known.broken = None;
                known.served = Some(served);
                self.registry.offload().expect_long(&known.plural);
                built.put(self.registry.catalog());
            }
            Err(errors) => {
                let why = errors.first().map_or_else(
                    || "it has no version".to_owned(),
                    |error| format!("{}: {}", error.field, error.message),
                );
                tracing::warn!(
                    k8s.name = name,
                    why,
                    "a custom resource definition cannot be served"
                );
                known.broken = Some(why);
            }
        }
    }

    /// Writes the statuses that are not as they should be. What fails stays dirty.
    async fn settle_statuses(&mut self) {
        for name in std::mem::take(&mut self.dirty) {
            let Some(wanted) = block_in_place(|| self.wanted_status(&name)) else { continue };
            let registry = self.registry.clone();
            let client = &self.client;
            let update = async move {
                leave_worker().await;
                client.update(wanted, "status").await
            };
            match registry.offload().run(INTERNAL, Box::pin(update)).await {
                Ok(_) => {}
                // Somebody else wrote: that comes as a notice.
                Err(failure)
                    if matches!(failure.reason, Some(Reason::Conflict | Reason::NotFound)) => {}
                Err(failure) => {
                    tracing::warn!(k8s.name = name, error = %failure, "the status of a custom resource definition could not be written");
                    self.dirty.insert(name);
                }
            }
        }
    }

    /// The definition with the status that it should have; `None` when it has it. What needs
    /// nothing is let go.
    fn wanted_status(&mut self, name: &str) -> Option<Document> {
        let known = self.known.get(name)?;
        let object = self.object(known)?;
        let view = status::View {
            object: &object,
            decided: &known.decided,
            broken: known.broken.as_deref(),
        };
        let wanted = view.wanted(std::time::SystemTime::now());
        if let Some(known) = self.known.get_mut(name) {
            known.object = None;
        }
        wanted
    }

    /// Begins to remove the objects of definitions that are being deleted.
    fn begin_removals(&mut self) {
        let waiting: Vec<String> = self
            .terminating
            .iter()
            .filter(|name| !self.removing.contains(*name))
            .cloned()
            .collect();
        for name in waiting {
            let Some(known) = self.known.get(&name) else { continue };
            let Some(object) =
                block_in_place(|| self.object(known)).filter(|object| cleanup::is_due(object))
            else {
                continue;
            };
            let Some(definition) =
                block_in_place(|| build::for_removal(&object, self.metadata.clone(), known.since))
            else {
                continue;
            };
            self.removing.insert(name.clone());
            self.removals.spawn(cleanup::remove(
                self.registry.clone(),
                self.client.clone(),
                definition,
                name,
            ));
        }
    }
}

fn group(object: &Document) -> &str {
    object.str(&["spec", "group"]).unwrap_or_default()
}

fn plural(object: &Document) -> &str {
    object.str(&["spec", "names", "plural"]).unwrap_or_default()
}

/// A text field, empty when absent.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
