//! Responses being sent, and the bytes they keep from being freed: objects of a list or of a
//! watch's initial state that were overwritten meanwhile.

use ferrokube_storage::{Mark, Prefix, Snapshot, Store};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Smaller responses are not counted: the limit of requests in flight bounds them.
const SMALL_BYTES: u64 = 64 * 1024;

/// Responses being sent. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Readers(Arc<Mutex<ActiveResponses>>);

#[derive(Default)]
struct ActiveResponses {
    next: u64,
    responses: HashMap<u64, (Mark, u64)>,
}

/// A response being sent; counted until dropped.
pub struct Reading {
    of: Readers,
    number: u64,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.of.lock().responses.remove(&self.number);
    }
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, ActiveResponses> {
        self.0.lock()
    }

    /// Counts a response with this many entries of a snapshot; `None` if it is small.
    pub(super) fn begin(&self, snapshot: &Snapshot, entries: usize) -> Option<Arc<Reading>> {
        let count = (snapshot.count(None, None) as u64).max(1);
        // Assumes entries of average size.
        let bytes =
            u64::try_from(u128::from(snapshot.bytes()) * entries as u128 / u128::from(count))
                .unwrap_or(u64::MAX);
        if bytes < SMALL_BYTES {
            return None;
        }
        let mut active = self.lock();
        let number = active.next;
        active.next += 1;
        active.responses.insert(number, (snapshot.mark(), bytes));
        Some(Arc::new(Reading { of: self.clone(), number }))
    }

    /// Upper bound on bytes pinned by the responses: per resource those overwritten since the
    /// earliest response began, or all in them.
    pub(crate) fn pinned_bytes(&self, store: &Store) -> u64 {
        let responses: Vec<(Mark, u64)> = self.lock().responses.values().cloned().collect();
        let mut pinned: HashMap<Prefix, (u64, u64)> = HashMap::new();
        for (mark, bytes) in responses {
            let (overwritten, all) = pinned.entry(mark.prefix().clone()).or_default();
            *overwritten = store.snapshot(mark.prefix()).replaced_since(&mark).max(*overwritten);
            *all += bytes;
        }
        pinned.into_values().map(|(overwritten, all)| overwritten.min(all)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_storage::{Config, Put, Sidecar, Txn, Write};

    #[tokio::test]
    async fn responses_pin_overwritten_objects_until_sent() {
        let store = Store::open(Config::memory()).unwrap();
        let prefix = Prefix::new("things").unwrap();
        let write = async |name: usize| {
            let key = prefix.key(None, &format!("n{name}")).unwrap();
            let put = Put {
                key,
                value: format!("{{{}}}", "x".repeat(10_000)).into(),
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
        for name in 0..20 {
            write(name).await;
        }
        let readers = Readers::default();
        assert!(readers.begin(&store.snapshot(&prefix), 2).is_none(), "short");
        let (first, second) = (
            readers.begin(&store.snapshot(&prefix), 20),
            readers.begin(&store.snapshot(&prefix), 10),
        );
        assert_eq!(readers.pinned_bytes(&store), 0, "all of it is stored");
        for name in 0..5 {
            write(name).await;
        }
        assert!(
            (50_000..53_000).contains(&readers.pinned_bytes(&store)),
            "counted once: {}",
            readers.pinned_bytes(&store)
        );
        for name in (0..20).cycle().take(100) {
            write(name).await;
        }
        assert!(
            (300_000..320_000).contains(&readers.pinned_bytes(&store)),
            "no more than they have: {}",
            readers.pinned_bytes(&store)
        );
        drop(first);
        assert!((100_000..110_000).contains(&readers.pinned_bytes(&store)));
        drop(second);
        assert!(readers.pinned_bytes(&store) == 0 && readers.lock().responses.is_empty());
    }
}
