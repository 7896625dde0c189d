//! Owner references: at most one controller, complete, no events as owners, no duplicates.

use super::metadata_mut;
use crate::context::RequestContext;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, FormattedValue, MAX_ERRORS, Word};
use ferrokube_apimachinery::gvk::GroupVersion;
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

pub(super) fn check(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller: Option<&Value> = None;
    let mut all = None;
    for reference in object.list(&["metadata", "ownerReferences"]) {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        check_one(reference, &mut errors);
        if reference.get("controller").and_then(Value::as_bool) != Some(true) {
            continue;
        }
        match controller {
            None => controller = Some(reference),
            Some(first) => {
                let all = &*all.get_or_insert_with(|| {
                    FormattedValue::list(
                        object.list(&["metadata", "ownerReferences"]).iter().map(shown),
                    )
                });
                let [first, second] = [first, reference].map(|reference| {
                    format!("{}/{}", text(reference, "kind"), text(reference, "name"))
                });
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
                );
                errors.push(FieldError::invalid(PATH, all, why));
            }
        }
    }
    errors
}

/// Enforces [`MAX_REFERENCES`]. An object stored with more may keep as many.
pub(crate) fn check_count(old: Option<&Document>, object: &Document) -> Option<FieldError> {
    let count = |object: &Document| object.list(&["metadata", "ownerReferences"]).len();
    let (references, stored) = (count(object), old.map_or(0, count));
    (references > MAX_REFERENCES.max(stored))
        .then(|| FieldError::too_many(PATH, references, MAX_REFERENCES))
}

fn check_one(reference: &Value, errors: &mut Vec<FieldError>) {
    let version = GroupVersion::parse(text(reference, "apiVersion"));
    if version.is_none() {
        errors.push(FieldError::invalid(
            format!("{PATH}.apiVersion"),
            text(reference, "apiVersion"),
            "version must not be empty",
        ));
    }
    for field in ["kind", "name", "uid"] {
        if text(reference, field).is_empty() {
            errors.push(FieldError::invalid(format!("{PATH}.{field}"), "", "must not be empty"));
        }
    }
    if version.is_some_and(|version| version.group.is_empty() && version.version == "v1")
        && text(reference, "kind") == "Event"
    {
        errors.push(FieldError::invalid(
            PATH,
            shown(reference),
            "/v1, Kind=Event is disallowed from being an owner",
        ));
    }
}

fn text<'a>(reference: &'a Value, field: &str) -> &'a str {
    reference.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// With kube-apiserver's order of fields.
fn shown(reference: &Value) -> FormattedValue {
    let always = ["apiVersion", "kind", "name", "uid"]
        .map(|field| (field, FormattedValue::new(Word(text(reference, field)))));
    let set = ["controller", "blockOwnerDeletion"]
        .into_iter()
        .filter_map(|field| Some((field, FormattedValue::new(reference.get(field)?))));
    FormattedValue::object(always.into_iter().chain(set))
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
