//! Custom resources: a loop that follows the CustomResourceDefinitions, decides their names, serves
//! them, and removes the objects of deleted ones.
//!
//! A definition is served when its write is acknowledged: the handler waits for the loop
//! ([`DefinitionLoop::wait_served`]), which updates the catalog before it writes any status.
//!
//! Must never know HTTP routing. Start reading at the loop below, then `names` and `build`.

mod build;
mod cleanup;
mod fields;
mod hooks;
mod names;
mod review;
mod rules;
mod scale;
mod status;
mod webhook;

use build::BuildInputs;
use cleanup::RETRY;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::Reason;
use ferrokube_registry::offload::{INTERNAL, block_in_place, leave_worker};
use ferrokube_registry::{Informer, Local, Notice, Registry};
use ferrokube_storage::Key;
use ferrokube_webhook::{CertificateFaults, ServiceResolver, WebhookAccess};
pub use fields::GROUP;
use fields::{group, plural};
use names::{NameDecision, ResourceNames};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

const PLURAL: &str = "customresourcedefinitions";
/// Max wait of a write for its definition to be served.
const SETTLE: Duration = Duration::from_secs(5);

/// State of the loop that requests read.
pub struct DefinitionLoop {
    observed: watch::Sender<u64>,
    services: Arc<dyn ServiceResolver>,
    certificates: CertificateFaults,
}

impl DefinitionLoop {
    /// `services` finds conversion webhooks behind services; their certificates that are refused
    /// are counted.
    pub fn new(services: Arc<dyn ServiceResolver>, certificates: CertificateFaults) -> Self {
        Self { observed: watch::Sender::new(0), services, certificates }
    }

    /// Whether the loop has processed this revision.
    pub fn has_served(&self, revision: u64) -> bool {
        *self.observed.borrow() >= revision
    }

    /// Waits until the loop has processed this revision, at most `SETTLE`: the write is done in
    /// any case.
    pub async fn wait_served(&self, revision: u64) {
        let mut observed = self.observed.subscribe();
        let _ = tokio::time::timeout(SETTLE, observed.wait_for(|seen| *seen >= revision)).await;
    }
}

/// A followed definition. The object itself is dropped when there is nothing to do: a thousand
/// parsed definitions are a hundred times as large as their bytes.
struct FollowedDefinition {
    object: Option<Arc<Document>>,
    key: Key,
    group: String,
    plural: String,
    requested: ResourceNames,
    stamp: DefinitionStamp,
    /// The revision that created it.
    since: u64,
    accepted: ResourceNames,
    decided: NameDecision,
    /// The definition in the catalog.
    served: Option<ServedDefinition>,
    /// Why its objects cannot be served.
    broken: Option<String>,
}

/// Equal unless more than the status changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DefinitionStamp {
    uid: String,
    generation: i64,
    terminating: bool,
}

impl DefinitionStamp {
    fn of(object: &Document) -> Self {
        let generation =
            object.get(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(1);
        Self { uid: object.uid().to_owned(), generation, terminating: object.is_terminating() }
    }
}

/// Definitions whose names must be decided again.
#[derive(Default)]
struct PendingNames {
    /// Groups in which names may have become free: all their definitions.
    groups: BTreeSet<String>,
    /// New definitions, and definitions whose names did not change.
    names: BTreeSet<String>,
}

/// Equal unless the served definition changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServedDefinition {
    stamp: DefinitionStamp,
    names: ResourceNames,
}

/// State of the loop.
pub struct Follower {
    registry: Registry,
    client: Local,
    inputs: BuildInputs,
    known: BTreeMap<String, FollowedDefinition>,
    /// Definitions by group.
    members: HashMap<String, BTreeSet<String>>,
    /// Names of bundled kinds, by group.
    natives: HashMap<String, Vec<ResourceNames>>,
    /// Taken names, by group: deciding about a new definition does not visit all others.
    taken: HashMap<String, names::TakenNames>,
    /// Definitions being deleted.
    terminating: BTreeSet<String>,
    /// Definitions whose status may be outdated.
    dirty: BTreeSet<String>,
    removing: HashSet<String>,
    removals: JoinSet<String>,
}

