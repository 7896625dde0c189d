//! Slots for computations, shared among callers by time: the next slot goes to the caller that was
//! granted the least.
//!
//! A computation cannot be interrupted, so some slots are spare: only a caller without a running
//! computation, and without very long ones lately or next, gets one. It never waits for another
//! caller's long computation, and the threads share the cores. Very long computations hold much
//! memory: few run at a time.

use ferrokube_apimachinery::work;
use parking_lot::{Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Microseconds of processor time charged for a computation until it is known.
const ASSUMED_MICROS: u64 = 200;

/// A caller whose longest recent computation took longer gets no spare slot.
const SPARE_MICROS: u64 = 10_000;
/// After a computation that took longer, its thread's free memory is returned: the next one may run
/// on another thread.
const TRIM_MICROS: u64 = 20_000;
/// A computation that took longer is remembered,
const LONG_MICROS: u64 = 4_000;
/// for this time after it ended.
const REMEMBERED_LONG: Duration = Duration::from_secs(10);
/// Callers whose long computations are remembered.
const MAX_LONG: usize = 1024;
/// A computation gives way to callers whose longest one took at most this part of it.
const SHORTER: u64 = 4;
/// Computations that gave their slot away and have none yet, each with its thread and memory; the
/// others compute to their end.
const MAX_AWAY: usize = 2;
/// With this number of them, the next one gives way only to callers that are known to be short: one
/// of which nothing is known may turn out to be long, and others must not wait for it.
const MAX_AWAY_FOR_UNKNOWN: usize = 1;
/// Number of callers from which on idle ones are scanned, see [`SlotState::forget`].
const REMEMBERED: usize = 64;

/// Scheduler of the slots. An idle caller (without running or waiting computations) keeps its debt
/// while others are busy: it would have none if it always sent one request after the other. Other
/// idle callers are dropped, and start level with the rest.
pub(super) struct Slots(Mutex<SlotState>);

/// A slot is returned as what it was taken as: the kind travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotKind {
    Ordinary,
    Spare,
}

struct SlotState {
    /// Ordinary slots that no computation has.
    free: usize,
    spare: usize,
    /// Microseconds granted to the caller that got the last slot.
    now: u64,
    tickets: u64,
    callers: HashMap<u64, CallerSlots>,
    /// Callers with running or waiting computations.
    busy: usize,
    /// Number of callers at which idle ones without a debt are dropped.
    sweep_at: usize,
    /// Waiting callers, ordered by granted microseconds, then by the ticket of their first request;
    /// with their number.
    queue: BTreeSet<(u64, u64, u64)>,
    /// Computations that gave way, with their callers. They precede all that have not started,
    /// since started ones hold memory.
    resuming: VecDeque<(u64, oneshot::Sender<SlotKind>)>,
    /// Number of computations that gave way and have no slot: they wait, or continue without one.
    away: usize,
    /// Callers of long computations.
    long: HashMap<u64, LongCaller>,
}

/// The longest recent computation of a caller; an older one counts an eighth less with each.
#[derive(Clone, Copy)]
struct LongCaller {
    micros: u64,
    until: Instant,
}

/// Processor time of a computation.
#[derive(Clone, Copy, Default)]
struct Took {
    /// Since it got its slot.
    micros: u64,
    /// Before, in slots that it gave up.
    earlier_micros: u64,
}

impl Took {
    fn whole(self) -> u64 {
        self.micros + self.earlier_micros
    }
}

#[derive(Default)]
struct CallerSlots {
    granted_micros: u64,
    running: usize,
    /// Computations that gave way and have no slot.
    resuming: usize,
    waiting: VecDeque<WaitingComputation>,
}

struct WaitingComputation {
    ticket: u64,
    /// How long it will take, as far as is known, in microseconds.
    expected: u64,
    granted: oneshot::Sender<SlotKind>,
}

