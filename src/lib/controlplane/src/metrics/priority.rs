//! Metrics of priority and fairness, as OpenMetrics text.

use ferrokube_flow::priority::{
    BUCKETS, CountHistogram, DEMAND_BOUNDS, FlowFigures, FlowHistogram, LENGTH_BOUNDS,
    LevelFigures, Levels, REQUEST_BOUNDS, RatioHistogram, SEAT_BOUNDS, WORK_BOUNDS,
};
use std::fmt::{Display, Write};

/// Appends all families; nothing without priority levels.
pub(super) fn write(out: &mut String, levels: &Levels) {
    let (levels, flows, fair_fraction) = levels.figures();
    if levels.is_empty() {
        return;
    }
    let mut text = MetricsText(out);
    text.levels(&levels);
    text.utilization(&levels);
    text.virtual_time(&levels);
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
            for (kind, executions) in ["regular", "watch"].into_iter().zip(&flow.executions) {
                let labels = format!("{},type=\"{kind}\"", of_flow(flow));
                self.histogram(EXECUTION, &labels, executions);
            }
        }
        const LENGTH: &str = "request_queue_length_after_enqueue";
        self.family(LENGTH, "histogram", "Length of a queue with the request that joined it");
        for flow in flows {
            self.counts(LENGTH, &of_flow(flow), &LENGTH_BOUNDS, &flow.lengths);
        }
        const WORK: &str = "work_estimated_seats";
        self.family(WORK, "histogram", "Seats that requests need");
        for flow in flows {
            self.counts(WORK, &of_flow(flow), &WORK_BOUNDS, &flow.work);
        }
        const WAITS: &str = "request_dispatch_no_accommodation";
        self.family(WAITS, "counter", "Times that the next request needed more seats than free");
        for flow in flows.iter().filter(|flow| flow.unaccommodated > 0) {
            self.sample(&format!("{WAITS}_total"), &of_flow(flow), flow.unaccommodated);
        }
    }

    /// Weighted by nanoseconds, as kube-apiserver's.
    fn utilization(&mut self, levels: &[LevelFigures]) {
        const SEATS: &str = "priority_level_seat_utilization";
        self.family(SEATS, "histogram", "Seats held, as a fraction of the level's, over time");
        for level in levels {
            let labels = format!("{},phase=\"executing\"", of_level(level));
            self.ratios(SEATS, &labels, &SEAT_BOUNDS, &level.utilization.seats);
        }
        const REQUESTS: &str = "priority_level_request_utilization";
        self.family(REQUESTS, "histogram", "Requests, as a fraction of a limit, over time");
        for level in levels {
            let phases = ["waiting", "executing"].into_iter();
            for (phase, requests) in phases.zip(&level.utilization.requests) {
                let labels = format!("phase=\"{phase}\",{}", of_level(level));
                self.ratios(REQUESTS, &labels, &REQUEST_BOUNDS, requests);
            }
        }
        const DEMAND: &str = "demand_seats";
        self.family(DEMAND, "histogram", "Seats wanted, as a fraction of the nominal, over time");
        for level in levels {
            self.ratios(DEMAND, &of_level(level), &DEMAND_BOUNDS, &level.utilization.demand);
        }
    }

    fn virtual_time(&mut self, levels: &[LevelFigures]) {
        let times = [
            ("current_r", "Virtual time of a level"),
            ("dispatch_r", "Virtual time when a request last left its queue"),
            ("latest_s", "Start in virtual time of the request that left its queue last"),
        ];
        for (at, (name, help)) in times.into_iter().enumerate() {
            self.family(name, "gauge", help);
            for level in levels {
                let [now, dispatched] = level.virtual_time.now;
                let times = [now, dispatched, level.virtual_time.last_start];
                self.sample(name, &of_level(level), times[at]);
            }
        }
        let bounds = [
            ("next_s_bounds", "Least and greatest start in virtual time of the queues"),
            ("next_discounted_s_bounds", "The same without the estimated work in progress"),
        ];
        for (at, (name, help)) in bounds.into_iter().enumerate() {
            self.family(name, "gauge", help);
            for level in levels {
                for (bound, time) in ["min", "max"].into_iter().zip(level.virtual_time.next[at]) {
                    let labels = format!("{},bound=\"{bound}\"", of_level(level));
                    self.sample(name, &labels, time);
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &FlowHistogram) {
        self.buckets(name, labels, &BUCKETS, &histogram.buckets, histogram.seconds);
    }

    fn counts(&mut self, name: &str, labels: &str, bounds: &[u64; 8], counts: &CountHistogram) {
        let bounds = bounds.map(|bound| bound as f64);
        self.buckets(name, labels, &bounds, &counts.buckets, counts.sum as f64);
    }

    fn ratios(&mut self, name: &str, labels: &str, bounds: &[f64], ratios: &RatioHistogram) {
        self.buckets(name, labels, bounds, &ratios.weights[..=bounds.len()], ratios.sum);
    }

    /// Nothing without observations.
    fn buckets(&mut self, name: &str, labels: &str, bounds: &[f64], buckets: &[u64], sum: f64) {
        if buckets.iter().all(|bucket| *bucket == 0) {
            return;
        }
        let mut count: u64 = 0;
        let ends = bounds.iter().map(|bound| format!("{bound:?}"));
        for (end, bucket) in ends.chain(["+Inf".to_owned()]).zip(buckets) {
            count += bucket;
            self.sample(&format!("{name}_bucket"), &format!("{labels},le=\"{end}\""), count);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }
}

fn of_level(level: &LevelFigures) -> String {
    format!("priority_level=\"{}\"", level.name)
}

fn of_flow(flow: &FlowFigures) -> String {
    format!("priority_level=\"{}\",flow_schema=\"{}\"", flow.level, flow.schema)
}
