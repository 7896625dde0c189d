//! Medians and their intervals.

/// A median and the interval that holds the true one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    /// The middle value.
    pub(crate) median: f64,
    /// Lower end of the interval.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

impl Spread {
    /// Of the rounds' values. The interval is made of two of them, by rank, the narrowest that holds the true median with at least 93 % (sign test):
    /// for 5 rounds the lowest and the highest (93.8 %), for 10 the second from each end (97.9 %). Nothing is assumed about the distribution.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        let middle = (values[last / 2] + values[values.len() / 2]) / 2.0;
        let skip = skipped(values.len());
        Self { median: middle, low: values[skip], high: values[last - skip] }
    }
}

/// How many values may be dropped at each end.
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

/// Of the ratios of two targets, round by round: what disturbs a round disturbs both.
pub(crate) fn ratio(values: &[f64], first: &[f64]) -> Spread {
    Spread::of(values.iter().zip(first).map(|(value, first)| value / first).collect())
}
