//! Type-checks expressions, estimates their costs and resolves names, in one walk. An expression
//! with an error has type [`Type::Error`], which fits everywhere.

mod macros;

use crate::code::Code;
use crate::library::{CallTypes, Overloads, compile_regex, time};
use crate::source::{SourceError, SourceErrors};
use crate::syntax::{Ast, ExprKind};
use crate::types::Type;
use crate::value::{Field, Text, Value};
use ferrokube_schema::pattern;
use std::sync::Arc;

/// A checked expression.
pub(crate) struct Checked {
    pub(crate) code: Code,
    pub(crate) answer: Type,
    pub(crate) cost: u64,
}

/// The checker's state.
pub(crate) struct Checker {
    variables: Vec<(String, Type)>,
    /// Which of the program's own variables are used.
    pub(crate) used: Vec<bool>,
    /// Whether list and map literals may mix types, as the arguments of `format` do.
    mixed: bool,
    /// Malformed macros; they hide all other errors.
    macros: SourceErrors,
    /// Type errors.
    types: SourceErrors,
    /// Errors that are only reported if there are no type errors.
    late: SourceErrors,
    /// A pattern that does not compile; reported if everything else does.
    pub(crate) unplanned: Option<String>,
}

/// Names before a dot that are not variables.
const NAMESPACES: [&str; 7] = ["optional", "sets", "format", "ip", "lists", "strings", "cel"];
/// Type names, as values.
const TYPES: [&str; 12] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
];

impl Checker {
    pub(crate) fn new(variables: &[(&str, Type)]) -> Self {
        Self {
            variables: variables
                .iter()
                .map(|(name, given)| ((*name).to_owned(), given.clone()))
                .collect(),
            used: vec![false; variables.len()],
            mixed: false,
            macros: SourceErrors::default(),
            types: SourceErrors::default(),
            late: SourceErrors::default(),
            unplanned: None,
        }
    }

    /// The errors of the first of cel-go's passes that finds any.
    pub(crate) fn faults(&mut self) -> Option<SourceErrors> {
        [&mut self.macros, &mut self.types, &mut self.late]
            .into_iter()
            .find(|faults| !faults.is_empty())
            .map(std::mem::take)
    }

    /// Adds a type error; the expression gets type [`Type::Error`].
    fn fault(&mut self, at: usize, why: impl Into<String>) -> Checked {
        self.types.push(SourceError { at, why: why.into() });
        unknown()
    }

    pub(crate) fn check(&mut self, ast: &Ast) -> Checked {
        match &ast.kind {
            ExprKind::Null => constant(Value::Null, Type::Null),
            ExprKind::Bool(flag) => constant(Value::Bool(*flag), Type::Bool),
            ExprKind::Int(number) => constant(Value::Int(*number), Type::Int),
            ExprKind::Uint(number) => constant(Value::Uint(*number), Type::Uint),
            ExprKind::Double(number) => constant(Value::Double(*number), Type::Double),
            ExprKind::Text(text) => constant(
                Value::String(Text::Own(text.as_str().into())),
                Type::String(text.len() as u64),
            ),
            ExprKind::Bytes(bytes) => {
                constant(Value::Bytes(bytes.as_slice().into()), Type::Bytes(bytes.len() as u64))
            }
            ExprKind::Name(name) => self.variable(name, ast.at),
            ExprKind::Select { operand, field, optional } => {
                self.select(operand, (field, ast.at), *optional)
            }
            ExprKind::Index { operand, index, optional } => {
                self.index(operand, index, (*optional, ast.at))
            }
            ExprKind::Call { target, name, args } => {
                self.call(target.as_deref(), (name, ast.at), args)
            }
            ExprKind::And(all) => self.logical(all, Code::And),
            ExprKind::Or(all) => self.logical(all, Code::Or),
            ExprKind::Conditional(parts) => self.conditional(parts, ast.at),
            ExprKind::List(items) => self.list(items),
            ExprKind::Map(entries) => self.map(entries),
            ExprKind::Message(name) => self.undeclared(name, ast.at),
        }
    }

