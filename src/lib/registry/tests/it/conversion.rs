//! Conversion webhooks: one request serves all waiting callers, and a failure loses no data.

use crate::support::*;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::selector::LabelSelector;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::offload::{INTERNAL, caller, compute, has_slot, leave_worker};
use ferrokube_registry::{
    Body, DeleteOptions, ListOptions, Object, Patch, Target, Watch, WatchItem, WatchOptions,
    WriteOptions,
};
use ferrokube_resource::conversion::{Conversion, ConversionFuture, Converter};
use ferrokube_resource::{Definition, DefinitionVersion, Dialect, Hooks, Policy, Scope, Verbs};
use ferrokube_schema::apply::ResetFields;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use ferrokube_storage::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

const GROUP: &str = "convert.example.com";

/// A converter: `spec.size` of v1 is `spec.amount` of v2. Needs a permit, and fails on demand.
struct Scales {
    /// Number of objects in each call.
    calls: Mutex<Vec<usize>>,
    begun: AtomicUsize,
    gate: Semaphore,
    fails: AtomicBool,
    /// The next call finds no room for its caller.
    is_full: AtomicBool,
    /// Runs once, within a conversion: a long computation.
    during: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Scales {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scales")
    }
}

impl Scales {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            calls: Mutex::default(),
            begun: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            fails: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            during: Mutex::default(),
        })
    }

    fn calls(&self) -> Vec<usize> {
        self.calls.lock().unwrap().clone()
    }

    fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }
}

fn converted(api_version: &str, mut object: Document) -> Document {
    object.set(&["apiVersion"], api_version);
    let (from, to) =
        if api_version.ends_with("v2") { ("size", "amount") } else { ("amount", "size") };
    if let Some(value) = object.remove(&["spec", from]) {
        let is_float = object.str(&["spec", "text"]) == Some("floats");
        let float = value.as_f64().filter(|_| is_float).map(Value::from);
        object.set(&["spec", to], float.unwrap_or(value));
    }
    object
}

#[derive(Debug)]
struct Converting(Arc<Scales>);

impl Hooks for Converting {
    fn converter(&self) -> Option<&dyn Converter> {
        Some(self)
    }
}

impl Converter for Converting {
    fn convert(&self, api_version: String, objects: Vec<Bytes>) -> ConversionFuture<'_> {
        Box::pin(async move {
            self.0.begun.fetch_add(1, Ordering::SeqCst);
            let _permit = self.0.gate.acquire().await.unwrap();
            self.0.calls.lock().unwrap().push(objects.len());
            let during = self.0.during.lock().unwrap().take();
            if let Some(during) = during {
                compute(INTERNAL, during).await;
            }
            if self.0.fails.load(Ordering::SeqCst) {
                return Err(Failure::internal("the converter is broken"));
            }
            if self.0.is_full.swap(false, Ordering::SeqCst) {
                return Err(Failure::new(Reason::TooManyRequests, "there is no room"));
            }
            let read =
                |object: Bytes| ferrokube_apimachinery::json::read(&object).unwrap().document;
            let objects =
                objects.into_iter().map(|object| converted(&api_version, read(object))).collect();
            Ok(Conversion { objects, room: None })
        })
    }
}

fn version(name: &str, field: &str) -> DefinitionVersion {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {(field): {"type": "integer"}, "text": {"type": "string"}}}}});
    DefinitionVersion {
        name: name.to_owned(),
        served: true,
        deprecation: None,
        priority: None,
        schema: Arc::new(from_json_schema(&schema, &SchemaContext::default()).unwrap()),
        subresources: Vec::new(),
        reset: ResetFields::default(),
        columns: ferrokube_resource::Columns::default(),
        selectable: Vec::new(),
        message: None,
    }
}

