//! Messages whose JSON is not an object of their fields.

/// JSON form of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Special {
    /// An object of its fields.
    None,
    /// RFC 3339 with seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// A Go duration such as `1h30m0s`.
    Duration,
    /// An integer or a string.
    IntOrString,
    /// As a string.
    Quantity,
    /// Any JSON: `RawExtension`, `FieldsV1`, `JSON`.
    Raw,
    /// A list of strings, which is a message because maps cannot contain lists.
    Strings,
    /// A schema or a list of schemas.
    SchemaOrArray,
    /// A schema or a boolean.
    SchemaOrBool,
    /// A schema or a list of strings.
    SchemaOrStrings,
}

impl Special {
    pub(super) fn of(package: &str, name: &str) -> Self {
        match (package, name) {
            ("k8s.io.apimachinery.pkg.apis.meta.v1", "Time") => Self::Time,
            ("k8s.io.apimachinery.pkg.apis.meta.v1", "MicroTime") => Self::MicroTime,
            ("k8s.io.apimachinery.pkg.apis.meta.v1", "Duration") => Self::Duration,
            ("k8s.io.apimachinery.pkg.apis.meta.v1", "FieldsV1")
            | ("k8s.io.apimachinery.pkg.runtime", "RawExtension") => Self::Raw,
            ("k8s.io.apimachinery.pkg.apis.meta.v1", "Verbs") | (_, "ExtraValue") => Self::Strings,
            ("k8s.io.apimachinery.pkg.util.intstr", "IntOrString") => Self::IntOrString,
            ("k8s.io.apimachinery.pkg.api.resource", "Quantity" | "QuantityValue") => {
                Self::Quantity
            }
            _ if package.starts_with("k8s.io.apiextensions_apiserver.") => match name {
                "JSON" => Self::Raw,
                "JSONSchemaPropsOrArray" => Self::SchemaOrArray,
                "JSONSchemaPropsOrBool" => Self::SchemaOrBool,
                "JSONSchemaPropsOrStringArray" => Self::SchemaOrStrings,
                _ => Self::None,
            },
            _ => Self::None,
        }
    }
}

/// A Go duration: hours, minutes and seconds, or the largest unit below a second.
pub(super) fn duration_text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let magnitude = nanos.unsigned_abs();
    let decimal = |value: u64, unit: u64| {
        let (whole, rest) = (value / unit, value % unit);
        let digits = unit.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        let fraction = fraction.trim_end_matches('0');
        if rest == 0 { whole.to_string() } else { format!("{whole}.{fraction}") }
    };
    match magnitude {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{magnitude}ns"),
        1_000..1_000_000 => format!("{sign}{}\u{b5}s", decimal(magnitude, 1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", decimal(magnitude, 1_000_000)),
        _ => {
            let seconds = magnitude / 1_000_000_000;
            let below_minute =
                decimal(magnitude - seconds / 60 * 60 * 1_000_000_000, 1_000_000_000);
            match (seconds / 3_600, seconds / 60 % 60) {
                (0, 0) => format!("{sign}{below_minute}s"),
                (0, minutes) => format!("{sign}{minutes}m{below_minute}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{below_minute}s"),
            }
        }
    }
}

/// Nanoseconds of a Go duration.
pub(super) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    loop {
        let number_end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, after) = rest.split_at(number_end);
        let unit_end =
            after.find(|char: char| char.is_ascii_digit() || char == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || whole.len() > 18 || fraction.len() > 18 {
            return None;
        }
        let digits = |part: &str| if part.is_empty() { Some(0) } else { part.parse::<i128>().ok() };
        total +=
            digits(whole)? * unit + digits(fraction)? * unit / 10_i128.pow(fraction.len() as u32);
        if next.is_empty() {
            return i64::try_from(if negative { -total } else { total }).ok();
        }
        rest = next;
    }
}
