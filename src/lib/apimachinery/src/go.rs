//! Texts of Go's standard library that clients see inside Status messages. They are made only once
//! something was refused: what is accepted is decided elsewhere.

mod json;
mod net;
mod time;

use crate::document::{Number, Value};
use crate::field::{Shown, quote};
pub use json::syntax_fault;
pub use net::{address_fault, prefix_fault};
pub use time::{duration_fault, instant, time_fault};

/// Why a text is no integer of 64 bits, signed or not.
pub fn integer_fault(text: &str, signed: bool) -> String {
    let digits = if signed { text.strip_prefix(['+', '-']).unwrap_or(text) } else { text };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let (function, why) = (
        if signed { "ParseInt" } else { "ParseUint" },
        if is_number { "value out of range" } else { "invalid syntax" },
    );
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

/// Why a text is no standard base64.
pub fn base64_fault(text: &str) -> String {
    format!(
        "illegal base64 data at input byte {}",
        base64_position(text.as_bytes(), true, |byte| matches!(byte, b'+' | b'/'))
    )
}

/// The same in the alphabet for URLs, without padding.
pub fn url_base64_fault(text: &str) -> String {
    format!(
        "illegal base64 data at input byte {}",
        base64_position(text.as_bytes(), false, |byte| matches!(byte, b'-' | b'_'))
    )
}

/// The byte at which a text stops being base64.
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

/// The beginning of a body as a decoder's error shows it.
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

/// The type that a decoder reads kind and version into.
pub const TYPE_META: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// A value as `%v` writes it: `map[a:1 b:[x]]`.
pub fn dump(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.as_str().to_owned(),
        // Large floats have exponents of two digits, with a sign.
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

/// Integers of more than 63 bits are floats to Go where no type is known.
fn number_text(number: &Number) -> String {
    number
        .as_i64()
        .map_or_else(|| number.as_f64().unwrap_or_default().shown(), |whole| whole.to_string())
}

/// The kind of a value's Go type where no type is known: `map`, `slice`.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        other => type_of(other),
    }
}

/// A value as `%s` writes it, which is for strings only.
pub fn dump_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.as_str().to_owned(),
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={})", type_of(value), dump(value)),
        other => dump(other),
    }
}

/// The type of a value that was decoded without one, as `%T` writes it.
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

/// A value as `%#v` writes it: `map[string]interface {}{"a":1}`.
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
    fn numbers_are_refused_in_go_s_words() {
        assert_eq!(integer_fault("x", true), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(
            integer_fault("-99999999999999999999", true),
            "strconv.ParseInt: parsing \"-99999999999999999999\": value out of range"
        );
        assert_eq!(integer_fault("-1", false), "strconv.ParseUint: parsing \"-1\": invalid syntax");
        assert_eq!(integer_fault("", true), "strconv.ParseInt: parsing \"\": invalid syntax");
    }

    #[test]
    fn base64_is_refused_where_it_ends() {
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
    fn bodies_are_summed_up() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"[]"), "5b5d");
        assert_eq!(
            summary(b"{\"kind\":\"x\",\"apiVersion\": 2147483648}"),
            "{\"kind\":\"x\",\"apiVersion\": 2147 ..."
        );
    }
}
