//! One compiled expression.

use crate::check::Checker;
use crate::code::Code;
use crate::cost::Meter;
use crate::machine::{Failure, Machine};
use crate::syntax::parse;
use crate::types::Type;
use crate::value::Value;
use std::sync::Arc;

/// Why an expression does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// Its text is wrong: each fault with its place and its line.
    Source(String),
    /// A part that is looked at later is wrong.
    Program(String),
}

/// A compiled expression. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Program {
    code: Arc<Code>,
    answer: Type,
    cost: u64,
    /// By the place of a variable.
    used: Arc<[bool]>,
}

impl Program {
    /// Compiles; `variables` are the names that the expression may use, with their types.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn compile(source: &str, variables: &[(&str, Type)]) -> Result<Self, CompileError> {
        let ast = parse(source).map_err(|faults| CompileError::Source(faults.written(source)))?;
        let mut checker = Checker::new(variables);
        let checked = checker.check(&ast);
        if let Some(faults) = checker.faults() {
            return Err(CompileError::Source(faults.written(source)));
        }
        if let Some(why) = checker.unplanned.take() {
            return Err(CompileError::Program(why));
        }
        Ok(Self {
            code: Arc::new(checked.code),
            answer: checked.answer,
            cost: checked.cost,
            used: checker.used.into(),
        })
    }

    /// The type of its answer.
    pub fn answer(&self) -> &Type {
        &self.answer
    }

    /// What one evaluation costs at most, as far as the types say.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether it uses a variable, by its place among those that it was compiled with.
    pub fn uses(&self, variable: usize) -> bool {
        self.used.get(variable).copied().unwrap_or(false)
    }

    /// Evaluates with the values of the variables, in their order.
    ///
    /// # Errors
    /// It failed, or cost more than it may.
    pub fn evaluate<'a>(
        &'a self,
        variables: Vec<Value<'a>>,
        meter: &mut Meter,
    ) -> Result<Value<'a>, Failure> {
        meter.begin();
        Machine::new(variables, meter).evaluate(&self.code)
    }
}
