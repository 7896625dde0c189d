//! Names of a definition: its own, its group's and its kind's.

use crate::checks::{all_invalid, invalid, not_supported, required, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::{dns1035_label, dns1123_subdomain};

/// Says that somebody who may has looked at a definition in a group of the project's own.
const APPROVED: &str = "api-approved.kubernetes.io";

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let nothing = Value::Null;
    let names = object.get(&["spec", "names"]).unwrap_or(&nothing);
    let group = object.str(&["spec", "group"]).unwrap_or_default();
    let mut errors = own_name(object, group, text(names, "plural"));
    errors.extend(validate_group(group));
    errors.extend(approval(object, group));
    errors.extend(scope(object));
    errors.extend(validate_names(names));
    errors
}

fn own_name(object: &Document, group: &str, plural: &str) -> Vec<FieldError> {
    let expected = format!("{plural}.{group}");
    if object.name() == expected || object.name().is_empty() {
        return Vec::new();
    }
    vec![invalid("metadata.name", format!("Invalid value: {:?}: must be spec.names.plural+\".\"+spec.group", object.name()))]
}

fn validate_group(group: &str) -> Vec<FieldError> {
    const FIELD: &str = "spec.group";
    if group.is_empty() {
        return vec![required(FIELD, "Required value")];
    }
    let mut errors: Vec<FieldError> = all_invalid(FIELD, group, dns1123_subdomain(group)).collect();
    if errors.is_empty() && !group.contains('.') {
        errors.push(invalid(FIELD, format!("Invalid value: {group:?}: should be a domain with at least one dot")));
    }
    errors
}

/// Whether a group belongs to the project itself.
fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))
}

fn approval(object: &Document, group: &str) -> Option<FieldError> {
    if !is_protected(group) {
        return None;
    }
    const FIELD: &str = "metadata.annotations[api-approved.kubernetes.io]";
    let given = object.annotation(APPROVED).unwrap_or_default();
    if given.is_empty() {
        return Some(required(FIELD, "Required value: protected groups must have approval annotation"));
    }
    let fits = given.starts_with("unapproved") || given.starts_with("https://") || given.starts_with("http://");
    (!fits).then(|| invalid(FIELD, format!("Invalid value: {given:?}: must be the URL of the approval, or begin with \"unapproved\"")))
}

fn scope(object: &Document) -> Option<FieldError> {
    const FIELD: &str = "spec.scope";
    match object.str(&["spec", "scope"]).unwrap_or_default() {
        "Namespaced" | "Cluster" => None,
        "" => Some(required(FIELD, "Required value")),
        other => Some(not_supported(FIELD, other, &["Cluster", "Namespaced"])),
    }
}

fn validate_names(names: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, is_kind) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let (path, given) = (format!("spec.names.{field}"), text(names, field));
        if given.is_empty() {
            errors.push(required(path, "Required value"));
            continue;
        }
        // Kinds may be in mixed case.
        let checked = if is_kind { given.to_lowercase() } else { given.to_owned() };
        errors.extend(all_invalid(&path, given, dns1035_label(&checked)));
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in crate::checks::items(names, field).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            errors.extend(all_invalid(&format!("spec.names.{field}[{index}]"), name, dns1035_label(name)));
        }
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(invalid("spec.names.listKind", format!("Invalid value: {kind:?}: kind and listKind may not be the same")));
    }
    errors
}
