//! Something that is limited, shared among callers: seats of requests, bytes of bodies.
//!
//! Nobody can take all of it: a caller has as much as it asks for only while at least as much is
//! left free for others as it then holds (a dynamic threshold). One greedy caller ends at a half,
//! two at a third each, and whoever comes next finds room at once. Who finds none waits for a
//! bounded time in a bounded queue; what becomes free goes to the caller that holds least, and
//! within a caller to the first who came.
//!
//! What is held while somebody else is waited for (a client that sends its body, a webhook) is a
//! [`Loan`]: it is called back, the oldest first, from the caller that holds most when one that
//! would hold less finds no room. So nobody is locked out by requests that do nothing, however many
//! callers send them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// For whom something is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// A keyed hash of its name: two callers of one hash share one share.
    pub(super) id: u64,
    /// Anonymous callers are told apart by address, and are one caller to all others.
    pub(super) is_anonymous: bool,
}

impl Caller {
    /// Tells callers apart elsewhere.
    pub fn number(self) -> u64 {
        self.id
    }
}

/// What is shared. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Share(Arc<Core>);

#[derive(Debug)]
struct Core {
    limit: usize,
    /// How many may wait: of one caller, of all.
    queue: (usize, usize),
    /// So little is had at once where it is free, whoever waits for more.
    crumb: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    anonymous: usize,
    /// Those who hold something or wait.
    callers: HashMap<u64, Holder, BuildHasherDefault<IsHash>>,
    /// The callers that wait: what each holds, the ticket of its first in line, its id. Anonymous
    /// ones wait in the second line.
    lines: [BTreeSet<(usize, u64, u64)>; 2],
    waiters: usize,
    /// What was called back and is not here yet.
    called_back: usize,
    tickets: u64,
}

#[derive(Debug, Default)]
struct Holder {
    held: usize,
    queue: VecDeque<Waiter>,
    /// By ticket: the oldest first.
    loans: BTreeMap<u64, Lent>,
    /// What was called back of them.
    called_back: usize,
}

#[derive(Debug)]
struct Lent {
    amount: usize,
    /// `None`: it was called back.
    call_back: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    amount: usize,
    caller: Caller,
    /// Loans are called back for it, its caller's own only when they are younger than this ticket.
    calls_back: Option<u64>,
    granted: oneshot::Sender<()>,
}

/// An amount that is held; dropping it gives it back.
#[derive(Debug)]
pub struct Grant {
    core: Arc<Core>,
    caller: Caller,
    amount: usize,
}

/// An amount that may be called back: whoever has it waits for somebody else. Dropping it gives it
/// back.
#[derive(Debug)]
pub struct Loan {
    grant: Grant,
    ticket: u64,
    call: oneshot::Receiver<()>,
    is_called_back: bool,
}

/// A place in the queue; dropping it leaves the queue, or gives back what was granted meanwhile.
#[derive(Debug)]
struct Waiting {
    core: Arc<Core>,
    caller: Caller,
    amount: usize,
    ticket: u64,
    granted: Option<oneshot::Receiver<()>>,
}

impl Share {
    /// Of an amount; `queue`: how many of one caller may wait, and how many in all.
    pub fn new(limit: usize, queue: (usize, usize)) -> Self {
        Self::with_crumbs(limit, queue, 0)
    }

    /// The same where so little may be taken past those who wait: they wait for much, and would
    /// hold up everybody.
    pub fn with_crumbs(limit: usize, queue: (usize, usize), crumb: usize) -> Self {
        Self(Arc::new(Core { limit, queue, crumb, state: Mutex::default() }))
    }

    /// How much there is.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Takes an amount if it may be had now. An amount beyond the limit counts as the limit.
    pub fn try_take(&self, caller: Caller, amount: usize) -> Option<Grant> {
        let amount = amount.min(self.0.limit);
        let mut state = self.0.lock();
        ((amount <= self.0.crumb || !state.must_wait(self.0.limit, caller))
            && state.fits(self.0.limit, caller, amount))
        .then(|| {
            state.add(caller, amount);
            Grant { core: Arc::clone(&self.0), caller, amount }
        })
    }

