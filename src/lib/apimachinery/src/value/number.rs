//! Numbers of JSON: integers are exact within 64 bits, everything else is a finite float.

use std::fmt;

/// A number of JSON. `1` and `1.0` are different numbers.
#[derive(Clone, Copy)]
pub struct Number(Form);

#[derive(Clone, Copy)]
enum Form {
    Positive(u64),
    /// Below zero.
    Negative(i64),
    /// Finite; how it was written, if with an exponent.
    Float(f64, Option<Exponent>),
}

/// How a float was written: quantities keep that.
#[derive(Clone, Copy)]
struct Exponent {
    power: i16,
    /// Digits after the point.
    fraction: u8,
    is_upper: bool,
    has_plus: bool,
}

impl Exponent {
    /// Most digits that a float gives back as they were.
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
            (Form::Positive(one), Form::Positive(other)) => one == other,
            (Form::Negative(one), Form::Negative(other)) => one == other,
            (Form::Float(one, _), Form::Float(other, _)) => one == other,
            _ => false,
        }
    }
}

impl Number {
    /// A float; `None` for infinities and NaN, which JSON cannot say.
    pub fn from_f64(float: f64) -> Option<Self> {
        float.is_finite().then_some(Self(Form::Float(float, None)))
    }

    /// A float with the text that it was read from.
    pub(crate) fn of_text(float: f64, text: &str) -> Option<Self> {
        float.is_finite().then(|| Self(Form::Float(float, Exponent::read(text))))
    }

    /// As it was written if that was short and with an exponent; otherwise as Go's encoder writes
    /// it.
    pub fn as_written(&self) -> String {
        match self.0 {
            Form::Float(float, exponent) => exponent
                .and_then(|exponent| exponent.write(float))
                .unwrap_or_else(|| match float.abs() {
                    1e21.. => format!("{float:e}").replace('e', "e+"),
                    size if size < 1e-6 && size > 0.0 => format!("{float:e}"),
                    _ => float.to_string(),
                }),
            _ => self.to_string(),
        }
    }

    /// Forgets how it was written.
    pub fn forget_text(&mut self) {
        if let Form::Float(_, exponent) = &mut self.0 {
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
        matches!(self.0, Form::Float(..))
    }

    /// The integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Form::Positive(integer) => i64::try_from(integer).ok(),
            Form::Negative(integer) => Some(integer),
            Form::Float(..) => None,
        }
    }

    /// The integer, if it fits.
    pub fn as_u64(&self) -> Option<u64> {
        if let Form::Positive(integer) = self.0 { Some(integer) } else { None }
    }

    /// As a float, the nearest one to a large integer; never `None`.
    pub fn as_f64(&self) -> Option<f64> {
        Some(match self.0 {
            Form::Positive(integer) => integer as f64,
            Form::Negative(integer) => integer as f64,
            Form::Float(float, _) => float,
        })
    }

    /// Appends it as JSON: floats in the shortest form that reads back the same, always with a
    /// point or an exponent.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self.0 {
            Form::Positive(integer) => {
                out.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes())
            }
            Form::Negative(integer) => {
                out.extend_from_slice(itoa::Buffer::new().format(integer).as_bytes())
            }
            Form::Float(float, _) => {
                out.extend_from_slice(zmij::Buffer::new().format_finite(float).as_bytes())
            }
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Form::Positive(integer) => integer.fmt(formatter),
            Form::Negative(integer) => integer.fmt(formatter),
            Form::Float(float, _) => formatter.write_str(zmij::Buffer::new().format_finite(float)),
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
                Self(Form::Positive(integer as u64))
            }
        }
    )*};
}

macro_rules! signed {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(integer: $integer) -> Self {
                Self(if integer < 0 { Form::Negative(integer as i64) } else { Form::Positive(integer as u64) })
            }
        }
    )*};
}

unsigned!(u8, u16, u32, u64, usize);
signed!(i8, i16, i32, i64, isize);
