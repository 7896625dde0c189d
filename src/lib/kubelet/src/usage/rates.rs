//! CPU rates from the difference of two samples, for runtimes that report none.

use super::summary::{CpuSample, UsageSummary};
use crate::next::WallTime;
use std::collections::HashMap;

/// The last samples of existing containers.
#[derive(Default)]
pub(super) struct CpuRates(HashMap<String, LastSample>);

#[derive(Clone, Copy)]
struct LastSample {
    time: WallTime,
    nanoseconds: u64,
    rate: Option<u64>,
}

impl CpuRates {
    /// Fills in missing rates, and keeps the samples for the next summary.
    pub(super) fn fill(&mut self, summary: &mut UsageSummary) {
        let last = std::mem::take(&mut self.0);
        let mut fill = |id: String, sample: &mut Option<CpuSample>| {
            let Some(sample) = sample else { return };
            let Some(new) = LastSample::after(last.get(&id), sample) else { return };
            sample.usage_nano_cores = sample.usage_nano_cores.or(new.rate);
            self.0.insert(id, new);
        };
        fill(String::new(), &mut summary.node.cpu);
        for pod in &mut summary.pods {
            fill(format!("pod/{}", pod.pod_ref.uid), &mut pod.cpu);
            for container in &mut pod.containers {
                fill(format!("container/{}", container.id), &mut container.cpu);
            }
        }
    }
}

impl LastSample {
    fn after(last: Option<&Self>, sample: &CpuSample) -> Option<Self> {
        let (time, nanoseconds) = (sample.time, sample.usage_core_nano_seconds?);
        let rate = last.and_then(|last| {
            let elapsed = u64::try_from(time.saturating_sub(last.time)).ok().filter(|it| *it > 0);
            // A runtime that repeats a sample repeats its rate.
            let Some(elapsed) = elapsed else { return last.rate };
            // The counter went back: a container was restarted.
            let used = u128::from(nanoseconds.checked_sub(last.nanoseconds)?);
            u64::try_from(used * 1_000_000_000 / u128::from(elapsed)).ok()
        });
        Some(Self { time, nanoseconds, rate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_time_between_two_samples() {
        let second = 1_000_000_000;
        let at = |time: i64, used: u64| CpuSample {
            time: time * second,
            usage_nano_cores: None,
            usage_core_nano_seconds: Some(used),
        };
        let first = LastSample::after(None, &at(10, 100)).expect("it has a use");
        assert_eq!(first.rate, None, "of one sample");
        let next = LastSample::after(Some(&first), &at(14, 100 + 8_000_000_000));
        let next = next.expect("it has a use");
        assert_eq!(next.rate, Some(2_000_000_000), "two cores");
        let repeated = LastSample::after(Some(&next), &at(14, 100 + 8_000_000_000));
        assert_eq!(repeated.and_then(|it| it.rate), next.rate);
        let less = LastSample::after(Some(&next), &at(15, 1)).expect("it has a use");
        assert_eq!(less.rate, None);
        let nothing = CpuSample::default();
        assert!(LastSample::after(Some(&next), &nothing).is_none());
    }
}