impl Follower {
    /// Serves all existing definitions; [`Self::run`] continues from there. `None` if definitions
    /// are not served.
    pub fn start(registry: &Registry, custom: &DefinitionLoop) -> Option<(Self, Informer)> {
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
            inputs: BuildInputs {
                metadata,
                access: WebhookAccess {
                    certificates: custom.certificates.clone(),
                    ..WebhookAccess::anonymous(Arc::clone(&custom.services))
                },
            },
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

    /// Runs until the store closes.
    pub async fn run(mut self, mut informer: Informer, custom: impl AsRef<DefinitionLoop>) {
        loop {
            self.settle_statuses().await;
            self.begin_removals();
            let retry = if self.dirty.is_empty() { Duration::from_secs(3600) } else { RETRY };
            tokio::select! {
                found = informer.next() => match found {
                    // Compiling a large definition's patterns takes long.
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
            // A removal panicked: retry all, as it is unknown which.
            None => self.removing.clear(),
        }
    }

    /// Processes notices and updates the catalog.
    fn observe(&mut self, notices: Vec<Notice>, custom: &DefinitionLoop) {
        let mut last = 0;
        let mut pending = PendingNames::default();
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
                    gone.iter().for_each(|name| self.remove(name, &mut pending));
                    last = self.registry.store().revision().0;
                    all.into_iter()
                        .for_each(|(key, object)| self.insert(&key, object, &mut pending));
                }
                Notice::Changed(key, object) => {
                    last = object.meta("resourceVersion").parse().unwrap_or(last);
                    self.insert(&key, object, &mut pending);
                }
                Notice::Removed(key) => {
                    self.remove(key.name(), &mut pending);
                    last = self.registry.store().revision().0;
                }
            }
        }
        pending.groups.iter().for_each(|group| self.accept_names(group));
        pending.names.iter().for_each(|name| self.accept_names_of(name, &pending.groups));
        custom.observed.send_if_modified(|seen| {
            let newer = last > *seen;
            *seen = last.max(*seen);
            newer
        });
    }

    fn insert(&mut self, key: &Key, object: Arc<Document>, pending: &mut PendingNames) {
        let name = key.name().to_owned();
        let (stamp, requested) = (DefinitionStamp::of(&object), ResourceNames::requested(&object));
        match self.known.get(&name) {
            // Most changes are of the status, which decides nothing.
            Some(known) if known.stamp == stamp => {}
            Some(known) if known.requested != requested || known.stamp.uid != stamp.uid => {
                pending.groups.insert(group(&object).to_owned());
            }
            _ => _ = pending.names.insert(name.clone()),
        }
        if stamp.terminating {
            self.terminating.insert(name.clone());
        } else {
            self.terminating.remove(&name);
        }
        self.dirty.insert(name.clone());
        match self.known.get_mut(&name) {
            Some(known) if known.stamp.uid == stamp.uid => {
                known.object = Some(object);
                known.stamp = stamp;
                known.requested = requested;
            }
            _ => {
                self.members.entry(group(&object).to_owned()).or_default().insert(name.clone());
                let known = FollowedDefinition {
                    key: key.clone(),
                    group: group(&object).to_owned(),
                    plural: plural(&object).to_owned(),
                    requested,
                    stamp,
                    since: self
                        .registry
                        .store()
                        .get(key)
                        .map_or(0, |entry| entry.create_revision.0),
                    accepted: ResourceNames::accepted(&object),
                    decided: NameDecision::default(),
                    served: None,
                    broken: None,
                    object: Some(object),
                };
                self.known.insert(name, known);
            }
        }
    }

