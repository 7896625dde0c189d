//! Slots for computations, shared among callers by time: the next slot goes to the caller that was
//! granted the least.
//!
//! A computation cannot be interrupted, so some slots are spare: only a caller without a running
//! computation, and without very long ones lately or next, gets one. It never waits for another
//! caller's long computation, and the threads share the cores. Very long computations hold much
//! memory: few run at a time.
//!
//! A slot is granted to a future, which may not be polled for long, such as that of a response
//! whose client has closed its window. So a grant that is not taken soon is withdrawn if others
//! wait.

#[cfg(test)]
mod tests;
mod untaken;

use ferrokube_apimachinery::work;
use parking_lot::{Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use untaken::Untaken;

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
    untaken: Untaken,
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
    granted: oneshot::Sender<()>,
}

/// A place in the queue. Dropping it leaves the queue, or releases a slot granted meanwhile.
pub(super) struct SlotRequest {
    slots: Arc<Slots>,
    caller: u64,
    ticket: u64,
    expected: u64,
    granted: oneshot::Receiver<()>,
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
            untaken: Untaken::default(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock()
    }

    /// Queues for a slot. `expected`: microseconds that the computation will take; 0 if unknown.
    pub(super) fn wait(self: &Arc<Self>, caller: u64, expected: u64) -> SlotRequest {
        let mut state = self.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        let granted = state.queue_up(caller, ticket, expected);
        drop(state);
        SlotRequest { slots: Arc::clone(self), caller, ticket, expected, granted, is_taken: false }
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
        self.call_watcher();
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

    /// Queues a computation by its ticket: one whose grant was withdrawn precedes later ones of its
    /// caller.
    fn queue_up(&mut self, number: u64, ticket: u64, expected: u64) -> oneshot::Receiver<()> {
        let (granted, receiver) = oneshot::channel();
        let now = self.now;
        self.change(number, |caller| {
            if caller.waiting.is_empty() {
                // A caller cannot save up idle time.
                caller.granted_micros = caller.granted_micros.max(now);
            }
            let at = caller.waiting.partition_point(|other| other.ticket < ticket);
            caller.waiting.insert(at, WaitingComputation { ticket, expected, granted });
        });
        self.grant();
        receiver
    }

    fn grant(&mut self) {
        self.resume();
        while let Some((granted_micros, caller, kind)) = self.next() {
            self.now = self.now.max(granted_micros);
            self.start(caller, kind);
        }
        self.call_watcher();
    }

    /// Starts a caller's first waiting computation.
    fn start(&mut self, number: u64, kind: SlotKind) {
        *self.left(kind) -= 1;
        let first = self.change(number, |caller| {
            caller.begin();
            caller.waiting.pop_front()
        });
        // A requester that was dropped meanwhile releases it: see `SlotRequest`.
        if let Some(first) = first {
            self.untaken.put(number, first.ticket, kind);
            let _ = first.granted.send(());
        }
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
        let slots = Arc::clone(&self.slots);
        loop {
            let granted = std::task::ready!(Pin::new(&mut self.granted).poll(context));
            granted.expect("the sender is dropped only after sending");
            let mut state = slots.lock();
            if let Some(kind) = state.take(self.caller, self.ticket) {
                drop(state);
                self.is_taken = true;
                return Poll::Ready(Slot {
                    slots,
                    caller: self.caller,
                    kind,
                    since_micros: thread_micros(),
                    earlier_micros: 0,
                    awaited: None,
                });
            }
            self.granted = state.queue_up(self.caller, self.ticket, self.expected);
        }
    }
}

impl Drop for SlotRequest {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let ticket = self.ticket;
        let mut state = self.slots.lock();
        let was_waiting = state.change(self.caller, |caller| {
            let at = caller.waiting.binary_search_by_key(&ticket, |other| other.ticket);
            at.is_ok_and(|at| caller.waiting.remove(at).is_some())
        });
        if !was_waiting && let Some(kind) = state.untaken.take(ticket) {
            state.end(self.caller, kind, Took::default());
            state.grant();
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
