//! Tests of slots: their order, their kinds, and what is away.

use super::untaken::TAKEN_WITHIN;
use super::*;

fn took(micros: u64) -> Took {
    Took { micros, earlier_micros: 0 }
}

fn take(waiting: &mut SlotRequest) -> Option<Slot> {
    match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(slot) => Some(slot),
        Poll::Pending => None,
    }
}

#[test]
fn free_memory_is_returned_after_a_very_long_computation() {
    use std::sync::atomic::{AtomicU32, Ordering};
    thread_local! {
        static TRIMMED: AtomicU32 = const { AtomicU32::new(0) };
    }
    work::set_memory_trimmer(|| {
        TRIMMED.with(|count| count.fetch_add(1, Ordering::Relaxed));
    });
    let trimmed = || TRIMMED.with(|count| count.load(Ordering::Relaxed));
    let slots = Slots::new(1, 0);
    drop(take(&mut slots.wait(1, 0)).expect("it is free"));
    assert_eq!(trimmed(), 0);
    let slot = take(&mut slots.wait(1, 0)).expect("it is free");
    while slot.took().whole() < TRIM_MICROS {
        std::hint::spin_loop();
    }
    drop(slot);
    assert_eq!(trimmed(), 1);
}

#[test]
fn fault_34_callers_have_separate_queues() {
    let slots = Slots::new(1, 0);
    let mut greedy: Vec<SlotRequest> = (0..100).map(|_| slots.wait(1, 0)).collect();
    let first = take(&mut greedy[0]).expect("nobody is before it");
    let mut other = slots.wait(2, 0);
    assert!(take(&mut other).is_none());
    drop(first);
    let others = take(&mut other).expect("its turn is next");
    assert!(take(&mut greedy[1]).is_none());
    drop(others);
    assert!(take(&mut greedy[1]).is_some(), "and then that of the one who waits");
}

#[test]
fn fault_34_slots_are_shared_by_time() {
    let slots = Slots::new(1, 0);
    let held = take(&mut slots.wait(0, 0)).expect("it is free");
    let mut waiting: Vec<(u64, SlotRequest)> =
        [1, 1, 1, 2, 2, 2].into_iter().map(|caller| (caller, slots.wait(caller, 0))).collect();
    drop(held);
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let at = waiting
            .iter_mut()
            .position(|(_, waiting)| take(waiting).map(std::mem::forget).is_some())
            .expect("one has the slot");
        let (caller, _) = waiting.remove(at);
        order.push(caller);
        // Computations of caller 1 take ten times as long.
        slots.release(caller, SlotKind::Ordinary, took(if caller == 1 { 10_000 } else { 1000 }));
    }
    assert_eq!(order, [1, 2, 2, 2, 1, 1]);
    assert!(slots.lock().callers.is_empty(), "nobody is remembered");
}

/// One request after the other: in between the caller is idle.
#[test]
fn fault_34_a_caller_that_never_waits_in_line_pays_for_its_time_too() {
    let slots = Slots::new(1, 0);
    let first = take(&mut slots.wait(1, 0)).expect("it is free");
    let mut others: Vec<SlotRequest> = (0..9).map(|_| slots.wait(2, 0)).collect();
    std::mem::forget(first);
    slots.release(1, SlotKind::Ordinary, took(10_000));
    let mut next = slots.wait(1, 0);
    for (at, other) in others.iter_mut().enumerate() {
        assert!(take(&mut next).is_none(), "it had ten times as much as {at}");
        std::mem::forget(take(other).expect("the one that had less"));
        slots.release(2, SlotKind::Ordinary, took(1000));
    }
    drop((take(&mut next).expect("nobody else waits"), next));
    assert!(slots.lock().callers.is_empty(), "nobody computes, and nobody owes anything");
}

#[test]
fn callers_without_a_debt_are_dropped() {
    let slots = Slots::new(1, 0);
    let mut busy = slots.wait(0, 0);
    let _held = take(&mut busy).expect("it is free");
    for caller in 1..10_000 {
        drop(slots.wait(caller, 0));
    }
    let state = slots.lock();
    assert_eq!((state.callers.len(), state.busy), (1, 1));
}

