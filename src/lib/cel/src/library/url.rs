//! URLs: absolute URLs and absolute paths.

use super::{Arg, Function, Library, URL, function, one, walk};
use crate::evaluator::{Failure, no_overload};
use crate::types::{MAX_REQUEST, Type};
use crate::value::{Map, MapKey, Text, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A URL, split and unescaped as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// Includes the port.
    host: String,
    path: String,
    query: String,
}

/// Parses a URL.
pub(super) fn parse(text: &str) -> Option<Url> {
    if text.is_empty() || text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return None;
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let opaque = !rest.starts_with('/');
    if opaque && scheme.is_empty() {
        return None;
    }
    let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            (authority(&rest[..end])?, &rest[end..])
        }
        None => (String::new(), if opaque { "" } else { rest }),
    };
    if !escapes_are_whole(path) {
        return None;
    }
    Some(Url { scheme, host, path: path.to_owned(), query: query.to_owned() })
}

/// The scheme, if there is one; a colon without one is invalid.
fn scheme(text: &str) -> Option<(String, &str)> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
        .unwrap_or(text.len());
    match text[end..].strip_prefix(':') {
        Some(rest) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Some((text[..end].to_ascii_lowercase(), rest))
        }
        Some(_) => None,
        None => Some((String::new(), text)),
    }
}

/// Host and port, without user info.
fn authority(text: &str) -> Option<String> {
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(address) => {
            let (address, port) = address.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            port
        }
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    let number = port.strip_prefix(':').unwrap_or(port);
    let fits = |c: char| {
        c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]%\"<>".contains(c) || !c.is_ascii()
    };
    let sound = number.bytes().all(|byte| byte.is_ascii_digit())
        && (port.is_empty() || port.starts_with(':'))
        && host.chars().all(fits);
    (sound && escapes_are_whole(host)).then(|| host.to_owned())
}

fn escapes_are_whole(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

fn unescape(text: &str, plus: bool) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let code = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
                let code = std::str::from_utf8(&code)
                    .ok()
                    .and_then(|code| u8::from_str_radix(code, 16).ok());
                out.push(code.unwrap_or(b'?'));
            }
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Url {
    fn hostname(&self) -> &str {
        match self.host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.host.split(':').next().unwrap_or_default(),
        }
    }

    fn port(&self) -> &str {
        self.host
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .map_or("", |(_, port)| port)
    }

    /// The path, escaped where necessary.
    fn escaped_path(&self) -> String {
        let mut out = String::with_capacity(self.path.len());
        for byte in self.path.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
                _ if b"-._~!$&'()*+,;=:@/%[]".contains(&byte) => out.push(char::from(byte)),
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    }

    /// Query parameters: the values by name.
    fn pairs(&self) -> BTreeMap<String, Vec<String>> {
        let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self
            .query
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';') && escapes_are_whole(pair))
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            out.entry(unescape(name, true)).or_default().push(unescape(value, true));
        }
        out
    }
}

const fn method(name: &'static str, run: super::Run) -> Function {
    Function {
        name,
        method: true,
        args: &[Arg::Library(URL)],
        answer: |_| Type::String(MAX_REQUEST),
        cost: one,
        run,
    }
}

fn query_type(_: &[Type]) -> Type {
    let texts = Type::List(Arc::new(Type::String(MAX_REQUEST)), MAX_REQUEST);
    Type::Map(Arc::new(Type::String(MAX_REQUEST)), Arc::new(texts), MAX_REQUEST)
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

function!(url, [Value::String(text)] => parse(text).map(|url| Value::library(Library::Url(url))).ok_or_else(|| "a text is no URL".into()));
function!(is_url, [Value::String(text)] => Ok(Value::Bool(parse(text).is_some())));
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
