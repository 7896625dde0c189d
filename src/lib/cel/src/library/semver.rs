//! Semantic versions (semver.org, 2.0.0).

use super::{Arg, Function, Library, SEMVER, function, method, walk};
use crate::evaluator::{Answer, Failure, no_overload};
use crate::types::Type;
use crate::value::Value;
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
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
    /// `lenient`: a leading `v`, missing numbers and leading zeros are accepted.
    ///
    /// # Errors
    /// The message of the Go library.
    fn parse(text: &str, lenient: bool) -> Result<Self, String> {
        if lenient {
            return Self::parse_exact(&repaired(text)?);
        }
        Self::parse_exact(text)
    }

    fn parse_exact(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts[..] else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
        let (rest, build) =
            rest.split_once('+').map_or((rest, None), |(rest, build)| (rest, Some(build)));
        let (patch, pre) =
            rest.split_once('-').map_or((rest, None), |(patch, pre)| (patch, Some(pre)));
        let numbers = [major, minor, number(patch, "patch")?];
        let pre = pre.into_iter().flat_map(|pre| pre.split('.'));
        let pre = pre.map(identifier).collect::<Result<_, _>>()?;
        for word in build.into_iter().flat_map(|build| build.split('.')) {
            if word.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_word(word) {
                let shown = quote(word);
                return Err(format!("Invalid character(s) found in build meta data {shown}"));
            }
        }
        Ok(Self { numbers, pre })
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

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn has_leading_zeros(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0')
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if !is_digits(text) {
        let invalid = || format!("Invalid character(s) found in prerelease {}", quote(text));
        return is_word(text).then(|| Identifier::Word(text.to_owned())).ok_or_else(invalid);
    }
    if has_leading_zeros(text) {
        let shown = quote(text);
        return Err(format!("Numeric PreRelease version must not contain leading zeroes {shown}"));
    }
    text.parse().map(Identifier::Number).map_err(|_| go::integer_fault(text, false))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if !is_digits(text) {
        return Err(format!("Invalid character(s) found in {what} number {}", quote(text)));
    }
    if has_leading_zeros(text) {
        let (first, rest) = what.split_at(1);
        let (first, shown) = (first.to_ascii_uppercase(), quote(text));
        return Err(format!("{first}{rest} number must not contain leading zeroes {shown}"));
    }
    text.parse().map_err(|_| go::integer_fault(text, false))
}

fn repaired(text: &str) -> Result<String, String> {
    let mut parts: Vec<String> =
        text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(str::to_owned).collect();
    for part in parts.iter_mut().filter(|part| part.len() > 1) {
        let trimmed = part.trim_start_matches('0');
        let starts = trimmed.starts_with(|c: char| c.is_ascii_digit());
        *part = if starts { trimmed.to_owned() } else { format!("0{trimmed}") };
    }
    if parts.len() < 3 && parts.last().is_some_and(|last| last.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    parts.resize(3, "0".to_owned());
    Ok(parts.join("."))
}

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

fn part<'a>(value: &Value<'_>, index: usize) -> Answer<'a> {
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
