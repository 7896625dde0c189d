//! Limits the recorded refusals: some per caller, so that every caller is seen and no flood fills
//! the log.

use super::line::truncate_utf8;
use crate::clock_cache::ClockCache;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Annotation: the number of refusals of this caller left out since the last recorded one.
pub const LEFT_OUT: &str = "audit.ferrokube.io/left-out";

/// Budget of each caller.
const PER_CALLER: Allowance = Allowance { burst: 60, each: Duration::from_secs(1) };
/// Budget of all callers: at most 1.7 million a day, about as many kilobytes.
const ALL_CALLERS: Allowance = Allowance { burst: 600, each: Duration::from_millis(50) };
/// Extra budget, once [`ALL_CALLERS`] is used up, for callers without a recorded refusal in
/// [`QUIET_TIME`]: persistent offenders cannot hide a new one.
const QUIET_CALLERS: Allowance = Allowance { burst: 60, each: Duration::from_secs(10) };
/// See [`QUIET_CALLERS`].
const QUIET_TIME: Duration = Duration::from_secs(10 * 60);
/// Max remembered callers. Beyond it the counts of one of them are reset; the total budget still
/// holds.
const MAX_CALLERS: usize = 4_096;
/// Callers are distinguished by this many bytes of their names.
const MAX_NAME: usize = 256;

struct Allowance {
    burst: u32,
    /// Time to regain one.
    each: Duration,
}

/// A token bucket, as the time at which it will be full again.
#[derive(Clone, Copy)]
struct Bucket {
    full_at: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    fn has(&self, allowance: &Allowance, now: Instant) -> bool {
        self.full_at.saturating_duration_since(now) + allowance.each
            <= allowance.each * allowance.burst
    }

    /// Takes a token, if there is one.
    fn take(&mut self, allowance: &Allowance, now: Instant) -> bool {
        let has_one = self.has(allowance, now);
        if has_one {
            self.full_at = self.full_at.max(now) + allowance.each;
        }
        has_one
    }
}

struct Caller {
    bucket: Bucket,
    recorded: Option<Instant>,
    left_out: u64,
}

struct RefusalCounts {
    all: Option<Bucket>,
    first: Option<Bucket>,
    callers: ClockCache<Arc<str>, Caller>,
}

/// The buckets.
pub(super) struct Refusals(Mutex<RefusalCounts>);

impl Default for Refusals {
    fn default() -> Self {
        let callers = ClockCache::new(MAX_CALLERS);
        Self(Mutex::new(RefusalCounts { all: None, first: None, callers }))
    }
}

impl Refusals {
    /// Whether to record one more refusal of this caller; if so, how many were left out before.
    pub(super) fn admit(&self, caller: &str, now: Instant) -> Option<u64> {
        let state = &mut *self.0.lock();
        let name = truncate_utf8(caller, MAX_NAME);
        if state.callers.get(name).is_none() {
            state.callers.insert(
                name.into(),
                Caller { bucket: Bucket::new(now), recorded: None, left_out: 0 },
            );
        }
        let caller = state.callers.get_mut(name)?;
        let is_first =
            caller.recorded.is_none_or(|at| now.saturating_duration_since(at) >= QUIET_TIME);
        let allowances =
            [(&mut state.all, &ALL_CALLERS, true), (&mut state.first, &QUIET_CALLERS, is_first)];
        let has_one = caller.bucket.has(&PER_CALLER, now)
            && allowances.into_iter().any(|(bucket, allowance, is_open)| {
                is_open && bucket.get_or_insert_with(|| Bucket::new(now)).take(allowance, now)
            });
        if !has_one {
            caller.left_out += 1;
            return None;
        }
        caller.bucket.take(&PER_CALLER, now);
        caller.recorded = Some(now);
        Some(std::mem::take(&mut caller.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_callers_flood_is_counted_and_hides_no_other_caller() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let recorded = (0..10_000).filter(|_| refusals.admit("one", now).is_some()).count();
        assert_eq!(recorded, 60);
        assert_eq!(refusals.admit("other", now), Some(0));
        assert_eq!(refusals.admit("one", now + Duration::from_secs(1)), Some(9_940));
        assert_eq!(refusals.admit("one", now + Duration::from_secs(1)), None);
        let later = now + Duration::from_secs(3_600);
        assert_eq!(
            (0..10_000).filter(|_| refusals.admit("one", later).is_some()).count(),
            60,
            "the burst is the maximum"
        );
    }

    #[test]
    fn a_quiet_caller_is_recorded_when_the_total_budget_is_used_up() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let flood = |now| {
            (0..20_u32)
                .filter(|number| refusals.admit(&format!("account-{number}"), now).is_some())
                .count()
        };
        let mut now = begin;
        for _ in 0..3_600 {
            // A second's worth of refusals each, spread over it.
            for _ in 0..4 {
                now += Duration::from_millis(250);
                flood(now);
            }
        }
        for (caller, at) in [("jane", now), ("joe", now), ("jane", now + QUIET_TIME)] {
            while flood(at) > 0 {}
            assert!(refusals.admit(caller, at).is_some(), "{caller}");
        }
    }

    #[test]
    fn a_flood_from_many_callers_is_bounded_in_records_and_memory() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let recorded = (0..100_000)
            .filter(|number| refusals.admit(&number.to_string(), now).is_some())
            .count();
        assert_eq!(recorded, 600 + 60);
        assert!(refusals.0.lock().callers.len() <= MAX_CALLERS);
        let day = (0..86_400).map(|second| now + Duration::from_secs(second));
        let recorded: usize = day
            .map(|at| {
                (0..30).filter(|number| refusals.admit(&number.to_string(), at).is_some()).count()
            })
            .sum();
        assert!(recorded <= 20 * 86_400 + 600 + 86_400 / 10 + 60, "{recorded}");
    }
}
