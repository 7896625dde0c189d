//! The server side of the Feature API (KEP-3920): announces features, reports those in use here,
//! and drives transitions as the leader.
//!
//! Every write is a compare-and-swap, so that a second leader is harmless. Nothing here runs while
//! the gate `FeatureAPI` is off, and nothing is done for a request.

mod components;
mod leading;
mod record;
pub(crate) mod settings;
pub(crate) mod stats;
mod sweep;

use crate::identity_leases::IdentityLeases;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_features::Gates;
use ferrokube_features::transition::FeatureState;
use ferrokube_registry::offload::block_in_place;
use ferrokube_registry::{DeleteOptions, Informer, Local, Notice, Patch, Registry};
use ferrokube_resource::FieldGuard;
use leading::{TaskEnd, TaskState};
use record::FeatureFacts;
use settings::FeatureSettings;
use stats::{FeatureEvents, FeatureStats};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

pub(crate) const GROUP: &str = "features.k8s.io";
const VERSION: &str = "v1alpha1";
const PLURAL: &str = "features";
/// Namespace of the server's own features.
const NAMESPACE: &str = "kube-system";
/// Minor versions for which an unknown feature is kept.
const KEPT_MINORS: u16 = 3;
/// Before a step that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// A stored Feature as last observed.
struct ObservedFeature {
    document: Arc<Document>,
    /// When this revision was observed.
    since: Instant,
    /// Revision in which its transition was observed first.
    base: String,
}

/// The loop of one server.
pub(crate) struct FeatureFlow {
    registry: Registry,
    gates: Gates,
    settings: FeatureSettings,
    features: Local,
    informer: Informer,
    leases: IdentityLeases,
    known: BTreeMap<String, ObservedFeature>,
    tasks: JoinSet<TaskEnd>,
    /// By feature.
    states: BTreeMap<String, TaskState>,
    /// Features to process, and when.
    due: BTreeMap<String, Instant>,
    stats: Arc<FeatureStats>,
    events: FeatureEvents,
}

impl FeatureFlow {
    /// Announces the features and reports those in use here. `None` if the API is not served.
    pub(crate) async fn start(
        registry: &Registry,
        gates: &Gates,
        settings: &FeatureSettings,
        stats: &Arc<FeatureStats>,
    ) -> Option<Self> {
        let mut flow = Self {
            registry: registry.clone(),
            gates: gates.clone(),
            settings: settings.clone(),
            features: Local::new(registry, GROUP, VERSION, PLURAL)?,
            informer: Informer::new(registry, GROUP, VERSION, PLURAL)?.within(NAMESPACE),
            leases: IdentityLeases::new(registry, settings)?,
            known: BTreeMap::new(),
            tasks: JoinSet::new(),
            states: BTreeMap::new(),
            due: BTreeMap::new(),
            stats: Arc::clone(stats),
            events: FeatureEvents::new(registry),
        };
        let first = Notice::Replaced(flow.informer.snapshot());
        flow.observe(vec![first]);
        let set = flow.gates.unavailable().iter().map(|(name, _)| name.as_str());
        let all = flow.gates.all().map(|gate| gate.gate.name).chain(set);
        let names: Vec<_> = all.filter(|name| record::is_name(name)).map(str::to_owned).collect();
        flow.enqueue(names);
        flow.renew().await;
        flow.act().await;
        Some(flow)
    }

    /// Runs until the store closes.
    pub(crate) async fn run(mut self) {
        loop {
            let wake = self.act().await;
            let renewal = self.leases.renewal();
            tokio::select! {
                found = self.informer.next() => {
                    let Some(found) = found else { return };
                    let notices = block_in_place(|| found.read());
                    self.observe(notices);
                }
                found = self.leases.observe() => {
                    if !found {
                        return;
                    }
                    self.enqueue_all();
                }
                Some(ended) = self.tasks.join_next() => self.end_task(ended),
                () = sleep_until(renewal) => self.renew().await,
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Renews the Lease, which also keeps guarded fields open.
    async fn renew(&mut self) {
        let value = |name: &str| self.facts(name).desired;
        let gates = self.gates.all().map(|gate| gate.gate.name);
        let values: Vec<String> = gates.map(|name| format!("{name}={}", value(name))).collect();
        self.leases.renew(Some(&values.join(","))).await;
        // Others may have gone silent in the meantime, which is no event.
        self.enqueue_all();
        for gate in self.gates.all() {
            if let Some(known) = self.known.get(gate.gate.name) {
                self.guard(gate.gate.name, &known.document);
            }
        }
    }

    fn facts(&self, name: &str) -> FeatureFacts {
        let stored = self.known.get(name).map(|known| &*known.document);
        FeatureFacts::new(&self.gates, &self.settings.dynamic, name, stored)
    }

    /// Permits uses while the value and the state do: of a central feature, and of guarded fields,
    /// which are hidden while it is off.
    fn guard(&self, feature: &str, document: &Document) {
        if ferrokube_features::known::find(feature).is_none() {
            // Of these there may be any number.
            return;
        }
        let state = record::state(document);
        let facts = FeatureFacts::new(&self.gates, &self.settings.dynamic, feature, Some(document));
        let is_permitted = facts.desired && state.is_some_and(FeatureState::permits_use);
        let is_central = self.gates.get(feature).is_some_and(|gate| gate.is_central());
        if is_central && self.gates.follow(feature, is_permitted) {
            tracing::info!(k8s.name = feature, enabled = is_permitted, "feature gate changed");
        }
        let open_for = if is_permitted { self.leases.permitted() } else { Duration::ZERO };
        for guard in guards(&self.registry, feature) {
            if guard.set(open_for, state == Some(FeatureState::Off)) {
                tracing::debug!(k8s.name = feature, "OpenAPI changes");
            }
        }
    }

    fn observe(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    let mut before = std::mem::take(&mut self.known);
                    for (_, document) in all {
                        let old = before.remove(document.name());
                        self.put(document, old);
                    }
                    self.enqueue(before.into_keys());
                }
                Notice::Changed(key, document) => {
                    let old = self.known.remove(key.name());
                    self.put(document, old);
                }
                Notice::Removed(key) => {
                    self.known.remove(key.name());
                    self.enqueue([key.name().to_owned()]);
                }
            }
        }
    }

