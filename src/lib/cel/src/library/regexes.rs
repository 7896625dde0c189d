//! Regular expressions.

use super::function::{Arg, Function};
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::{CelResult, Value};
use ferrokube_schema::pattern::{self, Expression, StepsExhausted};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Max cached patterns per thread.
const KEPT: usize = 128;
/// Steps of a match, each of some nanoseconds, for a unit of cost.
const STEPS: u64 = 64;

/// A step per character, times the pattern's size.
fn search(sizes: &[u64]) -> u64 {
    traversal(sizes[0].saturating_add(1)).saturating_mul(1 + sizes[1] / 4)
}

fn texts(_: &[Type]) -> Type {
    Type::List(Arc::new(Type::String))
}

const S: Arg = Arg::String;

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "matches",
        method: true,
        args: &[S, S],
        answer: |_| Type::Bool,
        cost: search,
        run: matches,
    },
    Function {
        name: "matches",
        method: false,
        args: &[S, S],
        answer: |_| Type::Bool,
        cost: search,
        run: matches,
    },
    Function {
        name: "find",
        method: true,
        args: &[S, S],
        answer: |_| Type::String,
        cost: search,
        run: find,
    },
    Function {
        name: "findAll",
        method: true,
        args: &[S, S],
        answer: texts,
        cost: search,
        run: find_all,
    },
    Function {
        name: "findAll",
        method: true,
        args: &[S, S, Arg::Int],
        answer: texts,
        cost: search,
        run: find_all,
    },
];

/// Compiles a pattern.
///
/// # Errors
/// The pattern is invalid or too large.
pub(crate) fn compile(source: &str) -> Result<Expression, Failure> {
    thread_local! {
        static COMPILED: RefCell<HashMap<Box<str>, Expression>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        if let Some(known) = compiled.get(source) {
            return Ok(known.clone());
        }
        let expression = pattern::compile(source).map_err(Failure::Failed)?;
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(source.into(), expression.clone());
        Ok(expression)
    })
}

/// Runs a search, and charges time beyond its estimated cost.
fn charged<T>(
    meter: &mut Meter,
    search: impl FnOnce(&mut u64) -> Result<T, StepsExhausted>,
) -> Result<T, Failure> {
    let granted = meter.left().saturating_mul(STEPS);
    let mut steps = granted;
    let found = search(&mut steps).map_err(|StepsExhausted| Failure::Budget);
    meter.spend((granted - steps) / STEPS)?;
    found
}

fn matches<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    let expression = compile(pattern)?;
    charged(meter, |steps| expression.is_match(text, steps)).map(Value::Bool)
}

/// [`compile`] with the error prefix of `find`.
fn compile_search(source: &str) -> Result<Expression, Failure> {
    compile(source).map_err(|failure| Failure::Failed(format!("Illegal regex: {failure}")))
}

fn find<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    let expression = compile_search(pattern)?;
    let found = charged(meter, |steps| expression.find_at(text, 0, steps))?;
    Ok(Value::text(found.map_or("", |found| &text[found])))
}

fn find_all<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let (text, pattern, most) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, usize::MAX),
        [Value::String(text), Value::String(pattern), Value::Int(most)] => {
            (text, pattern, usize::try_from(*most).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    let expression = compile_search(pattern)?;
    let found = charged(meter, |steps| expression.find_all(text, most, steps))?;
    Ok(Value::list(found.into_iter().map(|found| Value::text(&text[found])).collect()))
}
