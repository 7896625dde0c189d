//! Extract and inject over anything that holds named texts: headers, annotations, queue items.
//!
//! The two halves are separate because they are separate steps of the request chain (KEP-1668): first the span context, then, in a
//! handler of its own, the initial trace id.

use crate::context::TraceContext;
use crate::id::InitialTraceId;
use crate::interop;
use std::collections::BTreeMap;

/// The header of the span context (W3C).
pub const TRACEPARENT: &str = "traceparent";
/// The header of the initial trace id, in the lower-case form that `http::HeaderName` needs.
pub const INITIAL_TRACE_ID: &str = "initial-trace-id";

/// Named texts. Names are given in lower case; a carrier whose names ignore case (headers) must find them all the same.
pub trait Carrier {
    /// The one value under a name; `None` when absent, given more than once, or not text.
    fn get(&self, name: &str) -> Option<&str>;
    /// Sets a value, replacing what was there.
    fn set(&mut self, name: &str, value: String);
}

impl Carrier for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<&str> {
        BTreeMap::get(self, name).map(String::as_str)
    }

    fn set(&mut self, name: &str, value: String) {
        self.insert(name.to_owned(), value);
    }
}

/// Reads `traceparent` strictly (W3C): malformed, all-zero, unknown version `ff` or repeated is as absent. Never fails.
///
/// The result is the sender's action: call [`TraceContext::child`] on it when the sender is trusted, else [`TraceContext::with_link`] on a new root.
pub fn extract(carrier: &dyn Carrier) -> Option<TraceContext> {
    extract_with(|name| carrier.get(name))
}

/// Reads `Initial-Trace-Id`: 32 lower hex digits, not all zero; anything else is as absent. Never fails.
pub fn extract_initial(carrier: &dyn Carrier) -> Option<InitialTraceId> {
    extract_initial_with(|name| carrier.get(name))
}

/// Writes `traceparent` and, unless empty, `Initial-Trace-Id`; where other forms are on (see [`interop`]), also as baggage.
pub fn inject(context: &TraceContext, carrier: &mut dyn Carrier) {
    if let Some(initial) = context.initial.filter(|_| interop::is_on()) {
        let baggage = interop::with_initial(carrier.get(interop::BAGGAGE), initial);
        carrier.set(interop::BAGGAGE, baggage);
    }
    inject_with(context, |name, value| carrier.set(name, value));
}

/// [`extract`] over a function that gives the one value under a name.
pub fn extract_with<'a>(get: impl FnOnce(&str) -> Option<&'a str>) -> Option<TraceContext> {
    TraceContext::parse_traceparent(get(TRACEPARENT)?)
}

/// [`extract_initial`] over a function that gives the one value under a name.
pub fn extract_initial_with<'a>(get: impl FnOnce(&str) -> Option<&'a str>) -> Option<InitialTraceId> {
    get(INITIAL_TRACE_ID)?.parse().ok()
}

/// [`inject`] over a function that sets a value.
pub fn inject_with(context: &TraceContext, mut set: impl FnMut(&'static str, String)) {
    set(TRACEPARENT, context.traceparent());
    if let Some(initial) = context.initial {
        set(INITIAL_TRACE_ID, initial.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TraceId;

    #[test]
    fn l28_l29_what_is_injected_is_extracted() {
        let context = TraceContext::root().with_initial(Some(TraceId::random()));
        let mut carrier = BTreeMap::new();
        inject(&context, &mut carrier);
        let sender = extract(&carrier).unwrap();
        assert_eq!((sender.trace_id, sender.span_id), (context.trace_id, context.span_id));
        assert_eq!(extract_initial(&carrier), context.initial);
    }

    #[test]
    fn l25_l29_an_empty_initial_id_is_not_sent_and_not_invented() {
        let mut carrier = BTreeMap::new();
        inject(&TraceContext::root(), &mut carrier);
        assert_eq!(carrier.keys().collect::<Vec<_>>(), [TRACEPARENT]);
        assert_eq!(extract_initial(&carrier), None);
        carrier.set(INITIAL_TRACE_ID, "0".repeat(32));
        assert_eq!(extract_initial(&carrier), None);
    }
}
