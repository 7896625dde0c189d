//! Types and costs of expressions, in one walk that also resolves names; what has no type is refused.

mod macros;

use crate::code::Code;
use crate::library::{Call, Found, compile_regex, time};
use crate::syntax::{Ast, Kind};
use crate::types::Type;
use crate::value::{Field, Text, Value};
use std::sync::Arc;

/// An expression that was checked.
pub(crate) struct Checked {
    pub(crate) code: Code,
    pub(crate) answer: Type,
    pub(crate) cost: u64,
}

type Result<T> = std::result::Result<T, String>;

/// The variables that are in sight, innermost last.
pub(crate) struct Checker {
    variables: Vec<(String, Type)>,
    /// Whether each of the outermost is used.
    pub(crate) used: Vec<bool>,
    /// Whether lists and maps may hold values of several types, as the arguments of `format` do.
    mixed: bool,
}

/// Names before a dot that are no variables.
const NAMESPACES: [&str; 7] = ["optional", "sets", "format", "ip", "lists", "strings", "cel"];
/// Names of types, as values.
const TYPES: [&str; 12] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "google.protobuf.Duration", "google.protobuf.Timestamp"];

impl Checker {
    pub(crate) fn new(variables: &[(&str, Type)]) -> Self {
        Self {
            variables: variables.iter().map(|(name, given)| ((*name).to_owned(), given.clone())).collect(),
            used: vec![false; variables.len()],
            mixed: false,
        }
    }

    pub(crate) fn check(&mut self, ast: &Ast) -> Result<Checked> {
        match &ast.kind {
            Kind::Null => constant(Value::Null, Type::Null),
            Kind::Bool(flag) => constant(Value::Bool(*flag), Type::Bool),
            Kind::Int(number) => constant(Value::Int(*number), Type::Int),
            Kind::Uint(number) => constant(Value::Uint(*number), Type::Uint),
            Kind::Double(number) => constant(Value::Double(*number), Type::Double),
            Kind::Text(text) => constant(Value::String(Text::Own(text.as_str().into())), Type::String(text.len() as u64)),
            Kind::Bytes(bytes) => constant(Value::Bytes(bytes.as_slice().into()), Type::Bytes(bytes.len() as u64)),
            Kind::Name(name) => self.variable(name),
            Kind::Select { operand, field, optional } => self.select(operand, field, *optional),
            Kind::Index { operand, index, optional } => self.index(operand, index, *optional),
            Kind::Call { target, name, args } => self.call(target.as_deref(), name, args),
            Kind::And(all) => self.logical(all, Code::And),
            Kind::Or(all) => self.logical(all, Code::Or),
            Kind::Conditional(parts) => self.conditional(parts),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
        }
    }

