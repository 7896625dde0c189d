//! The sampling decision. The SDK's sampler decides the same at a higher cost: it builds a list of
//! attributes per decision.

use crate::id::TraceId;

/// Samples a share of traces by trace id, as OpenTelemetry's `TraceIdRatioBased`: all processes
/// with the same rate sample the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// 2^63: all traces.
    bound: u64,
}

/// The rate of all traces.
const MILLION: u32 = 1_000_000;

impl Sampler {
    /// `rate` per million traces, capped at all. 0: only those sampled by trusted senders.
    pub fn per_million(rate: u32) -> Self {
        let share = u128::from(rate.min(MILLION)) << 63;
        Self { bound: u64::try_from(share / u128::from(MILLION)).expect("at most 2^63") }
    }

    /// The sampler of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`, always parent-based;
    /// rate 0 if unset or unsupported.
    pub(super) fn of_environment() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Self::named(
            variable("OTEL_TRACES_SAMPLER").trim(),
            variable("OTEL_TRACES_SAMPLER_ARG").trim(),
        )
    }

    fn named(name: &str, argument: &str) -> Self {
        match name.strip_prefix("parentbased_").unwrap_or(name) {
            "always_on" => Self::per_million(MILLION),
            "traceidratio" => {
                let ratio = argument
                    .parse::<f64>()
                    .ok()
                    .filter(|ratio| (0.0..=1.0).contains(ratio))
                    .unwrap_or(1.0);
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "between 0 and a million"
                )]
                Self::per_million((ratio * f64::from(MILLION)).round() as u32)
            }
            "" | "always_off" => Self::per_million(0),
            _ => {
                tracing::warn!(target: "ferrokube::spans", sampler = name, "OTEL_TRACES_SAMPLER is not supported, only sampled parents count");
                Self::per_million(0)
            }
        }
    }

    /// Whether this trace is sampled.
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
        for (rate, low, high) in [
            (0, 0, 0),
            (1_000_000, 10_000, 10_000),
            (u32::MAX, 10_000, 10_000),
            (250_000, 2_200, 2_800),
        ] {
            let sampler = Sampler::per_million(rate);
            let sampled = (0..10_000).filter(|_| sampler.samples(TraceId::random())).count();
            assert!((low..=high).contains(&sampled), "{rate}: {sampled}");
        }
    }

    #[test]
    fn opentelemetrys_names_mean_rates() {
        for (name, argument, want) in [
            ("", "", 0),
            ("always_off", "", 0),
            ("parentbased_always_off", "", 0),
            ("always_on", "", MILLION),
            ("parentbased_always_on", "0.1", MILLION),
            ("traceidratio", "0.25", 250_000),
            ("parentbased_traceidratio", "0", 0),
            ("traceidratio", "", MILLION),
            ("traceidratio", "-1", MILLION),
            ("jaeger_remote", "", 0),
        ] {
            assert_eq!(
                Sampler::named(name, argument),
                Sampler::per_million(want),
                "{name} {argument}"
            );
        }
    }

    #[test]
    fn sampling_decisions_match_other_implementations() {
        let of = |text: &str| Sampler::per_million(500_000).samples(text.parse().unwrap());
        assert!(of("ffffffffffffffff7fffffffffffffff"));
        assert!(!of("00000000000000008000000000000000"));
    }
}
