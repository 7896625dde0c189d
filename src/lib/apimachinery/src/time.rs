//! Times as the API writes them. The caller reads the clock: this crate has none.

use std::time::SystemTime;

/// `2006-01-02T15:04:05Z`.
pub fn rfc3339_seconds(_time: SystemTime) -> String {
    unimplemented!("apimachinery owner")
}

/// `2006-01-02T15:04:05.000000Z` (`MicroTime`: exactly six digits).
pub fn rfc3339_micros(_time: SystemTime) -> String {
    unimplemented!("apimachinery owner")
}

/// Reads an RFC 3339 time with any offset and precision.
pub fn parse_rfc3339(_text: &str) -> Option<SystemTime> {
    unimplemented!("apimachinery owner")
}

/// An age as tables print it: `5s`, `3m20s`, `5h`, `3d2h`, `2y10d`.
pub fn human_age(_seconds: u64) -> String {
    unimplemented!("apimachinery owner")
}
