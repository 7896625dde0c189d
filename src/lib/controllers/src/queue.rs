//! A reconciler's work queue: keys are deduplicated, no key is processed concurrently, failures
//! back off. Trace contexts of the events that woke a key travel with it. Due keys take turns by
//! group (such as a namespace), so that ten thousand keys of one group do not delay other groups.

use ferrokube_client::{Outage, ReconcileTrace, add_cause, is_unanswered};
use ferrokube_trace::{SpanInfo, TraceContext};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::error::Error;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Level;

/// Back-off after the first failure; doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(10);
/// Maximum back-off, hence how long after an outage failed work may still wait.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Interval in which a controller warns of an error once; again only in the debug log.
const WARN_PERIOD: Duration = Duration::from_secs(60);
/// Warnings of a controller in that time.
const MAX_WARNINGS: usize = 100;

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
    group: fn(&K) -> u32,
}

struct QueueState<K> {
    /// Waiting keys by due time; the number preserves the order of equal times.
    due: BTreeSet<(Instant, u64, K)>,
    /// Due keys by group, oldest first. No group is empty.
    ready: HashMap<u32, VecDeque<K>>,
    /// The groups of `ready` in the order of their turns.
    turns: VecDeque<u32>,
    /// Waiting keys with their due time, and their position in `due` if not yet ready.
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
        Self::in_turns(|_| 0)
    }
}

impl<K: QueueKey> WorkQueue<K> {
    /// A queue whose workers serve the groups of due keys in turns.
    pub fn in_turns(group: fn(&K) -> u32) -> Self {
        let state = QueueState {
            due: BTreeSet::new(),
            ready: HashMap::new(),
            turns: VecDeque::new(),
            waiting: HashMap::new(),
            active: HashSet::new(),
            again: HashSet::new(),
            failures: HashMap::new(),
            causes: HashMap::new(),
            number: 0,
        };
        Self {
            shared: Arc::new(WorkQueueInner {
                state: Mutex::new(state),
                changed: Notify::new(),
                group,
            }),
        }
    }

    /// Queues a key now. An earlier entry stays in place.
    pub fn add(&self, key: K, cause: Option<TraceContext>) {
        self.add_at(key, cause, Instant::now());
    }

    /// Queues a key for later. An earlier due time stays.
    pub fn add_after(&self, key: K, cause: Option<TraceContext>, delay: Duration) {
        self.add_at(key, cause, Instant::now() + delay);
    }

    fn add_at(&self, key: K, cause: Option<TraceContext>, when: Instant) {
        let mut state = self.shared.state.lock();
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
        let state = self.shared.state.lock();
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
                let mut state = self.shared.state.lock();
                match state.pop(Instant::now(), self.shared.group) {
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
        let mut state = self.shared.state.lock();
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
        let failures = Arc::new(Failures::of(name));
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
            let (queue, owned_key, failures) = (self.clone(), key.clone(), Arc::clone(&failures));
            running.spawn(async move {
                let shown = format!("{owned_key:?}");
                // Debug output of a string key, without its quotes.
                let object = shown.trim_matches('"');
                let span = SpanInfo { name, resource: "", namespace: "", object };
                let result = trace.run(span, attempt(name, object, &failures, work)).await;
                queue.finish(key, causes, &result);
            });
        }
    }
}

/// Failures of a controller's reconciles, as far as the log needs them.
struct Failures {
    outage: Mutex<Outage>,
    warned: Mutex<RecentWarnings>,
}

impl Failures {
    fn of(controller: &str) -> Self {
        let outage = Outage::new(format!("reach the API server for {controller}"));
        Self { outage: Mutex::new(outage), warned: Mutex::default() }
    }

    /// Level at which a failed reconcile is logged. An unanswered request is part of an outage,
    /// which logs itself once for all keys and controllers: also its first failure is `DEBUG` here.
    fn level(&self, error: &(dyn Error + Send + Sync + 'static)) -> Level {
        if is_unanswered(error) {
            self.outage.lock().failed(error);
            Level::DEBUG
        } else if self.warned.lock().is_new(&error.to_string(), Instant::now()) {
            Level::WARN
        } else {
            Level::DEBUG
        }
    }
}

/// Runs one reconcile and logs its failure. A task of its own, so that a panic becomes a failure.
async fn attempt<R, E>(
    controller: &'static str,
    key: &str,
    failures: &Failures,
    work: R,
) -> Result<Next, ()>
where
    R: Future<Output = Result<Next, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let started = Instant::now();
    let task = match ferrokube_trace::current() {
        Some(context) => {
            tokio::spawn(ferrokube_trace::scoped(context, tracing::Span::current(), work))
        }
        None => tokio::spawn(work),
    };
    let _abort = AbortOnDrop(task.abort_handle());
    let error: Box<dyn Error + Send + Sync> = match task.await {
        Ok(Ok(next)) => {
            failures.outage.lock().works();
            tracing::debug!(controller, key, took_us = started.elapsed().as_micros(), "reconciled");
            return Ok(next);
        }
        Ok(Err(error)) => error.into(),
        Err(join) => format!("reconcile panicked: {join}").into(),
    };
    if failures.level(&*error) == Level::WARN {
        tracing::warn!(controller, key, error = %error, "reconcile failed, retrying");
    } else {
        tracing::debug!(controller, key, error = %error, "reconcile failed, retrying");
    }
    Err(())
}

