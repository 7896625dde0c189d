//! Errors of parsing times and durations, with the messages of Go's `time`.

use crate::field::quote;

/// Error of parsing an RFC 3339 time, with `micro` with six fractional digits. `None` if it is
/// valid.
pub fn time_fault(text: &str, micro: bool) -> Option<String> {
    let layout =
        if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let mut parser = LayoutParser { rest: text.as_bytes(), micro };
    let why = match parser.time() {
        Ok(_) => return None,
        Err(TimeFault::Element(element, at)) => {
            let rest = String::from_utf8_lossy(at);
            format!(" as {}: cannot parse {} as {}", quoted(layout), quoted(&rest), quoted(element))
        }
        Err(TimeFault::Range(what)) => format!(": {what} out of range"),
        Err(TimeFault::More(rest)) => {
            format!(": extra text: {}", quoted(&String::from_utf8_lossy(rest)))
        }
    };
    Some(format!("parsing time {}{why}", quoted(text)))
}

/// The nanoseconds since 1970 of an RFC 3339 time, of any year from 0 to 9999, as Go reads it: an
/// hour may have one digit. `None`: it is no such time.
pub fn instant(text: &str) -> Option<i128> {
    LayoutParser { rest: text.as_bytes(), micro: false }.time().ok()
}

/// Days since 1970 of a date of the Gregorian calendar.
fn days_since_1970(year: u32, month: u32, day: u32) -> i64 {
    // Years begin in March here, so that the leap day is the last one.
    let (year, month) = (i64::from(year) - i64::from(month < 3), i64::from(month));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
}

/// Quotes like `time`, which escapes quotes, backslashes and all bytes that are not printable
/// ASCII.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            ' '..='\u{7f}' => out.push(char),
            _ => char
                .encode_utf8(&mut [0; 4])
                .bytes()
                .for_each(|byte| out.push_str(&format!("\\x{byte:02x}"))),
        }
    }
    out.push('"');
    out
}

enum TimeFault<'a> {
    /// A layout element and the text in its place.
    Element(&'static str, &'a [u8]),
    Range(&'static str),
    More(&'a [u8]),
}

struct LayoutParser<'a> {
    rest: &'a [u8],
    micro: bool,
}

impl<'a> LayoutParser<'a> {
    /// Nanoseconds since 1970.
    fn time(&mut self) -> Result<i128, TimeFault<'a>> {
        let year = self.year()?;
        self.mark("-", b'-')?;
        let month = self.number("01", true)?;
        if !(1..=12).contains(&month) {
            return Err(TimeFault::Range("month"));
        }
        self.mark("-", b'-')?;
        let day = self.number("02", true)?;
        self.mark("T", b'T')?;
        let hour = self.bounded("15", false, "hour", 24)?;
        self.mark(":", b':')?;
        let minute = self.bounded("04", true, "minute", 60)?;
        self.mark(":", b':')?;
        let second = self.bounded("05", true, "second", 60)?;
        let nanos = self.fraction()?;
        let east = self.zone()?;
        if !self.rest.is_empty() {
            return Err(TimeFault::More(self.rest));
        }
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 => 28 + u32::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if !(1..=days).contains(&day) {
            return Err(TimeFault::Range("day"));
        }
        let seconds = days_since_1970(year, month, day) * 86_400
            + i64::from(hour * 3_600 + minute * 60 + second)
            - east;
        Ok(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
    }

    fn year(&mut self) -> Result<u32, TimeFault<'a>> {
        match self.rest.split_at_checked(4) {
            Some((year, rest)) if year.iter().all(u8::is_ascii_digit) => {
                self.rest = rest;
                Ok(decimal(year))
            }
            _ => Err(TimeFault::Element("2006", self.rest)),
        }
    }

    fn mark(&mut self, element: &'static str, byte: u8) -> Result<(), TimeFault<'a>> {
        match self.rest.split_first() {
            Some((first, rest)) if *first == byte => {
                self.rest = rest;
                Ok(())
            }
            _ => Err(TimeFault::Element(element, self.rest)),
        }
    }

    /// Two digits; or one, unless `fixed`.
    fn number(&mut self, element: &'static str, fixed: bool) -> Result<u32, TimeFault<'a>> {
        let digits = self.rest.iter().take(2).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || (fixed && digits < 2) {
            return Err(TimeFault::Element(element, self.rest));
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        Ok(decimal(number))
    }

    fn bounded(
        &mut self,
        element: &'static str,
        fixed: bool,
        what: &'static str,
        below: u32,
    ) -> Result<u32, TimeFault<'a>> {
        let number = self.number(element, fixed)?;
        if number < below { Ok(number) } else { Err(TimeFault::Range(what)) }
    }

    /// In nanoseconds; further digits are dropped.
    fn fraction(&mut self) -> Result<u32, TimeFault<'a>> {
        let has_point = matches!(self.rest.first(), Some(b'.' | b','));
        let digits = self.rest.iter().skip(1).take_while(|byte| byte.is_ascii_digit()).count();
        if self.micro && (!has_point || digits < 6) {
            return Err(TimeFault::Element(".000000", self.rest));
        }
        if !has_point || digits == 0 {
            return Ok(0);
        }
        let (fraction, rest) = self.rest.split_at(1 + if self.micro { 6 } else { digits });
        self.rest = rest;
        let shown = &fraction[1..fraction.len().min(10)];
        let missing = 9 - u32::try_from(shown.len()).unwrap_or(9);
        Ok(decimal(shown) * 10_u32.pow(missing))
    }

    /// In seconds east of UTC.
    fn zone(&mut self) -> Result<i64, TimeFault<'a>> {
        const ELEMENT: &str = "Z07:00";
        if let Some((b'Z', rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(0);
        }
        let bad = TimeFault::Element(ELEMENT, self.rest);
        let Some((zone, rest)) = self.rest.split_at_checked(6) else { return Err(bad) };
        let digits = [zone[1], zone[2], zone[4], zone[5]].iter().all(u8::is_ascii_digit);
        if zone[3] != b':' || !digits {
            return Err(bad);
        }
        let (hours, minutes) = (decimal(&zone[1..3]), decimal(&zone[4..6]));
        if hours > 24 {
            return Err(TimeFault::Range("time zone offset hour"));
        }
        if minutes > 60 {
            return Err(TimeFault::Range("time zone offset minute"));
        }
        if !matches!(zone[0], b'+' | b'-') {
            return Err(bad);
        }
        self.rest = rest;
        let east = i64::from(hours * 3_600 + minutes * 60);
        Ok(if zone[0] == b'-' { -east } else { east })
    }
}

