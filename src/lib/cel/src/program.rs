//! A compiled expression.

use crate::admission::{AdmissionScope, ExpressionEnvironment};
use crate::check::Checker;
use crate::code::Code;
use crate::cost::Meter;
use crate::evaluator::Evaluator;
use crate::failure::Failure;
use crate::sizes::Sizes;
use crate::syntax::parse;
use crate::types::Type;
use crate::value::Value;
use std::sync::Arc;

/// Why an expression does not compile.
#[derive(Clone, Debug)]
pub(crate) enum CompileError {
    /// Syntax or type errors, each with its position and source line.
    Source(String),
    /// An error found after type checking, and the type of the expression.
    Program(String, Type),
}

/// A compiled expression. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Program {
    code: Arc<Code>,
    answer: Type,
    cost: u64,
    /// By variable index.
    used: Arc<[bool]>,
}

impl Program {
    /// Compiles an expression. `variables` are the available names and types, `sizes` the known
    /// bounds on their values' lengths.
    ///
    /// # Errors
    /// cel-go's message.
    pub(crate) fn compile(
        source: &str,
        variables: &[(&str, Type)],
        environment: &ExpressionEnvironment,
        sizes: &mut Sizes,
    ) -> Result<Self, CompileError> {
        let ast = parse(source).map_err(|faults| CompileError::Source(faults.written(source)))?;
        let mut checker = Checker::new(variables, environment, sizes);
        let checked = checker.check(&ast);
        if let Some(faults) = checker.faults() {
            return Err(CompileError::Source(faults.written(source)));
        }
        if let Some(why) = checker.unplanned.take() {
            return Err(CompileError::Program(why, checked.answer));
        }
        Ok(Self {
            code: Arc::new(checked.code),
            answer: checked.answer,
            cost: checked.estimate.cost,
            used: checker.used.into(),
        })
    }

    /// The result type.
    pub fn answer(&self) -> &Type {
        &self.answer
    }

    /// Estimated max cost of one evaluation.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether the expression uses a variable, by its index in `variables`.
    pub fn uses(&self, variable: usize) -> bool {
        self.used.get(variable).copied().unwrap_or(false)
    }

    /// Evaluates with the values of `variables`, in their order.
    ///
    /// # Errors
    /// It failed or exceeded its budget.
    pub fn evaluate<'a>(
        &'a self,
        variables: Vec<Value<'a>>,
        meter: &mut Meter,
    ) -> Result<Value<'a>, Failure> {
        meter.begin();
        Evaluator::new(variables, meter).evaluate(&self.code)
    }

    /// Evaluates an expression of admission.
    ///
    /// # Errors
    /// It failed or exceeded its budget.
    pub fn evaluate_in<'a>(
        &'a self,
        scope: &AdmissionScope<'a>,
        meter: &mut Meter,
    ) -> Result<Value<'a>, Failure> {
        meter.begin();
        Evaluator::in_scope(scope, meter).evaluate(&self.code)
    }
}
