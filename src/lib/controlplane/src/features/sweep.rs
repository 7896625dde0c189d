//! Tasks of a transition over stored objects: clear a field, clear annotations, delete a
//! collection, wait until users have removed a value.
//!
//! A pass reads the published state and writes only objects that still use the feature, so a
//! restarted task continues where it stopped. It ends with a pass that finds nothing.

use super::settings::{FailpointObserver, FeatureFailpoint};
use super::{NAMESPACE, record};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::json::scan;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_features::FeatureTask;
use ferrokube_features::transition::FeatureState;
use ferrokube_registry::offload::block_in_place;
use ferrokube_registry::{DeleteOptions, Local, Patch, Registry, Served};
use ferrokube_resource::Definition;
use ferrokube_storage::{Entry, Prefix};
use futures::future::join_all;
use memchr::memmem::Finder;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Objects written at a time.
const BATCH: usize = 16;
/// Between batches: at most 2,000 writes a second.
const PAUSE: Duration = Duration::from_millis(8);
/// Objects that a pass holds names of; the next pass finds the others.
const MAX_FOUND: usize = 50_000;
/// Max passes that wrote without an error but found more objects: clients add them as fast.
const MAX_PASSES: usize = 100;
/// Why objects of a deleted collection remain.
const FINALIZERS: &str = "they are being deleted, and wait for their finalizers";
/// Examples in a condition.
const EXAMPLES: usize = 3;

/// Objects found and done, over all passes.
#[derive(Debug, Default)]
pub(super) struct SweepProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl SweepProgress {
    /// Done, found.
    pub(super) fn snapshot(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }
}

/// Objects that still use the feature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemainingObjects {
    count: usize,
    examples: Vec<String>,
    /// Why they remain; empty: users have to change them.
    why: String,
}

impl fmt::Display for RemainingObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return f.write_str(&self.why);
        }
        let (count, examples) = (self.count, self.examples.join(", "));
        match count {
            1 => write!(f, "1 object uses it: {examples}")?,
            MAX_FOUND.. => write!(f, "{count} or more objects use it: {examples}")?,
            _ => write!(f, "{count} objects use it: {examples}")?,
        }
        if !self.why.is_empty() {
            write!(f, "; {}", self.why)?;
        }
        Ok(())
    }
}

/// An object that uses the feature.
struct FoundObject {
    served: Served,
    namespace: String,
    name: String,
    revision: u64,
    /// Whether it is being deleted, and waits for its finalizers.
    is_leaving: bool,
}

impl FoundObject {
    fn shown(&self) -> String {
        let definition = &self.served.definition;
        let resource = if definition.group.is_empty() {
            definition.plural.clone()
        } else {
            format!("{}.{}", definition.plural, definition.group)
        };
        if self.namespace.is_empty() {
            format!("{resource}/{}", self.name)
        } else {
            format!("{resource}/{} in {}", self.name, self.namespace)
        }
    }
}

/// A run of a task.
pub(super) struct Sweep {
    pub(super) registry: Registry,
    pub(super) features: Local,
    pub(super) feature: String,
    /// Number of the transition.
    pub(super) transition: u64,
    pub(super) task: FeatureTask,
    pub(super) unserved: Vec<Arc<Definition>>,
    pub(super) progress: Arc<SweepProgress>,
    pub(super) failpoints: FailpointObserver,
}

impl Sweep {
    /// The remaining objects; `None`: the task is done.
    pub(super) async fn run(self) -> Option<RemainingObjects> {
        let mut last = None;
        for _ in 0..MAX_PASSES {
            let found = block_in_place(|| self.find());
            if found.is_empty() {
                return None;
            }
            if matches!(self.task, FeatureTask::HoldUntilUnused { .. }) {
                return Some(summary(&found, String::new()));
            }
            let found = match self.task {
                FeatureTask::DeleteCollection { .. } => {
                    let (leaving, others): (Vec<_>, Vec<_>) =
                        found.into_iter().partition(|object| object.is_leaving);
                    if others.is_empty() {
                        return Some(summary(&leaving, FINALIZERS.to_owned()));
                    }
                    others
                }
                _ => found,
            };
            self.progress.total.fetch_add(found.len() as u64, Ordering::Relaxed);
            let failed = self.write_all(&found).await;
            if failed.is_some() {
                return failed;
            }
            last = Some(summary(&found, "more were added in the meantime".to_owned()));
        }
        last
    }

    /// Whether the feature is still being turned off: a slow leader must not clear fields written
    /// after the feature is on again.
    async fn is_due(&self) -> bool {
        let state = self.features.get(NAMESPACE, &self.feature).await.ok().flatten();
        state.is_some_and(|feature| {
            feature.str(&["status", "state"]) == Some(FeatureState::TurningOff.as_str())
                && record::number(&feature) == self.transition
        })
    }

