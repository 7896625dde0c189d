//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: expressions that admit, change or refuse
//! writes, where a binding says so.
//!
//! Policies are read from the store's published state at each write, so that a new policy holds
//! for the next write. They are compiled once per revision.

mod compiled;
mod evaluate;
mod mutating;
mod params;
mod readers;
mod set;

use crate::matching::{NamespaceLabels, namespace_of};
use crate::remote::RemoteStep;
use crate::step::Permits;
use compiled::{BindingAction, CompiledBinding, CompiledPolicy};
use evaluate::{PolicyDecision, PolicyEvaluation};
use ferrokube_apimachinery::document::{Array, Document, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Attributes, Catalog, Served, view};
use ferrokube_storage::{Prefix, Store};
pub use mutating::MutatingPolicies;
use params::collect_params;
pub use readers::PolicyReaders;
use set::PolicySource;
use std::collections::BTreeMap;
use std::sync::Arc;

const GROUP: &str = "admissionregistration.k8s.io";
/// Policies and bindings are no subject of policies: nobody can lock out who would fix them.
const EXEMPT: [&str; 4] = [
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
];
/// Groups of reviews, which are not stored.
const REVIEWS: [&str; 2] = ["authentication.k8s.io", "authorization.k8s.io"];
/// Max bytes of the value of an audit annotation.
const MAX_ANNOTATION: usize = 10 * 1024;

/// What the steps of policies read.
#[derive(Clone)]
pub struct PolicyInputs {
    /// Policies, bindings, parameters and namespaces.
    pub store: Store,
    /// Kinds of parameters, versions of resources.
    pub catalog: Arc<Catalog>,
    /// Answers `authorizer` in expressions.
    pub permits: Arc<dyn Permits>,
}

impl NamespaceLabels for PolicyInputs {
    fn namespace(&self, name: &str) -> Option<Document> {
        let served = self.catalog.find("", "v1", "namespaces")?;
        let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
        let entry = self.store.get(&prefix.key(None, name).ok()?)?;
        Some(view(&entry, &served))
    }
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
        let mut denied = Vec::new();
        for policy in self.source.current().bound() {
            let mut annotations = AuditAnnotations::default();
            self.check_policy(policy, &attributes, object, &mut denied, &mut annotations)?;
            annotations.publish(&policy.0.name, &attributes);
            // Each policy has a budget of its own: let others work in between.
            ferrokube_registry::offload::pause().await;
        }
        denied.into_iter().next().map_or(Ok(()), |denial: Denial| Err(denial.failure(&attributes)))
    }

    fn check_policy(
        &self,
        (policy, bindings): &BoundPolicy,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        denied: &mut Vec<Denial>,
        annotations: &mut AuditAnnotations,
    ) -> Result<(), Failure> {
        let Some(matched) = match_policy(policy, bindings, attributes, object, &self.inputs) else {
            return Ok(());
        };
        let misconfigured = matched.faults.into_iter().filter(|_| policy.fails);
        denied.extend(misconfigured.map(|fault| Denial {
            policy: policy.name.clone(),
            binding: fault.binding,
            message: fault.message,
            reason: Reason::Invalid,
        }));
        if matched.uses.is_empty() {
            return Ok(());
        }
        let subject = PolicySubject::new(attributes, object, &matched.served, &self.inputs)?;
        for (binding, params) in &matched.uses {
            for param in params {
                let evaluation = subject.evaluation(policy, param.as_deref());
                for (index, decision) in evaluation.decisions().into_iter().enumerate() {
                    enforce(policy, binding, (index, decision), attributes, denied);
                }
                for failed in evaluation.annotations(annotations) {
                    denied.push(Denial {
                        policy: policy.name.clone(),
                        binding: Some(binding.name.clone()),
                        message: failed,
                        reason: Reason::Invalid,
                    });
                }
            }
        }
        Ok(())
    }
}

