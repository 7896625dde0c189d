//! A budget shared fairly among callers: seats, or bytes.
//!
//! No caller can take all of it: a caller gets more only while at least as much as it would then
//! hold stays free (a dynamic threshold). One greedy caller ends at a half, two at a third each,
//! and a newcomer finds room at once. A caller that finds none waits for a bounded time in a
//! bounded queue; freed room goes to the caller that holds least, and within a caller to its oldest
//! loan, then in order of arrival.
//!
//! Amounts held while waiting for something else (a client's body, a webhook) are [`Loan`]s. When a
//! caller that would hold less finds no room, loans of the largest holder are revoked, oldest
//! first. So idle requests lock no one out, however many callers send them.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Identifies who holds a part of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCaller {
    /// Keyed hash of the name; callers with equal hashes share a part.
    pub(super) id: u64,
    /// Anonymous callers differ by address, but are one caller to all others.
    pub(super) is_anonymous: bool,
}

impl BudgetCaller {
    /// A named caller: a webhook, or one by its [number](Self::number).
    pub fn numbered(id: u64) -> Self {
        Self { id, is_anonymous: false }
    }

    /// For budgets outside of this module.
    pub fn number(self) -> u64 {
        self.id
    }
}

/// Max waiters of a budget; callers beyond are refused at once.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimit {
    /// Named or anonymous.
    pub per_caller: usize,
    /// Bound on the bytes of all callers.
    pub total: usize,
}

impl QueueLimit {
    /// No caller is waiting.
    pub const NONE: Self = Self { per_caller: 0, total: 0 };
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Share(Arc<ShareCore>);

#[derive(Debug)]
struct ShareCore {
    limit: usize,
    queue: QueueLimit,
    /// Amounts up to this bypass the queue if they are free.
    bypass: usize,
    state: Mutex<ShareState>,
}

#[derive(Debug, Default)]
struct ShareState {
    used: usize,
    anonymous: usize,
    /// Callers that hold something or wait.
    callers: HashMap<u64, CallerEntry, BuildHasherDefault<IdentityHasher>>,
    /// Waiting callers, by what they hold and the ticket of their first waiter; named ones,
    /// anonymous ones.
    lines: [BTreeSet<(usize, u64, u64)>; 2],
    waiters: usize,
    /// Loans revoked but not returned yet.
    revoked: usize,
    tickets: u64,
}

#[derive(Debug, Default)]
struct CallerEntry {
    held: usize,
    queue: VecDeque<Waiter>,
    /// By ticket, oldest first.
    loans: BTreeMap<u64, LoanRecord>,
    /// Revoked but not returned yet.
    revoked: usize,
}

#[derive(Debug)]
struct LoanRecord {
    amount: usize,
    /// `None` once revoked.
    revoke: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    amount: usize,
    caller: BudgetCaller,
    /// Revokes loans; those of the same caller only if they are younger than this ticket.
    revokes_after: Option<u64>,
    granted: oneshot::Sender<()>,
}

/// A held amount, returned when dropped.
#[derive(Debug)]
pub struct BudgetGrant {
    core: Arc<ShareCore>,
    caller: BudgetCaller,
    amount: usize,
}

/// An amount that can be revoked, as its holder waits for something else. Returned when dropped.
#[derive(Debug)]
pub struct Loan {
    grant: BudgetGrant,
    ticket: u64,
    revocation: oneshot::Receiver<()>,
    is_revoked: bool,
}

/// A place in the queue. Dropping it leaves the queue, or returns a grant received meanwhile.
#[derive(Debug)]
struct QueuedWaiter {
    core: Arc<ShareCore>,
    caller: BudgetCaller,
    amount: usize,
    ticket: u64,
    granted: Option<oneshot::Receiver<()>>,
}

impl Share {
    /// A budget of `limit`, and its queue.
    pub fn new(limit: usize, queue: QueueLimit) -> Self {
        Self::with_bypass(limit, queue, 0)
    }

