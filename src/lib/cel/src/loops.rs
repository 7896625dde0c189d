//! Loop macros: calls that are recognized by name and arguments, and the faults of their variables.

use crate::code::LoopKind;
use crate::source::SourceError;
use crate::syntax::{Ast, ExprKind};

/// A macro that loops over a range.
pub(crate) struct MacroLoop<'a> {
    pub(crate) kind: LoopKind,
    pub(crate) names: &'a [Ast],
    pub(crate) condition: Option<&'a Ast>,
    pub(crate) body: &'a Ast,
    /// Position in the source.
    pub(crate) at: usize,
}

pub(crate) const NO_NAME: &str = "argument must be a simple name";
/// The accumulator variable of a loop.
const ACCUMULATOR: &str = "__result__";

pub(crate) fn name_of(ast: &Ast) -> String {
    match &ast.kind {
        ExprKind::Name(name) => name.clone(),
        _ => String::new(),
    }
}

/// The error of a loop macro whose variables are malformed, for a call that may be one.
pub(crate) fn fault_of_call(name: &str, args: &[Ast]) -> Option<SourceError> {
    fault_of_names(&loop_macro(name, args, 0)?)
}

/// The error if the variables of a loop macro are malformed.
pub(crate) fn fault_of_names(shape: &MacroLoop<'_>) -> Option<SourceError> {
    let why = match shape.kind {
        LoopKind::List | LoopKind::Filter | LoopKind::Sort if shape.names.len() == 1 => {
            "argument is not an identifier"
        }
        _ => NO_NAME,
    };
    let fault = |ast: &Ast, why: &str| Some(SourceError { at: ast.at, why: why.to_owned() });
    if let Some(ast) = shape.names.iter().find(|ast| !matches!(ast.kind, ExprKind::Name(_))) {
        return fault(ast, why);
    }
    if let [one, other] = shape.names
        && name_of(one) == name_of(other)
    {
        return fault(other, &format!("duplicate variable name: {}", name_of(one)));
    }
    let hidden = shape.names.iter().find(|ast| name_of(ast) == ACCUMULATOR)?;
    fault(hidden, "iteration variable overwrites accumulator variable")
}

/// Recognizes a loop macro by its name and arguments.
pub(crate) fn loop_macro<'a>(name: &str, args: &'a [Ast], at: usize) -> Option<MacroLoop<'a>> {
    let kind = match (name, args.len()) {
        ("all", 2 | 3) => LoopKind::All,
        ("exists", 2 | 3) => LoopKind::Exists,
        ("exists_one" | "existsOne", 2 | 3) => LoopKind::ExistsOne,
        ("filter", 2) => LoopKind::Filter,
        ("map", 2 | 3) | ("transformList", 3 | 4) => LoopKind::List,
        ("transformMap", 3 | 4) => LoopKind::Map,
        ("transformMapEntry", 3 | 4) => LoopKind::Entries,
        ("sortBy", 2) => LoopKind::Sort,
        _ => return None,
    };
    let two = name.starts_with("transform") || (name != "map" && args.len() == 3);
    let (names, rest) = args.split_at(if two { 2 } else { 1 });
    match rest {
        [body] => Some(MacroLoop { kind, names, condition: None, body, at }),
        [condition, body] => Some(MacroLoop { kind, names, condition: Some(condition), body, at }),
        _ => None,
    }
}
