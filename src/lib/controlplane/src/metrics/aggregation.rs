//! Metrics of aggregated servers, and of webhooks, as OpenMetrics text.

use ferrokube_aggregator::{Aggregator, CertificateFaults, Outages};
use std::fmt::Write;

/// kube-aggregator's counter. Its gauge has the same name without `_total`, so that OpenMetrics has
/// no other type left for it.
const OUTAGES: &str = "aggregator_unavailable_apiservice_total";

/// Appends all families; no outages while no service has failed.
pub(super) fn write(out: &mut String, aggregator: &Aggregator, webhooks: &CertificateFaults) {
    certificates(out, "apiserver_webhooks", webhooks);
    certificates(out, "apiserver_kube_aggregator", aggregator.certificates());
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

fn certificates(out: &mut String, of: &str, faults: &CertificateFaults) {
    let families = [
        ("missing_san", "have no subject alternative names", faults.missing_san()),
        ("insecure_sha1", "are signed with SHA-1", faults.insecure_sha1()),
    ];
    for (name, why, count) in families {
        let _ = writeln!(
            out,
            "# HELP {of}_x509_{name} Connections that failed because certificates {why}."
        );
        let _ = writeln!(out, "# TYPE {of}_x509_{name} counter\n{of}_x509_{name}_total {count}");
    }
}
