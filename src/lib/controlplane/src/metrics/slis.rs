//! `/metrics/slis`: outcomes of health checks, scraped often for indicators of the service level
//! (KEP-3466).

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;

/// By check and probe. A check counts whenever its probe is requested as a whole.
#[derive(Debug, Default)]
pub(crate) struct CheckOutcomes(Mutex<BTreeMap<(String, String), ProbedCheck>>);

#[derive(Clone, Copy, Debug, Default)]
struct ProbedCheck {
    has_passed: bool,
    /// Failures and successes.
    counts: [u64; 2],
}

impl CheckOutcomes {
    pub(crate) fn observe(&self, probe: &str, check: &str, has_passed: bool) {
        let mut outcomes = self.0.lock();
        let outcome = outcomes.entry((check.to_owned(), probe.to_owned())).or_default();
        outcome.has_passed = has_passed;
        outcome.counts[usize::from(has_passed)] += 1;
    }

    /// As OpenMetrics text.
    pub(crate) fn text(&self) -> String {
        let outcomes = self.0.lock();
        let mut out = "# HELP kubernetes_healthcheck Whether a check passed when it ran last.\n\
            # TYPE kubernetes_healthcheck gauge\n"
            .to_owned();
        for ((check, probe), outcome) in outcomes.iter() {
            let has_passed = u8::from(outcome.has_passed);
            let labels = format!("name=\"{check}\",type=\"{probe}\"");
            // Writing to a string cannot fail.
            let _ = writeln!(out, "kubernetes_healthcheck{{{labels}}} {has_passed}");
        }
        out.push_str(
            "# HELP kubernetes_healthchecks Checks by their outcomes.\n\
            # TYPE kubernetes_healthchecks counter\n",
        );
        for ((check, probe), outcome) in outcomes.iter() {
            for (status, count) in ["error", "success"].into_iter().zip(outcome.counts) {
                if count > 0 {
                    let labels = format!("name=\"{check}\",status=\"{status}\",type=\"{probe}\"");
                    let _ = writeln!(out, "kubernetes_healthchecks_total{{{labels}}} {count}");
                }
            }
        }
        out.push_str("# EOF\n");
        out
    }
}
