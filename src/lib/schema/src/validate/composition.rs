//! `allOf`, `anyOf`, `oneOf` and `not`.

use super::checks::Checks;
use super::path::Path;
use super::values::Sink;
use crate::openapi;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, quote};

/// Checks a value against the compositions of its node. A failed one is reported without a place, beside what the best alternative has to say.
pub(super) fn check(sink: &mut Sink, checks: &Checks, value: &Value, path: &Path<'_>) {
    let place = || quote(&path.to_string());
    if !checks.any_of.is_empty() {
        let mut closest = Vec::new();
        if !checks.any_of.iter().any(|node| is_valid(sink.errors_of(node, value, path), &mut closest)) {
            sink.nowhere(format_args!("{} must validate at least one schema (anyOf)", place()));
            sink.extend(closest);
        }
    }
    if !checks.one_of.is_empty() {
        let mut closest = Vec::new();
        match checks.one_of.iter().filter(|node| is_valid(sink.errors_of(node, value, path), &mut closest)).count() {
            1 => {}
            0 => {
                sink.nowhere(format_args!("{} must validate one and only one schema (oneOf). Found none valid", place()));
                sink.extend(closest);
            }
            valid => sink.nowhere(format_args!("{} must validate one and only one schema (oneOf). Found {valid} valid alternatives", place())),
        }
    }
    let mut all_hold = true;
    for node in &checks.all_of {
        let errors = sink.errors_of(node, value, path);
        all_hold &= errors.is_empty();
        sink.extend(errors);
    }
    if !all_hold {
        sink.nowhere(format_args!("{} must validate all the schemas (allOf)", place()));
    }
    if checks.not.as_ref().is_some_and(|node| sink.errors_of(node, value, path).is_empty()) {
        sink.nowhere(format_args!("{} must not validate the schema (not)", place()));
    }
}

/// Whether an alternative holds. `closest` keeps the failure with the fewest errors; of several the first.
fn is_valid(errors: Vec<FieldError>, closest: &mut Vec<FieldError>) -> bool {
    let valid = errors.is_empty();
    if !valid && (closest.is_empty() || errors.len() < closest.len()) {
        *closest = errors;
    }
    valid
}

/// Writes the keywords.
pub(super) fn render(checks: &Checks, out: &mut Map) {
    for (name, nodes) in [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)] {
        if !nodes.is_empty() {
            out.insert(name.to_owned(), Value::Array(nodes.iter().map(|node| openapi::inline_v3(node)).collect()));
        }
    }
    if let Some(node) = &checks.not {
        out.insert("not".to_owned(), openapi::inline_v3(node));
    }
}
