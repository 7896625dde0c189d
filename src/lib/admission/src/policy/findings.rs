//! Results of the policies of a write: the first denial, and audit annotations.

use super::compiled::CompiledPolicy;
use crate::objects::ObjectVersions;
use crate::spending::WorkerBudget;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::Attributes;
use std::collections::BTreeMap;

/// Max bytes of the value of an audit annotation, and of those of all bindings and parameters.
const MAX_ANNOTATION: usize = 10 * 1024;
const MAX_ANNOTATIONS: usize = 64 * 1024;

/// Results of the policies of a write so far.
#[derive(Default)]
pub(super) struct PolicyCheck<'o> {
    /// The first refusal.
    pub(super) denied: Option<Denial>,
    pub(super) budget: WorkerBudget,
    pub(super) versions: ObjectVersions<'o>,
}

impl PolicyCheck<'_> {
    /// An error, which refuses the write unless the policy ignores errors.
    pub(super) fn fail(
        &mut self,
        policy: &CompiledPolicy,
        binding: &str,
        message: String,
        reason: Reason,
    ) {
        if policy.fails {
            self.deny(policy, Some(binding), message, reason);
        }
    }

    pub(super) fn deny(
        &mut self,
        policy: &CompiledPolicy,
        binding: Option<&str>,
        message: String,
        reason: Reason,
    ) {
        self.denied.get_or_insert_with(|| Denial {
            policy: policy.name.clone(),
            binding: binding.map(str::to_owned),
            message,
            reason,
        });
    }
}

/// Why a policy refuses a write.
pub(super) struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

impl Denial {
    pub(super) fn failure(self, attributes: &Attributes<'_>) -> Failure {
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
pub(super) struct AuditAnnotations(BTreeMap<String, Vec<String>>);

impl AuditAnnotations {
    pub(super) fn add(&mut self, key: &str, value: &str) {
        let mut end = value.len().min(MAX_ANNOTATION);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        let values = self.0.entry(key.to_owned()).or_default();
        let bytes: usize = values.iter().map(String::len).sum();
        if bytes + end <= MAX_ANNOTATIONS && !values.iter().any(|known| known == &value[..end]) {
            values.push(value[..end].to_owned());
        }
    }

    pub(super) fn publish(self, policy: &str, attributes: &Attributes<'_>) {
        for (key, values) in self.0 {
            attributes.context.annotate_audit_once(format!("{policy}/{key}"), values.join(", "));
        }
    }
}
