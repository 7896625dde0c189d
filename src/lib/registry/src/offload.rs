//! Moves long computations off the async workers: large bodies and objects, resources with slow
//! rules, responses that are expensive to encode.
//!
//! Computations that may take more than about 0.2 ms run in a slot. Slots are few, and shared among
//! callers by time: however many computations a caller has, they delay another caller by at most
//! one of each. A slot is held for one poll, never while a request waits.
//!
//! Requests run inside [`Offload::run`]. After [`leave_worker`] the rest of a request is polled on
//! blocking threads, while the workers continue with other requests. Outside of [`Offload::run`]
//! (tests) it has no effect. [`compute`] runs a single closure, anywhere. Both use the same slots,
//! and neither leaves work running once its future is dropped. There is no other way off a worker
//! for the cost of a request.

mod slots;
mod usage;

use ferrokube_apimachinery::{heap, work};
use slots::{Slot, SlotRequest, Slots};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};
use usage::{PollPlan, WorkerUsage};

/// Encoding or converting more bytes leaves the worker.
pub const INLINE_BYTES: usize = 8 * 1024;
/// Decoding and computing on more bytes leaves the worker; on fewer only if [`is_costly`].
const PLAIN_BYTES: usize = 64 * 1024;
/// Too short to hold many values.
const FEW_BYTES: usize = 1024;
/// Commas, colons and brackets in JSON that is decoded, changed and encoded in about 0.2 ms.
const INLINE_MARKS: usize = 1000;
/// Waiting computations per caller; more are refused.
const MAX_WAITING: usize = 256;
/// Time after which [`pause`] yields the slot.
const SLOT_TIME: Duration = Duration::from_millis(1);
/// How long a computation that gave way waits for its slot: about as long as a long one takes. Then
/// it continues without one, as all slots may wait for what it holds.
const GIVING_WAY: Duration = Duration::from_millis(50);
/// How long one waits in all until its poll ends: it may hold a turn, which writers of its key wait
/// for.
const GIVING_WAY_IN_ALL: Duration = Duration::from_secs(2);
/// Caller number of the server's own work, and of work shared by all callers.
pub const INTERNAL: u64 = 0;
/// A longer computation moves the next ones of its resource off the workers.
const LONG: Duration = Duration::from_millis(2);
/// Recorded durations; resources share them by hash.
const RESOURCES: usize = 64;

/// Thread that polls a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PollSite {
    /// Not inside [`Offload::run`].
    Outside,
    Worker,
    /// On a worker, after [`leave_worker`].
    Leaving,
    Slot,
}

static USAGE: WorkerUsage = WorkerUsage::new();

fn uptime_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

thread_local! {
    static SITE: Cell<PollSite> = const { Cell::new(PollSite::Outside) };
    /// Caller of the polled request.
    static CALLER: Cell<u64> = const { Cell::new(INTERNAL) };
    /// Microseconds that the polled request expects to compute off the worker.
    static EXPECTED: Cell<u64> = const { Cell::new(0) };
    /// Whether the request that is polled in a slot continues on a worker, see [`on_worker`].
    static RETURNS: Cell<bool> = const { Cell::new(false) };
    /// Whether the request that is polled on a worker has computed for all callers, in a slot.
    static COMPUTED: Cell<bool> = const { Cell::new(false) };
    /// How long the polled computation may still wait.
    static MAY_WAIT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// When the current slot was taken.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The slot of this thread, if it may block.
    static HELD: RefCell<Option<Slot>> = const { RefCell::new(None) };
}

/// Gives the slot to a caller of short computations if it was held for longer than `SLOT_TIME`, and
/// waits until that one's ends. Call it between the parts of a long computation that is no future,
/// never with a lock held; loops call [`work::breathe`]. Has no effect outside of a slot, or after
/// `GIVING_WAY_IN_ALL`.
pub fn give_way() {
    let may_wait = MAY_WAIT.get();
    if SITE.get() != PollSite::Slot
        || may_wait.is_zero()
        || SINCE.get().is_none_or(|since| since.elapsed() <= SLOT_TIME)
    {
        return;
    }
    let Some(slot) = HELD.take() else { return };
    let began = Instant::now();
    HELD.set(Some(slot.give_way(GIVING_WAY.min(may_wait))));
    let now = Instant::now();
    MAY_WAIT.set(may_wait.saturating_sub(now - began));
    SINCE.set(Some(now));
}

