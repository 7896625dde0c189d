//! Watches of topics: a topic's events, all of them, and none costs a watch of another topic.

use crate::load::{block_on, open};
use ferrokube_storage::testing::{
    CheckedTopic, Dice, SimDisk, TopicWatches, commit, delete, hold, key, put, release, settle,
    text, write,
};
use ferrokube_storage::{
    Config, Cursor, Entry, Event, Prefix, Put, Sidecar, Store, Topic, Txn, WatchError, Write,
};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

const EPOCH: u32 = 7;

/// A pod, whose first selectable field is its node.
fn pod(namespace: &str, name: &str, node: &str, epoch: u32) -> Put {
    let put = put(&key("pods", namespace, name), node);
    let fields = [node.into()].into_iter().collect();
    let sidecar = Sidecar { fields, schema_epoch: epoch, ..put.sidecar };
    Put { sidecar, ..put }
}

fn on_node(name: &str, node: &str) -> Txn {
    Txn { guards: Vec::new(), writes: vec![Write::Put(pod("ns", name, node, EPOCH))] }
}

fn of_node(node: &str) -> Topic {
    Topic::field(EPOCH, 0, node)
}

fn pods() -> Prefix {
    Prefix::new("pods").unwrap()
}

/// Every kind of topic, with what it means.
fn topics() -> Vec<CheckedTopic> {
    let of = |node: &'static str| {
        let is_on = move |entry: &Entry| entry.sidecar.schema_epoch != EPOCH || text(entry) == node;
        CheckedTopic::new(of_node(node), is_on)
    };
    CheckedTopic::by_key().into_iter().chain(["", "n1", "n2"].map(of)).collect()
}

/// Writes a batch: creates, binds, moves, updates and deletes.
async fn change(store: &Store, dice: &mut Dice) {
    hold(store);
    let mut tickets = Vec::new();
    for _ in 0..=dice.below(4) {
        let (namespace, name) = (["a", "b"][dice.below(2)], format!("n{}", dice.below(4)));
        let epoch = if dice.below(12) == 0 { EPOCH + 1 } else { EPOCH };
        let put = pod(namespace, &name, ["", "n1", "n2", "n3"][dice.below(4)], epoch);
        let key = put.key.clone();
        let write = match dice.below(6) {
            0 if store.pending(&key).is_some() => Write::Delete { key, last: None },
            1 if store.pending(&key).is_some() => Write::Delete { key, last: Some(put) },
            _ => Write::Put(put),
        };
        tickets.push(store.submit(Txn { guards: Vec::new(), writes: vec![write] }).unwrap());
    }
    if dice.below(3) == 0 {
        tickets.push(store.submit(write(&key("secrets", "a", "s"), "v")).unwrap());
    }
    release(store);
    for ticket in tickets {
        ticket.committed().await.unwrap();
    }
}

async fn compare(store: &Store, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut watches = TopicWatches::start(store, &pods(), topics());
    for _ in 0..80 {
        change(store, &mut dice).await;
        watches.step(store, &mut dice).await;
    }
    assert!(watches.finish(store).await > 80);
}

/// Also while most of the history is in the journal, or gone.
#[test]
fn a_watch_of_a_topic_is_the_filtered_history() {
    block_on(async {
        for seed in 0..16 {
            let store = Store::open(Config::memory()).unwrap();
            compare(&store, seed).await;
            store.close().await;
            let store = Store::open(Config { history_bytes: 4000, ..Config::memory() }).unwrap();
            compare(&store, seed).await;
            store.close().await;
            let store = open(&SimDisk::default()).unwrap();
            compare(&store, seed).await;
            store.close().await;
        }
    });
}

