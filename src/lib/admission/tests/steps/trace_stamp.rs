//! Trace ids in object annotations.

use crate::{GrantedRights, StepRequest, chain, definition, document, gates, store, target};
use ferrokube_admission::Chain;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::{Admission, Operation, RequestContext, show_ids};
use ferrokube_resource::Scope;
use ferrokube_trace::annotation::{ALL, INITIAL_TRACE_ID, SPAN_ID, TRACE_ID};
use ferrokube_trace::{TraceContext, TraceId};
use std::sync::Arc;
use std::time::SystemTime;

fn ids(object: &Document) -> [Option<String>; 3] {
    ALL.map(|key| object.annotation(key).map(str::to_owned))
}

fn with_ids(values: [&str; 3]) -> Value {
    json!({"metadata": {"annotations": {TRACE_ID: values[0], SPAN_ID: values[1], INITIAL_TRACE_ID: values[2]}}})
}

async fn stamped(chain: &Chain, request: &StepRequest, object: Value) -> Document {
    let mut object = document(object);
    if let Some(ids) = chain.stamp(&request.attributes(), &mut object) {
        show_ids(&ids, &mut object);
    }
    object
}

fn request(operation: Operation, old: Option<Value>, initial: Option<TraceId>) -> StepRequest {
    let configmaps = definition("", "configmaps", Scope::Cluster);
    let trace = TraceContext::root().with_initial(initial);
    let context =
        RequestContext::new(UserInfo::default(), trace, "test".to_owned(), SystemTime::UNIX_EPOCH);
    StepRequest {
        context,
        target: target(&configmaps, None, "a"),
        operation,
        old: old.map(document),
    }
}

fn own(request: &StepRequest) -> [Option<String>; 2] {
    let trace = &request.context.trace;
    [Some(trace.trace_id.to_string()), Some(trace.span_id.to_string())]
}

#[tokio::test]
async fn a_create_without_an_initial_id_copies_its_trace() {
    let request = request(Operation::Create, None, None);
    let object =
        stamped(&chain(&store()), &request, with_ids(["forged", "forged", "forged"])).await;
    let [trace, span] = own(&request);
    assert_eq!(ids(&object), [trace.clone(), span, trace]);
}

#[tokio::test]
async fn a_request_with_an_initial_id_writes_all_three() {
    let initial = TraceId::random();
    for (operation, old) in
        [(Operation::Create, None), (Operation::Update, Some(with_ids(["t", "s", "i"])))]
    {
        let request = request(operation, old, Some(initial));
        let object = stamped(&chain(&store()), &request, json!({"data": {"k": "v"}})).await;
        let [trace, span] = own(&request);
        assert_eq!(ids(&object), [trace, span, Some(initial.to_string())]);
    }
}

#[tokio::test]
async fn any_other_write_keeps_the_initial_id() {
    let initial = TraceId::random().to_string();
    for (stored, kept) in [(initial.as_str(), Some(initial.clone())), ("edited by hand", None)] {
        let request = request(Operation::Update, Some(with_ids(["t", "s", stored])), None);
        for mut given in [json!({}), with_ids(["x", "y", "z"])] {
            given["data"] = json!({"k": "v"});
            let object = stamped(&chain(&store()), &request, given).await;
            let [trace, span] = own(&request);
            assert_eq!(ids(&object), [trace, span, kept.clone()]);
        }
    }
}

#[tokio::test]
async fn status_lease_and_event_writes_keep_what_is_stored() {
    let chain = chain(&store());
    let mut status =
        request(Operation::Update, Some(with_ids(["t", "s", "i"])), Some(TraceId::random()));
    status.target.subresource = "status".to_owned();
    assert_eq!(
        ids(&stamped(&chain, &status, json!({})).await),
        ["t", "s", "i"].map(|text| Some(text.to_owned()))
    );
    for (group, plural) in
        [("coordination.k8s.io", "leases"), ("", "events"), ("events.k8s.io", "events")]
    {
        let mut create = request(Operation::Create, None, None);
        create.target = target(&definition(group, plural, Scope::Cluster), None, "a");
        let object = stamped(&chain, &create, with_ids(["x", "y", "z"])).await;
        assert_eq!(object, document(json!({"metadata": {}})), "{plural}");
    }
}

