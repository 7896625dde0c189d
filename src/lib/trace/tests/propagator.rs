//! The propagator over OpenTelemetry's own carriers.

use ferrokube_trace::propagator::{Initial, InitialTracePropagator};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use std::collections::HashMap;

#[test]
fn l29_l32_the_second_header_travels_with_opentelemetry() {
    let id = "0af7651916cd43dd8448eb211c80319c";
    let received = HashMap::from([("initial-trace-id".to_owned(), id.to_owned())]);
    let context = InitialTracePropagator.extract_with_context(&Context::new(), &received);
    assert_eq!(context.get::<Initial>().unwrap().0.to_string(), id);
    let mut sent: HashMap<String, String> = HashMap::new();
    InitialTracePropagator.inject_context(&context, &mut sent);
    assert_eq!(sent, received);
    assert_eq!(InitialTracePropagator.fields().collect::<Vec<_>>(), ["initial-trace-id"]);
}

#[test]
fn l22_a_malformed_id_is_as_absent() {
    for text in ["", "junk", "00000000000000000000000000000000"] {
        let received = HashMap::from([("initial-trace-id".to_owned(), text.to_owned())]);
        let context = InitialTracePropagator.extract_with_context(&Context::new(), &received);
        assert_eq!(context.get::<Initial>(), None);
        let mut sent: HashMap<String, String> = HashMap::new();
        InitialTracePropagator.inject_context(&context, &mut sent);
        assert!(sent.is_empty());
    }
}
