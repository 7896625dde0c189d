//! Tests of fair shares.

use super::*;
use futures::FutureExt;
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(1);

fn named(id: u64) -> BudgetCaller {
    BudgetCaller { id, is_anonymous: false }
}

fn queue(per_caller: usize, total: usize) -> QueueLimit {
    QueueLimit { per_caller, total }
}

fn anonymous(id: u64) -> BudgetCaller {
    BudgetCaller { id, is_anonymous: true }
}

/// As many as it can have.
fn greedy(share: &Share, caller: BudgetCaller) -> Vec<BudgetGrant> {
    std::iter::from_fn(|| share.try_take(caller, 1)).collect()
}

#[test]
fn a_newcomer_finds_room() {
    let share = Share::new(120, QueueLimit::NONE);
    let held: Vec<Vec<BudgetGrant>> = (1..=5).map(|id| greedy(&share, named(id))).collect();
    let counts: Vec<usize> = held.iter().map(Vec::len).collect();
    assert_eq!(counts, [60, 30, 15, 7, 4]);
    drop(held);
    assert_eq!(share.usage(), (0, 0));
    assert!(share.0.lock().callers.is_empty(), "idle callers are forgotten");
}

#[test]
fn greedy_callers_end_with_equal_parts() {
    let share = Share::new(120, QueueLimit::NONE);
    let mut held: Vec<Vec<BudgetGrant>> = (0..5).map(|_| Vec::new()).collect();
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
fn a_budget_of_one_can_be_taken() {
    let share = Share::new(1, QueueLimit::NONE);
    let grant = share.try_take(named(1), 1).unwrap();
    assert!(share.try_take(named(2), 1).is_none());
    drop(grant);
    let _whole = share.try_take(named(2), 100).expect("an amount above the limit is the limit");
    assert_eq!(share.usage().0, 1);
}

#[test]
fn anonymous_callers_count_as_one_for_others() {
    let share = Share::new(120, QueueLimit::NONE);
    let crowd: Vec<BudgetGrant> = (0..1000).flat_map(|id| greedy(&share, anonymous(id))).collect();
    assert_eq!(crowd.len(), 60);
    assert_eq!(greedy(&share, named(5000)).len(), 30);
    drop(crowd);
    let one = greedy(&share, anonymous(1));
    assert_eq!(one.len(), 40, "one address leaves room for others");
    assert!(share.try_take(anonymous(2), 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_by_least_held_then_by_arrival() {
    let share = Share::new(4, queue(10, 20));
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
            order.lock().push((name, grant.is_some()));
            grant
        });
        tokio::task::yield_now().await;
    }
    assert_eq!(share.usage(), (4, 5));
    held.pop();
    drop(other);
    tokio::task::yield_now().await;
    assert_eq!(
        *order.lock(),
        [("new 1", true), ("newer", true)],
        "a caller that holds nothing comes first"
    );
    tasks.shutdown().await;
    drop(tasks);
    drop(held);
    assert_eq!(share.usage(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_is_bounded_in_time_and_number() {
    let share = Share::new(1, queue(2, 3));
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
async fn a_grant_to_a_dropped_waiter_is_returned() {
    let share = Share::new(1, queue(2, 3));
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
async fn loans_grow_within_the_limit() {
    let share = Share::new(100, queue(2, 3));
    let mut grant = share.lend(named(1), 10, PATIENCE).await.unwrap();
    assert_eq!(grant.grow(30, PATIENCE).await, Ok(()));
    assert_eq!(grant.grow(30, PATIENCE).await, Err(Full));
    assert_eq!(share.usage(), (40, 0));
    assert!(
        share.try_take(named(2), 60).is_some(),
        "a caller that holds nothing may take all that is free"
    );
    drop(grant);
    assert_eq!(share.usage(), (0, 0));
}

#[tokio::test]
async fn small_amounts_bypass_waiters_for_more() {
    let share = Share::with_bypass(100, queue(2, 3), 5);
    let _held = share.try_take(named(1), 30).unwrap();
    let mut much = Box::pin(share.take(named(2), 80, PATIENCE));
    assert!(much.as_mut().now_or_never().is_none());
    assert!(share.try_take(named(3), 10).is_none(), "it would starve the waiter");
    assert!(share.try_take(named(3), 5).is_some());
}

#[tokio::test]
async fn anonymous_callers_at_their_limit_block_nobody() {
    let share = Share::new(120, queue(10, 100));
    let _crowd: Vec<BudgetGrant> = (0..1000).flat_map(|id| greedy(&share, anonymous(id))).collect();
    let mut waits = Box::pin(share.take(anonymous(2000), 1, PATIENCE));
    assert!(waits.as_mut().now_or_never().is_none());
    let first = share.try_take(named(1), 1).expect("half of all is free");
    let mut others: Vec<BudgetGrant> =
        (2..60).map_while(|id| share.try_take(named(id), 1)).collect();
    assert_eq!(others.len(), 58);
    let mut named_waits = Box::pin(share.take(named(100), 2, PATIENCE));
    assert!(named_waits.as_mut().now_or_never().is_none(), "one is left");
    others.pop();
    assert!(named_waits.as_mut().now_or_never().expect("it was granted").is_some());
    assert!(waits.as_mut().now_or_never().is_none());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn loans_are_revoked_from_the_caller_that_holds_most() {
    let share = Share::with_bypass(100, queue(10, 20), 10);
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
    assert!(fat[0].revoked().now_or_never().is_some(), "the oldest of the one that holds most");
    assert!(fat[1].revoked().now_or_never().is_none());
    assert!(thin.iter_mut().all(|thin| thin.revoked().now_or_never().is_none()));
    let [first, _second] = fat;
    drop(first);
    let newcomer = newcomer.await.expect("it was granted what was returned");
    // Nobody holds more than this one would.
    assert!(share.lend(named(7), 31, PATIENCE).await.is_none());
    assert!(thin[0].revoked().now_or_never().is_none());
    let kept = newcomer.into_grant();
    drop(thin);
    assert_eq!(share.usage().0, 12 + 19 + kept.amount());
}

#[tokio::test(start_paused = true)]
async fn the_oldest_loan_of_a_caller_is_not_revoked_for_its_own() {
    let share = Share::with_bypass(100, queue(10, 20), 10);
    let mut loans = [
        share.lend(named(1), 25, PATIENCE).await.unwrap(),
        share.lend(named(1), 25, PATIENCE).await.unwrap(),
    ];
    assert_eq!(loans[1].grow(10, PATIENCE).await, Err(Full), "the older one stays");
    let [first, second] = &mut loans;
    let mut grows = Box::pin(first.grow(10, PATIENCE));
    assert!(grows.as_mut().now_or_never().is_none());
    assert!(second.revoked().now_or_never().is_some());
    assert_eq!(second.grow(1, PATIENCE).await, Err(Full));
    drop(grows);
    let [mut first, second] = loans;
    drop(second);
    assert_eq!(first.grow(10, PATIENCE).await, Ok(()));
    drop(first);
    assert_eq!(share.usage(), (0, 0));
    assert_eq!(share.0.lock().revoked, 0);
}

#[tokio::test(start_paused = true)]
async fn loans_of_a_caller_that_grow_do_not_block_each_other() {
    let (share, began) = (Share::new(40, queue(8, 8)), tokio::time::Instant::now());
    let mut first = share.lend(named(1), 10, PATIENCE).await.unwrap();
    let mut second = share.lend(named(1), 10, PATIENCE).await.unwrap();
    let mut younger = Box::pin(second.grow(5, PATIENCE));
    assert!(younger.as_mut().now_or_never().is_none(), "there is none younger to be revoked");
    let mut older = Box::pin(first.grow(5, PATIENCE));
    assert!(older.as_mut().now_or_never().is_none());
    assert_eq!(younger.await, Err(Full), "revoked for the older one");
    drop(second);
    assert_eq!(older.await, Ok(()));
    assert!(began.elapsed().is_zero(), "neither waited until the end of its patience");
}

proptest! {
    #[test]
    fn sums_hold_for_any_operations(steps in proptest::collection::vec((0_u64..6, 1_usize..8, 0_u8..7), 1..200)) {
        let share = Share::new(20, queue(4, 10));
        let mut grants: Vec<BudgetGrant> = Vec::new();
        let mut loans: Vec<Loan> = Vec::new();
        let mut waiting = Vec::new();
        for (id, amount, what) in steps {
            let caller = BudgetCaller { id, is_anonymous: id >= 4 };
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
                    if loan.revoked().now_or_never().is_none() {
                        grants.push(loan.into_grant());
                    }
                }
                _ if !waiting.is_empty() => drop(waiting.swap_remove(amount % waiting.len())),
                _ => {}
            }
            let state = share.0.lock();
            prop_assert!(state.used <= 20);
            prop_assert_eq!(state.used, state.callers.values().map(|entry| entry.held).sum::<usize>());
            prop_assert_eq!(state.waiters, state.callers.values().map(|entry| entry.queue.len()).sum::<usize>());
            prop_assert_eq!(state.lines[0].len() + state.lines[1].len(), state.callers.values().filter(|entry| !entry.queue.is_empty()).count());
            prop_assert!(state.callers.values().all(|entry| entry.held > 0 || !entry.queue.is_empty()));
            let revoked = |entry: &CallerEntry| entry.loans.values().filter(|loan| loan.revoke.is_none()).map(|loan| loan.amount).sum::<usize>();
            prop_assert!(state.callers.values().all(|entry| entry.revoked == revoked(entry) && revoked(entry) <= entry.held));
            prop_assert_eq!(state.revoked, state.callers.values().map(revoked).sum::<usize>());
        }
        drop((grants, waiting, loans));
        prop_assert_eq!(share.usage(), (0, 0));
    }
}
