//! A priority level: seats, and queues of requests that wait for them.
//!
//! Queues are served fairly in virtual time, which advances by each active queue's share of the
//! seats, in seat-seconds. A queue's next request starts when its earlier ones would have ended if
//! every active queue had its part of the seats; the request that would end first is next. Work is
//! estimated at first and corrected when a request ends. Idle queues take no memory.

mod queues;
#[cfg(test)]
mod tests;
mod utilization;

use super::allocation::DemandFigures;
use super::config::{Discipline, Distinguisher};
use super::matching::FlowAction;
use super::stats::{FlowStats, RejectReason, VirtualTime};
use parking_lot::{Mutex, MutexGuard};
use queues::LevelState;
pub(super) use queues::{QueueFigures, RequestFigures, Totals};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::oneshot;
use tokio::time::{Duration, Instant};
pub use utilization::{DEMAND_BOUNDS, REQUEST_BOUNDS, SEAT_BOUNDS, Utilization};

/// Requests with and waiting for seats in all levels: reads, then writes. Exempt ones are not
/// counted.
#[derive(Debug, Default)]
pub(super) struct Inflight {
    pub(super) executing: [AtomicUsize; 2],
    pub(super) waiting: [AtomicUsize; 2],
    /// Max requests that wait.
    pub(super) max_waiting: usize,
}

impl Inflight {
    fn is_full(&self) -> bool {
        let [reads, writes] = self.waiting.each_ref().map(|count| count.load(Relaxed));
        reads + writes >= self.max_waiting
    }
}

/// Cheap to share; outlives its configuration while requests hold seats.
#[derive(Debug)]
pub(super) struct Level {
    inflight: Arc<Inflight>,
    state: Mutex<LevelState>,
}

/// A request that needs seats.
#[derive(Clone, Debug)]
pub(super) struct SeatRequest {
    /// Keyed hash.
    pub(super) flow: u64,
    /// None if there are no other flows, which it would have to leave seats to.
    pub(super) distinguisher: Distinguisher,
    pub(super) seats: usize,
    pub(super) mutates: bool,
    pub(super) schema: Arc<str>,
    pub(super) stats: Arc<FlowStats>,
    pub(super) action: Arc<dyn FlowAction>,
}

impl SeatRequest {
    fn kind(&self) -> usize {
        usize::from(self.mutates)
    }

    fn is_watch(&self) -> bool {
        self.action.verb() == "watch"
    }
}

/// Seats; given back when dropped.
#[derive(Debug)]
pub struct SeatGrant {
    level: Arc<Level>,
    stats: Arc<FlowStats>,
    held: HeldSeats,
}

/// Seats of a request.
#[derive(Clone, Copy, Debug)]
struct HeldSeats {
    /// Index of the record that describes it.
    slot: usize,
    flow: u64,
    seats: usize,
    /// `None` in a level without queues.
    queue: Option<u32>,
    /// 0: reads, 1: writes.
    kind: usize,
    is_watch: bool,
    is_exempt: bool,
    started: Instant,
}

/// Outcome of a start.
#[derive(Debug)]
pub(super) enum Started {
    Granted(SeatGrant),
    Waits(WaitingRequest),
    Rejected,
}

/// A request in a queue; leaves it when dropped.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    level: Arc<Level>,
    stats: Arc<FlowStats>,
    queue: u32,
    ticket: u64,
    since: Instant,
    /// `None` once it has been taken.
    granted: Option<oneshot::Receiver<HeldSeats>>,
}

impl Level {
    pub(super) fn new(inflight: Arc<Inflight>, discipline: Discipline, limit: usize) -> Arc<Self> {
        let state = Mutex::new(LevelState::new(discipline, limit, Instant::now()));
        Arc::new(Self { inflight, state })
    }

