//! Formats of strings.

use crate::schema::{Kind, Schema};

/// Standard base64 with padding; line ends are skipped, as upstream's decoder does.
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
    fraction_of_rfc3339(text).is_some()
}

/// The same with exactly six digits of fraction.
pub(super) fn is_micro_time(text: &str) -> bool {
    fraction_of_rfc3339(text) == Some(6)
}

/// How many digits the fraction has; `None`: no such time.
fn fraction_of_rfc3339(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !is_date(text.get(..10)?) || bytes[10] != b'T' || !is_clock(text.get(11..19)?) {
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

/// `2006-01-02`, a day that exists.
pub(super) fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (Some(year), Some(month), Some(day)) = ((year.len() == 4).then(|| number(year)).flatten(), two(month), two(day)) else {
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
    let (Some(Some(hour)), Some(Some(minute)), Some(Some(second))) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    hour < 24 && minute < 60 && second < 60
}

/// Formats of strings that custom resources may ask for, without their dashes.
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

/// The format of a node, if it says anything for its type.
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

/// Whether a format of strings says anything; others are not checked.
pub fn is_known(format: &str) -> bool {
    let plain = format.replace('-', "");
    KNOWN.contains(&plain.as_str()) || matches!(plain.as_str(), "k8sshortname" | "k8slongname")
}

/// Whether a text is of a format that custom resources may ask for. Formats that are not known here are not checked.
pub fn fits(format: &str, text: &str) -> bool {
    match format {
        "date" => text.len() == 10 && is_date(text),
        "date-time" | "datetime" => is_rfc3339(text),
        "byte" => is_base64(text),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some(b'3')),
        "uuid4" => is_uuid(text, Some(b'4')),
        "uuid5" => is_uuid(text, Some(b'5')),
        "hostname" => is_hostname(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "duration" => is_duration(text),
        "quantity" => ferrokube_apimachinery::quantity::Quantity::parse(text).is_ok(),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "hexcolor" => is_hex_color(text),
        "rgbcolor" => is_rgb_color(text),
        "ssn" => is_ssn(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "k8s-short-name" => ferrokube_apimachinery::name::dns1123_label(text).is_empty(),
        "k8s-long-name" => ferrokube_apimachinery::name::dns1123_subdomain(text).is_empty(),
        dashed if dashed.contains('-') => dashed_fits(dashed, text),
        _ => true,
    }
}

/// Dashes in the names of formats say nothing.
fn dashed_fits(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "k8sshortname" => fits("k8s-short-name", text),
        "k8slongname" => fits("k8s-long-name", text),
        plain => fits(plain, text),
    }
}

fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `rgb(1, 2, 3)`
fn is_rgb_color(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')) else { return false };
    let part = |part: &str| {
        let part = part.trim();
        part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0')) && part.parse::<u8>().is_ok()
    };
    inner.split(',').count() == 3 && inner.split(',').all(part)
}

/// `123-45-6789`, with dashes, blanks or nothing between.
fn is_ssn(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let separator = |at: usize| text.as_bytes().get(at).is_some_and(|byte| matches!(byte, b'-' | b' '));
    let first = usize::from(separator(3));
    let second = usize::from(separator(5 + first));
    digits == 9 && text.len() == 9 + first + second
}

/// The digits of a book's number; blanks and dashes say nothing.
fn isbn_digits(text: &str) -> Option<Vec<u32>> {
    let plain: String = text.chars().filter(|letter| !matches!(letter, ' ' | '-')).collect();
    let last = plain.len().checked_sub(1)?;
    plain.chars().enumerate().map(|(at, letter)| if letter == 'X' && at == last { Some(10) } else { letter.to_digit(10) }).collect()
}

fn is_isbn10(text: &str) -> bool {
    isbn_digits(text).is_some_and(|digits| digits.len() == 10 && digits.iter().zip(1..).map(|(digit, weight)| digit * weight).sum::<u32>().is_multiple_of(11))
}

fn is_isbn13(text: &str) -> bool {
    let weighed = |digits: &[u32]| digits.iter().enumerate().map(|(at, digit)| digit * if at.is_multiple_of(2) { 1 } else { 3 }).sum::<u32>();
    isbn_digits(text).is_some_and(|digits| digits.len() == 13 && digits.iter().all(|digit| *digit < 10) && weighed(&digits).is_multiple_of(10))
}

/// Thirteen to sixteen digits with the right check digit; what is no digit says nothing.
fn is_credit_card(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|letter| letter.to_digit(10)).collect();
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 = digits.iter().rev().enumerate().map(|(at, digit)| if at % 2 == 1 { doubled(*digit) } else { *digit }).sum();
    matches!(digits.len(), 13..=16) && matches!(digits[0], 1..=6) && sum.is_multiple_of(10)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let Ok(address) = address.parse::<std::net::IpAddr>() else {
        return false;
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    !bits.starts_with('+') && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

fn is_mac(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if matches!(text.len(), 12 | 16 | 40) && is_hex(text) {
        return true;
    }
    if text.contains('.') {
        let parts: Vec<&str> = text.split('.').collect();
        return matches!(parts.len(), 3 | 4 | 10) && parts.iter().all(|part| part.len() == 4 && is_hex(part));
    }
    let separator = if text.contains('-') { '-' } else { ':' };
    let parts: Vec<&str> = text.split(separator).collect();
    matches!(parts.len(), 6 | 8 | 20) && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let dashed = text.len() == 36 && [8, 13, 18, 23].iter().all(|at| text.as_bytes()[*at] == b'-');
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    (dashed || text.len() == 32) && digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit) && version.is_none_or(|version| digits[12] == version)
}

fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|letter| letter.is_alphanumeric() || letter == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    !text.is_empty() && text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(label)
}

fn is_email(text: &str) -> bool {
    text.rsplit_once('@').is_some_and(|(local, host)| !local.is_empty() && !local.contains(char::is_whitespace) && is_hostname(host))
}

fn is_uri(text: &str) -> bool {
    let absolute = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    });
    (absolute || text.starts_with('/')) && !text.contains(|letter: char| letter.is_control() || letter == ' ')
}

/// Go's durations (`1h30m`), also with words and blanks (`2 days`).
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 24] = [
        "ns", "us", "ms", "s", "m", "h", "d", "w", "nano", "nanos", "micro", "micros", "milli", "millis", "sec", "secs", "min", "mins", "hr", "hour", "hours",
        "day", "days", "week",
    ];
    let text = text.trim().trim_start_matches(['+', '-']);
    if text == "0" {
        return true;
    }
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.').len();
        let after = rest[digits..].trim_start();
        let unit = after.len() - after.trim_start_matches(char::is_alphabetic).len();
        if digits == 0 || !(UNITS.contains(&&after[..unit]) || matches!(&after[..unit], "weeks" | "minute" | "minutes" | "second" | "seconds" | "\u{b5}s")) {
            return false;
        }
        rest = after[unit..].trim_start();
    }
    !text.is_empty()
}
