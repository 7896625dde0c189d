//! Cursors of topics.

use super::context::CaseContext;
use crate::testing::{CheckedTopic, Dice, PUT_EPOCH, TopicWatches, commit, key, put, write};
use crate::{Event, Prefix, Store, Topic, Txn, Write};

fn pods() -> Prefix {
    Prefix::new("pods").unwrap()
}

/// Creates, moves from one topic to another, updates and deletes objects; some at the revision of
/// another resource.
async fn change(store: &Store, dice: &mut Dice) {
    for _ in 0..=dice.below(3) {
        let object = key("pods", ["a", "b"][dice.below(2)], &format!("n{}", dice.below(4)));
        let value = put(&object, ["", "one", "two", "even"][dice.below(4)]);
        let mut writes = vec![match dice.below(6) {
            0 if store.get(&object).is_some() => Write::Delete { key: object, last: None },
            1 if store.get(&object).is_some() => Write::Delete { key: object, last: Some(value) },
            _ => Write::Put(value),
        }];
        if dice.below(3) == 0 {
            writes.push(Write::Put(put(&key("secrets", "a", "s"), "v")));
        }
        commit(store, Txn { guards: Vec::new(), writes }).await.unwrap();
    }
}

async fn compare(store: &Store) {
    let topics = CheckedTopic::by_key().into_iter();
    let topics = topics.chain(["", "one", "two"].map(CheckedTopic::by_field)).collect();
    let (mut dice, mut watches) = (Dice::new(5), TopicWatches::start(store, &pods(), topics));
    for _ in 0..60 {
        change(store, &mut dice).await;
        watches.step(store, &mut dice).await;
    }
    assert!(watches.finish(store).await > 60);
}

pub(super) async fn a_watch_of_a_topic_is_the_filtered_history(bench: CaseContext) {
    compare(&bench.store).await;
}

/// Events missing in memory come from the journal, or the watch is compacted.
pub(super) async fn a_topic_in_a_small_history_is_never_silently_short(bench: CaseContext) {
    compare(&bench.store).await;
}

/// Others neither wake it nor compact it.
pub(super) async fn an_idle_topic_keeps_its_place(bench: CaseContext) {
    let store = &bench.store;
    let topic = Topic::field(PUT_EPOCH, 0, "one");
    let mut idle = store.watch_topic(&pods(), topic, store.revision()).unwrap();
    for number in 0..100 {
        let object = key("pods", "a", &format!("n{number}"));
        let other = commit(store, write(&object, "two")).await.unwrap().revision;
        assert!(!idle.is_behind() && idle.bookmark() >= Some(other));
    }
    let moved = commit(store, write(&key("pods", "a", "n7"), "one")).await.unwrap().revision;
    assert!(idle.is_behind());
    let events = idle.next(10).await.unwrap();
    assert_eq!(events.iter().map(Event::revision).collect::<Vec<_>>(), [moved]);
    assert_eq!(events[0].previous.as_ref().map(|before| before.key.name()), Some("n7"));
    assert!(idle.bookmark() >= Some(moved));
}
