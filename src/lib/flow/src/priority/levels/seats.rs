//! How many seats each level has.

use super::super::allocation::{Claim, DemandFigures, count, divide, number};
use super::super::config::Discipline;
use super::super::level::Level;
use super::super::stats::LevelFigures;
use super::LevelEntry;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelSeats {
    /// Share of the server's seats.
    pub(super) nominal: usize,
    /// Without those that others may use.
    lower: usize,
    /// Including borrowed seats.
    upper: usize,
    /// As of the last adjustment; `None` before.
    current: Option<usize>,
    demand: DemandFigures,
    target: f64,
}

impl LevelSeats {
    pub(super) fn figures(&self, name: &str, level: &Level) -> LevelFigures {
        let demand = &self.demand;
        let (utilization, virtual_time) = level.course();
        LevelFigures {
            name: name.to_owned(),
            limits: [self.nominal, self.lower, self.upper, self.current.unwrap_or(0)],
            demand: [
                demand.high_watermark,
                demand.average,
                demand.deviation,
                demand.smoothed,
                self.target,
            ],
            utilization,
            virtual_time,
        }
    }
}

/// Divides the server's seats by shares, rounded up.
pub(super) fn share_out(levels: &mut BTreeMap<String, LevelEntry>, server: usize) {
    let shares: f64 = levels.values().map(|entry| f64::from(entry.config.shares)).sum();
    for entry in levels.values_mut() {
        let part = f64::from(entry.config.shares) / shares.max(1.0);
        let nominal = (number(server) * part).ceil() as usize;
        let percent = |percent: u32| count(number(nominal) * f64::from(percent) / 100.0);
        entry.seats.nominal = nominal;
        // Only a level that lends all of its seats has none of its own, however few they are:
        // otherwise its requests would wait for the next adjustment.
        let keeps_one = nominal > 0 && entry.config.lendable_percent < 100;
        let lent = percent(entry.config.lendable_percent).min(nominal);
        entry.seats.lower = (nominal - lent).max(usize::from(keeps_one));
        entry.seats.upper = nominal + entry.config.borrowing_percent.map_or(server, percent);
    }
}

/// Sets the seats of all levels by their demand since the last call. Returns the satisfied fraction
/// of demand. Seats used by exempt requests reduce those of other levels.
pub(super) fn adjust(levels: &mut BTreeMap<String, LevelEntry>) -> f64 {
    let mut remaining: usize = levels.values().map(|entry| entry.seats.nominal).sum();
    let total = remaining;
    let (mut lowers, mut wanted, mut claims) = (0, 0, Vec::new());
    for entry in levels.values_mut() {
        let seats = &mut entry.seats;
        seats.demand = entry.level.end_period(seats.demand);
        let high = count(seats.demand.high_watermark);
        if entry.config.discipline == Discipline::Exempt {
            let used = seats.lower.max(high);
            remaining = remaining.saturating_sub(used);
            seats.target = number(used);
            continue;
        }
        let least = seats.lower.max(seats.nominal.min(high));
        seats.target = number(least).max(seats.demand.smoothed);
        lowers += seats.lower;
        wanted += least;
        claims.push(Claim {
            lower: number(least),
            upper: number(seats.upper),
            target: seats.target,
        });
    }
    let divided = (remaining > wanted).then(|| divide(number(total), &claims)).flatten();
    let part = match remaining.saturating_sub(lowers) {
        0 => 0.0,
        rest => number(rest) / number((wanted - lowers).max(1)),
    };
    let mut next = 0;
    for entry in levels.values_mut() {
        let seats = &mut entry.seats;
        let current = if entry.config.discipline == Discipline::Exempt {
            count(seats.target)
        } else {
            let (at, claim) = (next, claims[next]);
            next += 1;
            match &divided {
                Some((given, _)) => count(given[at]),
                None if remaining > wanted => seats.current.unwrap_or(seats.nominal),
                None => {
                    let lower = number(seats.lower);
                    count((claim.lower - lower).mul_add(part.min(1.0), lower))
                }
            }
        };
        seats.current = Some(current);
        entry.level.reconfigure(entry.config.discipline, current, seats.nominal);
    }
    divided.map_or(0.0, |(_, fraction)| fraction)
}
