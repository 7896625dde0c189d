//! Metrics of aggregated servers, as OpenMetrics text.

use ferrokube_aggregator::{Aggregator, Outages};
use std::fmt::Write;

/// kube-aggregator's counter. Its gauge has the same name without `_total`, so that OpenMetrics has
/// no other type left for it.
const OUTAGES: &str = "aggregator_unavailable_apiservice_total";

/// Appends all families; nothing while no service has failed.
pub(super) fn write(out: &mut String, aggregator: &Aggregator) {
    let outages = aggregator.outages();
    if outages.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {OUTAGES} Times that an APIService became unavailable.");
    let _ = writeln!(out, "# TYPE {OUTAGES} unknown");
    for Outages { name, reason, count } in outages {
        let _ = writeln!(out, "{OUTAGES}{{name=\"{name}\",reason=\"{reason}\"}} {count}");
    }
}
