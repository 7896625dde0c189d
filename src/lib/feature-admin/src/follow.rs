//! Follows Feature objects by a watch.

use crate::admin::FeatureAdminError;
use crate::report::FeatureReport;
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use std::collections::BTreeMap;

/// Features by name.
pub(crate) type Features = BTreeMap<String, FeatureReport>;

/// Calls `look` with all features, then after each change, until it returns something. A server
/// that was reached once is waited for.
pub(crate) async fn follow<T>(
    api: &Api<DynamicObject>,
    name: Option<&str>,
    mut look: impl FnMut(&Features) -> Option<T>,
) -> Result<T, FeatureAdminError> {
    let config = match name {
        Some(name) => watcher::Config::default().fields(&format!("metadata.name={name}")),
        None => watcher::Config::default(),
    };
    let mut events = std::pin::pin!(watcher(api.clone(), config).default_backoff());
    let (mut features, mut is_complete) = (Features::new(), false);
    loop {
        match events.next().await {
            Some(Ok(Event::Init)) => features.clear(),
            Some(Ok(Event::Apply(feature) | Event::InitApply(feature))) => {
                put(&mut features, &feature);
            }
            Some(Ok(Event::Delete(feature))) => {
                features.remove(&feature.metadata.name.unwrap_or_default());
            }
            Some(Ok(Event::InitDone)) => is_complete = true,
            Some(Err(error)) if is_complete => {
                if let watcher::Error::InitialListFailed(error) = error
                    && is_final(&error)
                {
                    return Err(FeatureAdminError::of(error));
                }
                continue;
            }
            Some(Err(watcher::Error::InitialListFailed(error))) => {
                return Err(FeatureAdminError::of(error));
            }
            Some(Err(error)) => return Err(FeatureAdminError::Watch(error.to_string())),
            None => return Err(FeatureAdminError::Watch("the watch ended".to_owned())),
        }
        if is_complete && let Some(found) = look(&features) {
            return Ok(found);
        }
    }
}

/// Whether it is pointless to try again.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

fn put(features: &mut Features, feature: &DynamicObject) {
    let value = serde_json::to_value(feature).unwrap_or_default();
    let report = FeatureReport::read(&value);
    features.insert(feature.metadata.name.clone().unwrap_or_default(), report);
}
