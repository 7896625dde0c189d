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
        .filter(|condition| !wanted(findings).iter().any(|(kind, ..)| condition["type"] == *kind))
        .cloned()
        .collect();
    for (kind, failing, reason, message) in wanted(findings) {
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

fn wanted(findings: &Findings) -> [(&'static str, bool, &'static str, String); 5] {
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
        (
            "NamespaceDeletionDiscoveryFailure",
            discovery,
            pick(discovery, "DiscoveryFailed", "ResourcesDiscovered"),
            say(
                discovery,
                findings.discovery.clone().unwrap_or_default(),
                "Everything that is served was found",
            ),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "Every group version could be read".to_owned(),
        ),
        (
            "NamespaceDeletionContentFailure",
            deletion,
            pick(deletion, "ContentDeletionFailed", "ContentDeleted"),
            say(deletion, findings.deletion.join("; "), "Every deletion was accepted"),
        ),
        (
            "NamespaceContentRemaining",
            left,
            pick(left, "SomeResourcesRemain", "ContentRemoved"),
            say(
                left,
                format!("Some resources are remaining: {}", count(&findings.remaining, "has")),
                "Nothing is left",
            ),
        ),
        (
            "NamespaceFinalizersRemaining",
            held,
            pick(held, "SomeFinalizersRemain", "ContentHasNoFinalizers"),
            say(
                held,
                format!(
                    "Some content has finalizers remaining: {}",
                    count(&findings.finalizers, "in")
                ),
                "Nothing that is left has finalizers",
            ),
        ),
    ]
}
