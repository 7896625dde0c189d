//! A reconciler's work queue: keys are deduplicated, no key is processed concurrently, failures
//! back off. Trace contexts of the events that woke a key travel with it.

use ferrokube_client::{Outage, ReconcileTrace, add_cause, is_unanswered};
use ferrokube_trace::{SpanInfo, TraceContext};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Back-off after the first failure; doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(10);
/// Maximum back-off, hence how long after an outage failed work may still wait.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// When to reconcile the key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// On the next wake-up.
    Done,
    /// After this long, without counting as a failure.
    After(Duration),
}

/// A key that can be queued.
pub trait QueueKey: Clone + Eq + Ord + Hash + Debug + Send + 'static {}
impl<T: Clone + Eq + Ord + Hash + Debug + Send + 'static> QueueKey for T {}

/// A queue of keys. Cheap to clone. Bounded by the number of distinct keys.
pub struct WorkQueue<K> {
    shared: Arc<WorkQueueInner<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct WorkQueueInner<K> {
    state: Mutex<QueueState<K>>,
    changed: Notify,
}

struct QueueState<K> {
    /// Waiting keys by due time; the number preserves the order of equal times.
    due: BTreeSet<(Instant, u64, K)>,
    /// Each waiting key's position in `due`.
    waiting: HashMap<K, (Instant, u64)>,
    active: HashSet<K>,
    /// Woken while being processed: due again when the worker is done.
    again: HashSet<K>,
    failures: HashMap<K, u32>,
    /// Causes of wake-ups since the key was last taken.
    causes: HashMap<K, Vec<TraceContext>>,
    number: u64,
}

impl<K: QueueKey> Default for WorkQueue<K> {
    fn default() -> Self {
        let (waiting, active, again) = (HashMap::new(), HashSet::new(), HashSet::new());
        let state = QueueState { due: BTreeSet::new(), waiting, active, again, failures: HashMap::new(), causes: HashMap::new(), number: 0 };
        Self { shared: Arc::new(WorkQueueInner { state: Mutex::new(state), changed: Notify::new() }) }
    }
}

impl<K: QueueKey> WorkQueue<K> {
    /// Queues a key now. An earlier entry stays in place.
    pub fn add(&self, key: K, cause: Option<TraceContext>) {
        self.add_at(key, cause, Instant::now());
    }

    /// Queues a key for later. An earlier due time stays.
    pub fn add_after(&self, key: K, cause: Option<TraceContext>, delay: Duration) {
        self.add_at(key, cause, Instant::now() + delay);
    }

