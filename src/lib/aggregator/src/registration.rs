//! Keeps an APIService for each group version that this server serves itself.
//!
//! Those of bundled kinds (`onstart`) are written once per start, so that an administrator may
//! change them until the next one; those of custom resources (`true`) are kept at all times and go
//! with the last definition of their group version.

use crate::service::{Available, GROUP, Known, MANAGED_LABEL, PLURAL, RegisteredService};
use crate::status;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{DeleteOptions, Local, Registry};
use ferrokube_resource::Definition;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const ON_START: &str = "onstart";
const ALWAYS: &str = "true";
/// Delay before failed writes are tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Changes of the catalog within this are one: definitions are often created by the hundred.
const SETTLE: Duration = Duration::from_millis(20);
/// Writes at a time.
const WRITES: usize = 16;

/// An APIService that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DesiredService {
    group: String,
    version: String,
    group_priority: i64,
    version_priority: i64,
    managed: &'static str,
}

impl DesiredService {
    fn document(&self, name: &str) -> Document {
        let mut object = Document::from_value(json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name, "labels": {MANAGED_LABEL: self.managed}},
        }))
        .expect("an object literal");
        self.put(&mut object);
        object
    }

    fn put(&self, object: &mut Document) {
        let mut spec = Document::from_value(json!({
            "version": self.version,
            "groupPriorityMinimum": self.group_priority,
            "versionPriority": self.version_priority,
        }))
        .expect("an object literal");
        if !self.group.is_empty() {
            spec.set(&["group"], self.group.as_str());
        }
        object.set(&["spec"], spec.into_value());
    }

    fn is_spec_of(&self, known: &RegisteredService) -> bool {
        known.remote.is_none()
            && (&known.group, &known.version) == (&self.group, &self.version)
            && (known.group_priority, known.version_priority)
                == (self.group_priority, self.version_priority)
    }
}

/// The APIServices of everything that is served, by name.
fn wanted(definitions: &[Arc<Definition>]) -> BTreeMap<String, DesiredService> {
    let mut all = BTreeMap::new();
    for definition in definitions.iter().filter(|definition| definition.group != GROUP) {
        for version in definition.versions.iter().filter(|version| version.served) {
            let is_bundled = definition.dialect.is_bundled();
            let Some(priority) = version.priority else { continue };
            let (group, version) = (definition.group.as_str(), version.name.as_str());
            let wanted = DesiredService {
                group: group.to_owned(),
                version: version.to_owned(),
                group_priority: priority.group,
                version_priority: priority.version,
                managed: if is_bundled { ON_START } else { ALWAYS },
            };
            let name = format!("{version}.{group}");
            if is_bundled || !all.contains_key(&name) {
                all.insert(name, wanted);
            }
        }
    }
    all
}

/// Repair of one registration.
#[derive(Debug, PartialEq, Eq)]
enum Repair {
    Create(DesiredService),
    Update(DesiredService),
    Delete,
    /// Only its condition is wrong.
    Status,
}

/// State of the loop.
pub(crate) struct Registration {
    registry: Registry,
    client: Local,
    /// Names that existed at the start and are managed at the start only.
    at_start: BTreeSet<String>,
    /// Names that were correct once: `onstart` is over for them.
    synced: BTreeSet<String>,
}

impl Registration {
    /// `None` if APIServices are not served.
    pub(crate) fn new(registry: &Registry) -> Option<Self> {
        Some(Self {
            registry: registry.clone(),
            client: Local::new(registry, GROUP, "v1", PLURAL)?,
            at_start: BTreeSet::new(),
            synced: BTreeSet::new(),
        })
    }

    /// Creates missing APIServices at startup.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) async fn start(&mut self, known: &Known) -> Result<(), Failure> {
        self.at_start = known.keys().cloned().collect();
        self.repair(known).await
    }

    /// Runs until the store closes.
    pub(crate) async fn run(mut self, mut known: watch::Receiver<Known>) {
        let mut catalog = self.registry.catalog().changes();
        let mut is_failed = false;
        loop {
            let retry = if is_failed { RETRY } else { Duration::from_secs(3600) };
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                changed = catalog.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(retry) => {}
            }
            tokio::time::sleep(SETTLE).await;
            catalog.borrow_and_update();
            let current = known.borrow_and_update().clone();
            is_failed = match self.repair(&current).await {
                Ok(()) => false,
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot register an API service yet");
                    true
                }
            };
        }
    }

    /// Creates, corrects and deletes, many at a time: at the start they share one sync of the
    /// disk.
    async fn repair(&mut self, known: &Known) -> Result<(), Failure> {
        let wanted = wanted(&self.registry.catalog().all().1);
        self.synced.retain(|name| wanted.contains_key(name) || known.contains_key(name));
        let names: BTreeSet<&String> = wanted.keys().chain(known.keys()).collect();
        let mut repairs = Vec::new();
        for name in names {
            match self.needed_repair(name, wanted.get(name), known.get(name)) {
                Some(repair) => repairs.push((name.clone(), repair)),
                None => _ = self.synced.insert(name.clone()),
            }
        }
        let mut first = Ok(());
        for some in repairs.chunks(WRITES) {
            let writes = some.iter().map(|(name, repair)| self.write(name, repair, known));
            for ((name, _), done) in some.iter().zip(join_all(writes).await) {
                match done {
                    Ok(()) => _ = self.synced.insert(name.clone()),
                    Err(failure) => first = first.and(Err(failure)),
                }
            }
        }
        first
    }

    /// The table of kube-aggregator's auto-registration.
    fn needed_repair(
        &self,
        name: &str,
        wanted: Option<&DesiredService>,
        known: Option<&Arc<RegisteredService>>,
    ) -> Option<Repair> {
        let has_synced = self.synced.contains(name);
        let Some(known) = known else {
            let wanted = wanted?;
            let is_over = wanted.managed == ON_START && has_synced;
            return (!is_over).then(|| Repair::Create(wanted.clone()));
        };
        let unavailable = || {
            (known.remote.is_none() && known.condition != Some(Available::local()))
                .then_some(Repair::Status)
        };
        let is_managed = match known.managed.as_deref() {
            Some(ALWAYS) => true,
            Some(ON_START) => self.at_start.contains(name) && !has_synced,
            _ => false,
        };
        let is_over = wanted.is_some_and(|wanted| wanted.managed == ON_START) && has_synced;
        if !is_managed || is_over {
            return unavailable();
        }
        match wanted {
            None => Some(Repair::Delete),
            Some(wanted) if wanted.is_spec_of(known) => unavailable(),
            Some(wanted) => Some(Repair::Update(wanted.clone())),
        }
    }

    /// Conflicts are no errors: the change that caused them comes back as a notice.
    async fn write(&self, name: &str, repair: &Repair, known: &Known) -> Result<(), Failure> {
        let done = match repair {
            Repair::Create(wanted) => self.client.add("", wanted.document(name)).await,
            Repair::Update(wanted) => match self.client.get("", name).await? {
                Some(mut object) => {
                    wanted.put(&mut object);
                    self.client.update(object, "").await.map(drop)
                }
                None => Ok(()),
            },
            Repair::Delete => {
                let uid = known.get(name).map(|known| known.uid.clone());
                let options = DeleteOptions { uid, ..DeleteOptions::default() };
                self.client.delete("", name, &options).await
            }
            Repair::Status => {
                status::write(&self.client, name, &Available::local()).await.map(drop)
            }
        };
        match done {
            Err(failure)
                if matches!(
                    failure.reason,
                    Some(Reason::Conflict | Reason::AlreadyExists | Reason::NotFound)
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}
