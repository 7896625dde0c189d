//! Namespace lifecycle: empties a terminating namespace, then removes its finalizer.
//!
//! The finalizer is removed only after a pass over every served resource that found nothing, with
//! the same resources and versions served before and after it. While objects remain (finalizers,
//! grace periods), only their resources are checked, with back-off; deletions seen by the monitor
//! trigger the next check.
//!
//! A group that cannot be described (its aggregated server is unavailable) blocks the namespace,
//! like kube-controller-manager: its objects are unknown.

mod conditions;
mod content;

use crate::monitor::{MetadataListener, Observed};
use crate::queue::{Next, WorkQueue};
use crate::rest::{self, RequestOptions, code};
use crate::watching;
use content::{Findings, TerminatingNamespace};
use ferrokube_client::{Discovered, DiscoveredResource, cause};
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

const WORKERS: usize = 5;
/// Delay of the second check of a namespace with remaining objects; doubles with each further one.
const RECHECK: Duration = Duration::from_secs(1);
/// Maximum delay.
const MAX_RECHECK: Duration = Duration::from_secs(15);
/// Delay after a deletion, as deletions come in bursts.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The finalizer in `spec.finalizers` that this controller owns.
const FINALIZER: &str = "kubernetes";

/// Terminating namespaces, woken by deletions that the monitor sees, if it runs.
#[derive(Default)]
pub(crate) struct NamespaceTracker {
    queue: WorkQueue<String>,
    /// Terminating namespaces by name.
    terminating: Mutex<HashMap<String, PassProgress>>,
}

/// State between passes over a namespace.
#[derive(Clone, Default)]
struct PassProgress {
    uid: String,
    /// Resources with objects remaining after the last pass; empty for a full pass.
    held: Vec<DiscoveredResource>,
    /// Last delay.
    delay: Duration,
    /// Waiting for the next pass; a deletion brings it forward.
    waiting: bool,
    /// An object was deleted during the pass, perhaps after it was counted.
    stirred: bool,
}

impl PassProgress {
    /// Delay after a pass that left objects.
    fn wait(&mut self) -> Duration {
        self.waiting = true;
        if self.stirred {
            return DEBOUNCE;
        }
        self.delay = (self.delay * 2).clamp(RECHECK, MAX_RECHECK);
        self.delay
    }
}

impl MetadataListener for NamespaceTracker {
    fn applied(&self, _resource: &DiscoveredResource, _object: &Observed) {}

    fn deleted(&self, _resource: &DiscoveredResource, object: &Observed) {
        let Some(namespace) = &object.metadata.namespace else { return };
        match self.terminating().get_mut(namespace) {
            Some(progress) if progress.waiting => {
                self.queue.add_after(namespace.clone(), object.cause, DEBOUNCE)
            }
            Some(progress) => progress.stirred = true,
            None => {}
        }
    }
}

/// Runs until dropped.
pub(crate) async fn run(client: Client, namespaces: Arc<NamespaceTracker>) {
    let watch = watching::each(
        Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
        watcher::Config::default(),
        |namespace, gone| {
            // Ignore the conditions that passes write.
            let known = namespaces
                .terminating()
                .get(&namespace.name_any())
                .is_some_and(|progress| Some(&progress.uid) == namespace.metadata.uid.as_ref());
            if !gone && !known && namespace.metadata.deletion_timestamp.is_some() {
                namespaces.queue.add(namespace.name_any(), cause(&namespace.metadata));
            }
        },
    );
    let work = namespaces.queue.run("namespace", WORKERS, |name, trace| {
        let (client, namespaces) = (trace.client(&client), namespaces.clone());
        async move { namespaces.reconcile(&client, &name).await }
    });
    tokio::join!(watch, work);
}

