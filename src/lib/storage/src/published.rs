//! Published state: the current state and history of every resource.
//!
//! A batch becomes visible atomically across resources: all their write locks are taken, everything
//! is applied, the published revision advances, then the locks are released. Swapping immutable
//! maps was rejected: while the swap holds a reference, every write copies a path of the tree,
//! several microseconds of reference counting; under the lock the tree is modified in place unless
//! a list still shares it.

use crate::cursor::WatchError;
use crate::entry::Entry;
use crate::key::{Key, Prefix, Revision};
use crate::loader::StateLoader;
use crate::log::{EventLog, ReadLimit};
use crate::map::EntryMap;
use crate::replay_cache::ReplayCache;
use crate::snapshot::Snapshot;
use crate::topic::{Subscription, Subscriptions};
use crate::txn::{Event, TxnEvent};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Approximate cost of an event beyond its bytes: the entry, its key, its log slot.
const EVENT_OVERHEAD: usize = 256;
/// Restored events that may exceed the history bound before some are evicted.
const REFILL_EVENTS: usize = 1024;

/// Source of events evicted from memory.
pub(crate) trait Archive: Send + Sync {
    /// Events after this revision are available.
    fn floor(&self) -> Revision;

    /// The next events of a resource in `after < revision <= until`. Blocking.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if `after` fell below the floor or the events cannot be read.
    fn events(
        &self,
        prefix: &str,
        after: Revision,
        until: Revision,
        most: ReadLimit,
    ) -> Result<ArchivedEvents, WatchError>;
}

/// Result of one archive read.
pub(crate) struct ArchivedEvents {
    pub(crate) events: Vec<Event>,
    /// Every event up to this revision was returned.
    pub(crate) reached: Revision,
}

/// One resource's published state and history.
pub(crate) struct PublishedResource {
    pub(crate) prefix: Prefix,
    pub(crate) state: RwLock<ResourceState>,
    /// Revision of the last published event, or of what was published before this was made, as the
    /// archive may hold events up to there.
    latest: AtomicU64,
}

impl PublishedResource {
    /// Revision of the last published event, or a later one. Lock-free.
    pub(crate) fn latest(&self) -> Revision {
        Revision(self.latest.load(Ordering::Acquire))
    }
}

/// Tells whether a resource has published objects, without looking the resource up: for checks that
/// every write makes. Cheap to clone.
#[derive(Clone)]
pub struct Presence(pub(crate) Arc<PublishedResource>);

impl Presence {
    /// Whether there are objects, or those of a namespace.
    pub fn has_any(&self, namespace: Option<&str>) -> bool {
        let state = self.0.state.read();
        namespace.map_or_else(|| state.map.len(), |namespace| state.map.len_of(namespace)) > 0
    }
}

/// State under a resource's lock.
pub(crate) struct ResourceState {
    pub(crate) map: EntryMap,
    pub(crate) log: EventLog,
    pub(crate) subscriptions: Subscriptions,
}

impl ResourceState {
    /// Returns the replaced entry.
    pub(crate) fn apply(&mut self, event: &Event, replay_events: usize) -> Option<Arc<Entry>> {
        let before = if event.deleted {
            self.map.remove(&event.entry.key)
        } else {
            self.map.insert(event.entry.key.clone(), event.entry.clone())
        };
        self.log.push(event.clone(), &self.map, replay_events);
        before
    }
}

/// Events in memory across resources, oldest first.
#[derive(Default)]
pub(crate) struct Retention {
    queue: VecDeque<RetainedEvent>,
    bytes: usize,
}

struct RetainedEvent {
    revision: Revision,
    resource: Arc<PublishedResource>,
    cost: usize,
    /// Publication time in monotonic milliseconds; 0 for recovered events.
    at_ms: u64,
}

/// Bounds on the history in memory.
#[derive(Clone, Debug)]
pub(crate) struct HistoryBounds {
    /// Hard limit in bytes.
    pub(crate) most: usize,
    /// With an archive: limit in bytes for events older than `young_ms`, or a quarter of the live
    /// bytes if that is more.
    pub(crate) quiet: usize,
    /// Age up to which events are exempt from `quiet`, in milliseconds.
    pub(crate) young_ms: u64,
}

/// All resources.
pub(crate) struct Published {
    resources: ArcSwap<HashMap<Prefix, Arc<PublishedResource>>>,
    making: Mutex<()>,
    revision: AtomicU64,
    /// Revision at which the in-memory history starts.
    origin: AtomicU64,
    /// Revision ranges (exclusive) skipped at a restart.
    gaps: Mutex<Vec<(Revision, Revision)>>,
    live_bytes: AtomicU64,
    retention: Mutex<Retention>,
    retained_bytes: AtomicUsize,
    bounds: HistoryBounds,
    replay_events: usize,
    moved: Notify,
    closed: AtomicBool,
    replay_cache: ReplayCache,
}