/// Serves Things, stored in v1.
fn serve(server: &TestRegistry, plural: &str, hooks: Arc<dyn Hooks>) {
    server.registry.catalog().put(Arc::new(Definition {
        group: GROUP.to_owned(),
        plural: plural.to_owned(),
        singular: "thing".to_owned(),
        kind: "Thing".to_owned(),
        list_kind: "ThingList".to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        scope: Scope::Namespaced,
        verbs: Verbs::ALL,
        versions: vec![version("v1", "size"), version("v2", "amount")],
        storage_version: 0,
        guards: Vec::new(),
        storage_prefix: Some(format!("{GROUP}/{plural}")),
        dialect: Dialect::Custom,
        policy: Policy {
            counts_generation: true,
            counts_annotations: plural == "noted",
            ..Policy::DEFAULT
        },
        epoch: 1,
        since: 0,
        hooks,
    }));
}

/// A server with Things and their converter.
fn start() -> (Things, Arc<Scales>) {
    let (server, scales) = (TestRegistry::new(), Scales::new());
    serve(&server, "things", Arc::new(Converting(scales.clone())));
    (Things { server, plural: "things" }, scales)
}

/// Helpers of these tests.
#[derive(Clone)]
struct Things {
    server: TestRegistry,
    plural: &'static str,
}

fn thing(version: &str, name: &str, spec: Value) -> Body {
    body(
        json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Thing", "metadata": {"name": name}, "spec": spec}),
    )
}

impl Things {
    fn target(&self, version: &str, name: &str) -> Target {
        let served = self.server.registry.catalog().find(GROUP, version, self.plural).unwrap();
        Target {
            served,
            namespace: Some("ns".to_owned()),
            name: (!name.is_empty()).then(|| name.to_owned()),
            subresource: String::new(),
        }
    }

    async fn create(&self, version: &str, name: &str, spec: Value) -> Result<Document, Failure> {
        let target = self.target(version, "");
        let written = self
            .server
            .registry
            .create(&context(), &target, thing(version, name, spec), &WriteOptions::default())
            .await?;
        Ok(document(written.object, &target))
    }

    /// As the API server's handler does.
    async fn get(&self, version: &str, name: &str) -> Result<Document, Failure> {
        let target = self.target(version, name);
        let object = self.server.registry.get(&target, "").await?;
        let Object::Stored(entry) = object else { return Ok(document(object, &target)) };
        let entry = self.server.registry.entry_in_version(&target.served, entry).await?;
        Ok(document(Object::Stored(entry), &target))
    }

    async fn list(&self, version: &str) -> Result<usize, Failure> {
        let target = self.target(version, "");
        let page = self.server.registry.list(&target, &ListOptions::default()).await?;
        Ok(self.server.registry.in_version(&target.served, page.items).await?.len())
    }

    async fn watch(&self, version: &str) -> Watch {
        let list = ListOptions { resource_version: "0".to_owned(), ..ListOptions::default() };
        let options =
            WatchOptions { list, timeout: Duration::from_secs(600), ..WatchOptions::default() };
        self.server.registry.watch(&self.target(version, ""), options).await.unwrap()
    }
}

/// Runs every task until it waits.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// Many languages write integers as `3.0` after a JSON round trip.
#[tokio::test]
async fn a_converted_integral_float_is_an_integer() {
    let (things, _) = start();
    for (written, read, field) in [("v2", "v1", "size"), ("v1", "v2", "amount")] {
        let given = if written == "v1" { "size" } else { "amount" };
        things.create(written, written, json!({(given): 3, "text": "floats"})).await.unwrap();
        assert_eq!(
            things.get(read, written).await.unwrap().get(&["spec", field]),
            Some(&json!(3)),
            "written in {written}"
        );
    }
}

#[tokio::test]
async fn annotations_are_a_generation_where_the_kind_counts_them() {
    let (things, scales) = start();
    serve(&things.server, "noted", Arc::new(Converting(scales)));
    for (plural, expected) in [("things", 1), ("noted", 2)] {
        let things = Things { plural, ..things.clone() };
        things.create("v1", "a", json!({"size": 1})).await.unwrap();
        let target = things.target("v1", "a");
        let metadata = json!({"name": "a", "annotations": {"k": "v"}});
        let noted = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "metadata": metadata, "spec": {"size": 1}});
        for again in ["changes", "does not"] {
            let (context, options) = (context(), WriteOptions::default());
            let registry = &things.server.registry;
            let written = registry.update(&context, &target, body(noted.clone()), &options);
            let written = document(written.await.unwrap().object, &target);
            let generation = written.get(&["metadata", "generation"]).cloned();
            assert_eq!(generation, Some(json!(expected)), "{plural}: {again}");
        }
    }
}