/// A place in the queue. Dropping it leaves the queue, or releases a slot granted meanwhile.
pub(super) struct SlotRequest {
    slots: Arc<Slots>,
    caller: u64,
    ticket: u64,
    granted: oneshot::Receiver<SlotKind>,
    is_taken: bool,
}

/// Released on drop, by the thread that took it.
pub(super) struct Slot {
    slots: Arc<Slots>,
    caller: u64,
    kind: SlotKind,
    /// Processor time of the thread when it took the slot, or continued without one.
    since_micros: u64,
    /// Time spent in slots that the computation has given up.
    earlier_micros: u64,
    /// Another caller has it: the computation continues without, until it is granted one again.
    awaited: Option<oneshot::Receiver<SlotKind>>,
}

impl Slots {
    pub(super) fn new(free: usize, spare: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SlotState {
            free,
            spare,
            now: 0,
            tickets: 0,
            callers: HashMap::new(),
            busy: 0,
            sweep_at: REMEMBERED,
            queue: BTreeSet::new(),
            resuming: VecDeque::new(),
            away: 0,
            long: HashMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock()
    }

    /// Queues for a slot. `expected`: microseconds that the computation will take; 0 if unknown.
    pub(super) fn wait(self: &Arc<Self>, caller: u64, expected: u64) -> SlotRequest {
        let (sender, granted) = oneshot::channel();
        let mut state = self.lock();
        state.tickets += 1;
        let (ticket, now) = (state.tickets, state.now);
        state.change(caller, |caller| {
            if caller.waiting.is_empty() {
                // A caller cannot save up idle time.
                caller.granted_micros = caller.granted_micros.max(now);
            }
            caller.waiting.push_back(WaitingComputation { ticket, expected, granted: sender });
        });
        state.grant();
        drop(state);
        SlotRequest { slots: Arc::clone(self), caller, ticket, granted, is_taken: false }
    }

    /// Waiting computations of a caller.
    pub(super) fn waiting(&self, caller: u64) -> usize {
        self.lock().callers.get(&caller).map_or(0, |caller| caller.waiting.len())
    }

    fn release(&self, caller: u64, kind: SlotKind, took: Took) {
        let mut state = self.lock();
        state.end(caller, kind, took);
        state.grant();
    }
}

impl CallerSlots {
    fn is_busy(&self) -> bool {
        self.running > 0 || self.resuming > 0 || !self.waiting.is_empty()
    }

    /// One of its computations takes a slot.
    fn begin(&mut self) {
        self.running += 1;
        self.granted_micros += ASSUMED_MICROS;
    }

    /// One of its computations leaves its slot.
    fn end(&mut self, took: Took) {
        self.running -= 1;
        self.granted_micros += took.micros.saturating_sub(ASSUMED_MICROS);
    }
}

impl SlotState {
    /// Changes a caller's entry, and its place in the queue with it.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut CallerSlots) -> T) -> T {
        let caller = self.callers.entry(number).or_default();
        let place = |caller: &CallerSlots| {
            caller.waiting.front().map(|first| (caller.granted_micros, first.ticket, number))
        };
        let (before, was_busy) = (place(caller), caller.is_busy());
        let result = change(caller);
        let (after, is_busy) = (place(caller), caller.is_busy());
        if before != after {
            before.map(|before| self.queue.remove(&before));
            after.map(|after| self.queue.insert(after));
        }
        self.busy = self.busy + usize::from(is_busy) - usize::from(was_busy);
        if !is_busy {
            self.forget(number);
        }
        result
    }

    /// Drops an idle caller unless it has a debt, and all callers once none is busy.
    fn forget(&mut self, number: u64) {
        let now = self.now;
        if self.busy == 0 {
            self.callers.clear();
        } else if self.callers.get(&number).is_some_and(|caller| caller.granted_micros <= now) {
            self.callers.remove(&number);
        } else if self.callers.len() >= self.sweep_at {
            self.callers.retain(|_, caller| caller.is_busy() || caller.granted_micros > now);
            self.sweep_at = REMEMBERED.max(2 * self.callers.len());
        }
    }

