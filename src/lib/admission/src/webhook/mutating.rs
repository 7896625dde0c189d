//! MutatingAdmissionWebhook: reviews one after the other, each of which may patch the object.

use super::WebhookEnvironment;
use super::answer::ReviewAnswer;
use super::attempt::{ReviewFault, attempt, failed_closed};
use super::hook::Hook;
use super::hooks::FollowedHooks;
use super::matching::{ReviewedObjects, ReviewedWrite, is_exempt};
use super::stats::WebhookKind;
use crate::remote::{Mutation, RemoteStep};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::patch::json_patch;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Attributes, convert};
use std::sync::Arc;
use std::time::Instant;

const NAME: &str = "MutatingAdmissionWebhook";
const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const PATCH: &str = "patch.webhook.admission.k8s.io/";
const FAILED_OPEN: &str = "failed-open.mutation.webhook.admission.k8s.io/";

/// The step.
pub struct MutatingWebhooks {
    environment: WebhookEnvironment,
    hooks: FollowedHooks,
}

/// A patched object in the version of the webhook.
struct Patched {
    object: Document,
    changed: bool,
}

impl MutatingWebhooks {
    /// Follows the configurations in the store.
    pub fn new(environment: WebhookEnvironment) -> Self {
        let services = Arc::clone(&environment.services);
        let hooks =
            FollowedHooks::new(&environment.store, "mutatingwebhookconfigurations", services);
        Self { environment, hooks }
    }

    async fn review(
        &self,
        attributes: Attributes<'_>,
        mutation: &mut Mutation,
    ) -> Result<(), Failure> {
        if self.hooks.are_none() || is_exempt(&attributes) {
            return Ok(());
        }
        mutation.begin(NAME);
        let mut write = ReviewedWrite::new(&self.environment, attributes);
        for (index, hook) in self.hooks.now().iter().enumerate() {
            if !mutation.is_due(NAME, &hook.id) {
                continue;
            }
            let object = mutation.object.as_ref();
            if let Some(objects) = write.objects_for(hook, object).await? {
                self.one(hook, &write, (objects, index), mutation).await?;
            }
        }
        mutation.end(NAME);
        Ok(())
    }

    async fn one(
        &self,
        hook: &Hook,
        write: &ReviewedWrite<'_>,
        (objects, index): (ReviewedObjects, usize),
        mutation: &mut Mutation,
    ) -> Result<(), Failure> {
        let attributes = &write.attributes;
        let context = attributes.context;
        let place = format!("round_{}_index_{index}", u8::from(mutation.is_second));
        let began = Instant::now();
        let answer = attempt(hook, write, &objects, true).await;
        let patched = answer.and_then(|answer| {
            let patched = patched(hook, &answer, objects.object)?;
            if patched.is_some() {
                let patch = codec::read_value(&answer.patch).unwrap_or_default();
                let note = json!({"configuration": hook.configuration, "webhook": hook.name,
                    "patch": patch, "patchType": "JSONPatch"});
                context.annotate_audit_bodies(format!("{PATCH}{place}"), text(&note));
            }
            Ok(patched)
        });
        self.environment.stats.observe(
            WebhookKind::Admit,
            hook,
            attributes.operation,
            (began, &patched),
        );
        let changed = patched
            .as_ref()
            .is_ok_and(|patched| patched.as_ref().is_some_and(|patched| patched.changed));
        let note = json!({"configuration": hook.configuration, "webhook": hook.name,
            "mutated": changed});
        context.annotate_audit(format!("{MUTATION}{place}"), text(&note));
        mutation.ran(NAME, &hook.id, changed, hook.repeatable);
        match patched {
            Ok(Some(patched)) => {
                let own = &attributes.target.served;
                mutation.object = Some(convert(&objects.served, own, &patched.object).await?);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(ReviewFault::Call(why)) if hook.fails_closed => Err(failed_closed(hook, &why)),
            Err(ReviewFault::Call(_)) => {
                context.annotate_audit(format!("{FAILED_OPEN}{place}"), hook.name.as_str());
                Ok(())
            }
            Err(ReviewFault::Denied(failure) | ReviewFault::Failed(failure)) => Err(failure),
        }
    }
}

fn text(value: &Value) -> String {
    String::from_utf8_lossy(&codec::to_vec(value)).into_owned()
}

/// The object with the answer's patch; `None` without a patch.
fn patched(
    hook: &Hook,
    answer: &ReviewAnswer,
    object: Option<Document>,
) -> Result<Option<Patched>, ReviewFault> {
    if answer.patch.is_empty() {
        return Ok(None);
    }
    let undecodable = "received undecodable patch in webhook response: it is no JSON patch";
    let patch = codec::read_value(&answer.patch)
        .ok()
        .filter(|patch| patch.is_array() || patch.is_null())
        .ok_or_else(|| ReviewFault::Call(undecodable.to_owned()))?;
    if patch.as_array().is_none_or(|operations| operations.is_empty()) {
        return Ok(None);
    }
    let name = quote(&hook.name);
    let internal = |why: String| ReviewFault::Failed(Failure::internal(why));
    let Some(object) = object else {
        return Err(internal(format!(
            "admission webhook {name} attempted to modify the object, which is not supported for this operation"
        )));
    };
    if answer.patch_type != "JSONPatch" {
        return Err(ReviewFault::Call(format!(
            "unsupported patch type {}",
            quote(&answer.patch_type)
        )));
    }
    let mut value = object.clone().into_value();
    json_patch(&mut value, &patch).map_err(|why| internal(why.to_string()))?;
    let result = Document::from_value(value)
        .map_err(|_| internal(format!("admission webhook {name} left no object")))?;
    if result.kind() != object.kind() || result.api_version() != object.api_version() {
        return Err(internal(format!("admission webhook {name} changed the type of the object")));
    }
    Ok(Some(Patched { changed: result != object, object: result }))
}

impl RemoteStep for MutatingWebhooks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.hooks.are_none() || is_exempt(attributes) {
            return false;
        }
        let mut write = ReviewedWrite::new(&self.environment, *attributes);
        self.hooks.now().iter().any(|hook| write.version_for(hook).is_some())
    }

    fn mutate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        mutation: &'a mut Mutation,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(self.review(attributes, mutation))
    }
}
