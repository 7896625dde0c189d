//! Metadata of every deletable object: one metadata-only watch per resource, shared by all
//! listeners.
//!
//! New resources are discovered every [`REDISCOVER`], when a custom resource definition changes,
//! and when a listener needs an unknown kind.

mod observed;

pub(crate) use observed::Observed;

use crate::watching::has_begun;
use ferrokube_client::{Discovered, DiscoveredResource, Outage};
use futures::StreamExt;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{AbortHandle, JoinSet};

/// Interval of discoveries.
const REDISCOVER: Duration = Duration::from_secs(30);
/// Delay after a failed discovery.
const RETRY: Duration = Duration::from_secs(1);
/// Minimum interval of requested discoveries.
const PAUSE: Duration = Duration::from_millis(200);
/// Likewise, as a multiple of the last discovery's duration, so that a series of new definitions
/// does not have all resources described again for each.
const PAUSES: u32 = 20;
/// Watches started concurrently: a thousand definitions must not queue their lists ahead of other
/// requests.
const BEGINNING: usize = 8;
/// A watch whose list takes longer stops blocking others from starting.
const BEGIN: Duration = Duration::from_secs(2);
/// Delay of the list after a watch fell out of the server's history, doubled each time up to the
/// other: writers of large objects can push every watch out of it repeatedly.
const RELIST: Duration = Duration::from_secs(1);
const MAX_RELIST: Duration = Duration::from_secs(60);
/// After this long without such an end the delay is the first one again.
const RELIST_QUIET: Duration = Duration::from_secs(5 * 60);
/// High-volume resources that are never owners.
const IGNORED: [&str; 2] = ["events", "events.events.k8s.io"];
/// Plurals that a path has as verbs (`/apis/GROUP/VERSION/watch/...`): nothing lists such a kind
/// across namespaces.
const VERBS_IN_PATH: [&str; 2] = ["watch", "proxy"];

/// Receives metadata events.
pub(crate) trait MetadataListener: Send + Sync {
    /// A full list starts; objects not seen until [`Self::list_ends`] are gone.
    fn list_begins(&self, _resource: &DiscoveredResource) {}
    /// The full list ends.
    fn list_ends(&self, _resource: &DiscoveredResource) {}
    /// The object exists, or changed.
    fn applied(&self, resource: &DiscoveredResource, object: &Observed);
    /// The object was deleted.
    fn deleted(&self, resource: &DiscoveredResource, object: &Observed);
    /// The resource is no longer served; the state of its objects is unknown.
    fn forgotten(&self, _resource: &DiscoveredResource) {}
}

/// Group, kind and plural of objects that change discovery.
const DEFINING: [(&str, &str, &str); 2] = [
    ("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions"),
    ("apiregistration.k8s.io", "APIService", "apiservices"),
];

/// The metadata watches, shared by the controllers that listen to them.
pub(crate) struct Monitor {
    client: Client,
    listeners: Vec<Arc<dyn MetadataListener>>,
    known: Mutex<Arc<Discovered>>,
    wanted: Notify,
    beginning: Semaphore,
}

impl Monitor {
    pub(crate) fn new(client: Client, listeners: Vec<Arc<dyn MetadataListener>>) -> Self {
        Self {
            client,
            listeners,
            known: Mutex::default(),
            wanted: Notify::new(),
            beginning: Semaphore::new(BEGINNING),
        }
    }

    /// One that discovers nothing by itself.
    #[cfg(test)]
    pub(crate) fn knowing(client: Client, discovered: Discovered) -> Self {
        let monitor = Self::new(client, Vec::new());
        *monitor.known.lock() = Arc::new(discovered);
        monitor
    }

    /// Result of the last discovery.
    pub(crate) fn known(&self) -> Arc<Discovered> {
        self.known.lock().clone()
    }

    /// Requests a discovery, as a kind is unknown.
    pub(crate) fn rediscover(&self) {
        self.wanted.notify_one();
    }

