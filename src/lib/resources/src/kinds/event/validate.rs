//! Validates events. Those with an event time have more rules, and those written through
//! `events.k8s.io` the most.

use super::{EVENTS, EventForm};
use crate::checks::all_invalid;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, FormattedValue, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::Change;

/// Limit of reporting instance, action and reason.
const MAX_WORD_BYTES: usize = 128;
/// Limit of the note.
const MAX_NOTE_BYTES: usize = 1024;

pub(super) fn validate(
    form: &EventForm,
    change: &Change<'_>,
    object: &Document,
) -> Vec<FieldError> {
    let mut errors = if is_set(object, "eventTime") {
        reported(form, object)
    } else {
        place(object, form).into_iter().collect()
    };
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

/// An event without an event time must be in its object's namespace; in `default` if the object is
/// cluster-scoped.
fn place(object: &Document, form: &EventForm) -> Option<FieldError> {
    let about = object.str(&[form.involved, "namespace"]).unwrap_or_default();
    let fits = if about.is_empty() {
        matches!(object.namespace(), "" | "default")
    } else {
        about == object.namespace()
    };
    (!fits).then(|| {
        FieldError::invalid("involvedObject.namespace", about, "does not match event.namespace")
    })
}

fn reported(form: &EventForm, object: &Document) -> Vec<FieldError> {
    let own = |field: &str| object.str(&[field]).unwrap_or_default();
    let mut errors = Vec::new();
    if object.str(&[form.involved, "namespace"]).unwrap_or_default().is_empty()
        && !matches!(object.namespace(), "default" | "kube-system")
    {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            "",
            "does not match event.namespace",
        ));
    }
    let controller = own(form.controller);
    if controller.is_empty() {
        errors.push(FieldError::required(form.controller, ""));
    }
    errors.extend(all_invalid(form.controller, controller, name::qualified_name(controller)));
    for field in ["reportingInstance", "action", "reason"] {
        match own(field).len() {
            0 => errors.push(FieldError::required(field, "")),
            length if length > MAX_WORD_BYTES => errors.push(FieldError::invalid(
                field,
                "",
                format!("can have at most {MAX_WORD_BYTES} characters"),
            )),
            _ => {}
        }
    }
    if own(form.message).len() > MAX_NOTE_BYTES {
        errors.push(FieldError::invalid(
            "message",
            "",
            format!("can have at most {MAX_NOTE_BYTES} characters"),
        ));
    }
    errors
}

/// Creates through `events.k8s.io` must leave the deprecated fields empty.
fn created(form: &EventForm, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(series(object));
    if !is_set(object, "eventTime") {
        errors.push(FieldError::required("eventTime", ""));
    }
    errors.extend(kind(object));
    for (field, name) in [(form.first, "firstTimestamp"), (form.last, "lastTimestamp")] {
        if is_set(object, field) {
            errors.push(FieldError::invalid(name, "", "needs to be unset"));
        }
    }
    if object.get(&[form.count]).and_then(Value::as_i64).unwrap_or(0) != 0 {
        errors.push(FieldError::invalid("count", "", "needs to be unset"));
    }
    if object
        .get(&[form.source])
        .and_then(Value::as_object)
        .is_some_and(|source| !source.is_empty())
    {
        errors.push(FieldError::invalid("source", "", "needs to be unset"));
    }
    errors
}

fn kind(object: &Document) -> Option<FieldError> {
    let kind = object.str(&["type"]).unwrap_or_default();
    (!matches!(kind, "Normal" | "Warning"))
        .then(|| FieldError::invalid("type", "", format!("has invalid value: {kind}")))
}

fn series(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if object.get(&["series"]).is_none_or(Value::is_null) {
        return errors;
    }
    if object.get(&["series", "count"]).and_then(Value::as_i64).unwrap_or(0) < 2 {
        errors.push(FieldError::invalid("series.count", "", "should be at least 2"));
    }
    if object.str(&["series", "lastObservedTime"]).unwrap_or_default().is_empty() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
    errors
}

/// Updates through `events.k8s.io` may change only series and metadata.
fn changed(form: &EventForm, old: &Document, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get(&["series"]) != object.get(&["series"]) {
        errors.extend(series(object));
    }
    let fixed = [
        (form.involved, "involvedObject"),
        ("reason", "reason"),
        // kube-apiserver checks it twice.
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
    errors.extend(changed.map(|(field, name)| {
        FieldError::invalid(name, shown(name, object.get(&[field])), "field is immutable")
    }));
    errors
}

/// A field as kube-apiserver's internal type formats it.
fn shown(name: &str, value: Option<&Value>) -> FormattedValue {
    let fields: &[(&str, &str)] = match name {
        "involvedObject" | "related" => &[
            ("Kind", "kind"),
            ("Namespace", "namespace"),
            ("Name", "name"),
            ("UID", "uid"),
            ("APIVersion", "apiVersion"),
            ("ResourceVersion", "resourceVersion"),
            ("FieldPath", "fieldPath"),
        ],
        "source" => &[("Component", "component"), ("Host", "host")],
        "count" => return value.map_or_else(|| FormattedValue::new(0), FormattedValue::new),
        "firstTimestamp" | "lastTimestamp" | "eventTime" => return FormattedValue::new(value),
        _ => return value.map_or_else(|| FormattedValue::new(""), FormattedValue::new),
    };
    if value.is_none() && name == "related" {
        return FormattedValue::new(None::<&Value>);
    }
    let text = |field: &str| value.and_then(|value| value.get(field)?.as_str()).unwrap_or_default();
    FormattedValue::object(
        fields.iter().map(|(shown, field)| (*shown, FormattedValue::new(Word(text(field))))),
    )
}