    /// Amounts up to `bypass` do not queue behind waiters for more.
    pub fn with_bypass(limit: usize, queue: QueueLimit, bypass: usize) -> Self {
        Self(Arc::new(ShareCore { limit, queue, bypass, state: Mutex::default() }))
    }

    /// The whole budget.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Takes an amount if it is free. An amount above the limit counts as the limit.
    pub fn try_take(&self, caller: BudgetCaller, amount: usize) -> Option<BudgetGrant> {
        let amount = amount.min(self.0.limit);
        let mut state = self.0.lock();
        ((amount <= self.0.bypass || !state.is_behind_others(self.0.limit, caller))
            && state.fits(self.0.limit, caller, amount))
        .then(|| {
            state.add(caller, amount);
            BudgetGrant { core: Arc::clone(&self.0), caller, amount }
        })
    }

    /// Exchanges grants of this share for an amount, atomically, so that a request is not blocked
    /// by its own grants. `None`: the grants are unchanged.
    pub fn try_exchange(
        &self,
        held: &mut Vec<BudgetGrant>,
        caller: BudgetCaller,
        amount: usize,
    ) -> Option<BudgetGrant> {
        let core = &self.0;
        let mut state = core.lock();
        held.iter().for_each(|grant| state.remove(grant.caller, grant.amount));
        let is_free = amount <= core.limit
            && !state.is_behind_others(core.limit, caller)
            && state.fits(core.limit, caller, amount);
        if !is_free {
            held.iter().for_each(|grant| state.add(grant.caller, grant.amount));
            return None;
        }
        state.add(caller, amount);
        held.iter_mut().for_each(|grant| grant.amount = 0);
        held.clear();
        state.serve(core.limit);
        Some(BudgetGrant { core: Arc::clone(core), caller, amount })
    }

    /// Like [`Self::take`], but revokes loans if there is no room, and returns one.
    pub async fn lend(
        &self,
        caller: BudgetCaller,
        amount: usize,
        max_wait: Duration,
    ) -> Option<Loan> {
        self.take_revoking(caller, amount, u64::MAX, max_wait).await.map(BudgetGrant::into_loan)
    }

    async fn take_revoking(
        &self,
        caller: BudgetCaller,
        amount: usize,
        ticket: u64,
        max_wait: Duration,
    ) -> Option<BudgetGrant> {
        match self.try_take(caller, amount) {
            None => self.wait(caller, amount, Some(ticket), max_wait).await,
            granted => granted,
        }
    }

    /// Takes an amount, waiting if necessary. `None` if the queue is full or `max_wait` is over.
    /// Cancel safe.
    pub async fn take(
        &self,
        caller: BudgetCaller,
        amount: usize,
        max_wait: Duration,
    ) -> Option<BudgetGrant> {
        match self.try_take(caller, amount) {
            None => self.wait(caller, amount, None, max_wait).await,
            granted => granted,
        }
    }

    async fn wait(
        &self,
        caller: BudgetCaller,
        amount: usize,
        revokes_after: Option<u64>,
        max_wait: Duration,
    ) -> Option<BudgetGrant> {
        let mut waiting = self.queue_up(caller, amount.min(self.0.limit), revokes_after)?;
        let granted = waiting.granted.take()?;
        // A grant that races with the timeout is returned by dropping `waiting`.
        tokio::time::timeout(max_wait, granted).await.ok()?.ok()?;
        Some(waiting.into_grant())
    }

    /// Whether even the queue is full for this caller.
    pub fn is_hopeless(&self, caller: BudgetCaller) -> bool {
        let core = &self.0;
        let state = core.lock();
        state.waiters > 0
            && (state.waiters >= core.queue.total
                || state
                    .callers
                    .get(&caller.id)
                    .is_some_and(|entry| entry.queue.len() >= core.queue.per_caller))
    }

