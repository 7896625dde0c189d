//! ValidatingAdmissionWebhook: reviews by all matching webhooks at once.

use super::WebhookEnvironment;
use super::attempt::{ReviewFault, attempt, deadline, failed_closed, review_bytes};
use super::hook::Hook;
use super::hooks::FollowedHooks;
use super::matching::{ReviewedWrite, is_exempt};
use super::stats::WebhookKind;
use crate::objects::{ObjectVersions, ReviewedObjects};
use crate::remote::RemoteStep;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::Attributes;
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::offload::{has_slot, leave_worker};
use ferrokube_webhook::{WebhookAccess, WebhookCredentials};
use futures::stream::{self, StreamExt};
use std::sync::Arc;
use std::time::Instant;

/// The name of the step.
pub const NAME: &str = "ValidatingAdmissionWebhook";
const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";
/// Max concurrent reviews of one write, and approximate max bytes including those held by the
/// request: a large object must not compete with itself for the budget of waiting requests.
const CONCURRENCY: usize = 32;
const CONCURRENT_BYTES: usize = 8 << 20;

/// Calls all matching webhooks of a write at once, as far as their bytes allow.
pub struct ValidatingWebhooks {
    environment: WebhookEnvironment,
    hooks: FollowedHooks,
}

impl ValidatingWebhooks {
    /// Follows the configurations in the store. `credentials` are those of this step.
    pub fn new(environment: WebhookEnvironment, credentials: Arc<WebhookCredentials>) -> Self {
        let services = Arc::clone(&environment.services);
        let certificates = environment.certificates.clone();
        let access = WebhookAccess { services, credentials, certificates };
        let hooks =
            FollowedHooks::new(&environment.store, "validatingwebhookconfigurations", access);
        Self { environment, hooks }
    }

    async fn review(
        &self,
        attributes: Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        let mut write = ReviewedWrite::new(&self.environment, WebhookKind::Validating, attributes);
        let (mut due, mut versions) = (Vec::new(), ObjectVersions::default());
        for hook in self.hooks.now().iter() {
            if let Some(objects) = write.objects_for(hook, object, &mut versions).await? {
                due.push((due.len(), Arc::clone(hook), objects));
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        deadline(attributes.context)?;
        let write = &write;
        let reviews =
            due.iter().map(|(index, hook, objects)| self.one(hook, write, objects, *index));
        let reviews: Vec<_> = reviews.collect();
        let bytes = due.iter().map(|(.., objects)| objects.json().len()).max().unwrap_or(0);
        let at_once = reviews_at_once(ferrokube_flow::carried_bytes(), bytes);
        let had_slot = has_slot();
        let results: Vec<Result<(), Failure>> =
            stream::iter(reviews).buffered(at_once).collect().await;
        if had_slot {
            // Only now: a permit of one would wait for the slot of another.
            leave_worker().await;
        }
        results.into_iter().collect()
    }

    async fn one(
        &self,
        hook: &Hook,
        write: &ReviewedWrite<'_>,
        objects: &ReviewedObjects<'_>,
        index: usize,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let answer = attempt(hook, write, objects, false).await.map(drop);
        let stats = &self.environment.stats;
        stats.observe(WebhookKind::Validating, hook, write.attributes.operation, began, &answer);
        match answer {
            Ok(()) => Ok(()),
            Err(ReviewFault::Call(why)) if hook.fails_closed => Err(failed_closed(hook, &why)),
            Err(ReviewFault::Call(_)) => {
                let key = format!("{FAILED_OPEN}round_0_index_{index}");
                write.attributes.context.annotate_audit_once(key, hook.name.as_str());
                Ok(())
            }
            Err(ReviewFault::Denied(failure) | ReviewFault::Failed(failure)) => Err(failure),
        }
    }
}

/// How many reviews of `bytes` a request that holds `carried` bytes sends at once.
fn reviews_at_once(carried: usize, bytes: usize) -> usize {
    (CONCURRENT_BYTES.saturating_sub(carried) / review_bytes(bytes)).clamp(1, CONCURRENCY)
}

impl RemoteStep for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.hooks.are_none() || is_exempt(attributes) {
            return false;
        }
        let write = ReviewedWrite::new(&self.environment, WebhookKind::Validating, *attributes);
        self.hooks.now().iter().any(|hook| write.may_match(hook))
    }

    fn validate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(self.review(attributes, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_of_one_write_fit_into_the_part_of_one_caller() {
        let part = ferrokube_flow::Limits::default().away_bytes / 2;
        for (carried, bytes, expected) in [
            (0, 10_000, CONCURRENCY),
            (0, 1 << 20, 3),
            (4 << 20, 1 << 20, 1),
            // 1.4 MB with 100,000 keys.
            (11 << 20, 1_400_000, 1),
        ] {
            let at_once = reviews_at_once(carried, bytes);
            assert_eq!(at_once, expected, "{carried} {bytes}");
            assert!(at_once == 1 || carried + at_once * review_bytes(bytes) <= part);
        }
    }
}
