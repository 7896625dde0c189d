//! Medians and their confidence intervals.

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    /// Median.
    pub(crate) median: f64,
    /// Lower bound.
    pub(crate) low: f64,
    /// Upper bound.
    pub(crate) high: f64,
}

impl Spread {
    /// From the values of all rounds. The bounds are the closest pair of values, by rank, that
    /// contains the true median with at least 93 % (sign test): for 5 rounds the lowest and the
    /// highest (93.8 %), for 10 the second from each end (97.9 %). Makes no assumption about the
    /// distribution.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        let middle = (values[last / 2] + values[values.len() / 2]) / 2.0;
        let skip = skipped(values.len());
        Self { median: middle, low: values[skip], high: values[last - skip] }
    }
}

/// Number of values to drop at each end.
fn skipped(count: usize) -> usize {
    let (mut tail, mut binomial, mut skip) = (0.0, 1.0, 0);
    for rank in 0..count / 2 {
        tail += binomial / 2f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
        if 2.0 * tail > 0.07 {
            break;
        }
        skip = rank;
        binomial *= (count - rank) as f64 / (rank + 1) as f64;
    }
    skip
}

/// Ratio of two targets, round by round, since noise in a round affects both.
pub(crate) fn ratio(values: &[f64], first: &[f64]) -> Spread {
    Spread::of(values.iter().zip(first).map(|(value, first)| value / first).collect())
}
