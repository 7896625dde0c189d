//! Cross-field rules of jobs: failure and success policies, and limits of large jobs.

use super::indexes;
use crate::cells::at;
use crate::checks::{FieldErrors, given, items, number, text};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use std::collections::HashSet;

/// Max bytes of a list of indexes.
const MAX_INDEXES: usize = 64 * 1024;
/// Completions above which stricter limits apply.
const MANY_COMPLETIONS: i64 = 100_000;
const FEW: i64 = 10_000;

/// Appends the errors of a job's spec at a path.
pub(super) fn validate(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    failure(spec, path.field("podFailurePolicy"), errors);
    let is_indexed = text(spec, "completionMode") == "Indexed";
    if is_indexed {
        success(spec, path.field("successPolicy"), errors);
        large(spec, path, errors);
    } else if let Some(policy) = given(spec, "successPolicy") {
        errors.invalid(path.field("successPolicy"), policy, "requires indexed completion mode");
    }
}

/// The object without a success policy that is invalid by its mere presence.
pub(super) fn validated(object: &Document, spec: &[&str]) -> Option<Document> {
    let policy = [spec, &["successPolicy"]].concat();
    let mode = [spec, &["completionMode"]].concat();
    if object.get(&policy).is_none_or(Value::is_null) || object.str(&mode) == Some("Indexed") {
        return None;
    }
    let mut validated = object.clone();
    validated.remove(&policy);
    Some(validated)
}

fn failure(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(policy) = given(spec, "podFailurePolicy") else { return };
    let template = at(spec, &["template", "spec"]).unwrap_or(&Value::Null);
    let names: HashSet<&str> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| items(template, list))
        .map(|container| text(container, "name"))
        .collect();
    let list = path.field("rules");
    for (index, rule) in items(policy, "rules").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let own = list.index(index);
        if text(rule, "action") == "FailIndex" && given(spec, "backoffLimitPerIndex").is_none() {
            let why = "requires the backoffLimitPerIndex to be set";
            errors.invalid(own.field("action"), "FailIndex", why);
        }
        let name = at(rule, &["onExitCodes", "containerName"]).and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            let why = "must be one of the container or initContainer names in the pod template";
            errors.invalid(own.field("onExitCodes.containerName"), name, why);
        }
    }
}

fn success(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(policy) = given(spec, "successPolicy") else { return };
    let Some(completions) = given(spec, "completions").and_then(Value::as_i64) else { return };
    let list = path.field("rules");
    for (index, rule) in items(policy, "rules").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let own = list.index(index);
        let given_indexes = rule.get("succeededIndexes").and_then(Value::as_str);
        let mut total = 0;
        if let Some(text) = given_indexes {
            let place = own.field("succeededIndexes");
            if text.len() > MAX_INDEXES {
                errors.push(|| FieldError::too_long(place, MAX_INDEXES));
            }
            match indexes::count(text, completions) {
                Ok(count) => total = count,
                Err(why) => {
                    let why = format!("error parsing succeededIndexes: {why}");
                    errors.invalid(place, text, &why);
                }
            }
        }
        let Some(count) = rule.get("succeededCount").and_then(Value::as_i64) else { continue };
        let place = own.field("succeededCount");
        if count > completions {
            let why = format!(
                "must be less than or equal to {completions} (the number of specified completions)"
            );
            errors.invalid(place, count, &why);
        }
        if given_indexes.is_some() && count > total {
            let why = format!(
                "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            );
            errors.invalid(place, count, &why);
        }
    }
}

fn large(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if number(spec, "completions") <= MANY_COMPLETIONS
        || given(spec, "backoffLimitPerIndex").is_none()
    {
        return;
    }
    if given(spec, "maxFailedIndexes").is_none() {
        let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
        errors.required(path.field("maxFailedIndexes"), &why);
    }
    for field in ["parallelism", "maxFailedIndexes"] {
        if number(spec, field) > FEW {
            let why = format!(
                "must be less than or equal to {FEW} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
            );
            errors.invalid(path.field(field), number(spec, field), &why);
        }
    }
}
