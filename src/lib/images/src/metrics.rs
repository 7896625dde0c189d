//! Metrics of pulls, with kubelet's names where it has them.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Upper bounds of durations, in seconds.
const BUCKETS: [f64; 14] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Lower bounds of sizes and their labels, largest first.
const SIZES: [(u64, &str); 12] = [
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
];

type Durations = Family<Labels<1>, Histogram, fn() -> Histogram>;

/// Counts and durations of pulls.
pub struct PullMetrics {
    pub(crate) in_flight: Gauge,
    pub(crate) queued: Gauge,
    pub(crate) joins: Counter,
    pub(crate) refusals: Counter,
    pub(crate) cancellations: Counter,
    pub(crate) stalls: Counter,
    waits: Durations,
    pulls: Durations,
    durations: Durations,
    requests: Family<Labels<3>, Counter>,
}

impl Default for PullMetrics {
    fn default() -> Self {
        let durations = || Durations::new_with_constructor(|| Histogram::new(BUCKETS));
        Self {
            in_flight: Gauge::default(),
            queued: Gauge::default(),
            joins: Counter::default(),
            refusals: Counter::default(),
            cancellations: Counter::default(),
            stalls: Counter::default(),
            waits: durations(),
            pulls: durations(),
            durations: durations(),
            requests: Family::default(),
        }
    }
}

impl PullMetrics {
    /// Adds the metrics to a registry; they share their values with it.
    pub fn register(&self, registry: &mut Registry) {
        let mut add = |name: &str, help: &str, metric: &Durations| {
            registry.register(format!("kubelet_image_pull_{name}_seconds"), help, metric.clone());
        };
        add("duration", "Duration in seconds to pull an image", &self.durations);
        add("wait", "Time that a pull waited for a slot", &self.waits);
        add("transfer", "Time that a pull took, without waiting", &self.pulls);
        let mut gauge = |name: &str, help: &str, metric: &Gauge| {
            registry.register(format!("kubelet_image_pulls_{name}"), help, metric.clone());
        };
        gauge("in_flight", "Image pulls in progress", &self.in_flight);
        gauge("queued", "Image pulls that wait for a slot", &self.queued);
        let mut counter = |name: &str, help: &str, metric: &Counter| {
            registry.register(format!("kubelet_image_pull_{name}"), help, metric.clone());
        };
        counter("joins", "Pods that joined a pull of another pod", &self.joins);
        counter("refusals", "Pulls that the runtime refused: too many in parallel", &self.refusals);
        counter("cancellations", "Pulls that ended with their last pod", &self.cancellations);
        counter("stalls", "Pulls that were cancelled for lack of progress", &self.stalls);
        registry.register(
            "kubelet_image_manager_ensure_image_requests",
            "Number of ensure-image requests processed by the kubelet",
            self.requests.clone(),
        );
    }

    pub(crate) fn pulled(&self, size: u64, wait: Duration, pull: Duration, all: Duration) {
        let label = SIZES.iter().find(|(bound, _)| size > *bound).map_or("", |(_, label)| label);
        let labels = [("image_size_in_bytes", label)];
        self.waits.get_or_create(&labels).observe(wait.as_secs_f64());
        self.pulls.get_or_create(&labels).observe(pull.as_secs_f64());
        self.durations.get_or_create(&labels).observe(all.as_secs_f64());
    }

    pub(crate) fn ensured(&self, policy: &'static str, present: Option<bool>, pull: Option<bool>) {
        let text = |value: Option<bool>| match value {
            None => "unknown",
            Some(true) => "true",
            Some(false) => "false",
        };
        let labels = [
            ("pull_policy", policy),
            ("present_locally", text(present)),
            ("pull_required", text(pull)),
        ];
        self.requests.get_or_create(&labels).inc();
    }
}
