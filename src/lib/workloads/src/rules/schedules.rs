//! Rules about schedules of cron jobs.

use super::field::{CheckFn, RuledField};
use crate::checks::FieldErrors;
use ferrokube_apimachinery::document::Value;
use std::ops::RangeInclusive;

const MACROS: [&str; 8] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@every"];
/// Time zone areas, and zones without an area.
const ZONES: [&str; 21] = [
    "Africa/",
    "America/",
    "Antarctica/",
    "Arctic/",
    "Asia/",
    "Atlantic/",
    "Australia/",
    "Europe/",
    "Indian/",
    "Pacific/",
    "Etc/",
    "US/",
    "Canada/",
    "UTC",
    "GMT",
    "EST",
    "MST",
    "HST",
    "CET",
    "EET",
    "WET",
];

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "cron" => cron,
        "timezone" => time_zone,
        _ => return None,
    })
}

/// A schedule in cron format: macros, or five fields of numbers and names.
fn cron(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const BOUNDS: [RangeInclusive<u32>; 5] = [0..=59, 0..=23, 1..=31, 1..=12, 0..=6];
    let text = it.text();
    if text.is_empty() {
        return;
    }
    let zoned = text.contains("TZ");
    let before = it.old.and_then(|old| old.get("schedule")).and_then(Value::as_str);
    if zoned && before.is_none_or(|before| !before.contains("TZ")) {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.invalid(it.path, text, why);
        return;
    }
    let plain = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    let plain = plain.map_or(text, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
    let fields: Vec<&str> = plain.split_whitespace().collect();
    if plain.starts_with('@') {
        if !fields.first().is_some_and(|first| MACROS.contains(first)) {
            errors.invalid(it.path, text, &format!("unrecognized descriptor: {plain}"));
        }
        return;
    }
    if fields.len() != BOUNDS.len() {
        let shown = fields.join(" ");
        let why = format!("expected exactly 5 fields, found {}: [{shown}]", fields.len());
        return errors.invalid(it.path, text, &why);
    }
    let wrong = fields.iter().zip(BOUNDS).find(|(field, bounds)| !is_cron_field(field, bounds));
    if let Some((field, _)) = wrong {
        errors.invalid(it.path, text, &format!("failed to parse {field}"));
    }
}

fn is_cron_field(field: &str, bounds: &RangeInclusive<u32>) -> bool {
    let value = |text: &str| match text.parse::<u32>() {
        Ok(number) => Some(number),
        Err(_) => cron_name(text),
    };
    let fits = |number: u32| bounds.contains(&number);
    field.split(',').all(|part| {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let stepped = step.parse::<u32>().is_ok_and(|step| step > 0);
        let ranged = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => true,
            Some((from, to)) => value(from)
                .zip(value(to))
                .is_some_and(|(from, to)| from <= to && fits(from) && fits(to)),
            None => value(range).is_some_and(fits),
        };
        stepped && ranged
    })
}

/// Number of a month or a day.
fn cron_name(text: &str) -> Option<u32> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let text = text.to_ascii_lowercase();
    let month = MONTHS.iter().position(|name| *name == text).map(|at| at + 1);
    let day = || DAYS.iter().position(|name| *name == text);
    month.or_else(day).and_then(|at| u32::try_from(at).ok())
}

fn time_zone(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Some(Value::String(zone)) = it.value else { return };
    let before = it.old.and_then(|old| old.get("timeZone")).and_then(Value::as_str);
    if before == Some(zone.as_str()) {
        return;
    }
    if zone.is_empty() {
        return errors.invalid(it.path, "", "timeZone must be nil or non-empty string");
    }
    if zone.eq_ignore_ascii_case("local") {
        let why =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return errors.invalid(it.path, zone.as_str(), why);
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "/_+-".contains(letter);
    if !zone.chars().all(is_word) || !ZONES.iter().any(|known| zone.starts_with(known)) {
        errors.invalid(it.path, zone.as_str(), &format!("unknown time zone {zone}"));
    }
}
