//! Namespace lifecycle: a namespace that is being deleted loses its content, then its finalizer.
//!
//! A pass looks at every resource that is served, and only a pass that found nothing of any of them, with the same resources and versions served
//! before and after it, ends in the finalizer's removal. While something is left (for finalizers or grace), only that is looked at, less and less
//! often; the monitor's word that an object of the namespace is gone brings the next look at once.
//!
//! A group that cannot be described now (its aggregated server is away) holds the namespace, as upstream: what it stores cannot be known.

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
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const WORKERS: usize = 5;
/// Until the second look at a namespace whose content waits for finalizers or grace; each further one waits twice as long.
const RECHECK: Duration = Duration::from_secs(1);
/// The longest wait between two looks.
const MAX_RECHECK: Duration = Duration::from_secs(15);
/// Objects go in bursts: after one of them the next look waits this long.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The finalizer that this controller owns, in `spec.finalizers`.
const FINALIZER: &str = "kubernetes";

/// The controller's ears and memory: told of deletions by the monitor, if that runs.
#[derive(Default)]
pub(crate) struct NamespaceTracker {
    queue: WorkQueue<String>,
    /// The namespaces that are being deleted, by name.
    terminating: Mutex<HashMap<String, PassProgress>>,
}

/// Between the passes over one namespace.
#[derive(Clone, Default)]
struct PassProgress {
    uid: String,
    /// What the last pass left; empty when everything must be looked at.
    held: Vec<DiscoveredResource>,
    /// How long the last wait was.
    delay: Duration,
    /// Nothing is done until the next look: an object that goes brings it forward.
    waiting: bool,
    /// An object went during the pass, perhaps after it was counted.
    stirred: bool,
}

impl PassProgress {
    /// How long to wait after a pass that left something.
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
            Some(progress) if progress.waiting => self.queue.add_after(namespace.clone(), object.cause, DEBOUNCE),
            Some(progress) => progress.stirred = true,
            None => {}
        }
    }
}

/// Works until dropped.
pub(crate) async fn run(client: Client, namespaces: Arc<NamespaceTracker>) {
    let watch = watching::each(Api::<Namespace>::all(client.clone()), watcher::Config::default(), |namespace, gone| {
        // The passes' own writes of conditions wake nobody.
        let known = namespaces.terminating().get(&namespace.name_any()).is_some_and(|progress| Some(&progress.uid) == namespace.metadata.uid.as_ref());
        if !gone && !known && namespace.metadata.deletion_timestamp.is_some() {
            namespaces.queue.add(namespace.name_any(), cause(&namespace.metadata));
        }
    });
    let work = namespaces.queue.run("namespace", WORKERS, |name, trace| {
        let (client, namespaces) = (trace.client(&client), namespaces.clone());
        async move { namespaces.reconcile(&client, &name).await }
    });
    tokio::join!(watch, work);
}

impl NamespaceTracker {
    fn terminating(&self) -> MutexGuard<'_, HashMap<String, PassProgress>> {
        self.terminating.lock().expect("no panic while held")
    }

    async fn reconcile(&self, client: &Client, name: &str) -> Result<Next, kube::Error> {
        let namespaces = ApiResource::erase::<Namespace>(&());
        let namespace = rest::get(client, &namespaces, None, name, RequestOptions::default()).await?;
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
                findings.discovery = Some(format!("cannot tell what is in {}", discovered.unavailable.join(", ")));
            }
            content::clear(client, doomed, &discovered.resources, &mut findings).await;
            if findings.is_empty() {
                // What is served in another version than was asked, or only now, was not looked at.
                let unchanged = contents(&discovered) == contents(&Discovered::query(client).await?);
                return if unchanged { self.finalize(client, name, namespace).await } else { Ok(Next::After(DEBOUNCE)) };
            }
        }
        if !findings.missing.is_empty() {
            let discovered = Discovered::query(client).await?;
            let (served, _) = contents(&discovered);
            findings.classify_missing(|found| served.contains(&(found.resource.api_version.as_str(), found.resource.plural.as_str())));
        }
        let path = format!("/api/v1/namespaces/{name}");
        conditions::write(client, &path, namespace, &findings).await?;
        Ok(Next::After(self.end(name, findings)))
    }

    /// What the last pass left of this namespace.
    fn begin(&self, name: &str, uid: &str) -> Vec<DiscoveredResource> {
        let mut terminating = self.terminating();
        let progress = terminating.entry(name.to_owned()).or_default();
        if progress.uid != uid {
            *progress = PassProgress { uid: uid.to_owned(), ..PassProgress::default() };
        }
        (progress.waiting, progress.stirred) = (false, false);
        std::mem::take(&mut progress.held)
    }

    /// How long to wait after a pass that left something or could not see everything.
    fn end(&self, name: &str, findings: Findings) -> Duration {
        let mut terminating = self.terminating();
        let progress = terminating.entry(name.to_owned()).or_default();
        if !findings.failed() {
            progress.held = findings.held;
        }
        progress.wait()
    }

    async fn finalize(&self, client: &Client, name: &str, mut namespace: Value) -> Result<Next, kube::Error> {
        let kept: Vec<&Value> = finalizers(&namespace).filter(|finalizer| *finalizer != FINALIZER).collect();
        namespace["spec"]["finalizers"] = json!(kept);
        let path = format!("/api/v1/namespaces/{name}/finalize");
        match rest::send(client, Method::PUT, &path, RequestOptions { body: Some(&namespace), ..RequestOptions::default() }).await {
            // Changed meanwhile, or gone: look again at once.
            Err(error) if matches!(code(&error), 404 | 409) => return Ok(Next::After(Duration::ZERO)),
            other => other?,
        };
        self.terminating().remove(name);
        Ok(Next::Done)
    }
}

