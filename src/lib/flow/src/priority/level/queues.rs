//! The state of a level: queues in virtual time.

use super::super::allocation::{Demand, number};
use super::super::config::{Discipline, Distinguisher};
use super::super::hand;
use super::super::matching::FlowAction;
use super::super::retry_after::RetryAfter;
use super::super::stats::VirtualTime;
use super::utilization::{Capacity, Utilization};
use super::{HeldSeats, SeatRequest};
use crate::share::IdentityHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<IdentityHasher>>;

/// Seconds that a request is expected to take.
const ESTIMATE: f64 = 0.003;
/// Longer user names are cut in the dump of requests.
const MAX_USER_BYTES: usize = 256;

#[derive(Debug)]
pub(super) struct LevelState {
    pub(super) discipline: Discipline,
    /// Seats.
    pub(super) limit: usize,
    /// Excludes borrowed and lent seats.
    pub(super) nominal: usize,
    pub(super) totals: Totals,
    pub(super) demand: Demand,
    pub(super) utilization: Utilization,
    pub(super) retry_after: RetryAfter,
    /// Queues whose requests wait or run.
    queues: ByNumber<u32, Queue>,
    /// Seats held, by flow.
    flows: ByNumber<u64, usize>,
    /// Virtual time, since no queue was active.
    progress: f64,
    /// When the last request left its queue, and when it started, in virtual time.
    dispatched_at: [f64; 2],
    now: Instant,
    deals: usize,
    /// The queue that was served last.
    served: u32,
    tickets: u64,
    /// Whether the next request waits for more seats than are free: no other may take them.
    is_blocked: bool,
    records: Vec<Record>,
    free_records: Vec<usize>,
}

/// Counts of a level.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Totals {
    pub(in super::super) waiting: usize,
    pub(in super::super) executing: usize,
    pub(in super::super) seats: usize,
    pub(in super::super) seats_waiting: usize,
    pub(in super::super) dispatched: u64,
    pub(in super::super) rejected: u64,
    pub(in super::super) cancelled: u64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedRequest>,
    seats_waiting: usize,
    executing: usize,
    seats: usize,
    /// When its next request starts in virtual time.
    next: f64,
}

impl Queue {
    /// No request starts before it arrives.
    fn bound(&mut self) {
        if let Some(first) = self.waiting.front() {
            self.next = self.next.max(first.arrived_at);
        }
    }
}

#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) wanted: SeatRequest,
    pub(super) queue: u32,
    pub(super) user: String,
    pub(super) arrived: Instant,
    pub(super) granted: oneshot::Sender<HeldSeats>,
    ticket: u64,
    /// In virtual time.
    arrived_at: f64,
}

/// Describes a request that runs. Reused, so that it costs no allocation.
#[derive(Debug)]
struct Record {
    user: String,
    schema: Arc<str>,
    distinguisher: Distinguisher,
    /// `None`: free.
    action: Option<Arc<dyn FlowAction>>,
    seats: usize,
    queue: Option<u32>,
    arrived: Instant,
    started: Instant,
}

/// State of an active queue.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct QueueFigures {
    pub(in super::super) index: u32,
    pub(in super::super) waiting: usize,
    pub(in super::super) executing: usize,
    pub(in super::super) seats: usize,
    pub(in super::super) next: f64,
    pub(in super::super) seats_waiting: usize,
}

#[derive(Clone, Debug)]
pub(in super::super) struct RequestFigures {
    pub(in super::super) schema: Arc<str>,
    pub(in super::super) distinguisher: Distinguisher,
    pub(in super::super) queue: Option<u32>,
    /// Position in the queue; `None`: it runs.
    pub(in super::super) place: Option<usize>,
    pub(in super::super) user: String,
    pub(in super::super) action: Arc<dyn FlowAction>,
    pub(in super::super) seats: usize,
    pub(in super::super) arrived: Instant,
    pub(in super::super) started: Option<Instant>,
}