    /// Amount in use, and number of waiters.
    pub fn usage(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.used, state.waiters)
    }

    fn queue_up(
        &self,
        caller: BudgetCaller,
        amount: usize,
        revokes_after: Option<u64>,
    ) -> Option<QueuedWaiter> {
        let core = &self.0;
        let mut state = core.lock();
        let held = state.callers.get(&caller.id);
        if state.waiters >= core.queue.total
            || held.map_or(0, |entry| entry.queue.len()) >= core.queue.per_caller
        {
            return None;
        }
        let (granted, receiver) = oneshot::channel();
        state.tickets += 1;
        state.waiters += 1;
        let ticket = state.tickets;
        state.change(caller.id, |entry| {
            entry.queue_up(Waiter { ticket, amount, caller, revokes_after, granted })
        });
        // Room may have become free since `try_take`.
        state.serve(core.limit);
        Some(QueuedWaiter {
            core: Arc::clone(core),
            caller,
            amount,
            ticket,
            granted: Some(receiver),
        })
    }
}

impl ShareCore {
    fn lock(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock()
    }

    fn release(&self, caller: BudgetCaller, amount: usize) {
        let mut state = self.lock();
        state.remove(caller, amount);
        state.serve(self.limit);
    }
}

impl ShareState {
    /// Whether other callers, or earlier requests of the same one, come first.
    fn is_behind_others(&self, limit: usize, caller: BudgetCaller) -> bool {
        if self.waiters == 0 {
            return false;
        }
        let entry = self.callers.get(&caller.id);
        let first = if caller.is_anonymous {
            self.lines.iter().filter_map(BTreeSet::first).min().copied()
        } else {
            self.first(limit)
        };
        first.is_some_and(|(least, ..)| least <= entry.map_or(0, |entry| entry.held))
            || entry.is_some_and(|entry| !entry.queue.is_empty())
    }

    /// The next waiter. Anonymous callers that have their part already do not block named ones.
    fn first(&self, limit: usize) -> Option<(usize, u64, u64)> {
        let [named, anonymous] = self.lines.each_ref().map(|line| line.first().copied());
        let may_have = |(held, _, id): &(usize, u64, u64)| {
            let amount = self
                .callers
                .get(id)
                .and_then(|entry| entry.queue.front())
                .map_or(0, |first| first.amount);
            let free = limit.saturating_sub(self.used);
            leaves(*held, amount, free.saturating_sub(self.anonymous))
                && leaves(self.anonymous, amount, free)
                || !leaves(*held, amount, free)
        };
        [named, anonymous.filter(may_have)].into_iter().flatten().min()
    }

    /// Whether a caller may have `amount` more.
    fn fits(&self, limit: usize, caller: BudgetCaller, amount: usize) -> bool {
        let held = self.callers.get(&caller.id).map_or(0, |entry| entry.held);
        let free = limit.saturating_sub(self.used);
        if caller.is_anonymous {
            return leaves(self.anonymous, amount, free)
                && leaves(held, amount, free.saturating_sub(self.anonymous));
        }
        leaves(held, amount, free)
    }

    /// Revokes loans until `amount` fits: those of the largest holder, as long as that is more than
    /// this caller would hold; else its own loans younger than `ticket`, so that its oldest one can
    /// finish.
    fn revoke_loans(&mut self, limit: usize, caller: BudgetCaller, amount: usize, ticket: u64) {
        let held = self.callers.get(&caller.id).map_or(0, |entry| entry.held);
        let wanted = if held == 0 { amount } else { held + 2 * amount };
        while limit.saturating_sub(self.used) + self.revoked < wanted {
            let largest = self
                .callers
                .iter()
                .filter(|(id, entry)| **id != caller.id && entry.oldest_loan().is_some());
            let largest = largest
                .map(|(id, entry)| (entry.held - entry.revoked, *id))
                .max()
                .filter(|(others, _)| *others > held + amount);
            let (id, ticket) = match largest {
                Some((_, id)) => (id, self.callers.get(&id).and_then(CallerEntry::oldest_loan)),
                None => (
                    caller.id,
                    self.callers.get(&caller.id).and_then(|entry| entry.youngest_loan(ticket)),
                ),
            };
            let Some((entry, ticket)) = self.callers.get_mut(&id).zip(ticket) else { return };
            let Some(loan) = entry.loans.get_mut(&ticket) else { return };
            let (amount, sender) = (loan.amount, loan.revoke.take());
            entry.revoked += amount;
            self.revoked += amount;
            // A dropped receiver returns its loan as well.
            sender.map(|sender| sender.send(()));
        }
    }

