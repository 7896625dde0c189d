//! Evaluation. Recursive over the code, whose depth is bounded; every step is charged.

mod loops;

use crate::admission::AdmissionScope;
use crate::code::Code;
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, NO_OVERLOAD, no_overload};
use crate::library::function::Function;
use crate::library::no_function;
use crate::value::text::double;
use crate::value::{CelResult, Field, List, Map, MapKey, MessageValue, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A running evaluation.
pub(crate) struct Evaluator<'a, 'm> {
    variables: Vec<Value<'a>>,
    /// The variables of a policy.
    scope: Option<&'m AdmissionScope<'a>>,
    pub(crate) meter: &'m mut Meter,
}

impl<'a, 'm> Evaluator<'a, 'm> {
    pub(crate) fn new(variables: Vec<Value<'a>>, meter: &'m mut Meter) -> Self {
        Self { variables, scope: None, meter }
    }

    pub(crate) fn in_scope(scope: &'m AdmissionScope<'a>, meter: &'m mut Meter) -> Self {
        Self { variables: scope.roots(), scope: Some(scope), meter }
    }

    pub(crate) fn evaluate(&mut self, code: &'a Code) -> CelResult<'a> {
        match code {
            Code::Constant(value) => return Ok(value.clone()),
            Code::Call(..)
            | Code::And(_)
            | Code::Or(_)
            | Code::List(_)
            | Code::Map(_)
            | Code::Message(..)
            | Code::Loop(_) => {}
            _ => self.meter.spend(1)?,
        }
        match self.step(code)? {
            Value::Mistyped(why) => Err(Failure::Failed(why.to_string())),
            value => Ok(value),
        }
    }

    fn step(&mut self, code: &'a Code) -> CelResult<'a> {
        match code {
            Code::Constant(value) => Ok(value.clone()),
            Code::Variable(place) => {
                self.variables.get(*place).cloned().ok_or_else(|| "no such variable".into())
            }
            Code::Composed(place) => match self.scope {
                Some(scope) => scope.composed(*place, self.meter),
                None => Err("no such variable".into()),
            },
            Code::Present(value) => Ok(Value::optional(Some(self.evaluate(value)?))),
            Code::Select { operand, field, optional } => self.select(operand, field, *optional),
            Code::Has { operand, field } => self.has(operand, field),
            Code::Index { operand, index, optional } => self.index(operand, index, *optional),
            Code::Call(rows, args) => self.call(rows, args),
            Code::And(all) => self.logical(all, false),
            Code::Or(all) => self.logical(all, true),
            Code::Conditional(parts) => match self.evaluate(&parts[0])? {
                Value::Bool(true) => self.evaluate(&parts[1]),
                Value::Bool(false) => self.evaluate(&parts[2]),
                _ => no_overload(),
            },
            Code::List(items) => self.list(items),
            Code::Map(entries) => self.map(entries),
            Code::Message(name, fields) => self.message(name, fields),
            Code::Loop(whole) => self.run(whole),
            Code::Bind(parts) => {
                let value = self.evaluate(&parts[0])?;
                self.with([value], &parts[1])
            }
            Code::OptMap(parts, flat) => self.opt_map(parts, *flat),
            Code::OrElse(parts, unwrapped) => match self.evaluate(&parts[0])? {
                Value::Optional(Some(value)) if *unwrapped => Ok((*value).clone()),
                value @ Value::Optional(Some(_)) => Ok(value),
                Value::Optional(None) => self.evaluate(&parts[1]),
                _ => no_overload(),
            },
        }
    }

    /// Evaluates with additional variables.
    fn with<const N: usize>(&mut self, values: [Value<'a>; N], code: &'a Code) -> CelResult<'a> {
        let depth = self.variables.len();
        self.variables.extend(values);
        let answer = self.evaluate(code);
        self.variables.truncate(depth);
        answer
    }

    fn opt_map(&mut self, parts: &'a [Code; 2], flat: bool) -> CelResult<'a> {
        match self.evaluate(&parts[0])? {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => {
                let answer = self.with([(*value).clone()], &parts[1])?;
                if flat { Ok(answer) } else { Ok(Value::optional(Some(answer))) }
            }
            _ => no_overload(),
        }
    }

    fn select(&mut self, operand: &'a Code, field: &'a Field, optional: bool) -> CelResult<'a> {
        let operand = self.evaluate(operand)?;
        let found = |operand: &Value<'a>| match operand {
            Value::Map(map) => Ok(map.field(field)),
            Value::List(_) => Err(bad_index(&Value::text(field.given.as_ref()))),
            _ => Ok(None),
        };
        match operand {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => Ok(Value::optional(found(&inner)?)),
            operand if optional => Ok(Value::optional(found(&operand)?)),
            operand => found(&operand)?
                .ok_or_else(|| Failure::Failed(format!("no such key: {}", field.given))),
        }
    }

    fn has(&mut self, operand: &'a Code, field: &'a Field) -> CelResult<'a> {
        let present = match self.evaluate(operand)? {
            Value::Map(map) => map.field(field).is_some(),
            Value::Optional(Some(inner)) => {
                matches!(&*inner, Value::Map(map) if map.field(field).is_some())
            }
            Value::List(_) => return Err(bad_index(&Value::text(field.given.as_ref()))),
            _ => false,
        };
        Ok(Value::Bool(present))
    }

    fn index(&mut self, operand: &'a Code, index: &'a Code, optional: bool) -> CelResult<'a> {
        let operand = self.evaluate(operand)?;
        let index = self.evaluate(index)?;
        match operand {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => Ok(Value::optional(at(&inner, &index)?)),
            operand if optional => Ok(Value::optional(at(&operand, &index)?)),
            operand => at(&operand, &index)?.ok_or_else(|| {
                let what = if matches!(operand, Value::List(_)) {
                    "index out of bounds"
                } else {
                    "no such key"
                };
                Failure::Failed(format!("{what}: {}", plain(&index)))
            }),
        }
    }

    fn call(&mut self, rows: &'a [&'static Function], args: &'a [Code]) -> CelResult<'a> {
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(self.evaluate(arg)?);
        }
        let found = match rows {
            [one] => Some(one),
            several => several.iter().find(|row| row.takes_values(&values)),
        };
        match found.map_or_else(no_overload, |row| row.call(self.meter, &values)) {
            Err(Failure::Failed(why))
                if why == NO_OVERLOAD && !rows.iter().any(|row| row.takes_values(&values)) =>
            {
                Err(no_function(rows, &values))
            }
            answer => answer,
        }
    }

    /// A decisive operand outweighs failed ones.
    fn logical(&mut self, all: &'a [Code], decisive: bool) -> CelResult<'a> {
        let mut failure = None;
        for code in all {
            match self.evaluate(code) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(no_overload::<()>().err()),
                Err(Failure::Budget) => return Err(Failure::Budget),
                Err(other) => failure = failure.or(Some(other)),
            }
        }
        self.meter.spend(1)?;
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn list(&mut self, items: &'a [(Code, bool)]) -> CelResult<'a> {
        self.meter.spend(10)?;
        let mut out = Vec::with_capacity(items.len());
        for (item, optional) in items {
            match (self.evaluate(item)?, optional) {
                (value, false) => out.push(value),
                (Value::Optional(value), true) => out.extend(value.map(|value| (*value).clone())),
                (_, true) => return no_overload(),
            }
        }
        Ok(Value::list(out))
    }

    fn map(&mut self, entries: &'a [(Code, Code, bool)]) -> CelResult<'a> {
        self.meter.spend(30)?;
        let mut out = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = MapKey::of(&self.evaluate(key)?)
                .ok_or_else(|| Failure::from("unsupported key type"))?;
            let value = match (self.evaluate(value)?, optional) {
                (value, false) => value,
                (Value::Optional(Some(value)), true) => (*value).clone(),
                (Value::Optional(None), true) => {
                    out.remove(&key);
                    continue;
                }
                (_, true) => return no_overload(),
            };
            // The last value of a key counts.
            out.insert(key, value);
        }
        Ok(Value::Map(Map::of(out)))
    }

    fn message(&mut self, name: &Arc<str>, fields: &'a [(Arc<str>, Code, bool)]) -> CelResult<'a> {
        self.meter.spend(40)?;
        let mut out = BTreeMap::new();
        for (field, value, optional) in fields {
            match (self.evaluate(value)?, optional) {
                (value, false) => _ = out.insert(Arc::clone(field), value),
                (Value::Optional(Some(value)), true) => {
                    out.insert(Arc::clone(field), (*value).clone());
                }
                (Value::Optional(None), true) => {}
                _ => return no_overload(),
            }
        }
        Ok(Value::Message(Arc::new(MessageValue { name: Arc::clone(name), fields: out })))
    }

    /// Charges for copying `size` bytes or items.
    pub(crate) fn spend(&mut self, size: u64) -> Result<(), Failure> {
        self.meter.spend(1 + traversal(size))
    }
}

fn at<'a>(operand: &Value<'a>, index: &Value<'a>) -> Result<Option<Value<'a>>, Failure> {
    match (operand, index) {
        (Value::List(list), index) => {
            Ok(usize::try_from(position(index)?).ok().and_then(|index| list.get(index)))
        }
        (Value::Map(Map::Json { .. }), key) if !matches!(key, Value::String(_)) => no_overload(),
        (Value::Map(map), key) => Ok(MapKey::of(key).and_then(|key| map.get(&key))),
        _ => Ok(None),
    }
}

fn position(index: &Value<'_>) -> Result<i128, Failure> {
    match (MapKey::of(index), index) {
        (Some(MapKey::Number(number)), Value::Int(_) | Value::Double(_)) => Ok(number),
        (Some(MapKey::Number(number)), _) if number <= i128::from(i64::MAX) => Ok(number),
        (_, Value::Double(_) | Value::Uint(_)) => {
            Err(Failure::Failed(format!("unsupported index value {} in list", plain(index))))
        }
        (_, other) => Err(bad_index(other)),
    }
}

fn bad_index(index: &Value<'_>) -> Failure {
    Failure::Failed(format!("unsupported index type '{}' in list", index.type_name()))
}

/// A key or an index in error messages.
pub(crate) fn plain(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => text.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => double(*number),
        other => other.type_name().to_owned(),
    }
}

/// The items of a range with their indices or keys.
pub(crate) fn items<'a>(range: &Value<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>, Failure> {
    let numbered = |list: &List<'a>| {
        let number = |index: usize| Value::Int(i64::try_from(index).unwrap_or(i64::MAX));
        list.iter().enumerate().map(|(index, item)| (number(index), item)).collect()
    };
    match range {
        Value::List(list) => Ok(numbered(list)),
        Value::Map(map) => {
            Ok(map.entries().into_iter().map(|(key, value)| (key.value(), value)).collect())
        }
        _ => no_overload(),
    }
}
