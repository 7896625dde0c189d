//! Known string formats, and those of native kinds.

mod texts;

pub use texts::fits;

use crate::schema::{Kind, Schema};
use ferrokube_apimachinery::time::parse_readable;

/// Standard base64 with padding; line ends are skipped, as by Go's decoder.
pub(super) fn is_base64(text: &str) -> bool {
    let (mut digits, mut padding) = (0_usize, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'\r' | b'\n' => {}
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => digits += 1,
            b'=' => padding += 1,
            _ => return false,
        }
    }
    match digits % 4 {
        0 => padding == 0,
        2 => padding == 2,
        3 => padding == 1,
        _ => false,
    }
}

/// `2006-01-02T15:04:05[.fraction](Z|+hh:mm)`.
pub(super) fn is_rfc3339(text: &str) -> bool {
    fraction_of_rfc3339(text).is_some() && is_readable(text)
}

/// RFC 3339 with exactly six fraction digits.
pub(super) fn is_micro_time(text: &str) -> bool {
    fraction_of_rfc3339(text) == Some(6) && is_readable(text)
}

/// Whether clients can read the time, which is not one of the last hours of year 9999.
fn is_readable(text: &str) -> bool {
    !text.starts_with("9999-12-") || parse_readable(text).is_some()
}

/// The number of fraction digits; `None` if not RFC 3339.
fn fraction_of_rfc3339(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.len() < 20
        || !is_date(text.get(..10)?)
        || bytes[10] != b'T'
        || !is_clock(text.get(11..19)?)
    {
        return None;
    }
    let rest = text.get(19..)?;
    let fraction = match rest.strip_prefix(['.', ',']) {
        None => 0,
        Some(tail) => match tail.bytes().take_while(u8::is_ascii_digit).count() {
            0 => return None,
            digits => digits,
        },
    };
    let zone = &rest[if fraction == 0 { 0 } else { fraction + 1 }..];
    is_zone(zone).then_some(fraction)
}

fn is_zone(zone: &str) -> bool {
    let Some(offset) = zone.strip_prefix(['+', '-']) else {
        return zone == "Z";
    };
    let Some((hours, minutes)) = offset.split_once(':') else {
        return false;
    };
    two(hours).is_some_and(|hours| hours < 24) && two(minutes).is_some_and(|minutes| minutes < 60)
}

fn two(text: &str) -> Option<u32> {
    (text.len() == 2).then(|| number(text))?
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `2006-01-02`, an existing day.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) =
        ((year.len() == 4).then(|| number(year)).flatten(), two(month), two(day))
    else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    (1..=days).contains(&day)
}

/// `15:04:05`.
fn is_clock(text: &str) -> bool {
    let mut parts = text.splitn(3, ':').map(two);
    let (Some(Some(hour)), Some(Some(minute)), Some(Some(second))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    hour < 24 && minute < 60 && second < 60
}

/// String formats for custom resources, without dashes.
const KNOWN: [&str; 24] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
];

/// A node's format, if it applies to its type.
pub(super) fn of(schema: &Schema) -> Option<&str> {
    let format = schema.format.as_deref()?;
    let says = match schema.kind {
        Kind::String | Kind::Any | Kind::IntOrString => is_known(format),
        Kind::Integer => matches!(format, "int32" | "int64"),
        Kind::Number => matches!(format, "float" | "double"),
        Kind::Object | Kind::Array | Kind::Boolean => false,
    };
    says.then_some(format)
}

/// Whether a string format is checked.
pub fn is_known(format: &str) -> bool {
    let plain = format.replace('-', "");
    KNOWN.contains(&plain.as_str()) || matches!(plain.as_str(), "k8sshortname" | "k8slongname")
}