    /// Takes an amount that may be called back; as [`Self::take`], and what others were lent is
    /// called back for it.
    pub async fn lend(&self, caller: Caller, amount: usize, patience: Duration) -> Option<Loan> {
        self.take_back(caller, amount, u64::MAX, patience).await.map(Grant::into_loan)
    }

    async fn take_back(
        &self,
        caller: Caller,
        amount: usize,
        ticket: u64,
        patience: Duration,
    ) -> Option<Grant> {
        match self.try_take(caller, amount) {
            None => self.wait(caller, amount, Some(ticket), patience).await,
            granted => granted,
        }
    }

    /// Takes an amount, waiting for it if need be. `None`: too many wait already, or it took too
    /// long. Cancel safe.
    pub async fn take(&self, caller: Caller, amount: usize, patience: Duration) -> Option<Grant> {
        match self.try_take(caller, amount) {
            None => self.wait(caller, amount, None, patience).await,
            granted => granted,
        }
    }

    async fn wait(
        &self,
        caller: Caller,
        amount: usize,
        calls_back: Option<u64>,
        patience: Duration,
    ) -> Option<Grant> {
        let mut waiting = self.queue_up(caller, amount.min(self.0.limit), calls_back)?;
        let granted = waiting.granted.take()?;
        // What was granted in the last moment is lost with `waiting`, which gives it back.
        tokio::time::timeout(patience, granted).await.ok()?.ok()?;
        Some(waiting.into_grant())
    }

    /// Whether a caller would find no place, not even to wait.
    pub fn is_hopeless(&self, caller: Caller) -> bool {
        let core = &self.0;
        let state = core.lock();
        state.waiters > 0
            && (state.waiters >= core.queue.1
                || state
                    .callers
                    .get(&caller.id)
                    .is_some_and(|holder| holder.queue.len() >= core.queue.0))
    }

    /// How much is taken, and how many wait.
    pub fn usage(&self) -> (usize, usize) {
        let state = self.0.lock();
        (state.used, state.waiters)
    }

    fn queue_up(&self, caller: Caller, amount: usize, calls_back: Option<u64>) -> Option<Waiting> {
        let core = &self.0;
        let mut state = core.lock();
        let held = state.callers.get(&caller.id);
        if state.waiters >= core.queue.1
            || held.map_or(0, |holder| holder.queue.len()) >= core.queue.0
        {
            return None;
        }
        let (granted, receiver) = oneshot::channel();
        state.tickets += 1;
        state.waiters += 1;
        let ticket = state.tickets;
        state.change(caller.id, |holder| {
            holder.queue.push_back(Waiter { ticket, amount, caller, calls_back, granted })
        });
        // Room may have come between the attempt and this.
        state.serve(core.limit);
        Some(Waiting { core: Arc::clone(core), caller, amount, ticket, granted: Some(receiver) })
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, caller: Caller, amount: usize) {
        let mut state = self.lock();
        state.remove(caller, amount);
        state.serve(self.limit);
    }
}

impl State {
    /// Whether others, or earlier requests of the same caller, are before it.
    fn must_wait(&self, limit: usize, caller: Caller) -> bool {
        if self.waiters == 0 {
            return false;
        }
        let holder = self.callers.get(&caller.id);
        let first = if caller.is_anonymous {
            self.lines.iter().filter_map(BTreeSet::first).min().copied()
        } else {
            self.first(limit)
        };
        first.is_some_and(|(least, ..)| least <= holder.map_or(0, |holder| holder.held))
            || holder.is_some_and(|holder| !holder.queue.is_empty())
    }

    /// Whose turn is next. Anonymous callers that have their part already hold up nobody else.
    fn first(&self, limit: usize) -> Option<(usize, u64, u64)> {
        let [named, anonymous] = self.lines.each_ref().map(|line| line.first().copied());
        let may_have = |(held, _, id): &(usize, u64, u64)| {
            let amount = self
                .callers
                .get(id)
                .and_then(|holder| holder.queue.front())
                .map_or(0, |first| first.amount);
            let free = limit.saturating_sub(self.used);
            leaves(*held, amount, free.saturating_sub(self.anonymous))
                && leaves(self.anonymous, amount, free)
                || !leaves(*held, amount, free)
        };
        [named, anonymous.filter(may_have)].into_iter().flatten().min()
    }

