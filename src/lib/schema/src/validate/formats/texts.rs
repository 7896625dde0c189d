//! String formats of custom resources, as in kube-openapi's `strfmt`.

use super::is_date;
use crate::duration::worded_duration;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a text has a format. Unknown formats pass; dashes in the name are ignored.
pub fn fits(format: &str, text: &str) -> bool {
    match format {
        "date" => text.len() == 10 && is_date(text),
        "date-time" | "datetime" => is_date_time(text),
        "byte" => is_base64(text),
        "ipv4" => is_ipv4(text),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
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
        "bsonobjectid" => text.len() == 24 && is_hex(text),
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

fn dashed_fits(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "k8sshortname" => fits("k8s-short-name", text),
        "k8slongname" => fits("k8s-long-name", text),
        plain => fits(plain, text),
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Not empty, padded, without line ends.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(is_digit)
}

/// `2006-01-02T15:04:05` in either case, a fraction after any character, and a zone of any digits.
/// A second `T` ends it.
fn is_date_time(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(clock)) = (parts.next(), parts.next()) else { return false };
    date.len() == 10 && is_date(date) && is_clock(clock)
}

fn is_clock(text: &str) -> bool {
    let field = |at: usize, most: &str| {
        text.get(at..at + 2).is_some_and(|part| is_decimal(part) && part <= most)
    };
    let colon = |at: usize| text.as_bytes().get(at) == Some(&b':');
    let Some(rest) = text
        .get(8..)
        .filter(|_| field(0, "23") && colon(2) && field(3, "59") && colon(5) && field(6, "59"))
    else {
        return false;
    };
    let mut after = rest.chars();
    after.next();
    let digits = after.as_str().trim_start_matches(|letter: char| letter.is_ascii_digit());
    let has_fraction = digits.len() < after.as_str().len();
    is_zone(rest) || (has_fraction && is_zone(digits))
}

fn is_zone(text: &str) -> bool {
    let offset = |rest: &str| {
        rest.split_once(':').is_some_and(|(hours, minutes)| {
            [hours, minutes].iter().all(|part| part.len() == 2 && is_decimal(part))
        })
    };
    text == "z" || text.strip_prefix(['+', '-']).is_some_and(offset)
}

/// Also with leading zeros, or inside an IPv6 address.
fn is_ipv4(text: &str) -> bool {
    if text.contains(':') {
        return text.contains('.') && text.parse::<Ipv6Addr>().is_ok();
    }
    let part = |part: &str| {
        is_decimal(part)
            && part.trim_start_matches('0').len() <= 3
            && part.parse::<u64>().is_ok_and(|number| number <= 255)
    };
    text.split('.').count() == 4 && text.split('.').all(part)
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let most = match address.contains(':') {
        true => address.parse::<Ipv6Addr>().ok().map(|_| Ipv6Addr::BITS),
        false => is_ipv4(address).then_some(Ipv4Addr::BITS),
    };
    is_decimal(bits) && most.is_some_and(|most| bits.parse::<u32>().is_ok_and(|bits| bits <= most))
}

/// 6, 8 or 20 bytes: without separators, a dash or colon after each, or a dot after every second.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize| {
        let mut count = 0;
        let fits = text.split(separator).all(|part| {
            count += part.len() / 2;
            part.len() == digits && is_hex(part)
        });
        fits && matches!(count, 6 | 8 | 20)
    };
    match (text.as_bytes().get(2), text.as_bytes().get(4)) {
        (Some(b':'), _) => groups(':', 2),
        (Some(b'-'), _) => groups('-', 2),
        (_, Some(b'.')) => groups('.', 4),
        _ => matches!(text.len(), 12 | 16 | 40) && is_hex(text),
    }
}

