//! Long computations off the async workers: large bodies, large objects, resources whose rules took long before.
//!
//! A request runs inside [`Offload::run`]. When it calls [`leave_worker`], the rest of it is polled on threads that may block, few at a time, while the
//! workers go on with other requests. Outside [`Offload::run`] (tests, loops of the server) it changes nothing.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bodies and objects of more bytes than this are read and computed off the workers: they take a millisecond and more.
pub const INLINE_BYTES: usize = 64 * 1024;
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
}

/// Goes on off the workers, as soon as there is room. At once where that is so already.
pub async fn leave_worker() {
    if !matches!(PLACE.get(), Place::Worker | Place::Leaving) {
        return;
    }
    PLACE.set(Place::Leaving);
    let mut left = false;
    poll_fn(|context| {
        if std::mem::replace(&mut left, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The threads for long computations: as many at once as there are cores but one.
pub struct Offload {
    room: Arc<Semaphore>,
    /// What computations of resources took lately, in microseconds.
    took: [AtomicU32; RESOURCES],
}

impl Default for Offload {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { room: Arc::new(Semaphore::new(cores.saturating_sub(1).max(1))), took: [const { AtomicU32::new(0) }; RESOURCES] }
    }
}

impl Offload {
    /// Polls a request where it wants to be.
    pub fn run<'a, T>(&'a self, request: Pin<Box<dyn Future<Output = T> + Send + 'a>>) -> Offloaded<'a, T> {
        Offloaded { request, room: &self.room, waiting: None, away: false }
    }

    fn slot(&self, resource: &str) -> &AtomicU32 {
        let hash = resource.bytes().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        &self.took[hash % RESOURCES]
    }

    /// Whether computations of a resource took long lately.
    pub(crate) fn is_long(&self, resource: &str) -> bool {
        u128::from(self.slot(resource).load(Ordering::Relaxed)) > LONG.as_micros()
    }

    /// The next computations of a resource are taken for long, until some were not: it is new, and its rules are compiled at their first use.
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

type Waiting = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// See [`Offload::run`].
pub struct Offloaded<'a, T> {
    request: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    room: &'a Arc<Semaphore>,
    waiting: Option<Waiting>,
    away: bool,
}

/// Puts the thread's place back, also when the request panics.
struct Placed(Place);

impl Placed {
    fn at(place: Place) -> Self {
        Self(PLACE.replace(place))
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        PLACE.set(self.0);
    }
}

impl<T> Future for Offloaded<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if !self.away {
            let placed = Placed::at(Place::Worker);
            let polled = self.request.as_mut().poll(context);
            self.away = PLACE.get() == Place::Leaving;
            drop(placed);
            if polled.is_ready() || !self.away {
                return polled;
            }
        }
        // Only while it computes does it take room: it waits for others without.
        let room = self.room;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(Arc::clone(room).acquire_owned()));
        let Poll::Ready(permit) = waiting.as_mut().poll(context) else {
            return Poll::Pending;
        };
        self.waiting = None;
        let placed = Placed::at(Place::Away);
        let polled = aside(|| self.request.as_mut().poll(context));
        drop((placed, permit));
        polled
    }
}

/// Runs while another thread takes over this worker's tasks. A runtime of one thread has no other.
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn fault_34_what_left_its_worker_keeps_nobody_waiting() {
        let offload = Arc::new(Offload::default());
        let (started, computes) = tokio::sync::oneshot::channel();
        let (finish, finished) = mpsc::channel::<()>();
        let shared = Arc::clone(&offload);
        let long = tokio::spawn(async move {
            shared
                .run(Box::pin(async move {
                    leave_worker().await;
                    started.send(()).expect("awaited below");
                    finished.recv().expect("sent below");
                    tokio::task::yield_now().await;
                    leave_worker().await;
                    7
                }))
                .await
        });
        // This runtime has one worker: these tasks could not run while it computes there.
        computes.await.expect("it computes");
        assert_eq!(tokio::spawn(async { 1 }).await.expect("another task runs"), 1);
        finish.send(()).expect("it waits for this");
        assert_eq!(long.await.expect("it ends"), 7);
        assert!(PLACE.get() == Place::Anywhere);
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_computes_where_it_is() {
        leave_worker().await;
        assert_eq!(
            Offload::default()
                .run(Box::pin(async {
                    leave_worker().await;
                    1
                }))
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
