//! String functions. Positions count characters.

use super::function::{
    Arg, Cost, Function, FunctionBody, function, one, product, walk, walk_second,
};
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::{CelResult, Value};
use std::sync::Arc;

const S: Arg = Arg::String;
const I: Arg = Arg::Int;

fn text(_: &[Type]) -> Type {
    Type::String
}

fn texts(_: &[Type]) -> Type {
    Type::List(Arc::new(Type::String))
}

/// Max length after a replacement.
fn grown(sizes: &[u64]) -> u64 {
    sizes[0].saturating_add(sizes[0].saturating_add(1).saturating_mul(sizes[2]))
}

fn replacing(sizes: &[u64]) -> u64 {
    1 + traversal(grown(sizes))
}

const fn method(
    name: &'static str,
    args: &'static [Arg],
    answer: fn(&[Type]) -> Type,
    cost: Cost,
    run: FunctionBody,
) -> Function {
    Function { name, method: true, args, answer, cost, run }
}

// A key as a part of a JSON pointer.
function!(escape_key, [Value::String(key)] =>
    Ok(Value::text(key.replace('~', "~0").replace('/', "~1"))));

pub(super) const FUNCTIONS: &[Function] = &[
    Function { method: false, ..method("jsonpatch.escapeKey", &[S], text, walk, escape_key) },
    method("contains", &[S, S], |_| Type::Bool, product, contains),
    method("startsWith", &[S, S], |_| Type::Bool, walk_second, starts_with),
    method("endsWith", &[S, S], |_| Type::Bool, walk_second, ends_with),
    method("charAt", &[S, I], text, walk, char_at),
    method("indexOf", &[S, S], |_| Type::Int, product, index_of),
    method("indexOf", &[S, S, I], |_| Type::Int, product, index_of),
    method("lastIndexOf", &[S, S], |_| Type::Int, product, last_index_of),
    method("lastIndexOf", &[S, S, I], |_| Type::Int, product, last_index_of),
    method("lowerAscii", &[S], text, walk, lower),
    method("upperAscii", &[S], text, walk, upper),
    method("trim", &[S], text, walk, trim),
    method("replace", &[S, S, S], text, replacing, replace),
    method("replace", &[S, S, S, I], text, replacing, replace),
    method("split", &[S, S], texts, walk, split),
    method("split", &[S, S, I], texts, walk, split),
    method("substring", &[S, I], text, walk, substring),
    method("substring", &[S, I, I], text, walk, substring),
    method("join", &[Arg::ListOf(&S)], text, one, join),
    method("join", &[Arg::ListOf(&S), S], text, one, join),
    Function {
        name: "strings.quote",
        method: false,
        args: &[S],
        answer: text,
        cost: walk,
        run: quote,
    },
];

