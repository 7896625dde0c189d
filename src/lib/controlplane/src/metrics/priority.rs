//! Metrics of priority and fairness, as OpenMetrics text.

use ferrokube_flow::priority::{BUCKETS, FlowFigures, FlowHistogram, LevelFigures, Levels};
use std::fmt::{Display, Write};

/// Appends all families; nothing without priority levels.
pub(super) fn write(out: &mut String, levels: &Levels) {
    let (levels, flows, fair_fraction) = levels.figures();
    if levels.is_empty() {
        return;
    }
    let mut text = MetricsText(out);
    text.levels(&levels);
    text.family("seat_fair_frac", "gauge", "Fraction of its demand that each level has got");
    text.sample("seat_fair_frac", "", fair_fraction);
    text.flows(&flows);
}

/// Families with the prefix `apiserver_flowcontrol_`.
struct MetricsText<'a>(&'a mut String);

impl MetricsText<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let name = format!("apiserver_flowcontrol_{name}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let (open, close) = if labels.is_empty() { ("", "") } else { ("{", "}") };
        let _ = writeln!(self.0, "apiserver_flowcontrol_{name}{open}{labels}{close} {value}");
    }

    fn levels(&mut self, levels: &[LevelFigures]) {
        let limits = [
            ("nominal_limit_seats", "Seats of a level by its shares"),
            ("lower_limit_seats", "Seats that a level keeps in any case"),
            ("upper_limit_seats", "Seats that a level may have at most"),
            ("current_limit_seats", "Seats that a level has now"),
        ];
        for (at, (name, help)) in limits.into_iter().enumerate() {
            self.family(name, "gauge", help);
            for level in levels {
                self.sample(name, &of_level(level), level.limits[at]);
            }
        }
        let demands = [
            ("demand_seats_high_watermark", "Highest demand of the last period"),
            ("demand_seats_average", "Average demand of the last period"),
            ("demand_seats_stdev", "Standard deviation of the demand in the last period"),
            ("demand_seats_smoothed", "Smoothed demand"),
            ("target_seats", "What a level's seats are derived from"),
        ];
        for (at, (name, help)) in demands.into_iter().enumerate() {
            self.family(name, "gauge", help);
            for level in levels {
                self.sample(name, &of_level(level), level.demand[at]);
            }
        }
    }

    fn flows(&mut self, flows: &[FlowFigures]) {
        self.family("rejected_requests", "counter", "Requests rejected for lack of seats");
        for flow in flows {
            for (reason, count) in flow.rejected.iter().filter(|(_, count)| *count > 0) {
                let labels = format!("{},reason=\"{reason}\"", of_flow(flow));
                self.sample("rejected_requests_total", &labels, count);
            }
        }
        self.family("dispatched_requests", "counter", "Requests that got their seats");
        for flow in flows {
            self.sample("dispatched_requests_total", &of_flow(flow), flow.dispatched);
        }
        let gauges = [
            ("current_inqueue_requests", "Requests that wait for seats"),
            ("current_inqueue_seats", "Seats that requests wait for"),
            ("current_executing_requests", "Requests with seats"),
            ("current_executing_seats", "Seats held by requests"),
        ];
        for (at, (name, help)) in gauges.into_iter().enumerate() {
            self.family(name, "gauge", help);
            for flow in flows {
                let counts = [flow.waiting, flow.executing].concat();
                self.sample(name, &of_flow(flow), counts[at]);
            }
        }
        const WAIT: &str = "request_wait_duration_seconds";
        self.family(WAIT, "histogram", "Time that requests waited for seats");
        for flow in flows {
            for (execute, waits) in ["false", "true"].into_iter().zip(&flow.waits) {
                self.histogram(WAIT, &format!("{},execute=\"{execute}\"", of_flow(flow)), waits);
            }
        }
        const EXECUTION: &str = "request_execution_seconds";
        self.family(EXECUTION, "histogram", "Time that requests held seats");
        for flow in flows {
            self.histogram(EXECUTION, &of_flow(flow), &flow.executions);
        }
    }

    /// Nothing without observations.
    fn histogram(&mut self, name: &str, labels: &str, histogram: &FlowHistogram) {
        let mut count: u64 = 0;
        if histogram.buckets.iter().all(|bucket| *bucket == 0) {
            return;
        }
        for (bound, bucket) in BUCKETS.iter().zip(&histogram.buckets) {
            count += bucket;
            self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"{bound:?}\""), count);
        }
        count += histogram.buckets[BUCKETS.len()];
        self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), count);
        self.sample(&format!("{name}_sum"), labels, histogram.seconds);
        self.sample(&format!("{name}_count"), labels, count);
    }
}

fn of_level(level: &LevelFigures) -> String {
    format!("priority_level=\"{}\"", level.name)
}

fn of_flow(flow: &FlowFigures) -> String {
    format!("priority_level=\"{}\",flow_schema=\"{}\"", flow.level, flow.schema)
}
