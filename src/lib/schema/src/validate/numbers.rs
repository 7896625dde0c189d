//! Number bounds as in kube-apiserver's validator: bounds are floats, truncated to integers for
//! integer values.

use super::path::Path;
use super::values::ErrorCollector;
use crate::schema::{Kind, Schema};
use ferrokube_apimachinery::document::{Number, Value};
use ferrokube_apimachinery::field::Shown;

/// Largest float that counts as an integer in JSON.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;
/// Floats with a smaller relative difference are equal.
const EPSILON: f64 = 1e-9;

/// Floats that convert to an integer.
#[allow(clippy::cast_precision_loss, reason = "a power of two")]
const LIMITS: std::ops::Range<f64> = (i64::MIN as f64)..-(i64::MIN as f64);

/// A value with its JSON type.
#[derive(Clone, Copy)]
enum Given {
    Int(i64),
    Float(f64),
}

impl Given {
    fn of(number: Number) -> Self {
        match number.as_i64() {
            Some(integer) => Self::Int(integer),
            None => Self::Float(number.as_f64().unwrap_or_default()),
        }
    }

    fn as_float(self) -> f64 {
        match self {
            Self::Int(integer) => integer as f64,
            Self::Float(float) => float,
        }
    }

    /// The value in errors: a float if it was compared as one.
    fn value(self, number: Number) -> Value {
        match self {
            Self::Int(_) => Value::from(number),
            Self::Float(float) => Value::from(float),
        }
    }

    /// Compares with a bound, converted to the value's type.
    fn with(self, bound: f64) -> (std::cmp::Ordering, String) {
        match self {
            Self::Int(integer) => (integer.cmp(&truncate(bound)), truncate(bound).to_string()),
            Self::Float(float) => (float.total_cmp(&bound), bound.shown()),
        }
    }
}

impl Shown for Given {
    fn shown(&self) -> String {
        match self {
            Self::Int(integer) => integer.to_string(),
            Self::Float(float) => float.shown(),
        }
    }
}

/// A float as an integer; the smallest one if it does not fit.
pub(super) fn truncate(float: f64) -> i64 {
    if LIMITS.contains(&float) { float as i64 } else { i64::MIN }
}

/// Whether a float is within [`EPSILON`] of an integer.
pub(super) fn is_whole(float: f64) -> bool {
    if !(-MAX_EXACT..=MAX_EXACT).contains(&float) {
        return false;
    }
    let whole = float.trunc();
    let difference = (float - whole).abs();
    float == whole || (whole != 0.0 && difference / (float.abs() + whole.abs()) < EPSILON)
}

struct NumberCheck<'s, 'a, 'p> {
    collector: &'s mut ErrorCollector<'a>,
    schema: &'s Schema,
    path: &'s Path<'p>,
}

pub(super) fn check(
    collector: &mut ErrorCollector<'_>,
    schema: &Schema,
    number: Number,
    path: &Path<'_>,
) {
    collector.matched += 2;
    let given = Given::of(number);
    let mut check = NumberCheck { collector, schema, path };
    check.range(given, "Checked");
    let Some(checks) = schema.checks.as_deref() else { return };
    let bound = |bound: &Option<Number>| bound.as_ref().and_then(Number::as_f64);
    if let Some(step) = bound(&checks.multiple_of) {
        check.step(given, step);
    }
    if let Some(low) = bound(&checks.minimum) {
        let given = check.comparable(given, low, "Minimum boundary");
        let (order, shown) = given.with(low);
        if order.is_lt() || (checks.exclusive_minimum && order.is_eq()) {
            let or_equal = if checks.exclusive_minimum { "" } else { " or equal to" };
            check.collector.invalid(
                path,
                given.value(number),
                format_args!("should be greater than{or_equal} {shown}"),
            );
        }
    }
    if let Some(high) = bound(&checks.maximum) {
        let given = check.comparable(given, high, "Maximum boundary");
        let (order, shown) = given.with(high);
        if order.is_gt() || (checks.exclusive_maximum && order.is_eq()) {
            let or_equal = if checks.exclusive_maximum { "" } else { " or equal to" };
            check.collector.invalid(
                path,
                given.value(number),
                format_args!("should be less than{or_equal} {shown}"),
            );
        }
    }
}

impl NumberCheck<'_, '_, '_> {
    fn format(&self) -> &str {
        let format = self.schema.format.as_deref().unwrap_or_default();
        match self.schema.kind {
            Kind::Integer if matches!(format, "int32" | "int64") => format,
            Kind::Number if matches!(format, "float" | "double") => format,
            _ => "",
        }
    }

    /// Whether a value or bound is in the range of the type and format; reports it if not.
    fn range(&mut self, given: Given, what: &str) -> bool {
        let (format, value) = (self.format(), given.as_float());
        let (name, fits) = match self.schema.kind {
            Kind::Integer => {
                let whole = match given {
                    Given::Int(integer) => Some(integer),
                    Given::Float(float) => {
                        // The least integer is one only without a fraction, as in kube-apiserver.
                        let fits = float.fract() == 0.0 && LIMITS.contains(&float);
                        (fits && float > LIMITS.start).then_some(float as i64)
                    }
                };
                (
                    "integer",
                    whole.is_some_and(|whole| format != "int32" || i32::try_from(whole).is_ok()),
                )
            }
            Kind::Number => ("number", format != "float" || (value as f32).is_finite()),
            _ => return true,
        };
        if !fits {
            let format = if format.is_empty() {
                "(default format)".to_owned()
            } else {
                format!("with format {format}")
            };
            // Without a path, as kube-apiserver.
            self.collector.pathless(format_args!(
                "{what} value must be of type {name} {format} in {}",
                self.path
            ));
        }
        fits
    }

    /// The value to compare with a bound: a float if it is out of the type's range.
    fn comparable(&mut self, given: Given, bound: f64, what: &str) -> Given {
        if self.range(Given::Float(bound), what) { given } else { Given::Float(given.as_float()) }
    }

    fn step(&mut self, given: Given, step: f64) {
        let must_be_positive = |path: &Path<'_>, shown: &str| {
            format!("factor MultipleOf declared for {path} must be positive: {shown}")
        };
        match self.comparable(given, step, "MultipleOf") {
            Given::Int(value) => match truncate(step) {
                step if step <= 0 => self.collector.invalid_as(
                    self.path,
                    step,
                    &must_be_positive(self.path, &step.to_string()),
                ),
                step if value % step != 0 => self.collector.invalid(
                    self.path,
                    value,
                    format_args!("should be a multiple of {step}"),
                ),
                _ => {}
            },
            Given::Float(_) if step <= 0.0 => self.collector.invalid_as(
                self.path,
                step,
                &must_be_positive(self.path, &step.shown()),
            ),
            Given::Float(value) => {
                let times = if step < 1.0 { 1.0 / step * value } else { value / step };
                if !is_whole(times) {
                    self.collector.invalid(
                        self.path,
                        value,
                        format_args!("should be a multiple of {}", step.shown()),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_truncated_and_compared_as_in_kube_apiserver() {
        assert_eq!(
            [truncate(1.9), truncate(-1.9), truncate(1e30), truncate(-1e30)],
            [1, -1, i64::MIN, i64::MIN]
        );
        for (float, whole) in [
            (1.0, true),
            (1.5, false),
            (3.000_000_000_000_1, true),
            (1e16, false),
            (0.0, true),
            (0.000_1, false),
            (2.999_999_999_999_999, false),
        ] {
            assert_eq!(is_whole(float), whole, "{float}");
        }
    }
}
