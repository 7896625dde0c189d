//! The states that paged lists go on from. The history in memory is bounded by bytes and under
//! heavy writes reaches back a few seconds, but a client may take minutes for its pages: the state
//! of a list is therefore held from its first page to its last.
//!
//! A state shares everything that did not change since with the present one, so that holding it
//! costs what was overwritten; the store counts how much that may be.

use ferrokube_storage::{Prefix, Revision, Snapshot, Store};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A list whose client asks for no further page for so long loses its state: upstream's distance
/// between two compactions.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// At most so many states. Beyond, one goes of the caller that has most: of its others first those
/// that it only ever asked for one page, then the one that it used longest ago. Nobody's lists end
/// because of somebody else's who has fewer.
const MAX_STATES: usize = 128;
/// Bytes that the states may hold and that are no longer present; or as many as are present, if
/// that is more.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// How often what is held too long, or has grown too large, is dropped.
const TIDIED_EVERY: Duration = Duration::from_secs(2);

/// The held states, the one that was used longest ago first.
#[derive(Default)]
pub(crate) struct Pages {
    held: Mutex<Vec<Held>>,
}

struct Held {
    /// Who began its first list.
    caller: u64,
    prefix: Prefix,
    snapshot: Snapshot,
    /// How many lists are on their way through it.
    lists: usize,
    used: Instant,
    /// Whether anybody went on after the first page.
    continued: bool,
}

impl Held {
    fn is(&self, prefix: &Prefix, revision: Revision) -> bool {
        self.snapshot.revision == revision && self.prefix.as_str() == prefix.as_str()
    }
}

/// Where a list stands that was just given a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At its first page.
    First,
    /// At a later one.
    Later,
}

impl Pages {
    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the state of a caller's list that has further pages.
    pub(super) fn hold(&self, caller: u64, (prefix, snapshot): (&Prefix, &Snapshot), place: Place) {
        let mut held = self.lock();
        let known = held
            .iter()
            .position(|held| held.is(prefix, snapshot.revision))
            .map(|at| held.remove(at));
        let mut state = known.unwrap_or_else(|| Held {
            caller,
            prefix: prefix.clone(),
            snapshot: snapshot.clone(),
            lists: 0,
            used: Instant::now(),
            continued: false,
        });
        if place == Place::First || state.lists == 0 {
            state.lists += 1;
        }
        state.used = Instant::now();
        state.continued |= place == Place::Later;
        held.push(state);
        let mut dropped = Vec::new();
        while held.len() > MAX_STATES {
            let least = least(&held);
            dropped.push(held.remove(least));
        }
        drop(held);
        // Outside of the lock: freeing a large state takes its time.
        drop(dropped);
    }

    /// A held state.
    pub(super) fn find(&self, prefix: &Prefix, revision: Revision) -> Option<Snapshot> {
        let mut held = self.lock();
        let state = held.iter_mut().find(|held| held.is(prefix, revision))?;
        state.continued = true;
        Some(state.snapshot.clone())
    }

    /// A list has its last page.
    pub(super) fn release(&self, prefix: &Prefix, revision: Revision) {
        let mut held = self.lock();
        let Some(at) = held.iter().position(|held| held.is(prefix, revision)) else { return };
        held[at].lists = held[at].lists.saturating_sub(1);
        let dropped = (held[at].lists == 0).then(|| held.remove(at));
        drop(held);
        drop(dropped);
    }

    /// Drops what was not used for long, and while all of them hold more than `most` bytes the
    /// oldest of those that hold any.
    fn tidy(&self, store: &Store, most: u64) {
        let mut held = self.lock();
        let idle = held.iter().take_while(|state| state.used.elapsed() > KEPT).count();
        let mut dropped: Vec<Held> = held.drain(..idle).collect();
        let mut kept = bytes(&held, store);
        while kept.values().sum::<u64>() > most {
            let Some(oldest) = held.iter().position(|state| kept[&state.prefix] > 0) else { break };
            dropped.push(held.remove(oldest));
            kept = bytes(&held, store);
        }
        drop(held);
        drop(dropped);
    }
}

/// Which of the states goes when there are too many; never the last one, which was used just now.
fn least(held: &[Held]) -> usize {
    let Some((_, others)) = held.split_last() else { return 0 };
    let mut counts: HashMap<u64, usize> = HashMap::new();
    held.iter().for_each(|state| *counts.entry(state.caller).or_default() += 1);
    let least = others
        .iter()
        .enumerate()
        .min_by_key(|(at, state)| (Reverse(counts[&state.caller]), state.continued, *at));
    least.map_or(0, |(at, _)| at)
}

