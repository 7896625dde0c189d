//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: expressions that admit, change or reject
//! writes selected by a binding.
//!
//! Policies are read from the store's published state at each write, so that a new policy holds
//! for the next write. They are compiled once per revision.

mod compiled;
mod evaluate;
mod findings;
mod mutating;
mod params;
mod readers;
mod set;
mod stats;
mod status;
mod type_check;

use crate::candidate::{CandidateWrite, is_namespace, namespace_of};
use crate::remote::RemoteStep;
use crate::step::Permits;
use compiled::{BindingAction, CompiledBinding, CompiledPolicy};
use evaluate::{PolicyAnnotation, PolicyDecision, PolicyEvaluation, PolicyOutcome, TimedDecision};
use ferrokube_apimachinery::document::{Array, Document, Value, json};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Attributes, Catalog, Served};
use ferrokube_storage::Store;
use findings::{AuditAnnotations, PolicyCheck};
pub use mutating::MutatingPolicies;
use params::{PolicyParam, collect_params};
pub use readers::PolicyReaders;
use set::{BoundPolicy, PolicySource};
use stats::Enforcement;
pub use stats::PolicyStats;
pub use status::PolicyStatus;
use std::sync::Arc;
use std::time::Duration;

const GROUP: &str = "admissionregistration.k8s.io";
/// Policies and bindings are exempt from policies, so that a faulty one cannot prevent its own
/// correction.
const EXEMPT: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// Groups of reviews, which are not stored.
const REVIEWS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];

/// Inputs of the steps of policies.
#[derive(Clone)]
pub struct PolicyInputs {
    /// Policies, bindings, parameters and namespaces.
    pub store: Store,
    /// Kinds of parameters, versions of resources.
    pub catalog: Arc<Catalog>,
    /// Answers `authorizer` in expressions.
    pub permits: Arc<dyn Permits>,
    /// Counters of all policies.
    pub stats: Arc<PolicyStats>,
}

/// Whether policies may apply to a resource at all.
fn is_exempt(served: &Served) -> bool {
    let definition = &served.definition;
    REVIEWS.contains(&definition.group.as_str()) && definition.storage_prefix.is_none()
        || definition.group == GROUP && EXEMPT.contains(&definition.plural.as_str())
}

/// The step of ValidatingAdmissionPolicies.
pub struct ValidatingPolicies {
    inputs: PolicyInputs,
    source: PolicySource,
}

impl ValidatingPolicies {
    /// Over the policies in the store.
    pub fn new(inputs: PolicyInputs) -> Self {
        let source = PolicySource::validating(inputs.clone());
        Self { inputs, source }
    }

    async fn check(
        &self,
        attributes: Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        let mut check = PolicyCheck::default();
        let write = CandidateWrite::new(attributes, &self.inputs.catalog, &self.inputs.store);
        for policy in self.source.current().bound() {
            let mut annotations = AuditAnnotations::default();
            self.check_policy(policy, &write, object, &mut check, &mut annotations).await?;
            annotations.publish(&policy.policy.name, &attributes);
        }
        check.denied.map_or(Ok(()), |denial| Err(denial.failure(&attributes)))
    }