    fn lock(&self) -> MutexGuard<'_, LevelState> {
        self.state.lock()
    }

    /// Gives a request its seats, queues it, or rejects it. `user` is for the dump of requests.
    pub(super) fn start(self: &Arc<Self>, wanted: SeatRequest, user: &str) -> Started {
        let now = Instant::now();
        wanted.stats.estimated(wanted.seats);
        let mut state = self.lock();
        state.pass(now);
        let queue = match state.discipline {
            Discipline::Exempt => None,
            Discipline::Reject if state.accommodates(wanted.seats) => None,
            Discipline::Reject => {
                return self.reject(&mut state, &wanted, RejectReason::ConcurrencyLimit);
            }
            Discipline::Queue { queues, hand, length } => {
                let queue = state.pick(wanted.flow, queues, hand);
                if !state.runs_at_once(&wanted) {
                    if state.length(queue) >= length as usize || self.inflight.is_full() {
                        return self.reject(&mut state, &wanted, RejectReason::QueueFull);
                    }
                    return Started::Waits(self.wait(&mut state, wanted, queue, user));
                }
                Some(queue)
            }
        };
        let now = state.now();
        let held = state.run(&wanted, queue, now, user);
        drop(state);
        self.count(&held, &wanted.stats);
        Started::Granted(SeatGrant { level: Arc::clone(self), stats: wanted.stats, held })
    }

    fn reject(
        &self,
        state: &mut LevelState,
        wanted: &SeatRequest,
        reason: RejectReason,
    ) -> Started {
        state.totals.rejected += 1;
        wanted.stats.reject(reason);
        Started::Rejected
    }

    fn wait(
        self: &Arc<Self>,
        state: &mut LevelState,
        wanted: SeatRequest,
        queue: u32,
        user: &str,
    ) -> WaitingRequest {
        let stats = Arc::clone(&wanted.stats);
        stats.waiting[0].fetch_add(1, Relaxed);
        stats.waiting[1].fetch_add(wanted.seats, Relaxed);
        self.inflight.waiting[wanted.kind()].fetch_add(1, Relaxed);
        let since = state.now();
        let (ticket, granted) = state.enqueue(wanted, queue, user);
        stats.enqueued(state.length(queue));
        let level = Arc::clone(self);
        let waiting = WaitingRequest { level, stats, queue, ticket, since, granted: Some(granted) };
        self.dispatch(state);
        waiting
    }

    /// Gives free seats to waiting requests.
    fn dispatch(&self, state: &mut LevelState) {
        while let Some(waiter) = state.next() {
            self.uncount_waiting(&waiter.wanted);
            let held = state.run(&waiter.wanted, Some(waiter.queue), waiter.arrived, &waiter.user);
            self.count(&held, &waiter.wanted.stats);
            if waiter.granted.send(held).is_err() {
                self.give_back(state, &held, &waiter.wanted.stats);
            }
        }
    }

    fn count(&self, held: &HeldSeats, stats: &FlowStats) {
        stats.dispatched.fetch_add(1, Relaxed);
        stats.executing[0].fetch_add(1, Relaxed);
        stats.executing[1].fetch_add(held.seats, Relaxed);
        if !held.is_exempt {
            self.inflight.executing[held.kind].fetch_add(1, Relaxed);
        }
    }

    fn uncount_waiting(&self, wanted: &SeatRequest) {
        wanted.stats.waiting[0].fetch_sub(1, Relaxed);
        wanted.stats.waiting[1].fetch_sub(wanted.seats, Relaxed);
        self.inflight.waiting[wanted.kind()].fetch_sub(1, Relaxed);
    }

    fn give_back(&self, state: &mut LevelState, held: &HeldSeats, stats: &FlowStats) {
        stats.executing[0].fetch_sub(1, Relaxed);
        stats.executing[1].fetch_sub(held.seats, Relaxed);
        if !held.is_exempt {
            self.inflight.executing[held.kind].fetch_sub(1, Relaxed);
        }
        state.end(held);
    }

    fn finish(&self, held: &HeldSeats, stats: &FlowStats) {
        let now = Instant::now();
        stats.executed(now.saturating_duration_since(held.started), held.is_watch);
        let mut state = self.lock();
        state.pass(now);
        self.give_back(&mut state, held, stats);
        self.dispatch(&mut state);
    }

    /// Whether a request of this flow would be rejected now.
    pub(super) fn is_hopeless(&self, flow: u64) -> bool {
        let state = self.lock();
        let Discipline::Queue { queues, hand, length } = state.discipline else { return false };
        state.totals.waiting > 0
            && (self.inflight.is_full()
                || super::hand::deal(flow, queues, hand)
                    .all(|queue| state.length(queue) >= length as usize))
    }

    /// Records a rejection; the seconds after which its client may try again.
    pub(super) fn retry_after(&self) -> u32 {
        let now = Instant::now();
        self.lock().retry_after.rejected(now)
    }

    /// Changes the number of seats (now and nominal) and what happens without them.
    pub(super) fn reconfigure(&self, discipline: Discipline, limit: usize, nominal: usize) {
        let mut state = self.lock();
        state.pass(Instant::now());
        state.discipline = discipline;
        state.limit = limit;
        state.nominal = nominal;
        self.dispatch(&mut state);
    }

    pub(super) fn end_period(&self, before: DemandFigures) -> DemandFigures {
        let mut state = self.lock();
        state.pass(Instant::now());
        state.demand.end(before)
    }

    /// For metrics.
    pub(super) fn course(&self) -> (Utilization, VirtualTime) {
        let mut state = self.lock();
        state.pass(Instant::now());
        (state.utilization.clone(), state.virtual_time())
    }

    /// Nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let totals = self.lock().totals;
        totals.executing == 0 && totals.waiting == 0
    }

    pub(super) fn totals(&self) -> Totals {
        self.lock().totals
    }

    /// Active queues.
    pub(super) fn queues(&self) -> Vec<QueueFigures> {
        self.lock().queue_figures()
    }

    /// Requests that wait or run.
    pub(super) fn requests(&self) -> Vec<RequestFigures> {
        self.lock().request_figures()
    }
}