    /// Runs until dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut tasks: JoinSet<()> = JoinSet::new();
        for (group, kind, plural) in DEFINING {
            let gvk = GroupVersionKind::gvk(group, "v1", kind);
            let defining = ApiResource::from_gvk_with_plural(&gvk, plural);
            tasks.spawn(self.clone().watch_definitions(defining));
        }
        let mut watched: HashMap<String, (DiscoveredResource, AbortHandle)> = HashMap::new();
        let mut outage = Outage::new("discover the API server's resources");
        loop {
            // Reap ended watches.
            while tasks.try_join_next().is_some() {}
            let begun = Instant::now();
            match Discovered::query(&self.client).await {
                Ok(discovered) => {
                    outage.works();
                    self.adjust(Arc::new(discovered), &mut watched, &mut tasks);
                }
                Err(error) => {
                    // Without discovery there are no watches: retry before the regular interval.
                    outage.failed(&error);
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            tokio::time::sleep((begun.elapsed() * PAUSES).clamp(PAUSE, REDISCOVER / 6)).await;
            let _ = tokio::time::timeout(REDISCOVER, self.wanted.notified()).await;
        }
    }

    /// Requests a discovery whenever one of these objects changes.
    async fn watch_definitions(self: Arc<Self>, defining: ApiResource) {
        let mut outage = Outage::of_watch(&defining.plural);
        let api: Api<Observed> = Api::all_with(self.client.clone(), &defining);
        let mut events =
            std::pin::pin!(watcher(api, Config::default().streaming_lists()).default_backoff());
        while let Some(event) = events.next().await {
            if has_begun(&event) {
                outage.works();
            }
            match event {
                Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone) => self.rediscover(),
                Ok(Event::Init | Event::InitApply(_)) => {}
                Err(error) => _ = outage.failed(&error),
            }
        }
    }

    /// Starts and stops watches to match the served resources.
    fn adjust(
        self: &Arc<Self>,
        discovered: Arc<Discovered>,
        watched: &mut HashMap<String, (DiscoveredResource, AbortHandle)>,
        tasks: &mut JoinSet<()>,
    ) {
        *self.known.lock() = discovered.clone();
        let mut gone: HashMap<String, (DiscoveredResource, AbortHandle)> = std::mem::take(watched);
        for found in discovered.resources.iter().filter(|found| is_watched(found)) {
            let name = qualified(found);
            let entry = match gone.remove(&name) {
                Some((old, task))
                    if old.resource == found.resource
                        && old.namespaced == found.namespaced
                        && !task.is_finished() =>
                {
                    (found.clone(), task)
                }
                replaced => {
                    // Another version: the new watch starts with a full list.
                    if let Some((_, task)) = replaced {
                        task.abort();
                    }
                    (found.clone(), tasks.spawn(self.clone().watch(found.clone())))
                }
            };
            watched.insert(name, entry);
        }
        for (name, (resource, task)) in gone {
            // A group that cannot be described at present still exists: keep its watch.
            if discovered.unavailable.contains(&resource.resource.api_version) {
                watched.insert(name, (resource, task));
                continue;
            }
            task.abort();
            if !watched.contains_key(&name) {
                self.listeners.iter().for_each(|listener| listener.forgotten(&resource));
            }
        }
    }

