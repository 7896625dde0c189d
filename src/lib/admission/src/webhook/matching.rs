//! Whether a webhook reviews a write, and in which version of the object.

use super::WebhookEnvironment;
use super::hook::Hook;
use super::stats::WebhookKind;
use crate::candidate::{CandidateWrite, namespace_of};
use crate::objects::{ObjectVersions, ReviewedObjects};
use crate::request::admission_request;
use crate::spending::WorkerBudget;
use crate::step::authorizer_of;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_cel::CheckedResource;
use ferrokube_cel::admission::AdmissionInput;
use ferrokube_registry::Attributes;
use ferrokube_registry::offload::leave_worker;
use std::sync::Arc;

/// Objects of this group's kinds are never reviewed: a faulty webhook could not be removed.
const OWN_GROUP: &str = "admissionregistration.k8s.io";

/// A write as webhooks of one kind see it.
pub(super) struct ReviewedWrite<'a> {
    environment: &'a WebhookEnvironment,
    kind: WebhookKind,
    pub(super) attributes: Attributes<'a>,
    pub(super) write: CandidateWrite<'a>,
    /// Budget of match conditions.
    budget: WorkerBudget,
}

/// Whether the write is exempt from webhooks: admission configurations, so that faulty ones can be
/// removed, and objects that the control plane needs for startup and leader election.
pub(super) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let definition = &attributes.target.served.definition;
    match definition.group.as_str() {
        OWN_GROUP => true,
        "coordination.k8s.io" if definition.plural == "leases" => {
            let namespace = attributes.target.namespace.as_deref().unwrap_or_default();
            let user = attributes.context.user.name.as_str();
            matches!(namespace, "kube-system" | "kube-node-lease") && is_component(user)
        }
        _ => false,
    }
}

fn is_component(user: &str) -> bool {
    let is_account = user.starts_with("system:serviceaccount:");
    user.starts_with("system:serviceaccount:kube-system:")
        || user.starts_with("system:") && !is_account && user != "system:anonymous"
}

impl<'a> ReviewedWrite<'a> {
    pub(super) fn new(
        environment: &'a WebhookEnvironment,
        kind: WebhookKind,
        attributes: Attributes<'a>,
    ) -> Self {
        let write = CandidateWrite::new(attributes, &environment.catalog, &environment.store);
        Self { environment, kind, attributes, write, budget: WorkerBudget::default() }
    }

    /// Whether a webhook may match, judging by resource and operation alone.
    pub(super) fn may_match(&self, hook: &Hook) -> bool {
        hook.matcher.as_ref().map_or(true, |matcher| matcher.may_match(&self.write))
    }

    /// The objects for a webhook that reviews the write; `None`: it does not. `versions` are those
    /// of this object.
    ///
    /// # Errors
    /// The namespace does not exist, a conversion fails, or the conditions cannot be evaluated.
    pub(super) async fn objects_for<'o>(
        &mut self,
        hook: &Hook,
        object: Option<&'o Document>,
        versions: &mut ObjectVersions<'o>,
    ) -> Result<Option<Arc<ReviewedObjects<'o>>>, Failure>
    where
        'a: 'o,
    {
        let matcher = hook.matcher.as_ref().map_err(Failure::internal)?;
        let Some(served) = matcher.matches(&self.write, object)? else { return Ok(None) };
        let objects = versions.get(&self.write, served, [object, self.attributes.old]).await?;
        if !hook.conditions.is_empty() && !self.conditions_hold(hook, &objects).await? {
            self.environment.stats.excluded(self.kind, &hook.name, self.attributes.operation);
            return Ok(None);
        }
        Ok(Some(objects))
    }

    async fn conditions_hold(
        &mut self,
        hook: &Hook,
        objects: &ReviewedObjects<'_>,
    ) -> Result<bool, Failure> {
        if !hook.conditions.are_compiled() {
            leave_worker().await;
        }
        let target = self.attributes.target;
        let definition = &target.served.definition;
        let name = target.name.as_deref().unwrap_or_default();
        let request = admission_request(&self.attributes, &objects.served);
        let user = &self.attributes.context.user;
        let authorizer = authorizer_of(&self.environment.permits, user);
        let resource = CheckedResource {
            group: definition.group.as_str().into(),
            resource: definition.plural.as_str().into(),
            subresource: target.subresource.as_str().into(),
            namespace: namespace_of(&self.attributes).into(),
            name: name.into(),
        };
        let input = AdmissionInput {
            object: objects.object.as_deref(),
            old: objects.old.as_deref(),
            namespace: None,
            request: &request,
            params: None,
            authorizer: Some(&authorizer),
            resource: &resource,
        };
        let hold = |spending: &mut _| hook.conditions.hold(&input, spending);
        self.budget.spend(hold).await.map_err(|why| {
            tracing::warn!(webhook = hook.name, why, "match conditions cannot be evaluated");
            Failure::forbidden(&definition.group_resource(), name, &why)
        })
    }
}
