//! URLs: absolute URLs and absolute paths.

use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use std::collections::BTreeMap;

/// A URL, split and unescaped as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    pub(crate) scheme: String,
    /// Includes the port.
    pub(crate) host: String,
    path: String,
    query: String,
}

/// Parses a URL.
///
/// # Errors
/// The message of Go's `net/url`.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    read(text).map_err(|why| format!("parse {}: {why}", quote(text)))
}

fn read(text: &str) -> Result<Url, String> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() {
        return Err("empty url".to_owned());
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        let opaque = Url { scheme, host: String::new(), path: String::new(), query: query.into() };
        return match (text, opaque.scheme.as_str()) {
            ("*", _) => Ok(Url { path: "*".to_owned(), ..opaque }),
            (_, "") => Err("invalid URI for request".to_owned()),
            _ => Ok(opaque.without_fragment()),
        };
    }
    let (host, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            (authority(&rest[..end])?, &rest[end..])
        }
        None => (String::new(), rest),
    };
    check_escapes(path)?;
    Ok(Url { scheme, host, path: path.to_owned(), query: query.to_owned() }.without_fragment())
}

/// The scheme, if there is one.
fn scheme(text: &str) -> Result<(String, &str), String> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
        .unwrap_or(text.len());
    match text[end..].strip_prefix(':') {
        Some(rest) if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            Ok((text[..end].to_ascii_lowercase(), rest))
        }
        Some(_) if end == 0 => Err("missing protocol scheme".to_owned()),
        _ => Ok((String::new(), text)),
    }
}

/// Host and port, without user info.
fn authority(text: &str) -> Result<String, String> {
    let (user, host) =
        text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    check_host(host)?;
    let Some(user) = user else { return Ok(host.to_owned()) };
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
    if !user.chars().all(fits) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    check_escapes(user).map(|()| host.to_owned())
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(literal) => {
            let (address, port) = literal.rsplit_once(']').ok_or("missing ']' in host")?;
            check_port(port)?;
            let plain = address.split_once("%25").map_or(address, |(address, _)| address);
            if let Some(why) = go::address_fault(plain) {
                return Err(format!("invalid host: {why}"));
            }
            ""
        }
        None => host.rfind(':').map_or("", |at| &host[at..]),
    };
    check_port(port)?;
    check_escapes(host)?;
    let fits = |c: &char| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]%\"<>".contains(*c)
    };
    match host.chars().find(|c| !fits(c)) {
        Some(c) => {
            Err(format!("invalid character {} in host name", quote(c.encode_utf8(&mut [0; 4]))))
        }
        None => Ok(()),
    }
}

fn check_port(port: &str) -> Result<(), String> {
    let number = port.strip_prefix(':').unwrap_or_default();
    if port.is_empty()
        || (port.starts_with(':') && number.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Ok(());
    }
    Err(format!("invalid port {} after host", quote(port)))
}

fn check_escapes(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let code = rest.as_bytes().get(at + 1..at + 3);
        if !code.is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit)) {
            let shown: String =
                String::from_utf8_lossy(&rest.as_bytes()[at..rest.len().min(at + 3)]).into();
            return Err(format!("invalid URL escape {}", quote(&shown)));
        }
        rest = &rest[at + 3..];
    }
    Ok(())
}

fn escapes_are_whole(text: &str) -> bool {
    check_escapes(text).is_ok()
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
    /// Go validates the fragment as part of the path or query, then drops it.
    fn without_fragment(mut self) -> Self {
        if let Some(at) = self.path.find('#') {
            self.path.truncate(at);
            self.query.clear();
        } else if let Some(at) = self.query.find('#') {
            self.query.truncate(at);
        }
        if let Some(at) = self.host.find('#') {
            self.host.truncate(at);
            self.path.clear();
        }
        self
    }

    pub(crate) fn hostname(&self) -> &str {
        match self.host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.host.split(':').next().unwrap_or_default(),
        }
    }

    pub(crate) fn port(&self) -> &str {
        self.host
            .rsplit_once(':')
            .filter(|(_, port)| !port.contains(']'))
            .map_or("", |(_, port)| port)
    }

    /// The path, escaped where necessary.
    pub(crate) fn escaped_path(&self) -> String {
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
    pub(crate) fn pairs(&self) -> BTreeMap<String, Vec<String>> {
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
