//! `format`: string formatting with verbs.

use super::function::{Arg, Function, walk};
use crate::cost::{Meter, traversal};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::text::text;
use crate::value::{CelResult, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;

/// Max fraction digits.
const MAX_PRECISION: usize = 100;
/// Default number of fraction digits.
const PRECISION: usize = 6;
/// Max depth of printed lists and maps.
const MAX_DEPTH: usize = 64;

pub(super) const FUNCTIONS: &[Function] = &[Function {
    name: "format",
    method: true,
    args: &[Arg::String, Arg::List],
    answer: |_| Type::String,
    cost: walk,
    run: format,
}];

/// The verbs, cel-go's error for other arguments, and the type names each accepts.
const VERBS: [(&[u8], &str, &[&str]); 7] = [
    (
        b"s",
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps",
        &[
            "list",
            "map",
            "int",
            "uint",
            "double",
            "bool",
            "string",
            "google.protobuf.Timestamp",
            "bytes",
            "google.protobuf.Duration",
            "type",
            "null_type",
        ],
    ),
    (b"d", "decimal clause can only be used on integers", &["int", "uint"]),
    (b"f", "fixed-point clause can only be used on doubles", &["double", "string"]),
    (b"e", "scientific clause can only be used on doubles", &["double", "string"]),
    (b"b", "only integers and bools can be formatted as binary", &["int", "uint", "bool"]),
    (
        b"xX",
        "only integers, byte buffers, and strings can be formatted as hex",
        &["int", "uint", "string", "bytes"],
    ),
    (b"o", "octal clause can only be used on integers", &["int", "uint"]),
];

/// A part of a format string.
enum FormatItem<'p> {
    Plain(&'p str),
    /// A verb and its precision.
    Verb(char, Option<usize>),
}

/// Iterates over a format string; an error is the last item.
struct FormatItems<'p> {
    rest: &'p str,
    /// Unused arguments.
    left: usize,
    count: usize,
}

impl<'p> Iterator for FormatItems<'p> {
    type Item = Result<FormatItem<'p>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some(after) = self.rest.strip_prefix('%') else {
            let (plain, rest) = self.rest.split_at(self.rest.find('%').unwrap_or(self.rest.len()));
            self.rest = rest;
            return Some(Ok(FormatItem::Plain(plain)));
        };
        if let Some(rest) = after.strip_prefix('%') {
            self.rest = rest;
            return Some(Ok(FormatItem::Plain("%")));
        }
        let verb = self.verb(after);
        if verb.is_err() {
            self.rest = "";
        }
        Some(verb)
    }
}

impl<'p> FormatItems<'p> {
    fn new(format: &'p str, count: usize) -> Self {
        Self { rest: format, left: count, count }
    }

