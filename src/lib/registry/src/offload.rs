//! Long computations off the async workers: bodies and objects of many values, resources whose
//! rules took long before, answers that cost much to write.
//!
//! What may take more than some 0.2 ms is computed in a slot. There are few, and callers share them
//! by time: one caller's computations, however many, delay another's by one of each other caller at
//! most. A slot is held for one poll, never while a request waits.
//!
//! A request runs inside [`Offload::run`]. When it calls [`leave_worker`], the rest of it is polled
//! on threads that may block, few at a time, while the workers go on with other requests. Outside
//! [`Offload::run`] (tests) that changes nothing. What is one closure uses [`compute`], anywhere.
//! Both wait for the same slots, and neither has work under way once its future is dropped: there
//! is no other way off a worker for what a request costs.

mod slots;

use slots::{Slots, Waiting};
use std::cell::Cell;
use std::future::poll_fn;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};

/// What is written or converted is off the workers if it is of more bytes than this.
pub const INLINE_BYTES: usize = 8 * 1024;
/// Bodies and objects of more bytes than this are read and computed off the workers, shorter ones
/// where they are of many values: see [`is_costly`].
const PLAIN_BYTES: usize = 64 * 1024;
/// Shorter ones cannot be of many values.
const FEW_BYTES: usize = 1024;
/// Commas, colons and brackets that are read, changed and written in about 0.2 ms.
const INLINE_MARKS: usize = 1000;
/// Computations of one caller that may wait; further ones are refused.
const MAX_WAITING: usize = 256;
/// Time after which a long computation yields its slot, see [`pause`].
const TURN: Duration = Duration::from_millis(1);
/// Caller of the server's own work and of work shared by all.
pub const INTERNAL: u64 = 0;
/// A computation that takes longer sends the next ones of its resource off the workers.
const LONG: Duration = Duration::from_millis(2);
/// Resources share so many measured times, by a hash.
const RESOURCES: usize = 64;

/// Where the present thread polls a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not inside [`Offload::run`].
    Anywhere,
    Worker,
    /// On a worker, which it wants to leave.
    Leaving,
    Away,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Anywhere) };
    /// Whose request is polled.
    static CALLER: Cell<u64> = const { Cell::new(INTERNAL) };
    /// Since when, where it has a slot.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Whether JSON may take long to be read, changed and written.
pub fn is_costly(json: &[u8]) -> bool {
    json.len() > PLAIN_BYTES || (json.len() > FEW_BYTES && marks(json) > INLINE_MARKS)
}

fn marks(json: &[u8]) -> usize {
    let is_mark =
        |byte: u8| u8::from(byte == b',') | u8::from(byte == b':') | u8::from(byte == b'[');
    // In a form that becomes vector instructions: a pattern over the byte, or one sum, takes twenty
    // times as long. A lane counts to 255.
    let (blocks, rest) = json.as_chunks::<32>();
    let mut count = rest.iter().map(|byte| usize::from(is_mark(*byte))).sum();
    for blocks in blocks.chunks(255) {
        let mut lanes = [0_u8; 32];
        for block in blocks {
            for (lane, byte) in lanes.iter_mut().zip(block) {
                *lane = lane.wrapping_add(is_mark(*byte));
            }
        }
        count += lanes.iter().map(|lane| usize::from(*lane)).sum::<usize>();
    }
    count
}

/// Caller whose request the current thread polls.
pub fn caller() -> u64 {
    CALLER.get()
}

/// Whether the queue of a caller is full: further computations must be refused.
pub fn is_crowded(caller: u64) -> bool {
    room().waiting(caller) >= MAX_WAITING
}

