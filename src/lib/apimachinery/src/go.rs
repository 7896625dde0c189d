//! Error messages of Go's standard library that clients see in Status messages. Only produced after
//! an input was rejected elsewhere.

mod json;
mod net;
mod time;

use crate::document::{Number, Value};
use crate::field::{Shown, quote};
pub use json::syntax_fault;
pub use net::{address_fault, prefix_fault};
pub use time::{duration_fault, instant, time_fault};

/// A 64-bit integer without a sign: Rust reads `+5`, Go does not.
pub fn unsigned(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// Error of parsing a 64-bit integer, signed or not.
pub fn integer_fault(text: &str, signed: bool) -> String {
    let digits = if signed { text.strip_prefix(['+', '-']).unwrap_or(text) } else { text };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let (function, why) = (
        if signed { "ParseInt" } else { "ParseUint" },
        if is_number { "value out of range" } else { "invalid syntax" },
    );
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

/// Error of decoding standard base64.
pub fn base64_fault(text: &str) -> String {
    format!(
        "illegal base64 data at input byte {}",
        base64_position(text.as_bytes(), true, |byte| matches!(byte, b'+' | b'/'))
    )
}

/// Error of decoding unpadded base64 with the URL alphabet.
pub fn url_base64_fault(text: &str) -> String {
    format!(
        "illegal base64 data at input byte {}",
        base64_position(text.as_bytes(), false, |byte| matches!(byte, b'-' | b'_'))
    )
}

/// Position of the first byte that is not base64.
fn base64_position(text: &[u8], padded: bool, extra: impl Fn(u8) -> bool) -> usize {
    let is_space = |at: usize| matches!(text.get(at), Some(b'\r' | b'\n'));
    let past_spaces = |mut at: usize| {
        while is_space(at) {
            at += 1;
        }
        at
    };
    let (mut at, mut in_group) = (0, 0);
    while let Some(byte) = text.get(at).copied() {
        match byte {
            b'\r' | b'\n' => {}
            _ if byte.is_ascii_alphanumeric() || extra(byte) => in_group = (in_group + 1) % 4,
            b'=' if padded && in_group == 3 => return past_spaces(at + 1),
            b'=' if padded && in_group == 2 => {
                let second = past_spaces(at + 1);
                return match text.get(second) {
                    None => text.len(),
                    Some(b'=') => past_spaces(second + 1),
                    Some(_) => second - 1,
                };
            }
            _ => return at,
        }
        at += 1;
    }
    text.len() - in_group
}

/// Start of a body as shown in a decoder's error.
pub fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let shown = &body[..body.len().min(SHOWN)];
    let more = if body.len() > SHOWN { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => {
            shown.iter().map(|byte| format!("{byte:02x}")).chain([more.to_owned()]).collect()
        }
    }
}

/// Go type into which a decoder reads kind and version.
pub const TYPE_META: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// Formats a value like `%v`: `map[a:1 b:[x]]`.
pub fn dump(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.as_str().to_owned(),
        // Exponents of large floats have a sign and two digits.
        Value::Number(number) => number_text(number),
        Value::Bool(truth) => truth.to_string(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(dump).collect::<Vec<_>>().join(" "))
        }
        Value::Object(fields) => format!(
            "map[{}]",
            fields
                .iter()
                .map(|(name, value)| format!("{name}:{}", dump(value)))
                .collect::<Vec<_>>()
                .join(" ")
        ),
    }
}

/// Untyped integers of more than 63 bits are floats in Go.
fn number_text(number: &Number) -> String {
    number
        .as_i64()
        .map_or_else(|| number.as_f64().unwrap_or_default().shown(), |whole| whole.to_string())
}

/// Kind of the Go type of an untyped value: `map`, `slice`.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        other => type_of(other),
    }
}

/// Formats a value like `%s`, which expects strings.
pub fn dump_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.as_str().to_owned(),
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={})", type_of(value), dump(value)),
        other => dump(other),
    }
}

/// Go type of an untyped value, as formatted by `%T`.
pub fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.as_i64().is_none() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats a value like `%#v`: `map[string]interface {}{"a":1}`.
pub fn dump_typed(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => quote(text),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", list(items.iter().map(dump_typed).collect()))
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", quote(name), dump_typed(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", list(fields))
        }
        scalar => dump(scalar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_errors_are_those_of_go() {
        assert_eq!(integer_fault("x", true), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(
            integer_fault("-99999999999999999999", true),
            "strconv.ParseInt: parsing \"-99999999999999999999\": value out of range"
        );
        assert_eq!(integer_fault("-1", false), "strconv.ParseUint: parsing \"-1\": invalid syntax");
        assert_eq!(unsigned("+5"), None);
        assert_eq!(unsigned("05"), Some(5));
        assert_eq!(integer_fault("", true), "strconv.ParseInt: parsing \"\": invalid syntax");
    }

    #[test]
    fn base64_errors_name_the_position() {
        for (text, at) in [
            ("x", 0),
            ("not base64", 3),
            ("***", 0),
            ("dg", 0),
            ("dgo", 0),
            ("d===", 1),
            ("a b=", 1),
            ("dg=x", 2),
            ("dg=", 3),
            ("dg==x", 4),
            ("dgo=x", 4),
        ] {
            assert_eq!(
                base64_fault(text),
                format!("illegal base64 data at input byte {at}"),
                "{text}"
            );
        }
        assert_eq!(url_base64_fault("abc="), "illegal base64 data at input byte 3");
        assert_eq!(url_base64_fault("x"), "illegal base64 data at input byte 0");
    }

    #[test]
    fn integers_of_64_bits_are_floats() {
        let value = crate::document::json!([9223372036854775808_u64, 9223372036854775807_i64, -1]);
        assert_eq!(dump(&value), "[9.223372036854776e+18 9223372036854775807 -1]");
        assert_eq!(
            [dump(&Value::from(2e6)), dump(&Value::from(1.5)), dump(&Value::from(1e30))],
            ["2e+06", "1.5", "1e+30"]
        );
        assert_eq!(
            (type_of(&value[0]), kind_of(&value[1]), kind_of(&value)),
            ("float64", "int64", "slice")
        );
    }

    #[test]
    fn bodies_are_summarized() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"[]"), "5b5d");
        assert_eq!(
            summary(b"{\"kind\":\"x\",\"apiVersion\": 2147483648}"),
            "{\"kind\":\"x\",\"apiVersion\": 2147 ..."
        );
    }
}
