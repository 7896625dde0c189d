//! Parses a line of a log or audit file. Lines are untrusted; garbage is never an error.

use jiff::Timestamp;
use serde_json::{Map, Value};
use std::time::Duration;

/// A parsed line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogLine {
    /// Time of writing, if the line has one.
    pub time: Option<Timestamp>,
    /// `ERROR`, `WARN`, `INFO`, ...; empty if unknown.
    pub level: String,
    /// Message text.
    pub message: String,
    /// Other fields as text, in order of appearance.
    pub fields: Vec<(String, String)>,
    /// Trace id of the user's request.
    pub trace_id: String,
    /// Span id of the action.
    pub span_id: String,
    /// Span id of the action's parent, if present.
    pub parent_span_id: String,
    /// Initial trace id of the object.
    pub initial_trace_id: String,
    /// The request, for audit events.
    pub request: Option<LoggedRequest>,
}

/// The request of an audit event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoggedRequest {
    /// `create`, ...
    pub verb: String,
    /// Path and query.
    pub uri: String,
    /// User name.
    pub user: String,
    /// HTTP status; 0 if absent.
    pub code: u64,
    /// Id of the audit event, and in the response header `Audit-ID`.
    pub audit_id: String,
    /// Time of arrival.
    pub received: Option<Timestamp>,
}

impl LoggedRequest {
    /// Path and query, without the `?` that kube-rs sends even if no parameter follows.
    pub(crate) fn path_and_query(&self) -> &str {
        self.uri.strip_suffix('?').unwrap_or(&self.uri)
    }
}

/// Parses a line of any known form; `None` otherwise (counted as skipped).
pub fn parse(text: &str) -> Option<LogLine> {
    let text = text.trim_end();
    if text.starts_with('{') {
        let Ok(Value::Object(object)) = serde_json::from_str(text) else { return None };
        if let Some(Value::String(message)) = object.get("MESSAGE") {
            return Some(journal(&object, message));
        }
        return Some(
            if object.get("kind").and_then(Value::as_str) == Some("Event")
                && object.contains_key("auditID")
            {
                audit(&object)
            } else {
                json(object)
            },
        );
    }
    plain(text)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn str_at<'a>(object: &'a Map<String, Value>, names: &[&str]) -> &'a str {
    names.iter().find_map(|name| object.get(*name).and_then(Value::as_str)).unwrap_or_default()
}

fn audit(event: &Map<String, Value>) -> LogLine {
    let at = |path: &[&str]| {
        path.iter()
            .try_fold(None::<&Value>, |value, name| {
                Some(Some(value.map_or_else(|| event.get(*name), |value| value.get(*name))?))
            })
            .flatten()
    };
    let text =
        |path: &[&str]| bounded(at(path).and_then(Value::as_str).unwrap_or_default().to_owned());
    let time =
        |name: &str| event.get(name).and_then(Value::as_str).and_then(|text| text.parse().ok());
    let code = at(&["responseStatus", "code"]).and_then(Value::as_u64).unwrap_or(0);
    let id = |name: &str| text(&["annotations", name]);
    let request = LoggedRequest {
        verb: text(&["verb"]),
        uri: text(&["requestURI"]),
        user: text(&["user", "username"]),
        code,
        audit_id: text(&["auditID"]),
        received: time("requestReceivedTimestamp"),
    };
    LogLine {
        time: time("stageTimestamp").or(request.received),
        level: if code >= 500 { "ERROR".to_owned() } else { String::new() },
        message: format!("{} {} by {} -> {}", request.verb, request.uri, request.user, code),
        fields: Vec::new(),
        trace_id: id(ferrokube_trace::annotation::TRACE_ID),
        span_id: id(ferrokube_trace::annotation::SPAN_ID),
        parent_span_id: String::new(),
        initial_trace_id: id(ferrokube_trace::annotation::INITIAL_TRACE_ID),
        request: Some(request),
    }
}

/// Fields kept per line, and bytes per value; the rest is cut.
const MAX_FIELDS: usize = 64;
const MAX_VALUE: usize = 4 << 10;

