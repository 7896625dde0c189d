//! Follows FlowSchemas and PriorityLevelConfigurations: configures flow control, says in the status
//! of schemas whether their level exists, and has default objects maintained.

use crate::maintained;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_flow::Flow;
use ferrokube_flow::priority::{FlowConfig, LevelConfig, SchemaConfig};
use ferrokube_registry::offload::block_in_place;
use ferrokube_registry::{Informer, Local, Notice, Registry};
use ferrokube_storage::Key;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval, sleep_until};

pub(crate) const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Levels come before the schemas that name them.
pub(crate) const RESOURCES: [&str; 2] = ["prioritylevelconfigurations", "flowschemas"];
/// Between adjustments of seats to demand. Until the next one, requests of a full level wait even
/// if other levels have idle seats: in kube-apiserver, for up to ten seconds.
const ADJUSTMENT: Duration = Duration::from_millis(500);
/// Between checks of the default objects.
const UPKEEP: Duration = Duration::from_secs(60);
/// Before a failed write of a status is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Statuses written at a time.
const STATUSES: usize = 16;
/// The field manager of statuses, as in kube-apiserver.
const STATUS_MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Follows the objects from when flow control has been configured.
pub(crate) struct FlowObjects {
    client: Local,
    informers: [Informer; 2],
    levels: BTreeMap<String, LevelConfig>,
    schemas: BTreeMap<String, SchemaConfig>,
    /// Schemas whose status may be outdated.
    dirty: BTreeSet<String>,
    /// Names of objects that are created again.
    defaults: [BTreeSet<String>; 2],
}

impl FlowObjects {
    /// Configures flow control. `None` if the objects are not served.
    pub(crate) fn start(registry: &Registry, flow: &Flow) -> Option<Self> {
        let informer = |plural| Informer::new(registry, GROUP, "v1", plural);
        let [levels, schemas] = RESOURCES.map(informer);
        let mut objects = Self {
            client: Local::new(registry, GROUP, "v1", RESOURCES[1])?,
            informers: [levels?, schemas?],
            levels: BTreeMap::new(),
            schemas: BTreeMap::new(),
            dirty: BTreeSet::new(),
            defaults: RESOURCES.map(|plural| defaults(registry, plural)),
        };
        for at in 0..RESOURCES.len() {
            let known = Notice::Replaced(objects.informers[at].snapshot());
            objects.observe(at, vec![known]);
        }
        objects.configure(flow);
        Some(objects)
    }

    /// Writes statuses, and follows changes until the store closes.
    pub(crate) async fn run(mut self, registry: Registry, flow: Arc<Flow>) {
        let mut adjustment = interval(ADJUSTMENT);
        adjustment.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut upkeep = Instant::now() + UPKEEP;
        loop {
            self.write_statuses(&flow).await;
            let retry = if self.dirty.is_empty() { upkeep } else { Instant::now() + RETRY };
            let [levels, schemas] = &mut self.informers;
            let (at, notices) = tokio::select! {
                // A schema is judged after the levels that were written before it.
                biased;
                found = levels.next() => (0, found.map(|found| block_in_place(|| found.read()))),
                found = schemas.next() => (1, found.map(|found| block_in_place(|| found.read()))),
                _ = adjustment.tick() => {
                    flow.levels().adjust();
                    continue;
                }
                () = sleep_until(retry.min(upkeep)) => {
                    if Instant::now() >= upkeep {
                        upkeep = Instant::now() + UPKEEP;
                        maintain(&registry).await;
                    }
                    continue;
                }
            };
            let Some(notices) = notices else { return };
            if self.observe(at, notices) {
                upkeep = Instant::now();
            }
            self.configure(&flow);
        }
    }

