//! The work queue of a reconciler: each key once, never two workers on one key, failures back off.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The first delay after a failure; doubles with each further one.
const BACKOFF: Duration = Duration::from_millis(10);
/// The longest delay after failures.
const MAX_BACKOFF: Duration = Duration::from_secs(120);

/// What a reconcile asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until the next wake-up.
    Done,
    /// Another look after this long, without counting as a failure.
    After(Duration),
}

/// A key that can be queued.
pub trait Key: Clone + Eq + Ord + Hash + Debug + Send + 'static {}
impl<T: Clone + Eq + Ord + Hash + Debug + Send + 'static> Key for T {}

/// A queue of keys. Cheap to clone. It is bounded by the number of distinct keys.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    /// Waiting keys by the time at which they are due; the number keeps the order of equal times.
    due: BTreeSet<(Instant, u64, K)>,
    /// Where each waiting key stands in `due`.
    waiting: HashMap<K, (Instant, u64)>,
    active: HashSet<K>,
    /// Woken while active: due again as soon as the worker ends.
    again: HashSet<K>,
    failures: HashMap<K, u32>,
    number: u64,
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        let state = State { due: BTreeSet::new(), waiting: HashMap::new(), active: HashSet::new(), again: HashSet::new(), failures: HashMap::new(), number: 0 };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }) }
    }
}

impl<K: Key> Queue<K> {
    /// Queues a key now; does nothing if it waits already, unless it waits for later.
    pub fn add(&self, key: K) {
        self.add_at(key, Instant::now());
    }

    /// Queues a key for later; an earlier time stands.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.add_at(key, Instant::now() + delay);
    }

    fn add_at(&self, key: K, when: Instant) {
        let mut state = self.shared.state.lock().expect("no panic while held");
        if state.active.contains(&key) && when <= Instant::now() {
            state.again.insert(key);
            return;
        }
        state.put(key, when);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// How many keys wait or are worked on.
    pub fn len(&self) -> usize {
        let state = self.shared.state.lock().expect("no panic while held");
        state.waiting.len() + state.active.len()
    }

    /// Whether nothing waits and nobody works.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the next due key. Cancel safe.
    async fn take(&self) -> K {
        loop {
            let wait = {
                let mut state = self.shared.state.lock().expect("no panic while held");
                match state.pop(Instant::now()) {
                    Ok(key) => return key,
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

    fn finish<E>(&self, key: K, result: &Result<Next, E>) {
        let mut state = self.shared.state.lock().expect("no panic while held");
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
                Some(BACKOFF.saturating_mul(1 << (*failures - 1).min(14)).min(MAX_BACKOFF))
            }
        };
        // A wake-up during a failed attempt must not defeat the back-off.
        let delay = if again && result.is_ok() { Some(Duration::ZERO) } else { delay };
        if let Some(delay) = delay {
            state.put(key, Instant::now() + delay);
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Runs `reconcile` for every key, up to `workers` at a time, until this future is dropped. A panic counts as a failure.
    pub async fn run<F, R, E>(&self, name: &'static str, workers: usize, reconcile: F)
    where
        F: Fn(K) -> R,
        R: Future<Output = Result<Next, E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let mut running: JoinSet<()> = JoinSet::new();
        loop {
            while running.len() >= workers {
                running.join_next().await;
            }
            let key = tokio::select! {
                key = self.take() => key,
                Some(_) = running.join_next() => continue,
            };
            let task = tokio::spawn(reconcile(key.clone()));
            let (queue, abort) = (self.clone(), AbortOnDrop(task.abort_handle()));
            running.spawn(async move {
                let _abort = abort;
                let result = match task.await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(join) => Err(format!("the reconcile ended: {join}")),
                };
                if let Err(error) = &result {
                    tracing::warn!(controller = name, key = ?key, error = %error, "reconcile failed, will try again");
                }
                queue.finish(key, &result);
            });
        }
    }
}

/// Ends a reconcile whose queue is dropped (shutdown, lost leadership).
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<K: Key> State<K> {
    fn put(&mut self, key: K, when: Instant) {
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

    /// The next due key that nobody works on, or when to look again.
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
        let queue: Queue<u32> = Queue::default();
        let (active, runs) = (Arc::new(Mutex::new(HashSet::new())), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..5 {
            queue.add(1);
            queue.add(2);
        }
        let work = {
            let (active, runs) = (active.clone(), runs.clone());
            move |key: u32| {
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
    async fn failures_back_off_and_a_panic_is_a_failure() {
        let queue: Queue<&'static str> = Queue::default();
        queue.add("bad");
        let times = Arc::new(Mutex::new(Vec::new()));
        let work = {
            let times = times.clone();
            move |_| {
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