impl Published {
    pub(crate) fn new(bounds: HistoryBounds, replay_events: usize) -> Self {
        Self {
            resources: ArcSwap::default(),
            making: Mutex::default(),
            revision: AtomicU64::new(0),
            origin: AtomicU64::new(0),
            gaps: Mutex::default(),
            live_bytes: AtomicU64::new(0),
            retention: Mutex::default(),
            retained_bytes: AtomicUsize::new(0),
            bounds,
            replay_events: replay_events.max(1),
            moved: Notify::new(),
            closed: AtomicBool::new(false),
            replay_cache: ReplayCache::default(),
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Bytes of all live values.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Bytes charged against the history bound.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn replay_cache(&self) -> &ReplayCache {
        &self.replay_cache
    }

    /// Every resource ever named, with its lock.
    pub(crate) fn resources(&self) -> Arc<HashMap<Prefix, Arc<PublishedResource>>> {
        self.resources.load_full()
    }

    fn find(&self, prefix: &str) -> Option<Arc<PublishedResource>> {
        self.resources.load().get(prefix).cloned()
    }

    /// Creates the resource if needed.
    pub(crate) fn resource(&self, prefix: &Prefix) -> Arc<PublishedResource> {
        if let Some(resource) = self.find(prefix.as_str()) {
            return resource;
        }
        let _making = self.making.lock();
        if let Some(resource) = self.find(prefix.as_str()) {
            return resource;
        }
        let origin = Revision(self.origin.load(Ordering::Acquire));
        let state = RwLock::new(ResourceState {
            map: EntryMap::new(),
            log: EventLog::new(origin),
            subscriptions: Subscriptions::default(),
        });
        let resource = Arc::new(PublishedResource {
            prefix: prefix.clone(),
            state,
            latest: AtomicU64::new(self.revision.load(Ordering::Acquire)),
        });
        let mut resources = HashMap::clone(&self.resources.load());
        resources.insert(prefix.clone(), resource.clone());
        self.resources.store(Arc::new(resources));
        resource
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let resources = self.resources.load();
        let resource = resources.get(key.prefix())?;
        resource.state.read().map.get(key.as_str()).cloned()
    }

    /// Makes a batch visible. `revision` is its last revision, `now_ms` monotonic. Returns the
    /// cursors to wake.
    pub(crate) fn publish<'a>(
        &self,
        changes: impl Iterator<Item = &'a TxnEvent>,
        revision: Revision,
        now_ms: u64,
    ) -> Vec<Arc<Subscription>> {
        let touched = self.by_resource(changes);
        let mut woken = Vec::new();
        let mut retention = self.retention.lock();
        let mut states: Vec<RwLockWriteGuard<'_, ResourceState>> =
            touched.iter().map(|touched| touched.resource.state.write()).collect();
        for (state, touched) in states.iter_mut().zip(&touched) {
            for change in &touched.changes {
                state.apply(&change.event, self.replay_events);
                touched.resource.latest.store(change.event.revision().0, Ordering::Release);
            }
            state
                .subscriptions
                .mark(touched.changes.iter().map(|change| &change.event), &mut woken);
        }
        self.revision.store(revision.0, Ordering::Release);
        drop(states);
        self.account(&mut retention, &touched, now_ms);
        woken
    }

    fn by_resource<'a>(&self, changes: impl Iterator<Item = &'a TxnEvent>) -> Vec<Touched<'a>> {
        let mut touched: Vec<Touched<'a>> = Vec::new();
        for change in changes {
            let prefix = change.event.entry.key.prefix();
            match touched.iter_mut().find(|touched| touched.resource.prefix.as_str() == prefix) {
                Some(touched) => touched.changes.push(change),
                None => touched.push(Touched {
                    resource: self.resource(&change.event.entry.key.to_prefix()),
                    changes: vec![change],
                }),
            }
        }
        touched
    }

    fn account(&self, retention: &mut Retention, touched: &[Touched<'_>], now_ms: u64) {
        let mut live = 0i64;
        let mut added: Vec<RetainedEvent> = Vec::new();
        for Touched { resource, changes } in touched {
            for TxnEvent { event, .. } in changes {
                live += growth(event);
                added.push(RetainedEvent {
                    revision: event.revision(),
                    resource: resource.clone(),
                    cost: cost(event),
                    at_ms: now_ms,
                });
            }
        }
        added.sort_by_key(|retained| retained.revision);
        retention.bytes += added.iter().map(|retained| retained.cost).sum::<usize>();
        retention.queue.extend(added);
        self.live_bytes.fetch_add(live.cast_unsigned(), Ordering::Relaxed);
        self.evict(retention, now_ms);
    }

    /// Evicts events from the front of the history while `more` returns true.
    fn evict_while(
        &self,
        retention: &mut Retention,
        more: impl Fn(&Retention, &RetainedEvent) -> bool,
    ) {
        let mut counts: Vec<(Arc<PublishedResource>, usize)> = Vec::new();
        while let Some(front) = retention.queue.front() {
            if !more(retention, front) {
                break;
            }
            let front = retention.queue.pop_front().expect("front() returned it");
            retention.bytes -= front.cost;
            match counts.iter_mut().find(|(resource, _)| Arc::ptr_eq(resource, &front.resource)) {
                Some((_, count)) => *count += 1,
                None => counts.push((front.resource, 1)),
            }
        }
        for (resource, count) in counts {
            let gone = resource.state.write().log.evict(count);
            drop(gone);
        }
        self.retained_bytes.store(retention.bytes, Ordering::Relaxed);
    }

    /// Exclusive access for recovery, before the store is shared.
    pub(crate) fn loader(&self) -> StateLoader<'_> {
        StateLoader::new(self, self.retention.lock())
    }

    /// Replaces the whole state after a gap in the history, which then starts at `revision`.
    pub(crate) fn replace(&self, entries: Vec<Arc<Entry>>, revision: Revision) {
        let mut by_prefix: HashMap<Box<str>, Vec<Arc<Entry>>> = HashMap::new();
        for entry in entries {
            match by_prefix.get_mut(entry.key.prefix()) {
                Some(entries) => entries.push(entry),
                None => _ = by_prefix.insert(entry.key.prefix().into(), vec![entry]),
            }
        }
        for entries in by_prefix.values() {
            self.resource(&entries[0].key.to_prefix());
        }
        let mut retention = self.retention.lock();
        // No resource is added meanwhile, whose history would start too early.
        let making = self.making.lock();
        let resources = self.resources();
        let mut states: Vec<_> = resources.values().map(|one| (one, one.state.write())).collect();
        let (mut live, mut woken) = (0, Vec::new());
        for (resource, state) in &mut states {
            let entries = by_prefix.remove(resource.prefix.as_str()).unwrap_or_default();
            live += entries.iter().map(|entry| entry.bytes.len() as u64).sum::<u64>();
            state.log = EventLog::after_state(revision, &entries);
            state.map.replace(entries);
            resource.latest.store(revision.0, Ordering::Release);
            // Readers of the old history find that it is gone.
            state.subscriptions.mark_all(&mut woken);
        }
        self.origin.store(revision.0, Ordering::Release);
        self.revision.store(revision.0, Ordering::Release);
        self.live_bytes.store(live, Ordering::Relaxed);
        *retention = Retention::default();
        self.retained_bytes.store(0, Ordering::Relaxed);
        drop((states, making, retention));
        self.wake(&woken);
    }

    /// Sets where the history starts, before recovery.
    pub(crate) fn set_origin(&self, revision: Revision) {
        self.origin.store(revision.0, Ordering::Release);
        self.revision.store(revision.0, Ordering::Release);
    }

    /// Marks the revisions in between as unknown.
    pub(crate) fn add_gap(&self, after: Revision, before: Revision) {
        self.gaps.lock().push((after, before));
    }

    /// Whether the revision is not part of this history: it was lost, or belongs to another store.
    pub(crate) fn is_unknown(&self, revision: Revision) -> bool {
        self.gaps.lock().iter().any(|(after, before)| *after < revision && revision < *before)
    }

    /// Retains a recovered event.
    pub(crate) fn retain(
        &self,
        retention: &mut Retention,
        resource: Arc<PublishedResource>,
        event: &Event,
    ) {
        retention.bytes += cost(event);
        retention.queue.push_back(RetainedEvent {
            revision: event.revision(),
            resource,
            cost: cost(event),
            at_ms: 0,
        });
        // In steps: eviction locks each resource.
        if retention.queue.len().is_multiple_of(REFILL_EVENTS) {
            self.evict_while(retention, |retention, _| retention.bytes > self.bounds.most);
        }
    }

    /// Ends recovery at `revision`.
    pub(crate) fn filled(&self, retention: &mut Retention, revision: Revision, live_bytes: u64) {
        self.live_bytes.store(live_bytes, Ordering::Relaxed);
        self.evict(retention, u64::MAX);
        self.revision.store(revision.0, Ordering::Release);
        for resource in self.resources().values() {
            resource.latest.store(revision.0, Ordering::Release);
        }
    }

    fn evict(&self, retention: &mut Retention, now_ms: u64) {
        let (most, quiet) = (self.bounds.most, self.quiet_bytes());
        let old =
            |front: &RetainedEvent| front.at_ms.saturating_add(self.bounds.young_ms) <= now_ms;
        let newest = self.newest();
        self.evict_while(retention, |retention, front| {
            let is_over = retention.bytes > most || (retention.bytes > quiet && old(front));
            is_over && Some(front.revision) != newest
        });
    }

    /// The revision whose events stay, whatever they cost: those of the last one, if they exist
    /// nowhere else. A client that lists at that revision can watch from there.
    fn newest(&self) -> Option<Revision> {
        self.replay_cache.archive().is_none().then(|| self.revision())
    }

    /// Limit for events that are no longer young. Without an archive, the full bound: they exist
    /// nowhere else.
    fn quiet_bytes(&self) -> usize {
        let live = usize::try_from(self.live_bytes()).unwrap_or(usize::MAX);
        if self.replay_cache.archive().is_some() {
            self.bounds.quiet.max(live / 4).min(self.bounds.most)
        } else {
            self.bounds.most
        }
    }

    /// Time until [`Self::trim`] has work; `None` if that needs another event first.
    pub(crate) fn trim_in(&self, now_ms: u64) -> Option<Duration> {
        let retention = self.retention.lock();
        let is_over = |front: &&RetainedEvent| {
            retention.bytes > self.quiet_bytes() && Some(front.revision) != self.newest()
        };
        let front = retention.queue.front().filter(is_over)?;
        Some(Duration::from_millis(
            front.at_ms.saturating_add(self.bounds.young_ms).saturating_sub(now_ms),
        ))
    }

    /// Evicts events that are neither young nor within the quiet bound, and releases excess
    /// capacity.
    pub(crate) fn trim(&self, now_ms: u64) {
        let mut retention = self.retention.lock();
        self.evict(&mut retention, now_ms);
        retention.queue.shrink_to(0);
        for resource in self.resources().values() {
            resource.state.write().log.shrink();
        }
    }

    /// Wakes cursors, and tasks in [`Self::wait_for`].
    pub(crate) fn wake(&self, cursors: &[Arc<Subscription>]) {
        self.moved.notify_waiters();
        for cursor in cursors {
            cursor.wake();
        }
    }

    /// Waits until the published revision reaches `revision`.
    pub(crate) async fn wait_for(&self, revision: Revision) {
        loop {
            let moved = self.moved.notified();
            if self.revision() >= revision {
                return;
            }
            moved.await;
        }
    }

    /// Ends the history: drained watchers get [`WatchError::Closed`].
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for resource in self.resources().values() {
            resource.state.read().subscriptions.iter().for_each(|cursor| cursor.wake());
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Current state of a resource. The published revision is read under the resource's lock, where
    /// it cannot advance past the state; a resource that did not exist yet could get its first
    /// event between the two reads.
    pub(crate) fn snapshot(&self, prefix: &Prefix) -> Snapshot {
        let resource = self.resource(prefix);
        let state = resource.state.read();
        Snapshot::new(self.revision(), prefix.clone(), state.map.clone())
    }

    /// State of a resource at a revision.
    pub(crate) fn snapshot_at(
        &self,
        prefix: &Prefix,
        revision: Revision,
    ) -> Result<Snapshot, WatchError> {
        let resource = self.resource(prefix);
        let replay = {
            let state = resource.state.read();
            let published = self.revision();
            // First of all: until the first write, skipped revisions lie above the published one.
            if self.is_unknown(revision) {
                return Err(WatchError::Compacted(revision));
            }
            if revision >= published {
                return Ok(Snapshot::new(published, prefix.clone(), state.map.clone()));
            }
            if revision < state.log.floor() {
                return Err(WatchError::Compacted(revision));
            }
            state.log.replay(revision, &state.map)
        };
        let (map, worked) = replay.run();
        if worked {
            resource.state.write().log.remember(revision, map.clone());
        }
        Ok(Snapshot::new(revision, prefix.clone(), map))
    }
}

struct Touched<'a> {
    resource: Arc<PublishedResource>,
    changes: Vec<&'a TxnEvent>,
}

/// Bytes that only the event keeps alive. The value it wrote belongs to the state until a later
/// event replaces it, which then accounts for it; the last state of a deleted key belongs to the
/// event alone.
fn cost(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    let last = if event.deleted { event.entry.bytes.len() } else { 0 };
    EVENT_OVERHEAD + previous + last
}

/// Upper bound of an event's memory, in bytes.
pub(crate) fn event_bytes(event: &Event) -> usize {
    EVENT_OVERHEAD + event.value_bytes()
}

/// Change in live bytes caused by an event.
pub(crate) fn growth(event: &Event) -> i64 {
    let after = if event.deleted { 0 } else { event.entry.bytes.len() };
    let before = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
}
