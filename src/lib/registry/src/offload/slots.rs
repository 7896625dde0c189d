//! Slots for computations, shared among callers by time: the next slot goes to the caller that was
//! granted the least.
//!
//! A computation cannot be interrupted, so some slots are spare: only a caller without a running
//! computation gets one. It never waits for another caller's long computation, and the threads
//! share the cores.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::oneshot;

/// Microseconds charged for a computation until its duration is known.
const ASSUMED_MICROS: u64 = 200;

/// Scheduler of the slots. A caller without running or waiting computations is dropped; it starts
/// level with the others.
pub(super) struct Slots(Mutex<SlotState>);

struct SlotState {
    free: usize,
    spare: usize,
    /// Microseconds granted to the caller that got the last slot.
    now: u64,
    tickets: u64,
    callers: HashMap<u64, CallerSlots>,
    /// SlotRequest callers, ordered by granted microseconds, then by the ticket of their first request;
    /// with their number.
    queue: BTreeSet<(u64, u64, u64)>,
}

#[derive(Default)]
struct CallerSlots {
    granted_micros: u64,
    running: usize,
    /// Whether one of the running computations has a spare slot.
    has_spare: bool,
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

/// A place in the queue. Dropping it leaves the queue, or releases a slot granted meanwhile.
pub(super) struct SlotRequest {
    slots: Arc<Slots>,
    caller: u64,
    ticket: u64,
    granted: oneshot::Receiver<()>,
    is_taken: bool,
}

/// Released on drop.
pub(super) struct Slot {
    slots: Arc<Slots>,
    caller: u64,
    since: Instant,
}

impl Slots {
    pub(super) fn new(free: usize, spare: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SlotState {
            free,
            spare,
            now: 0,
            tickets: 0,
            callers: HashMap::new(),
            queue: BTreeSet::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues for a slot.
    pub(super) fn wait(self: &Arc<Self>, caller: u64) -> SlotRequest {
        let (sender, granted) = oneshot::channel();
        let mut state = self.lock();
        state.tickets += 1;
        let (ticket, now) = (state.tickets, state.now);
        state.change(caller, |caller| {
            if caller.waiting.is_empty() {
                // A caller cannot save up idle time.
                caller.granted_micros = caller.granted_micros.max(now);
            }
            caller.waiting.push_back((ticket, sender));
        });
        state.grant();
        drop(state);
        SlotRequest { slots: Arc::clone(self), caller, ticket, granted, is_taken: false }
    }

    /// SlotRequest computations of a caller.
    pub(super) fn waiting(&self, caller: u64) -> usize {
        self.lock().callers.get(&caller).map_or(0, |caller| caller.waiting.len())
    }

    fn release(&self, caller: u64, took: u64) {
        let mut state = self.lock();
        let is_spare = state.change(caller, |caller| {
            caller.running -= 1;
            caller.granted_micros += took.saturating_sub(ASSUMED_MICROS);
            // The last one returns the spare slot, if the caller has one.
            caller.running == 0 && std::mem::take(&mut caller.has_spare)
        });
        match is_spare {
            true => state.spare += 1,
            false => state.free += 1,
        }
        state.grant();
    }
}

impl SlotState {
    /// Changes a caller's entry, and its place in the queue with it.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut CallerSlots) -> T) -> T {
        let caller = self.callers.entry(number).or_default();
        let place = |caller: &CallerSlots| {
            caller.waiting.front().map(|(ticket, _)| (caller.granted_micros, *ticket, number))
        };
        let before = place(caller);
        let result = change(caller);
        let (after, is_idle) = (place(caller), caller.running == 0 && caller.waiting.is_empty());
        if before != after {
            before.map(|before| self.queue.remove(&before));
            after.map(|after| self.queue.insert(after));
        }
        if is_idle {
            self.callers.remove(&number);
        }
        result
    }

    fn grant(&mut self) {
        while let Some((granted_micros, caller, is_spare)) = self.next() {
            self.now = self.now.max(granted_micros);
            match is_spare {
                true => self.spare -= 1,
                false => self.free -= 1,
            }
            let first = self.change(caller, |caller| {
                caller.running += 1;
                caller.has_spare |= is_spare;
                caller.granted_micros += ASSUMED_MICROS;
                caller.waiting.pop_front()
            });
            // A requester that was dropped meanwhile releases it: see `SlotRequest`.
            first.map(|(_, granted)| granted.send(()));
        }
    }

    /// CallerSlots that gets the next slot, its granted microseconds, and whether the slot is spare.
    fn next(&self) -> Option<(u64, u64, bool)> {
        if self.free > 0 {
            return self
                .queue
                .first()
                .map(|(granted_micros, _, caller)| (*granted_micros, *caller, false));
        }
        if self.spare == 0 {
            return None;
        }
        // Few callers compute at once, so few are skipped.
        let idle = self.queue.iter().find(|(_, _, caller)| {
            self.callers.get(caller).is_some_and(|caller| caller.running == 0)
        });
        idle.map(|(granted_micros, _, caller)| (*granted_micros, *caller, true))
    }
}

impl Future for SlotRequest {
    type Output = Slot;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Slot> {
        // The sender is dropped only after sending.
        let _ = std::task::ready!(Pin::new(&mut self.granted).poll(context));
        self.is_taken = true;
        Poll::Ready(Slot {
            slots: Arc::clone(&self.slots),
            caller: self.caller,
            since: Instant::now(),
        })
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let ticket = self.ticket;
        let was_waiting = self.slots.lock().change(self.caller, |caller| {
            let at = caller.waiting.iter().position(|(other, _)| *other == ticket);
            at.and_then(|at| caller.waiting.remove(at)).is_some()
        });
        if !was_waiting {
            self.slots.release(self.caller, 0);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.release(
            self.caller,
            u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn take(waiting: &mut SlotRequest) -> Option<Slot> {
        match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }

    #[test]
    fn fault_34_callers_have_separate_queues() {
        let slots = Slots::new(1, 0);
        let mut greedy: Vec<SlotRequest> = (0..100).map(|_| slots.wait(1)).collect();
        let first = take(&mut greedy[0]).expect("nobody is before it");
        let mut other = slots.wait(2);
        assert!(take(&mut other).is_none());
        drop(first);
        let others = take(&mut other).expect("its turn is next");
        assert!(take(&mut greedy[1]).is_none());
        drop(others);
        assert!(take(&mut greedy[1]).is_some(), "and then that of the one who waits");
    }

    #[test]
    fn fault_34_slots_are_shared_by_time() {
        let slots = Slots::new(1, 0);
        let held = take(&mut slots.wait(0)).expect("it is free");
        let mut waiting: Vec<(u64, SlotRequest)> =
            [1, 1, 1, 2, 2, 2].into_iter().map(|caller| (caller, slots.wait(caller))).collect();
        drop(held);
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let at = waiting
                .iter_mut()
                .position(|(_, waiting)| take(waiting).map(std::mem::forget).is_some())
                .expect("one has the slot");
            let (caller, _) = waiting.remove(at);
            order.push(caller);
            // Computations of caller 1 take ten times as long.
            slots.release(caller, if caller == 1 { 10_000 } else { 1000 });
        }
        assert_eq!(order, [1, 2, 2, 2, 1, 1]);
        assert!(slots.lock().callers.is_empty(), "nobody is remembered");
    }

    #[test]
    fn fault_34_a_caller_that_computes_nothing_waits_for_no_computation() {
        let slots = Slots::new(1, 1);
        let mut greedy: Vec<SlotRequest> = (0..3).map(|_| slots.wait(1)).collect();
        let long = take(&mut greedy[0]).expect("it is free");
        let mut others: Vec<SlotRequest> = (0..2).map(|_| slots.wait(2)).collect();
        let spare = take(&mut others[0]).expect("a spare one");
        assert!(take(&mut greedy[1]).is_none() && take(&mut others[1]).is_none(), "one each");
        drop(spare);
        let spare = take(&mut others[1]).expect("it has least time");
        assert!(take(&mut greedy[1]).is_none(), "the spare one is not for a caller that computes");
        drop((long, spare));
        let next = take(&mut greedy[1]).expect("both are free");
        assert!(take(&mut greedy[2]).is_none());
        drop((next, greedy));
        let state = slots.lock();
        assert!(state.free == 1 && state.spare == 1 && state.callers.is_empty());
    }

    #[test]
    fn a_dropped_request_leaves_the_queue() {
        let slots = Slots::new(1, 0);
        let mut first = slots.wait(1);
        let (second, granted) = (slots.wait(1), slots.wait(2));
        assert_eq!(slots.waiting(1), 1);
        drop(second);
        assert_eq!(slots.waiting(1), 0);
        drop(take(&mut first));
        // Granted, but never taken.
        drop(granted);
        let state = slots.lock();
        assert!(state.free == 1 && state.queue.is_empty() && state.callers.is_empty());
    }
}
