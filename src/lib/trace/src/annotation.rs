//! The annotations that carry the three ids on objects. The server owns them: nobody's value but its own is kept.

use crate::context::TraceContext;
use crate::interop;

/// What all three begin with.
pub const PREFIX: &str = "trace.kubernetes.io/";
/// The trace of the last request that changed the object.
pub const TRACE_ID: &str = "trace.kubernetes.io/trace-id";
/// The action that changed it.
pub const SPAN_ID: &str = "trace.kubernetes.io/span-id";
/// The trace of the request that created the first of its family.
pub const INITIAL_TRACE_ID: &str = "trace.kubernetes.io/initial-trace-id";
/// All three.
pub const ALL: [&str; 3] = [TRACE_ID, SPAN_ID, INITIAL_TRACE_ID];

/// The action that wrote an object last, of its annotations: what a reconcile of the object is caused by (KEP-1668, the controller's step 1).
///
/// `None` unless trace and span id are there and whole: somebody may have edited them on a server that does not own them.
///
/// Where other servers' forms are read, too (see [`interop`]), KEP-5915's annotation stands in for absent ids.
pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Option<TraceContext> {
    if get(TRACE_ID).is_none() && interop::is_on() {
        return interop::annotated(get);
    }
    let (trace_id, span_id) = (get(TRACE_ID)?.parse().ok()?, get(SPAN_ID)?.parse().ok()?);
    let initial = get(INITIAL_TRACE_ID).and_then(|text| text.parse().ok());
    Some(TraceContext { trace_id, span_id, parent_span_id: None, flags: 0, initial, link: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l30_garbage_is_no_cause() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let of = |trace: &'static str, span: &'static str, initial: &'static str| {
            let all = [(TRACE_ID, trace), (SPAN_ID, span), (INITIAL_TRACE_ID, initial)];
            read(move |name| all.iter().find(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| *value))
        };
        let cause = of(trace, span, trace).unwrap();
        assert_eq!((cause.trace_id.to_string().as_str(), cause.span_id.to_string().as_str(), cause.initial), (trace, span, Some(cause.trace_id)));
        assert_eq!(of(trace, span, "edited by hand").unwrap().initial, None);
        assert_eq!(of("", span, trace), None);
        assert_eq!(of(trace, "0000000000000000", trace), None);
        assert_eq!(of("\u{1b}[31m", span, trace), None);
    }
}