/// A policy and its bindings.
type BoundPolicy = (Arc<CompiledPolicy>, Vec<Arc<CompiledBinding>>);

/// How a policy applies to a write.
struct PolicyMatch<'p> {
    /// The version in which the write matches.
    served: Served,
    /// Matching bindings with their parameters.
    uses: Vec<(&'p CompiledBinding, Vec<Option<Arc<Document>>>)>,
    faults: Vec<PolicyFault>,
}

/// A policy or binding that is misconfigured.
struct PolicyFault {
    binding: Option<String>,
    message: String,
}

/// Matches a policy and its bindings; `None` if the policy does not apply.
fn match_policy<'p>(
    policy: &CompiledPolicy,
    bindings: &'p [Arc<CompiledBinding>],
    attributes: &Attributes<'_>,
    object: Option<&Document>,
    inputs: &PolicyInputs,
) -> Option<PolicyMatch<'p>> {
    let own = attributes.target.served.clone();
    let mut matched = PolicyMatch { served: own, uses: Vec::new(), faults: Vec::new() };
    let of_policy = |why: String| PolicyFault {
        binding: None,
        message: format!("failed to configure policy: {why}"),
    };
    match policy.matches(attributes, object, inputs) {
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
        let params = match binding.matches(attributes, object, inputs) {
            Ok(true) => collect_params(policy, binding, attributes, inputs),
            Ok(false) => continue,
            Err(why) => Err(why),
        };
        match params {
            Ok(params) if params.is_empty() => {}
            Ok(params) => matched.uses.push((binding, params)),
            Err(why) => matched.faults.push(PolicyFault {
                binding: Some(binding.name.clone()),
                message: format!("failed to configure binding: {why}"),
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
        Box::pin(async move {
            // Also called for what another step matches.
            match self.matches(&attributes) {
                true => self.check(attributes, object).await,
                false => Ok(()),
            }
        })
    }
}

/// What a policy is evaluated on.
struct PolicySubject {
    object: Option<Document>,
    old: Option<Document>,
    namespace: Option<Document>,
    request: Document,
    resource: ferrokube_cel::CheckedResource,
    authorizer: Arc<dyn ferrokube_cel::Authorize>,
}

impl PolicySubject {
    /// The objects in the version that a rule matched.
    fn new(
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        matched: &Served,
        inputs: &PolicyInputs,
    ) -> Result<Self, Failure> {
        let target = attributes.target;
        let definition = &target.served.definition;
        let of_namespaces = definition.group.is_empty() && definition.plural == "namespaces";
        let name = if of_namespaces { "" } else { namespace_of(attributes) };
        let namespace = (!name.is_empty()).then(|| inputs.namespace(name)).flatten();
        let in_version = |object: &Document| converted(object, &target.served, matched);
        let text = |text: &str| -> Arc<str> { text.into() };
        Ok(Self {
            object: object.map(in_version).transpose()?,
            old: attributes.old.map(in_version).transpose()?,
            namespace: namespace.map(without_managed_fields),
            request: crate::request::admission_request(attributes, matched),
            resource: ferrokube_cel::CheckedResource {
                group: text(&definition.group),
                resource: text(&definition.plural),
                subresource: text(&target.subresource),
                namespace: text(namespace_of(attributes)),
                name: text(target.name.as_deref().unwrap_or_default()),
            },
            authorizer: crate::step::authorizer_of(&inputs.permits, &attributes.context.user),
        })
    }

    fn evaluation<'s>(
        &'s self,
        policy: &'s CompiledPolicy,
        param: Option<&'s Document>,
    ) -> PolicyEvaluation<'s> {
        PolicyEvaluation {
            policy,
            input: ferrokube_cel::admission::AdmissionInput {
                object: self.object.as_ref(),
                old: self.old.as_ref(),
                namespace: self.namespace.as_ref(),
                request: &self.request,
                params: param,
                authorizer: Some(&self.authorizer),
                resource: &self.resource,
            },
        }
    }
}

