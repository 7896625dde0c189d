//! Tests of a level's queues, in virtual time.

use super::*;
use crate::priority::matching::tests::TestAction;
use futures::FutureExt;
use std::cell::Cell;
use std::rc::Rc;

const QUEUES: Discipline = Discipline::Queue { queues: 64, hand: 6, length: 50 };

fn level(discipline: Discipline, limit: usize) -> Arc<Level> {
    let inflight = Inflight { max_waiting: 1000, ..Inflight::default() };
    Level::new(Arc::new(inflight), discipline, limit)
}

/// A request of a flow.
fn wanted(flow: u64, seats: usize) -> SeatRequest {
    SeatRequest {
        // As evenly spread as a hash.
        flow: flow.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        distinguisher: Distinguisher::User,
        seats,
        mutates: false,
        schema: "s".into(),
        stats: Arc::default(),
        action: Arc::new(TestAction::default()),
    }
}

/// A request of the only flow.
fn alone(seats: usize) -> SeatRequest {
    SeatRequest { distinguisher: Distinguisher::None, ..wanted(1, seats) }
}

fn granted(started: Started) -> SeatGrant {
    match started {
        Started::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn waits(started: Started) -> WaitingRequest {
    match started {
        Started::Waits(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

fn is_rejected(started: &Started) -> bool {
    matches!(started, Started::Rejected)
}

const PATIENCE: Duration = Duration::from_secs(15);

#[tokio::test(start_paused = true)]
async fn an_exempt_level_has_no_limit_and_a_rejecting_one_no_queue() {
    let exempt = level(Discipline::Exempt, 0);
    let grants: Vec<_> = (0..100).map(|_| granted(exempt.start(wanted(1, 1), "u"))).collect();
    assert_eq!(exempt.totals().executing, 100);
    drop(grants);
    assert!(exempt.is_idle());
    let rejecting = level(Discipline::Reject, 2);
    let held = [1, 2].map(|flow| granted(rejecting.start(wanted(flow, 1), "u")));
    assert!(is_rejected(&rejecting.start(wanted(3, 1), "u")));
    drop(held);
    let _wide = granted(rejecting.start(wanted(3, 9), "u"));
    assert!(is_rejected(&rejecting.start(wanted(3, 1), "u")), "it is alone");
    assert_eq!(rejecting.totals().rejected, 2);
}

#[tokio::test(start_paused = true)]
async fn queues_are_bounded_and_waits_end() {
    let level = level(Discipline::Queue { queues: 4, hand: 2, length: 3 }, 1);
    let held = granted(level.start(alone(1), "u"));
    let mut waiting: Vec<_> = (0..6).map(|_| waits(level.start(alone(1), "u"))).collect();
    assert!(is_rejected(&level.start(alone(1), "u")), "both of its queues are full");
    assert!(level.is_hopeless(alone(1).flow));
    drop(waiting.pop());
    waiting.push(waits(level.start(alone(1), "u")));
    let started = Instant::now();
    let ended = waiting.pop().expect("it waits").seats(PATIENCE).await;
    assert_eq!((ended.err(), started.elapsed()), (Some(RejectReason::TimeOut), PATIENCE));
    drop(waiting);
    let totals = level.totals();
    assert_eq!((totals.waiting, totals.executing, totals.seats_waiting), (0, 1, 0));
    drop(held);
    assert!(level.is_idle() && level.queues().is_empty(), "idle queues take no memory");
}

#[tokio::test(start_paused = true)]
async fn all_that_wait_are_bounded_together() {
    let inflight = Arc::new(Inflight { max_waiting: 2, ..Inflight::default() });
    let [one, two] = [1, 2].map(|_| Level::new(Arc::clone(&inflight), QUEUES, 1));
    let _held = [granted(one.start(wanted(1, 1), "u")), granted(two.start(wanted(1, 1), "u"))];
    let _waiting = [waits(one.start(wanted(2, 1), "u")), waits(two.start(wanted(2, 1), "u"))];
    assert!(is_rejected(&one.start(wanted(3, 1), "u")));
    assert!(one.is_hopeless(wanted(3, 1).flow));
}

#[tokio::test(start_paused = true)]
async fn a_flow_leaves_as_many_seats_as_it_holds() {
    let level = level(QUEUES, 8);
    let greedy: Vec<_> = (0..4).map(|_| granted(level.start(wanted(1, 1), "u"))).collect();
    let mut next = Box::pin(waits(level.start(wanted(1, 1), "u")).seats(PATIENCE));
    assert!(next.as_mut().now_or_never().is_none());
    let newcomers = [2, 3].map(|flow| granted(level.start(wanted(flow, 1), "u")));
    drop(newcomers);
    assert!(next.as_mut().now_or_never().is_none(), "it holds half already");
    drop(greedy);
    assert!(next.as_mut().now_or_never().is_some_and(|seats| seats.is_ok()));
    let only: Vec<_> = (0..8).map(|_| granted(level.start(alone(1), "u"))).collect();
    assert_eq!(only.len(), 8, "without flows there is no other to leave them to");
}

#[tokio::test(start_paused = true)]
async fn a_wide_request_is_not_overtaken_forever() {
    let level = level(QUEUES, 4);
    let mut held: Vec<_> = (1..=4).map(|flow| granted(level.start(wanted(flow, 1), "u"))).collect();
    let mut wide = Box::pin(waits(level.start(wanted(5, 3), "u")).seats(PATIENCE));
    tokio::time::advance(Duration::from_secs(1)).await;
    held.pop();
    let mut late = Box::pin(waits(level.start(wanted(6, 1), "u")).seats(PATIENCE));
    assert!(late.as_mut().now_or_never().is_none(), "the seat is kept for the wide one");
    held.truncate(1);
    assert!(wide.as_mut().now_or_never().is_some_and(|seats| seats.is_ok()));
    assert!(late.as_mut().now_or_never().is_some());
    let mut widest = Box::pin(waits(level.start(wanted(7, 9), "u")).seats(PATIENCE));
    assert!(widest.as_mut().now_or_never().is_none());
    held.clear();
    drop((wide, late));
    assert!(widest.as_mut().now_or_never().is_some(), "alone it may take more than there are");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_not_taken_goes_to_the_next() {
    let level = level(QUEUES, 1);
    let held = granted(level.start(wanted(1, 1), "u"));
    let [gone, mut next] =
        [2, 3].map(|flow| Box::pin(waits(level.start(wanted(flow, 1), "u")).seats(PATIENCE)));
    drop(held);
    drop(gone);
    let seats = next.as_mut().now_or_never().expect("it has them").unwrap();
    assert_eq!(level.totals().seats, 1);
    drop(seats);
    assert!(level.is_idle());
}

#[tokio::test(start_paused = true)]
async fn more_seats_are_used_at_once_and_fewer_as_they_get_free() {
    let level = level(QUEUES, 1);
    let held = granted(level.start(alone(1), "u"));
    let mut next = Box::pin(waits(level.start(alone(1), "u")).seats(PATIENCE));
    assert!(next.as_mut().now_or_never().is_none());
    level.reconfigure(QUEUES, 2, 2);
    let seats = next.now_or_never().expect("it has them");
    level.reconfigure(Discipline::Reject, 1, 1);
    drop(held);
    assert!(is_rejected(&level.start(alone(1), "u")));
    drop(seats);
    assert!(level.queues().is_empty());
    let _again = granted(level.start(alone(1), "u"));
}

/// A tenant of a simulated server: sends requests in a closed loop.
struct Tenant {
    flow: u64,
    /// Requests at a time.
    parallel: usize,
    /// Time that each takes.
    takes: Duration,
    seats: usize,
}

/// Requests served to each tenant in ten virtual seconds. Deterministic.
async fn simulate(limit: usize, tenants: &[Tenant]) -> Vec<usize> {
    let level = level(Discipline::Queue { queues: 128, hand: 6, length: 50 }, limit);
    let local = tokio::task::LocalSet::new();
    let counts: Vec<Rc<Cell<usize>>> = tenants.iter().map(|_| Rc::default()).collect();
    let end = Instant::now() + Duration::from_secs(10);
    for (tenant, served) in tenants.iter().zip(&counts) {
        for _ in 0..tenant.parallel {
            let (level, served) = (Arc::clone(&level), Rc::clone(served));
            let (wanted, takes) = (wanted(tenant.flow, tenant.seats), tenant.takes);
            local.spawn_local(async move {
                while Instant::now() < end {
                    let seats = match level.start(wanted.clone(), "u") {
                        Started::Granted(grant) => Ok(grant),
                        Started::Waits(waiting) => waiting.seats(PATIENCE).await,
                        Started::Rejected => Err(RejectReason::QueueFull),
                    };
                    if seats.is_ok() {
                        tokio::time::sleep(takes).await;
                        served.set(served.get() + 1);
                    } else {
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            });
        }
    }
    local.await;
    assert!(level.is_idle() && level.queues().is_empty());
    counts.iter().map(|count| count.get()).collect()
}

fn tenant(flow: u64, parallel: usize) -> Tenant {
    Tenant { flow, parallel, takes: Duration::from_millis(10), seats: 1 }
}

/// Four tenants that want no more than their part, and one that wants ten times as much.
#[tokio::test(start_paused = true)]
async fn a_greedy_tenant_leaves_others_their_throughput() {
    let others = || (1..=4).map(|flow| tenant(flow, 4));
    let quiet = simulate(20, &others().collect::<Vec<_>>()).await;
    let crowd: Vec<Tenant> = others().chain([tenant(99, 40)]).collect();
    let busy = simulate(20, &crowd).await;
    for (quiet, busy) in quiet.iter().zip(&busy) {
        assert!(busy * 100 >= quiet * 95, "{quiet} {busy}");
    }
    assert!(busy[4] >= quiet[0] * 95 / 100, "it has its own part: {busy:?}");
}

/// The same with slow requests, and with wide ones.
#[tokio::test(start_paused = true)]
async fn greed_is_measured_in_seat_seconds() {
    let others = || (1..=4).map(|flow| tenant(flow, 4));
    let quiet = simulate(20, &others().collect::<Vec<_>>()).await;
    let slow = Tenant { takes: Duration::from_millis(100), ..tenant(99, 40) };
    let wide = Tenant { seats: 4, ..tenant(99, 40) };
    for greedy in [slow, wide] {
        let crowd: Vec<Tenant> = others().chain([greedy]).collect();
        let busy = simulate(20, &crowd).await;
        let [quiet, busy]: [usize; 2] = [quiet.iter().sum(), busy[..4].iter().sum()];
        assert!(busy * 100 >= quiet * 95, "{quiet} {busy}");
    }
}

#[tokio::test(start_paused = true)]
async fn hungry_tenants_get_equal_parts() {
    let served = simulate(12, &(1..=6).map(|flow| tenant(flow, 20)).collect::<Vec<_>>()).await;
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(least * 100 >= most * 90, "{served:?}");
    assert!(served.iter().sum::<usize>() >= 11_500, "no seat is idle: {served:?}");
}
