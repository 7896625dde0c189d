//! Cells of printer tables.

use ferrokube_apimachinery::document::Document;
pub(crate) use ferrokube_resource::print::{UNKNOWN, since};
use std::time::SystemTime;

/// The age of an object.
pub(crate) fn age(object: &Document, now: SystemTime) -> String {
    since(object.meta("creationTimestamp"), now)
}
