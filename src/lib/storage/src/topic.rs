//! Topics: which events a cursor is woken for.
//!
//! Each kubelet watches the pods of its node, and the objects that they name. If an event woke all
//! of them, its cost would grow with the number of nodes. A topic is a value that an event has
//! without being parsed, so the cursors that it concerns are looked up.

use crate::entry::Entry;
use crate::key::Revision;
use crate::txn::Event;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Selects the events of a cursor. Events of other topics neither wake the cursor nor are returned.
///
/// An event concerns the topics of its object before and after it: an object that leaves a topic
/// has an event there, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    kind: TopicKind,
    value: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopicKind {
    Everything,
    Namespace,
    Name,
    Key,
    Field { epoch: u32, index: usize },
}

impl Topic {
    fn new(kind: TopicKind, value: &str) -> Self {
        Self { kind, value: value.into() }
    }

    /// All events of the resource.
    pub fn everything() -> Self {
        Self::new(TopicKind::Everything, "")
    }

    /// Objects of a namespace.
    pub fn namespace(namespace: &str) -> Self {
        Self::new(TopicKind::Namespace, namespace)
    }

    /// Objects of this name in any namespace.
    pub fn name(name: &str) -> Self {
        Self::new(TopicKind::Name, name)
    }

    /// The object with this [`crate::Key::rest`].
    pub fn key(rest: &str) -> Self {
        Self::new(TopicKind::Key, rest)
    }

    /// Objects with this value in [`crate::Sidecar::fields`], and those of another
    /// [`crate::Sidecar::schema_epoch`], whose values are unknown.
    pub fn field(epoch: u32, index: usize, value: &str) -> Self {
        Self::new(TopicKind::Field { epoch, index }, value)
    }

    /// Whether an event belongs to the topic.
    pub(crate) fn concerns(&self, event: &Event) -> bool {
        let holds = |entry: &Entry| self.kind.of(entry).is_none_or(|value| *value == *self.value);
        holds(&event.entry) || event.previous.as_deref().is_some_and(holds)
    }
}

impl TopicKind {
    /// The value of an entry; `None` if it is unknown, which is any.
    fn of(self, entry: &Entry) -> Option<&str> {
        match self {
            Self::Everything => Some(""),
            Self::Namespace => Some(entry.key.namespace().unwrap_or_default()),
            Self::Name => Some(entry.key.name()),
            Self::Key => Some(entry.key.rest()),
            Self::Field { epoch, index } => (entry.sidecar.schema_epoch == epoch)
                .then(|| entry.sidecar.fields.get(index).map_or("", |value| &**value)),
        }
    }
}

/// No event is unread.
const NONE: u64 = u64::MAX;
/// Any event after the cursor's position may be unread.
const ANY: u64 = 0;

/// Tells a cursor that there are events for it.
pub(crate) struct Subscription {
    topic: Topic,
    /// Revision of the first event that the cursor may not have read, or [`NONE`]: between its
    /// position and that one there are none for it. Set with the resource's state locked for
    /// writing, cleared with it locked for reading, so that no event comes in between.
    unread: AtomicU64,
    changed: Notify,
    /// Index in its list. Used with the state locked for writing.
    at: AtomicUsize,
}

impl Subscription {
    pub(crate) fn topic(&self) -> &Topic {
        &self.topic
    }

    /// One load.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread.load(Ordering::Acquire) != NONE
    }

    /// The next revision to read, if the cursor has read up to `position`.
    pub(crate) fn read_after(&self, position: Revision) -> Revision {
        match self.unread.load(Ordering::Acquire) {
            NONE => position,
            first => position.max(Revision(first.saturating_sub(1))),
        }
    }

    /// Called when the cursor has read all events, with the state still locked.
    pub(crate) fn clear(&self) {
        self.unread.store(NONE, Ordering::Release);
    }

    /// Waits for [`Self::wake`], which may have been called before. For one task at a time.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Returns whether everything had been read. If not, the cursor was woken for an earlier event
    /// and reads this one, too.
    fn mark(&self, revision: Revision) -> bool {
        let is_first = !self.has_unread();
        if is_first {
            self.unread.store(revision.0, Ordering::Release);
        }
        is_first
    }
}