/// Each dash is optional. Versions 4 and 5 check the variant.
fn is_uuid(text: &str, version: Option<u8>) -> bool {
    let mut digits = Vec::with_capacity(32);
    for byte in text.bytes() {
        match byte {
            b'-' if matches!(digits.len(), 8 | 12 | 16 | 20) => {}
            byte if byte.is_ascii_hexdigit() && digits.len() < 32 => digits.push(byte),
            _ => return false,
        }
    }
    let is_variant = |digit: u8| matches!(digit.to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b');
    let is_version = |version: u8| {
        digits.get(12) == Some(&version) && (version == b'3' || is_variant(digits[16]))
    };
    digits.len() == 32 && !text.contains("--") && version.is_none_or(is_version)
}

/// One label with at most one dash, not first; or labels and a top-level one of letters. Symbols
/// count as letters except in the top-level label.
fn is_hostname(text: &str) -> bool {
    text.len() <= 255
        && text.split('.').all(|label| label.len() <= 63)
        && (is_single(text) || is_dotted(text))
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_digit()
        || letter.is_alphabetic()
        || matches!(letter, '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~')
        || is_symbol(letter)
}

/// Symbols beyond ASCII, emoji among them.
fn is_symbol(letter: char) -> bool {
    static SYMBOL: std::sync::LazyLock<Option<regex::Regex>> =
        std::sync::LazyLock::new(|| regex::Regex::new(r"^\p{S}$").ok());
    !letter.is_ascii()
        && SYMBOL.as_ref().is_some_and(|symbol| symbol.is_match(letter.encode_utf8(&mut [0; 4])))
}

fn is_single(text: &str) -> bool {
    let mut letters = text.chars();
    let first = letters.next().is_some_and(is_word);
    let rest = letters.as_str();
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    first && rest.chars().count() <= 62 && rest.chars().all(is_word)
}

fn is_dotted(text: &str) -> bool {
    let label = |label: &str| {
        label.chars().all(|letter| is_word(letter) || letter == '-')
            && label.starts_with(is_word)
            && label.ends_with(is_word)
    };
    let Some((labels, top)) = text.rsplit_once('.') else { return false };
    (2..=63).contains(&top.chars().count())
        && top.chars().all(char::is_alphabetic)
        && labels.split('.').all(label)
}

/// An RFC 5322 address, with an optional display name.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    match text.strip_suffix('>').and_then(|named| named.rsplit_once('<')) {
        Some((name, address)) => is_phrase(name.trim_matches([' ', '\t'])) && is_address(address),
        None => is_address(text),
    }
}

fn is_atom(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|letter| {
            !letter.is_ascii()
                || letter.is_ascii_alphanumeric()
                || "!#$%&'*+-/=?^_`{|}~".contains(letter)
        })
}

fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| !inner.contains('"') && !inner.contains(char::is_control))
}

/// Display names may have dots.
fn is_phrase(text: &str) -> bool {
    text.is_empty()
        || is_quoted(text)
        || text.split([' ', '\t', '.']).all(|word| word.is_empty() || is_atom(word))
}

fn is_address(text: &str) -> bool {
    let atoms = |text: &str| text.split('.').all(is_atom);
    let literal = |text: &str| {
        text.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .is_some_and(|inner| inner.parse::<std::net::IpAddr>().is_ok())
    };
    text.rsplit_once('@').is_some_and(|(local, domain)| {
        (atoms(local) || is_quoted(local) && local.len() > 2) && (atoms(domain) || literal(domain))
    })
}

/// A request target: absolute or a path.
fn is_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let scheme = text
        .find(|letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '+' | '-' | '.'))
        .filter(|end| text[*end..].starts_with(':'));
    let rest = match scheme {
        Some(end) if text.starts_with(|letter: char| letter.is_ascii_alphabetic()) => {
            &text[end + 1..]
        }
        Some(0) => return false,
        _ if text.starts_with('/') => {
            return is_escaped(text.split('?').next().unwrap_or_default());
        }
        _ => return false,
    };
    let rest = rest.split('?').next().unwrap_or_default();
    match (rest.strip_prefix("//"), rest.starts_with('/')) {
        (Some(rest), _) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            is_authority(authority) && is_escaped(path)
        }
        (None, true) => is_escaped(rest),
        (None, false) => true,
    }
}

