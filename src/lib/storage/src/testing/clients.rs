//! Clients of several stores, whose doings a [`ClientRecorder`] notes.

use super::judge::{
    Acknowledgement, ClientRecorder, JudgedEvent, JudgedWrite, SeenValue, WatchRecord,
};
use super::{Dice, PUT_EPOCH, commit, delete, key, text, write};
use crate::remote::relying;
use crate::{CommitError, Guard, Key, Prefix, Revision, Store, Topic, Txn, WatchError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

const RESOURCE: &str = "configmaps";
/// Start of the name of keys whose first event ends every watch.
const LAST: &str = "zz-last";

/// Milliseconds within which clients continue after a rest.
const AWAKENING_MS: usize = 50;

/// Operations of the clients.
#[derive(Clone, Copy, Debug)]
pub struct ClientLoad {
    /// Clients of each store.
    pub clients: usize,
    /// Keys that they share.
    pub keys: usize,
    /// Operations of each client; more are done until [`RunningClients::finish`].
    pub operations: usize,
    /// Seed of what they do.
    pub seed: u64,
}

/// Clients and watches at work.
pub struct RunningClients {
    stores: Vec<Store>,
    /// Their operations.
    pub recorder: ClientRecorder,
    is_over: Arc<AtomicBool>,
    is_resting: watch::Sender<bool>,
    clients: JoinSet<()>,
    watches: JoinSet<()>,
}

impl RunningClients {
    /// Starts them, with a watch on each store, and one of a topic. The stores' state is empty.
    pub fn start(stores: &[Store], load: ClientLoad) -> Self {
        let recorder = ClientRecorder::default();
        let is_over = Arc::new(AtomicBool::new(load.operations > 0));
        let is_resting = watch::Sender::new(false);
        let (mut clients, mut watches) = (JoinSet::new(), JoinSet::new());
        for (index, store) in stores.iter().enumerate() {
            for is_of_topic in [false, true] {
                watches.spawn(follow(index, store.clone(), recorder.clone(), is_of_topic));
            }
            for number in 0..load.clients {
                let client = StoreClient {
                    store: (index, store.clone()),
                    number,
                    load,
                    recorder: recorder.clone(),
                    is_over: Arc::clone(&is_over),
                    is_resting: is_resting.subscribe(),
                };
                clients.spawn(client.run());
            }
        }
        Self { stores: stores.to_vec(), recorder, is_over, is_resting, clients, watches }
    }

    /// Lets the clients do nothing for a while, after which a store may have claimed its engine.
    pub async fn rest(&self, time: Duration) {
        self.is_resting.send_replace(true);
        tokio::time::sleep(time).await;
        self.is_resting.send_replace(false);
    }

    /// Lets the clients end, then ends all watches by a last event. Returns what contradicts the
    /// history, which `history` gives up to that event.
    ///
    /// # Panics
    /// If a client or a watch does.
    pub async fn finish(
        mut self,
        history: impl AsyncFnOnce(Revision) -> Vec<JudgedEvent>,
    ) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        let last = self.write_last().await;
        while let Some(ended) = self.watches.join_next().await {
            ended.unwrap();
        }
        let history = history(last).await;
        let mut violations = self.recorder.violations(&history);
        for (index, store) in self.stores.iter().enumerate() {
            violations.extend(differing(index, store, &history));
        }
        violations
    }

    async fn write_last(&self) -> Revision {
        let mut number = 0;
        loop {
            number += 1;
            let object = key(RESOURCE, "ns", &format!("{LAST}-{number}"));
            // Of the topic.
            let (began, text) = (self.recorder.now(), format!("last-{number:05}"));
            let outcome = commit(&self.stores[0], write(&object, &text)).await;
            let outcome = acknowledgement(outcome.map(|done| done.revision).as_ref());
            let done = JudgedWrite { text: Some(text), guard: None, outcome };
            self.recorder.write(0, began, &object, done);
            if let Acknowledgement::Written(revision) = outcome {
                return revision;
            }
        }
    }
}

fn acknowledgement(outcome: Result<&Revision, &CommitError>) -> Acknowledgement {
    match outcome {
        Ok(revision) => Acknowledgement::Written(*revision),
        Err(CommitError::Unknown(_)) => Acknowledgement::Unknown,
        Err(CommitError::Failed(why)) => panic!("the store failed: {why}"),
        Err(_) => Acknowledgement::Refused,
    }
}

/// One of the keys that all share.
fn object_key(number: usize) -> Key {
    key(RESOURCE, "ns", &format!("k{number}"))
}

struct StoreClient {
    store: (usize, Store),
    number: usize,
    load: ClientLoad,
    recorder: ClientRecorder,
    is_over: Arc<AtomicBool>,
    is_resting: watch::Receiver<bool>,
}