fn bounded(mut text: String) -> String {
    if text.len() > MAX_VALUE {
        let end = (0..=MAX_VALUE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text.shrink_to_fit();
    text
}

impl LogLine {
    /// Value of a field; empty if absent.
    pub fn field(&self, name: &str) -> &str {
        self.fields.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// The request of an API server's access line.
    pub fn access(&self) -> Option<LoggedRequest> {
        let [audit_id, verb, uri] = ["audit_id", "verb", "path"].map(|name| self.field(name));
        if audit_id.is_empty() || verb.is_empty() || uri.is_empty() {
            return None;
        }
        Some(LoggedRequest {
            verb: verb.to_owned(),
            uri: uri.to_owned(),
            user: self.field("user").to_owned(),
            code: self.field("http.response.status_code").parse().unwrap_or(0),
            audit_id: audit_id.to_owned(),
            received: self.began(),
        })
    }

    /// Start of what the line describes: its time, less the duration it reports.
    pub fn began(&self) -> Option<Timestamp> {
        let took = Duration::from_micros(self.field("took_us").parse().unwrap_or(0));
        self.time.and_then(|time| time.checked_sub(took).ok())
    }

    /// Sorts a field into the line.
    fn put(&mut self, name: &str, value: String) {
        let value = bounded(value);
        match name {
            _ if TRACE.contains(&name) => self.trace_id = value,
            _ if SPAN.contains(&name) => self.span_id = value,
            _ if PARENT.contains(&name) => self.parent_span_id = value,
            _ if INITIAL.contains(&name) => self.initial_trace_id = value,
            _ if self.fields.len() < MAX_FIELDS => self.fields.push((name.to_owned(), value)),
            _ => {}
        }
    }
}

/// A systemd journal entry: the program's own line, with the unit, and the entry's time if the line
/// has none.
fn journal(entry: &Map<String, Value>, message: &str) -> LogLine {
    // A program's line is not parsed as an entry again, which bounds the recursion.
    let nested = message.contains("\"MESSAGE\"");
    let parsed = if nested { None } else { parse(message) };
    let mut line = parsed
        .unwrap_or_else(|| LogLine { message: bounded(message.to_owned()), ..LogLine::default() });
    if line.time.is_none() {
        let micros = str_at(entry, &["__REALTIME_TIMESTAMP"]).parse().ok();
        line.time = micros.and_then(|micros| Timestamp::from_microsecond(micros).ok());
    }
    let unit = str_at(entry, &["_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER"]);
    if line.field("component").is_empty() && !unit.is_empty() {
        line.put("component", unit.trim_end_matches(".service").to_owned());
    }
    line
}

/// Field names used by other programs.
const TIME: &[&str] = &["time", "ts", "timestamp", "@timestamp"];
const LEVEL: &[&str] = &["level", "severity", "lvl"];
const MESSAGE: &[&str] = &["message", "msg"];
const TRACE: &[&str] = &["trace_id", "traceID", "traceId", "trace-id"];
const SPAN: &[&str] = &["span_id", "spanID", "spanId", "span-id"];
const PARENT: &[&str] = &["parent_span_id"];
const INITIAL: &[&str] = &["initial_trace_id", "initialTraceID", "initial-trace-id"];

/// Nested objects of fields: `span`, where stock `tracing` puts the span's fields (possibly ids),
/// and `fields` for those of the line.
const NESTED: [&str; 2] = ["span", "fields"];

fn json(object: Map<String, Value>) -> LogLine {
    let time = TIME.iter().find_map(|name| match object.get(*name)? {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => seconds(number.as_f64()?),
        _ => None,
    });
    let mut line = LogLine {
        time,
        level: bounded(str_at(&object, LEVEL).to_uppercase()),
        ..LogLine::default()
    };
    let nested = NESTED.iter().filter_map(|name| object.get(*name)?.as_object()).flatten();
    let own = object.iter().filter(|(name, value)| {
        !(TIME.contains(&name.as_str()) || LEVEL.contains(&name.as_str()) || is_nested(name, value))
    });
    for (name, value) in nested.chain(own) {
        if MESSAGE.contains(&name.as_str()) {
            line.message = bounded(text_of(value));
        } else {
            line.put(name, text_of(value));
        }
    }
    line
}

fn is_nested(name: &str, value: &Value) -> bool {
    (NESTED.contains(&name) && value.is_object()) || name == "spans"
}

/// Epoch seconds, or milliseconds if too large for seconds.
fn seconds(number: f64) -> Option<Timestamp> {
    let millis = if number > 1e11 { number } else { number * 1e3 };
    Timestamp::from_millisecond(millis as i64).ok()
}

/// `TIME LEVEL target: message key=value ...`, or klog's `I0102 15:04:05.000000 pid file:line]
/// "message" key=value`.
fn plain(text: &str) -> Option<LogLine> {
    let mut line = LogLine::default();
    let rest = match text.split_once(' ') {
        Some((first, rest)) if first.parse::<Timestamp>().is_ok() => {
            line.time = first.parse().ok();
            let (level, rest) = rest.trim_start().split_once(' ')?;
            line.level = level.to_uppercase();
            rest
        }
        _ => klog(text, &mut line)?,
    };
    let rest = without_spans(rest, &mut line);
    let rest = without_target(rest, &mut line);
    let cut = first_field(rest);
    line.message = bounded(rest[..cut].trim().trim_matches('"').to_owned());
    for (name, value) in pairs(&rest[cut..]) {
        line.put(name, value);
    }
    Some(line)
}

/// Stock `tracing` puts spans first: `request{a=1 trace_id=...}: other{...}: target: message`.
fn without_spans<'a>(text: &'a str, line: &mut LogLine) -> &'a str {
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('{') {
        if name.is_empty() || !name.bytes().all(is_name) {
            break;
        }
        let Some((fields, after)) = split_unquoted(after) else { break };
        pairs(fields).into_iter().for_each(|(name, value)| line.put(name, value));
        rest = after.trim_start_matches(':').trim_start();
    }
    rest
}

/// Splits at the brace that ends a span's fields.
fn split_unquoted(text: &str) -> Option<(&str, &str)> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// `crate::module: message`.
fn without_target<'a>(text: &'a str, line: &mut LogLine) -> &'a str {
    match text.split_once(": ") {
        Some((target, message))
            if !target.is_empty() && target.bytes().all(|byte| is_name(byte) || byte == b':') =>
        {
            line.put("target", target.to_owned());
            message
        }
        _ => text,
    }
}

