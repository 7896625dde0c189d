//! Validates the list of versions: names, and exactly one storage version.

use super::fields::{is_true, versions};
use super::names::one_invalid;
use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::{dns1035_label, is_printable};
use std::collections::HashSet;

const FIELD: &str = "spec.versions";

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let listed = versions(object);
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    let mut unique = true;
    for (index, version) in listed.iter().enumerate() {
        let name = text(version, "name");
        unique &= seen.insert(name);
        errors.extend(one_invalid(
            &format!("{FIELD}[{index}].name"),
            name,
            "",
            &dns1035_label(name),
        ));
        if index == 0 && !name.is_empty() {
            // The deprecated single version is validated, too.
            errors.extend(one_invalid("spec.version", name, "", &dns1035_label(name)));
        }
        let wrong = deprecation_warning(version).into_iter();
        errors.extend(wrong.map(|why| {
            FieldError::invalid(
                format!("{FIELD}[{index}].deprecationWarning"),
                version.get("deprecationWarning"),
                why,
            )
        }));
    }
    if !unique {
        errors.push(FieldError::invalid_unshown(FIELD, "must contain unique version names"));
    }
    if listed.iter().filter(|version| is_true(version, "storage")).count() != 1 {
        errors.push(FieldError::invalid_unshown(
            FIELD,
            "must have exactly one version marked as storage version",
        ));
    }
    errors
}

/// Errors in the deprecation warning of a version.
fn deprecation_warning(version: &Value) -> Vec<String> {
    let Some(warning) = version.get("deprecationWarning").and_then(Value::as_str) else {
        return Vec::new();
    };
    if !is_true(version, "deprecated") {
        return vec!["can only be set for deprecated versions".to_owned()];
    }
    let mut wrong = Vec::new();
    if warning.len() > 256 {
        wrong.push("must be <= 256 characters long".to_owned());
    }
    if warning.is_empty() {
        wrong.push("must not be an empty string".to_owned());
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, letter)| !is_printable(*letter)) {
        wrong.push(format!("must only contain printable UTF-8 characters; non-printable character found at index {at}"));
    }
    wrong
}