#[tokio::test]
async fn one_conversion_serves_all_waiting_callers() {
    let (things, scales) = start();
    things.create("v1", "a", json!({"size": 3})).await.unwrap();
    assert_eq!(scales.calls(), [0; 0], "the stored version needs none");
    scales.close();
    let readers: Vec<_> = (0..50)
        .map(|_| {
            let things = things.clone();
            tokio::spawn(async move { things.get("v2", "a").await })
        })
        .collect();
    settle().await;
    assert_eq!(scales.begun.load(Ordering::SeqCst), 1);
    scales.open();
    for reader in readers {
        assert_eq!(soon(reader).await.unwrap().unwrap().get(&["spec", "amount"]), Some(&json!(3)));
    }
    assert_eq!(things.list("v2").await.unwrap(), 1);
    assert_eq!(scales.calls(), [1], "and all who come later");
}

#[tokio::test]
async fn lists_that_overlap_convert_each_object_once() {
    let (things, scales) = start();
    for name in ["a", "b", "c"] {
        things.create("v1", name, json!({"size": 1})).await.unwrap();
    }
    scales.close();
    let one = tokio::spawn({
        let things = things.clone();
        async move { things.get("v2", "b").await.map(drop) }
    });
    settle().await;
    let lists: Vec<_> = (0..8)
        .map(|_| {
            let things = things.clone();
            tokio::spawn(async move { things.list("v2").await })
        })
        .collect();
    settle().await;
    scales.open();
    soon(one).await.unwrap().unwrap();
    for list in lists {
        assert_eq!(soon(list).await.unwrap().unwrap(), 3);
    }
    let mut calls = scales.calls();
    calls.sort_unstable();
    assert_eq!(calls, [1, 2]);
}

#[tokio::test]
async fn a_waiting_caller_converts_if_the_first_hangs_up() {
    let (things, scales) = start();
    things.create("v1", "a", json!({"size": 3})).await.unwrap();
    scales.close();
    let reader = || {
        let things = things.clone();
        tokio::spawn(async move { things.get("v2", "a").await })
    };
    let first = reader();
    settle().await;
    let others = [reader(), reader()];
    settle().await;
    first.abort();
    assert!(soon(first).await.is_err_and(|error| error.is_cancelled()));
    settle().await;
    assert_eq!(scales.begun.load(Ordering::SeqCst), 2, "one of the others asks");
    scales.open();
    for other in others {
        soon(other).await.unwrap().unwrap();
    }
    assert_eq!(scales.calls(), [1]);
}

/// A webhook has some room for each caller.
#[tokio::test]
async fn a_waiting_caller_converts_if_the_first_finds_no_room() {
    let (things, scales) = start();
    things.create("v1", "a", json!({"size": 3})).await.unwrap();
    scales.close();
    scales.is_full.store(true, Ordering::SeqCst);
    let reader = || {
        let things = things.clone();
        tokio::spawn(async move { things.get("v2", "a").await })
    };
    let first = reader();
    settle().await;
    let other = reader();
    settle().await;
    scales.open();
    assert_eq!(soon(first).await.unwrap().unwrap_err().code, 429);
    assert_eq!(soon(other).await.unwrap().unwrap().get(&["spec", "amount"]), Some(&json!(3)));
}

#[tokio::test]
async fn a_failed_conversion_fails_all_waiting_callers_and_is_not_cached() {
    let (things, scales) = start();
    things.create("v1", "a", json!({"size": 3})).await.unwrap();
    scales.close();
    scales.fail(true);
    let readers: Vec<_> = (0..10)
        .map(|_| {
            let things = things.clone();
            tokio::spawn(async move { things.get("v2", "a").await })
        })
        .collect();
    settle().await;
    scales.open();
    for reader in readers {
        assert_eq!(soon(reader).await.unwrap().unwrap_err().code, 500);
    }
    assert_eq!(scales.calls(), [1]);
    scales.fail(false);
    assert_eq!(things.get("v2", "a").await.unwrap().get(&["spec", "amount"]), Some(&json!(3)));
}