    /// Returns the objects that could not be written.
    async fn write_all(&self, found: &[FoundObject]) -> Option<RemainingObjects> {
        let mut failed = RemainingObjects::default();
        for batch in found.chunks(BATCH) {
            let next = Instant::now() + PAUSE;
            if !self.is_due().await {
                return Some(summary(found, "the transition has ended".to_owned()));
            }
            let written = join_all(batch.iter().map(|object| self.write(object))).await;
            for (object, written) in batch.iter().zip(written) {
                match written {
                    Ok(()) => drop(self.progress.done.fetch_add(1, Ordering::Relaxed)),
                    // The next pass sees its new state.
                    Err(Failure { reason: Some(Reason::Conflict | Reason::NotFound), .. }) => {}
                    Err(failure) => failed.add(object, &failure.message),
                }
            }
            self.failpoints.at(&self.feature, FeatureFailpoint::ObjectsWritten);
            sleep_until(next).await;
        }
        (failed.count > 0).then_some(failed)
    }

    async fn write(&self, object: &FoundObject) -> Result<(), Failure> {
        let client = Local::of(&self.registry, object.served.clone());
        let (namespace, name) = (&object.namespace, &object.name);
        let Some(mut patch) = self.patch() else {
            let revision = Some(object.revision.to_string());
            let options = DeleteOptions { resource_version: revision, ..DeleteOptions::default() };
            return client.delete(namespace, name, &options).await;
        };
        patch.set(&["metadata", "resourceVersion"], object.revision.to_string());
        client.patch(namespace, name, "", Patch::Merge(patch.into())).await.map(drop)
    }

    /// A merge patch that removes it; `None`: the object goes.
    fn patch(&self) -> Option<Document> {
        let mut patch = Document::new();
        match self.task {
            FeatureTask::ClearField { path, .. } => patch.set(path, Value::Null),
            FeatureTask::ClearAnnotations { keys } => {
                let mut gone = Map::new();
                for key in keys {
                    gone.insert((*key).to_owned(), Value::Null);
                }
                patch.set(&["metadata", "annotations"], Value::Object(gone));
            }
            FeatureTask::DeleteCollection { .. }
            | FeatureTask::HoldUntilUnused { .. }
            | FeatureTask::Function { .. } => return None,
        }
        Some(patch)
    }

    fn find(&self) -> Vec<FoundObject> {
        find(&self.registry, &self.unserved, &self.task)
    }
}

/// Objects that use the feature after all of its tasks.
pub(super) fn verify(
    registry: &Registry,
    unserved: &[Arc<Definition>],
    tasks: &[FeatureTask],
) -> Option<RemainingObjects> {
    let find = |task| block_in_place(|| find(registry, unserved, task));
    let found = tasks.iter().map(find).find(|found| !found.is_empty())?;
    Some(summary(&found, String::new()))
}

/// Objects that use a feature at rest. Annotations, which any object may have, are not counted.
pub(super) fn count(
    registry: &Registry,
    unserved: &[Arc<Definition>],
    tasks: &[FeatureTask],
) -> Option<RemainingObjects> {
    let mut found = Vec::new();
    for task in tasks {
        found.extend(block_in_place(|| find(registry, unserved, task)));
    }
    // Two tasks may be about the same object.
    let key = |one: &FoundObject| (one.shown(), one.revision);
    found.sort_by_cached_key(key);
    found.dedup_by_key(|one| key(one));
    (!found.is_empty()).then(|| summary(&found, String::new()))
}

/// At most [`MAX_FOUND`].
fn find(registry: &Registry, unserved: &[Arc<Definition>], task: &FeatureTask) -> Vec<FoundObject> {
    let matcher = Matcher::new(task);
    let mut found = Vec::new();
    if matches!(task, FeatureTask::Function { .. }) {
        return found;
    }
    let mut prefixes = std::collections::BTreeSet::new();
    let served = registry.catalog().all().1;
    for definition in served.into_iter().chain(unserved.iter().cloned()) {
        let Some(resource) = &definition.storage_prefix else { continue };
        if !matcher.is_about(&definition) || !prefixes.insert(resource.clone()) {
            continue;
        }
        let Ok(prefix) = Prefix::new(resource) else { continue };
        if !registry.store().presence(&prefix).has_any(None) {
            continue;
        }
        let Some(version) = written_version(&definition) else { continue };
        let snapshot = registry.store().snapshot(&prefix);
        for entry in snapshot.range(None, None).filter(|entry| matcher.matches(entry)) {
            if found.len() >= MAX_FOUND {
                return found;
            }
            found.push(FoundObject {
                served: Served { definition: Arc::clone(&definition), version },
                namespace: entry.key.namespace().unwrap_or_default().to_owned(),
                name: entry.key.name().to_owned(),
                revision: entry.revision.0,
                is_leaving: scan::field(&entry.bytes, &["metadata", "deletionTimestamp"]).is_some(),
            });
        }
    }
    found
}

