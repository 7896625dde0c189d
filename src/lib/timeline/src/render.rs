//! Renders a story as text for people, and as JSON for programs.

use crate::line::{LogLine, LoggedRequest};
use crate::story::{Story, TraceAction, TraceStory};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::fmt::Write;

/// Renders a text timeline. Control characters are escaped: log files are untrusted, and the output
/// goes to a terminal.
pub fn text(story: &Story) -> String {
    let mut out = String::new();
    for trace in &story.traces {
        trace_text(&mut out, trace);
    }
    if story.is_empty() {
        let _ = writeln!(out, "no line has {}", safe(&story.ids.join(" or ")));
    }
    for (path, why) in &story.failed {
        let _ = writeln!(
            out,
            "! {} was not read completely: {}",
            safe(&path.to_string_lossy()),
            safe(why)
        );
    }
    if story.skipped > 0 {
        let _ = writeln!(
            out,
            "! {} lines were skipped: too long, too many, or of unknown form",
            story.skipped
        );
    }
    out
}

fn trace_text(out: &mut String, trace: &TraceStory) {
    let begin = trace.actions.first().and_then(TraceAction::begins);
    // Microseconds always, so that the times of several traces line up.
    let when = begin.map(|time| format!("{time:.6}")).unwrap_or_default();
    let initial = if trace.initial_trace_id.is_empty() {
        String::new()
    } else {
        format!("  initial {}", safe(&trace.initial_trace_id))
    };
    let _ = writeln!(out, "trace {}{initial}  {when}", safe(&trace.trace_id));
    for action in &trace.actions {
        action_text(out, action, begin);
    }
    for (component, behind) in &trace.behind {
        let _ = writeln!(
            out,
            "  the clock of {} is at least {:.3} ms behind; its lines are shifted by that",
            safe(component),
            behind.as_secs_f64() * 1e3
        );
    }
    out.push('\n');
}

fn action_text(out: &mut String, action: &TraceAction, begin: Option<Timestamp>) {
    let what = action.request.as_ref().map_or_else(String::new, |request| {
        let LoggedRequest { verb, user, code, .. } = request;
        format!("{verb} {} by {user} -> {code}", request.path_and_query())
    });
    let what = if what.is_empty() { what } else { format!("  {what}") };
    let _ = writeln!(
        out,
        "  {:>12}  {} span {}  {:.3} ms{}",
        offset(begin, action.begins()),
        safe(&action.component),
        safe(&action.span_id),
        action.millis(),
        safe(&what)
    );
    for line in &action.lines {
        let fields: String = line
            .fields
            .iter()
            .filter(|(name, _)| name != "target")
            .map(|(name, value)| format!(" {name}={value}"))
            .collect();
        let time = line.time.and_then(|time| time.checked_add(action.behind).ok());
        let _ = writeln!(
            out,
            "  {:>12}    {:<5} {}{}",
            offset(begin, time),
            safe(&line.level),
            safe(&line.message),
            safe(&fields)
        );
    }
}

/// `+12.345 ms` since the start of the trace.
fn offset(begin: Option<Timestamp>, time: Option<Timestamp>) -> String {
    match (begin, time) {
        (Some(begin), Some(time)) => {
            format!("{:+.3} ms", time.duration_since(begin).as_secs_f64() * 1e3)
        }
        _ => String::new(),
    }
}

/// Escapes control characters (hence escape sequences) and direction overrides as `\u{..}`.
pub(crate) fn safe(text: &str) -> String {
    let hidden = |character: char| {
        character.is_control()
            || ('\u{202a}'..='\u{202e}').contains(&character)
            || ('\u{2066}'..='\u{2069}').contains(&character)
    };
    text.chars()
        .map(|character| {
            if hidden(character) {
                character.escape_unicode().to_string()
            } else {
                character.to_string()
            }
        })
        .collect()
}

/// Renders a story as one JSON object.
pub fn json(story: &Story) -> Value {
    let failed: Vec<Value> = story
        .failed
        .iter()
        .map(|(path, why)| json!({"file": path.to_string_lossy(), "error": why}))
        .collect();
    let traces: Vec<Value> = story
        .traces
        .iter()
        .map(|trace| json!({"trace_id": trace.trace_id, "initial_trace_id": trace.initial_trace_id, "clocks_behind_ms": behind(trace), "actions": trace.actions.iter().map(action_json).collect::<Vec<_>>()}))
        .collect();
    json!({"ids": story.ids, "traces": traces, "skipped": story.skipped, "failed": failed, "bytes": story.bytes})
}

fn behind(trace: &TraceStory) -> serde_json::Map<String, Value> {
    trace
        .behind
        .iter()
        .map(|(component, behind)| (component.clone(), json!(behind.as_secs_f64() * 1e3)))
        .collect()
}

fn action_json(action: &TraceAction) -> Value {
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
    let request = action
        .request
        .as_ref()
        .map(|request| json!({"verb": request.verb, "uri": request.uri, "user": request.user, "code": request.code, "audit_id": request.audit_id}));
    let lines: Vec<Value> = action.lines.iter().map(line_json).collect();
    json!({"component": action.component, "span_id": action.span_id, "begins": time(action.begins()), "ends": time(action.ends()), "milliseconds": action.millis(), "request": request, "lines": lines})
}

fn line_json(line: &LogLine) -> Value {
    let fields: serde_json::Map<String, Value> =
        line.fields.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({"time": line.time.map(|time| time.to_string()), "level": line.level, "message": line.message, "fields": fields})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::parse;
    use crate::story::StoryEntry;

    #[test]
    fn times_have_a_fixed_width_and_paths_no_empty_query() {
        let event = r#"{"kind": "Event", "auditID": "a", "verb": "get", "requestURI": "/api?", "user": {"username": "u"}, "responseStatus": {"code": 200}, "requestReceivedTimestamp": "2026-11-21T03:00:10.5Z", "annotations": {"trace.kubernetes.io/trace-id": "0af7651916cd43dd8448eb211c80319c"}}"#;
        let line = parse(event).unwrap();
        let entry = StoryEntry { component: "apiserver".to_owned(), line };
        let shown = text(&Story::new(Vec::new(), vec![entry], 0, Vec::new(), 0));
        assert!(shown.contains("  2026-11-21T03:00:10.500000Z\n"), "{shown}");
        assert!(shown.contains("  get /api by u -> 200\n"), "{shown}");
    }

    #[test]
    fn terminal_escapes_do_not_reach_the_terminal() {
        assert_eq!(safe("a\u{1b}[31mred\u{202e}\n"), "a\\u{1b}[31mred\\u{202e}\\u{a}");
    }
}