/// A watch that is never woken keeps its place.
#[test]
fn an_idle_topic_is_not_compacted_by_others() {
    block_on(async {
        let store = Store::open(Config { history_bytes: 4000, ..Config::memory() }).unwrap();
        let mut idle = store.watch_topic(&pods(), of_node("n1"), store.revision()).unwrap();
        let mut behind = store.watch(&pods(), store.revision()).unwrap();
        for number in 0..200 {
            commit(&store, on_node(&format!("p{number}"), "n2")).await.unwrap();
        }
        assert_eq!(idle.bookmark(), Some(store.revision()));
        let bound = commit(&store, on_node("p7", "n1")).await.unwrap();
        assert_eq!(idle.bookmark(), None);
        let events = idle.next(10).await.unwrap();
        assert_eq!(events.iter().map(Event::revision).collect::<Vec<_>>(), [bound.revision]);
        assert_eq!(idle.bookmark(), Some(store.revision()));
        assert!(matches!(behind.next(10).await, Err(WatchError::Compacted(_))), "read nothing");
        store.close().await;
        assert!(matches!(idle.next(10).await, Err(WatchError::Closed)));
    });
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct CursorWakes(AtomicUsize);

impl Wake for CursorWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type NextEvents = Pin<Box<dyn Future<Output = (Cursor, Vec<Event>)>>>;

/// A task that waits for events.
struct Waiting {
    woken: Arc<CursorWakes>,
    next: NextEvents,
}

fn next(mut cursor: Cursor) -> NextEvents {
    Box::pin(async move {
        let events = cursor.next(1000).await.unwrap();
        (cursor, events)
    })
}

impl Waiting {
    fn start(store: &Store, topic: Topic) -> Self {
        let cursor = store.watch_topic(&pods(), topic, store.revision()).unwrap();
        let mut waiting = Self { woken: Arc::default(), next: next(cursor) };
        assert_eq!(waiting.run(), 0);
        waiting
    }

    /// Runs until it waits. Returns the number of events.
    fn run(&mut self) -> usize {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut seen = 0;
        while let Poll::Ready((cursor, events)) =
            self.next.as_mut().poll(&mut Context::from_waker(&waker))
        {
            seen += events.len();
            self.next = next(cursor);
        }
        seen
    }

    fn woken(&self) -> usize {
        self.woken.0.swap(0, Ordering::SeqCst)
    }
}

/// Indexes of the watches that were woken, each once.
fn woken(watches: &[Waiting], store: &Store) -> Vec<usize> {
    settle(store);
    let woken: Vec<usize> = watches.iter().map(Waiting::woken).collect();
    assert!(woken.iter().all(|count| *count <= 1), "{woken:?}");
    (0..watches.len()).filter(|at| woken[*at] == 1).collect()
}

#[test]
fn an_event_of_one_node_wakes_no_watch_of_another() {
    block_on(async {
        let store = Store::open(Config::memory()).unwrap();
        let nodes = (0..1000).map(|node| of_node(&format!("n{node}")));
        let named = (0..1000).map(|name| Topic::key(&format!("ns/p{name}")));
        let mut watches: Vec<Waiting> =
            nodes.chain(named).map(|topic| Waiting::start(&store, topic)).collect();
        commit(&store, on_node("p3", "n5")).await.unwrap();
        assert_eq!(woken(&watches, &store), [5, 1003]);
        assert_eq!([5, 1003].map(|at: usize| watches[at].run()), [1, 1]);
        commit(&store, on_node("p3", "n6")).await.unwrap();
        assert_eq!(woken(&watches, &store), [5, 6, 1003], "the old node, the new one, the name");
        assert_eq!([5, 6, 1003].map(|at: usize| watches[at].run()), [1, 1, 1]);
        commit(&store, delete(&key("pods", "ns", "p3"))).await.unwrap();
        assert_eq!(woken(&watches, &store), [6, 1003]);
        commit(&store, write(&key("secrets", "ns", "p3"), "v")).await.unwrap();
        commit(&store, on_node("other", "elsewhere")).await.unwrap();
        assert_eq!(woken(&watches, &store), [0; 0], "no watch of it");
        let sum: usize = watches.iter_mut().map(Waiting::run).sum();
        assert_eq!(sum, 2, "and none has others' events");
        store.close().await;
    });
}

#[test]
fn a_task_that_has_not_run_is_not_woken_twice() {
    block_on(async {
        let store = Store::open(Config::memory()).unwrap();
        let topics = [Topic::everything(), of_node("n1"), Topic::namespace("ns")];
        let mut watches: Vec<Waiting> =
            topics.into_iter().map(|topic| Waiting::start(&store, topic)).collect();
        for number in 0..100 {
            commit(&store, on_node(&format!("p{number}"), "n1")).await.unwrap();
        }
        assert_eq!(woken(&watches, &store), [0, 1, 2]);
        for watch in &mut watches {
            assert_eq!(watch.run(), 100);
        }
        store.close().await;
        assert_eq!(woken(&watches, &store), [0, 1, 2], "the end wakes all");
    });
}
