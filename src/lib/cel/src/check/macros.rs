//! Macros: what looks like a call and brings variables of its own.

use super::{Checked, Checker, Result, expect};
use crate::code::{Code, Loop, LoopKind};
use crate::syntax::{Ast, Kind};
use crate::types::{MAX_REQUEST, Type};
use std::sync::Arc;

/// A macro over a range.
struct Shape<'a> {
    kind: LoopKind,
    names: Vec<String>,
    condition: Option<&'a Ast>,
    body: &'a Ast,
}

impl Checker {
    /// What a macro stands for; `None`: it is a function.
    pub(super) fn expand(&mut self, target: Option<&Ast>, name: &str, args: &[Ast]) -> Result<Option<Checked>> {
        let Some(target) = target else {
            return match (name, args) {
                ("has", [arg]) => self.has(arg).map(Some),
                _ => Ok(None),
            };
        };
        match (name, args) {
            ("bind", [variable, value, body]) if matches!(&target.kind, Kind::Name(name) if name == "cel") => {
                return self.bind(variable, value, body).map(Some);
            }
            ("optMap" | "optFlatMap", [variable, body]) => return self.opt_map(target, variable, body, name == "optFlatMap").map(Some),
            _ => {}
        }
        match shape(name, args) {
            Some(shape) => self.run_over(target, shape?).map(Some),
            None => Ok(None),
        }
    }

    fn bind(&mut self, variable: &Ast, value: &Ast, body: &Ast) -> Result<Checked> {
        let name = variable_name(variable)?;
        let value = self.check(value)?;
        let body = self.with(vec![(name, value.answer.clone())], body)?;
        let cost = value.cost.saturating_add(body.cost).saturating_add(1);
        Ok(Checked { code: Code::Bind(Box::new([value.code, body.code])), answer: body.answer, cost })
    }

    fn opt_map(&mut self, target: &Ast, variable: &Ast, body: &Ast, flat: bool) -> Result<Checked> {
        let name = variable_name(variable)?;
        let target = self.check(target)?;
        let inner = match &target.answer {
            Type::Optional(inner) => (**inner).clone(),
            Type::Dyn => Type::Dyn,
            other => return Err(format!("expected type 'optional_type' but found '{}'", other.name())),
        };
        let body = self.with(vec![(name, inner)], body)?;
        let cost = target.cost.saturating_add(body.cost).saturating_add(1);
        let answer = if flat { body.answer } else { Type::Optional(Arc::new(body.answer)) };
        Ok(Checked { code: Code::OptMap(Box::new([target.code, body.code]), flat), answer, cost })
    }

    /// Checks with further variables.
    fn with(&mut self, variables: Vec<(String, Type)>, ast: &Ast) -> Result<Checked> {
        let depth = self.variables.len();
        self.variables.extend(variables);
        let checked = self.check(ast);
        self.variables.truncate(depth);
        checked
    }

    fn run_over(&mut self, range: &Ast, shape: Shape<'_>) -> Result<Checked> {
        let range = self.check(range)?;
        let two = shape.names.len() == 2;
        let (key, item, most) = match &range.answer {
            Type::List(item, most) => (Type::Int, (**item).clone(), *most),
            Type::Map(key, value, most) if two => ((**key).clone(), (**value).clone(), *most),
            Type::Map(key, _, most) => ((**key).clone(), (**key).clone(), *most),
            Type::Dyn => (Type::Dyn, Type::Dyn, MAX_REQUEST),
            other => return Err(format!("expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)", other.name())),
        };
        let variables = || {
            let types = if two { vec![key.clone(), item.clone()] } else { vec![item.clone()] };
            shape.names.iter().cloned().zip(types).collect::<Vec<_>>()
        };
        let condition = match shape.condition {
            None => None,
            Some(ast) => {
                let checked = self.with(variables(), ast)?;
                expect(&checked.answer, &Type::Bool)?;
                Some(checked)
            }
        };
        let body = self.with(variables(), shape.body)?;
        let answer = answer(shape.kind, &range.answer, &body.answer, (&key, &item, most))?;
        let round = body.cost.saturating_add(condition.as_ref().map_or(0, |condition| condition.cost)).saturating_add(1);
        let cost = range.cost.saturating_add(most.saturating_mul(round)).saturating_add(1);
        let whole = Loop { kind: shape.kind, range: range.code, two, condition: condition.map(|condition| condition.code), body: body.code };
        Ok(Checked { code: Code::Loop(Box::new(whole)), answer, cost })
    }
}

/// The type of a loop's answer.
fn answer(kind: LoopKind, range: &Type, body: &Type, (key, item, most): (&Type, &Type, u64)) -> Result<Type> {
    Ok(match kind {
        LoopKind::All | LoopKind::Exists | LoopKind::ExistsOne => {
            expect(body, &Type::Bool)?;
            Type::Bool
        }
        LoopKind::Filter => {
            expect(body, &Type::Bool)?;
            Type::List(Arc::new(item.clone()), most)
        }
        LoopKind::List => Type::List(Arc::new(body.clone()), most),
        LoopKind::Map => Type::Map(Arc::new(key.clone()), Arc::new(body.clone()), most),
        LoopKind::Entries => match body {
            Type::Map(key, value, _) => Type::Map(Arc::clone(key), Arc::clone(value), most),
            other => {
                expect(other, &Type::Dyn)?;
                Type::Dyn
            }
        },
        LoopKind::Sort => range.clone(),
    })
}

/// What the arguments of a macro are; `None`: it is no macro.
fn shape<'a>(name: &str, args: &'a [Ast]) -> Option<Result<Shape<'a>>> {
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
    let (condition, body) = match rest {
        [body] => (None, body),
        [condition, body] => (Some(condition), body),
        _ => return None,
    };
    let names: Result<Vec<String>> = names.iter().map(variable_name).collect();
    Some(names.map(|names| Shape { kind, names, condition, body }))
}

fn variable_name(ast: &Ast) -> Result<String> {
    match &ast.kind {
        Kind::Name(name) => Ok(name.clone()),
        _ => Err("argument must be a simple name".to_owned()),
    }
}
