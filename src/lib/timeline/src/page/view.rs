//! View model of the story template: sections (traces), rows (actions) with bars, and lines.

use crate::line::{LogLine, LoggedRequest};
use crate::render::safe;
use crate::ring::ObjectRef;
use crate::story::{TraceAction, TraceStory};
use jiff::Timestamp;

/// Width of the drawing, in its own units.
const WIDTH: f64 = 1000.0;
/// Minimum width of a bar.
const MIN_BAR: f64 = 4.0;

/// A trace.
pub(super) struct Section {
    pub(super) trace_id: String,
    pub(super) title: String,
    pub(super) when: String,
    pub(super) total: String,
    /// Axis labels: start, quarters and end.
    pub(super) axis: Vec<String>,
    pub(super) rows: Vec<ActionRow>,
    /// Notes on clocks.
    pub(super) notes: Vec<String>,
    pub(super) backend: Option<String>,
}

pub(super) struct ActionRow {
    pub(super) component: String,
    /// CSS class for the color.
    pub(super) kind: &'static str,
    pub(super) label: String,
    pub(super) who: String,
    pub(super) code: u64,
    pub(super) failed: bool,
    pub(super) begins: String,
    pub(super) took: String,
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) ticks: Vec<f64>,
    pub(super) span_id: String,
    pub(super) audit_id: String,
    pub(super) path: String,
    pub(super) lines: Vec<LineRow>,
}

/// A log line.
pub(super) struct LineRow {
    pub(super) at: String,
    pub(super) level: String,
    pub(super) message: String,
    pub(super) fields: String,
}

/// Start and duration of a trace.
struct TimeScale {
    begin: Option<Timestamp>,
    millis: f64,
}

impl TimeScale {
    fn of(trace: &TraceStory) -> Self {
        let begin = trace.actions.iter().filter_map(TraceAction::begins).min();
        let end = trace.actions.iter().filter_map(TraceAction::ends).max();
        let millis = begin
            .zip(end)
            .map_or(0.0, |(begin, end)| end.duration_since(begin).as_secs_f64() * 1e3);
        Self { begin, millis }
    }

    fn offset(&self, time: Option<Timestamp>) -> f64 {
        self.begin
            .zip(time)
            .map_or(0.0, |(begin, time)| time.duration_since(begin).as_secs_f64() * 1e3)
    }

    /// Position in the drawing.
    fn place(&self, millis: f64) -> f64 {
        if self.millis > 0.0 { (millis / self.millis * WIDTH).clamp(0.0, WIDTH) } else { 0.0 }
    }
}

impl Section {
    pub(super) fn new(trace: &TraceStory, backend: Option<String>) -> Self {
        let scale = TimeScale::of(trace);
        let rows: Vec<ActionRow> =
            trace.actions.iter().map(|action| ActionRow::new(action, &scale)).collect();
        let first = rows.iter().find(|row| row.kind == "request").or(rows.first());
        let title = first
            .map(|row| {
                if row.who.is_empty() {
                    row.label.clone()
                } else {
                    format!("{} by {}", row.label, row.who)
                }
            })
            .unwrap_or_default();
        let notes = trace.behind.iter().map(|(component, behind)| {
            format!(
                "The clock of {} is at least {} behind; its lines are shifted by that.",
                text(component),
                millis(behind.as_secs_f64() * 1e3)
            )
        });
        Self {
            trace_id: text(&trace.trace_id),
            title,
            when: when(scale.begin),
            total: millis(scale.millis),
            axis: (0..=4).map(|quarter| millis(scale.millis * f64::from(quarter) / 4.0)).collect(),
            rows,
            notes: notes.collect(),
            backend,
        }
    }
}

impl ActionRow {
    fn new(action: &TraceAction, scale: &TimeScale) -> Self {
        let begins = scale.offset(action.begins());
        let x = scale.place(begins);
        let width = scale.place(action.millis()).max(MIN_BAR);
        let x = x.min(WIDTH - width);
        let at = |line: &LogLine| {
            scale.offset(line.time.and_then(|time| time.checked_add(action.behind).ok()))
        };
        let request = action.request.as_ref();
        let failed = request.is_some_and(is_failure)
            || action.lines.iter().any(|line| line.level == "ERROR");
        Self {
            component: text(&action.component),
            kind: if request.is_some() { "request" } else { "work" },
            label: label(action),
            who: request.map(|request| text(&request.user)).unwrap_or_default(),
            code: request.map_or(0, |request| request.code),
            failed,
            begins: millis(begins),
            took: millis(action.millis()),
            x,
            width,
            ticks: action.lines.iter().map(|line| scale.place(at(line)).min(WIDTH - 2.0)).collect(),
            span_id: text(&action.span_id),
            audit_id: request.map(|request| text(&request.audit_id)).unwrap_or_default(),
            path: request.map(|request| text(request.path_and_query())).unwrap_or_default(),
            lines: action.lines.iter().map(|line| LineRow::new(line, at(line))).collect(),
        }
    }
}

impl LineRow {
    fn new(line: &LogLine, at: f64) -> Self {
        let fields: Vec<String> =
            line.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Self {
            at: millis(at),
            level: text(&line.level),
            message: text(&line.message),
            fields: text(&fields.join(" ")),
        }
    }
}

