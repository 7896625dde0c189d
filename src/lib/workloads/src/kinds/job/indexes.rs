//! Lists of pod indexes of a job, such as `0-2,5`.

use std::fmt::Display;

/// Max intervals parsed; longer texts are rejected for their length.
const MOST: usize = 100_000;

fn number(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| is_number)
        .ok_or_else(|| format!("cannot convert string to integer for index: {text:?}"))
}

/// The first and last index of an interval.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let limits: Vec<&str> = text.split('-').collect();
    if limits.len() > 2 {
        return Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let too_large =
        |what: &dyn Display| format!("too large index: {what:?}", what = what.to_string());
    let first = number(limits[0])?;
    if first >= completions {
        return Err(too_large(&limits[0]));
    }
    let Some(last_text) = limits.get(1) else { return Ok((first, first)) };
    let last = number(last_text)?;
    if last >= completions {
        return Err(too_large(last_text));
    }
    if first >= last {
        return Err(format!("non-increasing order, previous: {first}, current: {last}"));
    }
    Ok((first, last))
}

/// The number of indexes in a list.
///
/// # Errors
/// The list is malformed, not in order, or exceeds the completions.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None::<i64>);
    if text.is_empty() {
        return Ok(0);
    }
    for part in text.split(',').take(MOST) {
        let (from, to) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= from) {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        total += to - from + 1;
        last = Some(to);
    }
    Ok(total)
}

/// The first index in both lists; malformed intervals are skipped.
pub(super) fn overlap(one: &str, other: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        let parts = text.split(',').take(MOST);
        parts.filter_map(|part| interval(part, completions).ok()).collect()
    };
    let (one, other) = (read(one), read(other));
    let (mut at, mut at_other) = (0, 0);
    while let (Some(a), Some(b)) = (one.get(at), other.get(at_other)) {
        if a.0 <= b.1 && b.0 <= a.1 {
            return Some(a.0.max(b.0));
        }
        if a.0 <= b.0 { at += 1 } else { at_other += 1 }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_and_compared() {
        assert_eq!(count("0-2,4", 5), Ok(4));
        assert_eq!(count("", 5), Ok(0));
        assert!(count("4,2", 5).unwrap_err().starts_with("non-increasing order"));
        assert!(count("a", 5).unwrap_err().starts_with("cannot convert"));
        assert!(count("5", 5).unwrap_err().starts_with("too large"));
        assert_eq!(overlap("0-2,7", "3,5-8", 9), Some(7));
        assert_eq!(overlap("0", "1", 9), None);
    }
}
