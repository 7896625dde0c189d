//! Label and field selectors: parsed once, bounded, matched against pairs.

mod compiled;
mod field;
mod label;
mod lexer;

pub use compiled::CompiledLabels;
pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelOperator, LabelRequirement, LabelSelector};

/// Requirements of a selector: each is looked up in every object's labels.
pub const MAX_TERMS: usize = 1_000;

/// Values of all requirements.
pub const MAX_VALUES: usize = 20_000;

/// Why a selector is invalid, with kube-apiserver's message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

#[cfg(test)]
mod tests;
