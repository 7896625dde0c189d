//! A native kind is a row, a body, and rows of the data tables: nothing else knows of it.

use crate::priority::{LEVELS, SCHEMAS, has_level, level, read, schema, until};
use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_connect::{ConnectResource, ConnectSettings, Connections, LocateCall, LocateFuture};
use ferrokube_controlplane::{ApiServerBuilder, Limits};
use ferrokube_resource::native::{KindBody, NativeColumn, NativeKind, NativeSubresource};
use ferrokube_resource::{Hooks, Policy, Printable, Scope, TableRow, Verbs};
use ferrokube_schema::tables::Tables;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const GADGETS: &str = "/apis/toy.ferrokube.dev/v1/namespaces/default/gadgets";

/// As a row of `resources/src/table.rs`.
const ROW: NativeKind = NativeKind {
    group: "toy.ferrokube.dev",
    version: "v1",
    plural: "gadgets",
    singular: "gadget",
    kind: "Gadget",
    scope: Scope::Namespaced,
    short_names: &["gd"],
    verbs: Verbs::ALL,
    body,
};

/// As in a file of `resources/src/kinds/`.
fn body() -> KindBody {
    KindBody {
        subresources: &[NativeSubresource::STATUS],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("Color", "Color of the gadget."),
                NativeColumn::AGE,
            ]
        },
        selectable: &["spec.color"],
        storage: Some("gadgets"),
        policy: Policy {
            orphan_warning: "parts of gadgets stay",
            untabled_subresources: &["status"],
            ..Policy::DEFAULT
        },
        deprecation: Some("v1 Gadget is deprecated"),
        hooks: Arc::new(Gadget),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Gadget;

impl Hooks for Gadget {
    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["spec", "color"]));
        row.age(object);
    }
}

/// As in `resources/data/schema.tsv`: the definition's name is that of the API group's first label.
const SCHEMA: &str = concat!(
    include_str!("../../../resources/data/schema.tsv"),
    "io.k8s.api.toy.v1.Gadget\tapiVersion\tstring\t\to\n",
    "\tkind\tstring\t\to\n",
    "\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta\n",
    "\tspec\tref:io.k8s.api.toy.v1.GadgetSpec\t\ta\n",
    "\tstatus\tref:io.k8s.api.toy.v1.GadgetStatus\t\ta\n",
    "io.k8s.api.toy.v1.GadgetSpec\tcolor\tstring\t\to\n",
    "\tsize\tinteger/int32\t\to\n",
    "io.k8s.api.toy.v1.GadgetStatus\tphase\tstring\t\to\n",
);

/// As in `resources/data/descriptions.tsv`.
const DESCRIPTIONS: &str = "GadgetSpec.size\tSize in centimeters.\n";

/// As in `resources/data/protobuf.tsv`.
const MESSAGES: &str = concat!(
    include_str!("../../../resources/data/protobuf.tsv"),
    "k8s.io.api.toy.v1\tGadget\tmetadata\t1\toptional\tk8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta\n",
    "k8s.io.api.toy.v1\tGadget\tspec\t2\toptional\tk8s.io.api.toy.v1.GadgetSpec\n",
    "k8s.io.api.toy.v1\tGadget\tstatus\t3\toptional\tk8s.io.api.toy.v1.GadgetStatus\n",
    "k8s.io.api.toy.v1\tGadgetList\tmetadata\t1\toptional\tk8s.io.apimachinery.pkg.apis.meta.v1.ListMeta\n",
    "k8s.io.api.toy.v1\tGadgetList\titems\t2\trepeated\tk8s.io.api.toy.v1.Gadget\n",
    "k8s.io.api.toy.v1\tGadgetSpec\tcolor\t1\toptional\tstring\n",
    "k8s.io.api.toy.v1\tGadgetSpec\tsize\t2\toptional\tint32\n",
    "k8s.io.api.toy.v1\tGadgetStatus\tphase\t1\toptional\tstring\n",
);