    async fn check_policy<'o>(
        &self,
        bound: &BoundPolicy,
        write: &CandidateWrite<'o>,
        object: Option<&'o Document>,
        check: &mut PolicyCheck<'o>,
        annotations: &mut AuditAnnotations,
    ) -> Result<(), Failure> {
        let BoundPolicy { policy, bindings } = bound;
        let Some(matched) = match_policy(policy, bindings, write, object, &self.inputs) else {
            return Ok(());
        };
        let attributes = &write.attributes;
        for fault in matched.faults.into_iter().filter(|_| policy.fails) {
            check.deny(policy, fault.binding.as_deref(), fault.message, Reason::Invalid);
        }
        if matched.uses.is_empty() {
            return Ok(());
        }
        check_namespace(write)?;
        policy.prepare(&self.inputs.stats).await;
        let given = [object, attributes.old];
        let objects = check.versions.get(write, matched.served.clone(), given).await;
        let subject = PolicySubject::new(write, &matched.served, &self.inputs);
        for (binding, params) in &matched.uses {
            let misconfigured = PolicyFault::of_binding;
            let objects = match &objects {
                Ok(objects) => [objects.object.as_deref(), objects.old.as_deref()],
                Err(why) => {
                    let why = format!("failed to convert object version: {}", why.message);
                    check.fail(policy, &binding.name, misconfigured(&why), Reason::Invalid);
                    continue;
                }
            };
            for param in params {
                let param = match param.read().await {
                    Ok(param) => param,
                    Err(why) => {
                        check.fail(
                            policy,
                            &binding.name,
                            misconfigured(&why.message),
                            Reason::Invalid,
                        );
                        continue;
                    }
                };
                let outcome = |spending: &mut _| {
                    subject.evaluation(policy, objects, param.as_ref()).outcome(spending)
                };
                let PolicyOutcome { decisions, annotations: found, elapsed } =
                    check.budget.spend(outcome).await;
                let stats = &*self.inputs.stats;
                stats.evaluated(elapsed);
                let used = BoundUse { policy, binding, stats };
                for (index, decision) in decisions.into_iter().enumerate() {
                    used.enforce(index, decision, attributes, check);
                }
                for annotation in found {
                    match annotation {
                        PolicyAnnotation::Value { key, value } => annotations.add(&key, &value),
                        PolicyAnnotation::Failed(why) => {
                            used.observe(&why, Enforcement::Deny, Duration::ZERO);
                            check.deny(policy, Some(&binding.name), why, Reason::Invalid);
                        }
                    }
                }
                // Each evaluation has a budget of its own: let others work in between.
                ferrokube_registry::offload::pause().await;
            }
        }
        Ok(())
    }
}

/// Match of a policy and a write.
struct PolicyMatch<'p> {
    /// The version in which the write matches.
    served: Served,
    /// Matching bindings with their parameters.
    uses: Vec<(&'p CompiledBinding, Vec<PolicyParam>)>,
    faults: Vec<PolicyFault>,
}

/// A policy or binding that is misconfigured.
struct PolicyFault {
    binding: Option<String>,
    message: String,
}

impl PolicyFault {
    /// The message about a binding.
    fn of_binding(why: &str) -> String {
        format!("failed to configure binding: {why}")
    }
}

/// Matches a policy and its bindings; `None` if the policy does not apply.
fn match_policy<'p>(
    policy: &CompiledPolicy,
    bindings: &'p [Arc<CompiledBinding>],
    write: &CandidateWrite<'_>,
    object: Option<&Document>,
    inputs: &PolicyInputs,
) -> Option<PolicyMatch<'p>> {
    let own = write.served().clone();
    let mut matched = PolicyMatch { served: own, uses: Vec::new(), faults: Vec::new() };
    let of_policy = |why: String| PolicyFault {
        binding: None,
        message: format!("failed to configure policy: {why}"),
    };
    match policy.matches(write, object) {
        Ok(Some(served)) => matched.served = served,
        Ok(None) => return None,
        Err(why) => {
            matched.faults.push(of_policy(why));
            return Some(matched);
        }
    }
    if let Some(missing) = policy.missing_param_kind(&inputs.catalog) {
        matched.faults.push(of_policy(missing));
        return Some(matched);
    }
    for binding in bindings {
        let params = match binding.matches(write, object) {
            Ok(true) => collect_params(policy, binding, &write.attributes, inputs),
            Ok(false) => continue,
            Err(why) => Err(why),
        };
        match params {
            Ok(params) if params.is_empty() => {}
            Ok(params) => matched.uses.push((binding, params)),
            Err(why) => matched.faults.push(PolicyFault {
                binding: Some(binding.name.clone()),
                message: PolicyFault::of_binding(&why),
            }),
        }
    }
    Some(matched)
}

impl RemoteStep for ValidatingPolicies {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        !is_exempt(&attributes.target.served) && self.source.may_match(attributes)
    }

    fn validate<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(self.check(attributes, object))
    }
}

/// The input of a policy's evaluation, without the objects.
struct PolicySubject {
    namespace: Option<Document>,
    request: Document,
    resource: ferrokube_cel::CheckedResource,
    authorizer: Arc<dyn ferrokube_cel::Authorize>,
}

