//! Cells of printer tables.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::time;
use std::time::SystemTime;

/// What an unset time prints.
pub(crate) const UNKNOWN: &str = "<unknown>";

/// The age of an object.
pub(crate) fn age(object: &Document, now: SystemTime) -> String {
    since(object.meta("creationTimestamp"), now)
}

/// How long ago a time was; [`UNKNOWN`] when it is unset. A time in the future is as now.
pub(crate) fn since(text: &str, now: SystemTime) -> String {
    match time::parse_rfc3339(text) {
        Some(then) => time::human_age(now.duration_since(then).unwrap_or_default().as_secs()),
        None => UNKNOWN.to_owned(),
    }
}

/// The number of entries of maps together.
pub(crate) fn count(object: &Document, maps: &[&str]) -> Value {
    Value::from(maps.iter().filter_map(|field| object.get(&[field])?.as_object()).map(|map| map.len()).sum::<usize>())
}
