//! Retry-After of rejected requests: doubled while a level keeps rejecting, then shortened second
//! by second.

use std::collections::VecDeque;
use tokio::time::{Duration, Instant};

/// Seconds.
const MAX_DELAY: u64 = 32;
/// Rejections per second of the delay that double it.
const OVERLOAD: u64 = 3;

#[derive(Debug)]
pub(super) struct RetryAfter {
    since: Instant,
    delay: u64,
    doubled: Option<u64>,
    /// Rejections of the current second and of earlier ones, newest last.
    counts: VecDeque<(u64, u64)>,
}

impl RetryAfter {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, delay: 1, doubled: None, counts: VecDeque::new() }
    }

    /// Records a rejection; the delay in seconds.
    pub(super) fn rejected(&mut self, now: Instant) -> u32 {
        let second = now.saturating_duration_since(self.since).as_secs();
        match self.counts.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => {
                self.adjust(second);
                self.counts.push_back((second, 1));
            }
        }
        u32::try_from(self.delay).unwrap_or(1)
    }

    /// A new second begins.
    fn adjust(&mut self, second: u64) {
        while self.counts.front().is_some_and(|(old, _)| second - old > MAX_DELAY) {
            self.counts.pop_front();
        }
        let recent = self.counts.iter().filter(|(old, _)| second - old <= self.delay);
        let recent: u64 = recent.map(|(_, count)| count).sum();
        let may_double = self.doubled.is_none_or(|doubled| second - doubled >= self.delay);
        if may_double && recent >= OVERLOAD * self.delay {
            self.delay = (2 * self.delay).min(MAX_DELAY);
            self.doubled = Some(second);
        } else if recent < self.delay && self.delay > 1 {
            self.delay -= 1;
        }
    }
}

/// Max wait for a seat: a fraction of the request's timeout.
pub(super) fn max_wait(timeout: Duration) -> Duration {
    (timeout / 4).min(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_the_rejections() {
        let start = Instant::now();
        let mut tracker = RetryAfter::new(start);
        let mut second = 0;
        let mut next = |count: u64, tracker: &mut RetryAfter| {
            second += 1;
            let now = start + Duration::from_secs(second);
            (0..count).map(|_| tracker.rejected(now)).last().unwrap_or(0)
        };
        assert_eq!(next(2, &mut tracker), 1);
        assert_eq!(next(100, &mut tracker), 1, "two in a second are few");
        assert_eq!(next(100, &mut tracker), 2);
        assert_eq!(next(100, &mut tracker), 2, "not twice for one spike");
        assert_eq!(next(100, &mut tracker), 4);
        for _ in 0..100 {
            next(100, &mut tracker);
        }
        assert_eq!(next(100, &mut tracker), 32);
        for _ in 0..100 {
            next(0, &mut tracker);
        }
        assert_eq!(next(1, &mut tracker), 31);
    }

    #[test]
    fn a_quarter_of_the_time_is_for_waiting() {
        assert_eq!(max_wait(Duration::from_secs(60)), Duration::from_secs(15));
        assert_eq!(max_wait(Duration::from_secs(600)), Duration::from_secs(60));
    }
}
