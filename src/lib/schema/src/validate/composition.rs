//! `allOf`, `anyOf`, `oneOf` and `not`.

use super::checks::Checks;
use super::path::Path;
use super::values::Sink;
use crate::openapi;
use crate::schema::Node;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;

/// Checks a value against the compositions of its node. A failed one is reported without a place, beside what the best alternative has to say.
pub(super) fn check(sink: &mut Sink, checks: &Checks, value: &Value, path: &Path<'_>) {
    let errors = |node: &Node| {
        let mut inner = Sink::default();
        inner.value(node, value, None, path);
        inner.errors
    };
    if !checks.any_of.is_empty() {
        let failures: Vec<Vec<FieldError>> = checks.any_of.iter().map(errors).collect();
        if failures.iter().all(|failure| !failure.is_empty()) {
            sink.nowhere("must validate at least one schema (anyOf)");
            sink.errors.extend(best(failures));
        }
    }
    if !checks.one_of.is_empty() {
        let failures: Vec<Vec<FieldError>> = checks.one_of.iter().map(errors).collect();
        match failures.iter().filter(|failure| failure.is_empty()).count() {
            1 => {}
            0 => {
                sink.nowhere("must validate one and only one schema (oneOf), and validates none");
                sink.errors.extend(best(failures));
            }
            valid => sink.nowhere(format_args!("must validate one and only one schema (oneOf), and validates {valid}")),
        }
    }
    let before = sink.errors.len();
    for node in &checks.all_of {
        sink.errors.extend(errors(node));
    }
    if sink.errors.len() > before {
        sink.nowhere("must validate all the schemas (allOf)");
    }
    if checks.not.as_ref().is_some_and(|node| errors(node).is_empty()) {
        sink.nowhere("must not validate the schema (not)");
    }
}

/// The failure with the fewest errors; of several the first.
fn best(failures: Vec<Vec<FieldError>>) -> Vec<FieldError> {
    failures.into_iter().min_by_key(Vec::len).unwrap_or_default()
}

/// Writes the keywords.
pub(super) fn render(checks: &Checks, out: &mut Map<String, Value>) {
    for (name, nodes) in [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)] {
        if !nodes.is_empty() {
            out.insert(name.to_owned(), Value::Array(nodes.iter().map(|node| openapi::inline_v3(node)).collect()));
        }
    }
    if let Some(node) = &checks.not {
        out.insert("not".to_owned(), openapi::inline_v3(node));
    }
}