    fn verb(&mut self, after: &'p str) -> Result<FormatItem<'p>, String> {
        if after.is_empty() && self.left > 0 {
            return Err("unexpected end of string".to_owned());
        }
        self.left = self.left.checked_sub(1).ok_or(format!("index {} out of range", self.count))?;
        let (precision, after) = precision(after).map_err(|why| unreadable(&why))?;
        let letter = after.chars().next().unwrap_or_default();
        if !VERBS.iter().any(|(letters, ..)| letters.contains(&(letter as u8)) && letter.is_ascii())
        {
            // cel-go reads bytes, not characters.
            let shown = char::from(after.as_bytes().first().copied().unwrap_or_default());
            return Err(unreadable(&format!("unrecognized formatting clause \"{shown}\"")));
        }
        self.rest = &after[letter.len_utf8()..];
        Ok(FormatItem::Verb(letter, precision))
    }
}

fn unreadable(why: &str) -> String {
    format!("could not parse formatting clause: {why}")
}

fn precision(text: &str) -> Result<(Option<usize>, &str), String> {
    let Some(rest) = text.strip_prefix('.') else { return Ok((None, text)) };
    let Some(end) = rest.find(|c: char| !c.is_ascii_digit()) else {
        let why = "could not find end of precision specifier";
        return Err(format!("error while parsing precision: {why}"));
    };
    let digits = rest[..end].parse().map_err(|_| {
        let why = go::integer_fault(&rest[..end], true).replacen("ParseInt", "Atoi", 1);
        format!("error while parsing precision: error while converting precision to integer: {why}")
    })?;
    Ok((Some(digits), &rest[end..]))
}

/// Checks a format string against the types of its arguments: the position of the argument in
/// error, if it is one, and the message. `mismatch` returns the part of an argument that has none
/// of the given types.
pub(crate) fn fault(
    format: &str,
    count: usize,
    mut mismatch: impl FnMut(usize, &[&str]) -> Option<(usize, String)>,
) -> Option<(Option<usize>, String)> {
    let mut used = 0;
    for part in FormatItems::new(format, count) {
        match part {
            Err(why) => return Some((None, why)),
            Ok(FormatItem::Plain(_)) => {}
            Ok(FormatItem::Verb(letter, _)) => {
                let (_, why, types) = verb(letter);
                if let Some((at, given)) = mismatch(used, types) {
                    return Some((Some(at), unwritten(why, &given)));
                }
                used += 1;
            }
        }
    }
    let too_many =
        || format!("too many arguments supplied to string.format (expected {used}, got {count})");
    (count > used).then(|| (None, too_many()))
}

fn verb(letter: char) -> &'static (&'static [u8], &'static str, &'static [&'static str]) {
    VERBS.iter().find(|(letters, ..)| letters.contains(&(letter as u8))).unwrap_or(&VERBS[0])
}

fn unwritten(why: &str, given: &str) -> String {
    format!("error during formatting: {why}, was given {given}")
}

fn format<'a>(meter: &mut Meter, args: &[Value<'a>]) -> CelResult<'a> {
    let [Value::String(pattern), Value::List(list)] = args else { return no_overload() };
    let mut values = list.iter();
    let mut out = String::new();
    for part in FormatItems::new(pattern, list.len()) {
        match part.map_err(Failure::Failed)? {
            FormatItem::Plain(plain) => out.push_str(plain),
            FormatItem::Verb(letter, precision) => {
                let value = values.next().unwrap_or(Value::Null);
                let written = one(meter, letter, precision, &value)?;
                meter.spend(1 + traversal(written.len() as u64))?;
                out.push_str(&written);
            }
        }
    }
    Ok(Value::text(out))
}

