//! The list of versions as such: names, and that exactly one of them is stored.

use super::{is_true, versions};
use crate::checks::{all_invalid, invalid, text};
use ferrokube_apimachinery::document::Document;
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
        if index == 0 {
            // The old field of definitions with one version; its name is still told.
            errors.extend(all_invalid("spec.version", name, dns1035_label(name)));
        }
        if text(version, "deprecationWarning").len() > 256 {
            errors.push(invalid(format!("{FIELD}[{index}].deprecationWarning"), "Invalid value: must be at most 256 characters"));
        }
    }
    if !unique {
        errors.push(invalid(FIELD, "Invalid value: must contain unique version names"));
    }
    if listed.iter().filter(|version| is_true(version, "storage")).count() != 1 {
        errors.push(invalid(FIELD, "Invalid value: must have exactly one version marked as storage version"));
    }
    errors
}
