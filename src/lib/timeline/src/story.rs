//! Groups lines into traces (a user's request and all it caused), and traces into actions (spans).

use crate::line::{LogLine, LoggedRequest};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A line and the component that wrote it.
#[derive(Clone, Debug)]
pub struct StoryEntry {
    /// Component name.
    pub component: String,
    /// Parsed line.
    pub line: LogLine,
}

/// Everything about some ids.
#[derive(Debug, Default)]
pub struct Story {
    /// Requested ids.
    pub ids: Vec<String>,
    /// By time.
    pub traces: Vec<TraceStory>,
    /// Lines that could not be parsed.
    pub skipped: usize,
    /// Files that could not be read completely, with the reason.
    pub failed: Vec<(PathBuf, String)>,
    /// Bytes searched.
    pub bytes: u64,
    /// Events left out of a page.
    pub omitted: usize,
}

/// One user's request and all it caused.
#[derive(Debug, Default)]
pub struct TraceStory {
    /// Trace id; empty for lines that have only an initial trace id.
    pub trace_id: String,
    /// Initial trace id, if any line has one.
    pub initial_trace_id: String,
    /// By time, on the clock of the root request.
    pub actions: Vec<TraceAction>,
    /// Components whose clocks are behind that one, as they wrote about the request before it
    /// arrived, with a lower bound of the difference.
    pub behind: Vec<(String, SignedDuration)>,
}

/// One action (span) of one component.
#[derive(Debug, Default)]
pub struct TraceAction {
    /// Component name.
    pub component: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// The request, if there is an audit event.
    pub request: Option<LoggedRequest>,
    /// Start, according to the lines.
    pub begins: Option<Timestamp>,
    /// End, according to the lines.
    pub ends: Option<Timestamp>,
    /// Time of the first line.
    shown: Option<Timestamp>,
    /// Lines by time.
    pub lines: Vec<LogLine>,
    /// Clock correction, to be added to the times.
    pub behind: SignedDuration,
}

impl Story {
    pub(crate) fn new(
        ids: Vec<String>,
        entries: Vec<StoryEntry>,
        skipped: usize,
        failed: Vec<(PathBuf, String)>,
        bytes: u64,
    ) -> Self {
        let mut traces: BTreeMap<String, BTreeMap<(String, String), TraceAction>> = BTreeMap::new();
        let mut initials: BTreeMap<String, String> = BTreeMap::new();
        for StoryEntry { component, line } in entries {
            if !line.initial_trace_id.is_empty() {
                initials.insert(line.trace_id.clone(), line.initial_trace_id.clone());
            }
            let action = traces
                .entry(line.trace_id.clone())
                .or_default()
                .entry((component.clone(), line.span_id.clone()))
                .or_default();
            (action.component, action.span_id) = (component, line.span_id.clone());
            action.add(line);
        }
        let mut traces: Vec<TraceStory> = traces
            .into_iter()
            .map(|(trace_id, actions)| {
                let mut actions: Vec<TraceAction> =
                    actions.into_values().map(TraceAction::sorted).collect();
                let behind =
                    if trace_id.is_empty() { Vec::new() } else { adjust_clocks(&mut actions) };
                actions.sort_by_key(|action| (action.begins(), action.request.is_none()));
                TraceStory {
                    initial_trace_id: initials.get(&trace_id).cloned().unwrap_or_default(),
                    trace_id,
                    actions,
                    behind,
                }
            })
            .collect();
        traces.sort_by_key(|trace| trace.actions.first().and_then(TraceAction::begins));
        Self { ids, traces, skipped, failed, bytes, omitted: 0 }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }
}

/// Nothing in a trace can precede its root request, so components with earlier lines have clocks
/// that are behind, and are shifted to start with the request. Durations reported in lines are not
/// evidence.
fn adjust_clocks(actions: &mut [TraceAction]) -> Vec<(String, SignedDuration)> {
    let requests = actions.iter().filter(|action| action.request.is_some());
    let Some((start, server)) =
        requests.filter_map(|action| Some((action.begins?, action.component.clone()))).min()
    else {
        return Vec::new();
    };
    let mut behind: BTreeMap<String, SignedDuration> = BTreeMap::new();
    for action in actions.iter().filter(|action| action.component != server) {
        if let Some(early) = action
            .shown
            .map(|shown| start.duration_since(shown))
            .filter(SignedDuration::is_positive)
        {
            let known = behind.entry(action.component.clone()).or_default();
            *known = early.max(*known);
        }
    }
    for action in actions {
        action.behind = behind.get(&action.component).copied().unwrap_or_default();
    }
    behind.into_iter().collect()
}

