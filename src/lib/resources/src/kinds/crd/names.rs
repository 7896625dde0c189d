//! Validates names of a definition, its group and its kind.

use crate::checks::{ErrorList, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::{dns1035_label, dns1123_subdomain};

/// Approval of a definition in a protected group.
const APPROVED: &str = "api-approved.kubernetes.io";

pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let nothing = Value::Null;
    let names = object.get(&["spec", "names"]).unwrap_or(&nothing);
    let group = object.str(&["spec", "group"]).unwrap_or_default();
    let mut errors = validate_group(group);
    errors.extend(scope(object));
    for field in ["plural", "singular", "kind", "listKind"]
        .into_iter()
        .filter(|field| text(names, field).is_empty())
    {
        errors.push(FieldError::required(format!("spec.names.{field}"), ""));
    }
    errors.extend(validate_names(names, "spec.names"));
    errors
}

/// Errors in the name, which must be `<plural>.<group>`; so generateName cannot work. A missing
/// name is reported elsewhere.
pub(super) fn own_name(object: &Document) -> impl Iterator<Item = FieldError> + use<> {
    let [plural, group] = [&["spec", "names", "plural"][..], &["spec", "group"]]
        .map(|path| object.str(path).unwrap_or_default());
    let expected = format!("{plural}.{group}");
    let given = ["generateName", "name"].map(|field| (field, object.meta(field).to_owned()));
    given.into_iter().filter(move |(_, given)| !given.is_empty() && *given != expected).map(
        |(field, given)| {
            FieldError::invalid(
                format!("metadata.{field}"),
                given,
                "must be spec.names.plural+\".\"+spec.group",
            )
        },
    )
}

fn validate_group(group: &str) -> Vec<FieldError> {
    const FIELD: &str = "spec.group";
    if group.is_empty() {
        return vec![FieldError::required(FIELD, "")];
    }
    let wrong = dns1123_subdomain(group);
    if wrong.is_empty() && !group.contains('.') {
        return vec![FieldError::invalid(FIELD, group, "should be a domain with at least one dot")];
    }
    one_invalid(FIELD, group, "", &wrong).into_iter().collect()
}

/// Whether the group belongs to the Kubernetes project.
fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    })
}

/// State of the approval annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApprovalState {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

fn approval_of(object: &Document) -> ApprovalState {
    match object.annotation(APPROVED).unwrap_or_default() {
        "" => ApprovalState::Missing,
        given if given.starts_with("unapproved") => ApprovalState::Bypassed,
        given => match given.split_once("://") {
            Some((scheme, rest))
                if !scheme.is_empty()
                    && !rest.split(['/', '?', '#']).next().unwrap_or_default().is_empty() =>
            {
                ApprovalState::Approved
            }
            _ => ApprovalState::Invalid,
        },
    }
}

const MISSING: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
const INVALID: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \
                       \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";

/// Errors in the approval of a definition in a protected group. An unchanged state is accepted, so
/// that other fields can be updated.
pub(super) fn approval(old: Option<&Document>, object: &Document) -> Option<FieldError> {
    if !is_protected(object.str(&["spec", "group"]).unwrap_or_default()) {
        return None;
    }
    const FIELD: &str = "metadata.annotations[api-approved.kubernetes.io]";
    let state = approval_of(object);
    if old.is_some_and(|old| approval_of(old) == state) {
        return None;
    }
    match state {
        ApprovalState::Missing => Some(FieldError::required(FIELD, MISSING)),
        ApprovalState::Invalid => Some(FieldError::invalid(
            FIELD,
            object.annotation(APPROVED).unwrap_or_default(),
            INVALID,
        )),
        ApprovalState::Approved | ApprovalState::Bypassed => None,
    }
}

fn scope(object: &Document) -> Option<FieldError> {
    const FIELD: &str = "spec.scope";
    match object.str(&["spec", "scope"]).unwrap_or_default() {
        "Namespaced" | "Cluster" => None,
        "" => Some(FieldError::required(FIELD, "")),
        other => Some(FieldError::not_supported(FIELD, other, ["Cluster", "Namespaced"])),
    }
}

/// One error with all messages, if any.
pub(super) fn one_invalid(
    field: &str,
    value: &str,
    lead: &str,
    sentences: &[String],
) -> Option<FieldError> {
    (!sentences.is_empty())
        .then(|| FieldError::invalid(field, value, format!("{lead}{}", sentences.join(","))))
}

/// Validates names in the spec, or the accepted ones in the status.
pub(super) fn validate_names(names: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, is_kind) in
        [("plural", false), ("singular", false), ("kind", true), ("listKind", true)]
    {
        let given = text(names, field);
        // Kinds may have mixed case.
        let (checked, lead) = if is_kind {
            (given.to_lowercase(), "may have mixed case, but should otherwise match: ")
        } else {
            (given.to_owned(), "")
        };
        if !given.is_empty() {
            errors.extend(one_invalid(
                &format!("{path}.{field}"),
                given,
                lead,
                &dns1035_label(&checked),
            ));
        }
    }
    for field in ["shortNames", "categories"] {
        let mut of_field = ErrorList::default();
        let listed = crate::checks::items(names, field).iter().enumerate();
        of_field.check_each(listed, |(index, name)| {
            let name = name.as_str().unwrap_or_default();
            one_invalid(&format!("{path}.{field}[{index}]"), name, "", &dns1035_label(name))
        });
        errors.extend(of_field.into_vec());
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        errors.push(FieldError::invalid(
            format!("{path}.listKind"),
            kind,
            "kind and listKind may not be the same",
        ));
    }
    errors
}
