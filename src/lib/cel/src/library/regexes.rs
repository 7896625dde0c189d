//! Regular expressions.

use super::function::{Arg, Function};
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::{Answer, Value};
use ferrokube_schema::pattern;
use regex::Regex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Max cached patterns per thread.
const KEPT: usize = 128;

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
pub(crate) fn compile(source: &str) -> Result<Regex, Failure> {
    thread_local! {
        static COMPILED: RefCell<HashMap<Box<str>, Regex>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        if let Some(known) = compiled.get(source) {
            return Ok(known.clone());
        }
        let regex = pattern::compile(source)
            .map_err(|error| Failure::Failed(pattern::explain(source, &error)))?;
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(source.into(), regex.clone());
        Ok(regex)
    })
}

fn matches<'a>(_: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    Ok(Value::Bool(compile(pattern)?.is_match(text)))
}

/// [`compile`] with the error prefix of `find`.
fn compile_search(source: &str) -> Result<Regex, Failure> {
    compile(source).map_err(|failure| Failure::Failed(format!("Illegal regex: {failure}")))
}

fn find<'a>(_: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    let [Value::String(text), Value::String(pattern)] = args else { return no_overload() };
    Ok(Value::text(compile_search(pattern)?.find(text).map_or("", |found| found.as_str())))
}

fn find_all<'a>(_: &mut Meter, args: &[Value<'a>]) -> Answer<'a> {
    let (text, pattern, most) = match args {
        [Value::String(text), Value::String(pattern)] => (text, pattern, usize::MAX),
        [Value::String(text), Value::String(pattern), Value::Int(most)] => {
            (text, pattern, usize::try_from(*most).unwrap_or(usize::MAX))
        }
        _ => return no_overload(),
    };
    let regex = compile_search(pattern)?;
    Ok(Value::list(
        regex.find_iter(text).take(most).map(|found| Value::text(found.as_str())).collect(),
    ))
}
