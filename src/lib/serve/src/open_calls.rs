//! Ends what is open when its owner is dropped.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Called once, when everything is cut off.
type EndCall = Box<dyn Fn() + Send>;

/// All that is open. Bounded by what its users open.
#[derive(Default)]
pub(crate) struct OpenCalls {
    is_cut: AtomicBool,
    open: Mutex<EndCalls>,
}

#[derive(Default)]
struct EndCalls {
    next: u64,
    calls: BTreeMap<u64, EndCall>,
}

impl fmt::Debug for OpenCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCalls").field("is_cut", &self.is_cut).finish_non_exhaustive()
    }
}

/// Something that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenEntry {
    all: Arc<OpenCalls>,
    id: u64,
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        let call = self.all.open.lock().calls.remove(&self.id);
        drop(call);
    }
}

impl OpenEntry {
    /// Whether it was cut off.
    pub(crate) fn is_cut(&self) -> bool {
        self.all.is_cut.load(Ordering::Acquire)
    }
}

impl OpenCalls {
    /// Adds something, with a call that ends it; made at once if everything was cut off before.
    pub(crate) fn add(self: &Arc<Self>, end: impl Fn() + Send + 'static) -> OpenEntry {
        let mut open = self.open.lock();
        let id = open.next;
        open.next += 1;
        if self.is_cut.load(Ordering::Acquire) {
            drop(open);
            end();
        } else {
            open.calls.insert(id, Box::new(end));
        }
        OpenEntry { all: Arc::clone(self), id }
    }

    /// Cuts off everything, now and later.
    pub(crate) fn cut(&self) {
        let mut open = self.open.lock();
        self.is_cut.store(true, Ordering::Release);
        let calls = std::mem::take(&mut open.calls);
        drop(open);
        calls.into_values().for_each(|end| end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn what_is_open_ends_once_and_what_is_opened_later_at_once() {
        let (all, ended) = (Arc::<OpenCalls>::default(), Arc::<AtomicU32>::default());
        let open = || {
            let ended = Arc::clone(&ended);
            all.add(move || _ = ended.fetch_add(1, Ordering::Relaxed))
        };
        let count = || ended.load(Ordering::Relaxed);
        let (first, closed) = (open(), open());
        drop(closed);
        assert!(!first.is_cut());
        all.cut();
        assert_eq!((count(), first.is_cut()), (1, true));
        all.cut();
        assert_eq!(count(), 1);
        assert!(open().is_cut());
        assert_eq!(count(), 2);
        assert!(all.open.lock().calls.is_empty());
    }
}
