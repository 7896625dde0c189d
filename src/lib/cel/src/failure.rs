//! Errors of evaluation.

use std::fmt;

/// Why an evaluation failed. Never contains a value of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The budget is used up.
    Budget,
    /// An operation failed, with cel-go's message.
    Failed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget => f.write_str("operation cancelled: actual cost limit exceeded"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}

impl From<&str> for Failure {
    fn from(why: &str) -> Self {
        Self::Failed(why.to_owned())
    }
}

/// Arguments whose types were unknown at compile time match no function.
pub(crate) fn no_overload<T>() -> Result<T, Failure> {
    Err(Failure::from(NO_OVERLOAD))
}

pub(crate) const NO_OVERLOAD: &str = "no such overload";

pub(crate) fn overflow() -> Failure {
    "integer overflow".into()
}

pub(crate) fn unsigned_overflow() -> Failure {
    "unsigned integer overflow".into()
}