    fn undeclared(&mut self, name: &str, at: usize) -> Checked {
        self.fault(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn variable(&mut self, name: &str, at: usize) -> Checked {
        if let Some(place) = self.variables.iter().rposition(|(known, _)| known == name) {
            if let Some(used) = self.used.get_mut(place) {
                *used = true;
            }
            return Checked {
                code: Code::Variable(place),
                answer: self.variables[place].1.clone(),
                cost: 1,
            };
        }
        match TYPES.into_iter().find(|known| *known == name) {
            Some(name) => constant(Value::Type(name), Type::Type(name.into())),
            None => self.undeclared(name, at),
        }
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| known == name)
    }

    /// A dotted name that is not a field of a variable.
    fn qualified(&self, ast: &Ast) -> Option<String> {
        match &ast.kind {
            ExprKind::Name(name) if !self.is_variable(name) => Some(name.clone()),
            ExprKind::Select { operand, field, optional: false } => {
                Some(format!("{}.{field}", self.qualified(operand)?))
            }
            _ => None,
        }
    }

    fn select(&mut self, operand: &Ast, (field, at): (&str, usize), optional: bool) -> Checked {
        let whole = self.qualified(operand).map(|prefix| format!("{prefix}.{field}"));
        if let Some(name) = whole.and_then(|whole| TYPES.into_iter().find(|known| *known == whole))
        {
            return constant(Value::Type(name), Type::Type(name.into()));
        }
        let operand = self.check(operand);
        let wrap = |found: Type| if optional { Type::optional(found) } else { found };
        let answer = match operand.answer.field(field) {
            Ok(found) => wrap(found),
            Err(why) => {
                self.fault(at, why);
                // A value without declared fields could have any.
                let has_fields = matches!(operand.answer, Type::Object(..));
                return constant(
                    Value::Null,
                    wrap(if has_fields { Type::Error } else { Type::Dyn }),
                );
            }
        };
        let code =
            Code::Select { operand: Box::new(operand.code), field: Field::new(field), optional };
        Checked { code, answer, cost: operand.cost.saturating_add(1) }
    }

    /// `has(a.b)`
    fn has(&mut self, arg: &Ast, at: usize) -> Checked {
        let ExprKind::Select { operand, field, optional: false } = &arg.kind else {
            self.macros.push(SourceError {
                at: arg.at,
                why: "invalid argument to has() macro".to_owned(),
            });
            return unknown();
        };
        let operand = self.check(operand);
        if let Err(why) = operand.answer.field(field) {
            return Checked { answer: Type::Bool, ..self.fault(at, why) };
        }
        let code = Code::Has { operand: Box::new(operand.code), field: Field::new(field) };
        Checked { code, answer: Type::Bool, cost: operand.cost.saturating_add(1) }
    }

    fn index(&mut self, operand: &Ast, index: &Ast, (optional, at): (bool, usize)) -> Checked {
        let operand = self.check(operand);
        let index = self.check(index);
        let (inner, chained) = match &operand.answer {
            Type::Optional(inner) => ((**inner).clone(), true),
            plain => (plain.clone(), false),
        };
        let found = match (&inner, &index.answer) {
            (Type::List(item, _), Type::Int | Type::Dyn | Type::Error) => (**item).clone(),
            (Type::Map(key, value, _), given) if key.fits(given) => (**value).clone(),
            (Type::Dyn | Type::Error, _) => Type::Dyn,
            _ => {
                let name = if optional { "_[?_]" } else { "_[_]" };
                return self.fault(at, no_match(name, false, &[operand.answer, index.answer]));
            }
        };
        let answer = if optional || chained { Type::optional(found) } else { found };
        let cost = operand.cost.saturating_add(index.cost).saturating_add(1);
        Checked {
            code: Code::Index {
                operand: Box::new(operand.code),
                index: Box::new(index.code),
                optional,
            },
            answer,
            cost,
        }
    }

    fn call(&mut self, target: Option<&Ast>, (name, at): (&str, usize), args: &[Ast]) -> Checked {
        if let Some(found) = self.expand(target, (name, at), args) {
            return found;
        }
        let Some(target) = target else { return self.function(None, (name, at), args) };
        if let ExprKind::Name(prefix) = &target.kind
            && NAMESPACES.contains(&prefix.as_str())
            && !self.is_variable(prefix)
        {
            let whole = format!("{prefix}.{name}");
            if CallTypes::exists(&whole) {
                return self.function(None, (&whole, at), args);
            }
        }
        self.function(Some(target), (name, at), args)
    }

    fn function(
        &mut self,
        target: Option<&Ast>,
        (name, at): (&str, usize),
        args: &[Ast],
    ) -> Checked {
        let mut codes = Vec::with_capacity(args.len() + 1);
        let mut types = Vec::with_capacity(args.len() + 1);
        let mut total = 0u64;
        for ast in target.into_iter().chain(args) {
            let outer = self.mixed;
            self.mixed |= name == "format";
            let checked = self.check(ast);
            self.mixed = outer;
            total = total.saturating_add(checked.cost);
            codes.push(checked.code);
            types.push(checked.answer);
        }
        self.literals(name, &codes, target.into_iter().chain(args));
        let Some(Overloads { rows, answer, cost }) =
            (CallTypes { name, method: target.is_some(), types: &types }).find()
        else {
            return match CallTypes::exists(name) {
                true => {
                    self.fault(at, no_match(operator(name, args.len()), target.is_some(), &types))
                }
                false => self.undeclared(name, at),
            };
        };
        Checked { code: Code::Call(rows, codes), answer, cost: total.saturating_add(cost) }
    }

    fn logical(&mut self, all: &[Ast], code: fn(Vec<Code>) -> Code) -> Checked {
        let mut codes = Vec::with_capacity(all.len());
        let mut cost = 1u64;
        for ast in all {
            let checked = self.check(ast);
            self.expect(&checked.answer, &Type::Bool, ast.at);
            cost = cost.saturating_add(checked.cost);
            codes.push(checked.code);
        }
        Checked { code: code(codes), answer: Type::Bool, cost }
    }

    fn conditional(&mut self, parts: &[Ast; 3], at: usize) -> Checked {
        let [condition, yes, no] = [&parts[0], &parts[1], &parts[2]].map(|part| self.check(part));
        if !is_a(&condition.answer, &Type::Bool) || !yes.answer.fits(&no.answer) {
            return self
                .fault(at, no_match("_?_:_", false, &[condition.answer, yes.answer, no.answer]));
        }
        let answer = yes.answer.join(&no.answer);
        let cost = condition.cost.saturating_add(yes.cost.max(no.cost)).saturating_add(1);
        Checked {
            code: Code::Conditional(Box::new([condition.code, yes.code, no.code])),
            answer,
            cost,
        }
    }

    fn expect(&mut self, given: &Type, wanted: &Type, at: usize) {
        if !is_a(given, wanted) {
            self.fault(at, mismatch(wanted, given));
        }
    }

    /// A list item or map value; an optional one is unwrapped.
    fn part(&mut self, ast: &Ast, optional: bool) -> Checked {
        let checked = self.check(ast);
        match (&checked.answer, optional) {
            (Type::Optional(inner), true) => Checked { answer: (**inner).clone(), ..checked },
            (Type::Dyn | Type::Error, true) | (_, false) => checked,
            (other, true) => {
                let why = mismatch(&Type::Optional(Arc::new(other.clone())), other);
                self.fault(ast.at, why)
            }
        }
    }

    /// Joins the types of a literal's elements: the first one's type. A literal with mixed types is
    /// refused later, and is `dyn` until then.
    fn together(&mut self, before: Option<ElementType>, next: &Type, at: usize) -> ElementType {
        match before {
            None => ElementType { first: next.clone(), of_all: true },
            Some(ElementType { first, of_all }) if first.fits(next) => {
                ElementType { first: first.join(next), of_all }
            }
            Some(_) if self.mixed => ElementType { first: Type::Dyn, of_all: true },
            Some(ElementType { first, .. }) => {
                self.late.push(SourceError { at, why: mismatch(&first, next) });
                ElementType { first, of_all: false }
            }
        }
    }

    fn list(&mut self, items: &[(Ast, bool)]) -> Checked {
        let mut codes = Vec::with_capacity(items.len());
        let mut item = None;
        let mut cost = 10u64;
        for (ast, optional) in items {
            let checked = self.part(ast, *optional);
            item = Some(self.together(item, &checked.answer, ast.at));
            cost = cost.saturating_add(checked.cost);
            codes.push((checked.code, *optional));
        }
        let answer = Type::List(Arc::new(ElementType::answer(item)), items.len() as u64);
        Checked { code: Code::List(codes), answer, cost }
    }

    fn map(&mut self, entries: &[(Ast, Ast, bool)]) -> Checked {
        let mut codes = Vec::with_capacity(entries.len());
        let (mut keys, mut values) = (None, None);
        let mut cost = 30u64;
        for (key_ast, value_ast, optional) in entries {
            let (key, value) = (self.check(key_ast), self.part(value_ast, *optional));
            keys = Some(self.together(keys, &key.answer, key_ast.at));
            values = Some(self.together(values, &value.answer, value_ast.at));
            cost = cost.saturating_add(key.cost).saturating_add(value.cost);
            codes.push((key.code, value.code, *optional));
        }
        let answer = Type::Map(
            Arc::new(ElementType::answer(keys)),
            Arc::new(ElementType::answer(values)),
            entries.len() as u64,
        );
        Checked { code: Code::Map(codes), answer, cost }
    }

    /// Adds errors for literals that can never be evaluated.
    fn literals<'a>(
        &mut self,
        name: &str,
        codes: &[Code],
        mut asts: impl Iterator<Item = &'a Ast>,
    ) {
        let text = |place: usize| match codes.get(place) {
            Some(Code::Constant(Value::String(text))) => Some(text.to_string()),
            _ => None,
        };
        let (place, is_sound) = match name {
            "matches" => (1, text(1).is_none_or(|text| compile_regex(&text).is_ok())),
            "duration" => (0, text(0).is_none_or(|text| time::duration(&text).is_some())),
            "timestamp" => (0, text(0).is_none_or(|text| time::timestamp(&text).is_some())),
            "find" | "findAll" => {
                let given = text(1).unwrap_or_default();
                if let Err(error) = pattern::compile(&given) {
                    self.unplanned.get_or_insert_with(|| pattern::explain(&given, &error));
                }
                return;
            }
            _ => return,
        };
        if let Some(ast) = asts.nth(place).filter(|_| !is_sound) {
            self.late.push(SourceError { at: ast.at, why: format!("invalid {name} argument") });
        }
    }
}

