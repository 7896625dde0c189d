//! Macros: calls that introduce variables.

use super::{Checked, Checker, Variable, is_a, no_match};
use crate::code::{Code, Loop, LoopKind};
use crate::estimate::{Estimate, VariableSize};
use crate::loops::{MacroLoop, NO_NAME, fault_of_names, loop_macro, name_of};
use crate::source::SourceError;
use crate::syntax::{Ast, ExprKind};
use crate::types::Type;
use std::sync::Arc;

impl Checker<'_> {
    /// Expands a macro; `None` if the call is a function.
    pub(super) fn expand(
        &mut self,
        target: Option<&Ast>,
        name: &str,
        at: usize,
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
                return Some(self.opt_map(target, at, variable, body, name == "optFlatMap"));
            }
            _ => {}
        }
        loop_macro(name, args, at).map(|shape| self.run_over(target, &shape))
    }

    fn bind(&mut self, variable: &Ast, value: &Ast, body: &Ast) -> Checked {
        let name = self.variable_name(variable);
        let value = self.check(value);
        let size = VariableSize::of(&value.estimate);
        let body = self.with(vec![Variable { name, answer: value.answer, size }], body);
        let estimate = Estimate::bind(&value.estimate, &body.estimate);
        let code = Code::Bind(Box::new([value.code, body.code]));
        Checked { code, answer: body.answer, estimate }
    }

    fn opt_map(
        &mut self,
        target: &Ast,
        at: usize,
        variable: &Ast,
        body: &Ast,
        flat: bool,
    ) -> Checked {
        let name = self.variable_name(variable);
        // The macro copies its target.
        let before = [self.types.len(), self.late.len()];
        let target = self.check(target);
        self.types.repeat_from(before[0]);
        self.late.repeat_from(before[1]);
        let (has_value, inner) = match &target.answer {
            Type::Optional(inner) => (Type::Bool, (**inner).clone()),
            Type::Dyn | Type::Var | Type::Error => (Type::Bool, Type::Dyn),
            other => {
                self.fault(at, no_match("hasValue", true, std::slice::from_ref(other)));
                self.fault(at, no_match("value", true, std::slice::from_ref(other)));
                (Type::Error, Type::Error)
            }
        };
        let size = VariableSize::computed(&inner);
        let body = self.with(vec![Variable { name, answer: inner, size }], body);
        let (body_answer, body_estimate) = (body.answer, body.estimate);
        let none = Type::Optional(Arc::new(Type::Var));
        let answer = match flat {
            false => Type::Optional(Arc::new(body_answer)),
            true if body_answer.fits(&none) => body_answer,
            true => {
                return self.fault(at, no_match("_?_:_", false, &[has_value, body_answer, none]));
            }
        };
        let estimate = Estimate::opt_map(&target.estimate, &body_estimate, &answer, flat);
        Checked { code: Code::OptMap(Box::new([target.code, body.code]), flat), answer, estimate }
    }

    /// Checks with additional variables.
    fn with(&mut self, variables: Vec<Variable>, ast: &Ast) -> Checked {
        let depth = self.variables.len();
        self.variables.extend(variables);
        let checked = self.check(ast);
        self.variables.truncate(depth);
        checked
    }

    fn run_over(&mut self, range: &Ast, shape: &MacroLoop<'_>) -> Checked {
        if let Some(fault) = fault_of_names(shape) {
            self.macros.push(fault);
        }
        let names: Vec<String> = shape.names.iter().map(name_of).collect();
        let (range, range_at) = (self.check(range), range.at);
        let two = names.len() == 2;
        let (key, item) = match &range.answer {
            Type::List(item) => (Type::Int, (**item).clone()),
            Type::Map(key, value) if two => ((**key).clone(), (**value).clone()),
            Type::Map(key, _) => ((**key).clone(), (**key).clone()),
            Type::Dyn | Type::Var | Type::Error => (Type::Dyn, Type::Dyn),
            other => {
                let why = format!(
                    "expression of type '{}' cannot be range of a comprehension (must be list, map, or dynamic)",
                    other.shown()
                );
                self.fault(range_at, why);
                (Type::Error, Type::Error)
            }
        };
        let condition = shape.condition.map(|ast| {
            let variables = self.iterated(&names, &range, &key, &item);
            self.with(variables, ast)
        });
        let variables = self.iterated(&names, &range, &key, &item);
        // A filter keeps its variable.
        let kept = variables
            .first()
            .filter(|_| shape.kind == LoopKind::Filter)
            .map(|kept| Estimate::variable(&kept.size, &kept.answer, self.sizes));
        let body = self.with(variables, shape.body);
        if let Some(condition) =
            condition.as_ref().filter(|condition| !is_a(&condition.answer, &Type::Bool))
        {
            let list = || Type::List(Arc::new(body.answer.clone()));
            return self.fault(
                shape.at,
                no_match("_?_:_", false, &[condition.answer.clone(), list(), list()]),
            );
        }
        let answer = self.answer(shape, &range.answer, &body.answer, &key, &item);
        let estimate = match shape.kind {
            LoopKind::Sort => Estimate::sort_by(&range.estimate, &body.estimate, &body.answer),
            kind => Estimate::run(
                kind,
                &range.estimate,
                condition.as_ref().map(|condition| &condition.estimate),
                &body.estimate,
                kept.as_ref().unwrap_or(&body.estimate),
            ),
        };
        let whole = Loop {
            kind: shape.kind,
            range: range.code,
            two,
            condition: condition.map(|condition| condition.code),
            body: body.code,
        };
        Checked { code: Code::Loop(Box::new(whole)), answer, estimate }
    }

    /// The variables of a loop.
    fn iterated(
        &self,
        names: &[String],
        range: &Checked,
        key: &Type,
        item: &Type,
    ) -> Vec<Variable> {
        let (estimate, answer) = (&range.estimate, &range.answer);
        let variable = |name: &String, answer: &Type, size| Variable {
            name: name.clone(),
            answer: answer.clone(),
            size,
        };
        match names {
            [index, value] => vec![
                variable(index, key, VariableSize::key(estimate, answer, self.sizes)),
                variable(value, item, VariableSize::item(estimate, self.sizes)),
            ],
            _ => names
                .iter()
                .map(|name| {
                    variable(name, item, VariableSize::single(estimate, answer, self.sizes))
                })
                .collect(),
        }
    }

    /// The type of a loop's result.
    fn answer(
        &mut self,
        shape: &MacroLoop<'_>,
        range: &Type,
        body: &Type,
        key: &Type,
        item: &Type,
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
                let list = Type::List(Arc::new(item.clone()));
                if !is_bool {
                    self.fault(
                        shape.at,
                        no_match("_?_:_", false, &[body.clone(), list.clone(), list.clone()]),
                    );
                }
                list
            }
            LoopKind::List => Type::List(Arc::new(body.clone())),
            LoopKind::Map => Type::Map(Arc::new(key.clone()), Arc::new(body.clone())),
            LoopKind::Entries => match body {
                Type::Map(key, value) => Type::Map(Arc::clone(key), Arc::clone(value)),
                other => {
                    self.expect(other, &Type::Dyn, shape.body.at);
                    Type::Dyn
                }
            },
            LoopKind::Sort => {
                let is_list = range.is_dyn() || matches!(range, Type::List(_));
                if !(is_list && (body.is_dyn() || body.is_ordered())) {
                    let keys = Type::List(Arc::new(body.clone()));
                    let function = "@sortByAssociatedKeys";
                    self.fault(shape.at, no_match(function, true, &[range.clone(), keys]));
                    return Type::Error;
                }
                range.clone()
            }
        }
    }

    fn variable_name(&mut self, ast: &Ast) -> String {
        if !matches!(ast.kind, ExprKind::Name(_)) {
            self.macros.push(SourceError { at: ast.at, why: NO_NAME.to_owned() });
        }
        name_of(ast)
    }
}