/// Whether JSON may take long to decode, change and encode.
pub fn is_costly(json: &[u8]) -> bool {
    json.len() > PLAIN_BYTES || (json.len() > FEW_BYTES && marks(json) > INLINE_MARKS)
}

/// Microseconds that it takes to decode JSON, change and encode it.
pub fn json_micros(json: &[u8]) -> u64 {
    /// As much text takes a microsecond as it is decoded and encoded, and as many values.
    const TEXT: usize = 512;
    const VALUES: usize = 5;
    u64::try_from(json.len() / TEXT + marks(json) / VALUES).unwrap_or(u64::MAX)
}

/// Commas, colons and opening brackets, each of which a value follows.
fn marks(json: &[u8]) -> usize {
    heap::count(json, b",:[")
}

/// Caller of the request that the current thread polls.
pub fn caller() -> u64 {
    CALLER.get()
}

/// Whether the queue of a caller is full: further computations must be refused.
pub fn queue_is_full(caller: u64) -> bool {
    all_slots().waiting(caller) >= MAX_WAITING
}

/// Yields a slot that was held for longer than `SLOT_TIME`. Call it between the parts of a long
/// computation.
pub async fn pause() {
    poll_fn(|context| {
        if SITE.get() == PollSite::Slot
            && SINCE.get().is_some_and(|since| since.elapsed() > SLOT_TIME)
        {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// Whether the current thread computes in a slot: there is no need to leave a worker.
pub fn has_slot() -> bool {
    SITE.get() == PollSite::Slot
}

/// Continues off the workers, as soon as there is a slot. Returns at once if the request has one.
pub async fn leave_worker() {
    leave_worker_for(0).await;
}

/// The same for a computation that takes as many microseconds, if that is known: short ones go
/// before long ones of callers that have computed nothing lately.
pub async fn leave_worker_for(micros: u64) {
    poll_fn(|context| match SITE.get() {
        PollSite::Outside | PollSite::Slot => Poll::Ready(()),
        // Pending until polled off the worker: a combinator of several futures may poll this one
        // again on it.
        PollSite::Worker | PollSite::Leaving => {
            SITE.set(PollSite::Leaving);
            EXPECTED.set(EXPECTED.get().max(micros));
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Waits on a worker for what callers share, such as a lock, also if the request computes in slots:
/// handed to one that waits for a slot in its caller's queue, it would be held meanwhile. `wait`
/// must release it, as the request then continues in a slot if it had one before.
pub async fn on_worker<T>(wait: impl Future<Output = T>) -> T {
    let (had_slot, mut wait) = (has_slot(), std::pin::pin!(wait));
    let result = poll_fn(|context| {
        let polled = wait.as_mut().poll(context);
        if polled.is_pending() && has_slot() {
            RETURNS.set(true);
            context.waker().wake_by_ref();
        }
        polled
    })
    .await;
    if had_slot {
        leave_worker().await;
    }
    result
}

/// Continues on a worker, without waiting. Call it before taking what callers share, such as the
/// permits of a webhook: until that is returned, nothing may leave the worker, as it would be held
/// in the queue of one caller. [`compute_shared`] does not.
pub async fn return_to_worker() {
    poll_fn(|context| {
        if !has_slot() {
            return Poll::Ready(());
        }
        RETURNS.set(true);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Slots of the process: one fewer than cores, at least one. More would take the cores from short
/// requests. Spare slots: as many.
fn all_slots() -> &'static Arc<Slots> {
    static SLOTS: OnceLock<Arc<Slots>> = OnceLock::new();
    SLOTS.get_or_init(|| {
        work::set_breather(give_way);
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let count = cores.saturating_sub(1).max(1);
        let slots = Slots::new(count, count);
        let watched = Arc::clone(&slots);
        let watcher = std::thread::Builder::new().name("slots".to_owned());
        if let Err(error) = watcher.spawn(move || watched.watch()) {
            tracing::error!(%error, "cannot start the thread that withdraws slots");
        }
        slots
    })
}

/// Runs a closure off the workers, in a slot of the request's caller or, outside of
/// [`Offload::run`], of `caller`. Work for all callers, [`INTERNAL`], does not wait in the queue of
/// one. Dropped earlier, it never runs.
pub async fn compute<T>(caller: u64, work: impl FnOnce() -> T) -> T {
    if caller != INTERNAL {
        leave_worker().await;
    }
    compute_shared(caller, work).await
}

/// The same in a slot of `queue` instead of the caller's: the number of a webhook, for whose
/// permits and answers many callers wait.
pub async fn compute_shared<T>(queue: u64, work: impl FnOnce() -> T) -> T {
    if has_slot() {
        return work();
    }
    let slot = all_slots().wait(queue, 0).await;
    if has_slot() {
        // The request got one meanwhile.
        drop(slot);
        return work();
    }
    let result = in_slot(slot, queue, work);
    back_to_worker().await;
    result
}

/// Runs a computation off the worker, in its slot.
fn in_slot<T>(slot: Slot, caller: u64, work: impl FnOnce() -> T) -> T {
    // A runtime of one thread has no other that could release a slot meanwhile.
    let may_block =
        Handle::try_current().is_ok_and(|it| it.runtime_flavor() == RuntimeFlavor::MultiThread);
    let slot = match may_block {
        true => {
            HELD.set(Some(slot));
            None
        }
        false => Some(slot),
    };
    COMPUTED.set(true);
    let scope = PollScope::at(PollSite::Slot, caller);
    let result = block_in_place(work);
    drop((scope, slot));
    result
}

/// Reschedules the task. The thread that computed has left the worker pool but would continue with
/// this task, such as writing the response to its client: each of a burst of requests would keep a
/// thread, with its memory, for that.
async fn back_to_worker() {
    let mut is_woken = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_woken, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Durations of recent computations, by resource.
pub struct Offload {
    /// Microseconds, by hash of the resource.
    durations: [AtomicU32; RESOURCES],
}

impl Default for Offload {
    fn default() -> Self {
        Self { durations: [const { AtomicU32::new(0) }; RESOURCES] }
    }
}

impl Offload {
    /// Polls a request on the worker, or off it after [`leave_worker`].
    pub fn run<'a, T>(
        &self,
        caller: u64,
        request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    ) -> Offloaded<'a, T> {
        let start = USAGE.begin(caller, uptime_ms());
        let off_worker = start == PollPlan::Slot;
        let counted = start == PollPlan::Counted;
        let (waiting, expected, result) = (None, 0, None);
        Offloaded { request, caller, waiting, expected, off_worker, counted, result }
    }

    fn duration(&self, resource: &str) -> &AtomicU32 {
        let hash = resource
            .bytes()
            .fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        &self.durations[hash % RESOURCES]
    }

    /// Whether recent computations of a resource took long.
    pub(crate) fn is_long(&self, resource: &str) -> bool {
        u128::from(self.duration(resource).load(Ordering::Relaxed)) > LONG.as_micros()
    }

    /// Treats the next computations of a resource as long, until some were not. For new resources,
    /// whose rules are compiled at first use.
    pub fn expect_long(&self, resource: &str) {
        self.remember(resource, LONG * 2);
    }

    /// Runs a computation and records its duration.
    pub(crate) fn measured<T>(&self, resource: &str, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = run();
        self.remember(resource, started.elapsed());
        result
    }

    /// Keeps the maximum, which decays by an eighth with each shorter duration.
    fn remember(&self, resource: &str, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let longest = self.duration(resource);
        let before = longest.load(Ordering::Relaxed);
        let now = took.max(before - before / 8);
        if now != before {
            longest.store(now, Ordering::Relaxed);
        }
    }
}

/// Future of [`Offload::run`].
pub struct Offloaded<'a, T> {
    request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    caller: u64,
    waiting: Option<SlotRequest>,
    /// See [`leave_worker_for`].
    expected: u64,
    off_worker: bool,
    /// Polls on workers are counted.
    counted: bool,
    /// Set when done, until the task is back on a worker (see [`back_to_worker`]).
    result: Option<T>,
}

/// `result` is never pinned.
impl<T> Unpin for Offloaded<'_, T> {}

/// Restores the thread's state on drop, also if the request panics.
struct PollScope(PollSite, u64, Option<Instant>);

impl PollScope {
    fn at(site: PollSite, caller: u64) -> Self {
        let since = (site == PollSite::Slot).then(Instant::now);
        MAY_WAIT.set(GIVING_WAY_IN_ALL);
        Self(SITE.replace(site), CALLER.replace(caller), SINCE.replace(since))
    }
}

impl Drop for PollScope {
    fn drop(&mut self) {
        if SITE.get() == PollSite::Slot {
            drop(HELD.take());
        }
        SITE.set(self.0);
        CALLER.set(self.1);
        SINCE.set(self.2);
    }
}

impl<T> Future for Offloaded<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if let Some(result) = self.result.take() {
            return Poll::Ready(result);
        }
        if SITE.get() == PollSite::Slot {
            // Part of a request that has a slot.
            return self.request.as_mut().poll(context);
        }
        if !self.off_worker {
            let scope = PollScope::at(PollSite::Worker, self.caller);
            EXPECTED.set(0);
            COMPUTED.set(false);
            let since = self.counted.then(Instant::now);
            let polled = self.request.as_mut().poll(context);
            if let Some(since) = since.filter(|_| !COMPUTED.get()) {
                USAGE.polled(self.caller, since.elapsed());
            }
            self.off_worker = SITE.get() == PollSite::Leaving;
            self.expected = EXPECTED.get();
            drop(scope);
            if polled.is_ready() || !self.off_worker {
                return polled;
            }
        }
        // The slot is held for this poll only, not while the request waits.
        let (caller, expected) = (self.caller, self.expected);
        let waiting = self.waiting.get_or_insert_with(|| all_slots().wait(caller, expected));
        let Poll::Ready(slot) = Pin::new(waiting).poll(context) else {
            return Poll::Pending;
        };
        self.waiting = None;
        RETURNS.set(false);
        let polled = in_slot(slot, caller, || self.request.as_mut().poll(context));
        // Of the next poll, nothing is known.
        (self.expected, self.off_worker) = (0, !RETURNS.get());
        if let Poll::Ready(result) = polled {
            self.result = Some(result);
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Runs a closure while another thread takes over this worker's tasks. A current-thread runtime has
/// no other thread.
///
/// Takes no slot: only for serial work of a single task that all requests depend on, which must not
/// queue behind their computations. Everything else uses [`compute`].
pub fn block_in_place<T>(run: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Locked by tests that take slots and need others: two of them would wait for each other.
    static SLOT_TESTS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// Other tests wait until these are dropped.
    async fn take_all_slots() -> Vec<slots::Slot> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut all = Vec::new();
        // One caller each: a caller gets no spare slot while it computes.
        for caller in 0..2 * cores.saturating_sub(1).max(1) as u64 {
            all.push(all_slots().wait(u64::MAX - caller, 0).await);
        }
        all
    }

    /// The ordinary slots, for one caller, and computations that wait in its queue.
    async fn fill_queue() -> (Vec<slots::Slot>, Vec<SlotRequest>) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut held = Vec::new();
        for _ in 0..cores.saturating_sub(1).max(1) {
            held.push(all_slots().wait(u64::MAX, 0).await);
        }
        (held, (0..cores).map(|_| all_slots().wait(u64::MAX, 0)).collect())
    }

    #[test]
    fn fault_34_the_cost_of_json_is_counted_in_values() {
        assert!(!is_costly(&[b'x'; PLAIN_BYTES]) && is_costly(&[b'x'; PLAIN_BYTES + 1]));
        let few = |count: usize| format!("[{}]", vec!["0"; count].join(",")).into_bytes();
        assert!(!is_costly(&few(INLINE_MARKS)) && is_costly(&few(INLINE_MARKS + 1)));
        for length in [0, 1, 31, 32, 33, 255 * 32, 255 * 32 + 1, 60_000] {
            assert_eq!(marks(&b"[,:".repeat(length)), 3 * length);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_a_request_of_many_computations_yields_between_them() {
        let polls = std::sync::atomic::AtomicU32::new(0);
        let many = Offload::default().run(
            1,
            Box::pin(async {
                leave_worker().await;
                for _ in 0..3 {
                    pause().await;
                    while SINCE.get().is_some_and(|since| since.elapsed() <= SLOT_TIME) {
                        std::hint::spin_loop();
                    }
                }
            }),
        );
        let mut many = Box::pin(many);
        poll_fn(|context| {
            polls.fetch_add(1, Ordering::SeqCst);
            many.as_mut().poll(context)
        })
        .await;
        assert!(polls.load(Ordering::SeqCst) >= 4, "a slot for each, and the end at a worker");
    }

    /// A turn may be held meanwhile.
    #[test]
    fn fault_34_a_computation_gives_way_for_a_bounded_time() {
        use std::sync::atomic::AtomicBool;
        const HOLD: Duration = Duration::from_millis(1);
        const ROUNDS: u32 = 20;
        let slots = Slots::new(1, 0);
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let slot = runtime().block_on(slots.wait(1, 0));
        let (rounds, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = runtime();
                while !is_over.load(Ordering::SeqCst) {
                    let short = runtime.block_on(slots.wait(2, 0));
                    std::thread::sleep(HOLD);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    drop(short);
                }
            });
            HELD.set(Some(slot));
            let scope = PollScope::at(PollSite::Slot, 1);
            let given = MAY_WAIT.replace(Duration::ZERO);
            let try_once = || {
                SINCE.set(Instant::now().checked_sub(SLOT_TIME * 2));
                give_way();
            };
            while slots.waiting(2) == 0 {
                std::thread::yield_now();
            }
            try_once();
            let is_kept = HELD.with_borrow(Option::is_some);
            MAY_WAIT.set(HOLD * ROUNDS);
            // Another test may have the computations that wait.
            while !MAY_WAIT.get().is_zero() && rounds.load(Ordering::SeqCst) <= 2 * ROUNDS {
                try_once();
            }
            is_over.store(true, Ordering::SeqCst);
            drop(scope);
            assert!(is_kept && given == GIVING_WAY_IN_ALL);
        });
        let rounds = rounds.load(Ordering::SeqCst);
        // The last one got the slot when this computation was over.
        assert!(rounds > 0 && rounds <= ROUNDS + 2, "{rounds}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_a_request_off_its_worker_blocks_no_other_task() {
        let offload = Arc::new(Offload::default());
        let (started, computes) = tokio::sync::oneshot::channel();
        let (finish, finished) = mpsc::channel::<()>();
        let shared = Arc::clone(&offload);
        let long = tokio::spawn(async move {
            shared
                .run(
                    1,
                    Box::pin(async move {
                        leave_worker().await;
                        started.send(()).expect("awaited below");
                        finished.recv().expect("sent below");
                        tokio::task::yield_now().await;
                        leave_worker().await;
                        7
                    }),
                )
                .await
        });
        // The runtime has one worker: these tasks could not run if it were computing.
        computes.await.expect("it computes");
        assert_eq!(tokio::spawn(async { 1 }).await.expect("another task runs"), 1);
        finish.send(()).expect("it waits for this");
        assert_eq!(long.await.expect("it ends"), 7);
        assert!(SITE.get() == PollSite::Outside);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_each_of_several_futures_of_a_request_leaves_its_worker() {
        use futures::stream::{FuturesUnordered, StreamExt};
        let parts = || {
            (0..4).map(|_| async {
                leave_worker().await;
                SITE.get() == PollSite::Slot
            })
        };
        let parts = Box::pin(parts().collect::<FuturesUnordered<_>>().collect::<Vec<_>>());
        assert_eq!(Offload::default().run(1, parts).await, [true; 4]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_all_computations_share_the_slots() {
        let _alone = SLOT_TESTS.lock().await;
        let all = take_all_slots().await;
        let ran = std::sync::atomic::AtomicU32::new(0);
        let count = || _ = ran.fetch_add(1, Ordering::SeqCst);
        let offload = Offload::default();
        let mut waiting: [Pin<Box<dyn Future<Output = ()> + Send>>; 2] =
            [Box::pin(compute(1, count)), Box::pin(offload.run(1, Box::pin(compute(1, count))))];
        for _ in 0..10 {
            for one in &mut waiting {
                assert!(futures::poll!(one.as_mut()).is_pending());
            }
        }
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        let [one, other] = waiting;
        drop((all, one));
        other.await;
        assert_eq!(ran.load(Ordering::SeqCst), 1, "what nobody waits for any more never runs");
    }

    /// A lock may be held meanwhile, for which requests of all callers wait.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_work_for_all_callers_waits_in_no_callers_queue() {
        let _alone = SLOT_TESTS.lock().await;
        let long = fill_queue().await;
        let offload = Offload::default();
        let mut own = Box::pin(offload.run(u64::MAX, Box::pin(compute(u64::MAX, || ()))));
        assert!(futures::poll!(own.as_mut()).is_pending());
        let shared = offload.run(u64::MAX, Box::pin(compute(INTERNAL, caller)));
        let shared = tokio::time::timeout(Duration::from_secs(60), shared).await;
        assert_eq!(shared.expect("it waits for none of them"), INTERNAL);
        assert!(futures::poll!(own.as_mut()).is_pending(), "it is the last one of its queue");
        drop(long);
        own.await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_a_request_waits_for_others_on_a_worker() {
        let (mut slots, mut polls) = (Vec::new(), 0);
        let wait = poll_fn(|context| {
            slots.push(has_slot());
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 3 { Poll::Pending } else { Poll::Ready(7) }
        });
        let request = async {
            leave_worker().await;
            (on_worker(wait).await, has_slot())
        };
        assert_eq!(Offload::default().run(1, Box::pin(request)).await, (7, true));
        assert_eq!(slots, [true, false, false]);
        assert_eq!(on_worker(std::future::ready(1)).await, 1);
    }

    /// As for the permits of a webhook.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_what_callers_share_waits_in_no_callers_queue() {
        let _alone = SLOT_TESTS.lock().await;
        let (begun, mut begins) = tokio::sync::oneshot::channel();
        let offload = Offload::default();
        let request = offload.run(
            u64::MAX,
            Box::pin(async {
                leave_worker().await;
                return_to_worker().await;
                begun.send(has_slot()).expect("awaited below");
                // Pending once: it would continue in the queue of its caller.
                tokio::task::yield_now().await;
                (compute_shared(7, caller).await, has_slot())
            }),
        );
        let mut request = Box::pin(request);
        let had_slot = loop {
            assert!(futures::poll!(request.as_mut()).is_pending());
            match begins.try_recv() {
                Ok(had_slot) => break had_slot,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let long = fill_queue().await;
        let ended = tokio::time::timeout(Duration::from_secs(60), request).await;
        assert_eq!((had_slot, ended), (false, Ok((7, false))));
        drop(long);
    }

    /// Such as those of watches whose clients have closed their windows.
    #[tokio::test]
    async fn fault_34_slots_that_nothing_takes_are_given_to_others() {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
        let stalled: Vec<SlotRequest> =
            (0..2 * cores).map(|caller| all_slots().wait((1 << 32) + caller, 0)).collect();
        let computed = tokio::time::timeout(Duration::from_secs(60), compute(7, || 1)).await;
        assert_eq!(computed, Ok(1));
        drop(stalled);
    }

    /// What follows a long computation is short.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_a_computation_is_expected_to_take_counts_for_its_poll_only() {
        let has_computed = std::sync::atomic::AtomicBool::new(false);
        let offload = Offload::default();
        let mut request = offload.run(
            1,
            Box::pin(async {
                leave_worker_for(1_000_000).await;
                has_computed.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }),
        );
        let mut known = Vec::new();
        while !has_computed.load(Ordering::SeqCst) {
            assert!(futures::poll!(&mut request).is_pending());
            known.push(request.expected);
            tokio::task::yield_now().await;
        }
        assert_eq!(known.pop(), Some(0));
        assert!(known.iter().all(|expected| *expected == 1_000_000));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_a_request_returns_to_a_worker_after_computing() {
        let offload = Offload::default();
        let ran = std::sync::atomic::AtomicBool::new(false);
        let work = || ran.store(true, Ordering::SeqCst);
        let ways: [Pin<Box<dyn Future<Output = ()> + Send>>; 2] = [
            Box::pin(compute(1, work)),
            Box::pin(offload.run(
                1,
                Box::pin(async {
                    leave_worker().await;
                    work();
                }),
            )),
        ];
        for mut way in ways {
            ran.store(false, Ordering::SeqCst);
            while !ran.load(Ordering::SeqCst) {
                assert!(
                    futures::poll!(way.as_mut()).is_pending(),
                    "it goes on where it has computed"
                );
                // Another test may have the slots.
                tokio::task::yield_now().await;
            }
            assert!(futures::poll!(way.as_mut()).is_ready(), "its task was woken");
        }
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_computes_where_it_is() {
        leave_worker().await;
        assert_eq!(
            Offload::default()
                .run(
                    1,
                    Box::pin(async {
                        leave_worker().await;
                        1
                    })
                )
                .await,
            1
        );
    }

    #[test]
    fn a_long_computation_is_remembered_for_a_while() {
        let offload = Offload::default();
        offload.remember("things", LONG * 2);
        assert!(offload.is_long("things") && !offload.is_long("others"));
        for _ in 0..100 {
            offload.remember("things", LONG / 10);
        }
        assert!(!offload.is_long("things"));
    }
}