/// Every percent sign starts an escape.
fn is_escaped(text: &str) -> bool {
    text.match_indices('%').all(|(at, _)| text.get(at + 1..at + 3).is_some_and(is_hex))
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let is_user = user
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte))
        && is_escaped(user);
    let is_port = |rest: &str| {
        rest.is_empty()
            || rest.strip_prefix(':').is_some_and(|port| port.is_empty() || is_decimal(port))
    };
    let is_host = |host: &str| {
        host.bytes().all(|byte| {
            !byte.is_ascii()
                || byte.is_ascii_alphanumeric()
                || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
        })
    };
    is_user
        && match host.strip_prefix('[') {
            Some(rest) => rest.rsplit_once(']').is_some_and(|(address, port)| {
                is_port(port) && address.parse::<Ipv6Addr>().is_ok()
            }),
            None => is_host(host) && host.find(':').is_none_or(|at| is_port(&host[at..])),
        }
}

/// A Go duration (`1h30m`), or any text with a number before a unit (`2 days`).
fn is_duration(text: &str) -> bool {
    is_go_duration(text) || worded_duration(text).is_some()
}

fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let has_parts = !rest.is_empty();
    while !rest.is_empty() {
        let number = rest.len()
            - rest
                .trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '.')
                .len();
        let (number, after) = rest.split_at(number);
        let unit = after
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(after.len());
        let is_number =
            number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() < 2;
        if !is_number
            || !matches!(
                &after[..unit],
                "ns" | "us" | "\u{b5}s" | "\u{3bc}s" | "ms" | "s" | "m" | "h"
            )
        {
            return false;
        }
        rest = &after[unit..];
    }
    has_parts
}

fn is_hex_color(text: &str) -> bool {
    let digits = text.strip_prefix('#').unwrap_or(text);
    matches!(digits.len(), 3 | 6) && is_hex(digits)
}

/// `rgb(1, 2, 3)`
fn is_rgb_color(text: &str) -> bool {
    let Some(inner) = text.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')) else {
        return false;
    };
    let part = |part: &str| {
        let part = part.trim_matches([' ', '\t', '\n', '\u{c}', '\r']);
        is_decimal(part) && (part == "0" || !part.starts_with('0')) && part.parse::<u8>().is_ok()
    };
    inner.split(',').count() == 3 && inner.split(',').all(part)
}

/// `123-45-6789`, with dashes or spaces.
fn is_ssn(text: &str) -> bool {
    text.len() == 11
        && text.bytes().enumerate().all(|(at, byte)| match at {
            3 | 6 => matches!(byte, b'-' | b' '),
            _ => byte.is_ascii_digit(),
        })
}

/// Digits of an ISBN; spaces and dashes are skipped, a final `X` is ten.
fn isbn_digits(text: &str) -> Option<Vec<u32>> {
    let plain: String = text
        .chars()
        .filter(|letter| !matches!(letter, ' ' | '\t' | '\n' | '\u{c}' | '\r' | '-'))
        .collect();
    let last = plain.len().checked_sub(1)?;
    plain
        .chars()
        .enumerate()
        .map(
            |(at, letter)| if letter == 'X' && at == last { Some(10) } else { letter.to_digit(10) },
        )
        .collect()
}

fn is_isbn10(text: &str) -> bool {
    isbn_digits(text).is_some_and(|digits| {
        digits.len() == 10
            && digits
                .iter()
                .zip(1..)
                .map(|(digit, weight)| digit * weight)
                .sum::<u32>()
                .is_multiple_of(11)
    })
}

fn is_isbn13(text: &str) -> bool {
    let weighed = |digits: &[u32]| {
        digits
            .iter()
            .enumerate()
            .map(|(at, digit)| digit * if at.is_multiple_of(2) { 1 } else { 3 })
            .sum::<u32>()
    };
    isbn_digits(text).is_some_and(|digits| {
        digits.len() == 13
            && digits.iter().all(|digit| *digit < 10)
            && weighed(&digits).is_multiple_of(10)
    })
}

/// A number of a known issuer with a valid check digit; non-digits are skipped.
fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let doubled = |digit: u32| if digit > 4 { digit * 2 - 9 } else { digit * 2 };
    let sum: u32 = digits
        .bytes()
        .rev()
        .map(|byte| u32::from(byte - b'0'))
        .enumerate()
        .map(|(at, digit)| if at % 2 == 1 { doubled(digit) } else { digit })
        .sum();
    is_issued(&digits) && sum.is_multiple_of(10)
}

