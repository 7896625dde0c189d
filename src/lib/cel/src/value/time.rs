//! Timestamps and durations as text.

use crate::failure::Failure;
use ferrokube_apimachinery::go;
use jiff::SignedDuration;
use jiff::civil::DateTime;

/// In nanoseconds.
pub(crate) const SECOND: i128 = 1_000_000_000;
const MINUTE: i128 = 60 * SECOND;
const HOUR: i128 = 60 * MINUTE;
/// The years 1 to 9999.
const FIRST: i128 = -62_135_596_800 * SECOND;
const LAST: i128 = 253_402_300_800 * SECOND - 1;

/// Date and time in UTC.
pub(crate) fn civil(nanos: i128) -> Result<DateTime, Failure> {
    let seconds = i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(i64::MAX);
    let rest = i32::try_from(nanos.rem_euclid(SECOND)).unwrap_or_default();
    DateTime::constant(1970, 1, 1, 0, 0, 0, 0)
        .checked_add(SignedDuration::new(seconds, rest))
        .map_err(|_| out_of_range())
}

fn out_of_range() -> Failure {
    "timestamp overflow".into()
}

/// Checks that a time is representable.
pub(crate) fn in_range(nanos: i128) -> Result<i128, Failure> {
    if (FIRST..=LAST).contains(&nanos) { Ok(nanos) } else { Err(out_of_range()) }
}

/// From seconds since 1970.
pub(crate) fn from_seconds(seconds: i64) -> Result<i128, Failure> {
    in_range(i128::from(seconds) * SECOND)
}

/// Parses RFC 3339, years 0 to 9999.
pub(crate) fn timestamp(text: &str) -> Option<i128> {
    go::instant(text)
}

pub(crate) fn write_timestamp(nanos: i128) -> Result<String, Failure> {
    civil(nanos).map(|time| format!("{time}Z"))
}

/// Formats in seconds, with the precision of a double: `3600s`, `1.5s`.
pub(crate) fn write_duration(nanos: i64) -> String {
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    format!("{}s", seconds as f64 + rest as f64 / 1e9)
}

/// Parses a duration: `1h30m`, `-1.5s`, `300ms`.
pub(crate) fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|end| *end > 0)?;
        let (number, after) = rest.split_at(end);
        let (unit, length) = unit(after)?;
        total = total.checked_add(amount(number, unit)?)?;
        rest = &after[length..];
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

fn unit(text: &str) -> Option<(i128, usize)> {
    const UNITS: [(&str, i128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("\u{b5}s", 1_000),
        ("\u{3bc}s", 1_000),
        ("ms", 1_000_000),
        ("s", SECOND),
        ("m", MINUTE),
        ("h", HOUR),
    ];
    UNITS
        .into_iter()
        .find(|(name, _)| text.starts_with(name))
        .map(|(name, unit)| (unit, name.len()))
}

/// A number of units in nanoseconds, truncated.
fn amount(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 40 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(unit)?;
    let mut scale = unit;
    for digit in fraction.bytes() {
        scale /= 10;
        total = total.checked_add(i128::from(digit - b'0') * scale)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            ("1h30m", 5_400_000_000_000),
            ("-1.5s", -1_500_000_000),
            ("300ms", 300_000_000),
            ("0", 0),
            ("1us", 1000),
        ];
        for (text, nanos) in cases {
            assert_eq!(duration(text), Some(nanos), "{text}");
        }
        for bad in ["", "1", "h", "1x", "1.2.3s", ".s", "-", "99999999999h"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
        assert_eq!(write_duration(-1_500_000_000), "-1.5s");
        assert_eq!(write_duration(-500_000_000), "-0.5s");
        assert_eq!(write_duration(3_600_000_000_000), "3600s");
    }
}