/// klog omits year and zone: assumes the current year, and UTC.
fn klog<'a>(text: &'a str, line: &mut LogLine) -> Option<&'a str> {
    let level = match text.as_bytes().first()? {
        b'I' => "INFO",
        b'W' => "WARN",
        b'E' | b'F' => "ERROR",
        _ => return None,
    };
    let (head, rest) = text.get(1..)?.split_once(']')?;
    let mut words = head.split_whitespace();
    let (date, clock) = (words.next()?, words.next()?);
    if date.len() != 4 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let year = Timestamp::now().to_string();
    let stamp = format!("{}-{}-{}T{clock}Z", year.get(..4)?, date.get(..2)?, date.get(2..)?);
    level.clone_into(&mut line.level);
    line.time = stamp.parse().ok();
    Some(rest)
}

/// Offset of the first ` key=`.
fn first_field(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find('=').map(|at| at + from) {
        let begin = text[..at].rfind(' ').map_or(0, |space| space + 1);
        if at > begin && begin > 0 && text[begin..at].bytes().all(is_name) {
            return begin - 1;
        }
        from = at + 1;
    }
    text.len()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./".contains(&byte)
}

/// `key=value` and `key="quoted \" value"`.
fn pairs(text: &str) -> Vec<(&str, String)> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.rsplit(' ').next().unwrap_or_default();
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => after
                .split_once(' ')
                .map_or((after.to_owned(), ""), |(value, left)| (value.to_owned(), left)),
        };
        out.push((name, value));
        rest = left;
    }
    out
}

