//! Evaluates a policy on a request, with one parameter.

use super::AuditAnnotations;
use super::compiled::{Compiled, CompiledMutation, CompiledPolicy, Validation};
use crate::condition::OUT_OF_BUDGET;
use ferrokube_apimachinery::document::Value as Json;
use ferrokube_apimachinery::status::Reason;
use ferrokube_cel::admission::{AdmissionInput, AdmissionScope};
use ferrokube_cel::{Failure, Meter, Value};

/// Max bytes of the result of a messageExpression.
const MAX_MESSAGE: usize = 5 * 1024;

/// A policy and what it is evaluated on.
pub(super) struct PolicyEvaluation<'a> {
    pub(super) policy: &'a CompiledPolicy,
    pub(super) input: AdmissionInput<'a>,
}

/// The result of a validation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PolicyDecision {
    Admit,
    Deny { message: String, reason: Reason },
}

/// Why an expression has no result.
enum Fault {
    /// Of this expression.
    Expression(String),
    /// Of the whole evaluation.
    Budget,
}

impl<'a> PolicyEvaluation<'a> {
    /// One decision for each validation; none if a match condition is false.
    pub(super) fn decisions(&self) -> Vec<PolicyDecision> {
        match self.matches() {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(why) => return vec![self.failed(why)],
        }
        let policy = self.policy;
        let scope = policy.compiler.scope(&self.input);
        let mut meter = Meter::default();
        let mut decisions = Vec::with_capacity(policy.validations.len());
        for validation in &policy.validations {
            let result = evaluate(&validation.program, &validation.source, &scope, &mut meter);
            decisions.push(match result {
                Ok(Value::Bool(true)) => PolicyDecision::Admit,
                Ok(_) => match self.message(validation, &mut meter) {
                    Ok(message) => PolicyDecision::Deny { message, reason: validation.reason },
                    Err(why) => self.failed(why),
                },
                Err(Fault::Expression(why)) => self.failed(why),
                Err(Fault::Budget) => return vec![self.failed(OUT_OF_BUDGET.to_owned())],
            });
        }
        decisions
    }

    /// Carries out the mutations on an object: the value of the expression of each, in order.
    ///
    /// # Errors
    /// Why the expression has no result.
    pub(super) fn mutation(&self, mutation: &CompiledMutation) -> Result<Json, String> {
        let scope = self.policy.compiler.scope(&self.input);
        let result = evaluate(&mutation.program, &mutation.source, &scope, &mut Meter::default());
        let value = match result {
            Ok(value) => value,
            Err(Fault::Expression(why)) => return Err(why),
            Err(Fault::Budget) => return Err(OUT_OF_BUDGET.to_owned()),
        };
        check_names(&value, mutation.is_json_patch)
            .map_err(|why| format!("type mismatch: {why}"))?;
        value.to_json().map_err(|why| {
            format!(
                "JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}"
            )
        })
    }

    /// An error refuses the write, unless the policy ignores errors.
    fn failed(&self, message: String) -> PolicyDecision {
        match self.policy.fails {
            true => PolicyDecision::Deny { message, reason: Reason::Invalid },
            false => PolicyDecision::Admit,
        }
    }

    /// Whether all match conditions hold. A false one outweighs errors.
    ///
    /// # Errors
    /// kube-apiserver's message, unless the policy ignores errors.
    pub(super) fn matches(&self) -> Result<bool, String> {
        let policy = self.policy;
        if policy.conditions.is_empty() {
            return Ok(true);
        }
        policy.conditions.hold(&AdmissionInput { namespace: None, ..self.input })
    }

    /// The message of a failed validation.
    fn message(&self, validation: &Validation, meter: &mut Meter) -> Result<String, String> {
        let plain = || match validation.message.as_str() {
            "" => format!("failed expression: {}", validation.source.trim()),
            message => message.to_owned(),
        };
        let Some(program) = &validation.message_program else { return Ok(plain()) };
        let input = AdmissionInput { authorizer: None, ..self.input };
        let scope = self.policy.compiler.scope(&input);
        match evaluate(program, "", &scope, meter) {
            Ok(Value::String(text)) if fits(text.trim()) => Ok(text.trim().to_owned()),
            Err(Fault::Budget) => Err(format!("failed messageExpression: {OUT_OF_BUDGET}")),
            Ok(_) | Err(Fault::Expression(_)) => Ok(plain()),
        }
    }

    /// Adds the audit annotations; the errors refuse the write.
    pub(super) fn annotations(&self, annotations: &mut AuditAnnotations) -> Vec<String> {
        let policy = self.policy;
        if policy.annotations.is_empty() || self.matches() != Ok(true) {
            return Vec::new();
        }
        let input = AdmissionInput { authorizer: None, ..self.input };
        let scope = policy.compiler.scope(&input);
        let mut meter = Meter::default();
        let mut failed = Vec::new();
        for annotation in &policy.annotations {
            match evaluate(&annotation.program, &annotation.source, &scope, &mut meter) {
                Ok(Value::String(text)) if !text.trim().is_empty() => {
                    annotations.add(&annotation.key, text.trim());
                }
                Ok(_) => {}
                Err(Fault::Expression(why)) => failed.push(why),
                Err(Fault::Budget) => {
                    failed = vec![OUT_OF_BUDGET.to_owned()];
                    break;
                }
            }
        }
        if policy.fails { failed } else { Vec::new() }
    }
}

/// Checks that nested objects have the types of their fields.
fn check_names(value: &Value<'_>, is_json_patch: bool) -> Result<(), String> {
    match value {
        Value::Message(message) if !is_json_patch => message.check_names(),
        Value::Message(operation) => match operation.fields.get("value") {
            Some(Value::Message(message)) => message.check_names(),
            _ => Ok(()),
        },
        Value::List(list) => list.iter().try_for_each(|item| check_names(&item, is_json_patch)),
        _ => Ok(()),
    }
}

fn evaluate<'a>(
    program: &'a Compiled,
    source: &str,
    scope: &AdmissionScope<'a>,
    meter: &mut Meter,
) -> Result<Value<'a>, Fault> {
    let program = match program {
        Ok(program) => program,
        Err(why) => return Err(Fault::Expression(format!("compilation error: {why}"))),
    };
    program.evaluate_in(scope, meter).map_err(|why| match why {
        Failure::Budget if meter.is_spent() => Fault::Budget,
        why => Fault::Expression(format!("expression '{source}' resulted in error: {why}")),
    })
}

fn fits(message: &str) -> bool {
    !message.is_empty() && message.len() <= MAX_MESSAGE && !message.contains('\n')
}
