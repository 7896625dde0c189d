//! Tables with ratios, and everything as JSON.

use crate::measure::Sample;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Scenario -> target -> rounds.
#[derive(Default)]
pub(crate) struct Results {
    rounds: BTreeMap<String, Vec<(String, Vec<Sample>)>>,
}

/// The median with the lowest and the highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let pick = |index: usize| values.get(index).copied().unwrap_or(0.0);
    (pick(values.len() / 2), pick(0), pick(values.len().saturating_sub(1)))
}

impl Results {
    /// Adds a round.
    pub(crate) fn add(&mut self, scenario: &str, target: &str, sample: Sample) {
        let targets = self.rounds.entry(scenario.to_owned()).or_default();
        match targets.iter_mut().find(|(name, _)| name == target) {
            Some((_, samples)) => samples.push(sample),
            None => targets.push((target.to_owned(), vec![sample])),
        }
    }

    /// One line for each target; with several, ratios to the first.
    pub(crate) fn print(&self, scenario: &str) {
        let Some(targets) = self.rounds.get(scenario) else { return };
        let mut first: Option<(f64, f64)> = None;
        for (name, samples) in targets {
            let (cpu, low, high) = spread(samples.iter().map(Sample::cpu_ms).collect());
            let (rate, ..) = spread(samples.iter().map(Sample::rate).collect());
            let rank = |share: f64| spread(samples.iter().map(|sample| sample.percentile(share)).collect()).0;
            let mut line = format!(
                "{scenario:<18} {name:<12} cpu {cpu:>9.4} ms/op [{low:.4} .. {high:.4}]  {rate:>9.0}/s  p50 {:>8.3}  p99 {:>8.3} ms",
                rank(0.5),
                rank(0.99)
            );
            for (figure, _) in &samples[0].extra {
                let (value, low, high) =
                    spread(samples.iter().filter_map(|sample| sample.extra.iter().find(|(own, _)| own == figure)).map(|(_, value)| *value).collect());
                line += &format!("  {figure} {value:.2} [{low:.2} .. {high:.2}]");
            }
            match first {
                None => first = Some((cpu, rate)),
                Some((other_cpu, other_rate)) => line += &format!("  x{:.2} cpu, x{:.2} rate of the first", cpu / other_cpu, rate / other_rate),
            }
            println!("{line}");
        }
    }

    /// All rounds.
    pub(crate) fn to_json(&self) -> String {
        let sample = |sample: &Sample| {
            let extra: BTreeMap<&str, f64> = sample.extra.iter().copied().collect();
            json!({"count": sample.count, "wall_ms": sample.wall.as_secs_f64() * 1e3, "cpu_ms_per_op": sample.cpu_ms(), "rate": sample.rate(),
                "p50_ms": sample.percentile(0.5), "p99_ms": sample.percentile(0.99), "extra": extra})
        };
        let mut out = serde_json::Map::new();
        for (scenario, targets) in &self.rounds {
            let targets: BTreeMap<&str, Vec<Value>> = targets.iter().map(|(name, samples)| (name.as_str(), samples.iter().map(sample).collect())).collect();
            out.insert(scenario.clone(), json!(targets));
        }
        serde_json::to_string_pretty(&out).unwrap_or_default()
    }
}
