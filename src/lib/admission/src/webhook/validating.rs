//! ValidatingAdmissionWebhook: reviews by all matching webhooks at once.

use super::WebhookEnvironment;
use super::attempt::{ReviewFault, attempt, deadline, failed_closed};
use super::hook::Hook;
use super::hooks::FollowedHooks;
use super::matching::{ReviewedObjects, ReviewedWrite, is_exempt};
use super::stats::WebhookKind;
use crate::remote::RemoteStep;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::Attributes;
use ferrokube_registry::admission::RemoteFuture;
use futures::stream::{self, StreamExt};
use std::sync::Arc;
use std::time::Instant;

const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";
/// Reviews of one write at once.
const CONCURRENCY: usize = 32;

/// The step.
pub struct ValidatingWebhooks {
    environment: WebhookEnvironment,
    hooks: FollowedHooks,
}

impl ValidatingWebhooks {
    /// Follows the configurations in the store.
    pub fn new(environment: WebhookEnvironment) -> Self {
        let services = Arc::clone(&environment.services);
        let hooks =
            FollowedHooks::new(&environment.store, "validatingwebhookconfigurations", services);
        Self { environment, hooks }
    }

    async fn review(
        &self,
        attributes: Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        if self.hooks.are_none() || is_exempt(&attributes) {
            return Ok(());
        }
        let mut write = ReviewedWrite::new(&self.environment, attributes);
        let mut due = Vec::new();
        for hook in self.hooks.now().iter() {
            if let Some(objects) = write.objects_for(hook, object).await? {
                due.push((due.len(), Arc::clone(hook), objects));
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        deadline(attributes.context)?;
        let write = &write;
        let results: Vec<Result<(), Failure>> =
            stream::iter(due)
                .map(|(index, hook, objects)| async move {
                    self.one(&hook, write, &objects, index).await
                })
                .buffered(CONCURRENCY)
                .collect()
                .await;
        results.into_iter().collect()
    }

    async fn one(
        &self,
        hook: &Hook,
        write: &ReviewedWrite<'_>,
        objects: &ReviewedObjects,
        index: usize,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let answer = attempt(hook, write, objects, false).await.map(drop);
        let stats = &self.environment.stats;
        stats.observe(WebhookKind::Validating, hook, write.attributes.operation, (began, &answer));
        match answer {
            Ok(()) => Ok(()),
            Err(ReviewFault::Call(why)) if hook.fails_closed => Err(failed_closed(hook, &why)),
            Err(ReviewFault::Call(_)) => {
                let key = format!("{FAILED_OPEN}round_0_index_{index}");
                write.attributes.context.annotate_audit(key, hook.name.as_str());
                Ok(())
            }
            Err(ReviewFault::Denied(failure) | ReviewFault::Failed(failure)) => Err(failure),
        }
    }
}

impl RemoteStep for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.hooks.are_none() || is_exempt(attributes) {
            return false;
        }
        let mut write = ReviewedWrite::new(&self.environment, *attributes);
        self.hooks.now().iter().any(|hook| write.version_for(hook).is_some())
    }

    fn validate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(self.review(attributes, object))
    }
}
