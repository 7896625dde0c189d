//! Granted slots that are not taken yet, and their withdrawal.

use super::{CallerSlots, SlotKind, SlotState, Slots, Took};
use std::collections::VecDeque;
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A grant that is not taken within this time goes to the next one.
pub(super) const TAKEN_WITHIN: Duration = Duration::from_millis(50);

/// At most one grant per slot, in the order of granting.
#[derive(Default)]
pub(super) struct Untaken {
    grants: VecDeque<UntakenGrant>,
    /// The parked thread of [`Slots::watch`].
    watcher: Option<Thread>,
}

#[derive(Clone, Copy)]
struct UntakenGrant {
    caller: u64,
    ticket: u64,
    kind: SlotKind,
    since: Instant,
}

impl Untaken {
    pub(super) fn put(&mut self, caller: u64, ticket: u64, kind: SlotKind) {
        self.grants.push_back(UntakenGrant { caller, ticket, kind, since: Instant::now() });
    }

    /// `None`: it was not granted, or withdrawn.
    pub(super) fn take(&mut self, ticket: u64) -> Option<SlotKind> {
        let at = self.grants.iter().position(|grant| grant.ticket == ticket)?;
        self.grants.remove(at).map(|grant| grant.kind)
    }

    fn take_late(&mut self, now: Instant) -> Option<UntakenGrant> {
        let first = self.grants.front()?;
        let is_late = now.saturating_duration_since(first.since) >= TAKEN_WITHIN;
        if is_late { self.grants.pop_front() } else { None }
    }
}

impl Slots {
    /// Withdraws late grants, forever.
    pub(in super::super) fn watch(&self) {
        loop {
            let mut state = self.lock();
            if state.may_withdraw() {
                drop(state);
                std::thread::sleep(TAKEN_WITHIN);
                self.lock().withdraw_late(Instant::now());
            } else {
                state.untaken.watcher = Some(std::thread::current());
                drop(state);
                std::thread::park();
            }
        }
    }
}

impl SlotState {
    /// Whether computations wait, and slots are granted that are not taken.
    fn may_withdraw(&self) -> bool {
        let is_awaited = !self.queue.is_empty() || !self.resuming.is_empty();
        is_awaited && !self.untaken.grants.is_empty()
    }

    /// Wakes the thread that withdraws grants, if it may have something to do.
    pub(super) fn call_watcher(&mut self) {
        if self.may_withdraw()
            && let Some(watcher) = self.untaken.watcher.take()
        {
            watcher.unpark();
        }
    }

    /// Gives slots that were granted [`TAKEN_WITHIN`] ago to others, if some wait.
    pub(super) fn withdraw_late(&mut self, now: Instant) {
        if !self.may_withdraw() {
            return;
        }
        while let Some(late) = self.untaken.take_late(now) {
            self.withdraw(late, now);
        }
        self.grant();
    }

    /// The caller is charged for the time: it kept others from computing.
    fn withdraw(&mut self, grant: UntakenGrant, now: Instant) {
        let micros = now.saturating_duration_since(grant.since).as_micros();
        let took = Took { micros: u64::try_from(micros).unwrap_or(u64::MAX), ..Took::default() };
        *self.left(grant.kind) += 1;
        self.change(grant.caller, |caller| caller.end(took));
    }

    /// Takes the slot that was granted. If it was withdrawn meanwhile, one that another computation
    /// has not taken yet, whose caller has had no less: with busy cores all may be late, and none
    /// would ever be taken. `None`: it has to wait again.
    pub(super) fn take(&mut self, number: u64, ticket: u64) -> Option<SlotKind> {
        if let Some(kind) = self.untaken.take(ticket) {
            return Some(kind);
        }
        let now = Instant::now();
        let micros =
            |number: u64| self.callers.get(&number).map_or(self.now, |it| it.granted_micros);
        let at = self.untaken.grants.iter().position(|grant| {
            micros(number) <= micros(grant.caller)
                && (grant.kind == SlotKind::Ordinary || self.may_have_spare(number, now))
        });
        let other = self.untaken.grants.remove(at?)?;
        self.withdraw(other, now);
        *self.left(other.kind) -= 1;
        self.change(number, CallerSlots::begin);
        Some(other.kind)
    }
}
