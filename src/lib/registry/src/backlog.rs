//! Bounds the bytes of one caller's writes in the journal's queue. Writes of other callers are
//! synced with them, and wait no longer than the disk takes for that.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Smaller writes are not counted.
const FREE_BYTES: usize = 16 * 1024;
/// Bytes of a caller's larger writes that may await their sync. A single write may exceed it.
const MAX_BYTES: usize = 1024 * 1024;
/// Bytes of one permit.
const UNIT: usize = 1024;

/// Permits by caller. A caller without pending writes is dropped.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<HashMap<u64, Arc<Semaphore>>>);

/// A write's permits, or its place in the queue for them.
pub(crate) struct BacklogShare<'a> {
    backlog: &'a Backlog,
    caller: u64,
    permit: Option<OwnedSemaphorePermit>,
}

impl Backlog {
    /// Waits in FIFO order until the caller may write `bytes` more. Drop the share once the write
    /// is durable.
    pub(crate) async fn reserve(&self, caller: u64, bytes: usize) -> Option<BacklogShare<'_>> {
        if bytes < FREE_BYTES {
            return None;
        }
        let mut share = BacklogShare { backlog: self, caller, permit: None };
        let semaphore = {
            let mut callers = self.lock();
            let new = || Arc::new(Semaphore::new(MAX_BYTES / UNIT));
            Arc::clone(callers.entry(caller).or_insert_with(new))
        };
        let permits = u32::try_from(bytes.min(MAX_BYTES) / UNIT).unwrap_or(u32::MAX);
        // An error means closed, which never happens.
        share.permit = semaphore.acquire_many_owned(permits).await.ok();
        Some(share)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Semaphore>>> {
        self.0.lock()
    }
}

impl Drop for BacklogShare<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut callers = self.backlog.lock();
        // The caller's other writes hold the semaphore too, with a permit or waiting for one.
        if callers.get(&self.caller).is_some_and(|semaphore| Arc::strong_count(semaphore) == 1) {
            callers.remove(&self.caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, poll};
    use std::pin::pin;

    #[tokio::test]
    async fn fault_34_one_callers_large_writes_wait_for_each_other() {
        let backlog = Backlog::default();
        let first = backlog.reserve(1, MAX_BYTES / 2).await;
        let second = backlog.reserve(1, MAX_BYTES / 2).await;
        let mut third = pin!(backlog.reserve(1, FREE_BYTES));
        assert!(poll!(third.as_mut()).is_pending());
        assert!(backlog.reserve(1, FREE_BYTES - 1).now_or_never().is_some(), "small ones never");
        assert!(backlog.reserve(2, 3 * MAX_BYTES).now_or_never().is_some(), "nor other callers");
        drop(first);
        let third = third.await;
        drop((second, third));
        assert!(backlog.lock().is_empty());
    }

    #[tokio::test]
    async fn a_dropped_reservation_leaves_the_queue() {
        let backlog = Backlog::default();
        let large = backlog.reserve(1, 2 * MAX_BYTES).await;
        {
            let mut waiting = pin!(backlog.reserve(1, MAX_BYTES));
            assert!(poll!(waiting.as_mut()).is_pending());
        }
        drop(large);
        assert!(backlog.lock().is_empty());
    }
}