    fn put(&mut self, document: Arc<Document>, old: Option<ObservedFeature>) {
        let name = document.name().to_owned();
        let revision = document.meta("resourceVersion").to_owned();
        let transition = |document: &Document| {
            (document.meta("uid").to_owned(), record::number(document), record::state(document))
        };
        let same = old.filter(|old| transition(&old.document) == transition(&document));
        let begins =
            same.is_none() && record::state(&document).is_some_and(FeatureState::is_turning);
        self.leases.has_observed(&revision, begins);
        self.guard(&name, &document);
        self.enqueue([name.clone()]);
        let base = same.map_or(revision, |old| old.base);
        self.known.insert(name, ObservedFeature { document, since: Instant::now(), base });
    }

    fn enqueue(&mut self, names: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        self.due.extend(names.into_iter().map(|name| (name, now)));
    }

    fn enqueue_all(&mut self) {
        let names: Vec<String> = self.known.keys().cloned().collect();
        self.enqueue(names);
        let gates: Vec<_> = self.gates.all().map(|gate| gate.gate.name.to_owned()).collect();
        self.enqueue(gates);
    }

    /// Performs all possible steps. Returns when to run again.
    async fn act(&mut self) -> Instant {
        let now = Instant::now();
        let due: Vec<String> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.due.remove(&name);
            let next = match self.step(&name).await {
                Ok(next) => next,
                // Another writer was faster: the informer brings the new state.
                Err(failure) if is_race(&failure) => None,
                Err(failure) => {
                    let why = &failure.message;
                    tracing::warn!(k8s.name = name, why, "cannot write a feature, retrying");
                    Some(Instant::now() + RETRY)
                }
            };
            if let Some(next) = next {
                self.due.insert(name, next);
            }
        }
        let next = self.due.values().min().copied();
        next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    /// One feature. Returns when to look again without a change.
    async fn step(&mut self, name: &str) -> Result<Option<Instant>, Failure> {
        let facts = self.facts(name);
        let leads = self.leases.leads(name, facts.gate.is_some());
        let Some(known) = self.known.get(name) else {
            let is_wanted = facts.gate.is_some() || facts.source == "CommandLine";
            if leads && is_wanted {
                self.announce(name).await?;
            }
            return Ok(None);
        };
        let (document, since) = (Arc::clone(&known.document), known.since);
        self.stats.note(&facts, &document, leads);
        let reported = self.report(&facts, &document).await;
        if !leads {
            // Another server may lead now that this one did: its task ends by itself.
            return reported.map(|()| None);
        }
        // A list that others have filled is for the leader to clear.
        if let Err(failure) = reported {
            tracing::debug!(k8s.name = name, why = failure.message, "cannot report a feature");
        }
        if facts.is_forgotten(&document, self.gates.version(), KEPT_MINORS) {
            self.features.delete(NAMESPACE, name, &DeleteOptions::default()).await?;
            return Ok(None);
        }
        self.lead(&facts, &document, since).await
    }

    async fn announce(&mut self, name: &str) -> Result<(), Failure> {
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "Feature",
            "metadata": {"name": name, "namespace": NAMESPACE},
        });
        let object = Document::from_value(object).expect("an object literal");
        self.features.create(NAMESPACE, object).await.map(drop)
    }

    /// Adds the value that this server uses, unless an equal one is there.
    async fn report(&self, facts: &FeatureFacts, document: &Document) -> Result<(), Failure> {
        let Some(enabled) = facts.used else { return Ok(()) };
        let version = self.gates.version();
        if record::has_use(document, version, enabled) {
            return Ok(());
        }
        let used = json!({"version": version.to_string(), "enabled": enabled});
        let patch = json!({ "status": { "uses": [used] } });
        let patch = Document::from_value(patch).expect("an object literal");
        self.features
            .patch(NAMESPACE, &facts.name, "uses", Patch::Merge(patch.into()))
            .await
            .map(drop)
    }
}

/// Guarded fields of a feature.
fn guards(registry: &Registry, feature: &str) -> Vec<FieldGuard> {
    let (_, definitions) = registry.catalog().all();
    let guards = definitions.iter().flat_map(|definition| &definition.guards);
    guards.filter(|guard| guard.field().gate == feature).cloned().collect()
}

/// Without the Feature API, the gates alone permit uses; with it, none are permitted until the
/// states are read.
pub(crate) fn open_guards(registry: &Registry, gates: &Gates) {
    let is_served = registry.catalog().find(GROUP, VERSION, PLURAL).is_some();
    for gate in gates.all() {
        if is_served {
            if gate.is_central() {
                gates.follow(gate.gate.name, false);
            }
            continue;
        }
        for guard in guards(registry, gate.gate.name) {
            guard.set(if gate.configured { Duration::MAX } else { Duration::ZERO }, false);
        }
    }
}

fn is_race(failure: &Failure) -> bool {
    matches!(failure.reason, Some(Reason::Conflict | Reason::AlreadyExists | Reason::NotFound))
}