fn one(
    meter: &mut Meter,
    letter: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<String, Failure> {
    let digits = precision.unwrap_or(PRECISION).min(MAX_PRECISION);
    match (letter, value) {
        ('s', value) => shown(meter, value, 0),
        ('d', Value::Int(number)) => Ok(number.to_string()),
        ('d', Value::Uint(number)) => Ok(number.to_string()),
        ('f', value) => float(letter, value).map(|number| match finite(number) {
            Some(number) => grouped(&format!("{number:.digits$}")),
            None => unbounded(number),
        }),
        ('e', value) => float(letter, value).map(|number| match finite(number) {
            Some(number) => exponent(number, digits),
            None => unbounded(number),
        }),
        ('b', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:b}"))),
        ('b', Value::Uint(number)) => Ok(format!("{number:b}")),
        ('b', Value::Bool(flag)) => Ok(u8::from(*flag).to_string()),
        ('o', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:o}"))),
        ('o', Value::Uint(number)) => Ok(format!("{number:o}")),
        ('x', Value::Int(number)) => Ok(signed(*number, |magnitude| format!("{magnitude:x}"))),
        ('x', Value::Uint(number)) => Ok(format!("{number:x}")),
        ('x', Value::String(text)) => Ok(text.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ('x', Value::Bytes(bytes)) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        ('X', Value::Int(_) | Value::Uint(_) | Value::String(_) | Value::Bytes(_)) => {
            one(meter, 'x', precision, value).map(|text| text.to_ascii_uppercase())
        }
        _ => Err(mismatch(letter, value)),
    }
}

fn mismatch(letter: char, value: &Value<'_>) -> Failure {
    Failure::Failed(unwritten(verb(letter).1, value.type_name()))
}

fn float(letter: char, value: &Value<'_>) -> Result<f64, Failure> {
    match value {
        Value::Double(number) => Ok(*number),
        Value::String(text) => match &**text {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(mismatch(letter, value)),
        },
        _ => Err(mismatch(letter, value)),
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

fn unbounded(number: f64) -> String {
    match (number.is_nan(), number > 0.0) {
        (true, _) => "NaN".to_owned(),
        (_, true) => "\u{221e}".to_owned(),
        _ => "-\u{221e}".to_owned(),
    }
}

/// Groups digits by thousands, as cel-go does in its only locale.
fn grouped(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut out = sign.to_owned();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

fn signed(number: i64, write: impl Fn(u64) -> String) -> String {
    format!("{}{}", if number < 0 { "-" } else { "" }, write(number.unsigned_abs()))
}

/// Scientific notation as in English text, with superscripts.
fn exponent(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) =
        exponent.strip_prefix('-').map_or(("", exponent), |exponent| ("\u{207b}", exponent));
    let raised: String = format!("{exponent:0>2}")
        .chars()
        .map(|digit| match digit {
            '1' => '\u{b9}',
            '2' => '\u{b2}',
            '3' => '\u{b3}',
            other => char::from_u32(0x2070 + (other as u32 - '0' as u32)).unwrap_or(other),
        })
        .collect();
    format!("{digits}\u{202f}\u{d7}\u{202f}10{sign}{raised}")
}

fn shown(meter: &mut Meter, value: &Value<'_>, depth: usize) -> Result<String, Failure> {
    meter.spend(1 + traversal(value.size()))?;
    if depth > MAX_DEPTH {
        return Err("a value is too deep for a format".into());
    }
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Type(name) => (*name).to_owned(),
        Value::List(list) => {
            let items: Result<Vec<String>, Failure> =
                list.iter().map(|item| inner(meter, &item, depth + 1)).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) => {
            let mut entries = Vec::with_capacity(map.len());
            for (key, value) in map.entries() {
                let key = inner(meter, &key.value(), depth + 1)?;
                entries.push((key, inner(meter, &value, depth + 1)?));
            }
            entries.sort();
            let entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("{key}:{value}")).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Optional(_) | Value::Library(_) | Value::Message(_) | Value::Mistyped(_) => {
            return Err(mismatch('s', value));
        }
        other => text(other)?,
    })
}

/// An element of a list or map, as a literal.
fn inner(meter: &mut Meter, value: &Value<'_>, depth: usize) -> Result<String, Failure> {
    Ok(match value {
        Value::String(text) => quote(text),
        Value::Bytes(_) => format!("b{}", quote(&shown(meter, value, depth)?)),
        Value::Double(number) => format!("{number:.PRECISION$}"),
        Value::Timestamp(_) => format!("timestamp({})", quote(&shown(meter, value, depth)?)),
        Value::Duration(_) => format!("duration({})", quote(&shown(meter, value, depth)?)),
        Value::Optional(_) | Value::Library(_) | Value::Message(_) | Value::Mistyped(_) => {
            let why = format!("no formatting function for {}", value.type_name());
            return Err(Failure::Failed(format!("error during formatting: {why}")));
        }
        other => shown(meter, other, depth)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(format: &str, values: Vec<Value<'static>>) -> String {
        let args = [Value::text(format), Value::list(values)];
        match super::format(&mut Meter::default(), &args) {
            Ok(Value::String(text)) => text.to_string(),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn numbers_are_written_as_english_text() {
        let cases = [
            ("%f", Value::Double(1_234_567.5), "1,234,567.500000"),
            ("%.1f", Value::Double(-1234.0), "-1,234.0"),
            ("%e", Value::Double(1500.0), "1.500000\u{202f}\u{d7}\u{202f}10\u{2070}\u{b3}"),
            ("%s", Value::Double(1e6), "1e+06"),
            ("%s", Value::list(vec![Value::Double(1.5), Value::text("a")]), "[1.500000, \"a\"]"),
            ("%X", Value::text("J"), "4A"),
            ("%d%%", Value::Int(5), "5%"),
        ];
        for (format, value, want) in cases {
            assert_eq!(formatted(format, vec![value]), want, "{format}");
        }
    }

    #[test]
    fn errors_are_those_of_cel_go() {
        let cases = [
            ("%", vec![Value::Int(1)], "unexpected end of string"),
            ("%s", vec![], "index 0 out of range"),
            ("%s %s", vec![Value::Int(1)], "index 1 out of range"),
            (
                "%q",
                vec![Value::Int(1)],
                "could not parse formatting clause: unrecognized formatting clause \"q\"",
            ),
            (
                "%d",
                vec![Value::text("a")],
                "error during formatting: decimal clause can only be used on integers, was given string",
            ),
            (
                "%.3",
                vec![Value::Int(1)],
                "could not parse formatting clause: error while parsing precision: could not find end of precision specifier",
            ),
        ];
        for (format, values, want) in cases {
            assert_eq!(formatted(format, values), want, "{format}");
        }
    }
}