#[tokio::test]
async fn writes_of_the_server_itself_are_not_stamped() {
    let trace = TraceContext::root();
    let user = UserInfo { name: "system:apiserver".to_owned(), ..UserInfo::default() };
    for initial in [None, Some(TraceId::random())] {
        let context = RequestContext::new(
            user.clone(),
            trace.with_initial(initial),
            "test".to_owned(),
            SystemTime::UNIX_EPOCH,
        );
        let request = StepRequest { context, ..request(Operation::Create, None, None) };
        let object = stamped(&chain(&store()), &request, json!({})).await;
        assert_eq!(
            object.annotation(INITIAL_TRACE_ID),
            initial.map(|id| id.to_string()).as_deref()
        );
    }
}

#[tokio::test]
async fn without_the_gate_objects_are_not_stamped() {
    let chain =
        Chain::new(&store(), gates("LogTracking=false"), Arc::new(GrantedRights(Vec::new())));
    let given = with_ids(["x", "y", "z"]);
    let object = stamped(&chain, &request(Operation::Create, None, None), given.clone()).await;
    assert_eq!(object, document(given));
}

#[tokio::test]
async fn l38_a_delete_stamps_the_last_state_and_keeps_the_initial_id() {
    let (chain, stored) = (chain(&store()), TraceId::random());
    let delete = request(Operation::Delete, None, Some(TraceId::random()));
    let mut last = document(with_ids(["t", "s", &stored.to_string()]));
    show_ids(&chain.stamp(&delete.attributes(), &mut last).unwrap(), &mut last);
    let [trace, span] = own(&delete);
    assert_eq!(ids(&last), [trace, span, Some(stored.to_string())]);
    assert_eq!(delete.context.initial_trace_id(), Some(stored));
    let mut lease = request(Operation::Delete, None, None);
    lease.target = target(&definition("coordination.k8s.io", "leases", Scope::Cluster), None, "a");
    assert_eq!(chain.stamp(&lease.attributes(), &mut document(json!({}))), None);
}

#[tokio::test]
async fn the_audit_event_has_the_initial_trace_id() {
    let (chain, stored) = (chain(&store()), TraceId::random());
    let update = request(Operation::Update, Some(with_ids(["t", "s", &stored.to_string()])), None);
    stamped(&chain, &update, json!({})).await;
    assert_eq!(update.context.initial_trace_id(), Some(stored));
    let create = request(Operation::Create, None, None);
    stamped(&chain, &create, json!({})).await;
    assert_eq!(create.context.initial_trace_id(), Some(create.context.trace.trace_id));
}

#[tokio::test]
async fn d5_noops_and_ownership_changes_keep_their_ids() {
    let old = json!({"metadata": {"resourceVersion": "3", "managedFields": [{"manager": "a"}], "annotations": {TRACE_ID: "t", SPAN_ID: "s", INITIAL_TRACE_ID: "i"}}});
    let request = request(Operation::Update, Some(old), Some(TraceId::random()));
    let chain = chain(&store());
    for given in [
        json!({"metadata": {}}),
        json!({"metadata": {"managedFields": [{"manager": "b"}], "annotations": {TRACE_ID: "x"}}}),
    ] {
        assert_eq!(
            ids(&stamped(&chain, &request, given).await),
            ["t", "s", "i"].map(|text| Some(text.to_owned()))
        );
    }
    assert_eq!((chain.stamps().stamped, chain.stamps().skipped), (0, 2));
    stamped(&chain, &request, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!((chain.stamps().stamped, chain.stamps().skipped), (1, 2));
}
