//! Snapshots of paged lists. Under heavy writes the in-memory history, bounded by bytes, covers a
//! few seconds, but a client may take minutes for its pages. The snapshot of a list is therefore
//! held from its first page to its last.
//!
//! Snapshots share all unchanged entries with the current state: holding one costs the entries
//! overwritten since, which the store counts.
//!
//! As with kube-apiserver, which compacts etcd, no list lasts forever: a page of a state that was
//! overwritten five to ten minutes ago is expired, however often it is requested.

use ferrokube_storage::{Prefix, Revision, Snapshot, Store};
use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// A list that requests no page for this long loses its snapshot.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Pages of revisions before the last but one of such intervals are expired: kube-apiserver's
/// compaction interval.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Held snapshots. The next one evicts from the caller with the most: first lists of which only one
/// page was requested, then the least recently used. No caller's list is evicted for one that
/// holds more.
const MAX_STATES: usize = 128;
/// Bytes that snapshots may keep from being freed; or as many as the store has live, if that is
/// more.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// Time between removals of unused snapshots.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Least recently used first.
#[derive(Default)]
pub(crate) struct Pages {
    held: Mutex<Vec<HeldSnapshot>>,
    expiry: Mutex<PageExpiry>,
}

#[derive(Default)]
struct PageExpiry {
    /// Pages of earlier revisions are expired.
    before: Revision,
    /// The next value of `before`, and when it was current.
    next: Option<(Revision, Instant)>,
}

struct HeldSnapshot {
    /// Caller that began its first list.
    caller: u64,
    prefix: Prefix,
    snapshot: Snapshot,
    /// Lists that page through it.
    lists: usize,
    used: Instant,
    /// Whether any list requested a second page.
    continued: bool,
}

impl HeldSnapshot {
    fn is(&self, prefix: &Prefix, revision: Revision) -> bool {
        self.snapshot.revision == revision && self.prefix.as_str() == prefix.as_str()
    }
}

/// Page of a list that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PagePosition {
    First,
    Later,
}

impl Pages {
    fn lock(&self) -> MutexGuard<'_, Vec<HeldSnapshot>> {
        self.held.lock()
    }

    /// Holds the snapshot of a list with further pages.
    pub(super) fn hold(
        &self,
        caller: u64,
        prefix: &Prefix,
        snapshot: &Snapshot,
        position: PagePosition,
    ) {
        let mut held = self.lock();
        let known = held
            .iter()
            .position(|held| held.is(prefix, snapshot.revision))
            .map(|at| held.remove(at));
        let mut state = known.unwrap_or_else(|| HeldSnapshot {
            caller,
            prefix: prefix.clone(),
            snapshot: snapshot.clone(),
            lists: 0,
            used: Instant::now(),
            continued: false,
        });
        if position == PagePosition::First || state.lists == 0 {
            state.lists += 1;
        }
        state.used = Instant::now();
        state.continued |= position == PagePosition::Later;
        held.push(state);
        let mut dropped = Vec::new();
        while held.len() > MAX_STATES {
            let victim = victim(&held);
            dropped.push(held.remove(victim));
        }
        drop(held);
        // Dropped outside of the lock: freeing a large state takes long.
        drop(dropped);
    }

    /// Finds a held snapshot.
    pub(super) fn find(&self, prefix: &Prefix, revision: Revision) -> Option<Snapshot> {
        let mut held = self.lock();
        let state = held.iter_mut().find(|held| held.is(prefix, revision))?;
        state.continued = true;
        Some(state.snapshot.clone())
    }

    /// A list reached its last page.
    pub(super) fn release(&self, prefix: &Prefix, revision: Revision) {
        let mut held = self.lock();
        let Some(at) = held.iter().position(|held| held.is(prefix, revision)) else { return };
        held[at].lists = held[at].lists.saturating_sub(1);
        let dropped = (held[at].lists == 0).then(|| held.remove(at));
        drop(held);
        drop(dropped);
    }

    pub(super) fn is_expired(&self, revision: Revision) -> bool {
        revision < self.expiry.lock().before
    }

    /// Drops snapshots that have expired or are beyond the limits.
    pub(super) fn sweep(&self, store: &Store) {
        self.expire(store.revision());
        if !self.lock().is_empty() {
            self.evict(store, MAX_BYTES.max(store.live_bytes()));
        }
    }

    /// Expires pages by time. `current` is the revision of the store.
    fn expire(&self, current: Revision) {
        let mut expiry = self.expiry.lock();
        match expiry.next {
            Some((_, since)) if since.elapsed() < EXPIRY_INTERVAL => return,
            Some((next, _)) => expiry.before = next,
            None => {}
        }
        expiry.next = Some((current, Instant::now()));
        let before = expiry.before;
        drop(expiry);
        let mut held = self.lock();
        let expired: Vec<HeldSnapshot> =
            held.extract_if(.., |held| held.snapshot.revision < before).collect();
        drop(held);
        drop(expired);
    }

    /// Evicts snapshots that were idle for too long and then, down to `max_bytes` in total, the
    /// least recently used ones that hold any.
    fn evict(&self, store: &Store, max_bytes: u64) {
        let mut held = self.lock();
        let idle = held.iter().take_while(|state| state.used.elapsed() > IDLE_TIMEOUT).count();
        let mut dropped: Vec<HeldSnapshot> = held.drain(..idle).collect();
        let mut kept = bytes(&held, store);
        while kept.values().sum::<u64>() > max_bytes {
            let Some(oldest) = held.iter().position(|state| kept[&state.prefix] > 0) else { break };
            dropped.push(held.remove(oldest));
            kept = bytes(&held, store);
        }
        drop(held);
        drop(dropped);
    }
}

