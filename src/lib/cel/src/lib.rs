//! The Common Expression Language, as Kubernetes speaks it: parsed, checked against declared types,
//! its cost bounded before it runs and metered while it runs; and the validation rules of custom
//! resources, which are made of it.
//!
//! An expression goes through `lex`, `syntax` (what was written) and `check` (types and costs) to
//! become `code`, which `machine` evaluates on `value`s that borrow from the object. The functions
//! are rows of tables in `library`. Why not an existing crate: those that were measured have no
//! type checker, no budget, and lack half of the libraries.
//!
//! It must never know HTTP, storage or a concrete kind. Start reading at [`Program`], or at
//! [`Rules`].

mod check;
mod code;
mod cost;
mod lex;
mod library;
mod machine;
mod program;
mod rules;
mod source;
mod syntax;
mod types;
mod value;

pub use cost::Meter;
pub use machine::Failure;
pub use program::Program;
pub use rules::{Rules, Verdict};
pub use types::Type;
pub use value::Value;