    fn add(&mut self, caller: BudgetCaller, amount: usize) {
        self.used += amount;
        if caller.is_anonymous {
            self.anonymous += amount;
        }
        self.change(caller.id, |entry| entry.held += amount);
    }

    fn remove(&mut self, caller: BudgetCaller, amount: usize) {
        self.used -= amount;
        if caller.is_anonymous {
            self.anonymous -= amount;
        }
        self.change(caller.id, |entry| entry.held -= amount);
    }

    /// Changes a caller's entry and keeps its place in the line consistent.
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut CallerEntry) -> T) -> T {
        let entry = self.callers.entry(id).or_default();
        let place = |entry: &CallerEntry| {
            entry.queue.front().map(|first| {
                (usize::from(first.caller.is_anonymous), (entry.held, first.ticket, id))
            })
        };
        let before = place(entry);
        let result = change(entry);
        let (after, is_gone) = (place(entry), entry.held == 0 && entry.queue.is_empty());
        if before != after {
            before.map(|(line, before)| self.lines[line].remove(&before));
            after.map(|(line, after)| self.lines[line].insert(after));
        }
        if is_gone {
            self.callers.remove(&id);
        }
        result
    }

    /// Grants free room to waiters, in order.
    fn serve(&mut self, limit: usize) {
        while let Some((_, _, id)) = self.first(limit) {
            let Some(first) = self.callers.get(&id).and_then(|entry| entry.queue.front()) else {
                return;
            };
            let (caller, amount, revokes_after) = (first.caller, first.amount, first.revokes_after);
            if !self.fits(limit, caller, amount) {
                if let Some(ticket) = revokes_after {
                    self.revoke_loans(limit, caller, amount, ticket);
                }
                return;
            }
            let Some(waiter) = self.change(id, |entry| entry.queue.pop_front()) else { return };
            self.waiters -= 1;
            self.add(caller, amount);
            // A waiter that is gone returns it, see `QueuedWaiter`.
            let _ = waiter.granted.send(());
        }
    }
}

/// Whether `held` may grow by `amount` out of `room` free: by all of it from zero, else only if the
/// new total stays free.
fn leaves(held: usize, amount: usize, room: usize) -> bool {
    amount <= room && (held == 0 || held + amount <= room - amount)
}

impl CallerEntry {
    /// Loans that grow go first, the oldest one at the front: only younger ones are revoked for it,
    /// so that behind the youngest all would wait.
    fn queue_up(&mut self, waiter: Waiter) {
        let loan = |waiter: &Waiter| waiter.revokes_after.unwrap_or(u64::MAX);
        let at = self.queue.iter().position(|other| loan(other) > loan(&waiter));
        self.queue.insert(at.unwrap_or(self.queue.len()), waiter);
    }

    fn oldest_loan(&self) -> Option<u64> {
        self.loans.iter().find(|(_, loan)| loan.revoke.is_some()).map(|(ticket, _)| *ticket)
    }

    fn youngest_loan(&self, than: u64) -> Option<u64> {
        let (ticket, loan) = self.loans.last_key_value()?;
        (loan.revoke.is_some() && *ticket > than).then_some(*ticket)
    }
}

