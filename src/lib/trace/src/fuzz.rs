//! Fuzz targets: headers and annotations from untrusted clients.

use crate::context::TraceContext;
use crate::id::TraceId;
use crate::{annotation, interop};
use ferrokube_fuzz::{Verdict, run};

const PARENTS: &[&str] = &[
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-what-comes-later",
    "ff-00000000000000000000000000000000-0000000000000000-00",
];
const BAGGAGE: &[&str] = &[
    "a=b;p, initial-trace-id = 0af7651916cd43dd8448eb211c80319c ;q=1,c=d",
    "initial-trace-id=,=;,initial-trace-id=x",
    "",
];

#[test]
fn l22_any_traceparent() {
    run("traceparent", PARENTS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Some(context) = TraceContext::parse_traceparent(&text) else { return Verdict::Refused };
        let written = context.traceparent();
        assert_eq!(TraceContext::parse_traceparent(&written), Some(context));
        assert_eq!(written[3..52], text[3..52], "the ids are those that were sent");
        Verdict::Accepted
    });
}

#[test]
fn d2_any_baggage() {
    let own = TraceId::random();
    run("baggage", BAGGAGE, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let found = interop::initial_of(text.split('\n'));
        let sent = interop::with_initial(Some(&text), own);
        assert!(sent == text || interop::initial_of([sent.as_str()]) == Some(own), "{sent:?}");
        Verdict::from(found.is_some())
    });
}

#[test]
fn l30_any_annotations() {
    run("annotations", PARENTS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let [one, two] = [text.get(3..35), text.get(36..52)];
        let cause = annotation::read(|key| if key == annotation::SPAN_ID { two } else { one });
        assert!(cause.is_none_or(|cause| cause.trace_id.to_string() == one.unwrap_or_default()));
        Verdict::from(cause.is_some())
    });
}