/// Errors that a controller warned of: thousands of keys may fail for one reason.
#[derive(Default)]
struct RecentWarnings {
    since: Option<Instant>,
    /// Hashes of the errors.
    errors: HashSet<u64>,
}

impl RecentWarnings {
    /// Whether to warn of the error; counts as done.
    fn is_new(&mut self, error: &str, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= WARN_PERIOD) {
            self.since = Some(now);
            self.errors.clear();
        }
        let mut hasher = DefaultHasher::new();
        error.hash(&mut hasher);
        self.errors.len() < MAX_WARNINGS && self.errors.insert(hasher.finish())
    }
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
    fn pop(&mut self, now: Instant, group: fn(&K) -> u32) -> Result<K, Option<Instant>> {
        let mut next = None;
        let mut due = Vec::new();
        for (when, number, key) in &self.due {
            if *when > now {
                next = Some(*when);
                break;
            }
            if !self.active.contains(key) {
                due.push((*when, *number, key.clone()));
            }
        }
        for position in due {
            self.due.remove(&position);
            let group = group(&position.2);
            let keys = self.ready.entry(group).or_default();
            if keys.is_empty() {
                self.turns.push_back(group);
            }
            keys.push_back(position.2);
        }
        let Some(group) = self.turns.pop_front() else { return Err(next) };
        let keys = self.ready.get_mut(&group).expect("a group with a turn has keys");
        let key = keys.pop_front().expect("a group with a turn has keys");
        if keys.is_empty() {
            self.ready.remove(&group);
        } else {
            self.turns.push_back(group);
        }
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
        let (active, runs) =
            (Arc::new(Mutex::new(HashSet::new())), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..5 {
            queue.add(1, None);
            queue.add(2, None);
        }
        let work = {
            let (active, runs) = (active.clone(), runs.clone());
            move |key: u32, _: &ReconcileTrace| {
                let (active, runs) = (active.clone(), runs.clone());
                async move {
                    assert!(active.lock().insert(key), "two workers on one key");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    active.lock().remove(&key);
                    runs.lock().push(key);
                    Ok::<_, String>(Next::Done)
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), queue.run("test", 4, work)).await;
        let mut seen = runs.lock().clone();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn groups_take_turns() {
        let queue: WorkQueue<u32> = WorkQueue::in_turns(|key| key / 1_000);
        (1_000..2_000).for_each(|key| queue.add(key, None));
        let mut taken = vec![queue.take().await.0];
        for key in [2_000, 3_000, 2_001] {
            queue.add(key, None);
        }
        for _ in 0..7 {
            taken.push(queue.take().await.0);
        }
        assert_eq!(taken, [1_000, 1_001, 2_000, 3_000, 1_002, 2_001, 1_003, 1_004]);
        assert_eq!(queue.len(), 1_003, "those in process, too");
        // Not while it is in process.
        queue.add_after(1_000, None, Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(queue.take().await.0, 1_005);
        queue.finish(1_000, Vec::new(), &Ok::<_, String>(Next::Done));
        let mut rest = Vec::new();
        while let Ok((key, _)) = tokio::time::timeout(Duration::from_secs(1), queue.take()).await {
            rest.push(key);
        }
        assert_eq!((rest.len(), rest.last()), (995, Some(&1_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_thousands_of_keys_is_one_warning() {
        let mut warned = RecentWarnings::default();
        let mut times = |errors: usize| {
            (0..8_000)
                .filter(|number| {
                    warned.is_new(&format!("unknown kind {}", number % errors), Instant::now())
                })
                .count()
        };
        assert_eq!((times(1), times(1), times(3), times(8_000)), (1, 0, 2, MAX_WARNINGS - 3));
        tokio::time::advance(WARN_PERIOD).await;
        assert!(warned.is_new("unknown kind 0", Instant::now()));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot list")]
    struct Caused(#[source] kube::Error);

    #[test]
    fn an_unanswered_request_feeds_the_outage_and_never_warns_on_its_own_line() {
        let failures = Failures::of("an_outage_of_this_test");
        let unanswered = || kube::Error::Service("client error (Connect)".into());
        assert!(!failures.outage.lock().works(), "no failure yet");
        assert_eq!(failures.level(&unanswered()), Level::DEBUG, "also the first one");
        assert_eq!(failures.level(&unanswered()), Level::DEBUG);
        assert!(failures.outage.lock().works(), "its end is logged, so it was");
        assert_eq!(failures.level(&Caused(unanswered())), Level::DEBUG, "also as a cause");
        assert!(failures.outage.lock().works());
        let refused = std::io::Error::other("forbidden");
        assert_eq!([(); 2].map(|()| failures.level(&refused)), [Level::WARN, Level::DEBUG]);
        assert!(!failures.outage.lock().works(), "a refusal is no outage");
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
                assert_eq!(
                    trace.context().map(|context| context.trace_id),
                    Some(cause.trace_id),
                    "also on the retry"
                );
                let times = times.clone();
                async move {
                    times.lock().push(Instant::now());
                    assert!(times.lock().len() < 100);
                    if times.lock().len() % 2 == 0 {
                        panic!("on purpose")
                    }
                    Err::<Next, _>("no".to_owned())
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(10), queue.run("test", 1, work)).await;
        let times = times.lock();
        assert!((8..=12).contains(&times.len()), "{} attempts in 10 s", times.len());
        assert!(times[5] - times[4] > times[1] - times[0]);
    }
}
