//! The status of a definition: accepted names and conditions.

use super::fields::{group, text};
use super::names::NameDecision;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::time::rfc3339_seconds;
use std::time::SystemTime;

/// Annotation that approves a definition in a protected group (`*.k8s.io`, `*.kubernetes.io`).
const APPROVED: &str = "api-approved.kubernetes.io";

pub(super) struct StatusInput<'a> {
    pub(super) object: &'a Document,
    pub(super) decided: &'a NameDecision,
    pub(super) broken: Option<&'a str>,
}

/// A condition without its time.
pub(super) struct Condition<'a> {
    pub(super) kind: &'static str,
    pub(super) status: bool,
    pub(super) reason: &'a str,
    pub(super) message: String,
}

fn condition<'a>(object: &'a Document, kind: &str) -> Option<&'a Value> {
    object.list(&["status", "conditions"]).iter().find(|condition| text(condition, "type") == kind)
}

fn is_status(object: &Document, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|condition| text(condition, "status") == status)
}

/// Whether it was ever established; it stays so.
pub(super) fn is_established(object: &Document) -> bool {
    is_status(object, "Established", "True")
}

impl StatusInput<'_> {
    /// The object with its new status; `None` if it is up to date.
    pub(super) fn updated(&self, now: SystemTime) -> Option<Document> {
        let mut updated = self.object.clone();
        updated.set(&["status", "acceptedNames"], self.decided.accepted.to_value());
        let conflict = self.decided.conflict.as_ref();
        let names = match conflict {
            Some((reason, message)) => {
                Condition { kind: "NamesAccepted", status: false, reason, message: message.clone() }
            }
            None => Condition {
                kind: "NamesAccepted",
                status: true,
                reason: "NoConflicts",
                message: "no conflicts found".to_owned(),
            },
        };
        set(&mut updated, &names, now);
        if !is_established(self.object) {
            let established = match conflict {
                Some(_) => Condition {
                    kind: "Established",
                    status: false,
                    reason: "NotAccepted",
                    message: "not all names are accepted".to_owned(),
                },
                None => Condition {
                    kind: "Established",
                    status: true,
                    reason: "InitialNamesAccepted",
                    message: "the initial names have been accepted".to_owned(),
                },
            };
            set(&mut updated, &established, now);
        }
        match self.broken {
            Some(why) => set(
                &mut updated,
                &Condition {
                    kind: "NonStructuralSchema",
                    status: true,
                    reason: "Violations",
                    message: why.to_owned(),
                },
                now,
            ),
            None => remove(&mut updated, "NonStructuralSchema"),
        }
        if let Some(approval) = approval(self.object) {
            set(&mut updated, &approval, now);
        }
        (updated != *self.object).then_some(updated)
    }
}

fn approval(object: &Document) -> Option<Condition<'_>> {
    let group = group(object);
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    });
    if !protected {
        return None;
    }
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    const MISSING: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111";
    const INVALID: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \
                           \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
    Some(match object.annotation(APPROVED).unwrap_or_default() {
        "" => Condition {
            kind: KIND,
            status: false,
            reason: "MissingAnnotation",
            message: MISSING.to_owned(),
        },
        given if given.starts_with("unapproved") => Condition {
            kind: KIND,
            status: false,
            reason: "UnapprovedAnnotation",
            message: format!("not approved: {given:?}"),
        },
        given if given.starts_with("http") => Condition {
            kind: KIND,
            status: true,
            reason: "ApprovedAnnotation",
            message: format!("approved in {given}"),
        },
        _ => Condition {
            kind: KIND,
            status: false,
            reason: "InvalidAnnotation",
            message: INVALID.to_owned(),
        },
    })
}

/// Sets a condition; its time changes only with its status.
pub(super) fn set(object: &mut Document, updated: &Condition<'_>, now: SystemTime) {
    let status = if updated.status { "True" } else { "False" };
    let before = condition(object, updated.kind).filter(|before| text(before, "status") == status);
    let time = before
        .map(|before| text(before, "lastTransitionTime"))
        .filter(|time| !time.is_empty())
        .map_or_else(|| rfc3339_seconds(now), str::to_owned);
    let value = json!({"type": updated.kind, "status": status, "lastTransitionTime": time, "reason": updated.reason, "message": updated.message});
    let mut conditions = object.list(&["status", "conditions"]).to_vec();
    match conditions.iter_mut().find(|condition| text(condition, "type") == updated.kind) {
        Some(slot) => *slot = value,
        None => conditions.push(value),
    }
    object.set(&["status", "conditions"], conditions);
}

fn remove(object: &mut Document, kind: &str) {
    if condition(object, kind).is_some() {
        let mut conditions = object.list(&["status", "conditions"]).to_vec();
        conditions.retain(|condition| text(condition, "type") != kind);
        object.set(&["status", "conditions"], conditions);
    }
}