function!(contains, [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.contains(&**part))));
function!(starts_with, [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.starts_with(&**part))));
function!(ends_with, [Value::String(text), Value::String(part)] => Ok(Value::Bool(text.ends_with(&**part))));
function!(lower, [Value::String(text)] => Ok(Value::text(text.to_ascii_lowercase())));
function!(upper, [Value::String(text)] => Ok(Value::text(text.to_ascii_uppercase())));
function!(trim, [Value::String(text)] => Ok(Value::text(text.trim())));
function!(char_at, [Value::String(text), Value::Int(index)] => match boundary(text, *index)? {
    start if start == text.len() => Ok(Value::text("")),
    start => Ok(Value::text(text[start..].chars().take(1).collect::<String>())),
});
function!(index_of,
    [Value::String(text), Value::String(part)] => Ok(Value::Int(position(text, text.find(&**part)))),
    [Value::String(_), Value::String(part), Value::Int(from)] if part.is_empty() => Ok(Value::Int(*from)),
    [Value::String(text), Value::String(part), Value::Int(from)] => Ok(Value::Int(match inside(text, *from)? {
        Some(start) => position(text, text[start..].find(&**part).map(|at| at + start)),
        None => -1,
    })),
);
function!(last_index_of,
    [Value::String(text), Value::String(part)] => Ok(Value::Int(position(text, text.rfind(&**part)))),
    [Value::String(_), Value::String(part), Value::Int(from)] if part.is_empty() => Ok(Value::Int(*from)),
    [Value::String(text), Value::String(part), Value::Int(from)] => {
        let Some(start) = inside(text, *from)? else { return Ok(Value::Int(-1)) };
        // An occurrence may begin at the last position and extend beyond it.
        let end = (start + part.len()).min(text.len());
        let end = (end..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
        Ok(Value::Int(position(text, text[..end].rfind(&**part).filter(|at| *at <= start))))
    },
);
function!(replace,
    [Value::String(text), Value::String(from), Value::String(to)] => Ok(Value::text(text.replace(&**from, to))),
    [Value::String(text), Value::String(from), Value::String(to), Value::Int(count)] => match usize::try_from(*count) {
        Ok(count) => Ok(Value::text(text.replacen(&**from, to, count))),
        Err(_) => Ok(Value::text(text.replace(&**from, to))),
    },
);
function!(split,
    [Value::String(text), Value::String(separator)] => Ok(pieces(text, separator, usize::MAX)),
    [Value::String(text), Value::String(separator), Value::Int(count)] => Ok(pieces(text, separator, usize::try_from(*count).unwrap_or(usize::MAX))),
);
function!(substring,
    [Value::String(text), Value::Int(from)] => Ok(Value::text(&text[boundary(text, *from)?..])),
    [Value::String(_), Value::Int(from), Value::Int(to)] if from > to => {
        Err(Failure::Failed(format!("invalid substring range. start: {from}, end: {to}")))
    },
    [Value::String(text), Value::Int(from), Value::Int(to)] => {
        let (start, end) = (boundary(text, *from)?, boundary(text, *to)?);
        Ok(Value::text(&text[start..end]))
    },
);
function!(quote, [Value::String(text)] => {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' | '"' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(Value::text(out))
});

/// The byte offset of a character index; the length is valid, too.
fn boundary(text: &str, index: i64) -> Result<usize, Failure> {
    let mut starts = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let found = usize::try_from(index).ok().and_then(|index| starts.nth(index));
    found.ok_or_else(|| Failure::Failed(format!("index out of range: {index}")))
}

/// The byte offset of a character; `None` past the last one.
fn inside(text: &str, index: i64) -> Result<Option<usize>, Failure> {
    match usize::try_from(index) {
        Ok(index) => Ok(text.char_indices().nth(index).map(|(at, _)| at)),
        Err(_) => boundary(text, index).map(Some),
    }
}

/// The character index of a byte offset.
fn position(text: &str, at: Option<usize>) -> i64 {
    at.map_or(-1, |at| i64::try_from(text[..at].chars().count()).unwrap_or(i64::MAX))
}

fn pieces<'a>(text: &str, separator: &str, most: usize) -> Value<'a> {
    let pieces: Vec<Value<'a>> = if most == 0 {
        Vec::new()
    } else if separator.is_empty() {
        let chars: Vec<char> = text.chars().collect();
        let alone = chars.len().min(most - 1);
        let tail: String = chars[alone..].iter().collect();
        chars[..alone]
            .iter()
            .map(char::to_string)
            .chain((!tail.is_empty()).then_some(tail))
            .map(Value::text)
            .collect()
    } else {
        text.splitn(most, separator).map(Value::text).collect()
    };
    Value::list(pieces)
}

fn join<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(separator)] => (list, &**separator),
        _ => return no_overload(),
    };
    let mut out = String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::String(text) = item else { return no_overload() };
        meter.spend(1 + traversal((text.len() + separator.len()) as u64))?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(&text);
    }
    Ok(Value::text(out))
}
