//! Conditions of a signing request: Approved and Denied are exclusive and final.

use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Word};
use ferrokube_apimachinery::time;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Conditions whose status is always True.
const DECISIONS: [&str; 2] = ["Approved", "Denied"];

fn all(object: &Document) -> &[Value] {
    object.list(&["status", "conditions"])
}

fn all_mut(object: &mut Document) -> impl Iterator<Item = &mut Value> {
    object.get_mut(&["status", "conditions"]).and_then(Value::as_array_mut).into_iter().flatten()
}

fn of_type<'a>(object: &'a Document, kind: &'a str) -> Vec<&'a Value> {
    all(object).iter().filter(|condition| text(condition, "type") == kind).collect()
}

/// Sets missing times.
pub(super) fn stamp(old: &Document, object: &mut Document, now: SystemTime) {
    let now = Value::from(time::rfc3339_seconds(now));
    let is_unset =
        |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().is_empty();
    let key = |condition: &Value| {
        (text(condition, "type").to_owned(), text(condition, "status").to_owned())
    };
    // The first condition of each type.
    let stored: HashMap<(String, String), &Value> =
        all(old).iter().rev().map(|was| (key(was), was)).collect();
    for condition in all_mut(object) {
        let same = stored.get(&key(condition));
        let transition = same
            .and_then(|was| was.get("lastTransitionTime"))
            .filter(|time| !time.is_null())
            .unwrap_or(&now)
            .clone();
        let Some(condition) = condition.as_object_mut() else { continue };
        if is_unset(condition.get("lastUpdateTime")) {
            condition.insert("lastUpdateTime".to_owned(), now.clone());
        }
        if is_unset(condition.get("lastTransitionTime")) {
            condition.insert("lastTransitionTime".to_owned(), transition);
        }
    }
}

/// Restores the decisions in a status write. [`validate_change`] reports added and removed ones.
pub(super) fn keep_decisions(old: &Document, object: &mut Document) {
    for kind in DECISIONS {
        let was = of_type(old, kind);
        if was.len() != of_type(object, kind).len() {
            continue;
        }
        let slots = all_mut(object).filter(|condition| text(condition, "type") == kind);
        for (slot, was) in slots.zip(was) {
            *slot = was.clone();
        }
    }
}

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let conditions = all(object);
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        let path = format!("status.conditions[{index}]");
        let kind = text(condition, "type");
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        }
        errors.extend(status_error(kind, text(condition, "status"), &path));
        let other = DECISIONS
            .contains(&kind)
            .then(|| if kind == DECISIONS[0] { DECISIONS[1] } else { DECISIONS[0] });
        if other.is_some_and(|other| seen.contains(other)) {
            errors.push(FieldError::invalid(
                "status.conditions",
                Word(kind),
                "Approved and Denied conditions are mutually exclusive",
            ));
        }
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), Word(kind)));
        }
    }
    errors
}

fn status_error(kind: &str, status: &str, path: &str) -> Option<FieldError> {
    let allowed: &[&str] = if matches!(kind, "Approved" | "Denied" | "Failed") {
        &["True"]
    } else {
        &["False", "True", "Unknown"]
    };
    let field = format!("{path}.status");
    if status.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    (!allowed.contains(&status)).then(|| FieldError::not_supported(field, Word(status), allowed))
}

/// Errors in changed conditions: decisions and failures are final, and decisions are made through
/// `approval` only.
pub(super) fn validate_change(
    old: &Document,
    object: &Document,
    deciding: bool,
) -> Vec<FieldError> {
    const FIELD: &str = "status.conditions";
    let of_both = |kind: &'static str| (kind, of_type(old, kind), of_type(object, kind));
    let forbidden = |verb: &str, kind: &str| {
        FieldError::forbidden(FIELD, format!("updates may not {verb} a condition of type {kind:?}"))
    };
    let removed = ["Approved", "Denied", "Failed"]
        .map(of_both)
        .into_iter()
        .filter(|(_, was, is)| is.len() < was.len())
        .map(|(kind, ..)| forbidden("remove", kind));
    let decided = DECISIONS
        .map(of_both)
        .into_iter()
        .filter(|(_, was, is)| !deciding && is.len() >= was.len() && is != was)
        .map(|(kind, was, is)| {
            forbidden(if is.len() > was.len() { "add" } else { "modify" }, kind)
        });
    removed.chain(decided).collect()
}

/// Cell of the Condition column.
pub(super) fn summary(object: &Document) -> String {
    let has = |kind: &str| !of_type(object, kind).is_empty();
    let mut summary = String::from(if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    });
    if has("Failed") {
        summary.push_str(",Failed");
    }
    if !object.str(&["status", "certificate"]).unwrap_or_default().is_empty() {
        summary.push_str(",Issued");
    }
    summary
}
