//! Functions of timestamps and durations.

use super::function::{Arg, Function, function, one, walk};
use crate::failure::Failure;
use crate::types::Type;
use crate::value::Value;
use crate::value::time::{SECOND, civil};
use ferrokube_apimachinery::go;
use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

macro_rules! parts {
    ($($name:literal => $of_time:ident),*) => {
        &[$(
            Function { name: $name, method: true, args: &[Arg::Timestamp], answer: |_| Type::Int, cost: one, run: $of_time },
            Function { name: $name, method: true, args: &[Arg::Timestamp, Arg::String], answer: |_| Type::Int, cost: walk, run: $of_time },
        )*
            Function { name: "getHours", method: true, args: &[Arg::Duration], answer: |_| Type::Int, cost: one, run: hours },
            Function { name: "getMinutes", method: true, args: &[Arg::Duration], answer: |_| Type::Int, cost: one, run: minutes },
            Function { name: "getSeconds", method: true, args: &[Arg::Duration], answer: |_| Type::Int, cost: one, run: seconds },
            Function { name: "getMilliseconds", method: true, args: &[Arg::Duration], answer: |_| Type::Int, cost: one, run: milliseconds },
        ]
    };
}

pub(super) const FUNCTIONS: &[Function] = parts!(
    "getFullYear" => year, "getMonth" => month, "getDayOfYear" => day_of_year, "getDayOfMonth" => day_of_month, "getDate" => date,
    "getDayOfWeek" => day_of_week, "getHours" => hours, "getMinutes" => minutes, "getSeconds" => seconds, "getMilliseconds" => milliseconds
);

macro_rules! part {
    ($name:ident, $zoned:ident => $part:expr, $nanos:ident => $of_duration:expr) => {
        function!($name,
            [Value::Duration($nanos)] => Ok(Value::Int($of_duration)),
            [Value::Timestamp(nanos)] => zoned(*nanos, "UTC").map(|$zoned| Value::Int(i64::from($part))),
            [Value::Timestamp(nanos), Value::String(zone)] => zoned(*nanos, zone).map(|$zoned| Value::Int(i64::from($part))),
        );
    };
    ($name:ident, $zoned:ident => $part:expr) => {
        function!($name,
            [Value::Timestamp(nanos)] => zoned(*nanos, "UTC").map(|$zoned| Value::Int(i64::from($part))),
            [Value::Timestamp(nanos), Value::String(zone)] => zoned(*nanos, zone).map(|$zoned| Value::Int(i64::from($part))),
        );
    };
}

part!(year, time => time.year());
part!(month, time => time.month() - 1);
part!(day_of_year, time => time.day_of_year() - 1);
part!(day_of_month, time => time.day() - 1);
part!(date, time => time.day());
part!(day_of_week, time => weekday(time.weekday()));
part!(hours, time => time.hour(), nanos => nanos / 3_600_000_000_000);
part!(minutes, time => time.minute(), nanos => nanos / 60_000_000_000);
part!(seconds, time => time.second(), nanos => nanos / 1_000_000_000);
part!(milliseconds, time => time.millisecond(), nanos => nanos / 1_000_000);

/// 0 is Sunday.
fn weekday(day: Weekday) -> i8 {
    day.to_sunday_zero_offset()
}

/// A time in a zone: `UTC`, `America/New_York`, `-08:00`.
fn zoned(nanos: i128, zone: &str) -> Result<DateTime, Failure> {
    let offset = match (zone, zone.split_once(':')) {
        ("" | "UTC", _) => 0,
        (_, Some((hours, minutes))) => {
            let number = |text: &str| {
                let fault = || Failure::Failed(atoi_fault(text));
                text.parse::<i64>().map_err(|_| fault())
            };
            let (hours, minutes) = (number(hours)?, number(minutes)?);
            // A leading minus negates the minutes, too.
            let minutes = if zone.starts_with('-') { -minutes } else { minutes };
            hours.saturating_mul(60).saturating_add(minutes).saturating_mul(60)
        }
        (name, None) => {
            let unknown = || Failure::Failed(format!("unknown time zone {name}"));
            let zone = TimeZone::get(name).map_err(|_| unknown())?;
            // jiff's instants end hours before the years 1 to 9999 do.
            let (first, last) = (Timestamp::MIN.as_nanosecond(), Timestamp::MAX.as_nanosecond());
            let at = Timestamp::from_nanosecond(nanos.clamp(first, last)).unwrap_or_default();
            i64::from(zone.to_offset(at).seconds())
        }
    };
    civil(nanos + i128::from(offset) * SECOND)
}

fn atoi_fault(text: &str) -> String {
    go::integer_fault(text, true).replacen("ParseInt", "Atoi", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::time::{in_range, timestamp, write_timestamp};

    #[test]
    fn the_calendar_is_whole() {
        let last = timestamp("9999-12-31T23:59:59Z").unwrap();
        assert_eq!(write_timestamp(last).unwrap(), "9999-12-31T23:59:59Z");
        assert_eq!(zoned(last, "America/New_York").unwrap().hour(), 18);
        let first = timestamp("0001-01-01T00:00:00Z").unwrap();
        assert_eq!(zoned(first, "02:30").unwrap().minute(), 30);
        assert!(in_range(timestamp("0000-12-31T00:00:00Z").unwrap()).is_err());
        let half = timestamp("2024-02-29T12:34:56.789Z").unwrap();
        assert_eq!(write_timestamp(half).unwrap(), "2024-02-29T12:34:56.789Z");
        for (zone, why) in [
            ("x", "unknown time zone x"),
            (":", "strconv.Atoi: parsing \"\": invalid syntax"),
            ("1:x", "strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(zoned(half, zone).unwrap_err(), Failure::from(why), "{zone}");
        }
    }
}
