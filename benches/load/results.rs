//! Results of a run, with their JSON form.

use crate::measure::Sample;
use crate::noise::{Machine, Noise};
use crate::stats::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One round of one scenario on one target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Number of operations.
    pub(crate) count: usize,
    /// CPU milliseconds of the server per operation; 0 if unknown (another machine).
    pub(crate) cpu_ms: f64,
    /// Operations per second.
    pub(crate) rate: f64,
    /// Median latency.
    pub(crate) p50_ms: f64,
    /// 99th percentile latency.
    pub(crate) p99_ms: f64,
    /// Additional figures of the scenario.
    pub(crate) figures: BTreeMap<String, f64>,
}

impl From<Sample> for Round {
    fn from(sample: Sample) -> Self {
        Self {
            count: sample.count,
            cpu_ms: sample.cpu_ms(),
            rate: sample.rate(),
            p50_ms: sample.percentile(0.5),
            p99_ms: sample.percentile(0.99),
            figures: sample
                .figures
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        }
    }
}

/// All rounds of one scenario on one target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Scenario name.
    pub(crate) scenario: String,
    /// Target name.
    pub(crate) target: String,
    /// In order. The same index on another target ran next to it.
    pub(crate) rounds: Vec<Round>,
}

impl Measured {
    /// A figure of every round.
    pub(crate) fn values(&self, figure: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    /// Median and interval of a figure.
    pub(crate) fn spread(&self, figure: impl Fn(&Round) -> f64) -> Spread {
        Spread::of(self.values(figure))
    }
}

/// Figures by size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Curve {
    /// What grows, such as `objects`.
    pub(crate) name: String,
    /// Target name.
    pub(crate) target: String,
    /// Size and figures.
    pub(crate) points: Vec<(f64, BTreeMap<String, f64>)>,
}

/// A whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Environment, one per merged run.
    pub(crate) machines: Vec<Machine>,
    /// Sampled before every round.
    pub(crate) noise: Vec<Noise>,
    /// Results by scenario and target.
    pub(crate) measured: Vec<Measured>,
    /// Results of curves.
    pub(crate) curves: Vec<Curve>,
}

impl Results {
    /// Adds a round.
    pub(crate) fn add(&mut self, scenario: &str, target: &str, round: Round) {
        match self
            .measured
            .iter_mut()
            .find(|measured| measured.scenario == scenario && measured.target == target)
        {
            Some(measured) => measured.rounds.push(round),
            None => self.measured.push(Measured {
                scenario: scenario.to_owned(),
                target: target.to_owned(),
                rounds: vec![round],
            }),
        }
    }

    /// Results of a scenario, by target, in command line order.
    pub(crate) fn of<'a>(&'a self, scenario: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.measured.iter().filter(move |measured| measured.scenario == scenario)
    }

    /// Scenario names in order of execution.
    pub(crate) fn scenarios(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for measured in &self.measured {
            if !names.contains(&measured.scenario.as_str()) {
                names.push(&measured.scenario);
            }
        }
        names
    }

    /// Merges a later run, which wins for scenarios measured by both.
    pub(crate) fn merge(&mut self, later: Self) {
        self.measured.retain(|old| {
            !later
                .measured
                .iter()
                .any(|new| new.scenario == old.scenario && new.target == old.target)
        });
        self.curves.retain(|old| {
            !later.curves.iter().any(|new| new.name == old.name && new.target == old.target)
        });
        self.machines.extend(later.machines);
        self.noise.extend(later.noise);
        self.measured.extend(later.measured);
        self.curves.extend(later.curves);
    }
}
