//! `allOf`, `anyOf`, `oneOf` and `not`.

use super::checks::Checks;
use super::path::Path;
use super::values::ErrorCollector;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, quote};

/// The errors of an alternative, and how much of it matches.
type Alternative = (Vec<FieldError>, usize);

/// Checks a value against a node's compositions; in an update unchanged parts count, too. A failed
/// one is reported without a path, together with the errors of the closest alternative: the one
/// that matches most, counted as in kube-apiserver.
pub(super) fn check(
    collector: &mut ErrorCollector<'_>,
    checks: &Checks,
    value: &Value,
    path: &Path<'_>,
) {
    let place = || quote(&path.to_string());
    if !checks.any_of.is_empty() {
        let mut closest = None;
        for node in &checks.any_of {
            let alternative = collector.errors_of(node, value, path);
            let holds = alternative.0.is_empty();
            if holds {
                closest = Some(alternative);
                break;
            }
            keep_closer(&mut closest, alternative);
        }
        if closest.as_ref().is_some_and(|(errors, _)| !errors.is_empty()) {
            collector
                .pathless(format_args!("{} must validate at least one schema (anyOf)", place()));
        }
        merge(collector, closest);
    }
    if !checks.one_of.is_empty() {
        let (mut closest, mut first, mut valid) = (None, None, 0_usize);
        for node in &checks.one_of {
            let alternative = collector.errors_of(node, value, path);
            match alternative.0.is_empty() {
                true => {
                    valid += 1;
                    closest = None;
                    first.get_or_insert(alternative);
                }
                false if valid == 0 => keep_closer(&mut closest, alternative),
                false => {}
            }
        }
        match valid {
            1 => merge(collector, first),
            0 => collector.pathless(format_args!("{} must validate one and only one schema (oneOf). Found none valid", place())),
            valid => collector.pathless(format_args!("{} must validate one and only one schema (oneOf). Found {valid} valid alternatives", place())),
        }
        merge(collector, closest);
    }
    if !checks.all_of.is_empty() {
        let mut valid = 0;
        for node in &checks.all_of {
            let alternative = collector.errors_of(node, value, path);
            valid += usize::from(alternative.0.is_empty());
            merge(collector, Some(alternative));
        }
        if valid != checks.all_of.len() {
            collector.pathless(format_args!(
                "{} must validate all the schemas (allOf){}",
                place(),
                if valid == 0 { ". None validated" } else { "" }
            ));
        }
    }
    if checks.not.as_ref().is_some_and(|node| collector.errors_of(node, value, path).0.is_empty()) {
        collector.pathless(format_args!("{} must not validate the schema (not)", place()));
    }
}

/// The first of several equally close ones.
fn keep_closer(closest: &mut Option<Alternative>, alternative: Alternative) {
    if closest.as_ref().is_none_or(|(_, matched)| alternative.1 > *matched) {
        *closest = Some(alternative);
    }
}

fn merge(collector: &mut ErrorCollector<'_>, alternative: Option<Alternative>) {
    let (errors, matched) = alternative.unwrap_or_default();
    collector.matched += matched;
    collector.extend(errors);
}
