//! How many refusals are recorded: some of each caller, so that everybody who knocks is seen, and
//! no flood of knocks.

use super::line::cut;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The annotation with the number of refusals of the same caller that were left out since the last
/// recorded one.
pub const LEFT_OUT: &str = "audit.ferrokube.io/left-out";

/// Of one caller: so many at once, then one each second.
const OF_ONE: Allowance = Allowance { burst: 60, each: Duration::from_secs(1) };
/// Of all callers: 1.7 million a day at most, about as many kilobytes.
const OF_ALL: Allowance = Allowance { burst: 600, each: Duration::from_millis(50) };
/// Of callers of whom nothing was recorded for long, when that of all is used up: twenty callers
/// who knock for good hide nobody.
const OF_FIRST: Allowance = Allowance { burst: 60, each: Duration::from_secs(10) };
/// How long.
const QUIET: Duration = Duration::from_secs(10 * 60);
/// Most callers that are remembered; the counts of all start anew beyond it, and the allowance of
/// all together holds still.
const MAX_CALLERS: usize = 4_096;
/// Longest part of a caller's name that tells it from others.
const MAX_NAME: usize = 256;

struct Allowance {
    burst: u32,
    /// Until there is one more.
    each: Duration,
}

/// What is left of an allowance, as the time at which all of it will be there again.
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

    /// Takes one, if there is any.
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

#[derive(Default)]
struct State {
    all: Option<Bucket>,
    first: Option<Bucket>,
    callers: HashMap<Box<str>, Caller>,
}

/// The allowances.
#[derive(Default)]
pub(super) struct Refusals(Mutex<State>);

impl Refusals {
    /// Whether one more refusal of this caller is recorded; if so, how many were left out before.
    pub(super) fn admit(&self, caller: &str, now: Instant) -> Option<u64> {
        let state = &mut *self.0.lock().expect("no panic while held");
        let name = cut(caller, MAX_NAME);
        if state.callers.len() >= MAX_CALLERS && !state.callers.contains_key(name) {
            state.callers.clear();
        }
        if !state.callers.contains_key(name) {
            state.callers.insert(
                name.into(),
                Caller { bucket: Bucket::new(now), recorded: None, left_out: 0 },
            );
        }
        let caller = state.callers.get_mut(name)?;
        let is_first = caller.recorded.is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        let allowances = [(&mut state.all, &OF_ALL, true), (&mut state.first, &OF_FIRST, is_first)];
        let has_one = caller.bucket.has(&OF_ONE, now)
            && allowances.into_iter().any(|(bucket, allowance, is_open)| {
                is_open && bucket.get_or_insert_with(|| Bucket::new(now)).take(allowance, now)
            });
        if !has_one {
            caller.left_out += 1;
            return None;
        }
        caller.bucket.take(&OF_ONE, now);
        caller.recorded = Some(now);
        Some(std::mem::take(&mut caller.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_hides_nobody_else_and_is_counted() {
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
            "what was not used is not saved up"
        );
    }

    #[test]
    fn callers_who_use_up_what_all_have_hide_nobody_who_was_quiet() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let flood = |now| {
            (0..20_u32)
                .filter(|number| refusals.admit(&format!("account-{number}"), now).is_some())
                .count()
        };
        let mut now = begin;
        for _ in 0..3_600 {
            // A second's worth of each, spread over it.
            for _ in 0..4 {
                now += Duration::from_millis(250);
                flood(now);
            }
        }
        for (caller, at) in [("jane", now), ("joe", now), ("jane", now + QUIET)] {
            while flood(at) > 0 {}
            assert!(refusals.admit(caller, at).is_some(), "{caller}");
        }
    }

    #[test]
    fn a_flood_of_many_is_bounded_and_so_is_what_is_remembered() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let recorded = (0..100_000)
            .filter(|number| refusals.admit(&number.to_string(), now).is_some())
            .count();
        assert_eq!(recorded, 600 + 60);
        assert!(refusals.0.lock().expect("lock").callers.len() <= MAX_CALLERS);
        let day = (0..86_400).map(|second| now + Duration::from_secs(second));
        let recorded: usize = day
            .map(|at| {
                (0..30).filter(|number| refusals.admit(&number.to_string(), at).is_some()).count()
            })
            .sum();
        assert!(recorded <= 20 * 86_400 + 600 + 86_400 / 10 + 60, "{recorded}");
    }
}