#[test]
fn fault_34_a_caller_that_computes_nothing_waits_for_no_computation() {
    let slots = Slots::new(1, 1);
    let mut greedy: Vec<SlotRequest> = (0..3).map(|_| slots.wait(1, 0)).collect();
    let long = take(&mut greedy[0]).expect("it is free");
    let mut others: Vec<SlotRequest> = (0..2).map(|_| slots.wait(2, 0)).collect();
    let spare = take(&mut others[0]).expect("a spare one");
    assert!(take(&mut greedy[1]).is_none() && take(&mut others[1]).is_none(), "one each");
    drop(spare);
    let spare = take(&mut others[1]).expect("it has least time");
    assert!(take(&mut greedy[1]).is_none(), "the spare one is not for a caller that computes");
    drop((long, spare));
    let next = take(&mut greedy[1]).expect("both are free");
    assert!(take(&mut greedy[2]).is_none());
    drop((next, greedy));
    let state = slots.lock();
    assert!(state.free == 1 && state.spare == 1 && state.callers.is_empty());
}

/// A computation cannot be interrupted, but gives way between its parts: to callers of short
/// ones. What has begun goes before other long ones, so that few hold memory at a time.
#[test]
fn fault_34_a_long_computation_gives_way_to_short_ones() {
    const LIMIT: Duration = Duration::from_secs(60);
    let slots = Slots::new(1, 0);
    let first = take(&mut slots.wait(3, 0)).expect("it is free");
    let long = slots.wait(1, 0);
    std::mem::forget(first);
    slots.release(3, SlotKind::Ordinary, Took { micros: 1, earlier_micros: LONG_MICROS });
    let long = take(&mut { long }).expect("it is free");
    let (mut next, mut known) = (slots.wait(1, 0), slots.wait(3, 0));
    let mut long = long.give_way(LIMIT);
    assert!(long.is_held(), "those that wait are long, too");
    let mut short = slots.wait(2, 0);
    std::thread::scope(|scope| {
        let long = scope.spawn(move || long.give_way(LIMIT));
        let others = loop {
            if let Some(slot) = take(&mut short) {
                break slot;
            }
            std::thread::yield_now();
        };
        assert!(take(&mut next).is_none() && take(&mut known).is_none());
        drop(others);
        let mut long = long.join().expect("no panic");
        assert!(long.is_held(), "its turn again");
        assert!(take(&mut next).is_none() && take(&mut known).is_none(), "it has begun");
        drop(long);
        assert!(take(&mut next).or_else(|| take(&mut known)).is_some());
        drop((next, known));
    });
    let state = slots.lock();
    assert!(state.free == 1 && state.queue.is_empty() && state.resuming.is_empty());
}

#[test]
fn fault_34_a_computation_gives_way_to_much_shorter_ones() {
    let slots = Slots::new(0, 0);
    let _waiting = [3, 2, 1].map(|caller| slots.wait(caller, 0));
    let mut state = slots.lock();
    for (caller, micros) in [(1, 60_000), (2, 5_000), (3, 40_000)] {
        state.remember(caller, micros);
    }
    let to = [1, 2, 3, 4].map(|caller| state.shorter_waiter(caller, SlotKind::Ordinary, 1_000));
    assert_eq!(to, [Some(2), None, Some(2), None]);
    let longer = state.shorter_waiter(4, SlotKind::Ordinary, 20_000);
    assert_eq!(longer, Some(2), "it is as long by now");
    state.remember(2, LONG_MICROS);
    assert_eq!(state.longest(2, Instant::now()), 4_375, "older ones count less");
}

#[test]
fn fault_34_callers_of_very_long_computations_get_no_spare_slot() {
    let slots = Slots::new(1, 1);
    for (caller, micros) in [(1, SPARE_MICROS + 1), (2, SPARE_MICROS + 1), (3, SPARE_MICROS)] {
        slots.lock().remember(caller, micros);
    }
    let mut waiting = [1, 2, 3].map(|caller| slots.wait(caller, 0));
    let first = take(&mut waiting[0]).expect("it is free");
    assert!(take(&mut waiting[1]).is_none(), "only a spare one is left");
    let third = take(&mut waiting[2]).expect("a spare one");
    // What gave way is resumed in no spare slot, either.
    std::thread::scope(|scope| {
        let mut short = slots.wait(4, 0);
        let first = scope.spawn(move || first.give_way(Duration::from_secs(60)));
        let passed_on = loop {
            if let Some(slot) = take(&mut short) {
                break slot;
            }
            std::thread::yield_now();
        };
        drop(third);
        assert!(slots.lock().spare == 1 && slots.lock().resuming.len() == 1);
        drop(passed_on);
        assert!(first.join().expect("no panic").is_held());
    });
    assert!(take(&mut waiting[1]).is_some());
}

