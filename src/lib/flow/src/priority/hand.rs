//! Shuffle sharding: the queues that a flow may use.

/// Max queues of a flow.
pub(super) const MAX_HAND: usize = 15;

/// Deals `count` different numbers below `queues`, chosen by `flow`. At least one, at most
/// [`MAX_HAND`].
pub(super) fn deal(
    flow: u64,
    queues: u32,
    count: u8,
) -> impl ExactSizeIterator<Item = u32> + Clone {
    let mut hand = [0_u32; MAX_HAND];
    let queues = queues.max(1);
    let count = usize::from(count).clamp(1, MAX_HAND.min(queues as usize));
    let mut entropy = flow;
    for at in 0..count {
        let left = u64::from(queues) - at as u64;
        // A number among those left, which are renumbered without the earlier ones.
        let mut number = u32::try_from(entropy % left).unwrap_or(0);
        entropy /= left;
        for earlier in &hand[..at] {
            if number >= *earlier {
                number += 1;
            }
        }
        // Sorted, so that one pass skips all earlier numbers.
        let place = hand[..at].partition_point(|earlier| *earlier < number);
        hand.copy_within(place..at, place + 1);
        hand[place] = number;
    }
    hand.into_iter().take(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};

    #[test]
    fn hands_are_sets_of_queues() {
        let hash = RandomState::new();
        for (queues, count, dealt) in [(1, 1, 1), (4, 4, 4), (16, 4, 4), (128, 6, 6), (2, 6, 2)] {
            for flow in 0..200 {
                let hand: HashSet<u32> = deal(hash.hash_one(flow), queues, count).collect();
                assert_eq!(hand.len(), dealt, "{queues} {count}");
                assert!(hand.iter().all(|queue| *queue < queues));
            }
        }
    }

    #[test]
    fn a_flow_keeps_its_hand_and_flows_are_spread_evenly() {
        let hash = RandomState::new();
        let mut uses = [0_u32; 64];
        for flow in 0..6400 {
            let flow = hash.hash_one(flow);
            assert!(deal(flow, 64, 6).eq(deal(flow, 64, 6)));
            deal(flow, 64, 6).for_each(|queue| uses[queue as usize] += 1);
        }
        assert!(uses.iter().all(|count| (400..800).contains(count)), "{uses:?}");
    }

    #[test]
    fn a_greedy_flow_rarely_covers_the_hand_of_another() {
        let hash = RandomState::new();
        let greedy: HashSet<u32> = deal(hash.hash_one("greedy"), 128, 6).collect();
        let covered = (0..10_000)
            .filter(|flow| deal(hash.hash_one(flow), 128, 6).all(|queue| greedy.contains(&queue)));
        assert_eq!(covered.count(), 0, "one in 5 * 10^9");
    }
}
