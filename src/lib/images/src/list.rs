//! The bounded list of concurrent pulls, with a FIFO queue.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// At most `limit` slots exist at a time. Lock order: this lock is taken last and never held while
/// a slot is dropped.
pub(crate) struct PullList {
    limit: usize,
    entries: Mutex<ListEntries>,
}

#[derive(Default)]
struct ListEntries {
    running: usize,
    waiting: VecDeque<(u64, oneshot::Sender<ListSlot>)>,
    arrivals: u64,
}

/// A slot of a running pull; passed to the next one when dropped.
pub(crate) struct ListSlot(Option<Arc<PullList>>);

/// A pull that has arrived: with a slot, or waiting. Dropping it leaves the queue.
pub(crate) struct Arrival {
    list: Arc<PullList>,
    number: u64,
    granted: oneshot::Receiver<ListSlot>,
    /// Running and queued pulls ahead on arrival; `None` if a slot was free.
    pub(crate) behind: Option<(usize, usize)>,
}

impl PullList {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), entries: Mutex::default() })
    }

    /// Takes a slot or the last place in the queue immediately.
    pub(crate) fn arrive(self: &Arc<Self>) -> Arrival {
        let (grant, granted) = oneshot::channel();
        let mut entries = self.entries.lock();
        entries.arrivals += 1;
        let number = entries.arrivals;
        let behind = if entries.running < self.limit && entries.waiting.is_empty() {
            entries.running += 1;
            drop(entries);
            // The receiver is alive: it is returned below.
            let _ = grant.send(ListSlot(Some(Arc::clone(self))));
            None
        } else {
            let behind = (entries.running, entries.waiting.len());
            entries.waiting.push_back((number, grant));
            Some(behind)
        };
        Arrival { list: Arc::clone(self), number, granted, behind }
    }
}

impl Arrival {
    /// Waits for the slot. Cancel safe.
    pub(crate) async fn slot(&mut self) -> ListSlot {
        // The list is alive, and drops no sender with a waiting receiver.
        (&mut self.granted).await.unwrap_or(ListSlot(None))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        // A slot that was granted but not received is passed on when the receiver is dropped.
        self.list.entries.lock().waiting.retain(|(number, _)| *number != self.number);
    }
}

impl Drop for ListSlot {
    fn drop(&mut self) {
        let Some(list) = self.0.take() else { return };
        loop {
            let next = {
                let mut entries = list.entries.lock();
                let next = entries.waiting.pop_front();
                if next.is_none() {
                    entries.running -= 1;
                }
                next
            };
            let Some((_, grant)) = next else { return };
            match grant.send(Self(Some(Arc::clone(&list)))) {
                Ok(()) => return,
                // Its pull was dropped: try the next one.
                Err(mut slot) => slot.0 = None,
            }
        }
    }
}
