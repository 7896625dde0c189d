//! The bounded list of concurrent pulls, with a FIFO queue.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Interval at which waiting pulls check the feature gate, which may lift the limit.
const GATE: Duration = Duration::from_secs(1);

/// At most `limit` slots exist at a time. Lock order: this lock is taken last and never held while
/// a slot is dropped.
pub(crate) struct PullList {
    limit: usize,
    gated: Option<GatedLimit>,
    entries: Mutex<ListEntries>,
}

/// A limit that depends on a feature gate.
pub(crate) struct GatedLimit {
    /// Value of the gate, as it changes.
    pub(crate) gate: Arc<AtomicBool>,
    /// Limit while it is off; `None`: none.
    pub(crate) while_off: Option<usize>,
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
    pub(crate) fn new(limit: usize, gated: Option<GatedLimit>) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), gated, entries: Mutex::default() })
    }

    /// Takes a slot or the last place in the queue immediately.
    pub(crate) fn arrive(self: &Arc<Self>) -> Arrival {
        let (grant, granted) = oneshot::channel();
        let mut entries = self.entries.lock();
        entries.arrivals += 1;
        let number = entries.arrivals;
        let before = (entries.running, entries.waiting.len());
        entries.waiting.push_back((number, grant));
        self.grant(&mut entries);
        let is_last = entries.waiting.back().is_some_and(|(last, _)| *last == number);
        let behind = is_last.then_some(before);
        Arrival { list: Arc::clone(self), number, granted, behind }
    }

    /// Grants slots to the front of the queue, as far as the limit permits.
    fn grant(self: &Arc<Self>, entries: &mut ListEntries) {
        let off = self.gated.as_ref().filter(|gated| !gated.gate.load(Ordering::Relaxed));
        let limit = off.map_or(self.limit, |gated| gated.while_off.unwrap_or(usize::MAX));
        while entries.running < limit {
            let Some((_, grant)) = entries.waiting.pop_front() else { return };
            match grant.send(ListSlot(Some(Arc::clone(self)))) {
                Ok(()) => entries.running += 1,
                // Its pull was dropped: try the next one.
                Err(mut slot) => slot.0 = None,
            }
        }
    }
}

impl Arrival {
    /// Waits for the slot. Cancel safe.
    pub(crate) async fn slot(&mut self) -> ListSlot {
        loop {
            tokio::select! {
                // The list is alive, and drops no sender with a waiting receiver.
                granted = &mut self.granted => return granted.unwrap_or(ListSlot(None)),
                () = sleep(GATE), if self.list.gated.is_some() => {
                    self.list.grant(&mut self.list.entries.lock());
                }
            }
        }
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
        let mut entries = list.entries.lock();
        entries.running -= 1;
        list.grant(&mut entries);
    }
}
