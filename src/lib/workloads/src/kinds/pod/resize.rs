//! What the resize of a pod may change: CPU and memory of its containers.

use super::qos;
use crate::cells::at;
use crate::checks::{FieldErrors, given, items, text};
use crate::kinds::podspec::is_sidecar;
use crate::paths::FieldPath;
use crate::rules::same;
use ferrokube_apimachinery::document::{Document, Map, Value};

const MUTABLE: [&str; 2] = ["cpu", "memory"];
/// How kube-apiserver shows an empty path.
const NO_FIELD: &str = "[]";
const ONLY: &str = "only cpu and memory resources are mutable";

pub(super) fn validate(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let (Some(before), Some(after)) = (old.get(&["spec"]), object.get(&["spec"])) else { return };
    if at(before, &["os", "name"]).and_then(Value::as_str) == Some("windows") {
        return errors.forbidden(root.field(NO_FIELD), "windows pods cannot be resized");
    }
    if old.get(&["metadata", "annotations", "kubernetes.io/config.mirror"]).is_some() {
        return errors.forbidden(root.field(NO_FIELD), "static pods cannot be resized");
    }
    let class = old.str(&["status", "qosClass"]).unwrap_or_default();
    if !class.is_empty() && class != qos::class(object) {
        errors.invalid(spec, class, "Pod QOS Class may not change as a result of resizing");
    }
    let statuses = old.list(&["status", "containerStatuses"]);
    let runs = |status: &&Value| at(status, &["state", "running"]).is_some_and(Value::is_object);
    if statuses.iter().find(runs).is_some_and(|status| given(status, "resources").is_none()) {
        errors.forbidden(spec, "Pod running on node without support for resize");
    }
    let mut same_order = true;
    for list in ["containers", "initContainers"] {
        same_order &= is_in_order(before, after, list, spec, errors);
    }
    if !same_order {
        return;
    }
    pod_level(before, after, spec, errors);
    for list in ["initContainers", "containers"] {
        let path = spec.field(list);
        for (index, (old, new)) in items(before, list).iter().zip(items(after, list)).enumerate() {
            if errors.is_full() {
                return;
            }
            let (is_init, own) = (list == "initContainers", path.index(index));
            if is_init && !is_sidecar(old) {
                if !same(Some(old), Some(new)) {
                    let why = "resources for non-sidecar init containers are immutable";
                    errors.forbidden(spec, why);
                }
                continue;
            }
            removed(old, new, own.field("resources"), errors);
            if !same(Some(&fixed(old)), Some(&fixed(new))) {
                match is_init {
                    true => errors.forbidden(
                        own,
                        "only cpu and memory resources for init or sidecar containers are mutable",
                    ),
                    false => errors.forbidden(spec, ONLY),
                }
            }
        }
    }
}

fn is_in_order(
    before: &Value,
    after: &Value,
    list: &str,
    spec: FieldPath<'_>,
    errors: &mut FieldErrors,
) -> bool {
    let (old, new, path) = (items(before, list), items(after, list), spec.field(list));
    if old.len() != new.len() {
        let why = format!("{list} may not be added or removed on resize");
        errors.forbidden(path, &why);
        return false;
    }
    let mut fits = true;
    for (index, (old, new)) in old.iter().zip(new).enumerate() {
        if text(old, "name") != text(new, "name") {
            let why = format!("{list} may not be renamed or reordered on resize");
            errors.forbidden(path.index(index).field("name"), &why);
            fits = false;
        }
    }
    fits
}

fn pod_level(before: &Value, after: &Value, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    let (old, new) = (given(before, "resources"), given(after, "resources"));
    let path = spec.field("resources");
    let Some(old) = old else {
        return;
    };
    let Some(new) = new else {
        return errors.forbidden(path, "pod-level resources cannot be removed");
    };
    for (field, kind) in [("requests", "requests"), ("limits", "limits")] {
        if lacks(new.get(field), old.get(field)) {
            let why = format!("pod-level resource {kind} cannot be removed");
            errors.forbidden(path.field(field), &why);
        }
    }
}

fn lacks(new: Option<&Value>, old: Option<&Value>) -> bool {
    let new = new.and_then(Value::as_object);
    let mut old = old.and_then(Value::as_object).into_iter().flatten();
    old.any(|(name, _)| new.is_none_or(|new| !new.contains_key(name)))
}

fn removed(old: &Value, new: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    for field in ["requests", "limits"] {
        if lacks(at(new, &["resources", field]), at(old, &["resources", field])) {
            let why = format!("resource {field} cannot be removed");
            errors.forbidden(path.field(field), &why);
        }
    }
}

/// A container without what may change.
fn fixed(container: &Value) -> Value {
    let mut container = container.clone();
    let resources = container.get_mut("resources").and_then(Value::as_object_mut);
    if let Some(resources) = resources {
        for field in ["requests", "limits"] {
            let map = resources.get_mut(field).and_then(Value::as_object_mut);
            if let Some(map) = map {
                MUTABLE.iter().for_each(|name| _ = Map::remove(map, name));
            }
        }
    }
    container
}
