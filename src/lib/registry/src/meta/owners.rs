//! Owner references: no duplicates, a bounded number, complete.

use super::metadata_mut;
use crate::context::RequestContext;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::json;
use std::collections::HashSet;

/// Duplicate owners named in the warning.
const MAX_NAMED: usize = 10;
const PATH: &str = "metadata.ownerReferences";
/// References per object; kube-apiserver has no limit. The garbage collector stores and checks each
/// of them.
const MAX_REFERENCES: usize = 1_000;

/// When duplicates are removed: as in kube-apiserver from bodies, and again after mutating
/// admission. The result of a patch is checked only then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DedupPhase {
    Body,
    Admitted,
}

/// Removes duplicate references, with a warning.
pub(crate) fn dedup(object: &mut Document, phase: DedupPhase, context: &RequestContext) {
    let references = object.list(&["metadata", "ownerReferences"]);
    if references.len() < 2 {
        return;
    }
    // Compared as bytes, in linear time.
    let mut seen = HashSet::new();
    let again: Vec<usize> = (0..references.len())
        .filter(|&index| !seen.insert(json::to_vec(&references[index])))
        .collect();
    if again.is_empty() {
        return;
    }
    let uids: Vec<&str> = again
        .iter()
        .take(MAX_NAMED)
        .filter_map(|&index| references[index].get("uid")?.as_str())
        .collect();
    let when = if phase == DedupPhase::Admitted { " after mutating admission happens" } else { "" };
    context.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    ));
    if let Some(Value::Array(list)) = metadata_mut(object).get_mut("ownerReferences") {
        let mut index = 0;
        list.retain(|_| {
            index += 1;
            again.binary_search(&(index - 1)).is_err()
        });
    }
}

/// Adds the required fields, for objects that are not validated.
pub(crate) fn complete(object: &mut Document) {
    let Some(Value::Array(list)) = object.get_mut(&["metadata", "ownerReferences"]) else { return };
    for reference in list.iter_mut().filter_map(Value::as_object_mut) {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if reference.get(field).is_none_or(Value::is_null) {
                reference.insert(field, Value::from(""));
            }
        }
    }
}

/// Enforces [`MAX_REFERENCES`]. An object stored with more may keep as many.
pub(crate) fn check_count(old: Option<&Document>, object: &Document) -> Option<FieldError> {
    let count = |object: &Document| object.list(&["metadata", "ownerReferences"]).len();
    let (references, stored) = (count(object), old.map_or(0, count));
    (references > MAX_REFERENCES.max(stored))
        .then(|| FieldError::too_many(PATH, references, MAX_REFERENCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_references_are_bounded() {
        let object = |references: usize| {
            let mut object = Document::new();
            object.set(
                &["metadata", "ownerReferences"],
                Value::Array(vec![Value::Null; references].into()),
            );
            object
        };
        let why = |old: Option<usize>, new: usize| {
            check_count(old.map(object).as_ref(), &object(new)).map(|error| error.message)
        };
        assert_eq!(why(None, 1_000), None);
        assert_eq!(
            why(None, 1_001).as_deref(),
            Some("Too many: 1001: must have at most 1000 items")
        );
        assert_eq!(
            why(Some(999), 1_001).as_deref(),
            Some("Too many: 1001: must have at most 1000 items")
        );
        // Stored before the limit existed: other changes pass.
        assert_eq!((why(Some(5_000), 5_000), why(Some(5_000), 4_999)), (None, None));
        assert_eq!(
            why(Some(5_000), 5_001).as_deref(),
            Some("Too many: 5001: must have at most 1000 items")
        );
    }
}
