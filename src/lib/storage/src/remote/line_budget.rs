//! Bounds what other programs make this one log.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Lines in a period; further ones are counted.
const LINES: u32 = 16;
const PERIOD: Duration = Duration::from_secs(60);

/// Limits the log lines about what other programs write, which may be at any rate.
#[derive(Default)]
pub struct LineBudget(Mutex<Spent>);

#[derive(Default)]
struct Spent {
    /// Start of the period.
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LineBudget {
    /// Takes a line, which is to show how many were left out before it; `None`: it is left out.
    pub fn take(&self) -> Option<u64> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Option<u64> {
        let mut spent = self.0.lock();
        if spent.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD) {
            (spent.since, spent.lines) = (Some(now), 0);
        }
        if spent.lines >= LINES {
            spent.left_out += 1;
            return None;
        }
        spent.lines += 1;
        Some(std::mem::take(&mut spent.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_period_are_bounded_and_the_others_counted() {
        let (budget, begin) = (LineBudget::default(), Instant::now());
        let later = begin + PERIOD;
        let lines = |at: Instant| (0..1000).filter_map(|_| budget.take_at(at)).collect::<Vec<_>>();
        assert_eq!(lines(begin), [0; LINES as usize]);
        assert!(lines(later - Duration::from_millis(1)).is_empty());
        let next = lines(later);
        assert_eq!((next.len(), next[0]), (LINES as usize, 2000 - u64::from(LINES)));
        assert!(next[1..].iter().all(|left_out| *left_out == 0));
    }
}