    /// Whether a caller may have this much more: all that is free when it holds nothing, else so
    /// much that it leaves what it holds.
    fn fits(&self, limit: usize, caller: Caller, amount: usize) -> bool {
        let held = self.callers.get(&caller.id).map_or(0, |holder| holder.held);
        let free = limit.saturating_sub(self.used);
        if caller.is_anonymous {
            return leaves(self.anonymous, amount, free)
                && leaves(held, amount, free.saturating_sub(self.anonymous));
        }
        leaves(held, amount, free)
    }

    /// Calls back loans until there is room for so much more: those of the caller that holds most,
    /// as long as that is more than this one would hold; else its own that are younger than the
    /// ticket's, so that one of them comes to its end.
    fn call_back(&mut self, limit: usize, caller: Caller, amount: usize, ticket: u64) {
        let held = self.callers.get(&caller.id).map_or(0, |holder| holder.held);
        let wanted = if held == 0 { amount } else { held + 2 * amount };
        while limit.saturating_sub(self.used) + self.called_back < wanted {
            let fattest = self
                .callers
                .iter()
                .filter(|(id, holder)| **id != caller.id && holder.oldest_loan().is_some());
            let fattest = fattest
                .map(|(id, holder)| (holder.held - holder.called_back, *id))
                .max()
                .filter(|(others, _)| *others > held + amount);
            let (id, ticket) = match fattest {
                Some((_, id)) => (id, self.callers.get(&id).and_then(Holder::oldest_loan)),
                None => (
                    caller.id,
                    self.callers.get(&caller.id).and_then(|holder| holder.youngest_loan(ticket)),
                ),
            };
            let Some((holder, ticket)) = self.callers.get_mut(&id).zip(ticket) else { return };
            let Some(lent) = holder.loans.get_mut(&ticket) else { return };
            let (amount, sender) = (lent.amount, lent.call_back.take());
            holder.called_back += amount;
            self.called_back += amount;
            // Whoever is gone gives it back as well.
            sender.map(|sender| sender.send(()));
        }
    }

    fn add(&mut self, caller: Caller, amount: usize) {
        self.used += amount;
        if caller.is_anonymous {
            self.anonymous += amount;
        }
        self.change(caller.id, |holder| holder.held += amount);
    }

    fn remove(&mut self, caller: Caller, amount: usize) {
        self.used -= amount;
        if caller.is_anonymous {
            self.anonymous -= amount;
        }
        self.change(caller.id, |holder| holder.held -= amount);
    }

    /// Changes what is known of a caller, and its place in the line with it.
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut Holder) -> T) -> T {
        let holder = self.callers.entry(id).or_default();
        let place = |holder: &Holder| {
            holder.queue.front().map(|first| {
                (usize::from(first.caller.is_anonymous), (holder.held, first.ticket, id))
            })
        };
        let before = place(holder);
        let result = change(holder);
        let (after, is_gone) = (place(holder), holder.held == 0 && holder.queue.is_empty());
        if before != after {
            before.map(|(line, before)| self.lines[line].remove(&before));
            after.map(|(line, after)| self.lines[line].insert(after));
        }
        if is_gone {
            self.callers.remove(&id);
        }
        result
    }

    /// Gives what is free to those who wait, in their order.
    fn serve(&mut self, limit: usize) {
        while let Some((_, _, id)) = self.first(limit) {
            let Some(first) = self.callers.get(&id).and_then(|holder| holder.queue.front()) else {
                return;
            };
            let (caller, amount, calls_back) = (first.caller, first.amount, first.calls_back);
            if !self.fits(limit, caller, amount) {
                if let Some(ticket) = calls_back {
                    self.call_back(limit, caller, amount, ticket);
                }
                return;
            }
            let Some(waiter) = self.change(id, |holder| holder.queue.pop_front()) else { return };
            self.waiters -= 1;
            self.add(caller, amount);
            // Whoever went away meanwhile gives it back: see `Waiting`.
            let _ = waiter.granted.send(());
        }
    }
}