    async fn watch(self: Arc<Self>, resource: DiscoveredResource) {
        let api: Api<Observed> = Api::all_with(self.client.clone(), &resource.resource);
        let mut events =
            std::pin::pin!(watcher(api, Config::default().streaming_lists()).default_backoff());
        let mut outage = Outage::of_watch(&format!("the metadata of {}", qualified(&resource)));
        let mut relists = RelistPauses::default();
        let mut turn = self.beginning.acquire().await.ok();
        let room = tokio::time::Instant::now() + BEGIN;
        loop {
            let next = if turn.is_some() {
                tokio::time::timeout_at(room, events.next()).await
            } else {
                Ok(events.next().await)
            };
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(_) => {
                    turn = None;
                    continue;
                }
            };
            if matches!(event, Ok(Event::InitDone) | Err(_)) {
                turn = None;
            }
            if has_begun(&event) {
                outage.works();
            }
            match event {
                Ok(Event::Init) => {
                    self.listeners.iter().for_each(|listener| listener.list_begins(&resource))
                }
                Ok(Event::InitDone) => {
                    tracing::debug!(resource = qualified(&resource), "listed all objects");
                    self.listeners.iter().for_each(|listener| listener.list_ends(&resource));
                }
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    self.listeners.iter().for_each(|listener| listener.applied(&resource, &object))
                }
                Ok(Event::Delete(object)) => {
                    self.listeners.iter().for_each(|listener| listener.deleted(&resource, &object))
                }
                Err(error) if has_expired(&error) => {
                    tracing::debug!(error = %error, resource = qualified(&resource), "lists again");
                    tokio::time::sleep(relists.next(Instant::now())).await;
                }
                // The definition was deleted; discovery will notice.
                Err(error) if is_gone(&error) => {
                    tracing::debug!(error = %error, resource = qualified(&resource), "no longer served")
                }
                Err(error) => _ = outage.failed(&error),
            }
        }
    }
}

/// Delays of the lists after watches that expired. The watcher's own backoff starts again with
/// every event.
#[derive(Default)]
struct RelistPauses {
    /// The last end of a watch, and the delay after it.
    last: Option<(Instant, Duration)>,
}

impl RelistPauses {
    fn next(&mut self, now: Instant) -> Duration {
        let last = self.last.filter(|(at, _)| now.duration_since(*at) < RELIST_QUIET);
        let pause = last.map_or(RELIST, |(_, pause)| (pause * 2).min(MAX_RELIST));
        self.last = Some((now, pause));
        pause
    }
}

/// Whether the watch fell out of the server's history (410).
fn has_expired(error: &Error) -> bool {
    match error {
        Error::WatchError(status) => status.code == 410,
        Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

/// Whether the server does not know the resource.
fn is_gone(error: &Error) -> bool {
    let (Error::InitialListFailed(error)
    | Error::WatchStartFailed(error)
    | Error::WatchFailed(error)) = error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

pub(crate) fn qualified(resource: &DiscoveredResource) -> String {
    let resource = &resource.resource;
    if resource.group.is_empty() {
        resource.plural.clone()
    } else {
        format!("{}.{}", resource.plural, resource.group)
    }
}

pub(crate) fn is_watched(resource: &DiscoveredResource) -> bool {
    resource.has_verbs(&["get", "list", "watch", "delete"])
        && !IGNORED.contains(&qualified(resource).as_str())
        && !VERBS_IN_PATH.contains(&resource.resource.plural.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes beyond the history cause relists, at growing intervals.
    #[test]
    fn fault_34_watches_that_expire_in_a_loop_list_ever_more_rarely() {
        let (mut relists, begun, mut lists) = (RelistPauses::default(), Instant::now(), 0);
        let mut now = begun;
        while now < begun + Duration::from_secs(600) {
            // Each watch expires at once.
            now += relists.next(now);
            lists += 1;
        }
        assert!(lists <= 16, "{lists} lists in ten minutes");
        assert_eq!(relists.next(now + RELIST_QUIET * 2), RELIST);
    }

    #[test]
    fn a_kind_that_no_path_names_is_not_waited_for() {
        let watched = |plural: &str| {
            let resource = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("ex.com", "v1", "Gear"),
                plural,
            );
            let verbs = ["get", "list", "watch", "delete"].map(str::to_owned).to_vec();
            is_watched(&DiscoveredResource { resource, namespaced: true, verbs })
        };
        assert!(["gears", "status", "finalize", "watches"].into_iter().all(watched));
        assert!(!["watch", "proxy"].into_iter().any(watched));
    }
}
