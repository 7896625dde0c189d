//! Parses leniently, like kube-apiserver: the number may be missing (`Ki` is zero); leading zeros
//! and a sign are allowed.

use super::{Format, NANOS, Quantity, decimal_suffix};

/// Limit of digits before the point.
const MOST_DIGITS: i64 = 10_000;
/// Longer fractions are truncated and rounded up.
const LONGEST_FRACTION: usize = 18;

/// Split text of a quantity.
struct QuantityText<'a> {
    negative: bool,
    /// Digits before the point without leading zeros; `0` if there are none.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

/// See [`Quantity::parse`].
pub(super) fn quantity(text: &str) -> Result<Quantity, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    let parts = split(text)?;
    let (format, power) = suffix(parts.suffix).ok_or("its suffix is unknown")?;
    let (magnitude, large) = match format {
        Format::BinarySi => (binary(&parts, power)?, None),
        _ => match decimal(&parts, power) {
            Some(magnitude) => (magnitude, None),
            None => (i128::MAX, Some(large(&parts, power, format)?)),
        },
    };
    let nanos = if parts.negative { -magnitude } else { magnitude };
    let format = if format == Format::BinarySi
        && !parts.fraction.is_empty()
        && (1..NANOS).contains(&magnitude)
    {
        Format::DecimalSi
    } else {
        format
    };
    let text =
        if is_kept(&parts, format, power) { Some(text.into()) } else { large.map(Into::into) };
    Ok(Quantity { nanos, format, text })
}

fn split(text: &str) -> Result<QuantityText<'_>, &'static str> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let stripped = unsigned.trim_start_matches('0');
    let (whole, rest) = split_digits(stripped);
    let (fraction, suffix) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    let exponent =
        suffix.trim_start_matches(['e', 'E', 'i', 'n', 'u', 'm', 'k', 'K', 'M', 'G', 'T', 'P']);
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("it is no number with a suffix");
    }
    Ok(QuantityText {
        negative,
        whole: if whole.is_empty() { "0" } else { whole },
        fraction,
        suffix,
    })
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Format and power of ten (of two for binary suffixes).
fn suffix(suffix: &str) -> Option<(Format, i32)> {
    let decimal = |power| Some((Format::DecimalSi, power));
    let binary = |power| Some((Format::BinarySi, power));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => suffix
            .strip_prefix(['e', 'E'])?
            .parse()
            .ok()
            .map(|power| (Format::DecimalExponent, power)),
    }
}

/// Digits times a power of ten, in nanos, rounded up; `None` if out of range.
fn decimal(parts: &QuantityText<'_>, power: i32) -> Option<i128> {
    let digits = [parts.whole, parts.fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let shift = i64::from(power) + 9 - parts.fraction.len() as i64;
    if shift >= 0 {
        let factor = 10_i128.checked_pow(u32::try_from(shift).ok()?)?;
        return digits.parse::<i128>().ok()?.checked_mul(factor);
    }
    let (kept, up) = cut(digits, shift);
    let kept = if kept.is_empty() { 0 } else { kept.parse::<i128>().ok()? };
    kept.checked_add(i128::from(up))
}

/// Drops the last `shift` digits; true if they round up.
fn cut(digits: &str, shift: i64) -> (&str, bool) {
    let cut = usize::try_from(-shift).unwrap_or(usize::MAX).min(digits.len());
    let (kept, rest) = digits.split_at(digits.len() - cut);
    (kept, rest.bytes().any(|byte| byte != b'0'))
}

/// Canonical form of a number out of range.
fn large(parts: &QuantityText<'_>, power: i32, format: Format) -> Result<String, &'static str> {
    let digits = [parts.whole, parts.fraction].concat();
    let mut digits = digits.trim_start_matches('0');
    let mut exponent = i64::from(power) - parts.fraction.len() as i64;
    if digits.len() as i64 + exponent > MOST_DIGITS {
        return Err("it is out of range");
    }
    let mut up = false;
    if exponent < -9 {
        (digits, up) = cut(digits, exponent + 9);
        exponent = -9;
    }
    let padding = exponent.rem_euclid(3);
    let mut digits = digits.to_owned() + &"0".repeat(padding as usize);
    exponent -= padding;
    if up {
        increment(&mut digits);
    }
    while digits.ends_with("000") {
        digits.truncate(digits.len() - 3);
        exponent += 3;
    }
    let sign = if parts.negative { "-" } else { "" };
    let suffix = decimal_suffix(exponent as i32, format == Format::DecimalExponent);
    Ok([sign, &digits, &*suffix].concat())
}

/// Adds one to a decimal number.
fn increment(digits: &mut String) {
    let nines = digits.len() - digits.trim_end_matches('9').len();
    digits.truncate(digits.len() - nines);
    let last = digits.pop().and_then(|digit| digit.to_digit(10)).unwrap_or(0);
    digits.push_str(&(last + 1).to_string());
    digits.push_str(&"0".repeat(nines));
}

/// Digits times a power of two, in nanos, rounded up, and at most 2^63-1 units.
fn binary(parts: &QuantityText<'_>, power: i32) -> Result<i128, &'static str> {
    let cap = i128::from(i64::MAX) * NANOS;
    let factor = 1_i128 << power;
    let whole = parts.whole.parse::<i128>().ok().filter(|whole| *whole <= i128::from(i64::MAX));
    let Some(whole) = whole else { return Ok(cap) };
    let (kept, rest) = parts.fraction.split_at(parts.fraction.len().min(LONGEST_FRACTION));
    let fraction = if kept.is_empty() {
        0
    } else {
        kept.parse::<i128>().map_err(|_| "its fraction is unreadable")?
    };
    let fraction = fraction + i128::from(rest.bytes().any(|byte| byte != b'0'));
    let scale = 10_i128.pow(kept.len() as u32);
    // whole * factor is below 2^123; the fraction is below 10^18 and its product below 2^120.
    let Some(whole) = (whole * factor).checked_mul(NANOS) else { return Ok(cap) };
    let fraction = mul_div_up(fraction * factor, NANOS, scale);
    Ok(whole.saturating_add(fraction).min(cap))
}

/// `a * b / c` rounded up, without overflow for `a < c * 2^60`.
fn mul_div_up(a: i128, b: i128, c: i128) -> i128 {
    let (quotient, remainder) = (a / c, a % c);
    quotient * b + (remainder * b + c - 1) / c
}

/// Whether kube-apiserver keeps the text as given: short numbers that look canonical.
fn is_kept(parts: &QuantityText<'_>, format: Format, power: i32) -> bool {
    let digits = [parts.whole, parts.fraction].concat();
    match format {
        Format::BinarySi => {
            let short = 14 - parts.whole.len() as i32 - power * 3 / 10 >= 0;
            let odd = parts.whole.parse::<u64>().is_ok_and(|whole| whole & 7 != 0);
            parts.fraction.is_empty() && short && odd
        }
        _ => {
            let scale = i64::from(power) - parts.fraction.len() as i64;
            digits.len() <= 18
                && scale >= -9
                && scale % 3 == 0
                && !digits.ends_with("000")
                && !digits.starts_with('0')
        }
    }
}