/// The cursors of a resource by topic.
#[derive(Default)]
pub(crate) struct Subscriptions {
    /// Few: one for each kind of topic that has cursors.
    indexes: Vec<TopicIndex>,
    /// Number of the last batch.
    batch: u64,
}

struct TopicIndex {
    kind: TopicKind,
    by_value: HashMap<Box<str>, Subscribers>,
    /// The last batch in which all were marked.
    marked_in: u64,
}

/// The cursors of one topic.
#[derive(Default)]
struct Subscribers {
    list: Vec<Arc<Subscription>>,
    /// The last batch in which they were marked.
    marked_in: u64,
}

impl Subscriptions {
    /// Adds a cursor, which has read everything or starts at its position.
    pub(crate) fn add(&mut self, topic: Topic, is_drained: bool) -> Arc<Subscription> {
        let kind = topic.kind;
        let known = self.indexes.iter().position(|index| index.kind == kind);
        let at = known.unwrap_or_else(|| {
            self.indexes.push(TopicIndex { kind, by_value: HashMap::new(), marked_in: 0 });
            self.indexes.len() - 1
        });
        let by_value = &mut self.indexes[at].by_value;
        let list = &mut by_value.entry(topic.value.clone()).or_default().list;
        let unread = AtomicU64::new(if is_drained { NONE } else { ANY });
        let at = AtomicUsize::new(list.len());
        let subscription = Arc::new(Subscription { topic, unread, changed: Notify::new(), at });
        list.push(Arc::clone(&subscription));
        subscription
    }

    pub(crate) fn remove(&mut self, subscription: &Subscription) {
        let Topic { kind, value } = &subscription.topic;
        let Some(index) = self.indexes.iter_mut().find(|index| index.kind == *kind) else { return };
        let Some(Subscribers { list, .. }) = index.by_value.get_mut(value) else { return };
        let at = subscription.at.load(Ordering::Relaxed);
        list.swap_remove(at);
        if let Some(moved) = list.get(at) {
            moved.at.store(at, Ordering::Relaxed);
        }
        if list.capacity() > 4 * list.len() {
            list.shrink_to(2 * list.len());
        }
        if list.is_empty() {
            index.by_value.remove(value);
        }
        if index.by_value.capacity() > 8 * index.by_value.len() {
            index.by_value.shrink_to(2 * index.by_value.len());
        }
        self.indexes.retain(|index| !index.by_value.is_empty());
    }

