//! What the lines tell: traces (a user's request and all it caused), in them actions (spans), in them lines.

use crate::line::{Line, Request};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A line with who wrote it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The component.
    pub component: String,
    /// The line.
    pub line: Line,
}

/// Everything about some ids.
#[derive(Debug, Default)]
pub struct Story {
    /// What was asked for.
    pub ids: Vec<String>,
    /// By time.
    pub traces: Vec<Trace>,
    /// Lines that could not be read.
    pub skipped: usize,
    /// Files that could not be read to the end, with why.
    pub failed: Vec<(PathBuf, String)>,
    /// Bytes that were searched.
    pub bytes: u64,
}

/// One user's request and all it caused.
#[derive(Debug, Default)]
pub struct Trace {
    /// Its id; empty for lines that carry only an initial id.
    pub trace_id: String,
    /// The object family, when a line says so.
    pub initial_trace_id: String,
    /// By time; the action that began it first when clocks disagree.
    pub actions: Vec<Action>,
}

/// One action of one component.
#[derive(Debug, Default)]
pub struct Action {
    /// The component.
    pub component: String,
    /// Its id.
    pub span_id: String,
    /// The request, when an audit event tells of it.
    pub request: Option<Request>,
    /// When it began, as far as the lines say.
    pub begins: Option<Timestamp>,
    /// When it ended, as far as the lines say.
    pub ends: Option<Timestamp>,
    /// Its lines, by time.
    pub lines: Vec<Line>,
}

impl Story {
    pub(crate) fn new(ids: Vec<String>, entries: Vec<Entry>, skipped: usize, failed: Vec<(PathBuf, String)>, bytes: u64) -> Self {
        let mut traces: BTreeMap<String, BTreeMap<(String, String), Action>> = BTreeMap::new();
        let mut initials: BTreeMap<String, String> = BTreeMap::new();
        for Entry { component, line } in entries {
            if !line.initial_trace_id.is_empty() {
                initials.insert(line.trace_id.clone(), line.initial_trace_id.clone());
            }
            let action = traces.entry(line.trace_id.clone()).or_default().entry((component.clone(), line.span_id.clone())).or_default();
            (action.component, action.span_id) = (component, line.span_id.clone());
            action.add(line);
        }
        let mut traces: Vec<Trace> = traces
            .into_iter()
            .map(|(trace_id, actions)| {
                let mut actions: Vec<Action> = actions.into_values().map(Action::sorted).collect();
                actions.sort_by_key(|action| (action.begins, action.request.is_none()));
                Trace { initial_trace_id: initials.get(&trace_id).cloned().unwrap_or_default(), trace_id, actions }
            })
            .collect();
        traces.sort_by_key(|trace| trace.actions.first().and_then(|action| action.begins));
        Self { ids, traces, skipped, failed, bytes }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }
}

impl Action {
    fn add(&mut self, line: Line) {
        if let Some(request) = &line.request {
            self.note(request.received);
            self.request = Some(request.clone());
        }
        self.note(line.time);
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

    /// Milliseconds from its first sign to its last.
    pub fn millis(&self) -> f64 {
        match (self.begins, self.ends) {
            (Some(begins), Some(ends)) => ends.duration_since(begins).as_secs_f64() * 1e3,
            _ => 0.0,
        }
    }
}
