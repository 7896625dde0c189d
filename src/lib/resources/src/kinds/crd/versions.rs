//! The list of versions as such: names, and that exactly one of them is stored.

use super::{is_true, versions};
use crate::checks::{all_invalid, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::dns1035_label;
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
        errors.extend(all_invalid(&format!("{FIELD}[{index}].name"), name, dns1035_label(name)));
        if index == 0 && !name.is_empty() {
            // The old field of definitions with one version; its name is still told.
            errors.extend(all_invalid("spec.version", name, dns1035_label(name)));
        }
        if let Some(why) = deprecation_warning(version) {
            errors.push(FieldError::invalid(format!("{FIELD}[{index}].deprecationWarning"), version.get("deprecationWarning"), why));
        }
    }
    if !unique {
        errors.push(FieldError::invalid_unshown(FIELD, "must contain unique version names"));
    }
    if listed.iter().filter(|version| is_true(version, "storage")).count() != 1 {
        errors.push(FieldError::invalid_unshown(FIELD, "must have exactly one version marked as storage version"));
    }
    errors
}

/// What is wrong with the warning that clients of a deprecated version get.
fn deprecation_warning(version: &Value) -> Option<&'static str> {
    let warning = version.get("deprecationWarning")?.as_str()?;
    if !is_true(version, "deprecated") {
        return Some("can only be set for deprecated versions");
    }
    match warning {
        "" => Some("must not be an empty string"),
        long if long.len() > 256 => Some("must be <= 256 characters long"),
        odd if odd.chars().any(|letter| letter.is_control() || (letter.is_whitespace() && letter != ' ')) => {
            Some("must only contain printable UTF-8 characters")
        }
        _ => None,
    }
}