/// An action's request, or the object that its lines name.
fn label(action: &TraceAction) -> String {
    if let Some(request) = &action.request {
        return text(&format!("{} {}", request.verb, about(&request.uri)));
    }
    let field = |name: &str| {
        action
            .lines
            .iter()
            .map(|line| line.field(name))
            .find(|value| !value.is_empty())
            .unwrap_or_default()
    };
    let [resource, namespace, name, key] =
        ["k8s.resource", "k8s.namespace", "k8s.name", "key"].map(field);
    match (resource, key) {
        ("", "") => text(action.lines.first().map_or("", |line| &line.message)),
        ("", key) => text(&format!("reconcile {}", key.trim_matches('"'))),
        _ if namespace.is_empty() => text(&format!("reconcile {resource} {name}")),
        _ => text(&format!("reconcile {resource} {namespace}/{name}")),
    }
}

/// Short form of a path: `configmaps shop/page` for `/api/v1/namespaces/shop/configmaps/page`;
/// other paths as they are.
fn about(uri: &str) -> String {
    let path = uri.split('?').next().unwrap_or_default();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => match rest {
            ["namespaces", namespace, resource, name, more @ ..] if !name.is_empty() => {
                [&format!("{resource} {namespace}/{name}")[..], &more.join("/")]
                    .join(if more.is_empty() { "" } else { "/" })
            }
            ["namespaces", namespace, resource]
                if *resource != "finalize" && *resource != "status" =>
            {
                format!("{resource} in {namespace}")
            }
            [resource, name, more @ ..] => [&format!("{resource} {name}")[..], &more.join("/")]
                .join(if more.is_empty() { "" } else { "/" }),
            [resource] => (*resource).to_owned(),
            [] => path.to_owned(),
        },
        _ => path.to_owned(),
    }
}

/// A read of something absent is not a failure.
fn is_failure(request: &LoggedRequest) -> bool {
    request.code >= 400 && !(request.code == 404 && request.verb == "get")
}

/// Escapes characters that affect how other characters are displayed.
pub(super) fn text(text: &str) -> String {
    safe(text)
}

/// `configmaps.group shop/page`, or for a collection `configmaps in shop`.
pub(super) fn object(object: &ObjectRef) -> String {
    let group = if object.group.is_empty() { String::new() } else { format!(".{}", object.group) };
    let namespace = if object.namespace.is_empty() || object.resource == "namespaces" {
        String::new()
    } else {
        format!("{}/", object.namespace)
    };
    if object.name.is_empty() {
        let place = if object.namespace.is_empty() {
            String::new()
        } else {
            format!(" in {}", object.namespace)
        };
        return text(&format!("{}{group}{place}", object.resource));
    }
    text(&format!("{}{group} {namespace}{}", object.resource, object.name))
}

/// Formats a time in UTC, to the millisecond.
pub(super) fn when(time: Option<Timestamp>) -> String {
    time.map(|time| time.strftime("%Y-%m-%d %H:%M:%S.%3f UTC").to_string()).unwrap_or_default()
}

/// `12.3 ms`, `4.56 s`, `3 min 20 s`.
fn millis(value: f64) -> String {
    match value.abs() {
        below if below < 0.0005 => "0 ms".to_owned(),
        below if below < 10.0 => format!("{value:.2} ms"),
        below if below < 1000.0 => format!("{value:.1} ms"),
        below if below < 120_000.0 => format!("{:.2} s", value / 1e3),
        _ => {
            format!("{:.0} min {:.0} s", (value / 60_000.0).trunc(), (value % 60_000.0 / 1e3).abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_by_what_they_are_about() {
        let cases = [
            ("/api/v1/namespaces/shop/configmaps/page?dryRun=All", "configmaps shop/page"),
            ("/api/v1/namespaces/shop/configmaps", "configmaps in shop"),
            ("/apis/example.com/v1/namespaces/shop/fleets/alpha/scale", "fleets shop/alpha/scale"),
            ("/api/v1/namespaces/shop", "namespaces shop"),
            ("/api/v1/namespaces/shop/finalize", "namespaces shop/finalize"),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "clusterroles"),
            ("/metrics", "/metrics"),
            ("", ""),
        ];
        for (uri, expected) in cases {
            assert_eq!(about(uri), expected, "{uri}");
        }
    }

    #[test]
    fn objects_and_collections_are_told_apart() {
        let of = |group: &str, namespace: &str, name: &str| {
            object(&ObjectRef {
                group: group.into(),
                version: "v1".into(),
                resource: "fleets".into(),
                namespace: namespace.into(),
                name: name.into(),
            })
        };
        assert_eq!(of("example.com", "shop", "alpha"), "fleets.example.com shop/alpha");
        assert_eq!([of("", "shop", ""), of("", "", "")], ["fleets in shop", "fleets"]);
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        let shown = [0.0, 0.27, 48.2, 5480.0, 200_000.0].map(millis);
        assert_eq!(shown, ["0 ms", "0.27 ms", "48.2 ms", "5.48 s", "3 min 20 s"]);
    }
}
