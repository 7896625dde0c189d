//! The annotations with an object's three ids. The server owns them and overwrites clients' values.

use crate::context::TraceContext;
use crate::id::{Hex, InitialTraceId, SpanId, TraceId};
use crate::interop;

/// The prefix of all three.
pub const PREFIX: &str = "trace.kubernetes.io/";
/// The trace of the last request that changed the object.
pub const TRACE_ID: &str = "trace.kubernetes.io/trace-id";
/// The action that changed it.
pub const SPAN_ID: &str = "trace.kubernetes.io/span-id";
/// The trace of the request that created the first of its family.
pub const INITIAL_TRACE_ID: &str = "trace.kubernetes.io/initial-trace-id";
/// All three.
pub const ALL: [&str; 3] = [TRACE_ID, SPAN_ID, INITIAL_TRACE_ID];

/// The action that last wrote an object, by its annotations: the cause of a reconcile (KEP-1668,
/// step 1 of controllers).
///
/// `None` unless trace and span id are present and valid: on a server without log tracking clients
/// can edit them.
///
/// KEP-5915's annotation replaces absent ids, if enabled (see [`interop`]).
pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<TraceContext> {
    let mut found = CauseReader::default();
    for key in READ {
        if let Some(text) = get(key) {
            found.note(key, text);
        }
    }
    found.cause()
}

const READ: [&str; 4] = [TRACE_ID, SPAN_ID, INITIAL_TRACE_ID, interop::TRACEPARENT_ANNOTATION];

/// [`read`] for callers that see annotations one by one, in any order.
#[derive(Clone, Copy, Debug, Default)]
pub struct CauseReader {
    /// Whether the annotation is present, valid or not.
    traced: bool,
    trace: Option<TraceId>,
    span: Option<SpanId>,
    initial: Option<InitialTraceId>,
    traceparent: Option<TraceContext>,
}

impl CauseReader {
    /// Whether this annotation is one of those read.
    pub fn wants(key: &str) -> bool {
        READ.contains(&key)
    }

    /// Adds an annotation.
    pub fn note(&mut self, key: &str, text: &str) {
        match key {
            TRACE_ID => (self.traced, self.trace) = (true, text.parse().ok()),
            SPAN_ID => self.span = text.parse().ok(),
            INITIAL_TRACE_ID => self.initial = text.parse().ok(),
            interop::TRACEPARENT_ANNOTATION if interop::is_on() => {
                self.traceparent = interop::annotated(text)
            }
            _ => {}
        }
    }

    /// The result, as of [`read`].
    pub fn cause(self) -> Option<TraceContext> {
        if !self.traced && interop::is_on() {
            return self.traceparent;
        }
        Some(TraceContext {
            trace_id: self.trace?,
            span_id: self.span?,
            parent_span_id: None,
            flags: 0,
            initial: self.initial,
            link: None,
        })
    }
}

/// The ids that a write adds to an object, as annotation values, formatted once, on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    initial: Option<Hex<32>>,
    span: Hex<16>,
    trace: Hex<32>,
}

impl Ids {
    /// The ids of an action. `initial` is `None` if the object keeps its own.
    pub fn new(action: &TraceContext, initial: Option<InitialTraceId>) -> Self {
        Self {
            initial: initial.map(|id| id.hex()),
            span: action.span_id.hex(),
            trace: action.trace_id.hex(),
        }
    }

    /// Passes keys and values to a function, in key order; neither needs escaping in JSON.
    pub fn with<R>(&self, function: impl FnOnce(&[(&str, &str)]) -> R) -> R {
        let initial = self.initial.as_ref().map_or("", Hex::as_str);
        let all = [
            (INITIAL_TRACE_ID, initial),
            (SPAN_ID, self.span.as_str()),
            (TRACE_ID, self.trace.as_str()),
        ];
        function(&all[usize::from(self.initial.is_none())..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l30_garbage_is_no_cause() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let of = |trace: &'static str, span: &'static str, initial: &'static str| {
            let all = [(TRACE_ID, trace), (SPAN_ID, span), (INITIAL_TRACE_ID, initial)];
            read(move |name| {
                all.iter()
                    .find(|(key, value)| *key == name && !value.is_empty())
                    .map(|(_, value)| *value)
            })
        };
        let cause = of(trace, span, trace).unwrap();
        assert_eq!(
            (
                cause.trace_id.to_string().as_str(),
                cause.span_id.to_string().as_str(),
                cause.initial
            ),
            (trace, span, Some(cause.trace_id))
        );
        assert_eq!(of(trace, span, "edited by hand").unwrap().initial, None);
        assert_eq!(of("", span, trace), None);
        assert_eq!(of(trace, "0000000000000000", trace), None);
        assert_eq!(of("\u{1b}[31m", span, trace), None);
    }
}