    /// Slots of a kind that no computation has.
    fn left(&mut self, kind: SlotKind) -> &mut usize {
        match kind {
            SlotKind::Ordinary => &mut self.free,
            SlotKind::Spare => &mut self.spare,
        }
    }

    /// A computation ends, and returns its slot.
    fn end(&mut self, number: u64, kind: SlotKind, took: Took) {
        *self.left(kind) += 1;
        self.change(number, |caller| caller.end(took));
        self.remember_long(number, took);
    }

    /// A computation gives its slot to another caller's, until the receiver gets one.
    fn pass_on(&mut self, slot: &Slot, took: Took, other: u64) -> oneshot::Receiver<SlotKind> {
        *self.left(slot.kind) += 1;
        self.change(slot.caller, |caller| {
            caller.resuming += 1;
            caller.end(took);
        });
        self.remember_long(slot.caller, took);
        self.start(other, slot.kind);
        self.away += 1;
        let (sender, granted) = oneshot::channel();
        self.resuming.push_back((slot.caller, sender));
        granted
    }

    /// A computation ends that gave its slot away and got none back. It is charged nevertheless.
    fn end_away(&mut self, number: u64, took: Took) {
        self.away -= 1;
        self.change(number, |caller| {
            caller.resuming -= 1;
            caller.granted_micros += took.micros;
        });
        self.resuming.retain(|(_, granted)| !granted.is_closed());
        self.remember_long(number, took);
    }

    fn remember_long(&mut self, number: u64, took: Took) {
        if took.whole() >= LONG_MICROS {
            self.remember(number, took.whole());
        }
    }

    fn remember(&mut self, number: u64, micros: u64) {
        let now = Instant::now();
        if self.long.len() >= MAX_LONG {
            self.long.retain(|_, long| long.until > now);
        }
        if self.long.len() < MAX_LONG || self.long.contains_key(&number) {
            let before = self.longest(number, now);
            let micros = micros.max(before - before / 8);
            self.long.insert(number, LongCaller { micros, until: now + REMEMBERED_LONG });
        }
    }

    /// The longest recent computation of a caller; 0 if none was long.
    fn longest(&self, number: u64, now: Instant) -> u64 {
        self.long.get(&number).filter(|long| long.until > now).map_or(0, |long| long.micros)
    }

    fn grant(&mut self) {
        self.resume();
        while let Some((granted_micros, caller, kind)) = self.next() {
            self.now = self.now.max(granted_micros);
            self.start(caller, kind);
        }
    }

    /// Starts a caller's first waiting computation.
    fn start(&mut self, number: u64, kind: SlotKind) {
        *self.left(kind) -= 1;
        let first = self.change(number, |caller| {
            caller.begin();
            caller.waiting.pop_front()
        });
        // A requester that was dropped meanwhile releases it: see `SlotRequest`.
        first.map(|first| first.granted.send(kind));
    }

    /// Grants slots to computations that gave way.
    fn resume(&mut self) {
        while let Some((number, _)) = self.resuming.front() {
            let kind = match self.free {
                0 => SlotKind::Spare,
                _ => SlotKind::Ordinary,
            };
            if kind == SlotKind::Spare
                && (self.spare == 0 || !self.may_have_spare(*number, Instant::now()))
            {
                return;
            }
            let Some((number, granted)) = self.resuming.pop_front() else { return };
            // Not if it has ended.
            if granted.send(kind).is_ok() {
                *self.left(kind) -= 1;
                self.away -= 1;
                self.change(number, |caller| {
                    caller.begin();
                    caller.resuming -= 1;
                });
            }
        }
    }