/// The joined type of a literal's elements so far.
struct ElementType {
    first: Type,
    of_all: bool,
}

impl ElementType {
    fn answer(parts: Option<Self>) -> Type {
        parts.filter(|parts| parts.of_all).map_or(Type::Dyn, |parts| parts.first)
    }
}

fn constant(value: Value<'static>, answer: Type) -> Checked {
    Checked { code: Code::Constant(value), answer, cost: 0 }
}

/// Replaces an expression with an error.
fn unknown() -> Checked {
    constant(Value::Null, Type::Error)
}

/// Whether a type may be another one, as far as is known.
pub(crate) fn is_a(given: &Type, wanted: &Type) -> bool {
    given.is_dyn() || given.name() == wanted.name()
}

fn mismatch(wanted: &Type, given: &Type) -> String {
    format!("expected type '{}' but found '{}'", wanted.shown(), given.shown())
}

fn no_match(name: &str, method: bool, types: &[Type]) -> String {
    let names: Vec<String> = types.iter().map(Type::shown).collect();
    let signature = match (method, names.split_first()) {
        (true, Some((target, args))) => format!("{target}.({})", args.join(", ")),
        _ => format!("({})", names.join(", ")),
    };
    format!("found no matching overload for '{name}' applied to '{signature}'")
}

/// The function name of an operator.
fn operator(name: &str, args: usize) -> &str {
    match name {
        "==" => "_==_",
        "!=" => "_!=_",
        "<" => "_<_",
        "<=" => "_<=_",
        ">" => "_>_",
        ">=" => "_>=_",
        "+" => "_+_",
        "-" if args == 1 => "-_",
        "-" => "_-_",
        "*" => "_*_",
        "/" => "_/_",
        "%" => "_%_",
        "!" => "!_",
        "in" => "@in",
        plain => plain,
    }
}
