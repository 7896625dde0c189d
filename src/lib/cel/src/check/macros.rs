//! Macros: calls that introduce variables.

use super::{Checked, Checker, is_a, no_match};
use crate::code::{Code, Loop, LoopKind};
use crate::source::SourceError;
use crate::syntax::{Ast, ExprKind};
use crate::types::{MAX_REQUEST, Type};
use std::sync::Arc;

/// A macro that loops over a range.
struct MacroLoop<'a> {
    kind: LoopKind,
    names: &'a [Ast],
    condition: Option<&'a Ast>,
    body: &'a Ast,
    /// Position in the source.
    at: usize,
}

const NO_NAME: &str = "argument must be a simple name";

impl Checker {
    /// Expands a macro; `None` if the call is a function.
    pub(super) fn expand(
        &mut self,
        target: Option<&Ast>,
        (name, at): (&str, usize),
        args: &[Ast],
    ) -> Option<Checked> {
        let Some(target) = target else {
            return match (name, args) {
                ("has", [arg]) => Some(self.has(arg, at)),
                _ => None,
            };
        };
        match (name, args) {
            ("bind", [variable, value, body]) if matches!(&target.kind, ExprKind::Name(name) if name == "cel") =>
            {
                return Some(self.bind(variable, value, body));
            }
            ("optMap" | "optFlatMap", [variable, body]) => {
                return Some(self.opt_map((target, at), variable, body, name == "optFlatMap"));
            }
            _ => {}
        }
        loop_macro(name, args, at).map(|shape| self.run_over(target, &shape))
    }

    fn bind(&mut self, variable: &Ast, value: &Ast, body: &Ast) -> Checked {
        let name = self.variable_name(variable, NO_NAME);
        let value = self.check(value);
        let body = self.with(vec![(name, value.answer.clone())], body);
        let cost = value.cost.saturating_add(body.cost).saturating_add(1);
        Checked { code: Code::Bind(Box::new([value.code, body.code])), answer: body.answer, cost }
    }

    fn opt_map(
        &mut self,
        (target, at): (&Ast, usize),
        variable: &Ast,
        body: &Ast,
        flat: bool,
    ) -> Checked {
        let name = self.variable_name(variable, NO_NAME);
        let target = self.check(target);
        let inner = match &target.answer {
            Type::Optional(inner) => (**inner).clone(),
            Type::Dyn | Type::Var | Type::Error => Type::Dyn,
            other => {
                self.fault(at, no_match("hasValue", true, std::slice::from_ref(other)));
                return self.fault(at, no_match("value", true, std::slice::from_ref(other)));
            }
        };
        let body = self.with(vec![(name, inner)], body);
        let cost = target.cost.saturating_add(body.cost).saturating_add(1);
        let answer = if flat { body.answer } else { Type::Optional(Arc::new(body.answer)) };
        Checked { code: Code::OptMap(Box::new([target.code, body.code]), flat), answer, cost }
    }

    /// Checks with additional variables.
    fn with(&mut self, variables: Vec<(String, Type)>, ast: &Ast) -> Checked {
        let depth = self.variables.len();
        self.variables.extend(variables);
        let checked = self.check(ast);
        self.variables.truncate(depth);
        checked
    }

    fn run_over(&mut self, range: &Ast, shape: &MacroLoop<'_>) -> Checked {
        let why = match shape.kind {
            LoopKind::List | LoopKind::Filter | LoopKind::Sort if shape.names.len() == 1 => {
                "argument is not an identifier"
            }
            _ => NO_NAME,
        };
        let names: Vec<String> =
            shape.names.iter().map(|name| self.variable_name(name, why)).collect();
        let (range, range_at) = (self.check(range), range.at);
        let two = names.len() == 2;
        let (key, item, most) = match &range.answer {
            Type::List(item, most) => (Type::Int, (**item).clone(), *most),
            Type::Map(key, value, most) if two => ((**key).clone(), (**value).clone(), *most),
            Type::Map(key, _, most) => ((**key).clone(), (**key).clone(), *most),
            Type::Dyn | Type::Var | Type::Error => (Type::Dyn, Type::Dyn, MAX_REQUEST),
            other => {
                let why = format!(
                    "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                    other.shown()
                );
                self.fault(range_at, why);
                (Type::Error, Type::Error, MAX_REQUEST)
            }
        };
        let variables = || {
            let types = if two { vec![key.clone(), item.clone()] } else { vec![item.clone()] };
            names.iter().cloned().zip(types).collect::<Vec<_>>()
        };
        let condition = shape.condition.map(|ast| self.with(variables(), ast));
        let body = self.with(variables(), shape.body);
        if let Some(condition) =
            condition.as_ref().filter(|condition| !is_a(&condition.answer, &Type::Bool))
        {
            let list = || Type::List(Arc::new(body.answer.clone()), most);
            return self.fault(
                shape.at,
                no_match("_?_:_", false, &[condition.answer.clone(), list(), list()]),
            );
        }
        let answer = self.answer(shape, &range.answer, &body.answer, (&key, &item, most));
        // A macro that builds a list appends each item as a list of its own.
        let appended = match shape.kind {
            LoopKind::Filter => 12,
            LoopKind::List => 12,
            _ => 1,
        };
        let round = body
            .cost
            .saturating_add(condition.as_ref().map_or(0, |condition| condition.cost))
            .saturating_add(appended);
        let cost = range.cost.saturating_add(most.saturating_mul(round)).saturating_add(1);
        let whole = Loop {
            kind: shape.kind,
            range: range.code,
            two,
            condition: condition.map(|condition| condition.code),
            body: body.code,
        };
        Checked { code: Code::Loop(Box::new(whole)), answer, cost }
    }

    /// The type of a loop's result.
    fn answer(
        &mut self,
        shape: &MacroLoop<'_>,
        range: &Type,
        body: &Type,
        (key, item, most): (&Type, &Type, u64),
    ) -> Type {
        let is_bool = is_a(body, &Type::Bool);
        match shape.kind {
            LoopKind::All | LoopKind::Exists => {
                self.expect(body, &Type::Bool, shape.body.at);
                Type::Bool
            }
            LoopKind::ExistsOne => {
                if !is_bool {
                    self.fault(
                        shape.at,
                        no_match("_?_:_", false, &[body.clone(), Type::Int, Type::Int]),
                    );
                }
                Type::Bool
            }
            LoopKind::Filter => {
                let list = Type::List(Arc::new(item.clone()), most);
                if !is_bool {
                    self.fault(
                        shape.at,
                        no_match("_?_:_", false, &[body.clone(), list.clone(), list.clone()]),
                    );
                }
                list
            }
            LoopKind::List => Type::List(Arc::new(body.clone()), most),
            LoopKind::Map => Type::Map(Arc::new(key.clone()), Arc::new(body.clone()), most),
            LoopKind::Entries => match body {
                Type::Map(key, value, _) => Type::Map(Arc::clone(key), Arc::clone(value), most),
                other => {
                    self.expect(other, &Type::Dyn, shape.body.at);
                    Type::Dyn
                }
            },
            LoopKind::Sort => range.clone(),
        }
    }

    fn variable_name(&mut self, ast: &Ast, why: &str) -> String {
        if let ExprKind::Name(name) = &ast.kind {
            return name.clone();
        }
        self.macros.push(SourceError { at: ast.at, why: why.to_owned() });
        String::new()
    }
}

/// Recognizes a loop macro by its name and arguments.
fn loop_macro<'a>(name: &str, args: &'a [Ast], at: usize) -> Option<MacroLoop<'a>> {
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
