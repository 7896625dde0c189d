//! What readers see: the state and history of every resource, published batch by batch.
//!
//! A batch becomes visible at once over all resources: their write locks are taken together, everything is applied, the published revision moves,
//! and only then are they released. (Swapped immutable maps were rejected: with a reference held by the swap every write copies a path of the tree,
//! several microseconds of reference counting; under the lock the tree is changed in place unless a list still holds it.)

use crate::cursor::WatchError;
use crate::entry::Entry;
use crate::key::{Key, Prefix, Revision};
use crate::loader::StateLoader;
use crate::log::{EventLog, ReadLimit};
use crate::map::EntryMap;
use crate::replay_cache::ReplayCache;
use crate::snapshot::Snapshot;
use crate::sync;
use crate::txn::{Event, TxnEvent};
use arc_swap::ArcSwap;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use std::time::Duration;
use tokio::sync::Notify;

/// What an event costs beside its bytes, roughly: the entry, its key, its place in the log.
const EVENT_OVERHEAD: usize = 256;
/// How many restored events may exceed the bound of the history before some are dropped.
const REFILL_EVENTS: usize = 1024;

/// Reads events that are no longer in memory.
pub(crate) trait Archive: Send + Sync {
    /// It has every event after this revision.
    fn floor(&self) -> Revision;

    /// The next events of a resource in `after < revision <= until`; blocks.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] when `after` is below the floor by now, or what was there cannot be read.
    fn events(&self, prefix: &str, after: Revision, until: Revision, most: ReadLimit) -> Result<ArchivedEvents, WatchError>;
}

/// A piece of the archive.
pub(crate) struct ArchivedEvents {
    /// The events found.
    pub(crate) events: Vec<Event>,
    /// There are no others up to here.
    pub(crate) reached: Revision,
}

/// One resource.
pub(crate) struct PublishedResource {
    pub(crate) prefix: Prefix,
    pub(crate) state: RwLock<ResourceState>,
    /// Woken after events were published.
    pub(crate) changed: Notify,
    /// The last event that was published; until the first one nobody knows what the history holds.
    latest: AtomicU64,
}

impl PublishedResource {
    /// Whether the history may have events after this revision; takes no lock.
    pub(crate) fn has_after(&self, position: Revision) -> bool {
        position.0 < self.latest.load(Ordering::Acquire)
    }
}

/// What the lock of a resource protects.
pub(crate) struct ResourceState {
    pub(crate) map: EntryMap,
    pub(crate) log: EventLog,
}

impl ResourceState {
    /// Gives back what was there.
    pub(crate) fn apply(&mut self, event: &Event, replay_events: usize) -> Option<Arc<Entry>> {
        let before = if event.deleted { self.map.remove(&event.entry.key) } else { self.map.insert(event.entry.key.clone(), event.entry.clone()) };
        self.log.push(event.clone(), &self.map, replay_events);
        before
    }
}

/// The events in memory over all resources, oldest first.
#[derive(Default)]
pub(crate) struct Retention {
    queue: VecDeque<RetainedEvent>,
    bytes: usize,
}

struct RetainedEvent {
    revision: Revision,
    resource: Arc<PublishedResource>,
    cost: usize,
    /// When it was published, in milliseconds of the clock; 0: before this process.
    at_ms: u64,
}

/// How much history stays in memory.
#[derive(Clone, Debug)]
pub(crate) struct HistoryBounds {
    /// Never more bytes than this.
    pub(crate) most: usize,
    /// Of events that are older than `young_ms`, no more than this, or a quarter of what is present if that is more: the journal has them, too.
    pub(crate) quiet: usize,
    /// See `quiet`.
    pub(crate) young_ms: u64,
}

/// All resources.
pub(crate) struct Published {
    resources: ArcSwap<HashMap<Prefix, Arc<PublishedResource>>>,
    making: Mutex<()>,
    revision: AtomicU64,
    /// Events up to here were never in memory.
    origin: AtomicU64,
    /// Between the first and the second revision of each nothing is known: what a start has left out.
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

    /// The published revision.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Bytes of the values of all present entries.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that count against the bound of the history.
    pub(crate) fn retained_bytes(&self) -> usize {
        self.retained_bytes.load(Ordering::Relaxed)
    }

    /// The way to older events.
    pub(crate) fn replay_cache(&self) -> &ReplayCache {
        &self.replay_cache
    }

    /// Every resource that was ever named, with its lock.
    pub(crate) fn resources(&self) -> Arc<HashMap<Prefix, Arc<PublishedResource>>> {
        self.resources.load_full()
    }

    fn find(&self, prefix: &str) -> Option<Arc<PublishedResource>> {
        self.resources.load().get(prefix).cloned()
    }

