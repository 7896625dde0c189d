//! The query of a request, with kube-apiserver's parsing of booleans, numbers and durations.
//! Private to the action: other modules read its options.

use ferrokube_apimachinery::go;
use ferrokube_apimachinery::status::Failure;
use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

/// Max pairs; further ones are ignored.
const MAX_PAIRS: usize = 1000;

/// The pairs of a query, in order. Malformed pairs (bad escapes, `;`) are dropped, unknown keys
/// ignored.
#[derive(Debug, Default)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// From the raw query of a URI.
    pub(super) fn parse(raw: Option<&str>) -> Self {
        let Some(raw) = raw else { return Self::default() };
        let pairs = raw
            .split('&')
            .filter(|pair| !pair.is_empty())
            .take(MAX_PAIRS)
            .filter_map(parse_pair)
            .collect();
        Self { pairs }
    }

    /// First value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// First value of a key, or the empty string.
    pub(super) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// All values of a key.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The pairs, encoded: another server reads the very query that was authorized.
    pub(super) fn encoded(&self) -> String {
        let mut out = String::new();
        for (key, value) in &self.pairs {
            if !out.is_empty() {
                out.push('&');
            }
            escape(key, &mut out);
            out.push('=');
            escape(value, &mut out);
        }
        out
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// A boolean as kube-apiserver decodes it: absent is `None`; `false` (any case) and `0` are
    /// false, everything else is true.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| !(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// A 64-bit integer.
    ///
    /// # Errors
    /// 400 if present but malformed or empty.
    pub(super) fn integer(&self, key: &str) -> Result<Option<i64>, Failure> {
        self.get(key)
            .map(|value| {
                value.parse().map_err(|_| Failure::bad_request(go::integer_fault(value, true)))
            })
            .transpose()
    }
}

fn parse_pair(pair: &str) -> Option<(String, String)> {
    if pair.contains(';') {
        return None;
    }
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    Some((unescape(key)?.into_owned(), unescape(value)?.into_owned()))
}

/// Decodes `+` and `%xx`; `None` for a malformed escape. Invalid UTF-8 becomes U+FFFD.
fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            other => other,
        });
    }
    Some(Cow::Owned(
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    ))
}

/// As Go's `QueryEscape`.
fn escape(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
}

pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// A Go duration: `1h30m`, `1.5s`, `100ms`, `-5s` (clamped to zero), `0`. `None` if malformed or
/// beyond 64 bits of nanoseconds; saturates at a year.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    const YEAR: f64 = 366.0 * 86400.0;
    // 64 bits of nanoseconds.
    const MOST: f64 = 9.223_372_036e9;
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|symbol: char| !(symbol.is_ascii_digit() || symbol == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let length = rest
            .find(|symbol: char| symbol.is_ascii_digit() || symbol == '.')
            .unwrap_or(rest.len());
        seconds += number * unit(&rest[..length])?;
        rest = &rest[length..];
    }
    if seconds > MOST {
        return None;
    }
    Some(if negative { Duration::ZERO } else { Duration::from_secs_f64(seconds.min(YEAR)) })
}

fn unit(name: &str) -> Option<f64> {
    Some(match name {
        "ns" => 1e-9,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_queries_parse_as_in_kube_apiserver() {
        let query = Query::parse(Some(
            "limit=1;continue=x&%zz&a=b&&&==&labelSelector=a%3Db+c&labelSelector=z&watch&n=",
        ));
        assert_eq!(query.get("limit"), None);
        assert_eq!(query.get("continue"), None);
        assert_eq!(query.get("a"), Some("b"));
        assert_eq!(query.text("labelSelector"), "a=b c");
        assert_eq!(query.all("labelSelector").count(), 2);
        assert_eq!(query.flag("watch"), Some(true));
        assert!(query.integer("n").is_err());
        assert_eq!(query.integer("missing"), Ok(None));
    }

    #[test]
    fn fault_50_another_server_reads_the_query_that_was_authorized() {
        let raw = "a=1;b=2&fieldSelector=metadata.name%3Dx&%zz=1&watch&n=%C3%A9+%26";
        assert_eq!(
            Query::parse(Some(raw)).encoded(),
            "fieldSelector=metadata.name%3Dx&watch=&n=%C3%A9+%26"
        );
        assert_eq!(Query::parse(None).encoded(), "");
    }

    #[test]
    fn booleans_are_true_unless_false_or_zero() {
        for (raw, want) in [
            ("w=junk", true),
            ("w=False", false),
            ("w=0", false),
            ("w=", true),
            ("w", true),
            ("w=00", true),
        ] {
            assert_eq!(Query::parse(Some(raw)).flag("w"), Some(want), "{raw}");
        }
    }

    #[test]
    fn go_durations_are_parsed() {
        let cases = [
            ("1s", 1_000_000_000),
            ("1ns", 1),
            ("0", 0),
            ("-5s", 0),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            ("100ms", 100_000_000),
        ];
        for (text, nanos) in cases {
            assert_eq!(
                parse_duration(text).map(|duration| duration.as_nanos()),
                Some(nanos),
                "{text}"
            );
        }
        for bad in ["", "abc", "1", "s", "1x", "1.s.", "-", "..s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
        assert!(parse_duration("2562047h").is_some());
        assert_eq!(parse_duration(&format!("{}h", "9".repeat(300))), None);
    }
}
