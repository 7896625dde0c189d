//! Watches of topics in the lives of [`crate::power`]: each gives what a watch of everything gives
//! of its topic.

use crate::saboteur::Bug;
use ferrokube_storage::testing::{CheckedTopic, PATIENCE, miss};
use ferrokube_storage::{Cursor, Event, Prefix, Revision, Store, Topic, WatchError};

/// One life's watches of topics of a resource.
pub(crate) struct LifeTopics {
    prefix: Prefix,
    watches: Vec<(CheckedTopic, Cursor)>,
    bug: Option<Bug>,
}

fn topics(initial: &str) -> Vec<CheckedTopic> {
    let (name, rest) = (format!("{initial}1"), format!("ns/{initial}2"));
    let key = format!("/{rest}");
    vec![
        CheckedTopic::new(Topic::key(&rest), move |entry| entry.key.as_str().ends_with(&key)),
        CheckedTopic::new(Topic::name(&name), move |entry| entry.key.name() == name),
        CheckedTopic::new(Topic::namespace("other"), |_| false),
        // The values of events, and about half of the others.
        CheckedTopic::by_field("event"),
        CheckedTopic::by_field(""),
    ]
}

impl LifeTopics {
    /// Watches after a revision that a watch of everything is possible from. `initial` is that of
    /// the objects' names.
    pub(crate) fn start(
        store: &Store,
        prefix: Prefix,
        initial: &str,
        after: Revision,
        bug: Option<Bug>,
    ) -> Result<Self, String> {
        let watch = |checked: CheckedTopic| {
            let cursor = store.watch_topic(&prefix, checked.topic.clone(), after);
            let cursor = cursor.map_err(|why| format!("{:?} after {after}: {why}", checked.topic));
            cursor.map(|cursor| (checked, cursor))
        };
        let watches = topics(initial).into_iter().map(watch).collect::<Result<_, _>>()?;
        Ok(Self { prefix, watches, bug })
    }

    /// Compares with the next events of everything. Returns the number of events given. With
    /// `is_rotten` a file is damaged, or the power is off, which an idle watch may be the first to
    /// find.
    pub(crate) async fn follow(
        &mut self,
        store: &Store,
        events: &[Event],
        is_rotten: bool,
    ) -> Result<usize, String> {
        let mut count = 0;
        for (checked, cursor) in &mut self.watches {
            let expected: Vec<&Event> =
                events.iter().filter(|event| checked.concerns(event)).collect();
            if self.bug == Some(Bug::MissLeavers)
                && expected.first().is_some_and(|first| checked.is_left(first))
            {
                miss(cursor);
            }
            let (mut given, mut is_lost) = (Vec::new(), false);
            while given.len() < expected.len() && !is_lost {
                // The event is marked for it before a watch of everything can read that.
                if !cursor.is_behind() {
                    return Err(format!("{:?} is not told of an event", checked.topic));
                }
                match tokio::time::timeout(PATIENCE, cursor.next(64)).await {
                    Ok(Ok(more)) => given.extend(more),
                    // Its place is where it was last read.
                    Ok(Err(WatchError::Compacted(at)))
                        if is_rotten || at < store.history(&self.prefix).watched =>
                    {
                        let topic = checked.topic.clone();
                        let again = store.watch_topic(&self.prefix, topic, store.revision());
                        *cursor = again.map_err(|why| why.to_string())?;
                        is_lost = true;
                    }
                    Ok(Err(why)) => return Err(format!("{:?}: {why}", checked.topic)),
                    Err(_) => return Err(format!("{:?} misses an event", checked.topic)),
                }
            }
            count += given.len();
            let is_whole = given.len() == expected.len() || is_lost;
            if !is_whole || !given.iter().zip(&expected).all(|(one, other)| same(one, other)) {
                let topic = &checked.topic;
                return Err(format!("{topic:?} gave {given:?}, not {expected:?}"));
            }
        }
        Ok(count)
    }
}

fn same(given: &Event, expected: &Event) -> bool {
    let facts = |event: &Event| (event.revision(), event.entry.key.clone(), event.deleted);
    facts(given) == facts(expected) && given.entry.bytes == expected.entry.bytes
}
