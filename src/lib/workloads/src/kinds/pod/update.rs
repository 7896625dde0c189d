//! Validation of pod updates.

use crate::cells::{at, list_at};
use crate::checks::{FieldErrors, items, number, text};
use crate::paths::FieldPath;
use crate::rules::same;
use crate::types;
use ferrokube_apimachinery::document::{Document, Value};
use std::collections::{HashMap, HashSet};

const OTHERS: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const MAX_SECONDS: i64 = i32::MAX as i64;

pub(super) fn validate(
    subresource: &str,
    old: &Document,
    object: &Document,
    errors: &mut FieldErrors,
) {
    let (Some(before), Some(after)) = (old.get(&["spec"]), object.get(&["spec"])) else { return };
    let root = FieldPath::Root;
    let spec = root.field("spec");
    match subresource {
        "" => main(before, after, spec, errors),
        "ephemeralcontainers" => ephemeral(before, after, spec, errors),
        _ => {}
    }
}

fn main(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    for list in ["containers", "initContainers"] {
        if items(before, list).len() != items(after, list).len() {
            errors.forbidden(spec.field(list), "pod updates may not add or remove containers");
            return;
        }
        let path = spec.field(list);
        for (index, container) in items(after, list).iter().enumerate() {
            let (image, place) = (text(container, "image"), path.index(index));
            if image.is_empty() {
                errors.required(place.field("image"), "");
            }
            if image.trim() != image {
                let why = "must not have leading or trailing whitespace";
                errors.invalid(place.field("image"), image, why);
            }
        }
    }
    if !deadline(before, after, spec, errors) {
        return;
    }
    tolerations(before, after, spec, errors);
    let gates = |spec: &Value| -> Vec<String> {
        items(spec, "schedulingGates").iter().map(|gate| text(gate, "name").to_owned()).collect()
    };
    let known: HashSet<String> = gates(before).into_iter().collect();
    let path = spec.field("schedulingGates");
    for (index, gate) in gates(after).iter().enumerate().filter(|(_, gate)| !known.contains(*gate))
    {
        let why = "only deletion is allowed, but found new scheduling gate";
        errors.forbidden(path.index(index).field("name"), &format!("{why} '{gate}'"));
    }
    let gated = !known.is_empty();
    if gated {
        directives(before, after, spec, errors);
    }
    let released = number(before, "terminationGracePeriodSeconds") < 0
        && number(after, "terminationGracePeriodSeconds") == 1;
    let fixed = |spec: &Value| fixed(spec, gated, released);
    let (before, after) = (fixed(before), fixed(after));
    if !same(Some(&before), Some(&after)) {
        errors.forbidden(spec, OTHERS);
    }
}

/// Checks the deadline. Returns whether the remaining fields may be compared.
fn deadline(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) -> bool {
    let seconds = |spec: &Value| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    let path = spec.field("activeDeadlineSeconds");
    match (seconds(before), seconds(after)) {
        (_, Some(now)) if !(0..=MAX_SECONDS).contains(&now) => {
            errors.invalid(path, now, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(then), Some(now)) if now > then => {
            errors.invalid(path, now, "must be less than or equal to previous value");
            false
        }
        (Some(_), None) => {
            errors.invalid(
                path,
                None::<&Value>,
                "must not update from a positive integer to nil value",
            );
            true
        }
        _ => true,
    }
}

/// Tolerations can only be added; the seconds of one may change.
fn tolerations(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    let key = |toleration: &Value| {
        let part = |field| text(toleration, field).to_owned();
        ["key", "operator", "value", "effect"].map(part)
    };
    let kept: HashSet<[String; 4]> = items(after, "tolerations").iter().map(key).collect();
    if !items(before, "tolerations").iter().all(|old| kept.contains(&key(old))) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        return errors.forbidden(spec.field("tolerations"), why);
    }
    // All of them once more.
    let path = spec.field("tolerations");
    let Some(rules) = types::of("core.v1.Toleration") else { return };
    for (index, toleration) in items(after, "tolerations").iter().enumerate() {
        if let Some(fields) = toleration.as_object() {
            rules.check(fields, None, path.index(index), errors);
        }
    }
}

/// A spec without its mutable fields.
fn fixed(spec: &Value, gated: bool, released: bool) -> Value {
    let mut spec = spec.clone();
    let Some(map) = spec.as_object_mut() else { return spec };
    for list in ["containers", "initContainers"] {
        crate::kinds::podspec::each(map, list, |container| {
            container.remove("image");
        });
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        map.remove(field);
    }
    if released {
        map.remove("terminationGracePeriodSeconds");
    }
    if gated {
        map.remove("nodeSelector");
        crate::kinds::podspec::drop_node_affinity(map);
    }
    spec
}

/// While a pod has scheduling gates, its node constraints may only be tightened.
fn directives(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    const REQUIRED: [&str; 4] = [
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let selector = before.get("nodeSelector").and_then(Value::as_object);
    let kept = |(key, value): (&_, &Value)| {
        let key: &ferrokube_apimachinery::document::Text = key;
        at(after, &["nodeSelector", key.as_str()]) == Some(value)
    };
    if !selector.into_iter().flatten().all(kept) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.invalid(spec.field("nodeSelector"), after.get("nodeSelector"), why);
    }
    let (old, new) = (list_at(before, &REQUIRED), list_at(after, &REQUIRED));
    let place = REQUIRED.join(".");
    let path = spec.field(&place);
    if !old.is_empty() && old.len() != new.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.invalid(path, at(after, &REQUIRED), why);
    }
    for (index, (old, new)) in old.iter().zip(new).enumerate() {
        if !only_adds(old, new) {
            let why = "only additions are allowed (no mutations or deletions)";
            errors.invalid(path.index(index), new, why);
        }
    }
}

fn only_adds(old: &Value, new: &Value) -> bool {
    const LISTS: [&str; 2] = ["matchExpressions", "matchFields"];
    if LISTS.iter().all(|list| items(old, list).is_empty()) {
        return LISTS.iter().all(|list| items(new, list).is_empty());
    }
    LISTS.iter().all(|list| {
        let (old, new) = (items(old, list), items(new, list));
        new.len() >= old.len() && old.iter().zip(new).all(|(old, new)| same(Some(old), Some(new)))
    })
}

/// Ephemeral containers can only be added.
fn ephemeral(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    let path = spec.field("ephemeralContainers");
    let given: HashMap<&str, &Value> = list_at(after, &["ephemeralContainers"])
        .iter()
        .map(|container| (text(container, "name"), container))
        .collect();
    for old in list_at(before, &["ephemeralContainers"]) {
        let name = text(old, "name");
        match given.get(name) {
            None => errors.forbidden(
                path,
                &format!("existing ephemeral containers {name:?} may not be removed\n"),
            ),
            Some(new) if !same(Some(old), Some(new)) => {
                let why = format!("existing ephemeral containers {name:?} may not be changed\n");
                errors.forbidden(path, &why);
            }
            Some(_) => {}
        }
    }
}