/// An object that left a selection is shown in its last matching state at the revision of the
/// change. The conversion of that state must not be cached for the revision: a patch in the other
/// version then reverted the acknowledged write.
#[tokio::test]
async fn an_exit_from_a_selection_is_not_converted_as_the_stored_state() {
    let (things, scales) = start();
    things.create("v1", "a", json!({"size": 1})).await.unwrap();
    let patch = |version: &'static str, change: Value| {
        let things = things.clone();
        async move {
            things
                .server
                .registry
                .patch(
                    &context(),
                    &things.target(version, "a"),
                    merge(change),
                    &WriteOptions::default(),
                )
                .await
                .unwrap()
        }
    };
    patch("v1", json!({"metadata": {"labels": {"in": "yes"}}})).await;
    let list = ListOptions {
        resource_version: "0".to_owned(),
        labels: LabelSelector::parse("in=yes").unwrap(),
        ..ListOptions::default()
    };
    let options =
        WatchOptions { list, timeout: Duration::from_secs(600), ..WatchOptions::default() };
    let target = things.target("v2", "a");
    let mut watch = things.server.registry.watch(&things.target("v2", ""), options).await.unwrap();
    soon(watch.next()).await.unwrap();
    patch("v1", json!({"metadata": {"labels": {"in": "no"}}, "spec": {"size": 2}})).await;
    let items = soon(watch.next()).await.unwrap();
    let [WatchItem::Deleted(left)] = &items[..] else { panic!("{items:?}") };
    let shown =
        things.server.registry.entry_in_version(&target.served, Arc::clone(left)).await.unwrap();
    assert_eq!(
        document(Object::Stored(shown), &target).get(&["spec", "amount"]),
        Some(&json!(1)),
        "its last matching state"
    );
    assert_eq!(things.get("v2", "a").await.unwrap().get(&["spec", "amount"]), Some(&json!(2)));
    patch("v2", json!({"metadata": {"annotations": {"note": "x"}}})).await;
    assert_eq!(
        things.get("v1", "a").await.unwrap().get(&["spec", "size"]),
        Some(&json!(2)),
        "an acknowledged write"
    );
    // The same bytes are converted once, wherever they come from.
    let calls = scales.calls().len();
    let copy = |entry: &Entry| {
        Arc::new(Entry {
            key: entry.key.clone(),
            sidecar: entry.sidecar.clone(),
            bytes: entry.bytes.to_vec().into(),
            checked: entry.checked.clone(),
            ..*entry
        })
    };
    things.server.registry.entry_in_version(&target.served, copy(left)).await.unwrap();
    assert_eq!(scales.calls().len(), calls);
}

/// On one worker: a computation that its hook blocks, and another request.
async fn keeps_nobody_waiting(things: &Things, begin: impl Future<Output = ()> + Send + 'static) {
    let (started, computes) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    *things.server.admission.during_validate.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        finished.recv_timeout(BOUND).expect("another request is answered meanwhile");
    }));
    let registry = things.server.registry.clone();
    let long = tokio::spawn(async move { registry.offload().run(1, Box::pin(begin)).await });
    soon(computes).await.unwrap();
    let other = things.clone();
    soon(tokio::spawn(async move { other.get("v1", "small").await }))
        .await
        .unwrap()
        .expect("the only worker is free");
    finish.send(()).unwrap();
    soon(long).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_large_object_with_a_converter_is_computed_off_the_workers() {
    let (things, _) = start();
    things.create("v1", "large", json!({"size": 1, "text": "x".repeat(100_000)})).await.unwrap();
    things.create("v1", "small", json!({"size": 1})).await.unwrap();
    for version in ["v1", "v2"] {
        let patched = things.clone();
        let patch = async move {
            let patch = merge(json!({"metadata": {"labels": {"a": version}}}));
            patched
                .server
                .registry
                .patch(
                    &context(),
                    &patched.target(version, "large"),
                    patch,
                    &WriteOptions::default(),
                )
                .await
                .unwrap();
        };
        keeps_nobody_waiting(&things, patch).await;
    }
    things.server.admission.remote.store(true, Ordering::SeqCst);
    let deleted = things.clone();
    let delete = async move {
        deleted
            .server
            .registry
            .delete(&context(), &deleted.target("v1", "large"), &DeleteOptions::default())
            .await
            .unwrap();
    };
    keeps_nobody_waiting(&things, delete).await;
}