fn shortened(user: &str) -> &str {
    let mut end = user.len().min(MAX_USER_BYTES);
    while !user.is_char_boundary(end) {
        end -= 1;
    }
    &user[..end]
}

fn work(seats: usize) -> f64 {
    number(seats) * ESTIMATE
}

impl LevelState {
    pub(super) fn new(discipline: Discipline, limit: usize, now: Instant) -> Self {
        Self {
            discipline,
            limit,
            nominal: limit,
            totals: Totals::default(),
            demand: Demand::default(),
            utilization: Utilization::default(),
            retry_after: RetryAfter::new(now),
            queues: ByNumber::default(),
            flows: ByNumber::default(),
            progress: 0.0,
            dispatched_at: [0.0; 2],
            now,
            deals: 0,
            served: 0,
            tickets: 0,
            is_blocked: false,
            records: Vec::new(),
            free_records: Vec::new(),
        }
    }

    /// Time of the last change.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Advances time. Comes before every change.
    pub(super) fn pass(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.now);
        let seconds = time.as_secs_f64();
        self.now = self.now.max(now);
        self.demand.passed(seconds);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (limit, nominal, discipline) = (self.limit, self.nominal, self.discipline);
        let capacity = Capacity { limit, nominal, discipline };
        self.utilization.passed(nanoseconds, &self.totals, capacity);
        if self.queues.is_empty() {
            self.progress = 0.0;
            return;
        }
        let wanted = self.totals.seats + self.totals.seats_waiting;
        let rate = number(wanted.min(self.limit)) / number(self.queues.len());
        self.progress += rate * seconds;
    }

    /// The queue of the flow's hand with the least waiting work.
    pub(super) fn pick(&mut self, flow: u64, queues: u32, hand: u8) -> u32 {
        let hand = hand::deal(flow, queues, hand);
        let first = self.deals % hand.len();
        self.deals = self.deals.wrapping_add(1);
        let turned = hand.clone().skip(first).chain(hand.take(first));
        let work = |queue: &u32| self.queues.get(queue).map_or(0, |queue| queue.seats_waiting);
        turned.min_by_key(work).unwrap_or(0)
    }

    /// Requests that wait in a queue.
    pub(super) fn length(&self, queue: u32) -> usize {
        self.queues.get(&queue).map_or(0, |queue| queue.waiting.len())
    }

    /// Whether this number of seats is free. A request for more than all waits until it is alone.
    pub(super) fn accommodates(&self, seats: usize) -> bool {
        if seats > self.limit {
            self.totals.executing == 0
        } else {
            self.totals.seats + seats <= self.limit
        }
    }

    /// Whether the flow stays within its part of the seats, or leaves as many as it then holds. So
    /// a single one leaves half of them.
    fn leaves_enough(&self, wanted: &SeatRequest) -> bool {
        let held = self.flows.get(&wanted.flow).copied().unwrap_or(0);
        if wanted.distinguisher == Distinguisher::None || held == 0 {
            return true;
        }
        let free = self.limit.saturating_sub(self.totals.seats);
        let part = self.limit / self.flows.len().max(2);
        held + wanted.seats <= part || held + 2 * wanted.seats <= free
    }

    /// Whether a new request overtakes no request that could run.
    pub(super) fn runs_at_once(&self, wanted: &SeatRequest) -> bool {
        self.totals.seats < self.limit
            && !(self.is_blocked && self.totals.waiting > 0)
            && self.accommodates(wanted.seats)
            && self.leaves_enough(wanted)
    }

    /// Gives a request its seats.
    pub(super) fn run(
        &mut self,
        wanted: &SeatRequest,
        queue: Option<u32>,
        arrived: Instant,
        user: &str,
    ) -> HeldSeats {
        let (seats, started) = (wanted.seats, self.now);
        self.totals.executing += 1;
        self.totals.dispatched += 1;
        self.totals.seats += seats;
        if let Some(index) = queue {
            let progress = self.progress;
            let queue = self
                .queues
                .entry(index)
                .or_insert_with(|| Queue { next: progress, ..Queue::default() });
            if queue.waiting.is_empty() && arrived == self.now {
                queue.next = queue.next.max(progress);
            }
            queue.executing += 1;
            queue.seats += seats;
            queue.next += work(seats);
            queue.bound();
            *self.flows.entry(wanted.flow).or_default() += seats;
        }
        self.wants_changed();
        let slot = self.record(wanted, queue, arrived, user);
        HeldSeats {
            slot,
            flow: wanted.flow,
            seats,
            queue,
            kind: wanted.kind(),
            is_watch: wanted.is_watch(),
            is_exempt: self.discipline == Discipline::Exempt,
            started,
        }
    }

    fn record(
        &mut self,
        wanted: &SeatRequest,
        queue: Option<u32>,
        arrived: Instant,
        user: &str,
    ) -> usize {
        let slot = self.free_records.pop().unwrap_or_else(|| {
            self.records.push(Record {
                user: String::new(),
                schema: Arc::clone(&wanted.schema),
                distinguisher: wanted.distinguisher,
                action: None,
                seats: 0,
                queue: None,
                arrived,
                started: arrived,
            });
            self.records.len() - 1
        });
        let record = &mut self.records[slot];
        record.user.clear();
        record.user.push_str(shortened(user));
        if !Arc::ptr_eq(&record.schema, &wanted.schema) {
            record.schema = Arc::clone(&wanted.schema);
        }
        record.action = Some(Arc::clone(&wanted.action));
        (record.seats, record.queue) = (wanted.seats, queue);
        record.distinguisher = wanted.distinguisher;
        (record.arrived, record.started) = (arrived, self.now);
        slot
    }

    /// Takes the seats of a request back.
    pub(super) fn end(&mut self, held: &HeldSeats) {
        if let Some(record) = self.records.get_mut(held.slot) {
            record.action = None;
            self.free_records.push(held.slot);
        }
        self.totals.executing -= 1;
        self.totals.seats -= held.seats;
        self.wants_changed();
        let Some(index) = held.queue else { return };
        if let Some(seats) = self.flows.get_mut(&held.flow) {
            *seats -= held.seats;
            if *seats == 0 {
                self.flows.remove(&held.flow);
            }
        }
        let seconds = self.now.saturating_duration_since(held.started).as_secs_f64();
        if let Some(queue) = self.queues.get_mut(&index) {
            queue.executing -= 1;
            queue.seats -= held.seats;
            queue.next -= number(held.seats) * (ESTIMATE - seconds);
            queue.bound();
        }
        self.forget_idle(index);
    }

    pub(super) fn enqueue(
        &mut self,
        wanted: SeatRequest,
        index: u32,
        user: &str,
    ) -> (u64, oneshot::Receiver<HeldSeats>) {
        let (granted, receiver) = oneshot::channel();
        self.tickets += 1;
        self.totals.waiting += 1;
        self.totals.seats_waiting += wanted.seats;
        let (ticket, progress) = (self.tickets, self.progress);
        let queue = self
            .queues
            .entry(index)
            .or_insert_with(|| Queue { next: progress, ..Queue::default() });
        queue.seats_waiting += wanted.seats;
        queue.waiting.push_back(QueuedRequest {
            wanted,
            queue: index,
            user: shortened(user).to_owned(),
            arrived: self.now,
            granted,
            ticket,
            arrived_at: progress,
        });
        queue.bound();
        self.wants_changed();
        (ticket, receiver)
    }

    /// Takes the next request that may run out of its queue.
    pub(super) fn next(&mut self) -> Option<QueuedRequest> {
        self.is_blocked = false;
        if self.totals.waiting == 0 || self.totals.seats >= self.limit {
            return None;
        }
        let served = self.served;
        let candidates = self.queues.iter().filter_map(|(index, queue)| {
            let first = queue.waiting.front()?;
            let end = queue.next + work(first.wanted.seats);
            self.leaves_enough(&first.wanted).then_some((*index, end, first.wanted.seats))
        });
        // Among equals the next one in turn.
        let turn = |index: u32| index.wrapping_sub(served.wrapping_add(1));
        let (index, _, seats) = candidates.min_by(|(one, first, _), (other, second, _)| {
            first.total_cmp(second).then_with(|| turn(*one).cmp(&turn(*other)))
        })?;
        if !self.accommodates(seats) {
            self.is_blocked = true;
            let first = self.queues.get(&index).and_then(|queue| queue.waiting.front());
            first.inspect(|first| first.wanted.stats.not_accommodated());
            return None;
        }
        let queue = self.queues.get_mut(&index)?;
        let waiter = queue.waiting.pop_front()?;
        self.dispatched_at = [self.progress, queue.next];
        queue.seats_waiting -= waiter.wanted.seats;
        self.served = waiter.queue;
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= waiter.wanted.seats;
        Some(waiter)
    }

    /// Takes a request out of its queue; `None` if it has left it already.
    pub(super) fn leave(&mut self, index: u32, ticket: u64) -> Option<SeatRequest> {
        let queue = self.queues.get_mut(&index)?;
        let place = queue.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()?;
        let waiter = queue.waiting.remove(place)?;
        queue.seats_waiting -= waiter.wanted.seats;
        queue.bound();
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= waiter.wanted.seats;
        self.wants_changed();
        self.forget_idle(index);
        Some(waiter.wanted)
    }

    fn forget_idle(&mut self, index: u32) {
        let queue = self.queues.get(&index);
        if queue.is_some_and(|queue| queue.executing == 0 && queue.waiting.is_empty()) {
            self.queues.remove(&index);
        }
    }

    fn wants_changed(&mut self) {
        self.demand.set(self.totals.seats + self.totals.seats_waiting);
    }

    pub(super) fn virtual_time(&self) -> VirtualTime {
        let [dispatched, last_start] = self.dispatched_at;
        let mut next = [[f64::INFINITY, f64::NEG_INFINITY]; 2];
        for queue in self.queues.values().filter(|queue| !queue.waiting.is_empty()) {
            let starts = [queue.next, queue.next - work(queue.seats)];
            for ([least, most], start) in next.iter_mut().zip(starts) {
                (*least, *most) = (least.min(start), most.max(start));
            }
        }
        if next[0][0] > next[0][1] {
            next = [[0.0; 2]; 2];
        }
        VirtualTime { now: [self.progress, dispatched], last_start, next }
    }

    pub(super) fn queue_figures(&self) -> Vec<QueueFigures> {
        let figures = |(index, queue): (&u32, &Queue)| QueueFigures {
            index: *index,
            waiting: queue.waiting.len(),
            executing: queue.executing,
            seats: queue.seats,
            next: queue.next,
            seats_waiting: queue.seats_waiting,
        };
        let mut all: Vec<QueueFigures> = self.queues.iter().map(figures).collect();
        all.sort_by_key(|queue| queue.index);
        all
    }

    pub(super) fn request_figures(&self) -> Vec<RequestFigures> {
        let waiting = self.queues.values().flat_map(|queue| queue.waiting.iter().enumerate());
        let waiting = waiting.map(|(place, waiter)| RequestFigures {
            schema: Arc::clone(&waiter.wanted.schema),
            distinguisher: waiter.wanted.distinguisher,
            queue: Some(waiter.queue),
            place: Some(place),
            user: waiter.user.clone(),
            action: Arc::clone(&waiter.wanted.action),
            seats: waiter.wanted.seats,
            arrived: waiter.arrived,
            started: None,
        });
        let executing = self.records.iter().filter_map(|record| {
            Some(RequestFigures {
                schema: Arc::clone(&record.schema),
                distinguisher: record.distinguisher,
                queue: record.queue,
                place: None,
                user: record.user.clone(),
                action: Arc::clone(record.action.as_ref()?),
                seats: record.seats,
                arrived: record.arrived,
                started: Some(record.started),
            })
        });
        let mut all: Vec<RequestFigures> = waiting.chain(executing).collect();
        all.sort_by_key(|request| (request.queue, request.place));
        all
    }
}