fn decimal(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

/// Error of parsing a duration such as `1h30m`.
pub fn duration_fault(text: &str) -> String {
    let invalid = || format!("time: invalid duration {}", quote(text));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let whole = rest.bytes().take_while(u8::is_ascii_digit).count();
        let after = rest[whole..].strip_prefix('.');
        let fraction =
            after.map_or(0, |after| after.bytes().take_while(u8::is_ascii_digit).count());
        if whole == 0 && fraction == 0 {
            return invalid();
        }
        rest = after.map_or(&rest[whole..], |after| &after[fraction..]);
        let unit =
            rest.find(|char: char| char == '.' || char.is_ascii_digit()).unwrap_or(rest.len());
        match &rest[..unit] {
            "" => return format!("time: missing unit in duration {}", quote(text)),
            "ns" | "us" | "\u{b5}s" | "\u{3bc}s" | "ms" | "s" | "m" | "h" => {}
            other => {
                return format!("time: unknown unit {} in duration {}", quote(other), quote(text));
            }
        }
        rest = &rest[unit..];
    }
    invalid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_errors_are_those_of_go() {
        let plain = "as \"2006-01-02T15:04:05Z07:00\": cannot parse";
        let cases = [
            ("x", format!("parsing time \"x\" {plain} \"x\" as \"2006\"")),
            ("", format!("parsing time \"\" {plain} \"\" as \"2006\"")),
            ("a\"b", format!("parsing time \"a\\\"b\" {plain} \"a\\\"b\" as \"2006\"")),
            (
                "2024-01-01T00:00:00",
                format!("parsing time \"2024-01-01T00:00:00\" {plain} \"\" as \"Z07:00\""),
            ),
            (
                "2024-01-01 00:00:00Z",
                format!("parsing time \"2024-01-01 00:00:00Z\" {plain} \" 00:00:00Z\" as \"T\""),
            ),
            (
                "2024-13-01T00:00:00Z",
                "parsing time \"2024-13-01T00:00:00Z\": month out of range".to_owned(),
            ),
            (
                "2024-01-01T25:00:00Z",
                "parsing time \"2024-01-01T25:00:00Z\": hour out of range".to_owned(),
            ),
            (
                "2024-02-30T00:00:00Z",
                "parsing time \"2024-02-30T00:00:00Z\": day out of range".to_owned(),
            ),
            (
                "2024-01-01T00:00:00Zjunk",
                "parsing time \"2024-01-01T00:00:00Zjunk\": extra text: \"junk\"".to_owned(),
            ),
        ];
        for (text, want) in cases {
            assert_eq!(time_fault(text, false), Some(want));
        }
        let micro = "parsing time \"2024-01-02T03:04:05Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\"";
        assert_eq!(time_fault("2024-01-02T03:04:05Z", true).as_deref(), Some(micro));
        assert_eq!(time_fault("2024-01-02T03:04:05.5+01:30", false), None);
    }

    #[test]
    fn instants_are_counted_from_1970() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2024-02-29T12:34:56Z", 1_709_210_096),
            ("2000-03-01T00:00:00+01:30", 951_863_400),
            ("1969-12-31T23:59:59Z", -1),
            ("0001-01-01T00:00:00Z", -62_135_596_800),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
            ("2024-01-01T5:00:00Z", 1_704_085_200),
        ] {
            assert_eq!(instant(text), Some(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(instant("1970-01-01T00:00:00.25Z"), Some(250_000_000));
        assert_eq!(instant("1970-01-01T00:00:00.1234567899Z"), Some(123_456_789));
        assert_eq!(instant("2023-02-29T00:00:00Z"), None);
    }

    #[test]
    fn duration_errors_are_those_of_go() {
        assert_eq!(duration_fault("x"), "time: invalid duration \"x\"");
        assert_eq!(duration_fault("1"), "time: missing unit in duration \"1\"");
        assert_eq!(duration_fault("1.x"), "time: unknown unit \"x\" in duration \"1.x\"");
        assert_eq!(duration_fault("1h2y"), "time: unknown unit \"y\" in duration \"1h2y\"");
    }
}
