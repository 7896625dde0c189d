//! The gate `LogTrackingInterop` when on: requests gain baggage, and KEP-5915's annotation replaces
//! absent ids. A separate process, because the forms cannot be turned off.

use ferrokube_trace::annotation::{self, INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};
use ferrokube_trace::{Carrier, TraceContext, TraceId, extract_initial, inject, interop};
use std::collections::BTreeMap;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn read(annotations: &[(&str, &str)]) -> Option<TraceContext> {
    annotation::read(|name| {
        annotations.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    })
}

#[test]
fn d2_d3_p05_both_values_of_the_gate() {
    let context = TraceContext::root().with_initial(Some(TraceId::random()));
    let of_others = BTreeMap::from([
        ("baggage".to_owned(), "a=b;p".to_owned()),
        ("tracestate".to_owned(), "v=1".to_owned()),
    ]);
    let annotated = [(interop::TRACEPARENT_ANNOTATION, PARENT)];

    let mut off = of_others.clone();
    inject(&context, &mut off);
    assert_eq!(Carrier::get(&off, "baggage"), Some("a=b;p"));
    assert_eq!(read(&annotated), None);

    interop::turn_on();
    let mut on = of_others;
    inject(&context, &mut on);
    let initial = context.initial.unwrap();
    assert_eq!(
        Carrier::get(&on, "baggage"),
        Some(format!("a=b;p,initial-trace-id={initial}").as_str())
    );
    assert_eq!(
        (Carrier::get(&on, "tracestate"), extract_initial(&on)),
        (Some("v=1"), Some(initial))
    );
    assert_eq!(interop::initial_of(Carrier::get(&on, "baggage")), Some(initial));
    let mut of_no_family = BTreeMap::new();
    inject(&TraceContext::root(), &mut of_no_family);
    assert_eq!(Carrier::get(&of_no_family, "baggage"), None, "L25: nothing is invented");

    let cause = read(&annotated).unwrap();
    assert_eq!(
        (cause.trace_id.to_string().as_str(), cause.span_id.to_string().as_str()),
        ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    );
    let own = [
        (TRACE_ID, "0af7651916cd43dd8448eb211c80319c"),
        (SPAN_ID, "b7ad6b7169203331"),
        (INITIAL_TRACE_ID, "0af7651916cd43dd8448eb211c80319c"),
    ];
    let cause = read(&[&own[..], &annotated].concat()).unwrap();
    assert_eq!(cause.trace_id.to_string(), own[0].1, "ours come first");
    assert_eq!(read(&[(TRACE_ID, "edited by hand"), annotated[0]]), None, "garbage is no absence");
    for garbage in ["", "edited by hand", "00-00000000000000000000000000000000-0000000000000000-00"]
    {
        assert_eq!(read(&[(interop::TRACEPARENT_ANNOTATION, garbage)]), None, "{garbage:?}");
    }
}
