//! The five conditions that explain why a namespace still exists.

use super::content::Findings;
use crate::rest::{self, RequestOptions, code};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Writes the conditions if any of them changed.
///
/// # Errors
/// Any failure of the request.
pub(super) async fn write(
    client: &Client,
    path: &str,
    mut namespace: Value,
    findings: &Findings,
) -> Result<(), kube::Error> {
    let old = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut conditions: Vec<Value> = old
        .iter()
        .filter(|condition| !wanted(findings).iter().any(|wanted| condition["type"] == wanted.kind))
        .cloned()
        .collect();
    for NamespaceCondition { kind, failing, reason, message } in wanted(findings) {
        let status = if failing { "True" } else { "False" };
        let present = old.iter().find(|condition| condition["type"] == kind);
        let since = present
            .filter(|condition| condition["status"] == status)
            .map_or_else(|| json!(now), |condition| condition["lastTransitionTime"].clone());
        conditions.push(json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message}));
    }
    if conditions == old {
        return Ok(());
    }
    namespace["status"]["conditions"] = Value::Array(conditions);
    match rest::send(
        client,
        Method::PUT,
        &format!("{path}/status"),
        RequestOptions { body: Some(&namespace), ..RequestOptions::default() },
    )
    .await
    {
        Err(error) if matches!(code(&error), 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}

/// A condition without its time.
struct NamespaceCondition {
    kind: &'static str,
    failing: bool,
    reason: &'static str,
    message: String,
}

fn wanted(findings: &Findings) -> [NamespaceCondition; 5] {
    let count = |counts: &BTreeMap<String, u64>, noun: &str| {
        counts
            .iter()
            .map(|(name, count)| format!("{name} {noun} {count} resource instances"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let pick =
        |failing: bool, bad: &'static str, good: &'static str| if failing { bad } else { good };
    let (discovery, deletion) = (findings.discovery.is_some(), !findings.deletion.is_empty());
    let (left, held) = (!findings.remaining.is_empty(), !findings.finalizers.is_empty());
    let say = |failing: bool, bad: String, good: &str| if failing { bad } else { good.to_owned() };
    [
        NamespaceCondition {
            kind: "NamespaceDeletionDiscoveryFailure",
            failing: discovery,
            reason: pick(discovery, "DiscoveryFailed", "ResourcesDiscovered"),
            message: say(
                discovery,
                findings.discovery.clone().unwrap_or_default(),
                "Everything that is served was found",
            ),
        },
        NamespaceCondition {
            kind: "NamespaceDeletionGroupVersionParsingFailure",
            failing: false,
            reason: "ParsedGroupVersions",
            message: "Every group version could be read".to_owned(),
        },
        NamespaceCondition {
            kind: "NamespaceDeletionContentFailure",
            failing: deletion,
            reason: pick(deletion, "ContentDeletionFailed", "ContentDeleted"),
            message: say(deletion, findings.deletion.join("; "), "Every deletion was accepted"),
        },
        NamespaceCondition {
            kind: "NamespaceContentRemaining",
            failing: left,
            reason: pick(left, "SomeResourcesRemain", "ContentRemoved"),
            message: say(
                left,
                format!("Some resources are remaining: {}", count(&findings.remaining, "has")),
                "Nothing is left",
            ),
        },
        NamespaceCondition {
            kind: "NamespaceFinalizersRemaining",
            failing: held,
            reason: pick(held, "SomeFinalizersRemain", "ContentHasNoFinalizers"),
            message: say(
                held,
                format!(
                    "Some content has finalizers remaining: {}",
                    count(&findings.finalizers, "in")
                ),
                "Nothing that is left has finalizers",
            ),
        },
    ]
}
