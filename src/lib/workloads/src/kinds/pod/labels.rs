//! Converts `matchLabelKeys` and `mismatchLabelKeys` of a new pod to selector expressions on its
//! own labels, as kube-apiserver does (KEP-3633, KEP-3243).

use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::name;

const AFFINITIES: [&str; 2] = ["podAffinity", "podAntiAffinity"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// Max converted keys per pod, since an expression takes much more memory than its key.
const MAX_MERGED: usize = 1_000;

/// Adds the expressions.
pub(super) fn merge_keys(object: &mut Document) {
    // A label that is too long is refused later; it is not copied.
    let labels: Map = object
        .get(&["metadata", "labels"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.as_str().is_some_and(|text| text.len() <= name::MAX_LABEL))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
    let mut left = MAX_MERGED;
    if let Some(Value::Array(constraints)) = spec.get_mut("topologySpreadConstraints") {
        for constraint in constraints.iter_mut().filter_map(Value::as_object_mut) {
            merge(constraint, &labels, &[("matchLabelKeys", "In")], &mut left);
        }
    }
    let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) else { return };
    for kind in AFFINITIES {
        let Some(terms) = affinity.get_mut(kind).and_then(Value::as_object_mut) else { continue };
        for list in [REQUIRED, PREFERRED] {
            let Some(Value::Array(items)) = terms.get_mut(list) else { continue };
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                let term = match list {
                    REQUIRED => Some(item),
                    _ => item.get_mut("podAffinityTerm").and_then(Value::as_object_mut),
                };
                let Some(term) = term else { continue };
                let fields = [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")];
                merge(term, &labels, &fields, &mut left);
            }
        }
    }
}

fn merge(term: &mut Map, labels: &Map, fields: &[(&str, &str)], left: &mut usize) {
    if !term.get("labelSelector").is_some_and(Value::is_object) {
        return;
    }
    let mut made = Vec::new();
    for (field, operator) in fields {
        let keys =
            term.get(field).and_then(Value::as_array).map_or(&[][..], |keys| keys.as_slice());
        for key in keys.iter().filter_map(Value::as_str) {
            let Some(value) = labels.get(key).filter(|_| *left > 0) else { continue };
            *left -= 1;
            made.push(json!({"key": key, "operator": operator, "values": [value.clone()]}));
        }
    }
    let selector = term.get_mut("labelSelector").and_then(Value::as_object_mut);
    let Some(selector) = selector.filter(|_| !made.is_empty()) else { return };
    match selector.get_mut("matchExpressions") {
        Some(Value::Array(known)) => made.into_iter().for_each(|one| known.push(one)),
        _ => _ = selector.insert("matchExpressions", made.into()),
    }
}
