//! Watches as wake-ups: every event is passed to a callback; errors back off.

use ferrokube_client::Outage;
use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Whether the watch delivers: it returned objects, or the end of their list.
pub(crate) fn has_begun<K>(event: &watcher::Result<Event<K>>) -> bool {
    !matches!(event, Ok(Event::Init) | Err(_))
}

/// Watches all objects of `api`, and calls `seen` for each that exists, changes or is deleted
/// (`gone`). Runs until dropped.
pub(crate) async fn each<K>(api: Api<K>, config: watcher::Config, mut seen: impl FnMut(K, bool))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
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
