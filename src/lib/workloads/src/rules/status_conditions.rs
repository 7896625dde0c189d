//! Rules about conditions in the status of objects.

use super::field::CheckFn;
use crate::checks::{FieldErrors, text};
use crate::conditions::is_given;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use std::collections::HashSet;

const MAX_REASON_BYTES: usize = 1 << 10;
const MAX_MESSAGE_BYTES: usize = 32 << 10;

pub(super) fn function(word: &str) -> Option<CheckFn> {
    const CHECK: CheckFn = |it, errors| check(it.items(), it.path, errors);
    (word == "conditions").then_some(CHECK)
}

/// Appends the errors of `metav1.Condition`s.
pub(crate) fn check(list: &[Value], path: FieldPath<'_>, errors: &mut FieldErrors) {
    const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
    let mut types = HashSet::new();
    for (at, condition) in list.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = path.index(at);
        let kind = text(condition, "type");
        if !types.insert(kind) {
            errors.duplicate(path.field("type"), kind);
        }
        errors.all_invalid(path.field("type"), kind, name::qualified_name(kind));
        let status = text(condition, "status");
        if !matches!(status, "True" | "False" | "Unknown") {
            errors.not_supported(path.field("status"), status, &["False", "True", "Unknown"]);
        }
        let generation = condition.get("observedGeneration").and_then(Value::as_i64);
        if let Some(generation) = generation.filter(|number| *number < 0) {
            let why = "must be greater than or equal to zero";
            errors.invalid(path.field("observedGeneration"), generation, why);
        }
        if !condition.get("lastTransitionTime").is_some_and(is_given) {
            errors.required(path.field("lastTransitionTime"), "");
        }
        let reason = text(condition, "reason");
        if reason.is_empty() {
            errors.required(path.field("reason"), "");
        } else if !is_reason(reason) {
            errors.invalid(path.field("reason"), reason, REASON);
        }
        for (field, most) in [("reason", MAX_REASON_BYTES), ("message", MAX_MESSAGE_BYTES)] {
            if text(condition, field).len() > most {
                errors.push(|| FieldError::too_long(path.field(field), most));
            }
        }
    }
}

fn is_reason(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|last| last.is_ascii_alphanumeric() || *last == b'_')
        && bytes.iter().all(|byte| is_inner(*byte))
}
