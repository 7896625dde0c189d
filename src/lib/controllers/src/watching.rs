//! Watches as wake-ups: every event is passed to a callback; errors back off.

use crate::queue::WorkQueue;
use ferrokube_client::{Outage, cause};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Whether the watch delivers: it returned objects, or the end of their list.
pub(crate) fn has_begun<K>(event: &watcher::Result<Event<K>>) -> bool {
    !matches!(event, Ok(Event::Init) | Err(_))
}

/// Watches the metadata of all objects of `api`, and calls `seen` for each that exists, changes or
/// is deleted (`gone`). Runs until dropped.
///
/// Never the objects: users make them large, and a controller would parse each change on a worker
/// that it shares with the server in an all-in-one.
pub(crate) async fn each<K>(
    api: Api<PartialObjectMeta<K>>,
    config: watcher::Config,
    mut seen: impl FnMut(PartialObjectMeta<K>, bool),
) where
    PartialObjectMeta<K>: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut outage = Outage::of_watch(api.resource_url().trim_start_matches('/'));
    let mut events = std::pin::pin!(watch(api, config.streaming_lists()).default_backoff());
    while let Some(event) = events.next().await {
        if has_begun(&event) {
            outage.works();
        }
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => seen(object, false),
            Ok(Event::Delete(object)) => seen(object, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => _ = outage.failed(&error),
        }
    }
}

/// Adds every namespace that is not being deleted to a queue. Runs until dropped.
pub(crate) async fn live_namespaces(client: Client, queue: &WorkQueue<String>) {
    let each = each(
        Api::<PartialObjectMeta<Namespace>>::all(client),
        watcher::Config::default(),
        |namespace, gone| {
            if !gone && namespace.metadata.deletion_timestamp.is_none() {
                queue.add(namespace.name_any(), cause(&namespace.metadata));
            }
        },
    );
    each.await;
}