    /// The resource, made when it is new.
    pub(crate) fn resource(&self, prefix: &Prefix) -> Arc<PublishedResource> {
        if let Some(resource) = self.find(prefix.as_str()) {
            return resource;
        }
        let _making = sync::lock(&self.making);
        if let Some(resource) = self.find(prefix.as_str()) {
            return resource;
        }
        let origin = Revision(self.origin.load(Ordering::Acquire));
        let state = RwLock::new(ResourceState { map: EntryMap::new(), log: EventLog::new(origin) });
        let resource = Arc::new(PublishedResource { prefix: prefix.clone(), state, changed: Notify::new(), latest: AtomicU64::new(u64::MAX) });
        let mut resources = HashMap::clone(&self.resources.load());
        resources.insert(prefix.clone(), resource.clone());
        self.resources.store(Arc::new(resources));
        resource
    }

    /// The published value of a key.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        let resources = self.resources.load();
        let resource = resources.get(key.prefix())?;
        sync::read(&resource.state).map.get(key.as_str()).cloned()
    }

    /// Makes a batch visible; `revision` is its last one, `now_ms` the time. Returns the resources to wake.
    pub(crate) fn publish<'a>(&self, changes: impl Iterator<Item = &'a TxnEvent>, revision: Revision, now_ms: u64) -> Vec<Arc<PublishedResource>> {
        let touched = self.by_resource(changes);
        let mut retention = sync::lock(&self.retention);
        let mut states: Vec<RwLockWriteGuard<'_, ResourceState>> = touched.iter().map(|touched| sync::write(&touched.resource.state)).collect();
        for (state, touched) in states.iter_mut().zip(&touched) {
            for change in &touched.changes {
                state.apply(&change.event, self.replay_events);
                touched.resource.latest.store(change.event.revision().0, Ordering::Release);
            }
        }
        self.revision.store(revision.0, Ordering::Release);
        drop(states);
        self.account(&mut retention, &touched, now_ms);
        drop(retention);
        touched.into_iter().map(|touched| touched.resource).collect()
    }

    fn by_resource<'a>(&self, changes: impl Iterator<Item = &'a TxnEvent>) -> Vec<Touched<'a>> {
        let mut touched: Vec<Touched<'a>> = Vec::new();
        for change in changes {
            let prefix = change.event.entry.key.prefix();
            match touched.iter_mut().find(|touched| touched.resource.prefix.as_str() == prefix) {
                Some(touched) => touched.changes.push(change),
                None => touched.push(Touched { resource: self.resource(&change.event.entry.key.to_prefix()), changes: vec![change] }),
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
                added.push(RetainedEvent { revision: event.revision(), resource: resource.clone(), cost: cost(event), at_ms: now_ms });
            }
        }
        added.sort_by_key(|retained| retained.revision);
        retention.bytes += added.iter().map(|retained| retained.cost).sum::<usize>();
        retention.queue.extend(added);
        self.live_bytes.fetch_add(live.cast_unsigned(), Ordering::Relaxed);
        self.evict(retention, now_ms);
    }

    /// Drops events from the front of the history while `more` says so.
    fn evict_while(&self, retention: &mut Retention, more: impl Fn(&Retention, &RetainedEvent) -> bool) {
        let mut counts: Vec<(Arc<PublishedResource>, usize)> = Vec::new();
        while let Some(front) = retention.queue.front() {
            if !more(retention, front) {
                break;
            }
            let front = retention.queue.pop_front().expect("its front was just seen");
            retention.bytes -= front.cost;
            match counts.iter_mut().find(|(resource, _)| Arc::ptr_eq(resource, &front.resource)) {
                Some((_, count)) => *count += 1,
                None => counts.push((front.resource, 1)),
            }
        }
        for (resource, count) in counts {
            let gone = sync::write(&resource.state).log.evict(count);
            drop(gone);
        }
        self.retained_bytes.store(retention.bytes, Ordering::Relaxed);
    }

    /// Fills it while nobody else uses it yet.
    pub(crate) fn loader(&self) -> StateLoader<'_> {
        StateLoader::new(self, sync::lock(&self.retention))
    }

    /// Where the history begins, while it is filled.
    pub(crate) fn set_origin(&self, revision: Revision) {
        self.origin.store(revision.0, Ordering::Release);
        self.revision.store(revision.0, Ordering::Release);
    }

    /// Nothing is known of the revisions between.
    pub(crate) fn add_gap(&self, after: Revision, before: Revision) {
        sync::lock(&self.gaps).push((after, before));
    }

    /// Whether this history never had the revision: what was seen at it was lost, or is that of another store.
    pub(crate) fn is_unknown(&self, revision: Revision) -> bool {
        sync::lock(&self.gaps).iter().any(|(after, before)| *after < revision && revision < *before)
    }

    /// Keeps an event that was read back.
    pub(crate) fn retain(&self, retention: &mut Retention, resource: Arc<PublishedResource>, event: &Event) {
        retention.bytes += cost(event);
        retention.queue.push_back(RetainedEvent { revision: event.revision(), resource, cost: cost(event), at_ms: 0 });
        // Not after each: dropping takes a lock for each resource.
        if retention.queue.len().is_multiple_of(REFILL_EVENTS) {
            self.evict_while(retention, |retention, _| retention.bytes > self.bounds.most);
        }
    }

    /// It is filled.
    pub(crate) fn filled(&self, retention: &mut Retention, revision: Revision, live_bytes: u64) {
        self.live_bytes.store(live_bytes, Ordering::Relaxed);
        self.evict(retention, u64::MAX);
        self.revision.store(revision.0, Ordering::Release);
    }

    fn evict(&self, retention: &mut Retention, now_ms: u64) {
        let (most, quiet) = (self.bounds.most, self.quiet_bytes());
        let old = |front: &RetainedEvent| front.at_ms.saturating_add(self.bounds.young_ms) <= now_ms;
        self.evict_while(retention, |retention, front| retention.bytes > most || (retention.bytes > quiet && old(front)));
    }

    /// What may stay of events that are no longer young. All of them without an archive: nobody else has them.
    fn quiet_bytes(&self) -> usize {
        let live = usize::try_from(self.live_bytes()).unwrap_or(usize::MAX);
        if self.replay_cache.archive().is_some() { self.bounds.quiet.max(live / 4).min(self.bounds.most) } else { self.bounds.most }
    }

    /// How long until [`Self::trim`] has something to do; `None`: not before the next event.
    pub(crate) fn trim_in(&self, now_ms: u64) -> Option<Duration> {
        let retention = sync::lock(&self.retention);
        let front = retention.queue.front().filter(|_| retention.bytes > self.quiet_bytes())?;
        Some(Duration::from_millis(front.at_ms.saturating_add(self.bounds.young_ms).saturating_sub(now_ms)))
    }

    /// Drops what is no longer young and more than need stay, and the room that was made for it.
    pub(crate) fn trim(&self, now_ms: u64) {
        let mut retention = sync::lock(&self.retention);
        self.evict(&mut retention, now_ms);
        retention.queue.shrink_to(0);
        for resource in self.resources().values() {
            sync::write(&resource.state).log.shrink();
        }
    }

    /// Wakes the watchers of these resources, and who waits for the revision.
    pub(crate) fn wake(&self, resources: &[Arc<PublishedResource>]) {
        self.moved.notify_waiters();
        for resource in resources {
            resource.changed.notify_waiters();
        }
    }

    /// Waits until the published revision is at least this.
    pub(crate) async fn wait_for(&self, revision: Revision) {
        loop {
            let moved = self.moved.notified();
            if self.revision() >= revision {
                return;
            }
            moved.await;
        }
    }

    /// No more events will come: watchers that are at the end are told.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for resource in self.resources().values() {
            resource.changed.notify_waiters();
        }
    }

    /// Whether no more events will come.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The present state of a resource. Taken under its lock, under which the published revision cannot move past its events; a resource without a lock
    /// would have a first event between the look and the revision.
    pub(crate) fn snapshot(&self, prefix: &Prefix) -> Snapshot {
        let resource = self.resource(prefix);
        let state = sync::read(&resource.state);
        Snapshot::new(self.revision(), prefix.clone(), state.map.clone())
    }

    /// The state of a resource at a revision.
    pub(crate) fn snapshot_at(&self, prefix: &Prefix, revision: Revision) -> Result<Snapshot, WatchError> {
        let resource = self.resource(prefix);
        let replay = {
            let state = sync::read(&resource.state);
            let published = self.revision();
            // Before all else: what a start has left out lies above what is published, until the first write.
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
            sync::write(&resource.state).log.remember(revision, map.clone());
        }
        Ok(Snapshot::new(revision, prefix.clone(), map))
    }
}

struct Touched<'a> {
    resource: Arc<PublishedResource>,
    changes: Vec<&'a TxnEvent>,
}

/// What an event costs while it is kept: what it alone keeps from being freed. The value that it wrote is the state's until a later event replaces it, which
/// then counts it; the last state of a deleted key is nobody else's.
fn cost(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    let last = if event.deleted { event.entry.bytes.len() } else { 0 };
    EVENT_OVERHEAD + previous + last
}

/// The most that an event can take in memory.
pub(crate) fn event_bytes(event: &Event) -> usize {
    EVENT_OVERHEAD + event.entry.bytes.len() + event.previous.as_ref().map_or(0, |previous| previous.bytes.len())
}

/// By how many bytes an event changes what is present.
pub(crate) fn growth(event: &Event) -> i64 {
    let after = if event.deleted { 0 } else { event.entry.bytes.len() };
    let before = event.previous.as_ref().map_or(0, |previous| previous.bytes.len());
    i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX)
}