/// Expressions see a namespace without managedFields and owners.
fn without_managed_fields(mut namespace: Document) -> Document {
    namespace.remove(&["metadata", "managedFields"]);
    namespace.remove(&["metadata", "ownerReferences"]);
    namespace
}

/// An object in another version of its resource.
fn converted(object: &Document, served: &Served, wanted: &Served) -> Result<Document, Failure> {
    let same = Arc::ptr_eq(&served.definition, &wanted.definition);
    if same && served.version == wanted.version {
        return Ok(object.clone());
    }
    let gvk = wanted.definition.gvk(wanted.version);
    if served.definition.hooks.converter().is_some() {
        return Err(Failure::internal(format!(
            "failed to convert object version: {} is converted by a webhook, which policies do not call",
            gvk.api_version()
        )));
    }
    let mut object = object.clone();
    served.definition.hooks.to_storage(&served.version().name, &mut object);
    wanted.definition.hooks.from_storage(&gvk.version, &mut object);
    object.set(&["kind"], gvk.kind.as_str());
    object.set(&["apiVersion"], gvk.api_version());
    Ok(object)
}

/// Carries out the actions of a binding on a decision.
fn enforce(
    policy: &CompiledPolicy,
    binding: &CompiledBinding,
    (index, decision): (usize, PolicyDecision),
    attributes: &Attributes<'_>,
    denied: &mut Vec<Denial>,
) {
    let PolicyDecision::Deny { message, reason } = decision else { return };
    for action in &binding.actions {
        match action {
            BindingAction::Deny => denied.push(Denial {
                policy: policy.name.clone(),
                binding: Some(binding.name.clone()),
                message: message.clone(),
                reason,
            }),
            BindingAction::Warn => attributes.context.warn(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                policy.name, binding.name
            )),
            BindingAction::Audit => {
                let actions: Array =
                    binding.actions.iter().map(|action| Value::from(action.name())).collect();
                let value = json!([{
                    "message": message.as_str(),
                    "policy": policy.name.as_str(),
                    "binding": binding.name.as_str(),
                    "expressionIndex": index,
                    "validationActions": Value::Array(actions),
                }]);
                let value = String::from_utf8(codec::to_vec(&value)).unwrap_or_default();
                attributes
                    .context
                    .annotate_audit("validation.policy.admission.k8s.io/validation_failure", value);
            }
        }
    }
}

/// Why a policy refuses a write.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

impl Denial {
    fn failure(self, attributes: &Attributes<'_>) -> Failure {
        let Self { policy, binding, message, reason } = self;
        let message = match binding {
            Some(binding) => format!(
                "ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}"
            ),
            None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {message}"),
        };
        let resource = attributes.target.served.definition.group_resource();
        let name = attributes.target.name.as_deref().unwrap_or("Unknown");
        let cause = Cause { reason: String::new(), message: message.clone(), field: String::new() };
        Failure {
            reason: Some(reason),
            code: reason.code(),
            ..Failure::forbidden(&resource, name, &message)
        }
        .with_details(Details { causes: vec![cause], ..Details::of(&resource, name) })
    }
}

/// The audit annotations of a policy, from all its bindings and parameters.
#[derive(Default)]
struct AuditAnnotations(BTreeMap<String, Vec<String>>);

impl AuditAnnotations {
    fn add(&mut self, key: &str, value: &str) {
        let mut end = value.len().min(MAX_ANNOTATION);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let values = self.0.entry(key.to_owned()).or_default();
        if !values.iter().any(|known| known == &value[..end]) {
            values.push(value[..end].to_owned());
        }
    }

    fn publish(self, policy: &str, attributes: &Attributes<'_>) {
        for (key, values) in self.0 {
            attributes.context.annotate_audit(format!("{policy}/{key}"), values.join(", "));
        }
    }
}