impl TraceAction {
    /// Corrected start.
    pub fn begins(&self) -> Option<Timestamp> {
        self.begins.and_then(|begins| begins.checked_add(self.behind).ok())
    }

    /// Corrected end.
    pub fn ends(&self) -> Option<Timestamp> {
        self.ends.and_then(|ends| ends.checked_add(self.behind).ok())
    }

    fn add(&mut self, line: LogLine) {
        if let Some(request) = &line.request {
            self.note(request.received);
            self.request = Some(request.clone());
        } else if let (None, Some(request)) = (&self.request, line.access()) {
            // Reads are not audited by default; the access line has the same data.
            self.note(request.received);
            self.request = Some(request);
        }
        self.note(line.began());
        self.note(line.time);
        self.shown = self.shown.into_iter().chain(line.time).min();
        if line.request.is_none() {
            self.lines.push(line);
        }
    }

    fn note(&mut self, time: Option<Timestamp>) {
        let Some(time) = time else { return };
        self.begins = Some(self.begins.map_or(time, |begins| begins.min(time)));
        self.ends = Some(self.ends.map_or(time, |ends| ends.max(time)));
    }

    fn sorted(mut self) -> Self {
        self.lines.sort_by_key(|line| line.time);
        self
    }

    /// Milliseconds from start to end.
    pub fn millis(&self) -> f64 {
        match (self.begins, self.ends) {
            (Some(begins), Some(ends)) => ends.duration_since(begins).as_secs_f64() * 1e3,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::parse;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn entry(component: &str, text: &str) -> StoryEntry {
        StoryEntry {
            component: component.to_owned(),
            line: parse(text).unwrap_or_else(|| panic!("{text}")),
        }
    }

    #[test]
    fn a_clock_that_is_behind_does_not_turn_cause_and_effect_around() {
        let access = format!(
            "2026-11-21T03:00:10.001Z DEBUG x: request verb=create path=/api/v1/pods user=alice http.response.status_code=201 audit_id=a took_us=1000 trace_id={TRACE} span_id=1111111111111111"
        );
        let lines = |clock: &str| {
            let kubelet = format!(
                "2026-11-21T03:00:{clock}Z ERROR kubelet: mount failed trace_id={TRACE} span_id=2222222222222222"
            );
            Story::new(
                Vec::new(),
                vec![entry("kubelet", &kubelet), entry("apiserver", &access)],
                0,
                Vec::new(),
                0,
            )
        };
        let behind = lines("02.500");
        let trace = &behind.traces[0];
        assert_eq!(
            trace.actions.iter().map(|action| action.component.as_str()).collect::<Vec<_>>(),
            ["apiserver", "kubelet"]
        );
        assert_eq!(trace.behind, [("kubelet".to_owned(), SignedDuration::from_millis(7500))]);
        assert_eq!(trace.actions[1].begins(), trace.actions[0].begins());
        let request = trace.actions[0].request.as_ref().unwrap();
        assert_eq!(
            (request.user.as_str(), request.code, trace.actions[0].millis()),
            ("alice", 201, 1.0)
        );
        assert!(lines("11.000").traces[0].behind.is_empty(), "later times prove nothing");
        let odd = lines("11.000Z ERROR kubelet: slow took_us=1000000000000000 at=");
        assert!(odd.traces[0].behind.is_empty(), "nor do reported durations");
    }

    #[test]
    fn a_reconcile_lasts_as_long_as_it_says() {
        let line = format!(
            "2026-11-21T03:00:10.500Z DEBUG x: reconciled key=shop took_us=27204 trace_id={TRACE} span_id=1111111111111111"
        );
        let story = Story::new(Vec::new(), vec![entry("serviceaccount", &line)], 0, Vec::new(), 0);
        let action = &story.traces[0].actions[0];
        assert_eq!(
            (action.millis(), action.begins().unwrap().to_string().as_str()),
            (27.204, "2026-11-21T03:00:10.472796Z")
        );
        for took in ["-1", "x", "99999999999999999999", "9999999999999999999"] {
            let story = Story::new(
                Vec::new(),
                vec![entry("x", &line.replace("27204", took))],
                0,
                Vec::new(),
                0,
            );
            assert_eq!(story.traces[0].actions[0].millis(), 0.0, "{took}");
        }
    }
}