/// The version in which objects are written: the stored one if it is served.
fn written_version(definition: &Definition) -> Option<usize> {
    let stored = definition.storage_version;
    let is_served = |version: &usize| definition.versions[*version].served;
    Some(stored).filter(is_served).or_else(|| (0..definition.versions.len()).find(is_served))
}

fn summary(found: &[FoundObject], why: String) -> RemainingObjects {
    let examples = found.iter().take(EXAMPLES).map(FoundObject::shown).collect();
    RemainingObjects { count: found.len(), examples, why }
}

impl RemainingObjects {
    /// Error of a function, which says why, and not where.
    pub(super) fn unknown(why: &str) -> Self {
        let why = ferrokube_apimachinery::field::cut(why.to_owned(), 512);
        Self { why, ..Self::default() }
    }

    fn add(&mut self, object: &FoundObject, why: &str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(object.shown());
        }
        if self.why.is_empty() {
            let why = ferrokube_apimachinery::field::cut(why.to_owned(), 512);
            self.why = format!("the first cannot be written: {why}");
        }
    }
}

/// Finds stored objects that use the feature, without parsing those that do not.
struct Matcher {
    /// Group and plural name; `None`: all.
    resource: Option<(&'static str, &'static str)>,
    paths: Vec<Vec<&'static str>>,
    value: Option<String>,
    finder: Option<Finder<'static>>,
}

impl Matcher {
    fn new(task: &FeatureTask) -> Self {
        let (resource, paths, value) = match *task {
            FeatureTask::ClearField { group, plural, path } => {
                (Some((group, plural)), vec![path.to_vec()], None)
            }
            FeatureTask::ClearAnnotations { keys } => {
                let path = |key: &&'static str| vec!["metadata", "annotations", *key];
                (None, keys.iter().map(path).collect(), None)
            }
            FeatureTask::DeleteCollection { group, plural } => {
                (Some((group, plural)), Vec::new(), None)
            }
            FeatureTask::HoldUntilUnused { group, plural, path, value } => {
                (Some((group, plural)), vec![path.to_vec()], Some(format!("{value:?}")))
            }
            // About no objects.
            FeatureTask::Function { name } => (Some(("", name)), Vec::new(), None),
        };
        // One needle: objects with any of several annotations nearly always have the first prefix.
        let needle = common_needle(&paths);
        Self { resource, paths, value, finder: needle.map(|text| Finder::new(&text).into_owned()) }
    }

    fn is_about(&self, definition: &Definition) -> bool {
        self.resource
            .is_none_or(|(group, plural)| definition.group == group && definition.plural == plural)
    }

    fn matches(&self, entry: &Entry) -> bool {
        let bytes = &entry.bytes;
        if self.paths.is_empty() {
            return true;
        }
        if self.finder.as_ref().is_some_and(|finder| finder.find(bytes).is_none()) {
            return false;
        }
        self.paths.iter().any(|path| {
            scan::field(bytes, path).is_some_and(|found| {
                self.value.as_ref().is_none_or(|value| found == value.as_bytes())
            })
        })
    }
}

/// Bytes that every object with one of the paths contains.
fn common_needle(paths: &[Vec<&'static str>]) -> Option<String> {
    let lasts: Vec<&str> = paths.iter().filter_map(|path| path.last().copied()).collect();
    let first = *lasts.first()?;
    let shared = |length: &usize| lasts.iter().all(|last| last.starts_with(&first[..*length]));
    let length = (1..=first.len()).rev().filter(|at| first.is_char_boundary(*at)).find(shared)?;
    Some(format!("\"{}", &first[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_is_in_every_object_that_has_a_path() {
        let needle = |paths: &[&[&'static str]]| {
            common_needle(&paths.iter().map(|path| path.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(needle(&[&["spec", "strategy"]]).as_deref(), Some("\"strategy"));
        assert_eq!(needle(&[&["a", "x/trace"], &["a", "x/span"]]).as_deref(), Some("\"x/"));
        assert_eq!(needle(&[&["a"], &["b"]]), None);
        assert_eq!(needle(&[]), None);
    }

    #[test]
    fn remaining_objects_are_reported_with_examples() {
        let remaining = RemainingObjects {
            count: 2,
            examples: vec!["leases.coordination.k8s.io/a in default".to_owned()],
            why: String::new(),
        };
        let text = "2 objects use it: leases.coordination.k8s.io/a in default";
        assert_eq!(remaining.to_string(), text);
        let refused = RemainingObjects { why: "they stay".to_owned(), ..remaining };
        assert_eq!(refused.to_string(), format!("{text}; they stay"));
    }
}
