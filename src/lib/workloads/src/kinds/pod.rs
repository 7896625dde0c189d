//! Pod: containers that run together on a node.

mod cells;
mod labels;
mod qos;
mod resize;
mod status;
mod update;

use crate::cells::{CellValue, plain_text};
use crate::checks::{FieldErrors, items, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::validate::{self, SpecOwner};
use crate::kinds::podspec::{self, annotations, warnings};
use crate::paths::FieldPath;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::Change;
use ferrokube_resource::print::Completion;
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct Pod;

const SPEC: &[&str] = &["spec"];

impl KindCode for Pod {
    fn default(&self, _version: &str, object: &mut Document) {
        agree_on_address(object);
        podspec::default_at(object, SPEC);
        let Some(spec) = object.get_mut(SPEC).and_then(Value::as_object_mut) else { return };
        for list in ["containers", "initContainers"] {
            podspec::each(spec, list, request_limits);
        }
        if !spec.contains_key("enableServiceLinks") {
            spec.insert("enableServiceLinks", true.into());
        }
        if spec.get("hostNetwork").and_then(Value::as_bool) == Some(true) {
            for list in ["containers", "initContainers"] {
                podspec::each(spec, list, |container| podspec::each(container, "ports", host_port));
            }
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        const GRACE: [&str; 2] = ["spec", "terminationGracePeriodSeconds"];
        if object.get(&GRACE).and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
            object.set(&GRACE, 1);
        }
        let Some(old) = change.old else {
            labels::merge_keys(object);
            let gated = !object.list(&["spec", "schedulingGates"]).is_empty();
            let mut status = json!({"phase": "Pending", "qosClass": qos::class(object)});
            if gated && let Some(status) = status.as_object_mut() {
                status.insert("conditions", gated_condition(change));
            }
            return object.set(&["status"], status);
        };
        if change.subresource == "status" && object.str(&["status", "qosClass"]).is_none() {
            // Old kubelets drop it.
            if let Some(class) = old.get(&["status", "qosClass"]).cloned() {
                object.set(&["status", "qosClass"], class);
            }
        }
        if change.subresource == "status" {
            status::keep_observed(old, object);
        }
        match change.subresource {
            "ephemeralcontainers" => keep_but(old, object, &["spec", "ephemeralContainers"]),
            "resize" => {
                let spec = resized(old, object);
                object.set(SPEC, spec);
                keep_but(old, object, SPEC);
            }
            _ => {}
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let root = FieldPath::Root;
        let (metadata, path) = (root.field("metadata"), root.field("spec"));
        let Some(spec) = object.get(SPEC) else { return };
        if let Some(why) = change.old.and_then(|old| refusal(old, change.subresource)) {
            return errors.only(FieldError::forbidden(podspec::NO_FIELD, why));
        }
        let notes = annotations::annotations(object);
        let of_status = change.subresource == "status";
        if !of_status {
            let owner = SpecOwner { pod: object.get(&["metadata"]) };
            annotations::validate(notes, spec, metadata.field("annotations"), errors);
            validate::validate(spec, owner, path, errors);
        }
        let Some(old) = change.old else {
            if !items(spec, "ephemeralContainers").is_empty() {
                errors.forbidden(path.field("ephemeralContainers"), "cannot be set on create");
            }
            let gated = !items(spec, "schedulingGates").is_empty();
            if gated && !text(spec, "nodeName").is_empty() {
                let why = "cannot be set until all schedulingGates have been cleared";
                errors.forbidden(path.field("nodeName"), why);
            }
            return annotations::agree(notes, spec, path, errors);
        };
        annotations::unchanged(old, object, errors);
        match change.subresource {
            "status" => status::validate(old, object, errors),
            "resize" => resize::validate(old, object, errors),
            _ => {
                annotations::validate(notes, spec, metadata.field("annotations"), errors);
                update::validate(change.subresource, old, object, errors);
            }
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        warnings::warn(&object.clone().into_value(), FieldPath::Root, out);
    }

    fn cell(&self, word: &str, object: &Value, now: SystemTime) -> CellValue {
        cells::cell(word, object, now)
    }

    fn completion(&self, object: &Value) -> Option<Completion> {
        cells::completion(object)
    }

    /// 0 for an unscheduled or terminated pod, which is removed immediately.
    fn grace_seconds(&self, object: &Document, asked: Option<i64>) -> Option<i64> {
        let own = || object.get(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
        let phase = object.str(&["status", "phase"]).unwrap_or_default();
        let is_over = object.str(&["spec", "nodeName"]).unwrap_or_default().is_empty()
            || matches!(phase, "Failed" | "Succeeded");
        let seconds = if is_over { 0 } else { asked.or_else(own).unwrap_or(0) };
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        Some(match path {
            "spec.hostNetwork" => {
                let set = object.get(&["spec", "hostNetwork"]).and_then(Value::as_bool);
                set.unwrap_or_default().to_string()
            }
            "status.podIP" => first_address(object),
            // Accepted, but never computed.
            "status.podIPs" => String::new(),
            _ => return None,
        })
    }
}

fn first_address(object: &Document) -> String {
    let first = object.list(&["status", "podIPs"]).first();
    first.map_or_else(String::new, |first| plain_text(first.get("ip")))
}

/// The address and the first one of the addresses are the same; the former counts, since older
/// kubelets write only that.
fn agree_on_address(object: &mut Document) {
    let first = first_address(object);
    let given = object.str(&["status", "podIP"]).unwrap_or_default().to_owned();
    if !given.is_empty() && given != first {
        object.set(&["status", "podIPs"], json!([{"ip": given}]));
    } else if given.is_empty() && !first.is_empty() {
        object.set(&["status", "podIP"], first);
    }
}

/// Why a subresource of a pod cannot be written, whatever is written.
fn refusal(old: &Document, subresource: &str) -> Option<&'static str> {
    let is_mirror = annotations::is_mirror(annotations::annotations(old));
    let is_windows = old.str(&["spec", "os", "name"]) == Some("windows");
    match subresource {
        "ephemeralcontainers" if is_mirror => {
            Some("static pods do not support ephemeral containers")
        }
        "resize" if is_mirror => Some("static pods cannot be resized"),
        "resize" if is_windows => Some("windows pods cannot be resized"),
        _ => None,
    }
}

/// Reverts all but one field to the stored object.
fn keep_but(old: &Document, object: &mut Document, path: &[&str]) {
    let given = object.get(path).cloned();
    let revision = object.get(&["metadata", "resourceVersion"]).cloned();
    let managers = object.get(&["metadata", "managedFields"]).cloned();
    let mut kept = old.clone();
    match given {
        Some(value) => kept.set(path, value),
        None => {
            kept.remove(path);
        }
    }
    if let Some(revision) = revision {
        kept.set(&["metadata", "resourceVersion"], revision);
    }
    if let Some(managers) = managers {
        kept.set(&["metadata", "managedFields"], managers);
    }
    *object = kept;
}

/// The stored spec with only the resources of pod and containers replaced. Unknown containers are
/// kept, for validation to reject.
fn resized(old: &Document, object: &Document) -> Value {
    const LISTS: [&str; 2] = ["containers", "initContainers"];
    let given = object.get(SPEC).cloned().unwrap_or_default();
    let mut spec = old.get(SPEC).cloned().unwrap_or_default();
    if LISTS.iter().any(|list| items(&spec, list).len() != items(&given, list).len()) {
        return given;
    }
    let Some(fields) = spec.as_object_mut() else { return spec };
    take(fields, &given, "resources");
    for list in LISTS {
        let given = items(&given, list);
        let Some(stored) = fields.get_mut(list).and_then(Value::as_array_mut) else { continue };
        if stored.iter().zip(given).any(|(old, new)| text(old, "name") != text(new, "name")) {
            *stored = given.to_vec().into();
            continue;
        }
        for (container, new) in stored.iter_mut().zip(given) {
            let Some(container) = container.as_object_mut() else { continue };
            take(container, new, "resources");
            take(container, new, "resizePolicy");
        }
    }
    spec
}

/// Copies a field from another object, or removes it if absent there.
fn take(fields: &mut Map, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => _ = fields.insert(field, value.clone()),
        None => _ = fields.remove(field),
    }
}

fn gated_condition(change: &Change<'_>) -> Value {
    json!([{
        "lastTransitionTime": ferrokube_apimachinery::time::rfc3339_seconds(change.now),
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }])
}

/// Requests default to limits.
fn request_limits(container: &mut Map) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else {
        return;
    };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let requests = resources.entry("requests").or_insert_with(|| json!({}));
    let Some(requests) = requests.as_object_mut() else { return };
    for (name, amount) in &limits {
        if !requests.contains_key(name) {
            requests.insert(name.clone(), amount.clone());
        }
    }
}

fn host_port(port: &mut Map) {
    if port.get("hostPort").and_then(Value::as_i64).unwrap_or_default() == 0
        && let Some(number) = port.get("containerPort").cloned()
    {
        port.insert("hostPort", number);
    }
}
