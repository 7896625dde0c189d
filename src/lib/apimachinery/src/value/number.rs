//! JSON numbers: integers are exact within 64 bits, others are finite floats.

use std::fmt;

/// A JSON number. `1` and `1.0` differ.
#[derive(Clone, Copy)]
pub struct Number(NumberForm);

#[derive(Clone, Copy)]
enum NumberForm {
    Positive(u64),
    /// Below zero.
    Negative(i64),
    /// Finite; with its notation if it had an exponent.
    Float(f64, Option<Exponent>),
}

/// Notation of a float, which quantities preserve.
#[derive(Clone, Copy)]
struct Exponent {
    power: i16,
    /// Digits after the point.
    fraction: u8,
    is_upper: bool,
    has_plus: bool,
}

impl Exponent {
    /// Digits that a float round-trips.
    const MAX_DIGITS: usize = 15;

    fn read(text: &str) -> Option<Self> {
        let at = text.find(['e', 'E'])?;
        let (digits, exponent) = (&text[..at], &text[at + 1..]);
        let fraction = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let has_plus = exponent.starts_with('+');
        let power = exponent.trim_start_matches(['+', '-']);
        if digits.len() > Self::MAX_DIGITS || power.len() > 1 && power.starts_with('0') {
            return None;
        }
        Some(Self {
            power: exponent.parse().ok()?,
            fraction: u8::try_from(fraction).ok()?,
            is_upper: text.as_bytes()[at] == b'E',
            has_plus,
        })
    }

    fn write(self, float: f64) -> Option<String> {
        let shortest = format!("{:e}", float.abs());
        let (digits, power) = shortest.split_once('e')?;
        let mut digits = digits.replace('.', "");
        let power = power.parse::<i32>().ok()? - (digits.len() as i32 - 1);
        let zeros =
            usize::try_from(power - i32::from(self.power) + i32::from(self.fraction)).ok()?;
        if digits.len() + zeros > Self::MAX_DIGITS {
            return None;
        }
        digits.push_str(&"0".repeat(zeros));
        let fraction = usize::from(self.fraction);
        if fraction > 0 {
            digits = format!("{digits:0>width$}", width = fraction + 1);
            digits.insert(digits.len() - fraction, '.');
        }
        let sign = if float.is_sign_negative() { "-" } else { "" };
        let letter = if self.is_upper { 'E' } else { 'e' };
        let plus = if self.has_plus { "+" } else { "" };
        Some(format!("{sign}{digits}{letter}{plus}{}", self.power))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (NumberForm::Positive(one), NumberForm::Positive(other)) => one == other,
            (NumberForm::Negative(one), NumberForm::Negative(other)) => one == other,
            (NumberForm::Float(one, _), NumberForm::Float(other, _)) => one == other,
            _ => false,
        }
    }
}

impl Number {
    /// `None` for infinities and NaN, which JSON lacks.
    pub fn from_f64(float: f64) -> Option<Self> {
        float.is_finite().then_some(Self(NumberForm::Float(float, None)))
    }

    /// A float with its source text.
    pub(crate) fn of_text(float: f64, text: &str) -> Option<Self> {
        float.is_finite().then(|| Self(NumberForm::Float(float, Exponent::read(text))))
    }

    /// The source text if short and with an exponent; otherwise as Go's encoder writes it.
    pub fn as_written(&self) -> String {
        match self.0 {
            NumberForm::Float(float, exponent) => exponent
                .and_then(|exponent| exponent.write(float))
                .unwrap_or_else(|| match float.abs() {
                    1e21.. => format!("{float:e}").replace('e', "e+"),
                    size if size < 1e-6 && size > 0.0 => format!("{float:e}"),
                    _ => float.to_string(),
                }),
            _ => self.to_string(),
        }
    }

    /// Drops the source text.
    pub fn forget_text(&mut self) {
        if let NumberForm::Float(_, exponent) = &mut self.0 {
            *exponent = None;
        }
    }

    /// Whether it is an integer that fits into `i64`.
    pub fn is_i64(&self) -> bool {
        self.as_i64().is_some()
    }

    /// Whether it is an integer that fits into `u64`.
    pub fn is_u64(&self) -> bool {
        self.as_u64().is_some()
    }

    /// Whether it is a float.
    pub fn is_f64(&self) -> bool {
        matches!(self.0, NumberForm::Float(..))
    }

    /// The integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            NumberForm::Positive(integer) => i64::try_from(integer).ok(),
            NumberForm::Negative(integer) => Some(integer),
            NumberForm::Float(..) => None,
        }
    }

    /// The integer, if it fits.
    pub fn as_u64(&self) -> Option<u64> {
        if let NumberForm::Positive(integer) = self.0 { Some(integer) } else { None }
    }

    /// The nearest float; never `None`.
    pub fn as_f64(&self) -> Option<f64> {
        Some(match self.0 {
            NumberForm::Positive(integer) => integer as f64,
            NumberForm::Negative(integer) => integer as f64,
            NumberForm::Float(float, _) => float,
        })
    }

    /// Appends JSON: floats in the shortest form that round-trips, always with a point or an
    /// exponent.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self.0 {
            NumberForm::Positive(integer) => {
                out.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes())
            }
            NumberForm::Negative(integer) => {
                out.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes())
            }
            NumberForm::Float(float, _) => {
                out.extend_from_slice(zmij::Buffer::new().format_finite(float).as_bytes())
            }
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NumberForm::Positive(integer) => integer.fmt(formatter),
            NumberForm::Negative(integer) => integer.fmt(formatter),
            NumberForm::Float(float, _) => {
                formatter.write_str(zmij::Buffer::new().format_finite(float))
            }
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Number({self})")
    }
}

macro_rules! unsigned {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(integer: $integer) -> Self {
                Self(NumberForm::Positive(integer as u64))
            }
        }
    )*};
}

macro_rules! signed {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(integer: $integer) -> Self {
                Self(if integer < 0 { NumberForm::Negative(integer as i64) } else { NumberForm::Positive(integer as u64) })
            }
        }
    )*};
}

unsigned!(u8, u16, u32, u64, usize);
signed!(i8, i16, i32, i64, isize);
