//! No-op test of writes. Ignores resourceVersion, times in managedFields and, if the server owns
//! them, the trace annotations.

use ferrokube_apimachinery::document::{Array, Document, Map, Value};
use ferrokube_trace::annotation;

/// Whether the objects are equal. Clones nothing.
pub(crate) fn is_same(old: &Document, new: &Document) -> bool {
    same_maps(old.fields(), new.fields(), |field, old, new| match (field, old, new) {
        ("metadata", Some(Value::Object(old)), Some(Value::Object(new))) => {
            same_metadata(old, new, |old, new| old == new)
        }
        (_, old, new) => old == new,
    })
}

/// [`is_same`] without the trace annotations.
pub(crate) fn is_same_but_ids(old: &Document, new: &Document) -> bool {
    same_maps(old.fields(), new.fields(), |field, old, new| match (field, old, new) {
        ("metadata", Some(Value::Object(old)), Some(Value::Object(new))) => {
            same_metadata(old, new, same_annotations)
        }
        (_, old, new) => old == new,
    })
}

/// Whether the objects have equal content, without managedFields, generation and the trace
/// annotations.
pub fn is_same_content(old: &Document, new: &Document) -> bool {
    same_maps(old.fields(), new.fields(), |field, old, new| match (field, old, new) {
        ("metadata", Some(Value::Object(old)), Some(Value::Object(new))) => {
            same_maps(old, new, |field, old, new| match field {
                "resourceVersion" | "managedFields" | "generation" => true,
                "annotations" => same_annotations(old, new),
                _ => old == new,
            })
        }
        (_, old, new) => old == new,
    })
}

fn same_metadata(
    old: &Map,
    new: &Map,
    same_annotations: fn(Option<&Value>, Option<&Value>) -> bool,
) -> bool {
    same_maps(old, new, |field, old, new| match field {
        "resourceVersion" => true,
        "managedFields" => same_managers(list(old), list(new)),
        "annotations" => same_annotations(old, new),
        _ => old == new,
    })
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Array::as_slice)
}

fn same_managers(old: &[Value], new: &[Value]) -> bool {
    old.len() == new.len()
        && old.iter().zip(new).all(|pair| match pair {
            (Value::Object(old), Value::Object(new)) => {
                same_maps(old, new, |field, old, new| field == "time" || old == new)
            }
            (old, new) => old == new,
        })
}

/// Whether annotations are equal, without those of the trace.
pub(crate) fn same_annotations(old: Option<&Value>, new: Option<&Value>) -> bool {
    let none = Map::new();
    let [old, new] = [old, new].map(|value| value.and_then(Value::as_object).unwrap_or(&none));
    same_maps(old, new, |key, old, new| annotation::ALL.contains(&key) || old == new)
}

/// Compares two maps field by field, over the union of their keys.
fn same_maps(
    old: &Map,
    new: &Map,
    same: impl Fn(&str, Option<&Value>, Option<&Value>) -> bool,
) -> bool {
    let kept = old.iter().all(|(field, value)| same(field, Some(value), new.get(field)));
    kept && new
        .iter()
        .filter(|(field, _)| !old.contains_key(field))
        .all(|(field, value)| same(field, None, Some(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn document(value: Value) -> Document {
        Document::from_value(value).unwrap()
    }

    #[test]
    fn a_noop_ignores_versions_manager_times_and_trace_annotations() {
        let old = document(
            json!({"kind": "ConfigMap", "metadata": {"name": "a", "resourceVersion": "1", "managedFields": [{"manager": "m", "time": "1"}]}}),
        );
        let new = document(
            json!({"kind": "ConfigMap", "metadata": {"name": "a", "managedFields": [{"manager": "m", "time": "2"}],
            "annotations": {"trace.kubernetes.io/trace-id": "x"}}}),
        );
        assert!(is_same_but_ids(&old, &new) && is_same_but_ids(&new, &old));
        assert!(!is_same(&old, &new) && !is_same(&new, &old), "ids that a step wrote are written");
        let other = document(
            json!({"kind": "ConfigMap", "metadata": {"name": "a", "managedFields": [{"manager": "m"}],
            "annotations": {"trace.kubernetes.io/another": "x"}}}),
        );
        assert!(!is_same_but_ids(&old, &other), "only three keys are the server's");
    }

    #[test]
    fn content_excludes_ownership() {
        let old = document(
            json!({"metadata": {"name": "a", "generation": 1, "managedFields": [{"manager": "m"}]}, "data": {"k": "v"}}),
        );
        let owned = document(
            json!({"metadata": {"name": "a", "resourceVersion": "7", "annotations": {"trace.kubernetes.io/span-id": "x"}}, "data": {"k": "v"}}),
        );
        assert!(is_same_content(&old, &owned) && !is_same(&old, &owned));
        let changed =
            document(json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"k": "v"}}));
        assert!(!is_same_content(&old, &changed));
    }

    #[test]
    fn a_noop_compares_everything_else() {
        let old = document(
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}], "annotations": {"a": "1"}}, "data": {"k": "v"}}),
        );
        for change in [
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "n"}], "annotations": {"a": "1"}}, "data": {"k": "v"}}),
            json!({"metadata": {"name": "a", "annotations": {"a": "1"}}, "data": {"k": "v"}}),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}], "annotations": {"a": "1", "b": "2"}}, "data": {"k": "v"}}),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}, "data": {"k": "v"}}),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}], "annotations": {"a": "1"}}, "data": {"k": "w"}}),
            json!({"metadata": {"name": "a", "managedFields": [{"manager": "m"}], "annotations": {"a": "1"}}}),
        ] {
            let new = document(change);
            assert!(!is_same(&old, &new) && !is_same(&new, &old), "{new:?}");
        }
    }
}