impl StoreClient {
    async fn run(mut self) {
        let own = (self.store.0 * self.load.clients + self.number) as u64;
        let mut dice = Dice::new(self.load.seed * 1000 + own + 1);
        let mut number = 0;
        while number < self.load.operations || !self.is_over.load(Ordering::Relaxed) {
            number += 1;
            if *self.is_resting.borrow() {
                let _ = self.is_resting.wait_for(|is_resting| !is_resting).await;
                tokio::time::sleep(Duration::from_millis(dice.below(AWAKENING_MS) as u64)).await;
            }
            let object = object_key(dice.below(self.load.keys));
            match dice.below(9) {
                0..4 => self.read(&object).await,
                4 => self.request(self.write(&object, None)).await,
                5 => self.request(tokio::task::yield_now()).await,
                _ => {
                    let text = format!("c{own}-{number}");
                    self.request(self.write(&object, Some(text))).await;
                }
            }
        }
    }

    async fn read(&self, object: &Key) {
        let (index, store) = &self.store;
        let began = self.recorder.now();
        if let Some(barrier) = store.barrier()
            && barrier.await.is_err()
        {
            // Writers of an engine that is down fail at once, too.
            return tokio::task::yield_now().await;
        }
        self.recorder.read(*index, began, object, self.seen(object));
    }

    fn seen(&self, object: &Key) -> SeenValue {
        self.store.1.get(object).map(|entry| (entry.revision, text(&entry)))
    }

    /// A request that may write. While the store writes alone, it reads all keys before that,
    /// without a barrier, as a request reads rights.
    async fn request(&self, request: impl Future<Output = ()>) {
        let (index, store) = &self.store;
        let began = self.recorder.now();
        let Some(reliance) = store.rely() else {
            return request.await;
        };
        let keys: Vec<Key> = (0..self.load.keys).map(object_key).collect();
        let seen: Vec<SeenValue> = keys.iter().map(|key| self.seen(key)).collect();
        relying(Arc::clone(&reliance), request).await;
        if !reliance.is_proven()
            && let Some(barrier) = store.uphold(reliance)
            && barrier.await.is_err()
        {
            return;
        }
        for (key, seen) in keys.iter().zip(seen) {
            self.recorder.read(*index, began, key, seen);
        }
    }

    /// Writes on the head that this store has, which may be outdated.
    async fn write(&self, object: &Key, value: Option<String>) {
        let (index, store) = &self.store;
        let began = self.recorder.now();
        let head = store.get(object).map(|entry| entry.revision);
        let guard = match head {
            Some(revision) => Guard::At(object.clone(), revision),
            None => Guard::Absent(object.clone()),
        };
        let txn = match &value {
            Some(value) => write(object, value),
            None if head.is_none() => return tokio::task::yield_now().await,
            None => delete(object),
        };
        let Ok(ticket) = store.submit(Txn { guards: vec![guard], ..txn }) else {
            return tokio::task::yield_now().await;
        };
        let outcome = ticket.committed().await.map(|done| done.revision);
        let outcome = acknowledgement(outcome.as_ref());
        self.recorder.write(
            *index,
            began,
            object,
            JudgedWrite { text: value, guard: head, outcome },
        );
    }
}

/// Watches until the last event; starts over when the history is gone.
async fn follow(index: usize, store: Store, recorder: ClientRecorder, is_of_topic: bool) {
    let prefix = Prefix::new(RESOURCE).unwrap();
    let is_last = |key: &Key| key.name().starts_with(LAST);
    loop {
        let after = store.revision();
        let snapshot = store.snapshot(&prefix);
        if snapshot.range(None, None).any(|entry| is_last(&entry.key) && entry.revision <= after) {
            return;
        }
        let topic = match is_of_topic {
            true => Topic::field(PUT_EPOCH, 0, ""),
            false => Topic::everything(),
        };
        let mut cursor = store.watch_topic(&prefix, topic, after).unwrap();
        let (until, events) = (None, Vec::new());
        let mut record = WatchRecord { store: index, is_of_topic, after, until, events };
        let is_compacted = loop {
            match cursor.next(16).await {
                Ok(events) => record.events.extend(events.iter().map(JudgedEvent::new)),
                Err(WatchError::Compacted(_)) => break true,
                Err(error) => panic!("{error}"),
            }
            if record.events.iter().rev().take(16).any(|event| is_last(&event.key)) {
                break false;
            }
        };
        recorder.watch(record);
        if !is_compacted {
            return;
        }
    }
}

/// A store whose state is not what the history leads to.
fn differing(index: usize, store: &Store, history: &[JudgedEvent]) -> Option<String> {
    let mut expected = std::collections::BTreeMap::new();
    for JudgedEvent { key, revision, text } in history {
        match text {
            Some(text) => _ = expected.insert(key.clone(), (*revision, text.clone())),
            None => _ = expected.remove(key),
        }
    }
    let snapshot = store.snapshot(&Prefix::new(RESOURCE).unwrap());
    let found: std::collections::BTreeMap<Key, (Revision, String)> = snapshot
        .range(None, None)
        .map(|entry| (entry.key.clone(), (entry.revision, text(entry))))
        .collect();
    (found != expected).then(|| format!("store {index} has {found:?}, not {expected:?}"))
}
