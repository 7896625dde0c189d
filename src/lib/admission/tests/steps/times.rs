//! Durations of steps, as metrics.

use crate::{StepRequest, chain, definition, document, store, target, write_namespace};
use ferrokube_admission::step::FnStep;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::Scope;
use prometheus_client::registry::Registry;
use std::sync::Arc;

#[tokio::test]
async fn each_step_is_timed() {
    let store = store();
    write_namespace(&store, "one", "Active").await;
    let picky = FnStep::new("Picky", |_, object| match object.map(Document::name) {
        Some("no") => Err(Failure::bad_request("no")),
        _ => Ok(()),
    });
    let chain = chain(&store).with(Arc::new(picky));
    let mut registry = Registry::default();
    chain.times().register(&mut registry);
    let definition = definition("", "things", Scope::Namespaced);
    for name in ["yes", "no"] {
        let request = StepRequest::create(target(&definition, Some("one"), name));
        let mut object = document(json!({"metadata": {"name": name}}));
        assert_eq!(request.pass(&chain, &mut object).is_ok(), name == "yes");
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let count = |name: &str, rejected: bool, phase: &str| {
        let labels = format!("operation=\"CREATE\",rejected=\"{rejected}\",type=\"{phase}\"");
        let row = match name {
            "" => format!("apiserver_admission_step_admission_duration_seconds_count{{{labels}}} "),
            name => format!(
                "apiserver_admission_controller_admission_duration_seconds_count{{name=\"{name}\",{labels}}} "
            ),
        };
        text.lines().find_map(|line| line.strip_prefix(&row)?.parse::<u64>().ok())
    };
    let counts = |name: &str, phase: &str| [false, true].map(|no| count(name, no, phase));
    assert_eq!(counts("Picky", "admit"), [None, None], "it only validates");
    assert_eq!(counts("NamespaceLifecycle", "admit"), [Some(2), None], "{text}");
    assert_eq!(counts("Picky", "validate"), [Some(1), Some(1)], "{text}");
    assert_eq!(counts("NamespaceLifecycle", "validate"), [Some(2), None], "{text}");
    assert_eq!(counts("ResourceQuota", "validate"), [Some(1), None], "after the one that refused");
    assert_eq!(counts("", "admit"), [Some(2), None], "{text}");
    assert_eq!(counts("", "validate"), [Some(1), Some(1)], "{text}");
}
