//! What writes pay for policies, and what they do not.

use super::policies::{GROUP, bind, create};
use super::{TestPipeline, document};
use ferrokube_admission::{Mutation, RemoteStep};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_registry::Attributes;
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::offload::Offload;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A step for one resource.
struct CountedStep {
    name: &'static str,
    plural: &'static str,
    calls: Arc<AtomicUsize>,
}

impl CountedStep {
    fn call(&self) -> RemoteFuture<'static, ()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl RemoteStep for CountedStep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn matches(&self, attributes: &Attributes<'_>) -> bool {
        attributes.target.served.definition.plural == self.plural
    }

    fn mutate<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        mutation: &'a mut Mutation,
    ) -> RemoteFuture<'a, ()> {
        mutation.ran(self.name, "changes", !mutation.is_second, false);
        self.call()
    }

    fn validate<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        _object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        self.call()
    }
}

#[tokio::test]
async fn a_step_is_only_called_for_what_it_matches() {
    let calls = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let step = |name, plural, calls: &Arc<AtomicUsize>| {
        Arc::new(CountedStep { name, plural, calls: Arc::clone(calls) })
    };
    let server = TestPipeline::with_steps("LogTracking=false", |chain| {
        chain
            .with_remote(step("MutatingAdmissionWebhook", "configmaps", &calls[0]))
            .with_remote(step("ValidatingAdmissionWebhook", "secrets", &calls[1]))
    });
    let server = server.and_namespace().await;
    create(&server, "a", json!({})).await.unwrap();
    let counts = || calls.each_ref().map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(counts(), [3, 0], "twice for mutation, then for validation");
    server.as_user("", "configmaps").delete("n", "a").await.unwrap();
    assert_eq!(counts(), [6, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_34_long_evaluations_leave_the_worker() {
    let server = TestPipeline::with_namespace().await;
    let check = "authorizer.group('').resource('pods').check('get').allowed()";
    bind(&server, json!({"validations": [{"expression": "true"}]}), json!({})).await;
    let created = async |name: &'static str| {
        let offload = Offload::default();
        offload.run(7, Box::pin(create(&server, name, json!({})))).await.unwrap();
    };
    created("short").await;
    bind(&server, json!({"validations": [{"expression": check}]}), json!({})).await;
    created("long").await;
    let [on_worker, off_worker] = &server.permits.decided;
    assert_eq!(off_worker.load(Ordering::Relaxed), 1);
    assert_eq!(on_worker.load(Ordering::Relaxed), 0, "it costs more than a worker may spend");
}

#[tokio::test]
async fn fault_34_the_parameters_of_a_write_are_bounded() {
    let server = TestPipeline::with_namespace().await;
    for name in ["a", "b", "c", "d", "e"] {
        let object = json!({"metadata": {"name": name, "labels": {"p": "x"}},
            "data": {"k": "v".repeat(1 << 20)}});
        server.core("configmaps").create("n", document(object)).await.unwrap();
    }
    let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "params.data.k.size() > 0"}]});
    let select = |labels| {
        json!({"paramRef": {"selector": {"matchLabels": labels},
            "parameterNotFoundAction": "Allow"}})
    };
    bind(&server, spec.clone(), select(json!({"p": "x"}))).await;
    let failure = create(&server, "z", json!({})).await.unwrap_err();
    let want = "failed to configure binding: paramRef.selector would read more than 4194304 bytes";
    assert!(failure.message.ends_with(want), "{}", failure.message);
    // Bytes of what is not selected do not count.
    bind(&server, spec, select(json!({"p": "y"}))).await;
    create(&server, "z", json!({})).await.unwrap();
    let bindings = server.kind(GROUP, "validatingadmissionpolicybindings");
    assert!(bindings.get("", "b").await.unwrap().is_some());
}