    /// Marks a batch of events, in order, as unread by the cursors that they concern. Appends those
    /// that had read everything before to `woken`.
    pub(crate) fn mark<'a>(
        &mut self,
        events: impl Iterator<Item = &'a Event> + Clone,
        woken: &mut Vec<Arc<Subscription>>,
    ) {
        self.batch += 1;
        for index in &mut self.indexes {
            for event in events.clone() {
                index.mark(event, self.batch, woken);
            }
        }
    }

    /// Marks all, since the history was replaced.
    pub(crate) fn mark_all(&self, woken: &mut Vec<Arc<Subscription>>) {
        for subscription in self.iter() {
            subscription.unread.store(ANY, Ordering::Release);
            woken.push(Arc::clone(subscription));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Subscription>> {
        let lists = self.indexes.iter().flat_map(|index| index.by_value.values());
        lists.flat_map(|subscribers| &subscribers.list)
    }
}

impl TopicIndex {
    fn mark(&mut self, event: &Event, batch: u64, woken: &mut Vec<Arc<Subscription>>) {
        if self.marked_in == batch {
            return;
        }
        let revision = event.revision();
        let after = self.kind.of(&event.entry);
        let before = event.previous.as_deref().map_or(after, |previous| self.kind.of(previous));
        let (Some(after), Some(before)) = (after, before) else {
            self.marked_in = batch;
            for subscribers in self.by_value.values_mut() {
                subscribers.mark(revision, batch, woken);
            }
            return;
        };
        if let Some(subscribers) = self.by_value.get_mut(after) {
            subscribers.mark(revision, batch, woken);
        }
        if before != after
            && let Some(subscribers) = self.by_value.get_mut(before)
        {
            subscribers.mark(revision, batch, woken);
        }
    }
}

impl Subscribers {
    /// Only a batch's first event needs to be marked: nothing is read before the batch is
    /// published.
    fn mark(&mut self, revision: Revision, batch: u64, woken: &mut Vec<Arc<Subscription>>) {
        if std::mem::replace(&mut self.marked_in, batch) != batch {
            woken.extend(self.list.iter().filter(|one| one.mark(revision)).cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{CheckedEpoch, Sidecar};
    use crate::key::Prefix;
    use crate::testing::Dice;

    fn event(revision: u64, name: &str, field: &str) -> Event {
        let fields = [field.into()].into_iter().collect();
        let sidecar = Sidecar { fields, schema_epoch: 1, ..Sidecar::default() };
        let (revision, checked) = (Revision(revision), CheckedEpoch::default());
        let key = Prefix::new("pods").unwrap().key(Some("ns"), name).unwrap();
        let (create_revision, bytes) = (revision, bytes::Bytes::new());
        let entry = Entry { key, revision, create_revision, bytes, sidecar, checked };
        Event { entry: Arc::new(entry), previous: None, deleted: false }
    }

    fn topic(number: usize) -> Topic {
        let value = format!("v{}", number % 5);
        match number % 3 {
            0 => Topic::everything(),
            1 => Topic::name(&value),
            _ => Topic::field(1, 0, &value),
        }
    }

    #[test]
    fn exactly_the_cursors_that_are_left_are_woken() {
        let (mut dice, mut index) = (Dice::new(1), Subscriptions::default());
        let mut left: Vec<Arc<Subscription>> = Vec::new();
        for revision in 1..2000 {
            if dice.below(5) < 3 {
                left.push(index.add(topic(dice.below(15)), true));
            } else if !left.is_empty() {
                index.remove(&left.swap_remove(dice.below(left.len())));
            }
            let [name, field, before] = [0; 3].map(|_| format!("v{}", dice.below(6)));
            let previous = Some(event(revision, &name, &before).entry);
            let event = Event { previous, ..event(revision, &name, &field) };
            let mut woken = Vec::new();
            index.mark([&event, &event].into_iter(), &mut woken);
            let concerned = left.iter().filter(|one| one.topic.concerns(&event));
            assert_eq!(concerned.clone().count(), woken.len(), "each once");
            assert!(concerned.clone().all(|one| one.has_unread()));
            concerned.for_each(|one| {
                assert_eq!(one.read_after(Revision(0)), Revision(revision - 1));
                one.clear();
            });
            assert!(left.iter().all(|one| !one.has_unread()));
            assert_eq!(index.iter().count(), left.len());
        }
        left.iter().for_each(|one| index.remove(one));
        assert!(index.indexes.is_empty());
    }

    #[test]
    fn an_object_of_another_schema_may_have_any_value() {
        let mut index = Subscriptions::default();
        let all: Vec<_> =
            (0..9).map(|at| index.add(Topic::field(2, 0, &format!("v{at}")), true)).collect();
        let mut woken = Vec::new();
        index.mark([&event(1, "a", "v0"), &event(2, "a", "v0")].into_iter(), &mut woken);
        assert_eq!(woken.len(), all.len());
        assert!(all.iter().all(|one| one.topic.concerns(&event(3, "a", "v0"))));
    }
}