    /// Whether a default object was removed.
    fn observe(&mut self, at: usize, notices: Vec<Notice>) -> bool {
        let mut has_removed = false;
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    if at == 0 {
                        self.levels.clear()
                    } else {
                        self.schemas.clear()
                    }
                    all.iter().for_each(|(_, object)| self.put(at, object));
                }
                Notice::Changed(_, object) => self.put(at, &object),
                Notice::Removed(key) => {
                    has_removed |= self.defaults[at].contains(key.name());
                    self.remove(at, &key);
                }
            }
        }
        has_removed
    }

    fn put(&mut self, at: usize, object: &Document) {
        let name = object.name().to_owned();
        if at == 1 {
            self.dirty.insert(name.clone());
            self.schemas.insert(name, SchemaConfig::read(object));
            return;
        }
        let is_known = match LevelConfig::read(object) {
            Some(level) => self.levels.insert(name.clone(), level).is_some(),
            None => self.levels.remove(&name).is_none(),
        };
        if !is_known {
            self.soil(&name);
        }
    }

    fn remove(&mut self, at: usize, key: &Key) {
        let name = key.name();
        if at == 1 {
            self.schemas.remove(name);
            self.dirty.remove(name);
        } else {
            self.levels.remove(name);
            self.soil(name);
        }
    }

    /// A level appeared or went.
    fn soil(&mut self, level: &str) {
        let named = self.schemas.iter().filter(|(_, schema)| schema.level == level);
        self.dirty.extend(named.map(|(name, _)| name.clone()));
    }

    fn configure(&self, flow: &Flow) {
        if flow.limits().priority_and_fairness {
            let (schemas, levels) = (self.schemas.values(), self.levels.values());
            flow.levels().configure(FlowConfig::new(schemas.cloned(), levels.cloned()));
        }
    }

    async fn write_statuses(&mut self, flow: &Flow) {
        if !flow.limits().priority_and_fairness {
            self.dirty.clear();
        }
        let names: Vec<String> = std::mem::take(&mut self.dirty).into_iter().collect();
        let mut failed = BTreeSet::new();
        for some in names.chunks(STATUSES) {
            let written = join_all(some.iter().map(|name| self.write_status(name))).await;
            for (name, written) in some.iter().zip(written) {
                let Err(failure) = written else { continue };
                if failure.reason != Some(Reason::Conflict) {
                    tracing::warn!(k8s.name = name, why = failure.message, "cannot write a status");
                }
                failed.insert(name.clone());
            }
        }
        self.dirty = failed;
    }

    async fn write_status(&self, name: &str) -> Result<(), Failure> {
        let Some(schema) = self.client.get("", name).await? else { return Ok(()) };
        let level = schema.str(&["spec", "priorityLevelConfiguration", "name"]).unwrap_or_default();
        let (status, reason, then) = if self.levels.contains_key(level) {
            ("False", "Found", "and it exists")
        } else {
            ("True", "NotFound", "but there is no such object")
        };
        let message = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {} {then}",
            ferrokube_apimachinery::field::quote(level)
        );
        let conditions = schema.list(&["status", "conditions"]);
        let text = |condition: &Value, field: &str| {
            condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let old = conditions.iter().find(|condition| text(condition, "type") == "Dangling");
        if let Some(old) = old
            && (text(old, "status"), text(old, "reason"), text(old, "message"))
                == (status.to_owned(), reason.to_owned(), message.clone())
        {
            return Ok(());
        }
        let condition = json!({
            "type": "Dangling",
            "status": status,
            "lastTransitionTime": rfc3339_seconds(SystemTime::now()),
            "reason": reason,
            "message": message,
        });
        let applied = Document::from_value(json!({
            "apiVersion": schema.api_version(),
            "kind": schema.kind(),
            "metadata": {"name": name},
            "status": {"conditions": [condition]},
        }));
        let applied = applied.expect("an object");
        match self.client.apply(name, "status", STATUS_MANAGER, applied).await {
            Err(failure) if failure.reason != Some(Reason::NotFound) => Err(failure),
            _ => Ok(()),
        }
    }
}

fn defaults(registry: &Registry, plural: &str) -> BTreeSet<String> {
    let Some(served) = registry.catalog().find(GROUP, "v1", plural) else { return BTreeSet::new() };
    let objects = served.definition.hooks.maintained();
    objects.iter().map(|object| object.object.name().to_owned()).collect()
}

async fn maintain(registry: &Registry) {
    if let Err(why) = maintained::reconcile(registry).await {
        tracing::warn!(%why, "cannot maintain the default objects of flow control");
    }
}
