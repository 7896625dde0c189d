//! Division of the server's seats among levels by demand.

/// A level's claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Claim {
    /// Seats that it keeps in any case.
    pub(super) lower: f64,
    /// Seats that it may have at most.
    pub(super) upper: f64,
    /// Demand, at least `lower`.
    pub(super) target: f64,
}

/// A level without demand still gets a part of unwanted seats.
const MIN_TARGET: f64 = 0.001;

/// Seats of each claim: the same fraction of each target, as far as the bounds allow, in sum
/// `seats`; and that fraction. `None` if the bounds do not allow that sum.
pub(super) fn divide(seats: f64, claims: &[Claim]) -> Option<(Vec<f64>, f64)> {
    let given = |fraction: f64| {
        claims.iter().map(move |claim| {
            (fraction * claim.target.max(MIN_TARGET)).max(claim.lower).min(claim.upper)
        })
    };
    let all = |of: fn(&Claim) -> f64| claims.iter().map(of).sum::<f64>();
    let is_possible = all(|claim| claim.lower) <= seats && seats <= all(|claim| claim.upper);
    if claims.is_empty() || !is_possible {
        return None;
    }
    // The sum grows with the fraction, which at most fills the hungriest level.
    let (mut low, mut high) = (0.0, 1.0);
    while given(high).sum::<f64>() < seats && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if given(middle).sum::<f64>() < seats { low = middle } else { high = middle }
    }
    Some((given(high).collect(), high))
}

/// Demand of a level over time: its seats in use and wanted, weighted by how long they were so.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    current: f64,
    max: f64,
    seconds: f64,
    /// Integral of the demand, and of its square.
    moments: [f64; 2],
}

/// Demand in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DemandFigures {
    pub(super) average: f64,
    pub(super) deviation: f64,
    pub(super) high_watermark: f64,
    /// Follows rises immediately, and decays with a half-life of five minutes.
    pub(super) smoothed: f64,
}

/// Weight of the past after [`SMOOTHED_SECONDS`].
const SMOOTHING: f64 = 0.977;
/// The period of kube-apiserver's adjustments.
const SMOOTHED_SECONDS: f64 = 10.0;

impl Demand {
    /// Adds a time span in which the demand was constant.
    pub(super) fn passed(&mut self, seconds: f64) {
        self.seconds += seconds;
        self.moments[0] += self.current * seconds;
        self.moments[1] += self.current * self.current * seconds;
    }

    pub(super) fn set(&mut self, demand: usize) {
        self.current = number(demand);
        self.max = self.max.max(self.current);
    }

    /// Figures of the period that ends now.
    pub(super) fn end(&mut self, before: DemandFigures) -> DemandFigures {
        let (seconds, [first, second], max) = (self.seconds, self.moments, self.max);
        *self = Self { current: self.current, max: self.current, ..Self::default() };
        if seconds <= 0.0 {
            return DemandFigures { high_watermark: max, ..before };
        }
        let average = first / seconds;
        let deviation = (second / seconds - average * average).max(0.0).sqrt();
        let envelope = average + deviation;
        let weight = SMOOTHING.powf(seconds / SMOOTHED_SECONDS);
        let faded = weight.mul_add(before.smoothed, (1.0 - weight) * envelope);
        let smoothed = envelope.max(faded);
        DemandFigures { average, deviation, high_watermark: max, smoothed }
    }
}

/// A count as a float.
pub(super) fn number(count: usize) -> f64 {
    count as f64
}

/// A rounded number of seats.
pub(super) fn count(seats: f64) -> usize {
    seats.max(0.0).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seats: f64, claims: &[[f64; 3]], want: &[f64]) {
        let claims: Vec<Claim> = claims
            .iter()
            .map(|[lower, upper, target]| Claim { lower: *lower, upper: *upper, target: *target })
            .collect();
        let (given, _) = divide(seats, &claims).unwrap();
        let is_near = |(given, want): (&f64, &f64)| (given - want).abs() < 1e-6;
        assert!(given.iter().zip(want).all(is_near), "{given:?}");
    }

    #[test]
    fn seats_follow_demand_within_bounds() {
        check(100.0, &[[0.0, 100.0, 30.0], [0.0, 100.0, 20.0]], &[60.0, 40.0]);
        check(100.0, &[[50.0, 100.0, 50.0], [0.0, 100.0, 150.0]], &[50.0, 50.0]);
        check(
            100.0,
            &[[0.0, 30.0, 60.0], [0.0, 100.0, 20.0], [0.0, 100.0, 20.0]],
            &[30.0, 35.0, 35.0],
        );
        check(10.0, &[[4.0, 9.0, 4.0], [6.0, 9.0, 9.0]], &[4.0, 6.0]);
        assert_eq!(divide(10.0, &[Claim { lower: 11.0, upper: 12.0, target: 11.0 }]), None);
        assert_eq!(divide(10.0, &[Claim { lower: 0.0, upper: 9.0, target: 1.0 }]), None);
        assert_eq!(divide(10.0, &[]), None);
    }

    #[test]
    fn an_idle_level_lends_and_gets_its_seats_back() {
        // Nominally 50 each; half of the first one's may be lent.
        check(100.0, &[[25.0, 150.0, 25.0], [50.0, 150.0, 200.0]], &[25.0, 75.0]);
        check(100.0, &[[50.0, 150.0, 200.0], [50.0, 150.0, 200.0]], &[50.0, 50.0]);
    }

    #[test]
    fn demand_is_weighted_by_time() {
        let mut demand = Demand::default();
        demand.set(10);
        demand.passed(1.0);
        demand.set(0);
        demand.passed(1.0);
        let figures = demand.end(DemandFigures::default());
        assert_eq!((figures.average, figures.deviation, figures.high_watermark), (5.0, 5.0, 10.0));
        assert!((figures.smoothed - 10.0).abs() < 1e-9);
        demand.passed(10.0);
        let later = demand.end(figures);
        assert_eq!((later.average, later.high_watermark), (0.0, 0.0));
        assert!((later.smoothed - 9.77).abs() < 1e-9, "{later:?}");
        let mut faded = figures;
        for _ in 0..20 {
            demand.passed(0.5);
            faded = demand.end(faded);
        }
        assert!((faded.smoothed - 9.77).abs() < 1e-9, "by time, not by periods: {faded:?}");
    }
}