fn unquote(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => {
                out.push(character);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (out, &text[at + 1..]),
            _ => out.push(character),
        }
    }
    (out, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn every_form_gives_the_same_ids() {
        let lines = [
            format!(
                r#"{{"time":"2026-11-21T03:00:00.5Z","level":"ERROR","target":"x","message":"mount failed","pod":"a","trace_id":"{TRACE_ID}","span_id":"b7ad6b7169203331"}}"#
            ),
            format!(
                "2026-11-21T03:00:00.5Z ERROR x: mount failed pod=a trace_id={TRACE_ID} span_id=b7ad6b7169203331"
            ),
            format!(
                r#"2026-11-21T03:00:00.5Z ERROR request{{otel.name="a }} b" trace_id={TRACE_ID} span_id=b7ad6b7169203331}}: fleet: mount failed pod="a""#
            ),
            format!(
                r#"{{"timestamp":"2026-11-21T03:00:00.5Z","level":"ERROR","fields":{{"message":"mount failed","pod":"a"}},"target":"fleet","span":{{"trace_id":"{TRACE_ID}","span_id":"b7ad6b7169203331","name":"seam"}},"spans":[{{}}]}}"#
            ),
            format!(
                r#"E1121 03:00:00.500000 12 file.rs:7] "mount failed" pod="a" trace_id="{TRACE_ID}" span_id="b7ad6b7169203331""#
            ),
        ];
        for text in lines {
            let line = parse(&text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(
                (line.trace_id.as_str(), line.span_id.as_str(), line.level.as_str()),
                (TRACE_ID, "b7ad6b7169203331", "ERROR"),
                "{text}"
            );
            assert!(line.time.is_some() && line.message.contains("mount failed"), "{text}");
            assert!(
                line.fields.iter().any(|(name, value)| name == "pod" && value == "a"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_journal_entry_is_its_programs_line() {
        let own = format!(
            "2026-11-21T03:00:00.5Z ERROR x: mount failed trace_id={TRACE_ID} span_id=b7ad6b7169203331"
        );
        let entry = |message: &str| {
            let message = serde_json::to_string(message).unwrap();
            parse(&format!(r#"{{"__REALTIME_TIMESTAMP":"1795230001000000","_SYSTEMD_UNIT":"kubelet.service","MESSAGE":{message}}}"#)).unwrap()
        };
        let line = entry(&own);
        assert_eq!(
            (line.trace_id.as_str(), line.field("component"), line.level.as_str()),
            (TRACE_ID, "kubelet", "ERROR")
        );
        assert_eq!(line.time, parse(&own).unwrap().time, "the program's own clock");
        let other = entry("of no form");
        assert_eq!(
            (other.message.as_str(), other.time.map(|time| time.as_second())),
            ("of no form", Some(1_795_230_001))
        );
        let deep = r#"{"MESSAGE":"#.repeat(5000) + "1" + &"}".repeat(5000);
        assert!(entry(&deep).message.starts_with('{'), "no deeper than once");
    }

    #[test]
    fn an_audit_event_is_a_request() {
        let text = format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","auditID":"i","stage":"ResponseComplete","requestURI":"/api/v1/x","verb":"create","user":{{"username":"alice"}},
            "responseStatus":{{"code":201}},"requestReceivedTimestamp":"2026-11-21T03:00:00.000000Z","stageTimestamp":"2026-11-21T03:00:00.001000Z","annotations":{{"trace.kubernetes.io/trace-id":"{TRACE_ID}"}}}}"#
        );
        let line = parse(&text.replace('\n', "")).unwrap();
        let request = line.request.unwrap();
        assert_eq!(
            (request.verb.as_str(), request.user.as_str(), request.code),
            ("create", "alice", 201)
        );
        assert_eq!(line.trace_id, TRACE_ID);
    }

    #[test]
    fn garbage_is_skipped_never_fatal() {
        for text in [
            "",
            "{",
            "{\"a\":",
            "no idea",
            "=",
            "E= ]",
            "I11 ]",
            "\u{1b}[31m",
            "E1121",
            "I\u{e9}\u{e9}1 x] y=\"",
            "2026-11-21T03:00:00Z",
            "a=\"b",
        ] {
            let _ = parse(text);
        }
        assert_eq!(parse("plain words"), None);
    }
}
