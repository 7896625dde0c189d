//! Worker time used by each caller. Costs are only estimated before a computation; a caller whose
//! computations took long continues in slots while there are other callers.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Shorter polls are not counted.
const COUNTED: Duration = Duration::from_micros(500);
/// Debt from which on a caller's requests are polled in slots.
const MAX_DEBT: Duration = Duration::from_millis(5);
/// A debt falls by this part of the time that passes.
const REPAID: u32 = 10;
/// A caller is alone if no other sent a request for this long.
const ALONE: Duration = Duration::from_millis(50);
/// Number of callers from which on those without a debt are dropped.
const REMEMBERED: usize = 1024;

/// Debts of the callers that had long polls lately.
pub(super) struct WorkerUsage {
    debts: Mutex<BTreeMap<u64, Debt>>,
    /// Number of debts, to be read without the lock.
    count: AtomicUsize,
    /// Caller of the last request, and when another caller's came before it, in milliseconds.
    last: AtomicU64,
    switched_ms: AtomicU64,
}

/// Thread on which a request is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollPlan {
    /// On a worker; it delays no other caller.
    Alone,
    /// On a worker, its polls counted.
    Counted,
    Slot,
}

struct Debt {
    taken: Duration,
    at: Instant,
}

impl Debt {
    fn left(&self, now: Instant) -> Duration {
        self.taken.saturating_sub(now.saturating_duration_since(self.at) / REPAID)
    }
}

impl WorkerUsage {
    pub(super) const fn new() -> Self {
        Self {
            debts: Mutex::new(BTreeMap::new()),
            count: AtomicUsize::new(0),
            last: AtomicU64::new(u64::MAX),
            switched_ms: AtomicU64::new(0),
        }
    }

    /// Notes a request of a caller and decides where it is polled.
    pub(super) fn begin(&self, caller: u64, now_ms: u64) -> PollPlan {
        if self.last.load(Ordering::Relaxed) != caller {
            self.last.store(caller, Ordering::Relaxed);
            self.switched_ms.store(now_ms, Ordering::Relaxed);
        }
        let since = now_ms.saturating_sub(self.switched_ms.load(Ordering::Relaxed));
        if u128::from(since) >= ALONE.as_millis() {
            return PollPlan::Alone;
        }
        let owes = self.count.load(Ordering::Relaxed) > 0 && self.owes(caller, Instant::now());
        if owes { PollPlan::Slot } else { PollPlan::Counted }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Debt>> {
        self.debts.lock()
    }

    fn owes(&self, caller: u64, now: Instant) -> bool {
        let mut debts = self.lock();
        let Some(left) = debts.get(&caller).map(|debt| debt.left(now)) else { return false };
        if left.is_zero() {
            debts.remove(&caller);
            self.count.store(debts.len(), Ordering::Relaxed);
        }
        left > MAX_DEBT
    }

    /// Counts a poll on a worker.
    pub(super) fn polled(&self, caller: u64, took: Duration) {
        if took >= COUNTED {
            self.charge(caller, took, Instant::now());
        }
    }

    fn charge(&self, caller: u64, took: Duration, now: Instant) {
        let mut debts = self.lock();
        if debts.len() >= REMEMBERED {
            debts.retain(|_, debt| !debt.left(now).is_zero());
        }
        if debts.len() < REMEMBERED || debts.contains_key(&caller) {
            let debt = debts.entry(caller).or_insert(Debt { taken: Duration::ZERO, at: now });
            (debt.taken, debt.at) = (debt.left(now) + took, now);
        }
        self.count.store(debts.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_34_a_caller_that_took_long_on_workers_continues_in_slots() {
        let usage = WorkerUsage::new();
        assert_eq!([1, 2].map(|caller| usage.begin(caller, 1000)), [PollPlan::Counted; 2]);
        usage.polled(1, COUNTED - Duration::from_micros(1));
        assert_eq!(usage.begin(1, 1000), PollPlan::Counted, "nothing was counted");
        (0..11).for_each(|_| usage.polled(1, COUNTED));
        assert_eq!(usage.begin(1, 1001), PollPlan::Slot, "it took more than 5 ms");
        assert_eq!(usage.begin(2, 1001), PollPlan::Counted, "the other did not");
        assert_eq!(usage.begin(1, 1002), PollPlan::Slot);
        assert_eq!(usage.begin(1, 1052), PollPlan::Alone, "there is nobody else");
    }

    #[test]
    fn a_debt_is_repaid_and_then_forgotten() {
        let (usage, now) = (WorkerUsage::new(), Instant::now());
        usage.charge(1, MAX_DEBT * 2, now);
        assert!(usage.owes(1, now));
        assert!(!usage.owes(1, now + MAX_DEBT * REPAID), "half is left");
        assert!(!usage.owes(1, now + MAX_DEBT * REPAID * 2));
        assert_eq!((usage.lock().len(), usage.count.load(Ordering::Relaxed)), (0, 0));
        for caller in 0..2 * REMEMBERED as u64 {
            usage.charge(caller, COUNTED, now);
        }
        assert_eq!(usage.lock().len(), REMEMBERED);
        usage.charge(u64::MAX, COUNTED, now + Duration::from_secs(1));
        assert_eq!(usage.lock().len(), 1);
    }
}
