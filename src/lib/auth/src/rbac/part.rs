//! The roles and bindings of one namespace, or of the cluster: an index, and the changes that it
//! does not reflect yet. A decision about another namespace neither reads nor waits for them.

use super::feed::{RbacChange, RbacKind};
use super::index::RbacIndex;
use arc_swap::ArcSwap;
use ferrokube_apimachinery::work;
use ferrokube_registry::offload::{INLINE_BYTES, block_in_place};
use parking_lot::{Mutex as SyncMutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Mutex;

/// See the module.
#[derive(Default)]
pub(super) struct RbacPart {
    index: ArcSwap<RbacIndex>,
    queue: SyncMutex<ChangeQueue>,
    /// Number of changes queued so far, and of those that the index reflects. `queued` grows under
    /// the queue's lock.
    queued: AtomicU64,
    applied: AtomicU64,
    /// Locked by the caller that applies changes.
    applying: Mutex<()>,
    /// Applying a change panicked: the index is incomplete, so every later question panics, too.
    broken: AtomicBool,
}

/// Changes to apply. Only the last one of each object: a loop of updates takes no more memory than
/// the object.
#[derive(Default)]
struct ChangeQueue {
    /// Applied before the changes.
    cleared: Vec<RbacKind>,
    changes: HashMap<(RbacKind, String), RbacChange>,
    /// Bytes to be parsed or undone, at most.
    bytes: usize,
}

impl RbacPart {
    pub(super) fn index(&self) -> Arc<RbacIndex> {
        self.index.load_full()
    }

    fn queue(&self) -> MutexGuard<'_, ChangeQueue> {
        self.queue.lock()
    }

    fn is_applied(&self, queued: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= queued
    }

    fn queued(&self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }

    /// Queues a change of an object of this namespace.
    pub(super) fn push(&self, namespace: &str, change: RbacChange) {
        let mut queue = self.queue();
        let (kind, name) = (change.kind(), change.name().to_owned());
        // Nothing to undo: unread creates and deletes leave nothing behind.
        if matches!(change, RbacChange::Remove(..))
            && queue.cleared.is_empty()
            && let Ok(_nobody_applies) = self.applying.try_lock()
            && !self.index.load().contains(kind.is_role(), namespace, &name)
        {
            queue.changes.remove(&(kind, name));
            return;
        }
        queue.bytes = queue.bytes.saturating_add(change.bytes());
        queue.changes.insert((kind, name), change);
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// Queues the removal of everything of a kind.
    pub(super) fn clear(&self, kind: RbacKind, bytes: usize) {
        let mut queue = self.queue();
        queue.changes.retain(|(other, _), _| *other != kind);
        if !queue.cleared.contains(&kind) {
            queue.cleared.push(kind);
        }
        queue.bytes = queue.bytes.saturating_add(bytes);
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the index is current, after applying pending changes if they are small and no other
    /// thread does. Never blocks or computes for long.
    pub(super) fn is_current(&self) -> bool {
        if self.is_applied(self.queued()) {
            return true;
        }
        let Ok(_applying) = self.applying.try_lock() else { return false };
        self.assert_whole();
        let is_short = self.queue().bytes <= INLINE_BYTES;
        if is_short {
            self.apply();
        }
        is_short
    }

    /// Waits until the index reflects all queued changes. One of the waiting callers parses large
    /// ones, off the async workers.
    pub(super) async fn caught_up(&self) {
        let wanted = self.queued();
        if self.is_current() {
            return;
        }
        let _applying = self.applying.lock().await;
        if !self.is_applied(wanted) {
            self.assert_whole();
            block_in_place(|| self.apply());
        }
    }

    /// `applying` must be locked.
    fn assert_whole(&self) {
        assert!(!self.broken.load(Ordering::Acquire), "the index of roles and bindings is broken");
    }

    /// Applies all queued changes regardless of size; `applying` must be locked.
    fn apply(&self) {
        let (queue, queued) = {
            let mut queue = self.queue();
            (std::mem::take(&mut *queue), self.queued())
        };
        if !queue.cleared.is_empty() || !queue.changes.is_empty() {
            self.broken.store(true, Ordering::Release);
            let mut index = RbacIndex::clone(&self.index.load());
            queue.cleared.into_iter().for_each(|kind| clear(&mut index, kind));
            // All callers with rights here wait for it.
            work::uninterrupted(|| {
                queue.changes.into_values().for_each(|change| apply(&mut index, change));
            });
            self.index.store(Arc::new(index));
            self.broken.store(false, Ordering::Release);
        }
        self.applied.store(queued, Ordering::Release);
    }

    /// Applies everything, however large.
    pub(super) fn apply_all(&self) {
        if let Ok(_applying) = self.applying.try_lock() {
            self.apply();
        }
    }

    /// Whether index and queue are empty. The queue must be locked.
    pub(super) fn is_unused(&self) -> bool {
        let queue = self.queue();
        queue.changes.is_empty() && self.applying.try_lock().is_ok() && self.index.load().is_empty()
    }
}

fn clear(index: &mut RbacIndex, kind: RbacKind) {
    if kind.is_role() { index.clear_roles() } else { index.clear_bindings() }
}

fn apply(index: &mut RbacIndex, change: RbacChange) {
    match change {
        RbacChange::Clear(kind, _) => clear(index, kind),
        RbacChange::Unread { kind, read, .. } => {
            apply(index, RbacChange::Put(kind, Arc::new(read())))
        }
        RbacChange::Put(kind, document) if kind.is_role() => index.put_role(&document),
        RbacChange::Put(_, document) => index.put_binding(&document),
        RbacChange::Remove(kind, namespace, name, _) if kind.is_role() => {
            index.remove_role(&namespace, &name)
        }
        RbacChange::Remove(_, namespace, name, _) => index.remove_binding(&namespace, &name),
    }
}
