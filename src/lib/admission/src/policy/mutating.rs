//! The step of MutatingAdmissionPolicies.

use super::compiled::{CompiledBinding, CompiledMutation, CompiledPolicy};
use super::set::PolicySource;
use super::{PolicyFault, PolicyInputs, PolicySubject, converted, is_exempt, match_policy};
use crate::remote::{Mutation, RemoteStep};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::patch::{PatchError, json_patch};
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Attributes, Served};
use ferrokube_schema::apply::merge_configuration;
use std::sync::Arc;

const STEP: &str = "MutatingAdmissionPolicy";

/// The step of MutatingAdmissionPolicies.
pub struct MutatingPolicies {
    inputs: PolicyInputs,
    source: PolicySource,
}

/// A policy with one of its parameters.
struct PolicyUse<'p> {
    policy: &'p CompiledPolicy,
    binding: &'p CompiledBinding,
    param: Option<Arc<Document>>,
    served: Served,
}

impl PolicyUse<'_> {
    /// Names the use among those of a write.
    fn id(&self) -> String {
        let param = self
            .param
            .as_deref()
            .map_or_else(String::new, |param| format!("{}/{}", param.namespace(), param.name()));
        format!("{}/{}/{param}", self.policy.name, self.binding.name)
    }
}

/// Errors of policies that refuse a write.
#[derive(Default)]
struct PolicyErrors {
    messages: Vec<String>,
    /// Of the first error.
    reason: Option<Reason>,
}

impl PolicyErrors {
    fn add(&mut self, policy: &CompiledPolicy, fault: PolicyFault, reason: Reason) {
        if !policy.fails {
            return;
        }
        let PolicyFault { binding, message } = fault;
        self.reason.get_or_insert(reason);
        self.messages.push(match binding {
            Some(binding) => {
                format!(
                    "policy '{}' with binding '{binding}' denied request: {message}",
                    policy.name
                )
            }
            None => format!("policy {:?} denied request: {message}", policy.name),
        });
    }

    fn failure(self, attributes: &Attributes<'_>) -> Result<(), Failure> {
        let Some(first) = self.messages.first().cloned() else { return Ok(()) };
        let resource = attributes.target.served.definition.group_resource();
        let name = attributes.target.name.as_deref().unwrap_or("Unknown");
        let causes = self.messages.into_iter().map(|message| Cause {
            reason: String::new(),
            message,
            field: String::new(),
        });
        // kube-apiserver leaves the code of a refusal.
        Err(Failure {
            reason: self.reason,
            message: first,
            ..Failure::forbidden(&resource, name, "")
        }
        .with_details(Details { causes: causes.collect(), ..Details::of(&resource, name) }))
    }
}

impl MutatingPolicies {
    /// Over the policies in the store.
    pub fn new(inputs: PolicyInputs) -> Self {
        let source = PolicySource::mutating(inputs.clone());
        Self { inputs, source }
    }

    async fn run(
        &self,
        attributes: Attributes<'_>,
        mutation: &mut Mutation,
    ) -> Result<(), Failure> {
        let Some(object) = &mutation.object else { return Ok(()) };
        let mut errors = PolicyErrors::default();
        let mut uses = Vec::new();
        let set = self.source.current();
        for (policy, bindings) in set.bound() {
            let found = match_policy(policy, bindings, &attributes, Some(object), &self.inputs);
            let Some(matched) = found else { continue };
            for fault in matched.faults {
                errors.add(policy, fault, Reason::Forbidden);
            }
            for (binding, params) in matched.uses {
                uses.extend(params.into_iter().map(|param| PolicyUse {
                    policy,
                    binding,
                    param,
                    served: matched.served.clone(),
                }));
            }
        }
        mutation.begin(STEP);
        for used in &uses {
            if mutation.is_due(STEP, &used.id()) {
                self.apply(used, &attributes, mutation, &mut errors)?;
            }
            // Each policy has a budget of its own: let others work in between.
            ferrokube_registry::offload::pause().await;
        }
        mutation.end(STEP);
        errors.failure(&attributes)
    }

    /// Carries out the mutations of a policy in order.
    fn apply(
        &self,
        used: &PolicyUse<'_>,
        attributes: &Attributes<'_>,
        mutation: &mut Mutation,
        errors: &mut PolicyErrors,
    ) -> Result<(), Failure> {
        let policy = used.policy;
        let Some(before) = mutation.object.clone() else { return Ok(()) };
        let fault = |message| PolicyFault { binding: Some(used.binding.name.clone()), message };
        for each in &policy.mutations {
            let subject = PolicySubject::new(
                attributes,
                mutation.object.as_ref(),
                &used.served,
                &self.inputs,
            )?;
            let evaluation = subject.evaluation(policy, used.param.as_deref());
            match evaluation.matches() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(why) => {
                    errors.add(policy, fault(why), Reason::Invalid);
                    return Ok(());
                }
            }
            let Some(object) = subject.object.as_ref() else { return Ok(()) };
            let changed = evaluation
                .mutation(each)
                .and_then(|value| mutated(object, each, value, &used.served));
            match changed {
                Ok(mut changed) => {
                    used.served.definition.set_defaults(used.served.version, &mut changed);
                    let own = &attributes.target.served;
                    mutation.object = Some(converted(&changed, &used.served, own)?);
                }
                Err(why) => errors.add(policy, fault(why), Reason::Invalid),
            }
        }
        let changed = mutation.object.as_ref() != Some(&before);
        mutation.ran(STEP, &used.id(), changed, policy.repeats);
        Ok(())
    }
}

/// An object after a mutation.
fn mutated(
    object: &Document,
    mutation: &CompiledMutation,
    value: Value,
    served: &Served,
) -> Result<Document, String> {
    if mutation.is_json_patch {
        let mut target = object.clone().into_value();
        match json_patch(&mut target, &value) {
            Ok(_) => {}
            // A failed test leaves the object as it is.
            Err(PatchError::TestFailed(_)) => return Ok(object.clone()),
            Err(why) => return Err(format!("JSON Patch: {why}")),
        }
        return Document::from_value(target)
            .map_err(|_| "JSON Patch: the result is no object".to_owned());
    }
    let mut configuration = Document::from_value(value)
        .map_err(|_| "invalid return type: the configuration is no object".to_owned())?;
    configuration.set(&["apiVersion"], object.api_version());
    configuration.set(&["kind"], object.kind());
    merge_configuration(&served.version().schema, object, &configuration)
        .map_err(|why| format!("error applying patch: {why}"))
}

impl RemoteStep for MutatingPolicies {
    fn name(&self) -> &'static str {
        STEP
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(&attributes.target.served) && self.source.may_match(attributes)
    }

    fn mutate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        mutation: &'a mut Mutation,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(async move {
            match self.matches(&attributes) {
                true => self.run(attributes, mutation).await,
                false => Ok(()),
            }
        })
    }
}