/// Computes until the slot was held for some processor time.
fn spin(slot: &Slot, micros: u64) {
    while slot.took().micros < micros {
        std::hint::spin_loop();
    }
}

#[test]
fn fault_34_a_computation_that_continues_without_a_slot_is_charged_and_gets_the_next() {
    let slots = Slots::new(1, 1);
    let long = take(&mut slots.wait(1, 0)).expect("it is free");
    let mut spare = slots.wait(4, 0);
    let mut other = slots.wait(2, 0);
    let spare = take(&mut spare).expect("a spare one");
    let mut long = long.give_way(Duration::from_millis(1));
    assert!(!long.is_held(), "passed on");
    let passed_on = take(&mut other).expect("passed on");
    let mut third = slots.wait(3, 0);
    let passed_on = passed_on.give_way(Duration::from_secs(60));
    assert!(take(&mut third).is_none(), "one continues without a slot: nothing is known of it");
    spin(&long, 2 * LONG_MICROS);
    let before = slots.lock().callers[&1].granted_micros;
    drop(long);
    {
        let state = slots.lock();
        assert!(state.callers[&1].granted_micros >= before + 2 * LONG_MICROS);
        assert!(state.longest(1, Instant::now()) >= 2 * LONG_MICROS);
        assert!(state.away == 0 && state.resuming.is_empty());
    }
    let mut passed_on = passed_on.give_way(Duration::from_millis(1));
    assert!(!passed_on.is_held());
    drop(take(&mut third).expect("passed on again"));
    assert!(passed_on.is_held(), "the next free slot is its own");
    drop((passed_on, spare));
    drop(take(&mut slots.wait(5, 0)).expect("all are free"));
    let state = slots.lock();
    assert!(state.free == 1 && state.spare == 1 && state.callers.is_empty());
}

/// A computation of which nothing was known precedes another one, and turns out to be long.
#[test]
fn fault_34_a_computation_without_a_slot_keeps_no_short_one_waiting() {
    let slots = Slots::new(1, 0);
    let long = take(&mut slots.wait(1, 0)).expect("it is free");
    let (mut unknown, mut other) = (slots.wait(2, 0), slots.wait(3, 0));
    let mut long = long.give_way(Duration::ZERO);
    let unknown = take(&mut unknown).expect("passed on");
    let unknown = unknown.give_way(Duration::ZERO);
    assert!(take(&mut other).is_none() && !long.is_held(), "nothing is known of it");
    let mut short = slots.wait(4, ASSUMED_MICROS);
    spin(&unknown, ASSUMED_MICROS * SHORTER + SHORTER);
    let mut unknown = unknown.give_way(Duration::ZERO);
    let passed_on = take(&mut short).expect("it is known to be short");
    let mut next = slots.wait(5, 1);
    spin(&passed_on, SHORTER);
    let passed_on = passed_on.give_way(Duration::ZERO);
    assert!(take(&mut next).is_none(), "two continue without a slot");
    drop(passed_on);
    assert!(long.is_held() && !unknown.is_held(), "the next free slot is its own");
    drop((long, unknown, other, next));
    let state = slots.lock();
    assert!(state.free == 1 && state.away == 0 && state.callers.is_empty());
}

/// A caller that has one of the spare slots is given no second one.
#[test]
fn fault_34_a_spare_slot_stays_one() {
    let slots = Slots::new(2, 2);
    let mut waiting = [3, 4, 1, 2].map(|caller| slots.wait(caller, 0));
    let held: Vec<Slot> = waiting.iter_mut().filter_map(take).collect();
    let [ordinary, other, spare, second]: [Slot; 4] = held.try_into().ok().expect("all four");
    let mut next = slots.wait(2, 0);
    let mut spare = spare.give_way(Duration::ZERO);
    assert!(spare.is_held() && take(&mut next).is_none(), "it has a spare one");
    slots.lock().remember(5, SPARE_MICROS + 1);
    let mut long = slots.wait(5, 0);
    spin(&spare, SPARE_MICROS * SHORTER + SHORTER);
    let mut spare = spare.give_way(Duration::ZERO);
    assert!(spare.is_held() && take(&mut long).is_none(), "its computations are very long");
    drop((ordinary, other, spare, second, next, long));
    let state = slots.lock();
    assert_eq!((state.free, state.spare, state.callers.len()), (2, 2, 0));
}

