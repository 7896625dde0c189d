//! MutatingAdmissionWebhook: sequential reviews, each of which may patch the object.

use super::WebhookEnvironment;
use super::answer::ReviewAnswer;
use super::attempt::{ReviewFault, attempt, failed_closed};
use super::hook::Hook;
use super::hooks::FollowedHooks;
use super::matching::{ReviewedWrite, is_exempt};
use super::stats::WebhookKind;
use crate::candidate::CandidateWrite;
use crate::objects::{ObjectVersions, ReviewedObjects, in_own_version};
use crate::remote::{Mutation, RemoteStep};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::patch::json_patch;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::offload::{has_slot, is_costly, leave_worker};
use ferrokube_registry::{Attributes, FieldValidation};
use ferrokube_webhook::{WebhookAccess, WebhookCredentials};
use std::sync::Arc;
use std::time::Instant;

/// The name of the step.
pub const NAME: &str = "MutatingAdmissionWebhook";
/// Max bytes of an object after a patch, as of a request's body: webhooks that come after cannot
/// make it grow without bound.
const MAX_OBJECT_BYTES: usize = 3 << 20;
const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const PATCH: &str = "patch.webhook.admission.k8s.io/";
const FAILED_OPEN: &str = "failed-open.mutation.webhook.admission.k8s.io/";

/// Calls the matching webhooks sequentially, each with the object returned by the previous one.
pub struct MutatingWebhooks {
    environment: WebhookEnvironment,
    hooks: FollowedHooks,
}

/// A patched object in the version of the webhook.
struct Patched {
    object: Document,
    /// JSON patch operations.
    patch: Value,
    changed: bool,
}

impl MutatingWebhooks {
    /// Follows the configurations in the store. `credentials` are those of this step.
    pub fn new(environment: WebhookEnvironment, credentials: Arc<WebhookCredentials>) -> Self {
        let services = Arc::clone(&environment.services);
        let certificates = environment.certificates.clone();
        let access = WebhookAccess { services, credentials, certificates };
        let hooks = FollowedHooks::new(&environment.store, "mutatingwebhookconfigurations", access);
        Self { environment, hooks }
    }

    async fn review(
        &self,
        attributes: Attributes<'_>,
        mutation: &mut Mutation,
    ) -> Result<(), Failure> {
        mutation.begin(NAME);
        let mut write = ReviewedWrite::new(&self.environment, WebhookKind::Admit, attributes);
        for (index, hook) in self.hooks.now().iter().enumerate() {
            if !mutation.is_due(NAME, &hook.id) {
                continue;
            }
            let object = mutation.object.take();
            let reviewed = self.one(hook, &mut write, object.as_ref(), index, mutation).await;
            mutation.object = reviewed?.or(object);
        }
        mutation.end(NAME);
        Ok(())
    }

    /// A review by one webhook, if it is to review the object; the new object if it changes it.
    async fn one(
        &self,
        hook: &Hook,
        write: &mut ReviewedWrite<'_>,
        object: Option<&Document>,
        index: usize,
        mutation: &mut Mutation,
    ) -> Result<Option<Document>, Failure> {
        let mut versions = ObjectVersions::default();
        let Some(objects) = write.objects_for(hook, object, &mut versions).await? else {
            return Ok(None);
        };
        let attributes = &write.attributes;
        let context = attributes.context;
        let place = format!("round_{}_index_{index}", u8::from(mutation.is_second));
        let (began, had_slot) = (Instant::now(), has_slot());
        let review = attempt(hook, write, &objects, true).await;
        if had_slot || review.as_ref().is_ok_and(|review| is_costly(&review.answer.patch)) {
            leave_worker().await;
        }
        let patched =
            review.and_then(|review| patched(hook, &write.write, &objects, &review.answer));
        let stats = &self.environment.stats;
        stats.observe(WebhookKind::Admit, hook, attributes.operation, began, &patched);
        let changed = matches!(&patched, Ok(Some(patched)) if patched.changed);
        let note = json!({"configuration": hook.configuration, "webhook": hook.name,
            "mutated": changed});
        context.annotate_audit_once(format!("{MUTATION}{place}"), text(&note));
        mutation.ran(NAME, &hook.id, changed, hook.repeatable);
        match patched {
            Ok(Some(Patched { object, patch, .. })) => {
                let note = text(&json!({"configuration": hook.configuration,
                    "webhook": hook.name, "patch": patch, "patchType": "JSONPatch"}));
                context.annotate_audit_bodies(format!("{PATCH}{place}"), note);
                let own = in_own_version(&write.write, &objects.served, object).await?;
                mutation.room = own.room;
                Ok(Some(own.object))
            }
            Ok(None) => Ok(None),
            Err(ReviewFault::Call(why)) if hook.fails_closed => Err(failed_closed(hook, &why)),
            Err(ReviewFault::Call(_)) => {
                context.annotate_audit_once(format!("{FAILED_OPEN}{place}"), hook.name.as_str());
                Ok(None)
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
    write: &CandidateWrite<'_>,
    objects: &ReviewedObjects<'_>,
    answer: &ReviewAnswer,
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
    let Some(object) = objects.object.as_deref() else {
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
    let result = Document::from_value(value).map_err(|value| {
        internal(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type {}",
            codec::type_name(&value),
            go::TYPE_META
        ))
    })?;
    if codec::document_to_vec(&result).len() > MAX_OBJECT_BYTES {
        let why = format!("Request entity too large: limit is {MAX_OBJECT_BYTES}");
        return Err(ReviewFault::Failed(Failure::new(Reason::RequestEntityTooLarge, why)));
    }
    let decoded = write.decode(&objects.served, result, FieldValidation::Ignore);
    let mut result = decoded.map_err(internal)?;
    let changed = result != *object && write.differ(&objects.served, object, &result);
    write.set_defaults(&objects.served, &mut result);
    Ok(Some(Patched { changed, object: result, patch }))
}

impl RemoteStep for MutatingWebhooks {
    fn name(&self) -> &'static str {
        NAME
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if self.hooks.are_none() || is_exempt(attributes) {
            return false;
        }
        let write = ReviewedWrite::new(&self.environment, WebhookKind::Admit, *attributes);
        self.hooks.now().iter().any(|hook| write.may_match(hook))
    }

    fn mutate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        mutation: &'a mut Mutation,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(self.review(attributes, mutation))
    }
}