impl NamespaceTracker {
    fn terminating(&self) -> MutexGuard<'_, HashMap<String, PassProgress>> {
        self.terminating.lock()
    }

    async fn reconcile(&self, client: &Client, name: &str) -> Result<Next, kube::Error> {
        let namespaces = ApiResource::erase::<Namespace>(&());
        let namespace =
            rest::get(client, &namespaces, None, name, RequestOptions::default()).await?;
        let Some(namespace) = namespace.filter(is_ours) else {
            self.terminating().remove(name);
            return Ok(Next::Done);
        };
        let uid = namespace["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let doomed = TerminatingNamespace { name, uid: &uid };
        let held = self.begin(name, &uid);
        let mut findings = Findings::default();
        if !held.is_empty() {
            content::clear(client, doomed, &held, &mut findings).await;
        }
        if findings.is_empty() {
            let discovered = Discovered::query(client).await?;
            if !discovered.unavailable.is_empty() {
                findings.discovery =
                    Some(format!("cannot tell what is in {}", discovered.unavailable.join(", ")));
            }
            content::clear(client, doomed, &discovered.resources, &mut findings).await;
            if findings.is_empty() {
                // Resources that appeared or changed version during the pass were not checked.
                let unchanged =
                    contents(&discovered) == contents(&Discovered::query(client).await?);
                return if unchanged {
                    self.finalize(client, name, namespace).await
                } else {
                    Ok(Next::After(DEBOUNCE))
                };
            }
        }
        if !findings.missing.is_empty() {
            let discovered = Discovered::query(client).await?;
            let (served, _) = contents(&discovered);
            findings.classify_missing(|found| {
                served.contains(&(
                    found.resource.api_version.as_str(),
                    found.resource.plural.as_str(),
                ))
            });
        }
        let path = format!("/api/v1/namespaces/{name}");
        conditions::write(client, &path, namespace, &findings).await?;
        Ok(Next::After(self.end(name, findings)))
    }

    /// Resources to check in the next pass.
    fn begin(&self, name: &str, uid: &str) -> Vec<DiscoveredResource> {
        let mut terminating = self.terminating();
        let progress = terminating.entry(name.to_owned()).or_default();
        if progress.uid != uid {
            *progress = PassProgress { uid: uid.to_owned(), ..PassProgress::default() };
        }
        (progress.waiting, progress.stirred) = (false, false);
        std::mem::take(&mut progress.held)
    }

    /// Delay after an incomplete pass.
    fn end(&self, name: &str, findings: Findings) -> Duration {
        let mut terminating = self.terminating();
        let progress = terminating.entry(name.to_owned()).or_default();
        if !findings.failed() {
            progress.held = findings.held;
        }
        progress.wait()
    }

    async fn finalize(
        &self,
        client: &Client,
        name: &str,
        mut namespace: Value,
    ) -> Result<Next, kube::Error> {
        let kept: Vec<&Value> =
            finalizers(&namespace).filter(|finalizer| *finalizer != FINALIZER).collect();
        namespace["spec"]["finalizers"] = json!(kept);
        let path = format!("/api/v1/namespaces/{name}/finalize");
        match rest::send(
            client,
            Method::PUT,
            &path,
            RequestOptions { body: Some(&namespace), ..RequestOptions::default() },
        )
        .await
        {
            // Changed, or gone: check again at once.
            Err(error) if matches!(code(&error), 404 | 409) => {
                return Ok(Next::After(Duration::ZERO));
            }
            other => other?,
        };
        self.terminating().remove(name);
        Ok(Next::Done)
    }
}

fn finalizers(namespace: &Value) -> impl Iterator<Item = &Value> {
    namespace["spec"]["finalizers"].as_array().into_iter().flatten()
}

/// Whether the namespace is being deleted and has our finalizer.
fn is_ours(namespace: &Value) -> bool {
    !namespace["metadata"]["deletionTimestamp"].is_null()
        && finalizers(namespace).any(|finalizer| finalizer == FINALIZER)
}

/// Everything a namespace can contain: `group/version` and plural of every resource, and the
/// unknown groups.
fn contents(discovered: &Discovered) -> (BTreeSet<(&str, &str)>, &[String]) {
    let resources = discovered.resources.iter().filter(|found| content::is_content(found));
    (
        resources
            .map(|found| (found.resource.api_version.as_str(), found.resource.plural.as_str()))
            .collect(),
        &discovered.unavailable,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::core::GroupVersionKind;

    fn gears(version: &str) -> DiscoveredResource {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("ex.com", version, "Gear"),
            "gears",
        );
        DiscoveredResource {
            resource,
            namespaced: true,
            verbs: vec!["list".into(), "delete".into()],
        }
    }

    #[test]
    fn a_version_that_changed_during_a_pass_is_seen() {
        let served =
            |version: &str| Discovered { resources: vec![gears(version)], ..Discovered::default() };
        assert_eq!(contents(&served("v1")), contents(&served("v1")));
        assert_ne!(contents(&served("v1")), contents(&served("v2")));
        assert_ne!(contents(&served("v1")), contents(&Discovered::default()));
        assert_ne!(
            contents(&Discovered::default()),
            contents(&Discovered {
                unavailable: vec!["ex.com/v1".into()],
                ..Discovered::default()
            })
        );
    }

    #[test]
    fn fault_28_a_held_namespace_is_looked_at_less_and_less() {
        let namespaces = NamespaceTracker::default();
        let pass = |stirred: bool| {
            let held = namespaces.begin("stuck", "uid");
            if stirred {
                namespaces.deleted(
                    &gears("v1"),
                    &ObjectMeta { namespace: Some("stuck".into()), ..ObjectMeta::default() }.into(),
                );
            }
            let findings = Findings { held: vec![gears("v1")], ..Findings::default() };
            (held.len(), namespaces.end("stuck", findings).as_millis())
        };
        assert_eq!(pass(true), (0, 50), "an object went during the pass");
        let waits: Vec<(usize, u128)> = (0..6).map(|_| pass(false)).collect();
        assert_eq!(waits, [(1, 1000), (1, 2000), (1, 4000), (1, 8000), (1, 15000), (1, 15000)]);
        // A deletion while waiting triggers the next check; one elsewhere does not.
        let went = |namespace: &str| {
            Observed::from(ObjectMeta {
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            })
        };
        namespaces.deleted(&gears("v1"), &went("elsewhere"));
        assert!(namespaces.queue.is_empty());
        namespaces.deleted(&gears("v1"), &went("stuck"));
        assert_eq!(namespaces.queue.len(), 1);
        // A recreated namespace starts over.
        assert!(namespaces.begin("stuck", "another").is_empty());
    }

    #[test]
    fn a_pass_that_failed_is_followed_by_a_whole_one() {
        let namespaces = NamespaceTracker::default();
        namespaces.begin("stuck", "uid");
        namespaces.end(
            "stuck",
            Findings {
                held: vec![gears("v1")],
                deletion: vec!["refused".into()],
                ..Findings::default()
            },
        );
        assert!(namespaces.begin("stuck", "uid").is_empty());
    }
}
