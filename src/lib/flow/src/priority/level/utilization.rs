//! Utilization of a level over time: histograms of ratios, weighted by nanoseconds.

use super::super::allocation::number;
use super::super::config::Discipline;
use super::super::stats::RatioHistogram;
use super::queues::Totals;

/// Upper bounds of the seats held, as a fraction of the level's.
pub const SEAT_BOUNDS: [f64; 13] =
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// Upper bounds of requests, as a fraction of the seats or of the room in queues.
pub const REQUEST_BOUNDS: [f64; 10] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
/// Upper bounds of the seats wanted, as a fraction of the nominal ones.
pub const DEMAND_BOUNDS: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// Histograms of a level.
#[derive(Clone, Debug, Default)]
pub struct Utilization {
    /// Seats held, by [`SEAT_BOUNDS`].
    pub seats: RatioHistogram,
    /// Requests that wait, and those that have seats, by [`REQUEST_BOUNDS`].
    pub requests: [RatioHistogram; 2],
    /// Seats held and wanted, by [`DEMAND_BOUNDS`].
    pub demand: RatioHistogram,
}

/// Seats that the ratios refer to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    pub(super) limit: usize,
    pub(super) nominal: usize,
    pub(super) discipline: Discipline,
}

impl Utilization {
    /// Adds a time span in which the totals were constant.
    pub(super) fn passed(&mut self, nanoseconds: u64, totals: &Totals, capacity: Capacity) {
        let Capacity { limit, nominal, discipline } = capacity;
        let room = match discipline {
            Discipline::Queue { queues, length, .. } => queues as usize * length as usize,
            _ => 0,
        };
        let part = |count: usize, whole: usize| number(count) / number(whole.max(1));
        let wanted = totals.seats + totals.seats_waiting;
        self.seats.observe(&SEAT_BOUNDS, part(totals.seats, limit), nanoseconds);
        let [waiting, executing] = &mut self.requests;
        waiting.observe(&REQUEST_BOUNDS, part(totals.waiting, room), nanoseconds);
        executing.observe(&REQUEST_BOUNDS, part(totals.executing, limit), nanoseconds);
        self.demand.observe(&DEMAND_BOUNDS, part(wanted, nominal), nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_weighted_by_time() {
        let mut utilization = Utilization::default();
        let discipline = Discipline::Queue { queues: 2, hand: 1, length: 50 };
        let capacity = Capacity { limit: 10, nominal: 5, discipline };
        utilization.passed(100, &Totals::default(), capacity);
        let totals =
            Totals { waiting: 1, executing: 5, seats: 10, seats_waiting: 1, ..Totals::default() };
        utilization.passed(7, &totals, capacity);
        let Utilization { seats, requests: [waiting, executing], demand } = utilization;
        assert_eq!((seats.weights[0], seats.weights[12], seats.sum), (100, 7, 7.0));
        assert_eq!((waiting.weights[0], waiting.weights[3]), (100, 7), "one of a hundred");
        assert_eq!((executing.weights[0], executing.weights[7]), (100, 7));
        assert_eq!((demand.weights[0], demand.weights[9]), (100, 7), "2.2 times the nominal");
    }
}
