//! Formats an event as one line.

use crate::causes::{Bounded, append_causes, cut_to, sources};
use crate::context::TraceContext;
use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::SystemTime;
use tracing::Event;
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime as SystemClock};

/// Log line format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `time LEVEL target: message key=value ...`
    #[default]
    Text,
    /// An object with `time`, `level`, `target`, `message` and the fields.
    Json,
}

/// An unknown format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log formats are text and json")]
pub struct FormatError;

impl FromStr for LogFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(FormatError),
        }
    }
}

/// Max bytes of a value; the rest is cut.
const MAX_VALUE_BYTES: usize = 8 << 10;

impl LogFormat {
    /// Formats an event, with a line feed.
    pub(crate) fn line(self, event: &Event<'_>, ids: Option<&TraceContext>) -> String {
        let metadata = event.metadata();
        let mut line = Line {
            format: self,
            text: String::with_capacity(256),
            message: String::new(),
            fields: String::new(),
        };
        event.record(&mut line);
        if let Some(ids) = ids {
            line.string("trace_id", &ids.trace_id.hex());
            line.string("span_id", &ids.span_id.hex());
            if let Some(initial) = ids.initial {
                line.string("initial_trace_id", &initial.hex());
            }
        }
        line.finish(metadata.level().as_str(), metadata.target())
    }

    /// Formats one of the log's own messages.
    pub(crate) fn notice(self, message: &str, field: &str, value: u64) -> String {
        let mut line = Line {
            format: self,
            text: String::new(),
            message: message.to_owned(),
            fields: String::new(),
        };
        line.raw(field, value);
        line.finish("WARN", "ferrokube::log")
    }
}

struct Line {
    format: LogFormat,
    text: String,
    message: String,
    fields: String,
}

impl Line {
    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Text => {
                self.fields.push(' ');
                self.fields.push_str(name);
                self.fields.push('=');
            }
            LogFormat::Json => {
                self.fields.push(',');
                quote(&mut self.fields, name, self.format);
                self.fields.push(':');
            }
        }
    }

    fn raw(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        let _ = write!(self.fields, "{value}");
    }

    fn string(&mut self, name: &str, value: &str) {
        self.name(name);
        let value = cut(value);
        if self.format == LogFormat::Text && is_plain(value) {
            self.fields.push_str(value);
        } else {
            quote(&mut self.fields, value, self.format);
        }
    }

    fn finish(self, level: &str, target: &str) -> String {
        let Self { format, mut text, message, fields } = self;
        match format {
            LogFormat::Text => {
                time(&mut text);
                let _ = write!(text, " {level:>5} {target}: ");
                if message.contains(char::is_control) {
                    quote(&mut text, &message, format)
                } else {
                    text.push_str(&message)
                }
                text.push_str(&fields);
            }
            LogFormat::Json => {
                text.push_str("{\"time\":\"");
                time(&mut text);
                let _ =
                    write!(text, "\",\"level\":\"{level}\",\"target\":\"{target}\",\"message\":");
                quote(&mut text, &message, format);
                text.push_str(&fields);
                text.push('}');
            }
        }
        text.push('\n');
        text
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(Bounded::new(&mut self.message, MAX_VALUE_BYTES), "{value:?}");
        } else {
            let mut text = String::new();
            let _ = write!(Bounded::new(&mut text, MAX_VALUE_BYTES), "{value:?}");
            self.string(field.name(), &text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(cut(value))
        } else {
            self.string(field.name(), value)
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.raw(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.raw(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.raw(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if value.is_finite() {
            self.raw(field.name(), value)
        } else {
            self.string(field.name(), &value.to_string())
        }
    }

    /// Records the error with its chain of sources, but for those that the text above quotes.
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = String::new();
        let _ = write!(Bounded::new(&mut text, MAX_VALUE_BYTES), "{value}");
        append_causes(&mut text, sources(value), MAX_VALUE_BYTES);
        self.string(field.name(), &text);
    }
}

fn cut(text: &str) -> &str {
    cut_to(text, MAX_VALUE_BYTES)
}

fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\'))
}

/// Writes a JSON string; in text format, terminal control characters are escaped, too.
fn quote(into: &mut String, text: &str, format: LogFormat) {
    into.push('"');
    for character in text.chars() {
        match character {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            other if other < ' ' || (format == LogFormat::Text && other.is_control()) => {
                let _ = write!(into, "\\u{:04x}", u32::from(other));
            }
            other => into.push(other),
        }
    }
    into.push('"');
}

fn time(text: &mut String) {
    // Writing to a string does not fail.
    let _ = SystemClock.format_time(&mut Writer::new(text));
    debug_assert!(!text.is_empty(), "a time before {:?}", SystemTime::now());
}
