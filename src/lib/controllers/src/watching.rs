//! Watches as wake-ups: every event of a resource is handed to a callback; errors back off and go on.

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Watches all objects that `api` reaches and calls `seen` for each that is there, changes or goes (`gone`). Runs until dropped.
pub(crate) async fn each<K>(api: Api<K>, config: watcher::Config, mut seen: impl FnMut(K, bool))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = std::pin::pin!(watch(api, config.streaming_lists()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => seen(object, false),
            Ok(Event::Delete(object)) => seen(object, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::debug!(error = %error, "a watch ended and is begun again"),
        }
    }
}
