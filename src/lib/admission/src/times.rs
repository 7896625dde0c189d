//! How long admission takes, by step and in all, with kube-apiserver's names.

use crate::candidate::operation_name;
use ferrokube_registry::Operation;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of buckets, in seconds.
const BOUNDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [Operation; 4] =
    [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];
const PHASES: [AdmissionPhase; 2] = [AdmissionPhase::Admit, AdmissionPhase::Validate];

/// Whether steps may change the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionPhase {
    Admit,
    Validate,
}

impl AdmissionPhase {
    fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// Every write observes several: without a lock.
#[derive(Debug, Default)]
struct TimeHistogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl TimeHistogram {
    fn observe(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Durations of a step, by phase, operation, and whether the write was rejected.
#[derive(Debug, Default)]
pub(crate) struct StepTimes([[[TimeHistogram; 2]; OPERATIONS.len()]; PHASES.len()]);

impl StepTimes {
    pub(crate) fn observe(
        &self,
        phase: AdmissionPhase,
        operation: Operation,
        elapsed: Duration,
        rejected: bool,
    ) {
        self.0[phase as usize][operation as usize][usize::from(rejected)].observe(elapsed);
    }

    /// Passes each histogram with its labels to `show`.
    fn each(&self, mut show: impl FnMut(StepLabels, &TimeHistogram) -> fmt::Result) -> fmt::Result {
        for phase in PHASES {
            for operation in OPERATIONS {
                let by_result = &self.0[phase as usize][operation as usize];
                for (rejected, histogram) in ["false", "true"].into_iter().zip(by_result) {
                    let (operation, r#type) = (operation_name(operation), phase.name());
                    show(StepLabels { operation, rejected, r#type }, histogram)?;
                }
            }
        }
        Ok(())
    }
}

/// Times the steps that follow each other.
pub(crate) struct StepClock {
    start: Instant,
    last: Instant,
}

impl StepClock {
    pub(crate) fn start() -> Self {
        let now = Instant::now();
        Self { start: now, last: now }
    }

    /// Since the last call.
    pub(crate) fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }

    /// Up to the last lap.
    pub(crate) fn total(&self) -> Duration {
        self.last - self.start
    }
}

#[derive(Clone, Copy, Debug, EncodeLabelSet)]
struct StepLabels {
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Copy, Debug, EncodeLabelSet)]
struct NamedStepLabels {
    name: &'static str,
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

/// Metrics of the durations of a chain, and of each of its steps.
#[derive(Clone, Debug)]
pub struct AdmissionTimes {
    pub(crate) steps: Vec<(&'static str, Arc<StepTimes>)>,
    /// All steps together.
    pub(crate) all: Arc<StepTimes>,
}

impl AdmissionTimes {
    /// Exports the metrics.
    pub fn register(self, registry: &mut Registry) {
        registry.register_collector(Box::new(self));
    }
}

impl Collector for AdmissionTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "apiserver_admission_step_admission_duration",
            "Time of all admission steps of a write",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        self.all.each(|labels, histogram| encode(histogram, &labels, &mut family))?;
        let mut family = encoder.encode_descriptor(
            "apiserver_admission_controller_admission_duration",
            "Time of one admission step of a write",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (name, times) in &self.steps {
            times.each(|StepLabels { operation, rejected, r#type }, histogram| {
                encode(
                    histogram,
                    &NamedStepLabels { name, operation, rejected, r#type },
                    &mut family,
                )
            })?;
        }
        Ok(())
    }
}

/// Writes no series without observations.
fn encode<L: EncodeLabelSet>(
    histogram: &TimeHistogram,
    labels: &L,
    family: &mut MetricEncoder<'_>,
) -> fmt::Result {
    let counts = histogram.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
    let count = counts.iter().sum();
    if count == 0 {
        return Ok(());
    }
    let bounds = BOUNDS.into_iter().chain([f64::MAX]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    let sum = Duration::from_nanos(histogram.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
    family.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}
