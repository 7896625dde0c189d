//! The step of MutatingAdmissionPolicies.

use super::compiled::{CompiledBinding, CompiledMutation, CompiledPolicy};
use super::params::PolicyParam;
use super::set::{BoundPolicy, PolicySource};
use super::{PolicyFault, PolicyInputs, PolicySubject, check_namespace, is_exempt, match_policy};
use crate::candidate::CandidateWrite;
use crate::objects::{ObjectVersions, in_own_version};
use crate::remote::{Mutation, RemoteStep};
use crate::spending::WorkerBudget;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::patch::{PatchError, json_patch};
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Attributes, FieldValidation, Served};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::merge_configuration;
use std::time::Instant;

const STEP: &str = "MutatingAdmissionPolicy";
/// Errors that a refusal lists.
const MAX_ERRORS: usize = 100;

/// The step of MutatingAdmissionPolicies.
pub struct MutatingPolicies {
    inputs: PolicyInputs,
    source: PolicySource,
}

/// A policy with one of its parameters.
struct PolicyUse<'p> {
    policy: &'p CompiledPolicy,
    binding: &'p CompiledBinding,
    param: PolicyParam,
    served: Served,
}

impl PolicyUse<'_> {
    /// Names the use among those of a write.
    fn id(&self) -> String {
        format!("{}/{}/{}", self.policy.name, self.binding.name, self.param.id())
    }
}

/// Errors of policies that refuse a write.
#[derive(Default)]
struct PolicyErrors {
    messages: Vec<String>,
    /// Reason of the first error.
    reason: Option<Reason>,
}

impl PolicyErrors {
    fn add(&mut self, policy: &CompiledPolicy, fault: PolicyFault, reason: Reason) {
        if !policy.fails {
            return;
        }
        let PolicyFault { binding, message } = fault;
        self.reason.get_or_insert(reason);
        if self.messages.len() >= MAX_ERRORS {
            return;
        }
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

    fn failure(
        self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        let Some(first) = self.messages.first().cloned() else { return Ok(()) };
        let resource = attributes.target.served.definition.group_resource();
        let name = attributes.shown_name(object);
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
        let write = CandidateWrite::new(attributes, &self.inputs.catalog, &self.inputs.store);
        for BoundPolicy { policy, bindings } in set.bound() {
            let found = match_policy(policy, bindings, &write, Some(object), &self.inputs);
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
        if !uses.is_empty() {
            check_namespace(&write)?;
        }
        mutation.begin(STEP);
        let mut budget = WorkerBudget::default();
        let mut is_dirty = false;
        for used in &uses {
            if mutation.is_due(STEP, &used.id()) {
                let run = MutationRun { write: &write, mutation, budget: &mut budget };
                is_dirty |= self.apply(used, run, &mut errors).await?;
            }
        }
        if is_dirty {
            mutation.repeat_all(STEP);
        }
        mutation.end(STEP);
        errors.failure(&attributes, mutation.object.as_ref())
    }

    /// Carries out the mutations of a policy in order, if its conditions hold before the first.
    /// Whether one has a result, changed or not.
    ///
    /// # Errors
    /// A conversion failed, or a JSON patch left a malformed object: regardless of the failure
    /// policy.
    async fn apply(
        &self,
        used: &PolicyUse<'_>,
        run: MutationRun<'_>,
        errors: &mut PolicyErrors,
    ) -> Result<bool, Failure> {
        let MutationRun { write, mutation, budget } = run;
        let policy = used.policy;
        let fault = |message| PolicyFault { binding: Some(used.binding.name.clone()), message };
        policy.prepare(&self.inputs.stats).await;
        let param = match used.param.read().await {
            Ok(param) => param,
            Err(why) => {
                errors.add(policy, fault(PolicyFault::of_binding(&why.message)), Reason::Forbidden);
                return Ok(false);
            }
        };
        let Some(before) = mutation.object.take() else { return Ok(false) };
        let mut versions = ObjectVersions::default();
        let given = [Some(&before), write.attributes.old];
        let objects = match versions.get(write, used.served.clone(), given).await {
            Ok(objects) => objects,
            Err(why) => {
                let message = format!("failed to configure policy: {}", why.message);
                errors.add(policy, PolicyFault { binding: None, message }, Reason::Forbidden);
                mutation.object = Some(before);
                return Ok(false);
            }
        };
        let subject = PolicySubject::new(write, &used.served, &self.inputs);
        let (old, param) = (objects.old.as_deref(), param.as_ref());
        let first = objects.object.as_deref().unwrap_or(&before);
        let matches = |spending: &mut _| {
            subject.evaluation(policy, [Some(first), old], param).matches(spending)
        };
        match budget.spend(matches).await {
            Ok(true) => {}
            Ok(false) => {
                mutation.object = Some(before);
                return Ok(false);
            }
            Err(why) => {
                errors.add(policy, fault(why), Reason::Invalid);
                mutation.object = Some(before);
                return Ok(false);
            }
        }
        // Stays in the version of the policy until the last mutation.
        let mut changed: Option<Document> = None;
        let schema = write.schema(&used.served);
        for each in &policy.programs().mutations {
            let object = changed.as_ref().unwrap_or(first);
            let value = |spending: &mut _| {
                subject.evaluation(policy, [Some(object), old], param).mutation(each, spending)
            };
            let began = Instant::now();
            let result =
                budget.spend(value).await.and_then(|value| mutated(object, each, value, &schema));
            let validation = field_validation(each);
            let decoded = result.map(|next| write.decode(&used.served, next, validation));
            let message = match &decoded {
                Err(why) | Ok(Err(why)) => why.as_str(),
                Ok(Ok(_)) => "",
            };
            let binding = used.binding.name.as_str();
            self.inputs.stats.mutated(&policy.name, binding, message, began.elapsed());
            let decoded = match decoded {
                Ok(Err(why)) if each.is_json_patch => return Err(Failure::internal(why)),
                decoded => decoded.flatten(),
            };
            match decoded {
                Ok(mut next) => {
                    write.set_defaults(&used.served, &mut next);
                    changed = Some(next);
                }
                Err(why) => errors.add(policy, fault(why), Reason::Invalid),
            }
            // Each evaluation has a budget of its own: let others work in between.
            ferrokube_registry::offload::pause().await;
        }
        let is_changed = changed.as_ref().is_some_and(|changed| changed != first);
        let object = match changed {
            Some(changed) => {
                let own = in_own_version(write, &used.served, changed).await?;
                mutation.room = own.room;
                Some(own.object)
            }
            None => None,
        };
        drop(objects);
        drop(versions);
        let is_dirty = object.is_some();
        mutation.object = Some(object.unwrap_or(before));
        mutation.ran(STEP, &used.id(), is_changed, policy.repeats);
        Ok(is_dirty)
    }
}

/// State of one policy's mutation.
struct MutationRun<'m> {
    write: &'m CandidateWrite<'m>,
    mutation: &'m mut Mutation,
    budget: &'m mut WorkerBudget,
}

/// A JSON patch must not add unknown fields. A configuration was checked before it was merged.
fn field_validation(mutation: &CompiledMutation) -> FieldValidation {
    match mutation.is_json_patch {
        true => FieldValidation::Strict,
        false => FieldValidation::Ignore,
    }
}

/// An object after a mutation.
fn mutated(
    object: &Document,
    mutation: &CompiledMutation,
    value: Value,
    schema: &Schema,
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
    merge_configuration(schema, object, &configuration)
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
        Box::pin(self.run(attributes, mutation))
    }
}