/// Objects that become large within the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_patches_with_copies_or_many_operations_leave_the_worker() {
    let (things, _) = start();
    for name in ["a", "small"] {
        things.create("v1", name, json!({"size": 1})).await.unwrap();
    }
    let copy = json!([{"op": "copy", "from": "/spec/size", "path": "/spec/text"}, {"op": "replace", "path": "/spec/text", "value": "x"}]);
    let many = Value::from(vec![json!({"op": "add", "path": "/spec/text", "value": "y"}); 17]);
    for operations in [copy, many] {
        let patched = things.clone();
        let patch = async move {
            let patch = Patch::Json(operations, Vec::new());
            patched
                .server
                .registry
                .patch(&context(), &patched.target("v1", "a"), patch, &WriteOptions::default())
                .await
                .unwrap();
        };
        keeps_nobody_waiting(&things, patch).await;
    }
}

/// Waiting for the conversion of a large object, its parsing and encoding leave the worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_large_object_is_converted_off_the_workers() {
    let (things, scales) = start();
    things.create("v1", "large", json!({"size": 1, "text": "x".repeat(100_000)})).await.unwrap();
    things.create("v1", "small", json!({"size": 1})).await.unwrap();
    let (started, computes) = tokio::sync::oneshot::channel();
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    *scales.during.lock().unwrap() = Some(Box::new(move || {
        started.send(()).unwrap();
        finished.recv_timeout(BOUND).expect("another request is answered meanwhile");
    }));
    let read = things.clone();
    let long = tokio::spawn(async move {
        read.server.registry.offload().run(1, Box::pin(read.get("v2", "large"))).await
    });
    soon(computes).await.unwrap();
    let other = things.clone();
    soon(tokio::spawn(async move { other.get("v1", "small").await }))
        .await
        .unwrap()
        .expect("the only worker is free");
    finish.send(()).unwrap();
    assert_eq!(soon(long).await.unwrap().unwrap().get(&["spec", "amount"]), Some(&json!(1)));
}

/// Other callers may wait for the conversion: it computes in no slot of the one that began it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fault_34_a_conversion_for_all_waits_in_no_callers_queue() {
    let (things, scales) = start();
    things.create("v1", "large", json!({"size": 1, "text": "x".repeat(100_000)})).await.unwrap();
    let (sender, computed) = std::sync::mpsc::channel();
    *scales.during.lock().unwrap() = Some(Box::new(move || sender.send(caller()).unwrap()));
    let (read, goes_on) = (things.clone(), AtomicBool::new(false));
    let request = async {
        leave_worker().await;
        let object = read.get("v2", "large").await.unwrap();
        goes_on.store(has_slot(), Ordering::SeqCst);
        object
    };
    let object = soon(things.server.registry.offload().run(77, Box::pin(request))).await;
    assert_eq!(object.get(&["spec", "amount"]), Some(&json!(1)));
    assert_eq!(computed.recv().unwrap(), INTERNAL);
    assert!(goes_on.into_inner(), "in a slot of its own");
}

