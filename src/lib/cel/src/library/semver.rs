//! Functions of semantic versions.

use super::function::{Arg, Function, function, method, walk};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::library::{Library, SEMVER};
use crate::value::{CelResult, Value};
use ferrokube_apimachinery::semver::Semver;

const V: Arg = Arg::Library(SEMVER);

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "semver",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Library(SEMVER),
        cost: walk,
        run: semver,
    },
    Function {
        name: "semver",
        method: false,
        args: &[Arg::String, Arg::Bool],
        answer: |_| Type::Library(SEMVER),
        cost: walk,
        run: semver,
    },
    Function {
        name: "isSemver",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_semver,
    },
    Function {
        name: "isSemver",
        method: false,
        args: &[Arg::String, Arg::Bool],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_semver,
    },
    method("major", &[V], |_| Type::Int, major),
    method("minor", &[V], |_| Type::Int, minor),
    method("patch", &[V], |_| Type::Int, patch),
    method("isGreaterThan", &[V, V], |_| Type::Bool, is_greater),
    method("isLessThan", &[V, V], |_| Type::Bool, is_less),
    method("compareTo", &[V, V], |_| Type::Int, compare_to),
];

fn of<'v>(value: &'v Value<'_>) -> Result<&'v Semver, Failure> {
    match value {
        Value::Library(library) => match &**library {
            Library::Semver(semver) => Ok(semver),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn parsed(text: &str, lenient: bool) -> Result<Semver, Failure> {
    Semver::parse(text, lenient).map_err(Failure::Failed)
}

fn part<'a>(value: &Value<'_>, index: usize) -> CelResult<'a> {
    // The largest numbers wrap around in cel-go, too.
    Ok(Value::Int(of(value)?.numbers[index].cast_signed()))
}

function!(semver,
    [Value::String(text)] => parsed(text, false).map(|semver| Value::library(Library::Semver(semver))),
    [Value::String(text), Value::Bool(lenient)] => parsed(text, *lenient).map(|semver| Value::library(Library::Semver(semver))),
);
function!(is_semver,
    [Value::String(text)] => Ok(Value::Bool(Semver::parse(text, false).is_ok())),
    [Value::String(text), Value::Bool(lenient)] => Ok(Value::Bool(Semver::parse(text, *lenient).is_ok())),
);
function!(major, [value] => part(value, 0));
function!(minor, [value] => part(value, 1));
function!(patch, [value] => part(value, 2));
function!(is_greater, [one, other] => Ok(Value::Bool(of(one)?.order(of(other)?).is_gt())));
function!(is_less, [one, other] => Ok(Value::Bool(of(one)?.order(of(other)?).is_lt())));
function!(compare_to, [one, other] => Ok(Value::Int(of(one)?.order(of(other)?) as i64)));