impl PolicySubject {
    /// `matched`: the version that a rule matched.
    fn new(write: &CandidateWrite<'_>, matched: &Served, inputs: &PolicyInputs) -> Self {
        let attributes = &write.attributes;
        let target = attributes.target;
        let definition = &target.served.definition;
        let text = |text: &str| -> Arc<str> { text.into() };
        Self {
            namespace: shown_namespace(write),
            request: crate::request::admission_request(attributes, matched),
            resource: ferrokube_cel::CheckedResource {
                group: text(&definition.group),
                resource: text(&definition.plural),
                subresource: text(&target.subresource),
                namespace: text(namespace_of(attributes)),
                name: text(target.name.as_deref().unwrap_or_default()),
            },
            authorizer: crate::step::authorizer_of(&inputs.permits, &attributes.context.user),
        }
    }

    /// `objects`: the new and the stored one, in the version that a rule matched.
    fn evaluation<'s>(
        &'s self,
        policy: &'s CompiledPolicy,
        [object, old]: [Option<&'s Document>; 2],
        param: Option<&'s Document>,
    ) -> PolicyEvaluation<'s> {
        PolicyEvaluation {
            policy,
            input: ferrokube_cel::admission::AdmissionInput {
                object,
                old,
                namespace: self.namespace.as_ref(),
                request: &self.request,
                params: param,
                authorizer: Some(&self.authorizer),
                resource: &self.resource,
            },
        }
    }
}

/// Whether a write has a namespace that is not the object itself.
fn is_in_namespace(write: &CandidateWrite<'_>) -> bool {
    !is_namespace(&write.attributes) && !namespace_of(&write.attributes).is_empty()
}

/// Checks that the namespace of the write exists.
///
/// # Errors
/// 404.
fn check_namespace(write: &CandidateWrite<'_>) -> Result<(), Failure> {
    if !is_in_namespace(write) || write.namespace().is_some() {
        return Ok(());
    }
    let namespaces = GroupResource::new("", "namespaces");
    Err(Failure::not_found(&namespaces, namespace_of(&write.attributes)))
}

/// The namespace of the write as expressions see it: without managedFields and owners.
fn shown_namespace(write: &CandidateWrite<'_>) -> Option<Document> {
    let mut namespace = write.namespace().filter(|_| is_in_namespace(write))?.clone();
    namespace.remove(&["metadata", "managedFields"]);
    namespace.remove(&["metadata", "ownerReferences"]);
    Some(namespace)
}

/// A policy by a binding.
struct BoundUse<'a> {
    policy: &'a CompiledPolicy,
    binding: &'a CompiledBinding,
    stats: &'a PolicyStats,
}

impl BoundUse<'_> {
    fn observe(&self, message: &str, enforcement: Enforcement, elapsed: Duration) {
        let (policy, binding) = (self.policy.name.as_str(), self.binding.name.as_str());
        self.stats.validated(policy, binding, message, enforcement, elapsed);
    }

    /// Carries out the actions of the binding on a decision.
    fn enforce(
        &self,
        index: usize,
        TimedDecision { decision, elapsed }: TimedDecision,
        attributes: &Attributes<'_>,
        check: &mut PolicyCheck<'_>,
    ) {
        let (message, reason) = match decision {
            PolicyDecision::Admit => return,
            PolicyDecision::Ignore { message } => {
                return self.observe(&message, Enforcement::Allow, elapsed);
            }
            PolicyDecision::Deny { message, reason } => (message, reason),
        };
        let (policy, binding) = (&self.policy.name, &self.binding.name);
        for action in &self.binding.actions {
            let enforcement = match action {
                BindingAction::Deny => {
                    check.deny(self.policy, Some(binding), message.clone(), reason);
                    Enforcement::Deny
                }
                BindingAction::Warn => {
                    attributes.context.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
                    ));
                    Enforcement::Warn
                }
                BindingAction::Audit => {
                    self.audit(index, &message, attributes);
                    Enforcement::Audit
                }
            };
            self.observe(&message, enforcement, elapsed);
        }
    }

    fn audit(&self, index: usize, message: &str, attributes: &Attributes<'_>) {
        let actions: Array =
            self.binding.actions.iter().map(|action| Value::from(action.name())).collect();
        let value = json!([{
            "message": message,
            "policy": self.policy.name.as_str(),
            "binding": self.binding.name.as_str(),
            "expressionIndex": index,
            "validationActions": Value::Array(actions),
        }]);
        let value = String::from_utf8(codec::to_vec(&value)).unwrap_or_default();
        let key = "validation.policy.admission.k8s.io/validation_failure";
        attributes.context.annotate_audit_once(key, value);
    }
}