/// Nor does that wait for conversions.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_conversion_does_not_wait_for_computations_of_the_server() {
    let (things, _scales) = start();
    things.create("v1", "large", json!({"size": 1, "text": "x".repeat(100_000)})).await.unwrap();
    let slots = std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1).max(1);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (mut ends, mut running) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..slots {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let begun = begun.clone();
        ends.push(end);
        running.spawn(compute(INTERNAL, move || {
            begun.send(()).unwrap();
            let _ = ended.recv();
        }));
    }
    for _ in 0..slots {
        soon(begins.recv()).await.unwrap();
    }
    let read = things.clone();
    let request = async move { read.get("v2", "large").await.unwrap() };
    let object = soon(things.server.registry.offload().run(77, Box::pin(request))).await;
    assert_eq!(object.get(&["spec", "amount"]), Some(&json!(1)));
    drop(ends);
    while running.join_next().await.is_some() {}
}

/// A failed conversion loses nothing, changes nothing and fails no other request.
#[tokio::test]
async fn fault_26_a_failed_conversion_loses_nothing() {
    let (things, scales) = start();
    let sound = Scales::new();
    serve(&things.server, "others", Arc::new(Converting(sound)));
    let others = Things { plural: "others", ..things.clone() };
    others.create("v1", "a", json!({"size": 1})).await.unwrap();
    let before = things.create("v1", "a", json!({"size": 3})).await.unwrap();
    let revision = things.server.registry.store().revision();
    scales.fail(true);
    let registry = &things.server.registry;
    for name in ["a", "b"] {
        assert_eq!(
            things.create("v2", name, json!({"amount": 1})).await.unwrap_err().code,
            500,
            "{name}"
        );
    }
    let target = things.target("v2", "a");
    let patch = merge(json!({"spec": {"amount": 9}}));
    assert_eq!(
        registry
            .patch(&context(), &target, patch, &WriteOptions::default())
            .await
            .unwrap_err()
            .code,
        500
    );
    let mut whole = thing("v2", "a", json!({"amount": 9}));
    whole.document.set(&["metadata", "resourceVersion"], before.meta("resourceVersion"));
    assert_eq!(
        registry
            .update(&context(), &target, whole, &WriteOptions::default())
            .await
            .unwrap_err()
            .code,
        500
    );
    assert_eq!(things.list("v2").await.unwrap_err().code, 500);
    assert_eq!(registry.store().revision(), revision, "nothing was written");
    assert_eq!(things.get("v1", "a").await.unwrap(), before);
    assert_eq!(others.get("v2", "a").await.unwrap().get(&["spec", "amount"]), Some(&json!(1)));
    // Events are in the stored version; the API server's watch converts them or ends.
    let mut watch = things.watch("v2").await;
    let items = soon(watch.next()).await.unwrap();
    assert!(
        matches!(&items[..], [WatchItem::Added(entry)] if entry.key.name() == "a"),
        "{items:?}"
    );
    // The response to a completed delete shows nothing of the object.
    let deleted = registry.delete(&context(), &target, &DeleteOptions::default()).await;
    deleted.unwrap();
    assert_eq!(things.get("v1", "a").await.unwrap_err().code, 404);
}

/// Concurrent writers in two versions lose no write, whichever conversion runs in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_in_both_versions_lose_nothing() {
    let (things, _) = start();
    things.create("v1", "a", json!({"size": 0})).await.unwrap();
    let writers: Vec<_> = (0..16)
        .map(|n| {
            let things = things.clone();
            let version = if n % 2 == 0 { "v1" } else { "v2" };
            tokio::spawn(async move {
                let patch = || merge(json!({"metadata": {"labels": {format!("l{n}"): "x"}}}));
                loop {
                    let outcome = things
                        .server
                        .registry
                        .patch(
                            &context(),
                            &things.target(version, "a"),
                            patch(),
                            &WriteOptions::default(),
                        )
                        .await;
                    match outcome {
                        Ok(_) => return,
                        Err(failure) => assert_eq!(failure.code, 409, "{failure:?}"),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        soon(writer).await.unwrap();
    }
    let object = things.get("v2", "a").await.unwrap();
    assert_eq!(object.get(&["metadata", "labels"]).and_then(Value::as_object).unwrap().len(), 16);
    assert_eq!(object.get(&["spec"]), Some(&json!({"amount": 0})));
}
