//! Checked expressions: variables are places, functions are found.

use crate::library::Row;
use crate::value::{Field, Value};

/// What is evaluated.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Constant(Value<'static>),
    /// By its place among the variables.
    Variable(usize),
    Select {
        operand: Box<Code>,
        field: Field,
        optional: bool,
    },
    /// Whether a field is there.
    Has {
        operand: Box<Code>,
        field: Field,
    },
    Index {
        operand: Box<Code>,
        index: Box<Code>,
        optional: bool,
    },
    /// The functions that may be meant; more than one where a type is not known.
    Call(Vec<&'static Row>, Vec<Code>),
    And(Vec<Code>),
    Or(Vec<Code>),
    Conditional(Box<[Code; 3]>),
    List(Vec<(Code, bool)>),
    Map(Vec<(Code, Code, bool)>),
    Loop(Box<Loop>),
    /// The first is the value of a variable in the second.
    Bind(Box<[Code; 2]>),
    /// The first is an optional; its value, if there is one, is a variable in the second.
    OptMap(Box<[Code; 2]>, bool),
}

/// What a loop makes of what its body says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopKind {
    All,
    Exists,
    ExistsOne,
    /// The results of the body, in a list.
    List,
    /// The items for which the body is true.
    Filter,
    /// The results of the body, under the keys of the range.
    Map,
    /// The entries of the maps that the body makes.
    Entries,
    /// The items, in the order of what the body says.
    Sort,
}

/// A loop over a list or a map.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    pub(crate) kind: LoopKind,
    pub(crate) range: Code,
    /// Whether there are two variables: index or key, and value.
    pub(crate) two: bool,
    /// Items for which it is false are left out.
    pub(crate) condition: Option<Code>,
    pub(crate) body: Code,
}
