//! Duplicate keys with their lines, with the messages of Go's strict decoder. Scans a body again
//! after duplicates were found.

use crate::field::quote;
use crate::json::MAX_DUPLICATES;
use saphyr_parser::{Event, Parser};
use std::collections::HashSet;

/// An open collection.
enum KeyFrame {
    /// Keys of a mapping, and whether the next node is a key.
    Mapping(HashSet<String>, bool),
    Sequence,
}

/// `line 7: key "a" already set in map`, for the first duplicates.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let (mut found, mut stack) = (Vec::new(), Vec::<KeyFrame>::new());
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        match event {
            Event::MappingEnd | Event::SequenceEnd => {
                stack.pop();
                continue;
            }
            Event::DocumentEnd => break,
            Event::Scalar(..)
            | Event::Alias(_)
            | Event::MappingStart(..)
            | Event::SequenceStart(..) => {}
            _ => continue,
        }
        if let Some(KeyFrame::Mapping(keys, is_key)) = stack.last_mut() {
            if let (true, Event::Scalar(key, ..)) = (*is_key, &event)
                && key != "<<"
                && !keys.insert(key.to_string())
                && found.len() < MAX_DUPLICATES
            {
                found.push(format!(
                    "line {}: key {} already set in map",
                    span.start.line(),
                    quote(key)
                ));
            }
            *is_key = !*is_key;
        }
        match event {
            Event::MappingStart(..) => stack.push(KeyFrame::Mapping(HashSet::new(), true)),
            Event::SequenceStart(..) => stack.push(KeyFrame::Sequence),
            _ => {}
        }
    }
    found
}
