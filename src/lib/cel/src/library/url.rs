//! Functions of URLs.

use super::function::{Arg, Function, FunctionBody, function, one, walk};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::library::{Library, URL};
use crate::value::url::{Url, parse};
use crate::value::{Map, MapKey, Text, Value};
use std::sync::Arc;

const fn method(name: &'static str, run: FunctionBody) -> Function {
    Function {
        name,
        method: true,
        args: &[Arg::Library(URL)],
        answer: |_| Type::String,
        cost: one,
        run,
    }
}

fn query_type(_: &[Type]) -> Type {
    let texts = Type::List(Arc::new(Type::String));
    Type::Map(Arc::new(Type::String), Arc::new(texts))
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "url",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Library(URL),
        cost: walk,
        run: url,
    },
    Function {
        name: "isURL",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_url,
    },
    method("getScheme", scheme_of),
    method("getHost", host),
    method("getHostname", hostname),
    method("getPort", port),
    method("getEscapedPath", path),
    Function {
        name: "getQuery",
        method: true,
        args: &[Arg::Library(URL)],
        answer: query_type,
        cost: one,
        run: query,
    },
];

fn of<'v>(value: &'v Value<'_>) -> Result<&'v Url, Failure> {
    match value {
        Value::Library(library) => match &**library {
            Library::Url(url) => Ok(url),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

function!(url, [Value::String(text)] => parse(text).map(|url| Value::library(Library::Url(url))).map_err(|why| Failure::Failed(format!("URL parse error during conversion from string: {why}"))));
function!(is_url, [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())));
function!(scheme_of, [value] => of(value).map(|url| Value::text(url.scheme.as_str())));
function!(host, [value] => of(value).map(|url| Value::text(url.host.as_str())));
function!(hostname, [value] => of(value).map(|url| Value::text(url.hostname())));
function!(port, [value] => of(value).map(|url| Value::text(url.port())));
function!(path, [value] => of(value).map(|url| Value::text(url.escaped_path())));
function!(query, [value] => {
    let pairs = of(value)?.pairs();
    let entry = |(name, values): (String, Vec<String>)| (MapKey::Text(Text::Own(name.into())), Value::list(values.into_iter().map(Value::text).collect()));
    Ok(Value::Map(Map::of(pairs.into_iter().map(entry).collect())))
});