    /// The first waiting caller of shorter computations than this one's, which has taken `micros`,
    /// that may have its slot.
    fn shorter_waiter(&self, than: u64, kind: SlotKind, micros: u64) -> Option<u64> {
        if self.away >= MAX_AWAY {
            return None;
        }
        let now = Instant::now();
        let most = micros.max(self.longest(than, now)) / SHORTER;
        let least = u64::from(self.away >= MAX_AWAY_FOR_UNKNOWN);
        let callers = self.queue.iter().map(|(_, _, caller)| *caller);
        callers.take(MAX_LONG).find(|caller| {
            *caller != than
                && (least..=most).contains(&self.longest_or_next(*caller, now))
                && (kind == SlotKind::Ordinary || self.may_have_spare(*caller, now))
        })
    }

    /// The longest recent computation of a caller, or its next one if that will take longer: of a
    /// caller that has computed nothing long lately, only that is known, if anything (0: nothing).
    fn longest_or_next(&self, number: u64, now: Instant) -> u64 {
        let next = self.callers.get(&number).and_then(|caller| caller.waiting.front());
        self.longest(number, now).max(next.map_or(0, |next| next.expected))
    }

    fn may_have_spare(&self, number: u64, now: Instant) -> bool {
        self.callers.get(&number).is_none_or(|caller| caller.running == 0)
            && self.longest_or_next(number, now) <= SPARE_MICROS
    }

    /// The caller that gets the next slot, after its granted microseconds.
    fn next(&self) -> Option<(u64, u64, SlotKind)> {
        if self.free > 0 {
            let first = self.queue.first();
            return first.map(|(micros, _, caller)| (*micros, *caller, SlotKind::Ordinary));
        }
        if self.spare == 0 {
            return None;
        }
        let now = Instant::now();
        let mut first = self.queue.iter().take(MAX_LONG);
        let idle = first.find(|(_, _, caller)| self.may_have_spare(*caller, now));
        idle.map(|(micros, _, caller)| (*micros, *caller, SlotKind::Spare))
    }
}

impl Future for SlotRequest {
    type Output = Slot;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Slot> {
        let kind = std::task::ready!(Pin::new(&mut self.granted).poll(context));
        self.is_taken = true;
        Poll::Ready(Slot {
            slots: Arc::clone(&self.slots),
            caller: self.caller,
            kind: kind.expect("the sender is dropped only after sending"),
            since_micros: thread_micros(),
            earlier_micros: 0,
            awaited: None,
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
            let at = caller.waiting.binary_search_by_key(&ticket, |other| other.ticket);
            at.is_ok_and(|at| caller.waiting.remove(at).is_some())
        });
        // Sent under the lock, before it left the queue.
        if !was_waiting && let Ok(kind) = self.granted.try_recv() {
            self.slots.release(self.caller, kind, Took::default());
        }
    }
}

impl Slot {
    fn took(&self) -> Took {
        let micros = thread_micros().saturating_sub(self.since_micros);
        Took { micros, earlier_micros: self.earlier_micros }
    }

    /// Whether the computation has its slot, or was granted one since it gave that away.
    fn is_held(&mut self) -> bool {
        let Some(awaited) = &mut self.awaited else { return true };
        let Ok(kind) = awaited.try_recv() else { return false };
        (self.kind, self.awaited) = (kind, None);
        true
    }

    /// Yields the slot to a waiting caller with shorter computations, and blocks this thread until
    /// that one is done. Continues without a slot after `limit`, as others may need resources held
    /// here; the next free one is its own again.
    pub(super) fn give_way(mut self, limit: Duration) -> Self {
        if !self.is_held() {
            return self;
        }
        let took = self.took();
        let passed_on = {
            let mut state = self.slots.lock();
            let other = state.shorter_waiter(self.caller, self.kind, took.whole());
            other.map(|other| state.pass_on(&self, took, other))
        };
        let Some(mut granted) = passed_on else { return self };
        self.since_micros = thread_micros();
        self.earlier_micros = took.whole();
        let waker = Waker::from(Arc::new(UnparkThread(std::thread::current())));
        let deadline = Instant::now() + limit;
        loop {
            let polled = Pin::new(&mut granted).poll(&mut Context::from_waker(&waker));
            let left = deadline.saturating_duration_since(Instant::now());
            match polled {
                Poll::Ready(kind) => self.kind = kind.expect("the sender is dropped after sending"),
                Poll::Pending if left.is_zero() => self.awaited = Some(granted),
                Poll::Pending => {
                    std::thread::park_timeout(left);
                    continue;
                }
            }
            return self;
        }
    }
}