    fn remove(&mut self, name: &str, pending: &mut PendingNames) {
        let Some(known) = self.known.remove(name) else { return };
        self.terminating.remove(name);
        if let Some(members) = self.members.get_mut(&known.group) {
            members.remove(name);
        }
        if known.served.is_some() {
            self.registry.catalog().remove(&known.group, &known.plural);
        }
        pending.groups.insert(known.group);
        self.dirty.remove(name);
    }

    /// A definition's object, read again if it was dropped.
    fn object(&self, known: &FollowedDefinition) -> Option<Arc<Document>> {
        known.object.clone().or_else(|| self.client.stored(&known.key).map(Arc::new))
    }

    /// Decides the names of all definitions in a group, in order of creation, and serves those
    /// whose names are accepted.
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
        let mut taken = names::TakenNames::default();
        self.natives.get(group_name).into_iter().flatten().for_each(|names| taken.take("", names));
        members.iter().for_each(|(_, name)| taken.take(name, &self.known[name].accepted));
        members.iter().for_each(|(_, name)| self.decide(name, &mut taken));
        self.taken.insert(group_name.to_owned(), taken);
    }

    /// Decides about one definition, if no name became free. Groups in `done` were decided as a
    /// whole.
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

    fn decide(&mut self, name: &str, taken: &mut names::TakenNames) {
        let known = self.known.get_mut(name).expect("the caller looked it up");
        let decided = names::decide(name, &known.requested, &known.accepted, taken);
        if known.decided != decided {
            self.dirty.insert(name.to_owned());
        }
        taken.take(name, &decided.accepted);
        known.accepted = decided.accepted.clone();
        known.decided = decided;
        let (conflicts, served) = (
            known.decided.conflict.is_some(),
            ServedDefinition { stamp: known.stamp.clone(), names: known.accepted.clone() },
        );
        if known.served.as_ref() == Some(&served) {
            return;
        }
        let known = &self.known[name];
        let Some(object) = self.object(known) else { return };
        // Callers that may write statuses can claim that it is established. That counts between
        // definitions, but never against bundled kinds.
        let keeps = status::is_established(&object) && !known.decided.wants_bundled;
        if !conflicts || keeps {
            self.serve(name, &object, served);
        }
    }

    /// Puts a changed definition into the catalog. An invalid one leaves the served one in place.
    fn serve(&mut self, name: &str, object: &Document, served: ServedDefinition) {
        tracing::debug!(k8s.name = name, "serving a custom resource definition");
        let known = self.known.get_mut(name).expect("the caller looked it up");
        match build::definition(object, &known.accepted, &self.inputs, known.since) {
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

    /// Writes outdated statuses. Failures stay dirty.
    async fn settle_statuses(&mut self) {
        for name in std::mem::take(&mut self.dirty) {
            let Some(wanted) = block_in_place(|| self.updated_status(&name)) else { continue };
            let registry = self.registry.clone();
            let client = &self.client;
            let update = async move {
                leave_worker().await;
                client.update(wanted, "status").await
            };
            match registry.offload().run(INTERNAL, Box::pin(update)).await {
                Ok(_) => {}
                // A concurrent write arrives as a notice.
                Err(failure)
                    if matches!(failure.reason, Some(Reason::Conflict | Reason::NotFound)) => {}
                Err(failure) => {
                    tracing::warn!(k8s.name = name, error = %failure, "cannot write the status of a custom resource definition");
                    self.dirty.insert(name);
                }
            }
        }
    }

    /// The definition with its new status; `None` if it is up to date, and then the object is
    /// dropped.
    fn updated_status(&mut self, name: &str) -> Option<Document> {
        let known = self.known.get(name)?;
        let object = self.object(known)?;
        let view = status::StatusInput {
            object: &object,
            decided: &known.decided,
            broken: known.broken.as_deref(),
        };
        let wanted = view.updated(std::time::SystemTime::now());
        if let Some(known) = self.known.get_mut(name) {
            known.object = None;
        }
        wanted
    }

    /// Starts removing the objects of definitions being deleted.
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
                block_in_place(|| build::for_removal(&object, &self.inputs, known.since))
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
