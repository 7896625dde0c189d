//! `/metrics/resource` for metrics-server and Prometheus, with kubelet's names.

use super::summary::{ContainerUsage, CpuSample, MemorySample, PodUsage, UsageSummary};
use crate::next::WallTime;
use std::fmt::Write;

/// A metric with its help text and samples.
struct MetricFamily {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<MetricSample>,
}

struct MetricSample {
    labels: String,
    value: f64,
    time: Option<WallTime>,
}

/// A value, and its timestamp in nanoseconds if it has its own.
type TimedValue = (f64, Option<WallTime>);

/// Encodes the Prometheus text format; without a summary only the error metric.
pub(super) fn text(summary: Option<&UsageSummary>) -> String {
    let mut out = String::new();
    for family in summary.into_iter().flat_map(families) {
        write(&mut out, &family);
    }
    let value = if summary.is_some() { 0.0 } else { 1.0 };
    let family = MetricFamily {
        name: "resource_scrape_error",
        kind: "gauge",
        help: "1 if there was an error while getting container metrics, 0 otherwise",
        samples: vec![MetricSample { labels: String::new(), value, time: None }],
    };
    write(&mut out, &family);
    out
}

/// Families sorted by name, as Prometheus clients write them; help texts are kubelet's.
fn families(summary: &UsageSummary) -> Vec<MetricFamily> {
    let family = |name, kind, help, samples| MetricFamily { name, kind, help, samples };
    let of_containers = |sample: &dyn Fn(&ContainerUsage) -> Option<TimedValue>| {
        let mut samples = Vec::new();
        for pod in &summary.pods {
            for container in &pod.containers {
                if let Some((value, time)) = sample(container) {
                    let container = ("container", container.name.as_str());
                    samples.push(MetricSample {
                        labels: labels(Some(container), pod),
                        value,
                        time,
                    });
                }
            }
        }
        samples
    };
    let of_pods = |sample: &dyn Fn(&PodUsage) -> Option<TimedValue>| {
        let samples = summary.pods.iter().filter_map(|pod| {
            let (value, time) = sample(pod)?;
            Some(MetricSample { labels: labels(None, pod), value, time })
        });
        samples.collect::<Vec<_>>()
    };
    let of_node = |sample: Option<TimedValue>| {
        let labels = String::new();
        let sample = sample.map(|(value, time)| MetricSample { labels, value, time });
        sample.into_iter().collect::<Vec<_>>()
    };
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let cpu = |sample: &Option<CpuSample>| {
        let sample = sample.as_ref()?;
        Some((seconds(sample.usage_core_nano_seconds?), Some(sample.time)))
    };
    let memory = |sample: &Option<MemorySample>| {
        let sample = sample.as_ref()?;
        Some((sample.working_set_bytes? as f64, Some(sample.time)))
    };
    let started = |container: &ContainerUsage| {
        let start = u64::try_from(container.start_time).ok().filter(|start| *start > 0)?;
        Some((seconds(start), None))
    };
    vec![
        family(
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the container in core-seconds",
            of_containers(&|container| cpu(&container.cpu)),
        ),
        family(
            "container_memory_working_set_bytes",
            "gauge",
            "Current working set of the container in bytes",
            of_containers(&|container| memory(&container.memory)),
        ),
        family(
            "container_start_time_seconds",
            "gauge",
            "Start time of the container since unix epoch in seconds",
            of_containers(&started),
        ),
        family(
            "node_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the node in core-seconds",
            of_node(cpu(&summary.node.cpu)),
        ),
        family(
            "node_memory_working_set_bytes",
            "gauge",
            "Current working set of the node in bytes",
            of_node(memory(&summary.node.memory)),
        ),
        family(
            "pod_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the pod in core-seconds",
            of_pods(&|pod| cpu(&pod.cpu)),
        ),
        family(
            "pod_memory_working_set_bytes",
            "gauge",
            "Current working set of the pod in bytes",
            of_pods(&|pod| memory(&pod.memory)),
        ),
    ]
}

fn labels(container: Option<(&str, &str)>, pod: &PodUsage) -> String {
    let all = [("namespace", pod.pod_ref.namespace.as_str()), ("pod", pod.pod_ref.name.as_str())];
    let all = container.into_iter().chain(all).map(|(name, value)| {
        let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        format!("{name}=\"{value}\"")
    });
    format!("{{{}}}", all.collect::<Vec<_>>().join(","))
}

/// Writes a family unless it has no samples.
fn write(out: &mut String, family: &MetricFamily) {
    let MetricFamily { name, kind, help, samples } = family;
    if samples.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
    for MetricSample { labels, value, time } in samples {
        let _ = match time {
            Some(time) => writeln!(out, "{name}{labels} {value} {}", time / 1_000_000),
            None => writeln!(out, "{name}{labels} {value}"),
        };
    }
}
