//! Evaluates a policy on a request, with one parameter.

use super::compiled::{Compiled, CompiledMutation, CompiledPolicy, Validation};
use crate::condition::OUT_OF_BUDGET;
use crate::spending::Spending;
use ferrokube_apimachinery::document::Value as Json;
use ferrokube_apimachinery::status::Reason;
use ferrokube_cel::admission::{AdmissionInput, AdmissionScope};
use ferrokube_cel::{Failure, Meter, Value};
use std::time::{Duration, Instant};

/// Max bytes of the result of a messageExpression.
const MAX_MESSAGE: usize = 5 * 1024;

/// A policy and the input of its evaluation.
pub(super) struct PolicyEvaluation<'a> {
    pub(super) policy: &'a CompiledPolicy,
    pub(super) input: AdmissionInput<'a>,
}

/// The result of a validation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PolicyDecision {
    Admit,
    /// An error that the policy ignores.
    Ignore {
        message: String,
    },
    Deny {
        message: String,
        reason: Reason,
    },
}

/// A decision, and how long its expression took.
#[derive(Debug)]
pub(super) struct TimedDecision {
    pub(super) decision: PolicyDecision,
    pub(super) elapsed: Duration,
}

/// The result of an evaluation.
#[derive(Debug, Default)]
pub(super) struct PolicyOutcome {
    pub(super) decisions: Vec<TimedDecision>,
    pub(super) annotations: Vec<PolicyAnnotation>,
    pub(super) elapsed: Duration,
}

/// An audit annotation.
#[derive(Debug)]
pub(super) enum PolicyAnnotation {
    Value {
        key: String,
        value: String,
    },
    /// Refuses the write.
    Failed(String),
}

/// Why an expression has no result.
enum Fault {
    Expression(String),
    /// The budget of the whole evaluation is spent.
    Budget,
}

impl<'a> PolicyEvaluation<'a> {
    /// Decisions and audit annotations; none if a match condition is false.
    pub(super) fn outcome(&self, spending: &mut Spending) -> PolicyOutcome {
        let began = Instant::now();
        match self.matches(spending) {
            Ok(true) => {}
            Ok(false) => return PolicyOutcome::default(),
            Err(why) => {
                let elapsed = began.elapsed();
                let decisions = vec![TimedDecision { decision: self.failed(why), elapsed }];
                return PolicyOutcome { decisions, elapsed, ..PolicyOutcome::default() };
            }
        }
        let decisions = spending.metered(Meter::default(), |meter| self.decisions(meter));
        let annotations = spending.metered(Meter::default(), |meter| self.annotations(meter));
        PolicyOutcome { decisions, annotations, elapsed: began.elapsed() }
    }

    /// One decision for each validation.
    fn decisions(&self, meter: &mut Meter) -> Vec<TimedDecision> {
        let programs = self.policy.programs();
        let scope = programs.compiler.scope(&self.input);
        let mut decisions = Vec::with_capacity(programs.validations.len());
        for validation in &programs.validations {
            let began = Instant::now();
            let result = evaluate(&validation.program, &validation.source, &scope, meter);
            let elapsed = began.elapsed();
            let decision = match result {
                Ok(Value::Bool(true)) => PolicyDecision::Admit,
                Ok(_) => match self.message(validation, meter) {
                    Ok(message) => PolicyDecision::Deny { message, reason: validation.reason },
                    Err(why) => self.failed(why),
                },
                Err(Fault::Expression(why)) => self.failed(why),
                Err(Fault::Budget) => {
                    let decision = self.failed(OUT_OF_BUDGET.to_owned());
                    return vec![TimedDecision { decision, elapsed }];
                }
            };
            decisions.push(TimedDecision { decision, elapsed });
        }
        decisions
    }

    /// Carries out the mutations on an object: the value of the expression of each, in order.
    ///
    /// # Errors
    /// Why the expression has no result.
    pub(super) fn mutation(
        &self,
        mutation: &CompiledMutation,
        spending: &mut Spending,
    ) -> Result<Json, String> {
        let scope = self.policy.programs().compiler.scope(&self.input);
        let result = spending.metered(Meter::default(), |meter| {
            evaluate(&mutation.program, &mutation.source, &scope, meter)
        });
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
            false => PolicyDecision::Ignore { message },
        }
    }

    /// Whether all match conditions hold. A false one outweighs errors.
    ///
    /// # Errors
    /// kube-apiserver's message, unless the policy ignores errors.
    pub(super) fn matches(&self, spending: &mut Spending) -> Result<bool, String> {
        let conditions = &self.policy.conditions;
        if conditions.is_empty() {
            return Ok(true);
        }
        conditions.hold(&AdmissionInput { namespace: None, ..self.input }, spending)
    }

    /// The message of a failed validation.
    fn message(&self, validation: &Validation, meter: &mut Meter) -> Result<String, String> {
        let plain = || match validation.message.as_str() {
            "" => format!("failed expression: {}", validation.source.trim()),
            message => message.to_owned(),
        };
        let Some(program) = &validation.message_program else { return Ok(plain()) };
        let input = AdmissionInput { authorizer: None, ..self.input };
        let scope = self.policy.programs().compiler.scope(&input);
        match evaluate(program, "", &scope, meter) {
            Ok(Value::String(text)) if fits(text.trim()) => Ok(text.trim().to_owned()),
            Err(Fault::Budget) => Err(format!("failed messageExpression: {OUT_OF_BUDGET}")),
            Ok(_) | Err(Fault::Expression(_)) => Ok(plain()),
        }
    }

    fn annotations(&self, meter: &mut Meter) -> Vec<PolicyAnnotation> {
        let programs = self.policy.programs();
        if programs.annotations.is_empty() {
            return Vec::new();
        }
        let input = AdmissionInput { authorizer: None, ..self.input };
        let scope = programs.compiler.scope(&input);
        let mut found = Vec::new();
        for annotation in &programs.annotations {
            match evaluate(&annotation.program, &annotation.source, &scope, meter) {
                Ok(Value::String(text)) if !text.trim().is_empty() => {
                    let key = annotation.key.clone();
                    found.push(PolicyAnnotation::Value { key, value: text.trim().to_owned() });
                }
                Ok(_) => {}
                Err(Fault::Expression(why)) => found.push(PolicyAnnotation::Failed(why)),
                Err(Fault::Budget) => {
                    found.retain(|known| matches!(known, PolicyAnnotation::Value { .. }));
                    found.push(PolicyAnnotation::Failed(OUT_OF_BUDGET.to_owned()));
                    break;
                }
            }
        }
        if !self.policy.fails {
            found.retain(|known| matches!(known, PolicyAnnotation::Value { .. }));
        }
        found
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
