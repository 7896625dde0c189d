//! Watches of topics, compared with the whole history of their resource.

use super::{Dice, PUT_EPOCH, has_fields, text};
use crate::{Cursor, Entry, Event, Prefix, Revision, Store, Topic, WatchError};
use std::task::{Context, Poll, Waker};

type NaiveTopic = Box<dyn Fn(&Entry) -> bool + Send + Sync>;

/// A topic, with what it means.
pub struct CheckedTopic {
    /// For cursors.
    pub topic: Topic,
    is_of: NaiveTopic,
}

impl CheckedTopic {
    /// `is_of` tells whether a value is of the topic.
    pub fn new(topic: Topic, is_of: impl Fn(&Entry) -> bool + Send + Sync + 'static) -> Self {
        Self { topic, is_of: Box::new(is_of) }
    }

    /// A topic of each kind that does not depend on fields.
    pub fn by_key() -> Vec<Self> {
        vec![
            Self::new(Topic::everything(), |_| true),
            Self::new(Topic::namespace("a"), |entry| entry.key.namespace() == Some("a")),
            Self::new(Topic::name("n1"), |entry| entry.key.name() == "n1"),
            Self::new(Topic::key("b/n2"), |entry| entry.key.as_str().ends_with("/b/n2")),
            Self::new(Topic::key("b/none"), |_| false),
        ]
    }

    /// The topic of the first field of values made by [`super::put`].
    pub fn by_field(value: &'static str) -> Self {
        let is_of = move |entry: &Entry| {
            let text = text(entry);
            if has_fields(&text) { text == value } else { value.is_empty() }
        };
        Self::new(Topic::field(PUT_EPOCH, 0, value), is_of)
    }

    /// Whether an event belongs to the topic, by the values before and after it.
    pub fn concerns(&self, event: &Event) -> bool {
        (self.is_of)(&event.entry) || event.previous.as_deref().is_some_and(&self.is_of)
    }

    /// Whether the object of an event was of the topic before it, and no longer is.
    pub fn is_left(&self, event: &Event) -> bool {
        !(self.is_of)(&event.entry) && self.concerns(event)
    }
}

/// Seeded bug, which a checker must find: a watch does not learn of its unread events.
pub fn miss(cursor: &Cursor) {
    cursor.miss();
}

/// Watches of several topics, and one of everything.
pub struct TopicWatches {
    prefix: Prefix,
    whole: Cursor,
    history: Vec<Event>,
    watches: Vec<TopicWatch>,
}

impl TopicWatches {
    /// Watches from now on.
    pub fn start(store: &Store, prefix: &Prefix, topics: Vec<CheckedTopic>) -> Self {
        let start = |checked: CheckedTopic| {
            let now = store.revision();
            let cursor = store.watch_topic(prefix, checked.topic.clone(), now).unwrap();
            TopicWatch { checked, cursor, passed: 0, is_idle: true, bookmark: now }
        };
        Self {
            prefix: prefix.clone(),
            whole: store.watch(prefix, store.revision()).unwrap(),
            history: Vec::new(),
            watches: topics.into_iter().map(start).collect(),
        }
    }

    /// Reads the history, and lets some watches read, take a bookmark, or start again.
    pub async fn step(&mut self, store: &Store, dice: &mut Dice) {
        while self.whole.bookmark().is_none() {
            self.history.extend(self.whole.next(64).await.unwrap());
        }
        let past = PastEvents { store, prefix: &self.prefix, events: &self.history };
        for watch in &mut self.watches {
            match dice.below(12) {
                0..4 => watch.read(&past, 1 + dice.below(5)).await,
                4..7 => watch.mark(&past),
                7 if !past.events.is_empty() => {
                    let at = past.events[dice.below(past.events.len())].revision();
                    watch.resume(&past, at);
                }
                8 => watch.resume(&past, watch.bookmark),
                _ => {}
            }
        }
    }

    /// Lets all watches read the rest. Returns the number of events of the whole history.
    pub async fn finish(mut self, store: &Store) -> usize {
        let past = PastEvents { store, prefix: &self.prefix, events: &self.history };
        for watch in &mut self.watches {
            while watch.expected(&past).is_some() {
                watch.read(&past, 3).await;
                watch.mark(&past);
            }
        }
        self.history.len()
    }
}

/// All events so far.
struct PastEvents<'a> {
    store: &'a Store,
    prefix: &'a Prefix,
    events: &'a [Event],
}

struct TopicWatch {
    checked: CheckedTopic,
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
    /// Index of the next event that it has to return.
    fn expected(&self, past: &PastEvents<'_>) -> Option<usize> {
        (self.passed..past.events.len()).find(|at| self.checked.concerns(&past.events[*at]))
    }

    async fn read(&mut self, past: &PastEvents<'_>, max: usize) {
        let topic = &self.checked.topic;
        let Some(first) = self.expected(past) else {
            let mut next = std::pin::pin!(self.cursor.next(max));
            let polled = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let last = past.events.last().map(Event::revision);
            assert!(!matches!(polled, Poll::Ready(Ok(_))), "{topic:?} has no event after {last:?}");
            return;
        };
        match self.cursor.next(max).await {
            Ok(events) => {
                assert!((1..=max).contains(&events.len()), "{} of {max}", events.len());
                for event in events {
                    let at = self.expected(past).expect("no more events than there are");
                    assert_eq!(same(&event), same(&past.events[at]), "of {topic:?}");
                    self.passed = at + 1;
                }
                self.is_idle = false;
            }
            Err(WatchError::Compacted(at)) => {
                let floor = past.store.history(past.prefix).watched;
                assert!(at < floor, "{at} is compacted, but history begins at {floor}");
                if self.is_idle {
                    let missed = past.events[first].revision();
                    assert!(missed <= floor, "{missed} is there, others do not matter");
                }
                self.resume(past, past.store.revision());
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts again, if a watch of everything could.
    fn resume(&mut self, past: &PastEvents<'_>, after: Revision) {
        let whole = past.store.watch(past.prefix, after).map(drop);
        let again = past.store.watch_topic(past.prefix, self.checked.topic.clone(), after);
        match (again, whole) {
            (Ok(cursor), Ok(())) => self.cursor = cursor,
            (Err(_), Err(WatchError::Compacted(_))) => return,
            (cursor, whole) => panic!("{:?}, {whole:?} after {after}", cursor.map(drop)),
        }
        self.passed = past.events.partition_point(|event| event.revision() <= after);
        self.is_idle = self.passed == past.events.len();
        self.bookmark = after;
    }

    fn mark(&mut self, past: &PastEvents<'_>) {
        let Some(bookmark) = self.cursor.bookmark() else { return };
        assert!(bookmark >= self.bookmark, "bookmarks do not go back");
        let topic = &self.checked.topic;
        assert_eq!(self.expected(past), None, "bookmark {bookmark} of {topic:?}");
        (self.bookmark, self.is_idle) = (bookmark, true);
    }
}