    fn variable(&mut self, name: &str) -> Result<Checked> {
        if let Some(place) = self.variables.iter().rposition(|(known, _)| known == name) {
            if let Some(used) = self.used.get_mut(place) {
                *used = true;
            }
            return Ok(Checked { code: Code::Variable(place), answer: self.variables[place].1.clone(), cost: 1 });
        }
        match TYPES.into_iter().find(|known| *known == name) {
            Some(name) => constant(Value::Type(name), Type::Type),
            None => Err(format!("undeclared reference to '{name}'")),
        }
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| known == name)
    }

    /// A dotted name that is no field of a variable.
    fn qualified(&self, ast: &Ast) -> Option<String> {
        match &ast.kind {
            Kind::Name(name) if !self.is_variable(name) => Some(name.clone()),
            Kind::Select { operand, field, optional: false } => Some(format!("{}.{field}", self.qualified(operand)?)),
            _ => None,
        }
    }

    fn select(&mut self, operand: &Ast, field: &str, optional: bool) -> Result<Checked> {
        if let Some(prefix) = self.qualified(operand) {
            let whole = format!("{prefix}.{field}");
            return match TYPES.into_iter().find(|known| *known == whole) {
                Some(name) => constant(Value::Type(name), Type::Type),
                None => Err(format!("undeclared reference to '{whole}'")),
            };
        }
        let operand = self.check(operand)?;
        let found = operand.answer.field(field)?;
        let answer = if optional { Type::optional(found) } else { found };
        let code = Code::Select { operand: Box::new(operand.code), field: Field::new(field), optional };
        Ok(Checked { code, answer, cost: operand.cost.saturating_add(1) })
    }

    /// `has(a.b)`
    fn has(&mut self, arg: &Ast) -> Result<Checked> {
        let Kind::Select { operand, field, optional: false } = &arg.kind else {
            return Err("invalid argument to has() macro".to_owned());
        };
        let operand = self.check(operand)?;
        operand.answer.field(field)?;
        let code = Code::Has { operand: Box::new(operand.code), field: Field::new(field) };
        Ok(Checked { code, answer: Type::Bool, cost: operand.cost.saturating_add(1) })
    }

    fn index(&mut self, operand: &Ast, index: &Ast, optional: bool) -> Result<Checked> {
        let operand = self.check(operand)?;
        let index = self.check(index)?;
        let (inner, chained) = match &operand.answer {
            Type::Optional(inner) => ((**inner).clone(), true),
            plain => (plain.clone(), false),
        };
        let found = match (&inner, &index.answer) {
            (Type::List(item, _), Type::Int | Type::Dyn) => (**item).clone(),
            (Type::Map(key, value, _), given) if key.fits(given) => (**value).clone(),
            (Type::Dyn, _) => Type::Dyn,
            (one, other) => return Err(no_match("_[_]", &[one.clone(), other.clone()])),
        };
        let answer = if optional || chained { Type::optional(found) } else { found };
        let cost = operand.cost.saturating_add(index.cost).saturating_add(1);
        Ok(Checked { code: Code::Index { operand: Box::new(operand.code), index: Box::new(index.code), optional }, answer, cost })
    }

    fn call(&mut self, target: Option<&Ast>, name: &str, args: &[Ast]) -> Result<Checked> {
        if let Some(found) = self.expand(target, name, args)? {
            return Ok(found);
        }
        let Some(target) = target else { return self.function(None, name, args) };
        if let Kind::Name(prefix) = &target.kind
            && NAMESPACES.contains(&prefix.as_str())
            && !self.is_variable(prefix)
        {
            return self.function(None, &format!("{prefix}.{name}"), args);
        }
        self.function(Some(target), name, args)
    }

    fn function(&mut self, target: Option<&Ast>, name: &str, args: &[Ast]) -> Result<Checked> {
        let mut codes = Vec::with_capacity(args.len() + 1);
        let mut types = Vec::with_capacity(args.len() + 1);
        let mut total = 0u64;
        for ast in target.into_iter().chain(args) {
            let outer = self.mixed;
            self.mixed |= name == "format";
            let checked = self.check(ast);
            self.mixed = outer;
            let checked = checked?;
            total = total.saturating_add(checked.cost);
            codes.push(checked.code);
            types.push(checked.answer);
        }
        validate_literals(name, &codes)?;
        let Some(Found { rows, answer, cost }) = (Call { name, method: target.is_some(), types: &types }).find() else {
            return Err(if Call::exists(name) { no_match(name, &types) } else { format!("undeclared reference to '{name}'") });
        };
        Ok(Checked { code: Code::Call(rows, codes), answer, cost: total.saturating_add(cost) })
    }

    fn logical(&mut self, all: &[Ast], code: fn(Vec<Code>) -> Code) -> Result<Checked> {
        let mut codes = Vec::with_capacity(all.len());
        let mut cost = 1u64;
        for ast in all {
            let checked = self.check(ast)?;
            expect(&checked.answer, &Type::Bool)?;
            cost = cost.saturating_add(checked.cost);
            codes.push(checked.code);
        }
        Ok(Checked { code: code(codes), answer: Type::Bool, cost })
    }

    fn conditional(&mut self, parts: &[Ast; 3]) -> Result<Checked> {
        let condition = self.check(&parts[0])?;
        expect(&condition.answer, &Type::Bool)?;
        let (yes, no) = (self.check(&parts[1])?, self.check(&parts[2])?);
        if !yes.answer.fits(&no.answer) {
            return Err(no_match("_?_:_", &[condition.answer, yes.answer, no.answer]));
        }
        let answer = yes.answer.join(&no.answer);
        let cost = condition.cost.saturating_add(yes.cost.max(no.cost)).saturating_add(1);
        Ok(Checked { code: Code::Conditional(Box::new([condition.code, yes.code, no.code])), answer, cost })
    }

    /// An item or a value; an optional one stands for what is in it.
    fn part(&mut self, ast: &Ast, optional: bool) -> Result<Checked> {
        let checked = self.check(ast)?;
        match (&checked.answer, optional) {
            (Type::Optional(inner), true) => Ok(Checked { answer: (**inner).clone(), ..checked }),
            (Type::Dyn, true) | (_, false) => Ok(checked),
            (other, true) => Err(format!("expected type 'optional_type' but found '{}'", other.name())),
        }
    }

    /// Parts of a literal have one type.
    fn together(&self, before: Option<Type>, next: &Type) -> Result<Type> {
        match before {
            None => Ok(next.clone()),
            Some(before) if before.fits(next) => Ok(before.join(next)),
            Some(_) if self.mixed => Ok(Type::Dyn),
            Some(before) => Err(format!("expected type '{}' but found '{}'", before.name(), next.name())),
        }
    }

    fn list(&mut self, items: &[(Ast, bool)]) -> Result<Checked> {
        let mut codes = Vec::with_capacity(items.len());
        let mut item = None;
        let mut cost = 10u64;
        for (ast, optional) in items {
            let checked = self.part(ast, *optional)?;
            item = Some(self.together(item, &checked.answer)?);
            cost = cost.saturating_add(checked.cost);
            codes.push((checked.code, *optional));
        }
        let answer = Type::List(Arc::new(item.unwrap_or(Type::Dyn)), items.len() as u64);
        Ok(Checked { code: Code::List(codes), answer, cost })
    }

    fn map(&mut self, entries: &[(Ast, Ast, bool)]) -> Result<Checked> {
        let mut codes = Vec::with_capacity(entries.len());
        let (mut keys, mut values) = (None, None);
        let mut cost = 30u64;
        for (key, value, optional) in entries {
            let (key, value) = (self.check(key)?, self.part(value, *optional)?);
            keys = Some(self.together(keys, &key.answer)?);
            values = Some(self.together(values, &value.answer)?);
            cost = cost.saturating_add(key.cost).saturating_add(value.cost);
            codes.push((key.code, value.code, *optional));
        }
        let answer = Type::Map(Arc::new(keys.unwrap_or(Type::Dyn)), Arc::new(values.unwrap_or(Type::Dyn)), entries.len() as u64);
        Ok(Checked { code: Code::Map(codes), answer, cost })
    }
}

