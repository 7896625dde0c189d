//! Resource quantities: `100m`, `1Gi`, `1e3`; canonical as in kube-apiserver.

mod parse;

use crate::document::Value;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// kube-apiserver's text about what is no quantity.
pub const FORMAT_WRONG: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// 10^9: quantities are counted in units of 10^-9.
const NANOS: i128 = 1_000_000_000;

/// Suffixes of a quantity, as it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `n u m (none) k M G T P E`
    #[default]
    DecimalSi,
    /// `Ki Mi Gi Ti Pi Ei`
    BinarySi,
    /// `e3`, `E3`
    DecimalExponent,
}

/// A parsed quantity: exact decimal arithmetic in units of 10^-9 within i128 (about 1.7 * 10^29). A
/// larger amount counts as the largest one but keeps its text. Equality and order ignore the
/// format.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// Text as given, if kube-apiserver keeps it, or the canonical form of an amount beyond the
    /// range.
    text: Option<Box<str>>,
}

impl Quantity {
    /// Parses; rounds up below 10^-9, like kube-apiserver.
    ///
    /// # Errors
    /// The invalid text.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::quantity(text).map_err(|why| {
            let shown: String = text.chars().take(64).collect();
            format!("\"{shown}\" is not a quantity: {why}")
        })
    }

    /// Parses a field's value: a string (surrounding spaces are dropped) or a number; null is zero.
    ///
    /// # Errors
    /// The invalid value.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.as_written()),
            _ => Err("a quantity is a string or a number".to_owned()),
        }
    }

    /// A number of whole units.
    pub fn new(units: i64, format: Format) -> Self {
        Self { nanos: i128::from(units) * NANOS, format, text: None }
    }

    /// A number of thousandths.
    pub fn from_milli(thousandths: i64, format: Format) -> Self {
        Self { nanos: i128::from(thousandths) * (NANOS / 1_000), format, text: None }
    }

    /// Suffix format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Whether it is below zero.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// Whole units, rounded away from zero and saturating.
    pub fn value(&self) -> i64 {
        saturate(div_away_from_zero(self.nanos, NANOS))
    }

    /// Thousandths, rounded away from zero and saturating.
    pub fn milli_value(&self) -> i64 {
        saturate(div_away_from_zero(self.nanos, NANOS / 1_000))
    }

    /// The integer; `None` if it has a fraction or exceeds i64.
    pub fn exact(&self) -> Option<i64> {
        (self.nanos % NANOS == 0).then(|| i64::try_from(self.nanos / NANOS).ok())?
    }

    /// Whether it has no fraction. Fractions of amounts beyond the countable range are ignored.
    pub fn is_whole(&self) -> bool {
        self.nanos % NANOS == 0 || self.nanos.checked_abs() == Some(i128::MAX)
    }

    /// Nearest float.
    pub fn approximate(&self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }

    /// The sum, in this quantity's format; zero takes the other's. Saturates.
    #[must_use]
    pub fn add(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format, text: None }
    }

    /// The difference, in this quantity's format; zero takes the other's. Saturates.
    #[must_use]
    pub fn sub(&self, other: &Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format, text: None }
    }

    /// Canonical form: no fraction, the largest lossless suffix.
    pub fn canonical(&self) -> String {
        if let Some(text) = &self.text {
            return text.to_string();
        }
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let small = self.nanos.abs() < 1_024 * NANOS;
        if self.format == Format::BinarySi && !small && self.nanos % NANOS == 0 {
            return canonical_binary(self.nanos / NANOS);
        }
        canonical_decimal(self.nanos, self.format == Format::DecimalExponent)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical())
    }
}

impl std::str::FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

fn saturate(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn div_away_from_zero(value: i128, by: i128) -> i128 {
    value / by + if value % by == 0 { 0 } else { value.signum() }
}

fn canonical_binary(units: i128) -> String {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut units, mut power) = (units, 0);
    while units % 1_024 == 0 && power + 1 < SUFFIXES.len() {
        units /= 1_024;
        power += 1;
    }
    format!("{units}{}", SUFFIXES[power])
}

fn canonical_decimal(nanos: i128, exponent_form: bool) -> String {
    let (mut mantissa, mut exponent) = (nanos, -9_i32);
    while mantissa % 1_000 == 0 {
        mantissa /= 1_000;
        exponent += 3;
    }
    format!("{mantissa}{}", decimal_suffix(exponent, exponent_form))
}

/// Suffix of a power of a thousand. Above the largest one kube-apiserver writes none, which loses
/// the power.
fn decimal_suffix(exponent: i32, exponent_form: bool) -> Cow<'static, str> {
    Cow::Borrowed(match exponent {
        0 => "",
        -9 if !exponent_form => "n",
        -6 if !exponent_form => "u",
        -3 if !exponent_form => "m",
        3 if !exponent_form => "k",
        6 if !exponent_form => "M",
        9 if !exponent_form => "G",
        12 if !exponent_form => "T",
        15 if !exponent_form => "P",
        18 if !exponent_form => "E",
        _ => return Cow::Owned(format!("e{exponent}")),
    })
}

#[cfg(test)]
mod tests;
