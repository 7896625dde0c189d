//! One webhook of a configuration, compiled.

use crate::condition::MatchConditions;
use crate::matching::{RequestMatcher, text};
use crate::rule::strings;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_webhook::{CallLimits, Webhook, WebhookAccess, WebhookAddress};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Concurrent calls of one webhook, and requests that wait for those.
pub(super) const LIMITS: CallLimits = CallLimits { calls: 64, waiting: 512 };
/// Versions of AdmissionReview that the server knows.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

/// A webhook.
#[derive(Debug)]
pub(super) struct Hook {
    /// Among all webhooks.
    pub(super) id: String,
    pub(super) configuration: String,
    pub(super) name: String,
    /// Or why it cannot be read: it was validated.
    pub(super) matcher: Result<RequestMatcher, String>,
    /// Whether a failed call rejects the request.
    pub(super) fails_closed: bool,
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
    pub(super) fn all(configuration: &Document, access: &WebhookAccess) -> Vec<Arc<Self>> {
        let name = configuration.name();
        let each = configuration.list(&["webhooks"]).iter().enumerate();
        each.map(|(index, webhook)| Arc::new(Self::of(name, index, webhook, access))).collect()
    }

    fn of(configuration: &str, index: usize, webhook: &Value, access: &WebhookAccess) -> Self {
        let text = |field: &str| text(webhook, field);
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
            matcher: RequestMatcher::of_webhook(webhook),
            fails_closed,
            allows_dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(seconds.clamp(1, 30)),
            review_version,
            repeatable: text("reinvocationPolicy") == "IfNeeded",
            conditions: MatchConditions::of(webhook, fails_closed, false),
            number: hasher.finish(),
            webhook: Webhook::new(WebhookAddress::of(config, access), LIMITS),
        }
    }
}
