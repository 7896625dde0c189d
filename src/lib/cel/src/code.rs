//! Checked expressions: variables are indices, functions are resolved.

use crate::library::function::Function;
use crate::value::{Field, Value};
use std::sync::Arc;

/// An evaluable expression.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Constant(Value<'static>),
    /// Index among the variables.
    Variable(usize),
    /// Index among the variables of a policy.
    Composed(usize),
    /// An optional with this value.
    Present(Box<Code>),
    Select {
        operand: Box<Code>,
        field: Field,
        optional: bool,
    },
    /// Field presence.
    Has {
        operand: Box<Code>,
        field: Field,
    },
    Index {
        operand: Box<Code>,
        index: Box<Code>,
        optional: bool,
    },
    /// The candidate functions; several if an argument's type is unknown.
    Call(Vec<&'static Function>, Vec<Code>),
    And(Vec<Code>),
    Or(Vec<Code>),
    Conditional(Box<[Code; 3]>),
    List(Vec<(Code, bool)>),
    Map(Vec<(Code, Code, bool)>),
    Loop(Box<Loop>),
    /// The first is an optional; if it has no value, evaluates the second. `true`: unwraps the
    /// value.
    OrElse(Box<[Code; 2]>, bool),
    /// A message literal: type and fields, with whether each is optional.
    Message(Arc<str>, Vec<(Arc<str>, Code, bool)>),
    /// Evaluates the first and binds it as a variable in the second.
    Bind(Box<[Code; 2]>),
    /// The first is an optional; if it has a value, binds it as a variable in the second.
    OptMap(Box<[Code; 2]>, bool),
}

/// Combination of the results of a loop's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    /// A list of the results.
    List,
    /// The items for which the body is true.
    Filter,
    /// A map of the results by the range's keys.
    Map,
    /// A map of the entries of the maps that the body returns.
    Entries,
    /// The items, sorted by the results.
    Sort,
}

/// A loop over a list or map.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) range: Code,
    /// Whether there are two variables: index or key, and value.
    pub(crate) two: bool,
    /// Skips items for which it is false.
    pub(crate) condition: Option<Code>,
    pub(crate) body: Code,
}
