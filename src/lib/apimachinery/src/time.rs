//! Times in the API's formats. Callers pass the time: this crate has no clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// `2006-01-02T15:04:05Z`.
pub fn rfc3339_seconds(time: SystemTime) -> String {
    let (seconds, _) = since_epoch(time);
    let mut out = date_and_time(seconds);
    out.push('Z');
    out
}

/// `2006-01-02T15:04:05.000000Z` (`MicroTime`: exactly six digits).
pub fn rfc3339_micros(time: SystemTime) -> String {
    let (seconds, nanos) = since_epoch(time);
    let mut out = date_and_time(seconds);
    out.push('.');
    push_digits(&mut out, u64::from(nanos / 1_000), 6);
    out.push('Z');
    out
}

/// Parses an RFC 3339 time with any offset and precision.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    parse(text).map(|parsed| parsed.time)
}

/// Parses a `MicroTime`: RFC 3339 with exactly six fractional digits.
pub fn parse_micros(text: &str) -> Option<SystemTime> {
    parse(text).filter(|parsed| parsed.fraction_digits == 6).map(|parsed| parsed.time)
}

/// An age as in kubectl's tables: `5s`, `3m20s`, `5h`, `3d2h`, `2y10d`.
pub fn human_age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let pair = |whole: u64, unit: &str, rest: u64, rest_unit: &str| {
        if rest == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{rest}{rest_unit}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => pair(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => pair(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

/// Seconds since the epoch, rounded down, and remaining nanoseconds.
pub fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            let nanos = before.subsec_nanos();
            let seconds = -(before.as_secs() as i64);
            if nanos == 0 { (seconds, 0) } else { (seconds - 1, 1_000_000_000 - nanos) }
        }
    }
}

/// Inverse of [`since_epoch`]; `None` outside of the platform's range or of years 0 to 9999.
pub fn from_epoch(seconds: i64, nanos: u32) -> Option<SystemTime> {
    let years = days_from_civil(0, 1, 1) * DAY..days_from_civil(10_000, 1, 1) * DAY;
    if !years.contains(&seconds) {
        return None;
    }
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    time?.checked_add(Duration::from_nanos(nanos.into()))
}

/// Whether clients in Rust (jiff) can read a time: not after 9999-12-30T22:00:00Z. One later time
/// makes a whole list unreadable for kubelets and schedulers.
pub fn is_readable(time: SystemTime) -> bool {
    since_epoch(time).0 <= days_from_civil(9999, 12, 30) * DAY + 22 * 3_600
}

/// As [`parse_rfc3339`], for what is stored: see [`is_readable`].
pub fn parse_readable(text: &str) -> Option<SystemTime> {
    parse_rfc3339(text).filter(|time| is_readable(*time))
}

fn date_and_time(seconds: i64) -> String {
    let (year, month, day) = civil_from_days(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY) as u64;
    let mut out = String::with_capacity(32);
    for (value, width, after) in [
        (year.clamp(0, 9999) as u64, 4, '-'),
        (month, 2, '-'),
        (day, 2, 'T'),
        (of_day / 3_600, 2, ':'),
        (of_day / 60 % 60, 2, ':'),
    ] {
        push_digits(&mut out, value, width);
        out.push(after);
    }
    push_digits(&mut out, of_day % 60, 2);
    out
}

fn push_digits(out: &mut String, value: u64, width: u32) {
    for place in (0..width).rev() {
        out.push(char::from(b'0' + (value / 10_u64.pow(place) % 10) as u8));
    }
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar, in eras of 400 years that
/// start in March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date of a day: the inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, u64, u64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month as u64, day as u64)
}

struct Parsed {
    time: SystemTime,
    fraction_digits: usize,
}

fn parse(text: &str) -> Option<Parsed> {
    let bytes = text.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if bytes.len() < 20 || separators.iter().any(|(at, byte)| bytes[*at] != *byte) {
        return None;
    }
    let number = |from: usize, to: usize| digits(bytes.get(from..to)?);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month)
        || day < 1
        || day > days_in_month(year, month)
        || hour > 23
        || minute > 59
        || second > 59
    {
        return None;
    }
    let (nanos, fraction_digits, zone) = fraction(&bytes[19..])?;
    let seconds = days_from_civil(year, month, day) * DAY + hour * 3_600 + minute * 60 + second
        - offset(zone)?;
    Some(Parsed { time: from_epoch(seconds, nanos)?, fraction_digits })
}

