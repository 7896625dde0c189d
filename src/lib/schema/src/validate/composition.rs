//! `allOf`, `anyOf`, `oneOf` and `not`.

use super::checks::Checks;
use super::path::Path;
use super::values::Sink;
use crate::openapi;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, quote};

/// An alternative that was held against a value: what is wrong, and how much holds.
type Judged = (Vec<FieldError>, usize);

/// Checks a value, and what it was, against the compositions of its node. A failed one is reported
/// without a place, next to what the closest alternative has to say: the one of which the most
/// holds, as upstream counts it.
pub(super) fn check(
    sink: &mut Sink<'_>,
    checks: &Checks,
    (value, old): (&Value, Option<&Value>),
    path: &Path<'_>,
) {
    let place = || quote(&path.to_string());
    if !checks.any_of.is_empty() {
        let mut closest = None;
        for node in &checks.any_of {
            let judged = sink.errors_of(node, value, old, path);
            let holds = judged.0.is_empty();
            if holds {
                closest = Some(judged);
                break;
            }
            keep_closer(&mut closest, judged);
        }
        if closest.as_ref().is_some_and(|(errors, _)| !errors.is_empty()) {
            sink.nowhere(format_args!("{} must validate at least one schema (anyOf)", place()));
        }
        merge(sink, closest);
    }
    if !checks.one_of.is_empty() {
        let (mut closest, mut first, mut valid) = (None, None, 0_usize);
        for node in &checks.one_of {
            let judged = sink.errors_of(node, value, old, path);
            match judged.0.is_empty() {
                true => {
                    valid += 1;
                    closest = None;
                    first.get_or_insert(judged);
                }
                false if valid == 0 => keep_closer(&mut closest, judged),
                false => {}
            }
        }
        match valid {
            1 => merge(sink, first),
            0 => sink.nowhere(format_args!("{} must validate one and only one schema (oneOf). Found none valid", place())),
            valid => sink.nowhere(format_args!("{} must validate one and only one schema (oneOf). Found {valid} valid alternatives", place())),
        }
        merge(sink, closest);
    }
    if !checks.all_of.is_empty() {
        let mut valid = 0;
        for node in &checks.all_of {
            let judged = sink.errors_of(node, value, old, path);
            valid += usize::from(judged.0.is_empty());
            merge(sink, Some(judged));
        }
        if valid != checks.all_of.len() {
            sink.nowhere(format_args!(
                "{} must validate all the schemas (allOf){}",
                place(),
                if valid == 0 { ". None validated" } else { "" }
            ));
        }
    }
    if checks.not.as_ref().is_some_and(|node| sink.errors_of(node, value, old, path).0.is_empty()) {
        sink.nowhere(format_args!("{} must not validate the schema (not)", place()));
    }
}

/// Of several that are as close the first.
fn keep_closer(closest: &mut Option<Judged>, judged: Judged) {
    if closest.as_ref().is_none_or(|(_, matched)| judged.1 > *matched) {
        *closest = Some(judged);
    }
}

fn merge(sink: &mut Sink<'_>, judged: Option<Judged>) {
    let (errors, matched) = judged.unwrap_or_default();
    sink.matched += matched;
    sink.extend(errors);
}

/// Writes the keywords.
pub(super) fn render(checks: &Checks, out: &mut Map) {
    for (name, nodes) in
        [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)]
    {
        if !nodes.is_empty() {
            out.insert(
                name.to_owned(),
                Value::Array(nodes.iter().map(|node| openapi::inline_v3(node)).collect()),
            );
        }
    }
    if let Some(node) = &checks.not {
        out.insert("not".to_owned(), openapi::inline_v3(node));
    }
}
