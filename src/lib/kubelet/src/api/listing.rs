//! Local copies of API objects: the pods bound to this node, and services.

use crate::objects::PodObjectError;
use ferrokube_client::Outage;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Max time that the start of a container waits for the first list of services.
const SERVICES: Duration = Duration::from_secs(10);

/// A list kept up to date by a watch. `None` until its first list is complete.
pub(crate) struct ApiListing<K> {
    listed: Mutex<Option<BTreeMap<String, Arc<K>>>>,
    changes: watch::Sender<u64>,
}

/// Pods of this node.
pub(crate) type ApiPods = ApiListing<Pod>;
/// Services of all namespaces.
pub(crate) type ApiServices = ApiListing<Service>;

impl<K> Default for ApiListing<K> {
    fn default() -> Self {
        Self { listed: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl ApiListing<Pod> {
    /// Watches until dropped.
    pub(crate) async fn watch_node(&self, client: &Client, node: &str) {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        self.watch(client, config, "pods of this node").await;
    }
}

impl ApiListing<Service> {
    /// Watches until dropped.
    pub(crate) async fn watch_all(&self, client: &Client) {
        self.watch(client, watcher::Config::default(), "services").await;
    }

    /// All services. Waits up to [`SERVICES`] for the first list.
    pub(crate) async fn known(&self) -> Result<Vec<Arc<Service>>, PodObjectError> {
        let mut changes = self.changes();
        let listed = async {
            loop {
                if let Some(all) = self.all() {
                    return all;
                }
                // Never closed: `self` owns the sender.
                _ = changes.changed().await;
            }
        };
        let unread = "services have not yet been read at least once, cannot construct envvars";
        let listed = tokio::time::timeout(SERVICES, listed).await;
        listed.map_err(|_| PodObjectError::Invalid(unread.to_owned()))
    }
}

impl<K> ApiListing<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// All objects; `None` before the first list. Until then no pod is terminated for being absent.
    pub(crate) fn all(&self) -> Option<Vec<Arc<K>>> {
        self.listed.lock().as_ref().map(|all| all.values().cloned().collect())
    }

    /// Replaces the list, for tests.
    #[cfg(test)]
    pub(crate) fn set(&self, objects: impl IntoIterator<Item = K>) {
        let mut listing = BTreeMap::new();
        objects.into_iter().for_each(|one| self.apply(Event::InitApply(one), &mut listing));
        self.apply(Event::InitDone, &mut listing);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn watch(&self, client: &Client, config: watcher::Config, what: &str) {
        let objects: Api<K> = Api::all(client.clone());
        // One object that cannot be read hides no other.
        let config = config.streaming_lists();
        let mut outage = Outage::of_watch(what);
        let events = watch_objects(objects, config).default_backoff();
        // Nothing reads who wrote a field.
        let mut events = std::pin::pin!(events.modify(|one| one.managed_fields_mut().clear()));
        let mut listing = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if !matches!(event, Event::Init) {
                        outage.works();
                    }
                    self.apply(event, &mut listing);
                }
                Err(error) => _ = outage.failed(&error),
            }
        }
    }

    fn apply(&self, event: Event<K>, listing: &mut BTreeMap<String, Arc<K>>) {
        let uid = |one: &K| one.meta().uid.clone().unwrap_or_default();
        let mut listed = self.listed.lock();
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(one) => _ = listing.insert(uid(&one), Arc::new(one)),
            Event::InitDone => *listed = Some(std::mem::take(listing)),
            Event::Apply(one) => {
                if let Some(listed) = &mut *listed {
                    listed.insert(uid(&one), Arc::new(one));
                }
            }
            Event::Delete(one) => {
                if let Some(listed) = &mut *listed {
                    listed.remove(&uid(&one));
                }
            }
        }
        drop(listed);
        self.changes.send_modify(|changes| *changes += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    #[test]
    fn a_list_counts_when_it_is_complete_and_replaces_the_one_of_before() {
        let (pods, mut listing) = (ApiPods::default(), BTreeMap::new());
        let uids = || {
            let all = pods.all()?;
            Some(all.iter().filter_map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>())
        };
        pods.apply(Event::Init, &mut listing);
        pods.apply(Event::InitApply(pod("a")), &mut listing);
        assert_eq!(uids(), None);
        pods.apply(Event::InitDone, &mut listing);
        pods.apply(Event::Apply(pod("b")), &mut listing);
        assert_eq!(uids(), Some(vec!["a".to_owned(), "b".to_owned()]));
        pods.apply(Event::Init, &mut listing);
        pods.apply(Event::InitApply(pod("c")), &mut listing);
        assert_eq!(uids().map(|uids| uids.len()), Some(2), "the old list stands meanwhile");
        pods.apply(Event::InitDone, &mut listing);
        assert_eq!(uids(), Some(vec!["c".to_owned()]));
        pods.apply(Event::Delete(pod("c")), &mut listing);
        assert_eq!(uids(), Some(vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_the_first_list_of_services_for_a_while() {
        let services = Arc::<ApiServices>::default();
        let failed = services.known().await.unwrap_err().to_string();
        let unread = "services have not yet been read at least once, cannot construct envvars";
        assert_eq!(failed, unread);
        let waiting = tokio::spawn({
            let services = Arc::clone(&services);
            async move { services.known().await }
        });
        tokio::task::yield_now().await;
        services.set([Service::default()]);
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    }
}
