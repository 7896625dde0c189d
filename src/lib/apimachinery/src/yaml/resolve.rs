//! Types of plain scalars by the rules of Go's YAML reader (YAML 1.1 with exceptions).

use crate::document::{Number, Value};

/// A resolved scalar.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum YamlScalar {
    Null,
    Bool(bool),
    Integer(Number),
    Float(f64),
    String(String),
}

impl YamlScalar {
    /// As a JSON value; infinities and NaN have no JSON form.
    pub(super) fn into_value(self) -> Option<Value> {
        Some(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Integer(number) => Value::Number(number),
            Self::Float(float) => Value::Number(crate::json::float(float)?),
            Self::String(text) => Value::from(text),
        })
    }

    /// As the key of a JSON object; `None` for null.
    pub(super) fn into_key(self) -> Option<String> {
        Some(match self {
            Self::Null => return None,
            Self::Bool(value) => value.to_string(),
            Self::Integer(number) => number.to_string(),
            Self::Float(float) if float.is_nan() => ".nan".to_owned(),
            Self::Float(float) if float.is_infinite() => {
                if float > 0.0 { ".inf" } else { "-.inf" }.to_owned()
            }
            // Go's converter formats float keys with 32-bit precision.
            Self::Float(float) => (float as f32).to_string(),
            Self::String(text) => text,
        })
    }
}

/// Resolves a plain scalar without a tag.
pub(super) fn plain(text: &str) -> YamlScalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => YamlScalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            YamlScalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            YamlScalar::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => YamlScalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => YamlScalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => YamlScalar::Float(f64::NEG_INFINITY),
        _ => number(text).unwrap_or_else(|| YamlScalar::String(text.to_owned())),
    }
}

/// Resolves a scalar with a core schema tag (`int`, `str`, ...); `None` if it is invalid for the
/// tag.
pub(super) fn tagged(text: &str, tag: &str) -> Option<YamlScalar> {
    let resolved = plain(text);
    match (tag, resolved) {
        ("str" | "timestamp", _) => Some(YamlScalar::String(text.to_owned())),
        ("binary", _) => binary(text).map(YamlScalar::String),
        ("null", YamlScalar::Null) => Some(YamlScalar::Null),
        ("bool", found @ YamlScalar::Bool(_))
        | ("int", found @ YamlScalar::Integer(_))
        | ("float", found @ YamlScalar::Float(_)) => Some(found),
        ("float", YamlScalar::Integer(number)) => number.as_f64().map(YamlScalar::Float),
        ("null" | "bool" | "int" | "float", _) => None,
        _ => Some(YamlScalar::String(text.to_owned())),
    }
}

fn binary(text: &str) -> Option<String> {
    use base64::Engine as _;
    let compact: String = text.chars().filter(|char| !matches!(char, '\n' | '\r')).collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(compact).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn number(text: &str) -> Option<YamlScalar> {
    let first = text.bytes().next()?;
    if first == b'.' {
        return is_float(text).then(|| float(text)).flatten();
    }
    if !first.is_ascii_digit() && !matches!(first, b'+' | b'-') {
        return None;
    }
    let digits = if text.contains('_') { text.replace('_', "") } else { text.to_owned() };
    integer(&digits)
        .map(YamlScalar::Integer)
        .or_else(|| is_float(&digits).then(|| float(&digits)).flatten())
}

fn float(text: &str) -> Option<YamlScalar> {
    text.parse::<f64>().ok().filter(|float| float.is_finite()).map(YamlScalar::Float)
}

/// Decimal, `0x`, `0b`, `0o` and `0` for octal, with a sign.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if !negative {
        return Some(magnitude.into());
    }
    0_i64.checked_sub_unsigned(magnitude).map(Number::from)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
        }
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa
        .split_once('.')
        .map_or((mantissa, None), |(whole, fraction)| (whole, Some(fraction)));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_ok = digits(whole)
        && fraction.is_none_or(digits)
        && !(whole.is_empty() && fraction.is_none_or(str::is_empty));
    mantissa_ok && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

/// Whether any YAML reader takes the text for something other than a string: what [`plain`]
/// resolves, dates, times and base-60 numbers.
pub(super) fn needs_quotes(text: &str) -> bool {
    if !matches!(plain(text), YamlScalar::String(_)) || matches!(text, "<<" | "=") {
        return true;
    }
    let numeric =
        text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'));
    numeric
        && (text.contains(':')
            || is_date(text)
            || text.bytes().all(|byte| {
                byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'+' | b'-' | b'e' | b'E')
            }))
}

/// Starts like `2024-01-01`.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && bytes[4] == b'-'
        && bytes[5].is_ascii_digit()
}