fn digits(bytes: &[u8]) -> Option<i64> {
    bytes
        .iter()
        .try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Parses an optional `.123` or `,123`: nanoseconds (further digits are dropped), the number of
/// digits, and the rest.
fn fraction(rest: &[u8]) -> Option<(u32, usize, &[u8])> {
    let Some((b'.' | b',', after)) = rest.split_first() else { return Some((0, 0, rest)) };
    let count = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let nanos = (0..9)
        .fold(0, |sum, at| sum * 10 + if at < count { u32::from(after[at] - b'0') } else { 0 });
    Some((nanos, count, &after[count..]))
}

/// `Z` or `+hh:mm`, in seconds.
fn offset(zone: &[u8]) -> Option<i64> {
    if zone == b"Z" {
        return Some(0);
    }
    if zone.len() != 6 || zone[3] != b':' {
        return None;
    }
    let (hours, minutes) = (digits(&zone[1..3])?, digits(&zone[4..6])?);
    let seconds = hours * 3_600 + minutes * 60;
    match zone[0] {
        _ if hours > 23 || minutes > 59 => None,
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64, nanos: u32) -> SystemTime {
        from_epoch(seconds, nanos).expect("within range")
    }

    #[test]
    fn writes_both_precisions() {
        assert_eq!(rfc3339_seconds(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339_seconds(at(1_709_210_096, 999_999_999)), "2024-02-29T12:34:56Z");
        assert_eq!(rfc3339_micros(at(1_709_210_096, 1_234_567)), "2024-02-29T12:34:56.001234Z");
        assert_eq!(rfc3339_micros(at(-1, 500_000_000)), "1969-12-31T23:59:59.500000Z");
        assert_eq!(rfc3339_seconds(at(-62_135_596_800, 0)), "0001-01-01T00:00:00Z");
        assert_eq!(rfc3339_seconds(at(253_402_300_799, 0)), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn reads_offsets_and_precisions() {
        let noon = parse_rfc3339("2024-02-29T12:34:56Z");
        assert_eq!(noon, Some(at(1_709_210_096, 0)));
        assert_eq!(parse_rfc3339("2024-02-29T14:04:56+01:30"), noon);
        assert_eq!(parse_rfc3339("2024-02-29T10:34:56-02:00"), noon);
        assert_eq!(parse_rfc3339("2024-02-29T12:34:56.5Z"), Some(at(1_709_210_096, 500_000_000)));
        assert_eq!(
            parse_rfc3339("2024-02-29T12:34:56.1234567891Z"),
            Some(at(1_709_210_096, 123_456_789))
        );
        // As Go; other readers take no more than nine digits.
        assert_eq!(
            parse_rfc3339("2024-02-29T12:34:56,1234567891Z"),
            Some(at(1_709_210_096, 123_456_789))
        );
        assert_eq!(parse_micros("2024-02-29T12:34:56.000001Z"), Some(at(1_709_210_096, 1_000)));
        assert_eq!(parse_micros("2024-02-29T12:34:56Z"), None);
        assert_eq!(parse_micros("2024-02-29T12:34:56.001Z"), None);
    }

    #[test]
    fn times_that_clients_cannot_read_are_known() {
        assert!(parse_readable("9999-12-30T22:00:00.999999999Z").is_some());
        for late in [
            "9999-12-30T22:00:01Z",
            "9999-12-31T23:59:59Z",
            "9999-12-30T21:59:59-00:01",
            "9999-12-29T23:59:59-23:59",
        ] {
            assert_eq!(parse_readable(late), None, "{late}");
            assert!(parse_rfc3339(late).is_some(), "{late}");
        }
    }

    #[test]
    fn refuses_other_texts() {
        for text in [
            "",
            "2024-02-29",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-00T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:60Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+0100",
            "2024-01-01T00:00:00+24:00",
            "2024-01-01T00:00:00Z ",
            "-024-01-01T00:00:00Z",
            "2024-01-01T00:00:00\u{e9}",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn ages_as_tables_print_them() {
        let (minute, hour, day) = (60, 3_600, 86_400);
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (5 * hour + minute, "5h1m"),
            (8 * hour + minute, "8h"),
            (47 * hour, "47h"),
            (48 * hour, "2d"),
            (3 * day + 2 * hour, "3d2h"),
            (8 * day + hour, "8d"),
            (729 * day, "729d"),
            (730 * day, "2y"),
            (740 * day, "2y10d"),
            (8 * 365 * day + day, "8y"),
        ] {
            assert_eq!(human_age(seconds), text);
        }
    }

    proptest! {
        #[test]
        fn reading_what_was_written_is_identity(seconds in -62_167_219_200..253_402_300_799_i64, micros in 0..1_000_000_u32) {
            let time = at(seconds, micros * 1_000);
            prop_assert_eq!(parse_micros(&rfc3339_micros(time)), Some(time));
            prop_assert_eq!(parse_rfc3339(&rfc3339_seconds(time)), Some(at(seconds, 0)));
            prop_assert_eq!(since_epoch(time), (seconds, micros * 1_000));
        }

        #[test]
        fn fuzz_any_text_never_panics(text in any::<String>(), digits in "[0-9TZ:.+-]{19,30}") {
            let _ = parse_rfc3339(&text);
            let _ = parse_rfc3339(&digits);
        }
    }
}
