//! Repeated keys with their lines, as Go's strict reader tells them. Bodies were read before: this
//! one is only looked at again because keys repeat.

use crate::field::quote;
use crate::json::MAX_DUPLICATES;
use saphyr_parser::{Event, Parser};
use std::collections::HashSet;

/// An open collection.
enum Frame {
    /// Its keys, and whether the next node is one.
    Mapping(HashSet<String>, bool),
    Sequence,
}

/// `line 7: key "a" already set in map`, for the first few.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let (mut found, mut stack) = (Vec::new(), Vec::<Frame>::new());
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
        if let Some(Frame::Mapping(keys, is_key)) = stack.last_mut() {
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
            Event::MappingStart(..) => stack.push(Frame::Mapping(HashSet::new(), true)),
            Event::SequenceStart(..) => stack.push(Frame::Sequence),
            _ => {}
        }
    }
    found
}