/// Processor time of the current thread. By the wall clock, a short computation would be a long one
/// whenever the cores are busy with other callers'.
fn thread_micros() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative.
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1000
}

struct UnparkThread(std::thread::Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let took = self.took();
        if let Some(granted) = &mut self.awaited {
            granted.close();
        }
        match self.is_held() {
            true => self.slots.release(self.caller, self.kind, took),
            false => self.slots.lock().end_away(self.caller, took),
        }
        if took.whole() >= TRIM_MICROS {
            work::trim_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(micros: u64) -> Took {
        Took { micros, earlier_micros: 0 }
    }

    fn take(waiting: &mut SlotRequest) -> Option<Slot> {
        match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }

    #[test]
    fn free_memory_is_returned_after_a_very_long_computation() {
        use std::sync::atomic::{AtomicU32, Ordering};
        thread_local! {
            static TRIMMED: AtomicU32 = const { AtomicU32::new(0) };
        }
        work::set_memory_trimmer(|| {
            TRIMMED.with(|count| count.fetch_add(1, Ordering::Relaxed));
        });
        let trimmed = || TRIMMED.with(|count| count.load(Ordering::Relaxed));
        let slots = Slots::new(1, 0);
        drop(take(&mut slots.wait(1, 0)).expect("it is free"));
        assert_eq!(trimmed(), 0);
        let slot = take(&mut slots.wait(1, 0)).expect("it is free");
        while slot.took().whole() < TRIM_MICROS {
            std::hint::spin_loop();
        }
        drop(slot);
        assert_eq!(trimmed(), 1);
    }

    #[test]
    fn fault_34_callers_have_separate_queues() {
        let slots = Slots::new(1, 0);
        let mut greedy: Vec<SlotRequest> = (0..100).map(|_| slots.wait(1, 0)).collect();
        let first = take(&mut greedy[0]).expect("nobody is before it");
        let mut other = slots.wait(2, 0);
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
        let held = take(&mut slots.wait(0, 0)).expect("it is free");
        let mut waiting: Vec<(u64, SlotRequest)> =
            [1, 1, 1, 2, 2, 2].into_iter().map(|caller| (caller, slots.wait(caller, 0))).collect();
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
            slots.release(
                caller,
                SlotKind::Ordinary,
                took(if caller == 1 { 10_000 } else { 1000 }),
            );
        }
        assert_eq!(order, [1, 2, 2, 2, 1, 1]);
        assert!(slots.lock().callers.is_empty(), "nobody is remembered");
    }

    /// One request after the other: in between the caller is idle.
    #[test]
    fn fault_34_a_caller_that_never_waits_in_line_pays_for_its_time_too() {
        let slots = Slots::new(1, 0);
        let first = take(&mut slots.wait(1, 0)).expect("it is free");
        let mut others: Vec<SlotRequest> = (0..9).map(|_| slots.wait(2, 0)).collect();
        std::mem::forget(first);
        slots.release(1, SlotKind::Ordinary, took(10_000));
        let mut next = slots.wait(1, 0);
        for (at, other) in others.iter_mut().enumerate() {
            assert!(take(&mut next).is_none(), "it had ten times as much as {at}");
            std::mem::forget(take(other).expect("the one that had less"));
            slots.release(2, SlotKind::Ordinary, took(1000));
        }
        drop((take(&mut next).expect("nobody else waits"), next));
        assert!(slots.lock().callers.is_empty(), "nobody computes, and nobody owes anything");
    }

    #[test]
    fn callers_without_a_debt_are_dropped() {
        let slots = Slots::new(1, 0);
        let mut busy = slots.wait(0, 0);
        let _held = take(&mut busy).expect("it is free");
        for caller in 1..10_000 {
            drop(slots.wait(caller, 0));
        }
        let state = slots.lock();
        assert_eq!((state.callers.len(), state.busy), (1, 1));
    }

    #[test]
    fn fault_34_a_caller_that_computes_nothing_waits_for_no_computation() {
        let slots = Slots::new(1, 1);
        let mut greedy: Vec<SlotRequest> = (0..3).map(|_| slots.wait(1, 0)).collect();
        let long = take(&mut greedy[0]).expect("it is free");
        let mut others: Vec<SlotRequest> = (0..2).map(|_| slots.wait(2, 0)).collect();
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

    /// A computation cannot be interrupted, but gives way between its parts: to callers of short
    /// ones. What has begun goes before other long ones, so that few hold memory at a time.
    #[test]
    fn fault_34_a_long_computation_gives_way_to_short_ones() {
        const LIMIT: Duration = Duration::from_secs(60);
        let slots = Slots::new(1, 0);
        let first = take(&mut slots.wait(3, 0)).expect("it is free");
        let long = slots.wait(1, 0);
        std::mem::forget(first);
        slots.release(3, SlotKind::Ordinary, Took { micros: 1, earlier_micros: LONG_MICROS });
        let long = take(&mut { long }).expect("it is free");
        let (mut next, mut known) = (slots.wait(1, 0), slots.wait(3, 0));
        let mut long = long.give_way(LIMIT);
        assert!(long.is_held(), "those that wait are long, too");
        let mut short = slots.wait(2, 0);
        std::thread::scope(|scope| {
            let long = scope.spawn(move || long.give_way(LIMIT));
            let others = loop {
                if let Some(slot) = take(&mut short) {
                    break slot;
                }
                std::thread::yield_now();
            };
            assert!(take(&mut next).is_none() && take(&mut known).is_none());
            drop(others);
            let mut long = long.join().expect("no panic");
            assert!(long.is_held(), "its turn again");
            assert!(take(&mut next).is_none() && take(&mut known).is_none(), "it has begun");
            drop(long);
            assert!(take(&mut next).or_else(|| take(&mut known)).is_some());
            drop((next, known));
        });
        let state = slots.lock();
        assert!(state.free == 1 && state.queue.is_empty() && state.resuming.is_empty());
    }

    #[test]
    fn fault_34_a_computation_gives_way_to_much_shorter_ones() {
        let slots = Slots::new(0, 0);
        let _waiting = [3, 2, 1].map(|caller| slots.wait(caller, 0));
        let mut state = slots.lock();
        for (caller, micros) in [(1, 60_000), (2, 5_000), (3, 40_000)] {
            state.remember(caller, micros);
        }
        let to = [1, 2, 3, 4].map(|caller| state.shorter_waiter(caller, SlotKind::Ordinary, 1_000));
        assert_eq!(to, [Some(2), None, Some(2), None]);
        let longer = state.shorter_waiter(4, SlotKind::Ordinary, 20_000);
        assert_eq!(longer, Some(2), "it is as long by now");
        state.remember(2, LONG_MICROS);
        assert_eq!(state.longest(2, Instant::now()), 4_375, "older ones count less");
    }

    #[test]
    fn fault_34_callers_of_very_long_computations_get_no_spare_slot() {
        let slots = Slots::new(1, 1);
        for (caller, micros) in [(1, SPARE_MICROS + 1), (2, SPARE_MICROS + 1), (3, SPARE_MICROS)] {
            slots.lock().remember(caller, micros);
        }
        let mut waiting = [1, 2, 3].map(|caller| slots.wait(caller, 0));
        let first = take(&mut waiting[0]).expect("it is free");
        assert!(take(&mut waiting[1]).is_none(), "only a spare one is left");
        let third = take(&mut waiting[2]).expect("a spare one");
        // What gave way is resumed in no spare slot, either.
        std::thread::scope(|scope| {
            let mut short = slots.wait(4, 0);
            let first = scope.spawn(move || first.give_way(Duration::from_secs(60)));
            let passed_on = loop {
                if let Some(slot) = take(&mut short) {
                    break slot;
                }
                std::thread::yield_now();
            };
            drop(third);
            assert!(slots.lock().spare == 1 && slots.lock().resuming.len() == 1);
            drop(passed_on);
            assert!(first.join().expect("no panic").is_held());
        });
        assert!(take(&mut waiting[1]).is_some());
    }

    /// Computes until the slot was held for some processor time.
    fn spin(slot: &Slot, micros: u64) {
        while slot.took().micros < micros {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn fault_34_a_computation_that_continues_without_a_slot_is_charged_and_gets_the_next() {
        let slots = Slots::new(1, 1);
        let long = take(&mut slots.wait(1, 0)).expect("it is free");
        let mut spare = slots.wait(4, 0);
        let mut other = slots.wait(2, 0);
        let spare = take(&mut spare).expect("a spare one");
        let mut long = long.give_way(Duration::from_millis(1));
        assert!(!long.is_held(), "passed on");
        let passed_on = take(&mut other).expect("passed on");
        let mut third = slots.wait(3, 0);
        let passed_on = passed_on.give_way(Duration::from_secs(60));
        assert!(take(&mut third).is_none(), "one continues without a slot: nothing is known of it");
        spin(&long, 2 * LONG_MICROS);
        let before = slots.lock().callers[&1].granted_micros;
        drop(long);
        {
            let state = slots.lock();
            assert!(state.callers[&1].granted_micros >= before + 2 * LONG_MICROS);
            assert!(state.longest(1, Instant::now()) >= 2 * LONG_MICROS);
            assert!(state.away == 0 && state.resuming.is_empty());
        }
        let mut passed_on = passed_on.give_way(Duration::from_millis(1));
        assert!(!passed_on.is_held());
        drop(take(&mut third).expect("passed on again"));
        assert!(passed_on.is_held(), "the next free slot is its own");
        drop((passed_on, spare));
        drop(take(&mut slots.wait(5, 0)).expect("all are free"));
        let state = slots.lock();
        assert!(state.free == 1 && state.spare == 1 && state.callers.is_empty());
    }

    /// A computation of which nothing was known precedes another one, and turns out to be long.
    #[test]
    fn fault_34_a_computation_without_a_slot_keeps_no_short_one_waiting() {
        let slots = Slots::new(1, 0);
        let long = take(&mut slots.wait(1, 0)).expect("it is free");
        let (mut unknown, mut other) = (slots.wait(2, 0), slots.wait(3, 0));
        let mut long = long.give_way(Duration::ZERO);
        let unknown = take(&mut unknown).expect("passed on");
        let unknown = unknown.give_way(Duration::ZERO);
        assert!(take(&mut other).is_none() && !long.is_held(), "nothing is known of it");
        let mut short = slots.wait(4, ASSUMED_MICROS);
        spin(&unknown, ASSUMED_MICROS * SHORTER + SHORTER);
        let mut unknown = unknown.give_way(Duration::ZERO);
        let passed_on = take(&mut short).expect("it is known to be short");
        let mut next = slots.wait(5, 1);
        spin(&passed_on, SHORTER);
        let passed_on = passed_on.give_way(Duration::ZERO);
        assert!(take(&mut next).is_none(), "two continue without a slot");
        drop(passed_on);
        assert!(long.is_held() && !unknown.is_held(), "the next free slot is its own");
        drop((long, unknown, other, next));
        let state = slots.lock();
        assert!(state.free == 1 && state.away == 0 && state.callers.is_empty());
    }

    /// A caller that has one of the spare slots is given no second one.
    #[test]
    fn fault_34_a_spare_slot_stays_one() {
        let slots = Slots::new(2, 2);
        let mut waiting = [3, 4, 1, 2].map(|caller| slots.wait(caller, 0));
        let held: Vec<Slot> = waiting.iter_mut().filter_map(take).collect();
        let [ordinary, other, spare, second]: [Slot; 4] = held.try_into().ok().expect("all four");
        let mut next = slots.wait(2, 0);
        let mut spare = spare.give_way(Duration::ZERO);
        assert!(spare.is_held() && take(&mut next).is_none(), "it has a spare one");
        slots.lock().remember(5, SPARE_MICROS + 1);
        let mut long = slots.wait(5, 0);
        spin(&spare, SPARE_MICROS * SHORTER + SHORTER);
        let mut spare = spare.give_way(Duration::ZERO);
        assert!(spare.is_held() && take(&mut long).is_none(), "its computations are very long");
        drop((ordinary, other, spare, second, next, long));
        let state = slots.lock();
        assert_eq!((state.free, state.spare, state.callers.len()), (2, 2, 0));
    }

    proptest::proptest! {
        #[test]
        fn slots_are_returned_as_what_they_were_taken_as(
            kinds in (1..3_usize, 0..3_usize),
            steps in proptest::collection::vec((0..6_u8, 0..64_usize), 1..80),
        ) {
            let slots = Slots::new(kinds.0, kinds.1);
            let (mut waiting, mut held) = (Vec::new(), Vec::<Slot>::new());
            for (step, pick) in steps {
                let at = |count: usize| pick % count.max(1);
                match step {
                    0 | 1 => {
                        let expected = if pick < 48 { 0 } else { SPARE_MICROS + 1 };
                        waiting.push(slots.wait(pick as u64 % 5, expected));
                    }
                    2 => {
                        let at = at(waiting.len());
                        held.extend(waiting.get_mut(at).and_then(take));
                    }
                    3 if !waiting.is_empty() => drop(waiting.swap_remove(at(waiting.len()))),
                    4 if !held.is_empty() => drop(held.swap_remove(at(held.len()))),
                    5 if !held.is_empty() => {
                        let slot = held.swap_remove(at(held.len()));
                        held.push(slot.give_way(Duration::ZERO));
                    }
                    _ => {}
                }
                waiting.retain(|request: &SlotRequest| !request.is_taken);
            }
            drop((waiting, held));
            let state = slots.lock();
            proptest::prop_assert_eq!((state.free, state.spare), kinds);
            proptest::prop_assert!(state.callers.is_empty() && state.queue.is_empty());
            proptest::prop_assert!(state.away == 0 && state.resuming.is_empty());
        }
    }

    #[test]
    fn fault_34_a_computation_that_will_be_long_counts_as_long() {
        let slots = Slots::new(1, 1);
        let long = take(&mut slots.wait(1, 0)).expect("it is free");
        let mut other = slots.wait(2, SPARE_MICROS + 1);
        assert!(take(&mut other).is_none(), "no spare slot, although nothing is known of it");
        let mut short = slots.wait(3, SPARE_MICROS);
        let spare = take(&mut short).expect("a spare one");
        spin(&long, 1);
        let mut long = long.give_way(Duration::from_secs(60));
        assert!(long.is_held(), "the one that waits is no shorter");
        drop((long, spare));
        assert!(take(&mut other).is_some());
    }

    #[test]
    fn a_dropped_request_leaves_the_queue() {
        let slots = Slots::new(1, 0);
        let mut first = slots.wait(1, 0);
        let (second, granted) = (slots.wait(1, 0), slots.wait(2, 0));
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
