//! The Common Expression Language with Kubernetes' libraries, and the validation rules of custom
//! resources. Expressions are type-checked, their cost is estimated before and metered during
//! evaluation.
//!
//! An expression goes through `lex`, `syntax` (parsing) and `check` (types and costs) to become
//! `code`, which `evaluator` runs on `value`s that borrow from the object. Functions are table rows
//! in `library`. Existing crates have no type checker, no budget, and lack half of the libraries.
//!
//! Must never know HTTP, storage or a concrete kind. Start reading at [`Program`] or [`Rules`].

pub mod admission;
mod check;
mod code;
mod cost;
pub mod devices;
mod estimate;
mod evaluator;
mod failure;
#[cfg(test)]
mod fuzz;
mod lex;
mod library;
mod loops;
mod program;
mod rules;
mod sizes;
mod source;
mod syntax;
mod types;
mod value;

pub use cost::Meter;
pub use failure::Failure;
pub use program::Program;
pub use rules::{RuleFindings, Rules};
pub use types::Type;
pub use value::authorizer::{Authorize, CheckDecision, CheckedResource, CheckedSubject, Right};
pub use value::{MessageValue, Value};