async fn server() -> TestServer {
    server_with(&ROW, |builder| builder).await
}

async fn server_with(
    row: &NativeKind,
    change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder,
) -> TestServer {
    let tables = Tables::parse(SCHEMA).unwrap().described(DESCRIPTIONS);
    let messages = Arc::new(Messages::parse(MESSAGES).unwrap());
    let server = TestServer::stopped(|builder| change(builder.messages(messages)));
    server.registry.catalog().put(Arc::new(row.definition(&tables).unwrap()));
    server.plane.start().await.unwrap();
    let one = json!({"metadata": {"name": "one"}, "spec": {"color": "red", "size": 3}, "status": {"phase": "Odd"}});
    assert_eq!(server.post(GADGETS, &one).await.code, 201);
    server
}

async fn patched(server: &TestServer, path: &str) -> Value {
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = json!({"spec": {"size": 4}, "status": {"phase": "Ready"}}).to_string();
    let answer = server.send("PATCH", &format!("{GADGETS}/{path}"), &merge, patch).await;
    assert_eq!(answer.code, 200, "{}", answer.text());
    json!([answer.json()["spec"]["size"].clone(), answer.json()["status"]["phase"].clone()])
}

#[tokio::test]
async fn a_kind_of_a_row_and_a_body_has_validation_and_subresources() {
    let server = server().await;
    let stored = server.get(&format!("{GADGETS}/one")).await.json();
    assert_eq!(stored["kind"], "Gadget");
    assert!(stored["status"].get("phase").is_none(), "a create sets no status: {stored}");
    assert_eq!(patched(&server, "one").await, json!([4, null]));
    assert_eq!(patched(&server, "one/status").await, json!([4, "Ready"]));
    let strict = format!("{GADGETS}?fieldValidation=Strict");
    let unknown = json!({"metadata": {"name": "two"}, "spec": {"sise": 3}});
    let answer = server.post(&strict, &unknown).await;
    assert!(answer.text().contains(r#"unknown field \"spec.sise\""#), "{}", answer.text());
    let mistyped = json!({"metadata": {"name": "two"}, "spec": {"size": "3"}});
    assert_eq!(server.post(GADGETS, &mistyped).await.code, 400);
}

#[tokio::test]
async fn a_kind_of_a_row_and_a_body_has_every_representation() {
    let server = server().await;
    let table = server.get_as(GADGETS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(table["columnDefinitions"][1]["name"], "Color");
    assert_eq!(table["rows"][0]["cells"][1], "red");
    for path in [GADGETS.to_owned(), format!("{GADGETS}/one")] {
        let binary = server.get_as(&path, "application/vnd.kubernetes.protobuf").await;
        assert!(binary.bytes.starts_with(b"k8s\0"), "{}", binary.text());
        assert!(binary.text().contains("Gadget"));
    }
    let selected = server.get(&format!("{GADGETS}?fieldSelector=spec.color%3Dblue")).await.json();
    assert_eq!(selected["items"], json!([]));
}

#[tokio::test]
async fn a_kind_of_a_row_and_a_body_is_in_discovery_and_openapi() {
    let server = server().await;
    let group = server.get("/apis/toy.ferrokube.dev/v1").await.json();
    let names = [&group["resources"][0], &group["resources"][1]].map(|one| one["name"].clone());
    assert_eq!(names, [json!("gadgets"), json!("gadgets/status")]);
    assert!(server.get("/apis").await.text().contains("toy.ferrokube.dev"));
    let openapi = server.get("/openapi/v3/apis/toy.ferrokube.dev/v1").await.json();
    let spec = &openapi["components"]["schemas"]["io.k8s.api.toy.v1.GadgetSpec"];
    assert_eq!(spec["properties"]["size"]["description"], "Size in centimeters.", "{openapi}");
}

/// Method, path, headers; expected code and warnings.
type WarningCase<'a> = (&'a str, String, &'a [(&'a str, &'a str)], u16, &'a [&'a str]);

#[tokio::test]
async fn warnings_of_a_kind_are_for_requests_that_it_handles() {
    const OLD: &str = r#"299 - "v1 Gadget is deprecated""#;
    const ORPHANS: &str = r#"299 - "parts of gadgets stay""#;
    let server = server().await;
    let one = format!("{GADGETS}/one");
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let html = [("accept", "text/html")];
    let text = [("content-type", "text/plain")];
    let background = format!("{one}?propagationPolicy=Background&dryRun=All");
    let cases: [WarningCase<'_>; 7] = [
        ("GET", one.clone(), &[], 200, &[OLD]),
        ("GET", format!("{one}/status"), &table, 406, &[OLD]),
        // As kube-apiserver's router rejects them.
        ("GET", one.clone(), &html, 406, &[]),
        ("PATCH", one.clone(), &text, 415, &[]),
        ("DELETE", background, &[], 200, &[OLD]),
        ("DELETE", format!("{one}?dryRun=All"), &[], 200, &[OLD, ORPHANS]),
        ("DELETE", format!("{GADGETS}?dryRun=All"), &[], 200, &[OLD, ORPHANS]),
    ];
    for (method, path, headers, code, want) in cases {
        let answer = server.send(method, &path, headers, "").await;
        let given = answer.headers.get_all("warning");
        let given: Vec<&str> = given.iter().map(|text| text.to_str().expect("text")).collect();
        assert_eq!((answer.code, &given[..]), (code, want), "{method} {path}");
    }
}

/// Gadgets whose servers do not answer.
#[derive(Default)]
struct Unanswered(AtomicUsize);

impl ConnectResource for Unanswered {
    fn locate<'a>(&'a self, _: LocateCall<'a>) -> LocateFuture<'a> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    }
}

/// Many slow connections with one server would keep everybody of their level waiting.
#[tokio::test]
async fn connections_hold_no_seat() {
    fn body() -> KindBody {
        const EXEC: NativeSubresource =
            NativeSubresource { name: "exec", kind: None, verbs: Verbs::CONNECT, reset: &[] };
        KindBody { subresources: &[EXEC], reset: &[], ..super::native_kind::body() }
    }
    const CONNECTIONS: usize = 5;
    let unanswered = Arc::new(Unanswered::default());
    let gadgets = GroupResource::new("toy.ferrokube.dev", "gadgets");
    let connections = Connections::new(&ConnectSettings::default());
    let connections = connections.with(&gadgets, "exec", Arc::clone(&unanswered) as _);
    let limits = Limits { readonly_inflight: 200, mutating_inflight: 92, ..Limits::default() };
    let change = |builder: ApiServerBuilder| builder.limits(limits).connections(connections);
    let server = server_with(&NativeKind { body, ..ROW }, change).await;
    let small = level("small", json!({"type": "Reject"}));
    assert_eq!(server.post(LEVELS, &small).await.code, 201);
    assert_eq!(server.post(SCHEMAS, &schema("s", "small", "reader")).await.code, 201);
    until(&server, &format!("{SCHEMAS}/s"), has_level).await;
    let mut begun = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let plane = server.plane.clone();
        let request = http::Request::builder().uri(format!("{GADGETS}/one/exec"));
        let request = request.header("authorization", "Bearer reader");
        let request = request.body(ferrokube_serve::empty()).unwrap();
        begun.spawn(async move { plane.call(request).await.status().as_u16() });
    }
    while unanswered.0.load(Ordering::Relaxed) < CONNECTIONS {
        tokio::task::yield_now().await;
        let ended = begun.try_join_next();
        assert!(ended.is_none(), "{ended:?}");
    }
    assert_eq!(read(&server, "reader", CONFIGMAPS).await.code, 200, "of the same level");
}