/// Index of the snapshot to evict; never the last one, which was just used.
fn victim(held: &[HeldSnapshot]) -> usize {
    let Some((_, others)) = held.split_last() else { return 0 };
    let mut counts: HashMap<u64, usize> = HashMap::new();
    held.iter().for_each(|state| *counts.entry(state.caller).or_default() += 1);
    let victim = others
        .iter()
        .enumerate()
        .min_by_key(|(at, state)| (Reverse(counts[&state.caller]), state.continued, *at));
    victim.map_or(0, |(at, _)| at)
}

/// Upper bound on bytes pinned by the snapshots of each resource: those overwritten since the
/// earliest snapshot, or all in them.
fn bytes(held: &[HeldSnapshot], store: &Store) -> HashMap<Prefix, u64> {
    let mut kept: HashMap<Prefix, (u64, u64)> = HashMap::new();
    for HeldSnapshot { prefix, snapshot, .. } in held {
        let (overwritten, all) = kept.entry(prefix.clone()).or_default();
        *overwritten = snapshot.replaced_until(&store.snapshot(prefix)).max(*overwritten);
        *all += snapshot.bytes();
    }
    kept.into_iter().map(|(prefix, (overwritten, all))| (prefix, overwritten.min(all))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_storage::{Config, Put, Sidecar, Txn, Write};

    fn count(pages: &Pages) -> usize {
        pages.lock().len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_held_until_its_last_list_ends_or_times_out() {
        let store = Store::open(Config::memory()).unwrap();
        let prefix = Prefix::new("configmaps").unwrap();
        let (pages, state) = (Pages::default(), store.snapshot(&prefix));
        pages.hold(1, &prefix, &state, PagePosition::First);
        pages.hold(1, &prefix, &state, PagePosition::Later);
        pages.hold(1, &prefix, &state, PagePosition::First);
        pages.release(&prefix, state.revision);
        assert!(pages.find(&prefix, state.revision).is_some(), "another list is on its way");
        pages.release(&prefix, state.revision);
        assert!(pages.find(&prefix, state.revision).is_none());
        pages.release(&prefix, state.revision);
        pages.hold(1, &prefix, &state, PagePosition::Later);
        tokio::time::advance(IDLE_TIMEOUT).await;
        pages.evict(&store, MAX_BYTES);
        assert_eq!(count(&pages), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        pages.evict(&store, MAX_BYTES);
        assert_eq!(count(&pages), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn pages_of_overwritten_states_expire_however_often_they_are_requested() {
        let store = Store::open(Config { origin: Some(Revision(0)), ..Config::memory() }).unwrap();
        let prefix = Prefix::new("configmaps").unwrap();
        let put = async |name: &str| {
            let put = Put {
                key: prefix.key(None, name).unwrap(),
                value: "{}".into(),
                sidecar: Sidecar { revision_at: 1, ..Sidecar::default() },
                ttl: None,
            };
            let write = Txn { guards: Vec::new(), writes: vec![Write::Put(put)] };
            store.submit(write).unwrap().committed().await.unwrap();
        };
        let (pages, begun) = (Pages::default(), Instant::now());
        put("a").await;
        let state = store.snapshot(&prefix);
        pages.hold(1, &prefix, &state, PagePosition::First);
        pages.expire(store.revision());
        tokio::time::advance(EXPIRY_INTERVAL * 2).await;
        pages.expire(store.revision());
        tokio::time::advance(EXPIRY_INTERVAL * 2).await;
        pages.expire(store.revision());
        assert!(!pages.is_expired(state.revision), "it is the current one");
        put("b").await;
        while !pages.is_expired(state.revision) {
            assert!(begun.elapsed() <= EXPIRY_INTERVAL * 6, "{:?}", begun.elapsed());
            pages.hold(1, &prefix, &state, PagePosition::Later);
            tokio::time::advance(SWEEP_INTERVAL).await;
            pages.expire(store.revision());
        }
        assert!(begun.elapsed() >= EXPIRY_INTERVAL * 5, "{:?}", begun.elapsed());
        assert_eq!(count(&pages), 0);
    }

    #[tokio::test]
    async fn snapshots_are_bounded_in_number() {
        let store = Store::open(Config::memory()).unwrap();
        let pages = Pages::default();
        let under_way = Prefix::new("underway").unwrap();
        pages.hold(1, &under_way, &store.snapshot(&under_way), PagePosition::First);
        assert!(pages.find(&under_way, store.revision()).is_some());
        for number in 0..MAX_STATES + 3 {
            let prefix = Prefix::new(&format!("r{number}")).unwrap();
            pages.hold(1, &prefix, &store.snapshot(&prefix), PagePosition::First);
        }
        assert_eq!(count(&pages), MAX_STATES);
        let [first, last] =
            [0, MAX_STATES + 2].map(|number| Prefix::new(&format!("r{number}")).unwrap());
        assert!(
            pages.find(&under_way, store.revision()).is_some(),
            "lists with a second page outlive those without"
        );
        assert!(
            pages.find(&first, store.revision()).is_none()
                && pages.find(&last, store.revision()).is_some()
        );
    }

    #[tokio::test]
    async fn a_caller_with_many_lists_evicts_only_its_own() {
        let store = Store::open(Config::memory()).unwrap();
        let (pages, revision) = (Pages::default(), store.revision());
        let list = |caller, number: usize| {
            let prefix = Prefix::new(&format!("r{number}")).unwrap();
            pages.hold(caller, &prefix, &store.snapshot(&prefix), PagePosition::First);
            prefix
        };
        let go_on = |prefix: &Prefix| {
            let state = pages.find(prefix, revision);
            if let Some(state) = &state {
                pages.hold(9, prefix, state, PagePosition::Later);
            }
            state.is_some()
        };
        let mine = list(2, 1000);
        let greedy: Vec<Prefix> = (0..MAX_STATES).map(|number| list(1, number)).collect();
        assert_eq!(greedy.iter().filter(|prefix| go_on(prefix)).count(), MAX_STATES - 1);
        let newcomer = list(3, 1001);
        for prefix in [&mine, &newcomer] {
            assert!(go_on(prefix));
        }
        let own = list(1, 1002);
        assert!(go_on(&own), "its own newest is not the one that goes");
        assert_eq!(count(&pages), MAX_STATES);
    }

    #[tokio::test]
    async fn snapshots_are_bounded_by_overwritten_bytes() {
        let store = Store::open(Config { origin: Some(Revision(0)), ..Config::memory() }).unwrap();
        let [busy, other] = ["busy", "other"].map(|name| Prefix::new(name).unwrap());
        let write = async |value: String| {
            let put = Put {
                key: busy.key(None, "a").unwrap(),
                value: format!("{{{value}}}").into(),
                sidecar: Sidecar { revision_at: 1, ..Sidecar::default() },
                ttl: None,
            };
            store
                .submit(Txn { guards: Vec::new(), writes: vec![Write::Put(put)] })
                .unwrap()
                .committed()
                .await
                .unwrap();
        };
        let pages = Pages::default();
        pages.hold(1, &other, &store.snapshot(&other), PagePosition::First);
        write("x".repeat(100_000)).await;
        for _ in 0..3 {
            pages.hold(1, &busy, &store.snapshot(&busy), PagePosition::First);
            write(String::new()).await;
        }
        let kept = bytes(&pages.lock(), &store).values().sum::<u64>();
        assert!((100_000..105_000).contains(&kept), "what all three hold is counted once: {kept}");
        pages.evict(&store, kept);
        assert_eq!(count(&pages), 4);
        pages.evict(&store, kept - 1);
        assert_eq!(
            count(&pages),
            3,
            "the oldest went that held anything, and with it the large value"
        );
        for _ in 0..100 {
            write(String::new()).await;
        }
        let kept = bytes(&pages.lock(), &store);
        assert!(
            kept[&busy] < 1000 && kept[&other] == 0,
            "what came and went meanwhile is nobody's: {kept:?}"
        );
        pages.evict(&store, 0);
        assert_eq!(count(&pages), 1);
        assert!(pages.find(&other, Revision(0)).is_some(), "it holds nothing");
    }
}
