//! What an event must say: more, when it carries the event time of the newer API, and more again when it is written through it.

use super::{EVENTS, Form};
use crate::checks::{all_invalid, invalid, required};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::Change;

/// The longest reporting instance, action and reason.
const MAX_WORD_BYTES: usize = 128;
/// The longest note.
const MAX_NOTE_BYTES: usize = 1024;

pub(super) fn validate(form: &Form, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
    let mut errors = if is_set(object, "eventTime") { reported(form, object) } else { place(object, form).into_iter().collect() };
    if form.involved != EVENTS.involved {
        return errors;
    }
    match change.old {
        None => errors.extend(created(form, object)),
        Some(old) => errors.extend(changed(form, old, object)),
    }
    errors
}

fn is_set(object: &Document, field: &str) -> bool {
    !object.str(&[field]).unwrap_or_default().is_empty()
}

/// An event without an event time lives in the namespace of what it is about; one about a cluster-scoped object in `default`.
fn place(object: &Document, form: &Form) -> Option<FieldError> {
    let about = object.str(&[form.involved, "namespace"]).unwrap_or_default();
    let fits = if about.is_empty() { matches!(object.namespace(), "" | "default") } else { about == object.namespace() };
    (!fits).then(|| invalid("involvedObject.namespace", format!("Invalid value: {about:?}: does not match event.namespace")))
}

fn reported(form: &Form, object: &Document) -> Vec<FieldError> {
    let own = |field: &str| object.str(&[field]).unwrap_or_default();
    let mut errors = Vec::new();
    if object.str(&[form.involved, "namespace"]).unwrap_or_default().is_empty() && !matches!(object.namespace(), "default" | "kube-system") {
        errors.push(invalid("involvedObject.namespace", "Invalid value: \"\": does not match event.namespace"));
    }
    let controller = own(form.controller);
    // Upstream names the newer field in both groups.
    if controller.is_empty() {
        errors.push(required(EVENTS.controller, "Required value"));
    }
    errors.extend(all_invalid(EVENTS.controller, controller, name::qualified_name(controller)));
    for field in ["reportingInstance", "action", "reason"] {
        match own(field).len() {
            0 => errors.push(required(field, "Required value")),
            length if length > MAX_WORD_BYTES => errors.push(invalid(field, format!("can have at most {MAX_WORD_BYTES} characters"))),
            _ => {}
        }
    }
    if own(form.message).len() > MAX_NOTE_BYTES {
        errors.push(invalid("message", format!("can have at most {MAX_NOTE_BYTES} characters")));
    }
    errors
}

/// Creation through the newer API: the older fields stay empty.
fn created(form: &Form, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !is_set(object, "eventTime") {
        errors.push(required("eventTime", "Required value"));
    }
    errors.extend(kind(object));
    errors.extend(series(object));
    for (field, name) in [(form.first, "firstTimestamp"), (form.last, "lastTimestamp")] {
        if is_set(object, field) {
            errors.push(invalid(name, "needs to be unset"));
        }
    }
    if object.get(&[form.count]).and_then(Value::as_i64).unwrap_or(0) != 0 {
        errors.push(invalid("count", "needs to be unset"));
    }
    if object.get(&[form.source]).and_then(Value::as_object).is_some_and(|source| !source.is_empty()) {
        errors.push(invalid("source", "needs to be unset"));
    }
    errors
}

fn kind(object: &Document) -> Option<FieldError> {
    let kind = object.str(&["type"]).unwrap_or_default();
    (!matches!(kind, "Normal" | "Warning")).then(|| invalid("type", format!("Invalid value: {kind:?}: must be Normal or Warning")))
}

fn series(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if object.get(&["series"]).is_none_or(Value::is_null) {
        return errors;
    }
    if object.get(&["series", "count"]).and_then(Value::as_i64).unwrap_or(0) < 2 {
        errors.push(invalid("series.count", "should be at least 2"));
    }
    if object.str(&["series", "lastObservedTime"]).unwrap_or_default().is_empty() {
        errors.push(required("series.lastObservedTime", "Required value"));
    }
    errors
}

/// Change through the newer API: only the series (and metadata).
fn changed(form: &Form, old: &Document, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get(&["series"]) != object.get(&["series"]) {
        errors.extend(series(object));
    }
    let fixed = [
        (form.involved, "involvedObject"),
        ("reason", "reason"),
        (form.message, "message"),
        (form.source, "source"),
        (form.first, "firstTimestamp"),
        (form.last, "lastTimestamp"),
        (form.count, "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        (form.controller, "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    let changed = fixed.into_iter().filter(|(field, _)| old.get(&[field]) != object.get(&[field]));
    errors.extend(changed.map(|(_, name)| invalid(name, "field is immutable")));
    errors
}
