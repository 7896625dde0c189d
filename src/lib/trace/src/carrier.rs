//! Extracting and injecting ids over named texts: headers, annotations, queue items.
//!
//! Extraction has two functions because KEP-1668 has two handlers: span context first, then the
//! initial trace id.

use crate::context::TraceContext;
use crate::id::InitialTraceId;
use crate::interop;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::BTreeMap;

/// The header of the span context (W3C).
pub const TRACEPARENT: &str = "traceparent";
/// The header of the initial trace id, in the lower-case form that `http::HeaderName` needs.
pub const INITIAL_TRACE_ID: &str = "initial-trace-id";

/// Named texts. Callers pass names in lower case; a carrier whose names ignore case (headers)
/// matches in any case.
pub trait Carrier {
    /// The one value under a name; `None` when absent, given more than once, or not text.
    fn get(&self, name: &str) -> Option<&str>;
    /// All values of a list-valued name, joined by commas; `None` when absent or not text.
    fn get_list(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }
    /// Sets a value, replacing earlier ones.
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

/// Names that every request is searched for: looking a text up parses it each time.
static PARSED: [HeaderName; 2] =
    [HeaderName::from_static(TRACEPARENT), HeaderName::from_static(INITIAL_TRACE_ID)];

/// Headers of outgoing and incoming requests.
impl Carrier for HeaderMap {
    fn get(&self, name: &str) -> Option<&str> {
        let parsed = PARSED.iter().find(|parsed| parsed.as_str() == name);
        let all = parsed.map_or_else(|| self.get_all(name), |parsed| self.get_all(parsed));
        let mut values = all.iter();
        let first = values.next()?;
        values.next().is_none().then(|| first.to_str().ok()).flatten()
    }

    fn get_list(&self, name: &str) -> Option<String> {
        let values: Vec<&str> =
            self.get_all(name).iter().map(|value| value.to_str().ok()).collect::<Option<_>>()?;
        (!values.is_empty()).then(|| values.join(","))
    }

    fn set(&mut self, name: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            self.insert(name, value);
        }
    }
}

/// Reads `traceparent` strictly (W3C): malformed, all-zero, version `ff` or repeated count as
/// absent. Never fails.
///
/// Returns the sender's action: call [`TraceContext::child`] on it if the sender is trusted, else
/// [`TraceContext::with_link`] on a new root.
pub fn extract(carrier: &dyn Carrier) -> Option<TraceContext> {
    TraceContext::parse_traceparent(carrier.get(TRACEPARENT)?)
}

/// Reads `Initial-Trace-Id`: 32 lower hex digits, not all zero; anything else counts as absent.
/// Never fails.
pub fn extract_initial(carrier: &dyn Carrier) -> Option<InitialTraceId> {
    carrier.get(INITIAL_TRACE_ID)?.parse().ok()
}

/// Writes `traceparent` and, unless empty, `Initial-Trace-Id`; if enabled (see [`interop`]),
/// baggage. All requests to other components get their ids here. Leaves `tracestate` alone.
pub fn inject(context: &TraceContext, carrier: &mut dyn Carrier) {
    carrier.set(TRACEPARENT, context.traceparent());
    let Some(initial) = context.initial else { return };
    carrier.set(INITIAL_TRACE_ID, initial.to_string());
    if interop::is_on() {
        let baggage = interop::with_initial(carrier.get_list(interop::BAGGAGE).as_deref(), initial);
        carrier.set(interop::BAGGAGE, baggage);
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

    #[test]
    fn d2_several_headers_of_baggage_are_one_list() {
        let mut headers = HeaderMap::new();
        assert_eq!(headers.get_list(interop::BAGGAGE), None);
        for value in ["a=b", "c=d, e=f"] {
            headers.append(interop::BAGGAGE, HeaderValue::from_static(value));
        }
        let initial = TraceId::random();
        let whole = interop::with_initial(headers.get_list(interop::BAGGAGE).as_deref(), initial);
        assert_eq!(
            whole,
            format!("a=b,c=d,e=f,initial-trace-id={initial}"),
            "foreign members stay"
        );
        headers.append(interop::BAGGAGE, HeaderValue::from_bytes(&[0xff]).unwrap());
        assert_eq!(headers.get_list(interop::BAGGAGE), None);
    }

    #[test]
    fn l09_l22_headers_match_in_any_case_once_and_foreign_ones_stay() {
        let mut headers = HeaderMap::new();
        headers.insert("TraceState".parse::<HeaderName>().unwrap(), "vendor=1".parse().unwrap());
        let context = TraceContext::root().with_initial(Some(TraceId::random()));
        inject(&context, &mut headers);
        assert_eq!(headers.len(), 3);
        assert_eq!(headers["tracestate"], "vendor=1");
        assert_eq!(headers["Traceparent"], context.traceparent());
        assert_eq!(
            (extract(&headers).unwrap().trace_id, extract_initial(&headers)),
            (context.trace_id, context.initial)
        );
        for name in [TRACEPARENT, INITIAL_TRACE_ID] {
            let again = headers[name].clone();
            headers.append(name, again);
        }
        assert_eq!(
            (extract(&headers), extract_initial(&headers)),
            (None, None),
            "a repeated header counts as absent"
        );
        for name in [TRACEPARENT, INITIAL_TRACE_ID] {
            headers.insert(name, HeaderValue::from_bytes(&[0xff; 55]).unwrap());
        }
        assert_eq!(
            (extract(&headers), extract_initial(&headers)),
            (None, None),
            "so does one that is not text"
        );
    }
}
