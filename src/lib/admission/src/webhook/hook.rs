//! One webhook of a configuration, compiled.

use crate::condition::MatchConditions;
use crate::rule::{RequestRule, strings};
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::selector::LabelSelector;
use ferrokube_webhook::{CallLimits, ServiceResolver, Webhook, WebhookAddress};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Concurrent calls of one webhook, and requests that wait for those.
const LIMITS: CallLimits = CallLimits { calls: 64, waiting: 512 };
/// Versions of AdmissionReview that the server knows.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// A webhook.
#[derive(Debug)]
pub(super) struct Hook {
    /// Among all webhooks.
    pub(super) id: String,
    pub(super) configuration: String,
    pub(super) name: String,
    pub(super) rules: Vec<RequestRule>,
    /// Whether a failed call rejects the request.
    pub(super) fails_closed: bool,
    /// Whether equivalent versions of a resource match.
    pub(super) equivalent: bool,
    pub(super) namespaces: LabelSelector,
    pub(super) objects: LabelSelector,
    /// Whether a dry run may call it.
    pub(super) allows_dry_run: bool,
    pub(super) timeout: Duration,
    /// The first known one; `None` is possible for objects of other servers only.
    pub(super) review_version: Option<&'static str>,
    /// Whether it runs again after a later change.
    pub(super) repeatable: bool,
    pub(super) conditions: MatchConditions,
    /// Stands for it in budgets, across its changes.
    pub(super) number: u64,
    pub(super) webhook: Webhook,
}

impl Hook {
    /// The webhooks of a configuration, in order.
    pub(super) fn all(
        configuration: &Document,
        services: &Arc<dyn ServiceResolver>,
    ) -> Vec<Arc<Self>> {
        let name = configuration.name();
        let each = configuration.list(&["webhooks"]).iter().enumerate();
        each.map(|(index, webhook)| Arc::new(Self::of(name, index, webhook, services))).collect()
    }

    fn of(
        configuration: &str,
        index: usize,
        webhook: &Value,
        services: &Arc<dyn ServiceResolver>,
    ) -> Self {
        let text = |field: &str| webhook.get(field).and_then(Value::as_str).unwrap_or_default();
        let rules = webhook.get("rules").and_then(Value::as_array).map_or(&[][..], Array::as_slice);
        let selector = |field: &str| match webhook.get(field).filter(|value| !value.is_null()) {
            None => LabelSelector::default(),
            // Validated; one that cannot be read matches nothing.
            Some(value) => {
                LabelSelector::from_document(value).unwrap_or_else(|_| LabelSelector::nothing())
            }
        };
        let seconds = webhook.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(10);
        let listed = strings(webhook, "admissionReviewVersions");
        let review_version =
            listed.iter().find_map(|given| REVIEWS.into_iter().find(|known| given == known));
        let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
        let fails_closed = text("failurePolicy") != "Ignore";
        let mut hasher = DefaultHasher::new();
        ("admission", configuration, text("name")).hash(&mut hasher);
        Self {
            id: format!("{configuration}/{}/{index}", text("name")),
            configuration: configuration.to_owned(),
            name: text("name").to_owned(),
            rules: rules.iter().map(RequestRule::of).collect(),
            fails_closed,
            equivalent: text("matchPolicy") != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            allows_dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(seconds.clamp(1, 30)),
            review_version,
            repeatable: text("reinvocationPolicy") == "IfNeeded",
            conditions: MatchConditions::of(webhook, fails_closed, false),
            number: hasher.finish(),
            webhook: Webhook::new(WebhookAddress::of(config, services), LIMITS),
        }
    }
}
