//! Converts the encoder's OpenMetrics text to the Prometheus text format (version 0.0.4).

/// Content type of the Prometheus text format, as kube-apiserver sends it.
pub(super) const PROMETHEUS: &str =
    "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";
/// Content type of OpenMetrics.
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether the Accept header names OpenMetrics.
pub(super) fn accepts_open_metrics(accept: &str) -> bool {
    accept.split(',').any(|clause| {
        clause
            .split(';')
            .next()
            .is_some_and(|media_type| media_type.trim() == "application/openmetrics-text")
    })
}

/// In the older format, families are named like their samples (`_total` for counters), and there
/// are no units and no end marker.
pub(super) fn prometheus(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    // The description is written along with the type.
    let mut description = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            description = described.split_once(' ');
        } else if let Some((family, kind)) =
            line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, text)) = description.take().filter(|(of, _)| *of == family) {
                out.extend(["# HELP ", family, suffix, " ", text, "\n"]);
            }
            out.extend([
                "# TYPE ",
                family,
                suffix,
                " ",
                if kind == "unknown" { "untyped" } else { kind },
                "\n",
            ]);
        } else if !line.starts_with("# ") {
            out.extend([line, "\n"]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_like_their_samples() {
        let open = "# HELP a_requests Requests answered.\n# TYPE a_requests counter\na_requests_total{code=\"200\"} 3\n# HELP a_seconds Time.\n# TYPE a_seconds histogram\n\
                    # UNIT a_seconds seconds\na_seconds_sum 0.5\na_seconds_count 1\n# HELP a_open Open.\n# TYPE a_open gauge\na_open 1\n# EOF\n";
        let want = "# HELP a_requests_total Requests answered.\n# TYPE a_requests_total counter\na_requests_total{code=\"200\"} 3\n# HELP a_seconds Time.\n\
                    # TYPE a_seconds histogram\na_seconds_sum 0.5\na_seconds_count 1\n# HELP a_open Open.\n# TYPE a_open gauge\na_open 1\n";
        assert_eq!(prometheus(open), want);
    }

    #[test]
    fn only_clients_that_name_open_metrics_get_it() {
        let scraper = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases = [
            ("", false),
            ("*/*", false),
            ("text/plain", false),
            ("application/json", false),
            ("application/openmetrics-text", true),
            (scraper, true),
        ];
        for (accept, want) in cases {
            assert_eq!(accepts_open_metrics(accept), want, "{accept}");
        }
    }
}
