//! Which traces are sampled.

use crate::id::TraceId;

/// A share of all traces, chosen by trace id as OpenTelemetry's `TraceIDRatioBased` chooses: every process with the same rate chooses the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// 2^63 is all of them.
    bound: u64,
}

/// All traces.
const MILLION: u32 = 1_000_000;

impl Sampler {
    /// So many of a million; more than a million is all. 0: only what trusted senders sampled.
    pub fn per_million(rate: u32) -> Self {
        let share = u128::from(rate.min(MILLION)) << 63;
        Self { bound: u64::try_from(share / u128::from(MILLION)).expect("at most 2^63") }
    }

    /// Whether this trace is one of them.
    pub fn samples(self, trace: TraceId) -> bool {
        let bytes = trace.bytes();
        let low = u64::from_be_bytes(bytes[8..].try_into().expect("half of 16 bytes"));
        low >> 1 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_share_of_all_traces() {
        for (rate, low, high) in [(0, 0, 0), (1_000_000, 10_000, 10_000), (u32::MAX, 10_000, 10_000), (250_000, 2_200, 2_800)] {
            let sampler = Sampler::per_million(rate);
            let sampled = (0..10_000).filter(|_| sampler.samples(TraceId::random())).count();
            assert!((low..=high).contains(&sampled), "{rate}: {sampled}");
        }
    }

    #[test]
    fn the_choice_is_the_one_that_other_implementations_make() {
        let of = |text: &str| Sampler::per_million(500_000).samples(text.parse().unwrap());
        assert!(of("ffffffffffffffff7fffffffffffffff"));
        assert!(!of("00000000000000008000000000000000"));
    }
}