fn constant(value: Value<'static>, answer: Type) -> Result<Checked> {
    Ok(Checked { code: Code::Constant(value), answer, cost: 0 })
}

pub(crate) fn expect(given: &Type, wanted: &Type) -> Result<()> {
    if given.is_dyn() || given.name() == wanted.name() {
        return Ok(());
    }
    Err(format!("expected type '{}' but found '{}'", wanted.name(), given.name()))
}

fn no_match(name: &str, types: &[Type]) -> String {
    let names: Vec<&str> = types.iter().map(Type::name).collect();
    format!("found no matching overload for '{name}' applied to '({})'", names.join(", "))
}

/// Literals that no evaluation could make sense of.
fn validate_literals(name: &str, args: &[Code]) -> Result<()> {
    let text = |code: Option<&Code>| match code {
        Some(Code::Constant(Value::String(text))) => Some(text.to_string()),
        _ => None,
    };
    let sound = match name {
        "matches" | "find" | "findAll" => text(args.get(1)).is_none_or(|text| compile_regex(&text).is_ok()),
        "duration" => text(args.first()).is_none_or(|text| time::duration(&text).is_some()),
        "timestamp" => text(args.first()).is_none_or(|text| time::timestamp(&text).is_some()),
        _ => true,
    };
    if sound { Ok(()) } else { Err(format!("invalid {name} argument")) }
}
