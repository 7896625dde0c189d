//! Cells of printer tables.

use ferrokube_apimachinery::document::Document;
pub(crate) use ferrokube_resource::print::{UNKNOWN, since};
use std::time::SystemTime;

/// Age of an object, as in kubectl's tables.
pub(crate) fn age(object: &Document, now: SystemTime) -> String {
    since(object.meta("creationTimestamp"), now)
}