    fn add_at(&self, key: K, cause: Option<TraceContext>, when: Instant) {
        let mut state = self.shared.state.lock().expect("lock holders do not panic");
        if let Some(cause) = cause {
            add_cause(state.causes.entry(key.clone()).or_default(), cause);
        }
        if state.active.contains(&key) && when <= Instant::now() {
            state.again.insert(key);
            return;
        }
        state.schedule(key, when);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Number of keys waiting or in process.
    pub fn len(&self) -> usize {
        let state = self.shared.state.lock().expect("lock holders do not panic");
        state.waiting.len() + state.active.len()
    }

    /// Whether no key is waiting or in process.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the next due key. Cancel safe.
    async fn take(&self) -> (K, Vec<TraceContext>) {
        loop {
            let wait = {
                let mut state = self.shared.state.lock().expect("lock holders do not panic");
                match state.pop(Instant::now()) {
                    Ok(key) => {
                        let causes = state.causes.remove(&key).unwrap_or_default();
                        return (key, causes);
                    }
                    Err(wait) => wait,
                }
            };
            match wait {
                Some(when) => {
                    let _ = tokio::time::timeout_at(when, self.shared.changed.notified()).await;
                }
                None => self.shared.changed.notified().await,
            }
        }
    }

    fn finish<E>(&self, key: K, causes: Vec<TraceContext>, result: &Result<Next, E>) {
        let mut state = self.shared.state.lock().expect("lock holders do not panic");
        state.active.remove(&key);
        let again = state.again.remove(&key);
        let delay = match result {
            Ok(next) => {
                state.failures.remove(&key);
                match next {
                    Next::After(delay) => Some(*delay),
                    Next::Done => None,
                }
            }
            Err(_) => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                *failures = failures.saturating_add(1);
                Some(BACKOFF.saturating_mul(1 << (*failures - 1).min(12)).min(MAX_BACKOFF))
            }
        };
        // A wake-up during a failed attempt must not bypass the back-off.
        let delay = if again && result.is_ok() { Some(Duration::ZERO) } else { delay };
        if let Some(delay) = delay {
            if !matches!(result, Ok(Next::Done)) {
                state.requeue(&key, causes);
            }
            state.schedule(key, Instant::now() + delay);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs `reconcile` for each due key, up to `workers` concurrently, until dropped. A panic
    /// counts as a failure.
    pub async fn run<F, R, E>(&self, name: &'static str, workers: usize, reconcile: F)
    where
        F: Fn(K, &ReconcileTrace) -> R,
        R: Future<Output = Result<Next, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
    {
        let mut running: JoinSet<()> = JoinSet::new();
        let outage = Arc::new(Mutex::new(Outage::new(format!("reach the API server for {name}"))));
        loop {
            while running.len() >= workers {
                running.join_next().await;
            }
            let (key, causes) = tokio::select! {
                taken = self.take() => taken,
                Some(_) = running.join_next() => continue,
            };
            let trace = ReconcileTrace::caused_by(causes.clone());
            let work = reconcile(key.clone(), &trace);
            let (queue, owned_key, outage) = (self.clone(), key.clone(), outage.clone());
            running.spawn(async move {
                let shown = format!("{owned_key:?}");
                // Debug output of a string key, without its quotes.
                let object = shown.trim_matches('"');
                let span = SpanInfo { name, resource: "", namespace: "", object };
                let result = trace.run(span, attempt(name, object, &outage, work)).await;
                queue.finish(key, causes, &result);
            });
        }
    }
}

/// Runs one reconcile and logs its failure. A task of its own, so that a panic becomes a failure.
/// An unreachable server is an outage, logged once for all keys and controllers.
async fn attempt<R, E>(controller: &'static str, key: &str, outage: &Mutex<Outage>, work: R) -> Result<Next, ()>
where
    R: Future<Output = Result<Next, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let started = Instant::now();
    let task = match ferrokube_trace::current() {
        Some(context) => tokio::spawn(ferrokube_trace::scoped(context, tracing::Span::current(), work)),
        None => tokio::spawn(work),
    };
    let _abort = AbortOnDrop(task.abort_handle());
    let error: Box<dyn Error + Send + Sync> = match task.await {
        Ok(Ok(next)) => {
            outage.lock().expect("lock holders do not panic").works();
            tracing::debug!(controller, key, took_us = started.elapsed().as_micros(), "reconciled");
            return Ok(next);
        }
        Ok(Err(error)) => error.into(),
        Err(join) => format!("reconcile panicked: {join}").into(),
    };
    if is_unanswered(&*error) {
        tracing::debug!(controller, key, error = %error, "reconcile failed, retrying");
        outage.lock().expect("lock holders do not panic").failed(&*error);
    } else {
        tracing::warn!(controller, key, error = %error, "reconcile failed, retrying");
    }
    Err(())
}

/// Aborts a reconcile when its queue is dropped (shutdown, lost leadership).
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: QueueKey> QueueState<K> {
    /// A retry keeps its causes.
    fn requeue(&mut self, key: &K, mut causes: Vec<TraceContext>) {
        for newer in self.causes.remove(key).unwrap_or_default() {
            add_cause(&mut causes, newer);
        }
        if !causes.is_empty() {
            self.causes.insert(key.clone(), causes);
        }
    }

    fn schedule(&mut self, key: K, when: Instant) {
        if let Some(&(present, number)) = self.waiting.get(&key) {
            if present <= when {
                return;
            }
            self.due.remove(&(present, number, key.clone()));
        }
        self.number += 1;
        self.waiting.insert(key.clone(), (when, self.number));
        self.due.insert((when, self.number, key));
    }

    /// The next due key not in process, or when to check again.
    fn pop(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        let position = self.due.iter().find(|(when, _, key)| *when > now || !self.active.contains(key)).cloned();
        let Some((when, number, key)) = position else { return Err(None) };
        if when > now {
            return Err(Some(when));
        }
        self.due.remove(&(when, number, key.clone()));
        self.waiting.remove(&key);
        self.active.insert(key.clone());
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn equal_keys_are_worked_on_once_and_never_side_by_side() {
        let queue: WorkQueue<u32> = WorkQueue::default();
        let (active, runs) = (Arc::new(Mutex::new(HashSet::new())), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..5 {
            queue.add(1, None);
            queue.add(2, None);
        }
        let work = {
            let (active, runs) = (active.clone(), runs.clone());
            move |key: u32, _: &ReconcileTrace| {
                let (active, runs) = (active.clone(), runs.clone());
                async move {
                    assert!(active.lock().unwrap().insert(key), "two workers on one key");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    active.lock().unwrap().remove(&key);
                    runs.lock().unwrap().push(key);
                    Ok::<_, String>(Next::Done)
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), queue.run("test", 4, work)).await;
        let mut seen = runs.lock().unwrap().clone();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn fault_30_failures_back_off_and_a_panic_is_a_failure() {
        let queue: WorkQueue<&'static str> = WorkQueue::default();
        let cause = TraceContext::root();
        queue.add("bad", Some(cause));
        let times = Arc::new(Mutex::new(Vec::new()));
        let work = {
            let times = times.clone();
            move |_, trace: &ReconcileTrace| {
                assert_eq!(trace.context().map(|context| context.trace_id), Some(cause.trace_id), "also on the retry");
                let times = times.clone();
                async move {
                    times.lock().unwrap().push(Instant::now());
                    assert!(times.lock().unwrap().len() < 100);
                    if times.lock().unwrap().len() % 2 == 0 {
                        panic!("on purpose")
                    }
                    Err::<Next, _>("no".to_owned())
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(10), queue.run("test", 1, work)).await;
        let times = times.lock().unwrap();
        assert!((8..=12).contains(&times.len()), "{} attempts in 10 s", times.len());
        assert!(times[5] - times[4] > times[1] - times[0]);
    }
}