impl Drop for SeatGrant {
    fn drop(&mut self) {
        self.level.finish(&self.held, &self.stats);
    }
}

impl WaitingRequest {
    /// Waits for the seats. Cancel safe.
    pub(super) async fn seats(mut self, max_wait: Duration) -> Result<SeatGrant, RejectReason> {
        let Some(granted) = self.granted.as_mut() else { return Err(RejectReason::Cancelled) };
        match tokio::time::timeout_at(self.since + max_wait, granted).await {
            Ok(Ok(held)) => {
                self.granted = None;
                self.stats.waited(held.started.saturating_duration_since(self.since), true);
                let (level, stats) = (Arc::clone(&self.level), Arc::clone(&self.stats));
                Ok(SeatGrant { level, stats, held })
            }
            // Dropping it leaves the queue.
            _ => {
                self.leave(RejectReason::TimeOut);
                Err(RejectReason::TimeOut)
            }
        }
    }

    /// Leaves the queue, or gives back what was granted meanwhile.
    fn leave(&mut self, reason: RejectReason) {
        let Some(mut granted) = self.granted.take() else { return };
        let now = Instant::now();
        let mut state = self.level.lock();
        state.pass(now);
        if let Some(wanted) = state.leave(self.queue, self.ticket) {
            self.level.uncount_waiting(&wanted);
            state.totals.rejected += 1;
            state.totals.cancelled += 1;
            self.stats.reject(reason);
            self.stats.waited(now.saturating_duration_since(self.since), false);
        } else if let Ok(held) = granted.try_recv() {
            self.level.give_back(&mut state, &held, &self.stats);
        }
        self.level.dispatch(&mut state);
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.leave(RejectReason::Cancelled);
    }
}