fn is_issued(digits: &str) -> bool {
    let begins = |from: &str, to: &str| {
        digits.get(..from.len()).is_some_and(|prefix| (from..=to).contains(&prefix))
    };
    match digits.len() {
        13 => begins("4", "4"),
        14 => begins("300", "305") || begins("36", "36") || begins("38", "38"),
        15 => {
            begins("34", "34")
                || begins("37", "37")
                || begins("2131", "2131")
                || begins("1800", "1800")
        }
        16 => {
            begins("4", "4")
                || begins("51", "55")
                || begins("6011", "6011")
                || begins("6500", "6599")
                || begins("35", "35")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_formats_as_in_strfmt() {
        let cases: [(&str, &[&str], &[&str]); 18] = [
            (
                "hostname",
                &["a", "a-b", "a.example.com", "a--b.com", "\u{1f600}.com", "1a"],
                &[
                    "",
                    "ab-c",
                    "10.0.0.1",
                    "a.b",
                    "example.com.",
                    "-a",
                    "a_b",
                    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
                ],
            ),
            (
                "duration",
                &[
                    "1h",
                    "-1.5h",
                    "0",
                    "2 days",
                    "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
                    "in 3 Weeks",
                ],
                &["", "1", "1x", "99999999999999999999 days", "h"],
            ),
            ("byte", &["YQ==", "YWJj"], &["", "YQ", "YQ==\n", "a b=", "YQ==YQ=="]),
            (
                "date-time",
                &["2024-01-02T03:04:05Z", "2024-01-02t03:04:05z", "2024-01-02T03:04:05x123+99:99"],
                &["", "2024-01-02T03:04:05", "2024-01-02T24:00:00Z", "2024-13-02T03:04:05Z"],
            ),
            (
                "ipv4",
                &["10.0.0.1", "010.00.0.1", "::ffff:1.2.3.4"],
                &["10.0.0", "10.0.0.256", "::1", "1.2.3.+4"],
            ),
            ("ipv6", &["::1"], &["10.0.0.1", "fe80::1%eth0"]),
            (
                "cidr",
                &["10.0.0.0/8", "10.0.0.0/08", "::/0"],
                &["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "10.0.0.0/"],
            ),
            (
                "mac",
                &["aa:bb:cc:dd:ee:ff", "aa-bb-cc-dd-ee-ff", "aabb.ccdd.eeff", "aabbccddeeff"],
                &["aa:bb-cc:dd:ee:ff", "aa:bb:cc", "g0:bb:cc:dd:ee:ff"],
            ),
            (
                "uuid",
                &["f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "f81d4fae7dec-11d0a76500a0c91e6bf6"],
                &["f81d-4fae7dec11d0a76500a0c91e6bf6", "f81d4fae--7dec11d0a76500a0c91e6bf6", ""],
            ),
            (
                "uuid4",
                &["f81d4fae-7dec-41d0-a765-00a0c91e6bf6"],
                &["f81d4fae-7dec-41d0-c765-00a0c91e6bf6", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"],
            ),
            (
                "email",
                &["a@b", "a@b.c", "A <a@b.c>", "\"a b\"@c", "a@[10.0.0.1]"],
                &["", "a", "@b", "a@", "a b@c", "a@b..c", "a@b."],
            ),
            (
                "uri",
                &["http://a/b", "/a b", "mailto:x", "*", "http://a:80/", "http://[::1]:80/x"],
                &["", "a/b", ":a", "http://a b/", "/%zz", "http://a:b/", "1h"],
            ),
            ("ssn", &["123-45-6789", "123 45 6789"], &["123456789", "123-45-678"]),
            (
                "creditcard",
                &["4111111111111111", "4111-1111-1111-1111"],
                &["4111111111111112", "1111111111111117", "0"],
            ),
            ("hexcolor", &["#fff", "a1b2c3"], &["#ffff", ""]),
            ("rgbcolor", &["rgb(1, 2,255)"], &["rgb(1,2)", "rgb(01,2,3)", "rgb(1,2,256)"]),
            ("isbn", &["0321751043", "978 3 401 01319 0"], &["0321751044", "X"]),
            ("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f1f77bcf86cd79943901", ""]),
        ];
        for (format, right, wrong) in cases {
            right.iter().for_each(|text| assert!(fits(format, text), "{format} {text:?}"));
            wrong.iter().for_each(|text| assert!(!fits(format, text), "{format} {text:?}"));
        }
    }
}