/// Whether a caller may have this much more of some room: all of it when it holds nothing, else so
/// much that it leaves what it holds.
fn leaves(held: usize, amount: usize, room: usize) -> bool {
    amount <= room && (held == 0 || held + amount <= room - amount)
}

impl Holder {
    fn oldest_loan(&self) -> Option<u64> {
        self.loans.iter().find(|(_, lent)| lent.call_back.is_some()).map(|(ticket, _)| *ticket)
    }

    fn youngest_loan(&self, than: u64) -> Option<u64> {
        let (ticket, lent) = self.loans.last_key_value()?;
        (lent.call_back.is_some() && *ticket > than).then_some(*ticket)
    }
}

impl Waiting {
    fn into_grant(mut self) -> Grant {
        let grant =
            Grant { core: Arc::clone(&self.core), caller: self.caller, amount: self.amount };
        self.amount = 0;
        grant
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut state = self.core.lock();
        let (ticket, mut is_queued) = (self.ticket, false);
        state.change(self.caller.id, |holder| {
            if let Some(at) = holder.queue.iter().position(|waiter| waiter.ticket == ticket) {
                holder.queue.remove(at);
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

impl Grant {
    /// The same, which may be called back from now on.
    pub fn into_loan(self) -> Loan {
        Loan::new(self)
    }
}

impl Loan {
    fn new(grant: Grant) -> Self {
        let (sender, call) = oneshot::channel();
        let mut state = grant.core.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        let lent = Lent { amount: grant.amount, call_back: Some(sender) };
        state.change(grant.caller.id, |holder| holder.loans.insert(ticket, lent));
        drop(state);
        Self { grant, ticket, call, is_called_back: false }
    }

    /// How much it is.
    pub fn amount(&self) -> usize {
        self.grant.amount
    }

    /// Waits until it is called back. Cancel safe.
    pub async fn called_back(&mut self) {
        if !self.is_called_back {
            // The sender is dropped only once it has sent.
            let _ = (&mut self.call).await;
            self.is_called_back = true;
        }
    }

    /// Takes more of the same, which is called back with it.
    ///
    /// # Errors
    /// As [`Share::lend`] gives `None`, or it was called back; what was held stays.
    pub async fn grow(&mut self, more: usize, patience: Duration) -> Result<(), Full> {
        let (share, caller, ticket) =
            (Share(Arc::clone(&self.grant.core)), self.grant.caller, self.ticket);
        let taken = tokio::select! {
            biased;
            () = self.called_back() => None,
            taken = share.take_back(caller, more, ticket, patience) => taken,
        };
        let mut taken = taken.ok_or(Full)?;
        self.grant.amount += std::mem::take(&mut taken.amount);
        self.note(self.grant.amount);
        Ok(())
    }

    /// Keeps it: nobody else is waited for any more.
    pub fn keep(mut self) -> Grant {
        self.end();
        Grant {
            core: Arc::clone(&self.grant.core),
            caller: self.grant.caller,
            amount: std::mem::take(&mut self.grant.amount),
        }
    }

    fn note(&self, amount: usize) {
        let mut state = self.grant.core.lock();
        let state = &mut *state;
        if let Some(holder) = state.callers.get_mut(&self.grant.caller.id)
            && let Some(lent) = holder.loans.get_mut(&self.ticket)
        {
            if lent.call_back.is_none() {
                holder.called_back = holder.called_back + amount - lent.amount;
                state.called_back = state.called_back + amount - lent.amount;
            }
            lent.amount = amount;
        }
    }

    fn end(&mut self) {
        self.note(0);
        let mut state = self.grant.core.lock();
        state.change(self.grant.caller.id, |holder| holder.loans.remove(&self.ticket));
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.grant.amount > 0 {
            self.end();
        }
    }
}

impl Grant {
    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Gives back all but so much.
    pub fn shrink(&mut self, to: usize) {
        let rest = self.amount.saturating_sub(to);
        if rest > 0 {
            self.amount -= rest;
            self.core.give_back(self.caller, rest);
        }
    }
}

/// Nothing is left that the caller may have, or others need it more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Drop for Grant {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.core.give_back(self.caller, self.amount);
        }
    }
}

/// Ids are hashes already.
#[derive(Default)]
struct IsHash(u64);

impl Hasher for IsHash {
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
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn named(id: u64) -> Caller {
        Caller { id, is_anonymous: false }
    }

    fn anonymous(id: u64) -> Caller {
        Caller { id, is_anonymous: true }
    }

    /// As many as it can have.
    fn greedy(share: &Share, caller: Caller) -> Vec<Grant> {
        std::iter::from_fn(|| share.try_take(caller, 1)).collect()
    }

    #[test]
    fn whoever_comes_next_finds_room() {
        let share = Share::new(120, (0, 0));
        let held: Vec<Vec<Grant>> = (1..=5).map(|id| greedy(&share, named(id))).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [60, 30, 15, 7, 4]);
        drop(held);
        assert_eq!(share.usage(), (0, 0));
        assert!(share.0.lock().callers.is_empty(), "nobody is remembered");
    }

    #[test]
    fn greedy_callers_come_to_have_the_same() {
        let share = Share::new(120, (0, 0));
        let mut held: Vec<Vec<Grant>> = (0..5).map(|_| Vec::new()).collect();
        for round in 0..1000_usize {
            for (id, grants) in held.iter_mut().enumerate() {
                if round % 3 == 0 {
                    grants.pop();
                }
                grants.extend(share.try_take(named(id as u64), 1));
            }
        }
        assert_eq!(
            held.iter().map(Vec::len).collect::<Vec<_>>(),
            [20; 5],
            "a sixth each, and a sixth for the next"
        );
    }

    #[test]
    fn a_single_place_can_be_had() {
        let share = Share::new(1, (0, 0));
        let grant = share.try_take(named(1), 1).unwrap();
        assert!(share.try_take(named(2), 1).is_none());
        drop(grant);
        let _whole = share.try_take(named(2), 100).expect("what is beyond the limit is the limit");
        assert_eq!(share.usage().0, 1);
    }

    #[test]
    fn anonymous_callers_are_one_to_others() {
        let share = Share::new(120, (0, 0));
        let crowd: Vec<Grant> = (0..1000).flat_map(|id| greedy(&share, anonymous(id))).collect();
        assert_eq!(crowd.len(), 60);
        assert_eq!(greedy(&share, named(5000)).len(), 30);
        drop(crowd);
        let one = greedy(&share, anonymous(1));
        assert_eq!(one.len(), 40, "one address leaves room for others");
        assert!(share.try_take(anonymous(2), 1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_caller_that_holds_least_is_first_then_who_came_first() {
        let share = Share::new(4, (10, 20));
        let mut held = greedy(&share, named(1));
        let other = share.try_take(named(2), 2).unwrap();
        assert_eq!((held.len(), share.usage()), (2, (4, 0)));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for (caller, name) in
            [(1, "greedy 1"), (1, "greedy 2"), (3, "new 1"), (3, "new 2"), (4, "newer")]
        {
            let (share, order) = (share.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                let grant = share.take(named(caller), 1, PATIENCE).await;
                order.lock().unwrap().push((name, grant.is_some()));
                grant
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(share.usage(), (4, 5));
        held.pop();
        drop(other);
        tokio::task::yield_now().await;
        assert_eq!(
            *order.lock().unwrap(),
            [("new 1", true), ("newer", true)],
            "who holds nothing is before who holds one"
        );
        tasks.shutdown().await;
        drop(tasks);
        drop(held);
        assert_eq!(share.usage(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_is_bounded_in_time_and_number() {
        let share = Share::new(1, (2, 3));
        let _grant = share.try_take(named(1), 1).unwrap();
        let mut waiting: Vec<_> =
            [1, 1, 2].map(|id| Box::pin(share.take(named(id), 1, PATIENCE))).into();
        assert!(waiting.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
        assert!(share.is_hopeless(named(1)) && share.is_hopeless(named(3)));
        assert!(share.take(named(1), 1, PATIENCE).await.is_none(), "its queue is full");
        assert!(share.take(named(3), 1, PATIENCE).await.is_none(), "all queues are");
        drop(waiting.remove(0));
        assert_eq!(share.usage(), (1, 2));
        for waiting in waiting {
            assert!(waiting.await.is_none());
        }
        assert_eq!(share.usage(), (1, 0));
    }

    #[tokio::test]
    async fn what_is_granted_to_somebody_who_left_is_given_back() {
        let share = Share::new(1, (2, 3));
        let grant = share.try_take(named(1), 1).unwrap();
        let mut waiting = Box::pin(share.take(named(2), 1, PATIENCE));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(grant);
        assert_eq!(share.usage(), (1, 0), "granted");
        drop(waiting);
        assert_eq!(share.usage(), (0, 0));
        assert!(share.0.lock().callers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn grants_grow_within_the_share() {
        let share = Share::new(100, (2, 3));
        let mut grant = share.lend(named(1), 10, PATIENCE).await.unwrap();
        assert_eq!(grant.grow(30, PATIENCE).await, Ok(()));
        assert_eq!(grant.grow(30, PATIENCE).await, Err(Full));
        assert_eq!(share.usage(), (40, 0));
        assert!(
            share.try_take(named(2), 60).is_some(),
            "who has nothing may have all that is free"
        );
        drop(grant);
        assert_eq!(share.usage(), (0, 0));
    }

    #[tokio::test]
    async fn little_does_not_wait_for_those_who_want_much() {
        let share = Share::with_crumbs(100, (2, 3), 5);
        let _held = share.try_take(named(1), 30).unwrap();
        let mut much = Box::pin(share.take(named(2), 80, PATIENCE));
        assert!(much.as_mut().now_or_never().is_none());
        assert!(share.try_take(named(3), 10).is_none(), "it would never come to its turn");
        assert!(share.try_take(named(3), 5).is_some());
    }

    #[tokio::test]
    async fn anonymous_callers_that_have_their_part_hold_up_nobody() {
        let share = Share::new(120, (10, 100));
        let _crowd: Vec<Grant> = (0..1000).flat_map(|id| greedy(&share, anonymous(id))).collect();
        let mut waits = Box::pin(share.take(anonymous(2000), 1, PATIENCE));
        assert!(waits.as_mut().now_or_never().is_none());
        let first = share.try_take(named(1), 1).expect("half of all is free");
        let mut others: Vec<Grant> = (2..60).map_while(|id| share.try_take(named(id), 1)).collect();
        assert_eq!(others.len(), 58);
        let mut named_waits = Box::pin(share.take(named(100), 2, PATIENCE));
        assert!(named_waits.as_mut().now_or_never().is_none(), "one is left");
        others.pop();
        assert!(named_waits.as_mut().now_or_never().expect("it has its turn").is_some());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(first);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_others_is_called_back_from_who_holds_most() {
        let share = Share::with_crumbs(100, (10, 20), 10);
        let mut fat = [
            share.lend(named(1), 20, PATIENCE).await.unwrap(),
            share.lend(named(1), 12, PATIENCE).await.unwrap(),
        ];
        let mut thin = [
            share.lend(named(2), 30, PATIENCE).await.unwrap(),
            share.lend(named(3), 19, PATIENCE).await.unwrap(),
        ];
        let _last = share.lend(named(4), 19, PATIENCE).await.unwrap();
        assert_eq!(share.usage().0, 100);
        let mut newcomer = Box::pin(share.lend(named(5), 15, PATIENCE));
        assert!(newcomer.as_mut().now_or_never().is_none());
        assert!(
            fat[0].called_back().now_or_never().is_some(),
            "the oldest of the one that holds most"
        );
        assert!(fat[1].called_back().now_or_never().is_none());
        assert!(thin.iter_mut().all(|thin| thin.called_back().now_or_never().is_none()));
        let [first, _second] = fat;
        drop(first);
        let newcomer = newcomer.await.expect("it has what was given back");
        // Nobody holds more than this one would.
        assert!(share.lend(named(7), 31, PATIENCE).await.is_none());
        assert!(thin[0].called_back().now_or_never().is_none());
        let kept = newcomer.keep();
        drop(thin);
        assert_eq!(share.usage().0, 12 + 19 + kept.amount());
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_a_callers_loans_comes_to_its_end() {
        let share = Share::with_crumbs(100, (10, 20), 10);
        let mut loans = [
            share.lend(named(1), 25, PATIENCE).await.unwrap(),
            share.lend(named(1), 25, PATIENCE).await.unwrap(),
        ];
        assert_eq!(loans[1].grow(10, PATIENCE).await, Err(Full), "the older one stays");
        let [first, second] = &mut loans;
        let mut grows = Box::pin(first.grow(10, PATIENCE));
        assert!(grows.as_mut().now_or_never().is_none());
        assert!(second.called_back().now_or_never().is_some());
        assert_eq!(second.grow(1, PATIENCE).await, Err(Full));
        drop(grows);
        let [mut first, second] = loans;
        drop(second);
        assert_eq!(first.grow(10, PATIENCE).await, Ok(()));
        drop(first);
        assert_eq!(share.usage(), (0, 0));
        assert_eq!(share.0.lock().called_back, 0);
    }

    proptest! {
        #[test]
        fn sums_hold_whatever_comes(steps in proptest::collection::vec((0_u64..6, 1_usize..8, 0_u8..7), 1..200)) {
            let share = Share::new(20, (4, 10));
            let mut grants: Vec<Grant> = Vec::new();
            let mut loans: Vec<Loan> = Vec::new();
            let mut waiting = Vec::new();
            for (id, amount, what) in steps {
                let caller = Caller { id, is_anonymous: id >= 4 };
                match what {
                    0 => grants.extend(share.try_take(caller, amount)),
                    1 => {
                        let share = share.clone();
                        let mut take = Box::pin(async move { share.take(caller, amount, Duration::MAX).await });
                        match take.as_mut().now_or_never() {
                            Some(done) => grants.extend(done),
                            None => waiting.push(take),
                        }
                    }
                    2 if !grants.is_empty() => drop(grants.swap_remove(amount % grants.len())),
                    3 => loans.extend(share.lend(caller, amount, Duration::MAX).now_or_never().flatten()),
                    4 if !loans.is_empty() => {
                        let at = amount % loans.len();
                        let _ = loans[at].grow(amount, Duration::MAX).now_or_never();
                    }
                    5 if !loans.is_empty() => {
                        let mut loan = loans.swap_remove(amount % loans.len());
                        if loan.called_back().now_or_never().is_none() {
                            grants.push(loan.keep());
                        }
                    }
                    _ if !waiting.is_empty() => drop(waiting.swap_remove(amount % waiting.len())),
                    _ => {}
                }
                let state = share.0.lock();
                prop_assert!(state.used <= 20);
                prop_assert_eq!(state.used, state.callers.values().map(|holder| holder.held).sum::<usize>());
                prop_assert_eq!(state.waiters, state.callers.values().map(|holder| holder.queue.len()).sum::<usize>());
                prop_assert_eq!(state.lines[0].len() + state.lines[1].len(), state.callers.values().filter(|holder| !holder.queue.is_empty()).count());
                prop_assert!(state.callers.values().all(|holder| holder.held > 0 || !holder.queue.is_empty()));
                let called_back = |holder: &Holder| holder.loans.values().filter(|lent| lent.call_back.is_none()).map(|lent| lent.amount).sum::<usize>();
                prop_assert!(state.callers.values().all(|holder| holder.called_back == called_back(holder) && called_back(holder) <= holder.held));
                prop_assert_eq!(state.called_back, state.callers.values().map(called_back).sum::<usize>());
            }
            drop((grants, waiting, loans));
            prop_assert_eq!(share.usage(), (0, 0));
        }
    }
}
