//! Numbers of JSON: integers are exact within 64 bits, everything else is a finite float.

use std::fmt;

/// A number of JSON. `1` and `1.0` are different numbers.
#[derive(Clone, Copy, PartialEq)]
pub struct Number(Form);

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Positive(u64),
    /// Below zero.
    Negative(i64),
    /// Finite.
    Float(f64),
}

impl Number {
    /// A float; `None` for infinities and NaN, which JSON cannot say.
    pub fn from_f64(float: f64) -> Option<Self> {
        float.is_finite().then_some(Self(Form::Float(float)))
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
        matches!(self.0, Form::Float(_))
    }

    /// The integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Form::Positive(integer) => i64::try_from(integer).ok(),
            Form::Negative(integer) => Some(integer),
            Form::Float(_) => None,
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
            Form::Float(float) => float,
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
            Form::Float(float) => {
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
            Form::Float(float) => formatter.write_str(zmij::Buffer::new().format_finite(float)),
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