impl QueuedWaiter {
    fn into_grant(mut self) -> BudgetGrant {
        let grant =
            BudgetGrant { core: Arc::clone(&self.core), caller: self.caller, amount: self.amount };
        self.amount = 0;
        grant
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut state = self.core.lock();
        let (ticket, mut is_queued) = (self.ticket, false);
        state.change(self.caller.id, |entry| {
            if let Some(at) = entry.queue.iter().position(|waiter| waiter.ticket == ticket) {
                entry.queue.remove(at);
                is_queued = true;
            }
        });
        if is_queued {
            state.waiters -= 1;
        } else {
            state.remove(self.caller, self.amount);
        }
        state.serve(self.core.limit);
    }
}

impl BudgetGrant {
    /// Makes it revocable.
    pub fn into_loan(self) -> Loan {
        Loan::new(self)
    }
}

impl Loan {
    fn new(grant: BudgetGrant) -> Self {
        let (sender, revocation) = oneshot::channel();
        let mut state = grant.core.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        let loan = LoanRecord { amount: grant.amount, revoke: Some(sender) };
        state.change(grant.caller.id, |entry| entry.loans.insert(ticket, loan));
        drop(state);
        Self { grant, ticket, revocation, is_revoked: false }
    }

    /// The amount held.
    pub fn amount(&self) -> usize {
        self.grant.amount
    }

    /// Waits until it is revoked. Cancel safe.
    pub async fn revoked(&mut self) {
        if !self.is_revoked {
            // The sender is only dropped after sending.
            let _ = (&mut self.revocation).await;
            self.is_revoked = true;
        }
    }

    /// Grows the loan, which is revoked as a whole.
    ///
    /// # Errors
    /// No room as in [`Share::lend`], or it was revoked; the loan keeps its amount.
    pub async fn grow(&mut self, more: usize, max_wait: Duration) -> Result<(), Full> {
        let (share, caller, ticket) =
            (Share(Arc::clone(&self.grant.core)), self.grant.caller, self.ticket);
        let taken = tokio::select! {
            biased;
            () = self.revoked() => None,
            taken = share.take_revoking(caller, more, ticket, max_wait) => taken,
        };
        let mut taken = taken.ok_or(Full)?;
        self.grant.amount += std::mem::take(&mut taken.amount);
        self.record(self.grant.amount);
        Ok(())
    }

    /// Keeps the amount for good.
    pub fn into_grant(mut self) -> BudgetGrant {
        self.end();
        BudgetGrant {
            core: Arc::clone(&self.grant.core),
            caller: self.grant.caller,
            amount: std::mem::take(&mut self.grant.amount),
        }
    }

    fn record(&self, amount: usize) {
        let mut state = self.grant.core.lock();
        let state = &mut *state;
        if let Some(entry) = state.callers.get_mut(&self.grant.caller.id)
            && let Some(loan) = entry.loans.get_mut(&self.ticket)
        {
            if loan.revoke.is_none() {
                entry.revoked = entry.revoked + amount - loan.amount;
                state.revoked = state.revoked + amount - loan.amount;
            }
            loan.amount = amount;
        }
    }

    fn end(&mut self) {
        self.record(0);
        let mut state = self.grant.core.lock();
        state.change(self.grant.caller.id, |entry| entry.loans.remove(&self.ticket));
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.grant.amount > 0 {
            self.end();
        }
    }
}

impl BudgetGrant {
    /// The amount held.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Returns all but `to`.
    pub fn shrink(&mut self, to: usize) {
        let rest = self.amount.saturating_sub(to);
        if rest > 0 {
            self.amount -= rest;
            self.core.release(self.caller, rest);
        }
    }
}

/// No room for this caller, or others need it more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Drop for BudgetGrant {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.core.release(self.caller, self.amount);
        }
    }
}

/// For keys that are hashes.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

#[cfg(test)]
mod tests;