/// What the states of each resource keep from being freed, at most: what was overwritten since the
/// earliest of them, or all that they have.
fn bytes(held: &[Held], store: &Store) -> HashMap<Prefix, u64> {
    let mut kept: HashMap<Prefix, (u64, u64)> = HashMap::new();
    for Held { prefix, snapshot, .. } in held {
        let (overwritten, all) = kept.entry(prefix.clone()).or_default();
        *overwritten = snapshot.replaced_until(&store.snapshot(prefix)).max(*overwritten);
        *all += snapshot.bytes();
    }
    kept.into_iter().map(|(prefix, (overwritten, all))| (prefix, overwritten.min(all))).collect()
}

impl crate::Registry {
    /// Drops states of paged lists that nobody goes on with, and says how many bytes answers under
    /// way keep from being freed, again and again; until dropped.
    pub async fn tidy_pages(&self, pinned: impl Fn(u64)) {
        loop {
            tokio::time::sleep(TIDIED_EVERY).await;
            pinned(self.pinned_bytes());
            if !self.parts.pages.lock().is_empty() {
                self.parts.pages.tidy(self.store(), MAX_BYTES.max(self.store().live_bytes()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_storage::{Config, Put, Sidecar, Txn, Write};

    fn count(pages: &Pages) -> usize {
        pages.lock().len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_is_held_until_its_last_list_ends_or_is_forgotten() {
        let store = Store::open(Config::memory()).unwrap();
        let prefix = Prefix::new("configmaps").unwrap();
        let (pages, state) = (Pages::default(), store.snapshot(&prefix));
        pages.hold(1, (&prefix, &state), Place::First);
        pages.hold(1, (&prefix, &state), Place::Later);
        pages.hold(1, (&prefix, &state), Place::First);
        pages.release(&prefix, state.revision);
        assert!(pages.find(&prefix, state.revision).is_some(), "another list is on its way");
        pages.release(&prefix, state.revision);
        assert!(pages.find(&prefix, state.revision).is_none());
        pages.release(&prefix, state.revision);
        pages.hold(1, (&prefix, &state), Place::Later);
        tokio::time::advance(KEPT).await;
        pages.tidy(&store, MAX_BYTES);
        assert_eq!(count(&pages), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        pages.tidy(&store, MAX_BYTES);
        assert_eq!(count(&pages), 0);
    }

    #[tokio::test]
    async fn states_are_bounded_in_number() {
        let store = Store::open(Config::memory()).unwrap();
        let pages = Pages::default();
        let under_way = Prefix::new("underway").unwrap();
        pages.hold(1, (&under_way, &store.snapshot(&under_way)), Place::First);
        assert!(pages.find(&under_way, store.revision()).is_some());
        for number in 0..MAX_STATES + 3 {
            let prefix = Prefix::new(&format!("r{number}")).unwrap();
            pages.hold(1, (&prefix, &store.snapshot(&prefix)), Place::First);
        }
        assert_eq!(count(&pages), MAX_STATES);
        let [first, last] =
            [0, MAX_STATES + 2].map(|number| Prefix::new(&format!("r{number}")).unwrap());
        assert!(
            pages.find(&under_way, store.revision()).is_some(),
            "a list that somebody goes on with outlives those that nobody does"
        );
        assert!(
            pages.find(&first, store.revision()).is_none()
                && pages.find(&last, store.revision()).is_some()
        );
    }

    #[tokio::test]
    async fn a_caller_with_many_lists_ends_nobody_elses() {
        let store = Store::open(Config::memory()).unwrap();
        let (pages, revision) = (Pages::default(), store.revision());
        let list = |caller, number: usize| {
            let prefix = Prefix::new(&format!("r{number}")).unwrap();
            pages.hold(caller, (&prefix, &store.snapshot(&prefix)), Place::First);
            prefix
        };
        let go_on = |prefix: &Prefix| {
            let state = pages.find(prefix, revision);
            if let Some(state) = &state {
                pages.hold(9, (prefix, state), Place::Later);
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
    async fn states_are_bounded_by_what_was_overwritten_since() {
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
        pages.hold(1, (&other, &store.snapshot(&other)), Place::First);
        write("x".repeat(100_000)).await;
        for _ in 0..3 {
            pages.hold(1, (&busy, &store.snapshot(&busy)), Place::First);
            write(String::new()).await;
        }
        let kept = bytes(&pages.lock(), &store).values().sum::<u64>();
        assert!((100_000..105_000).contains(&kept), "what all three hold is counted once: {kept}");
        pages.tidy(&store, kept);
        assert_eq!(count(&pages), 4);
        pages.tidy(&store, kept - 1);
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
        pages.tidy(&store, 0);
        assert_eq!(count(&pages), 1);
        assert!(pages.find(&other, Revision(0)).is_some(), "it holds nothing");
    }
}
