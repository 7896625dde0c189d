//! Validation of pod resizes, which may change CPU and memory of pod and containers only.

use super::qos;
use crate::cells::at;
use crate::checks::{FieldErrors, given, items, text};
use crate::kinds::podspec::is_sidecar;
use crate::paths::FieldPath;
use crate::rules::same;
use ferrokube_apimachinery::document::{Document, Map, Value};

const MUTABLE: [&str; 2] = ["cpu", "memory"];
const ONLY: &str = "only cpu and memory resources are mutable";
const ONLY_AT_POD_LEVEL: &str = "only cpu and memory resources are mutable at pod-level";
const RESTARTS: &str = "RestartContainer";

pub(super) fn validate(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let (Some(before), Some(after)) = (old.get(&["spec"]), object.get(&["spec"])) else { return };
    let class = old.str(&["status", "qosClass"]).unwrap_or_default();
    let was = if class.is_empty() { qos::class(old) } else { class };
    if was != qos::class(object) {
        errors.invalid(spec, class, "Pod QOS Class may not change as a result of resizing");
    }
    let statuses = old.list(&["status", "containerStatuses"]);
    let runs = |status: &&Value| at(status, &["state", "running"]).is_some_and(Value::is_object);
    if statuses.iter().find(runs).is_some_and(|status| given(status, "resources").is_none()) {
        errors.forbidden(spec, "Pod running on node without support for resize");
    }
    pod_level(before, after, spec, errors);
    let mut same_order = true;
    for list in ["containers", "initContainers"] {
        same_order &= is_in_order(before, after, list, spec, errors);
    }
    if !same_order {
        return;
    }
    for list in ["initContainers", "containers"] {
        let path = spec.field(list);
        for (index, (old, new)) in items(before, list).iter().zip(items(after, list)).enumerate() {
            if errors.is_full() {
                return;
            }
            let own = path.index(index);
            removed(old, new, own.field("resources"), errors);
            let changes_more = has_claims(old) || !same(Some(&fixed(old)), Some(&fixed(new)));
            match list {
                "containers" if changes_more => errors.forbidden(spec, ONLY),
                "containers" => {}
                _ => init(old, new, changes_more, own, errors),
            }
        }
    }
}

fn init(
    old: &Value,
    new: &Value,
    changes_more: bool,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if changes_more {
        errors.forbidden(
            path,
            "only cpu and memory resources for init or sidecar containers are mutable",
        );
    }
    if is_sidecar(new) || same(Some(old), Some(new)) {
        return;
    }
    for _ in items(new, "resizePolicy").iter().filter(|it| text(it, "restartPolicy") == RESTARTS) {
        let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.forbidden(path, why);
    }
}

/// As in kube-apiserver, a container with claims cannot be resized.
fn has_claims(container: &Value) -> bool {
    container.get("resources").is_some_and(|resources| !items(resources, "claims").is_empty())
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
    let has_amounts = |resources: Option<&Value>| {
        ["requests", "limits"].iter().any(|field| {
            let amounts = resources.and_then(|all| all.get(*field)?.as_object());
            amounts.is_some_and(|amounts| !amounts.is_empty())
        })
    };
    let is_set = has_amounts(old) || has_amounts(new);
    if let (Some(_), None) = (old, new)
        && is_set
    {
        return errors.forbidden(path, "pod-level resources cannot be removed");
    }
    for kind in ["requests", "limits"] {
        let amounts = |resources: Option<&Value>| resources.and_then(|all| all.get(kind)).cloned();
        if lacks(amounts(new).as_ref(), amounts(old).as_ref()) {
            let why = format!("pod-level resource {kind} cannot be removed");
            errors.forbidden(path.field(kind), &why);
        }
    }
    // Those that a pod had none of are as good as none when nothing else remains.
    let is_more = |kept: &Value| kept.as_object().is_none_or(|fields| !fields.is_empty());
    let kept = new.map(masked).filter(|kept| old.is_some() || is_more(kept));
    if !same(old.map(masked).as_ref(), kept.as_ref()) {
        let why = if is_set { ONLY_AT_POD_LEVEL } else { ONLY };
        errors.forbidden(spec, why);
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

/// A container without its mutable fields.
fn fixed(container: &Value) -> Value {
    let mut container = container.clone();
    if let Some(resources) = container.get_mut("resources") {
        *resources = masked(resources);
    }
    container
}

/// Resources without mutable ones.
fn masked(resources: &Value) -> Value {
    let mut resources = resources.clone();
    for field in ["requests", "limits"] {
        let map = resources.get_mut(field).and_then(Value::as_object_mut);
        if let Some(map) = map {
            MUTABLE.iter().for_each(|name| _ = Map::remove(map, name));
            let is_empty = map.is_empty();
            resources.as_object_mut().filter(|_| is_empty).map(|fields| fields.remove(field));
        }
    }
    resources
}