fn finalizers(namespace: &Value) -> impl Iterator<Item = &Value> {
    namespace["spec"]["finalizers"].as_array().into_iter().flatten()
}

/// Whether the namespace is being deleted and waits for this controller.
fn is_ours(namespace: &Value) -> bool {
    !namespace["metadata"]["deletionTimestamp"].is_null() && finalizers(namespace).any(|finalizer| finalizer == FINALIZER)
}

/// What a namespace can have: `group/version` and plural of every resource, and what is not known.
fn contents(discovered: &Discovered) -> (BTreeSet<(&str, &str)>, &[String]) {
    let resources = discovered.resources.iter().filter(|found| content::is_content(found));
    (resources.map(|found| (found.resource.api_version.as_str(), found.resource.plural.as_str())).collect(), &discovered.unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::core::GroupVersionKind;

    fn gears(version: &str) -> DiscoveredResource {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("ex.com", version, "Gear"), "gears");
        DiscoveredResource { resource, namespaced: true, verbs: vec!["list".into(), "delete".into()] }
    }

    #[test]
    fn a_version_that_changed_during_a_pass_is_seen() {
        let served = |version: &str| Discovered { resources: vec![gears(version)], ..Discovered::default() };
        assert_eq!(contents(&served("v1")), contents(&served("v1")));
        assert_ne!(contents(&served("v1")), contents(&served("v2")));
        assert_ne!(contents(&served("v1")), contents(&Discovered::default()));
        assert_ne!(contents(&Discovered::default()), contents(&Discovered { unavailable: vec!["ex.com/v1".into()], ..Discovered::default() }));
    }

    #[test]
    fn fault_28_a_held_namespace_is_looked_at_less_and_less() {
        let namespaces = NamespaceTracker::default();
        let pass = |stirred: bool| {
            let held = namespaces.begin("stuck", "uid");
            if stirred {
                namespaces.deleted(&gears("v1"), &ObjectMeta { namespace: Some("stuck".into()), ..ObjectMeta::default() }.into());
            }
            let findings = Findings { held: vec![gears("v1")], ..Findings::default() };
            (held.len(), namespaces.end("stuck", findings).as_millis())
        };
        assert_eq!(pass(true), (0, 50), "an object went during the pass");
        let waits: Vec<(usize, u128)> = (0..6).map(|_| pass(false)).collect();
        assert_eq!(waits, [(1, 1000), (1, 2000), (1, 4000), (1, 8000), (1, 15000), (1, 15000)]);
        // An object that goes while nothing is done brings the next look; one elsewhere does not.
        let went = |namespace: &str| Observed::from(ObjectMeta { namespace: Some(namespace.into()), ..ObjectMeta::default() });
        namespaces.deleted(&gears("v1"), &went("elsewhere"));
        assert!(namespaces.queue.is_empty());
        namespaces.deleted(&gears("v1"), &went("stuck"));
        assert_eq!(namespaces.queue.len(), 1);
        // Another namespace of that name begins anew.
        assert!(namespaces.begin("stuck", "another").is_empty());
    }

    #[test]
    fn a_pass_that_failed_is_followed_by_a_whole_one() {
        let namespaces = NamespaceTracker::default();
        namespaces.begin("stuck", "uid");
        namespaces.end("stuck", Findings { held: vec![gears("v1")], deletion: vec!["refused".into()], ..Findings::default() });
        assert!(namespaces.begin("stuck", "uid").is_empty());
    }
}