/// Between two of many computations of one request: others have their turn when it has had its slot
/// for long.
pub async fn pause() {
    poll_fn(|context| {
        if PLACE.get() == Place::Away && SINCE.get().is_some_and(|since| since.elapsed() > TURN) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// Goes on off the workers, as soon as there is room. At once where that is so already.
pub async fn leave_worker() {
    poll_fn(|context| match PLACE.get() {
        Place::Anywhere | Place::Away => Poll::Ready(()),
        // Until it is off the worker: what polls several futures of one request polls this one
        // again where it is.
        Place::Worker | Place::Leaving => {
            PLACE.set(Place::Leaving);
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Slots of the process for long computations: one fewer than cores, at least one. More would take
/// the cores from short requests. As many are spare.
fn room() -> &'static Arc<Slots> {
    static ROOM: OnceLock<Arc<Slots>> = OnceLock::new();
    ROOM.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let slots = cores.saturating_sub(1).max(1);
        Slots::new(slots, slots)
    })
}

/// Runs a closure off the workers, as soon as there is a slot for this caller (inside
/// [`Offload::run`]: for its own). Dropped before that, it never runs.
pub async fn compute<T>(caller: u64, work: impl FnOnce() -> T) -> T {
    leave_worker().await;
    if PLACE.get() == Place::Away {
        // The request has its slot.
        return work();
    }
    let slot = room().wait(caller).await;
    let placed = Placed::at(Place::Away, caller);
    let result = aside(work);
    drop((placed, slot));
    back_to_worker().await;
    result
}

/// Goes on where the task is scheduled anew. A thread that has computed has no other task, but
/// would go on with what follows, such as writing an answer to its client: each of a burst of
/// requests would have a thread of its own for that, with memory of its own.
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

/// Where requests are polled, and what computations of resources took lately.
pub struct Offload {
    /// In microseconds.
    took: [AtomicU32; RESOURCES],
}

impl Default for Offload {
    fn default() -> Self {
        Self { took: [const { AtomicU32::new(0) }; RESOURCES] }
    }
}

impl Offload {
    /// Polls a caller's request where it wants to be.
    pub fn run<'a, T>(
        &self,
        caller: u64,
        request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    ) -> Offloaded<'a, T> {
        Offloaded { request, caller, waiting: None, away: false, result: None }
    }

    fn slot(&self, resource: &str) -> &AtomicU32 {
        let hash = resource
            .bytes()
            .fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        &self.took[hash % RESOURCES]
    }

    /// Whether computations of a resource took long lately.
    pub(crate) fn is_long(&self, resource: &str) -> bool {
        u128::from(self.slot(resource).load(Ordering::Relaxed)) > LONG.as_micros()
    }

    /// The next computations of a resource are taken for long, until some were not: it is new, and
    /// its rules are compiled at their first use.
    pub fn expect_long(&self, resource: &str) {
        self.remember(resource, LONG * 2);
    }

    /// Runs and remembers how long it took.
    pub(crate) fn measured<T>(&self, resource: &str, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = run();
        self.remember(resource, started.elapsed());
        result
    }

    /// The longest time counts, an eighth less with each shorter one.
    fn remember(&self, resource: &str, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let slot = self.slot(resource);
        let before = slot.load(Ordering::Relaxed);
        let now = took.max(before - before / 8);
        if now != before {
            slot.store(now, Ordering::Relaxed);
        }
    }
}

/// See [`Offload::run`].
pub struct Offloaded<'a, T> {
    request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    caller: u64,
    waiting: Option<Waiting>,
    away: bool,
    /// It is done, and its task comes back to a worker: see [`back_to_worker`].
    result: Option<T>,
}

/// The result is never pinned.
impl<T> Unpin for Offloaded<'_, T> {}

/// Puts the thread's place back, also when the request panics.
struct Placed(Place, u64, Option<Instant>);

impl Placed {
    fn at(place: Place, caller: u64) -> Self {
        let since = (place == Place::Away).then(Instant::now);
        Self(PLACE.replace(place), CALLER.replace(caller), SINCE.replace(since))
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        PLACE.set(self.0);
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
        if PLACE.get() == Place::Away {
            // Part of a request that has its room.
            return self.request.as_mut().poll(context);
        }
        if !self.away {
            let placed = Placed::at(Place::Worker, self.caller);
            let polled = self.request.as_mut().poll(context);
            self.away = PLACE.get() == Place::Leaving;
            drop(placed);
            if polled.is_ready() || !self.away {
                return polled;
            }
        }
        // Only while it computes does it have a slot: it waits for others without.
        let caller = self.caller;
        let waiting = self.waiting.get_or_insert_with(|| room().wait(caller));
        let Poll::Ready(slot) = Pin::new(waiting).poll(context) else {
            return Poll::Pending;
        };
        self.waiting = None;
        let placed = Placed::at(Place::Away, caller);
        let polled = aside(|| self.request.as_mut().poll(context));
        drop((placed, slot));
        if let Poll::Ready(result) = polled {
            self.result = Some(result);
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Runs while another thread takes over this worker's tasks. A runtime of one thread has no other.
///
/// It waits for no room: for what one task does at a time and everybody waits for, and must not
/// queue behind computations of requests. All else is for [`compute`].
pub fn aside<T>(run: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Other tests wait meanwhile.
    async fn all_slots() -> Vec<slots::Slot> {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut all = Vec::new();
        // A caller each: nobody has two while there are spare ones.
        for caller in 0..2 * cores.saturating_sub(1).max(1) as u64 {
            all.push(room().wait(u64::MAX - caller).await);
        }
        all
    }

    #[test]
    fn fault_34_the_cost_of_json_is_that_of_its_values() {
        assert!(!is_costly(&[b'x'; PLAIN_BYTES]) && is_costly(&[b'x'; PLAIN_BYTES + 1]));
        let few = |count: usize| format!("[{}]", vec!["0"; count].join(",")).into_bytes();
        assert!(!is_costly(&few(INLINE_MARKS)) && is_costly(&few(INLINE_MARKS + 1)));
        for length in [0, 1, 31, 32, 33, 255 * 32, 255 * 32 + 1, 60_000] {
            assert_eq!(marks(&b"[,:".repeat(length)), 3 * length);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_a_request_of_many_computations_makes_room_between_them() {
        let polls = std::sync::atomic::AtomicU32::new(0);
        let many = Offload::default().run(
            1,
            Box::pin(async {
                leave_worker().await;
                for _ in 0..3 {
                    pause().await;
                    while SINCE.get().is_some_and(|since| since.elapsed() <= TURN) {
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_what_left_its_worker_keeps_nobody_waiting() {
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
        // This runtime has one worker: these tasks could not run while it computes there.
        computes.await.expect("it computes");
        assert_eq!(tokio::spawn(async { 1 }).await.expect("another task runs"), 1);
        finish.send(()).expect("it waits for this");
        assert_eq!(long.await.expect("it ends"), 7);
        assert!(PLACE.get() == Place::Anywhere);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_one_of_several_futures_of_a_request_leaves_its_worker_too() {
        use futures::stream::{FuturesUnordered, StreamExt};
        let parts = || {
            (0..4).map(|_| async {
                leave_worker().await;
                PLACE.get() == Place::Away
            })
        };
        let parts = Box::pin(parts().collect::<FuturesUnordered<_>>().collect::<Vec<_>>());
        assert_eq!(Offload::default().run(1, parts).await, [true; 4]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_computations_have_the_same_room_wherever_they_begin() {
        let all = all_slots().await;
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_what_has_computed_goes_on_at_a_worker() {
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
                // Another test may have the room.
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
