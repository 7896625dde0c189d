//! Durations in words.

/// Parses `2 days`, as `format: duration` allows. In nanoseconds: the sum of all numbers before a
/// unit, which wraps around as kube-apiserver's.
pub fn worded_duration(text: &str) -> Option<i64> {
    const SECOND: i64 = 1_000_000_000;
    /// The last word of each is the beginning of longer ones, too.
    const UNITS: [(&[&str], &str, i64); 8] = [
        (&["ns"], "nano", 1),
        (&["us", "\u{b5}s"], "micro", 1_000),
        (&["ms"], "milli", 1_000_000),
        (&["s"], "sec", SECOND),
        (&["m"], "min", 60 * SECOND),
        (&["h", "hr"], "hour", 3_600 * SECOND),
        (&["d"], "day", 86_400 * SECOND),
        (&["w", "wk"], "week", 604_800 * SECOND),
    ];
    let (mut rest, mut total) = (text, None);
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let number = &rest[start..];
        let digits =
            number.len() - number.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let after =
            number[digits..].trim_start_matches(|letter: char| letter.is_ascii_whitespace());
        let length = after
            .find(|letter: char| !letter.is_ascii_alphabetic() && letter != '\u{b5}')
            .unwrap_or(after.len());
        if length > 0 {
            let factor: i64 = number[..digits].parse().ok()?;
            let unit = after[..length].to_lowercase();
            let known = UNITS.iter().find(|(exact, prefix, _)| {
                exact.contains(&unit.as_str()) || unit.starts_with(prefix)
            });
            if let Some((.., nanos)) = known {
                total = Some(total.unwrap_or(0_i64).wrapping_add(factor.wrapping_mul(*nanos)));
            }
        }
        rest = &after[length..];
    }
    total
}