proptest::proptest! {
    #[test]
    fn slots_are_returned_as_what_they_were_taken_as(
        kinds in (1..3_usize, 0..3_usize),
        steps in proptest::collection::vec((0..7_u8, 0..64_usize), 1..80),
    ) {
        let slots = Slots::new(kinds.0, kinds.1);
        let (mut waiting, mut held) = (Vec::new(), Vec::<Slot>::new());
        for (step, pick) in steps {
            let at = |count: usize| pick % count.max(1);
            match step {
                0 | 1 => {
                    let expected = if pick < 48 { 0 } else { SPARE_MICROS + 1 };
                    waiting.push(slots.wait(pick as u64 % 5, expected));
                }
                2 => {
                    let at = at(waiting.len());
                    held.extend(waiting.get_mut(at).and_then(take));
                }
                3 if !waiting.is_empty() => drop(waiting.swap_remove(at(waiting.len()))),
                4 if !held.is_empty() => drop(held.swap_remove(at(held.len()))),
                5 if !held.is_empty() => {
                    let slot = held.swap_remove(at(held.len()));
                    held.push(slot.give_way(Duration::ZERO));
                }
                6 => slots.lock().withdraw_late(Instant::now() + TAKEN_WITHIN),
                _ => {}
            }
            waiting.retain(|request: &SlotRequest| !request.is_taken);
        }
        drop((waiting, held));
        let state = slots.lock();
        proptest::prop_assert_eq!((state.free, state.spare), kinds);
        proptest::prop_assert!(state.callers.is_empty() && state.queue.is_empty());
        proptest::prop_assert!(state.away == 0 && state.resuming.is_empty());
    }
}

#[test]
fn fault_34_a_computation_that_will_be_long_counts_as_long() {
    let slots = Slots::new(1, 1);
    let long = take(&mut slots.wait(1, 0)).expect("it is free");
    let mut other = slots.wait(2, SPARE_MICROS + 1);
    assert!(take(&mut other).is_none(), "no spare slot, although nothing is known of it");
    let mut short = slots.wait(3, SPARE_MICROS);
    let spare = take(&mut short).expect("a spare one");
    spin(&long, 1);
    let mut long = long.give_way(Duration::from_secs(60));
    assert!(long.is_held(), "the one that waits is no shorter");
    drop((long, spare));
    assert!(take(&mut other).is_some());
}

#[test]
fn a_dropped_request_leaves_the_queue() {
    let slots = Slots::new(1, 0);
    let mut first = slots.wait(1, 0);
    let (second, granted) = (slots.wait(1, 0), slots.wait(2, 0));
    assert_eq!(slots.waiting(1), 1);
    drop(second);
    assert_eq!(slots.waiting(1), 0);
    drop(take(&mut first));
    // Granted, but never taken.
    drop(granted);
    let state = slots.lock();
    assert!(state.free == 1 && state.queue.is_empty() && state.callers.is_empty());
}

/// Such as that of a watch whose client has closed its window.
#[test]
fn fault_34_a_grant_that_is_not_taken_goes_to_the_next_one() {
    let (slots, began) = (Slots::new(1, 0), Instant::now());
    let (mut stalled, mut later, mut next) = (slots.wait(1, 0), slots.wait(1, 0), slots.wait(2, 0));
    slots.lock().withdraw_late(began);
    assert!(take(&mut next).is_none(), "it is not late");
    slots.lock().withdraw_late(Instant::now() + TAKEN_WITHIN);
    let held = take(&mut next).expect("the slot of the first one");
    assert!(take(&mut stalled).is_none(), "it waits again");
    drop(held);
    assert!(take(&mut later).is_none(), "the first one precedes it");
    drop(take(&mut stalled).expect("granted again"));
    let last = slots.wait(1, 0);
    slots.lock().withdraw_late(Instant::now() + TAKEN_WITHIN);
    // Withdrawn, and granted.
    drop((later, last));
    let state = slots.lock();
    assert!(state.free == 1 && state.queue.is_empty() && state.callers.is_empty());
}

/// With busy cores, all may be late.
#[test]
fn fault_34_one_of_those_that_are_late_takes_the_slot_of_another() {
    let slots = Slots::new(1, 0);
    let (mut first, mut second) = (slots.wait(1, 0), slots.wait(2, 0));
    let withdraw = |micros| {
        slots.lock().withdraw_late(Instant::now() + Duration::from_micros(micros));
    };
    withdraw(60_000_000);
    assert!(take(&mut first).is_none(), "the other one has computed less");
    withdraw(1_000_000);
    drop(take(&mut second).expect("the first one has not taken it"));
    drop(take(&mut first).expect("it is free"));
    let state = slots.lock();
    assert!(state.free == 1 && state.queue.is_empty() && state.callers.is_empty());
}
