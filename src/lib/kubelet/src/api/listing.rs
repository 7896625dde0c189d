//! The pods that are bound to this node, as the API server has them.

use ferrokube_client::Outage;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// A list that a watch keeps. `None` until it is complete for the first time.
pub(crate) struct ApiPods {
    listed: Mutex<Option<BTreeMap<String, Arc<Pod>>>>,
    changes: watch::Sender<u64>,
}

impl Default for ApiPods {
    fn default() -> Self {
        Self { listed: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl ApiPods {
    /// All pods; `None`: not known yet, so that nothing may be ended for being missing.
    pub(crate) fn all(&self) -> Option<Vec<Arc<Pod>>> {
        self.listed.lock().as_ref().map(|pods| pods.values().cloned().collect())
    }

    /// As if the API server had these.
    #[cfg(test)]
    pub(crate) fn set(&self, pods: impl IntoIterator<Item = Pod>) {
        let mut listing = BTreeMap::new();
        pods.into_iter().for_each(|pod| self.apply(Event::InitApply(pod), &mut listing));
        self.apply(Event::InitDone, &mut listing);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Watches until dropped.
    pub(crate) async fn watch(&self, client: &Client, node: &str) {
        let pods: Api<Pod> = Api::all(client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let mut outage = Outage::of_watch("pods of this node");
        let mut events = std::pin::pin!(watch_objects(pods, config).default_backoff());
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

    fn apply(&self, event: Event<Pod>, listing: &mut BTreeMap<String, Arc<Pod>>) {
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        let mut listed = self.listed.lock();
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(pod) => _ = listing.insert(uid(&pod), Arc::new(pod)),
            Event::InitDone => *listed = Some(std::mem::take(listing)),
            Event::Apply(pod) => {
                if let Some(listed) = &mut *listed {
                    listed.insert(uid(&pod), Arc::new(pod));
                }
            }
            Event::Delete(pod) => {
                if let Some(listed) = &mut *listed {
                    listed.remove(&uid(&pod));
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
}
