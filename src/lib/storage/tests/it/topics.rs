//! Watches of topics: a topic's events, all of them, and none costs a watch of another topic.

use crate::load::{block_on, open};
use ferrokube_storage::testing::{
    Dice, SimDisk, commit, delete, hold, key, put, release, settle, text, write,
};
use ferrokube_storage::{
    Config, Cursor, Entry, Event, Prefix, Put, Revision, Sidecar, Store, Topic, Txn, WatchError,
    Write,
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

type NaiveTopic = Box<dyn Fn(&Entry) -> bool>;

/// Every kind of topic, with what it means.
fn topics() -> Vec<(Topic, NaiveTopic)> {
    let mut topics: Vec<(Topic, NaiveTopic)> = vec![
        (Topic::everything(), Box::new(|_| true)),
        (Topic::namespace("a"), Box::new(|entry| entry.key.namespace() == Some("a"))),
        (Topic::name("p1"), Box::new(|entry| entry.key.name() == "p1")),
        (Topic::key("b/p2"), Box::new(|entry| entry.key.as_str().ends_with("/pods/b/p2"))),
        (Topic::key("b/none"), Box::new(|_| false)),
    ];
    for node in ["", "n1", "n2"] {
        let is_on = move |entry: &Entry| entry.sidecar.schema_epoch != EPOCH || text(entry) == node;
        topics.push((of_node(node), Box::new(is_on)));
    }
    topics
}

/// A watch of a topic, compared with the whole history.
struct TopicWatch {
    topic: Topic,
    is_of: NaiveTopic,
    cursor: Cursor,
    /// Number of events of the whole history that it has passed.
    passed: usize,
    /// Whether it had returned everything, and has returned nothing since.
    is_idle: bool,
    bookmark: Revision,
}

fn same(event: &Event) -> (Revision, bool, &str, Option<Revision>) {
    let previous = event.previous.as_ref().map(|previous| previous.revision);
    (event.revision(), event.deleted, event.entry.key.as_str(), previous)
}

impl TopicWatch {
    fn start((topic, is_of): (Topic, NaiveTopic), store: &Store) -> Self {
        let cursor = store.watch_topic(&pods(), topic.clone(), store.revision()).unwrap();
        Self { topic, is_of, cursor, passed: 0, is_idle: true, bookmark: store.revision() }
    }

    fn concerns(&self, event: &Event) -> bool {
        (self.is_of)(&event.entry) || event.previous.as_deref().is_some_and(&self.is_of)
    }

    /// Index of the next event that it has to return.
    fn expected(&self, history: &[Event]) -> Option<usize> {
        (self.passed..history.len()).find(|at| self.concerns(&history[*at]))
    }

    async fn read(&mut self, store: &Store, history: &[Event], max: usize) {
        let Some(first) = self.expected(history) else {
            let mut next = std::pin::pin!(self.cursor.next(max));
            let polled = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(
                !matches!(polled, Poll::Ready(Ok(_))),
                "{:?} has no event after {:?}",
                self.topic,
                history.last().map(Event::revision)
            );
            return;
        };
        match self.cursor.next(max).await {
            Ok(events) => {
                assert!((1..=max).contains(&events.len()), "{} of {max}", events.len());
                for event in events {
                    let at = self.expected(history).expect("no more events than there are");
                    assert_eq!(same(&event), same(&history[at]), "of {:?}", self.topic);
                    self.passed = at + 1;
                }
                self.is_idle = false;
            }
            Err(WatchError::Compacted(at)) => {
                let floor = store.history(&pods()).watched;
                assert!(at < floor, "{at} is compacted, but history begins at {floor}");
                if self.is_idle {
                    let missed = history[first].revision();
                    assert!(missed <= floor, "{missed} is there, others do not matter");
                }
                self.resume(store, history, store.revision());
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn resume(&mut self, store: &Store, history: &[Event], after: Revision) {
        let whole = store.watch(&pods(), after).map(drop);
        match (store.watch_topic(&pods(), self.topic.clone(), after), whole) {
            (Ok(cursor), Ok(())) => self.cursor = cursor,
            (Err(_), Err(WatchError::Compacted(_))) => return,
            (cursor, whole) => panic!("{:?}, {whole:?} after {after}", cursor.map(drop)),
        }
        self.passed = history.partition_point(|event| event.revision() <= after);
        self.is_idle = self.passed == history.len();
        self.bookmark = after;
    }

    fn mark(&mut self, history: &[Event]) {
        let Some(bookmark) = self.cursor.bookmark() else { return };
        assert!(bookmark >= self.bookmark, "bookmarks do not go back");
        assert_eq!(self.expected(history), None, "bookmark {bookmark} of {:?}", self.topic);
        (self.bookmark, self.is_idle) = (bookmark, true);
    }
}

/// Writes a batch: creates, binds, moves, updates and deletes.
async fn change(store: &Store, dice: &mut Dice) {
    hold(store);
    let mut tickets = Vec::new();
    for _ in 0..=dice.below(4) {
        let (namespace, name) = (["a", "b"][dice.below(2)], format!("p{}", dice.below(4)));
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
    let mut whole = store.watch(&pods(), store.revision()).unwrap();
    let mut watches: Vec<TopicWatch> =
        topics().into_iter().map(|topic| TopicWatch::start(topic, store)).collect();
    let mut history = Vec::new();
    for _ in 0..80 {
        change(store, &mut dice).await;
        while whole.bookmark().is_none() {
            history.extend(whole.next(64).await.unwrap());
        }
        for watch in &mut watches {
            match dice.below(12) {
                0..4 => watch.read(store, &history, 1 + dice.below(5)).await,
                4..7 => watch.mark(&history),
                7 => {
                    let at = history[dice.below(history.len())].revision();
                    watch.resume(store, &history, at);
                }
                8 => watch.resume(store, &history, watch.bookmark),
                _ => {}
            }
        }
    }
    for watch in &mut watches {
        while watch.expected(&history).is_some() {
            watch.read(store, &history, 3).await;
            watch.mark(&history);
        }
    }
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
