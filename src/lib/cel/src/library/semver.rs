//! Semantic versions (semver.org, 2.0.0).

use super::{Arg, Function, Library, SEMVER, function, one, walk};
use crate::evaluator::{Answer, Failure, no_overload};
use crate::types::Type;
use crate::value::Value;
use std::cmp::Ordering;

/// A version; build metadata is ignored.
#[derive(Clone, Debug)]
pub struct Semver {
    numbers: [u64; 3],
    pre: Vec<Identifier>,
}

impl PartialEq for Semver {
    fn eq(&self, other: &Self) -> bool {
        self.order(other).is_eq()
    }
}

/// A pre-release identifier: numbers order before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl Semver {
    /// `lenient`: accepts a leading `v`, missing numbers and leading zeros.
    fn parse(text: &str, lenient: bool) -> Option<Self> {
        let text = if lenient { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (text, build) =
            text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        let (core, pre) =
            text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
        let mut parts: Vec<&str> = core.split('.').collect();
        if lenient && parts.len() < 3 {
            parts.resize(3, "0");
        }
        let [major, minor, patch] = parts[..] else { return None };
        let number = |text| number(text, lenient);
        let numbers = [number(major)?, number(minor)?, number(patch)?];
        let word = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if build.is_some_and(|build| !build.split('.').all(word)) {
            return None;
        }
        let pre = pre.map_or(Some(Vec::new()), |pre| {
            pre.split('.')
                .map(|part| match part.bytes().all(|byte| byte.is_ascii_digit()) {
                    true => number(part).map(Identifier::Number),
                    false => word(part).then(|| Identifier::Word(part.to_owned())),
                })
                .collect()
        })?;
        Some(Self { numbers, pre })
    }

    /// A pre-release version orders before its release.
    fn order(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.pre.is_empty(), other.pre.is_empty()) {
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                _ => self.pre.cmp(&other.pre),
            }
        })
    }
}

fn number(text: &str, lenient: bool) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (lenient || text == "0" || !text.starts_with('0'))).then(|| text.parse().ok())?
}

const V: Arg = Arg::Library(SEMVER);

const fn method(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    run: super::Run,
) -> Function {
    Function { name, method: true, args, answer, cost: one, run }
}

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
    Semver::parse(text, lenient).ok_or_else(|| "a text is no semantic version".into())
}

fn part<'a>(value: &Value<'_>, index: usize) -> Answer<'a> {
    i64::try_from(of(value)?.numbers[index])
        .map(Value::Int)
        .map_err(|_| "a number is out of range".into())
}

function!(semver,
    [Value::String(text)] => parsed(text, false).map(|semver| Value::library(Library::Semver(semver))),
    [Value::String(text), Value::Bool(lenient)] => parsed(text, *lenient).map(|semver| Value::library(Library::Semver(semver))),
);
function!(is_semver,
    [Value::String(text)] => Ok(Value::Bool(Semver::parse(text, false).is_some())),
    [Value::String(text), Value::Bool(lenient)] => Ok(Value::Bool(Semver::parse(text, *lenient).is_some())),
);
function!(major, [value] => part(value, 0));
function!(minor, [value] => part(value, 1));
function!(patch, [value] => part(value, 2));
function!(is_greater, [one, other] => Ok(Value::Bool(of(one)?.order(of(other)?).is_gt())));
function!(is_less, [one, other] => Ok(Value::Bool(of(one)?.order(of(other)?).is_lt())));
function!(compare_to, [one, other] => Ok(Value::Int(of(one)?.order(of(other)?) as i64)));
