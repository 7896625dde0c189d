//! The life of CustomResourceDefinitions: names, status, deletion.

use crate::support::{BOUND, TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(group: &str, plural: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// A server, with shorthands for definitions.
struct Definitions(TestServer);

impl Definitions {
    async fn new() -> Self {
        Self(TestServer::new().await)
    }

    async fn create(&self, definition: &Value) -> TestResponse {
        let made = self.0.post(DEFINITIONS, definition).await;
        assert_eq!(made.code, 201, "{}", made.text());
        made
    }

    async fn patch(&self, path: &str, body: &Value) -> TestResponse {
        self.0
            .send(
                "PATCH",
                path,
                &[("content-type", "application/merge-patch+json")],
                body.to_string(),
            )
            .await
    }

    async fn delete(&self, path: &str, options: &Value) -> TestResponse {
        self.0.send("DELETE", path, &[], options.to_string()).await
    }

    /// Waits for a condition with this status and reason.
    async fn condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Value {
        self.until(&format!("{DEFINITIONS}/{name}"), |found| {
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == kind
                    && condition["status"] == status
                    && condition["reason"] == reason
            })
        })
        .await
    }

    async fn until(&self, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let looking = async {
            loop {
                let found = self.0.get(path).await.json();
                if fits(&found) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(BOUND, looking).await {
            Ok(found) => found,
            Err(_) => panic!("{path} is not so in time: {}", self.0.get(path).await.text()),
        }
    }

    async fn gone(&self, path: &str) {
        self.until(path, |found| found["code"] == 404).await;
    }
}

fn objects(group: &str, plural: &str) -> String {
    format!("/apis/{group}/v1/namespaces/default/{plural}")
}

fn managers(object: &Value, subresource: &str) -> Vec<Value> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| {
            entry["manager"] == "test"
                && entry["subresource"].as_str().unwrap_or_default() == subresource
        })
        .collect()
}

#[tokio::test]
async fn a_definition_is_served_when_its_create_is_answered() {
    let server = Definitions::new().await;
    for number in 0..20 {
        server
            .create(&definition(
                "a.example.com",
                &format!("things{number}"),
                &format!("Thing{number}"),
            ))
            .await;
        let path = objects("a.example.com", &format!("things{number}"));
        let made = server.0.post(&path, &json!({"apiVersion": "a.example.com/v1", "kind": format!("Thing{number}"), "metadata": {"name": "a"}})).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
}

#[tokio::test]
async fn schemas_are_stored_in_the_form_of_kube_apiserver() {
    let server = Definitions::new().await;
    let with = |property: Value| {
        let mut definition = definition("forms.example.com", "forms", "Form");
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "properties": {"a": property}});
        definition
    };
    let answer = server
        .0
        .post(
            DEFINITIONS,
            &with(json!({"type": "array", "items": {"type": "string", "maxLength": "x"}})),
        )
        .await;
    let mismatch = "cannot unmarshal string into Go struct field JSONSchemaProps.spec.versions.schema.openAPIV3Schema.properties.items.maxLength of type int64";
    assert!(answer.code == 400 && answer.text().contains(mismatch), "{}", answer.text());
    // Unknown keys, and known ones at their zero value.
    let given = json!({
        "type": "string", "description": "", "title": "", "pattern": "", "format": "",
        "enum": [], "default": null, "example": null, "uniqueItems": false, "nullable": false,
        "readOnly": true, "odd": 1, "minLength": 0, "x-kubernetes-validations": [],
    });
    let stored = server.create(&with(given)).await.json();
    assert_eq!(
        stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"],
        json!({"type": "string", "minLength": 0})
    );
}

#[tokio::test]
async fn two_definitions_with_the_same_names_take_turns() {
    let server = Definitions::new().await;
    let group = "b.example.com";
    let mut first = definition(group, "things", "Thing");
    first["spec"]["names"]["shortNames"] = json!(["th"]);
    let mut second = definition(group, "others", "Thing");
    second["spec"]["names"]["shortNames"] = json!(["th"]);
    second["spec"]["names"]["singular"] = json!("other");
    server.create(&first).await;
    server.condition("things.b.example.com", "NamesAccepted", "True", "NoConflicts").await;
    server.create(&second).await;
    let loser = server
        .condition("others.b.example.com", "NamesAccepted", "False", "ListKindConflict")
        .await;
    assert_eq!(
        loser["status"]["acceptedNames"],
        json!({"plural": "others", "singular": "other", "kind": ""})
    );
    assert_eq!(server.0.get(&objects(group, "others")).await.code, 404, "it is not established");
    // The losing definition never affects the winning one, however often it retries.
    let patched = server
        .patch(
            &format!("{DEFINITIONS}/others.b.example.com"),
            &json!({"spec": {"names": {"categories": ["all"]}}}),
        )
        .await;
    assert_eq!(patched.code, 200, "{}", patched.text());
    assert_eq!(server.0.get(&objects(group, "things")).await.code, 200);
    let winner =
        server.condition("things.b.example.com", "NamesAccepted", "True", "NoConflicts").await;
    assert_eq!(winner["metadata"]["generation"], 1);
    server.delete(&format!("{DEFINITIONS}/things.b.example.com"), &json!({})).await;
    server.gone(&format!("{DEFINITIONS}/things.b.example.com")).await;
    let heir =
        server.condition("others.b.example.com", "NamesAccepted", "True", "NoConflicts").await;
    assert_eq!(heir["status"]["acceptedNames"]["shortNames"], json!(["th"]));
    server.condition("others.b.example.com", "Established", "True", "InitialNamesAccepted").await;
    assert_eq!(server.0.get(&objects(group, "others")).await.code, 200);
}

#[tokio::test]
async fn a_definition_never_takes_the_place_of_a_bundled_kind() {
    let server = Definitions::new().await;
    let group = "rbac.authorization.k8s.io";
    let native = format!("/apis/{group}/v1/clusterroles");
    let before = server.0.get(&native).await.json();
    // One has the plural, the other the kind.
    for (plural, kind) in [("clusterroles", "Mine"), ("copies", "ClusterRole")] {
        let mut thief = definition(group, plural, kind);
        thief["metadata"]["annotations"] =
            json!({"api-approved.kubernetes.io": "unapproved, a test"});
        server.create(&thief).await;
        let name = format!("{plural}.{group}");
        let path = format!("{DEFINITIONS}/{name}");
        server
            .until(&path, |found| {
                found["status"]["conditions"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["type"] == "NamesAccepted"))
            })
            .await;
        // A caller that may write statuses claims that the names are accepted.
        let yes = |kind: &str| json!({"type": kind, "status": "True", "reason": "Mine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"acceptedNames": thief["spec"]["names"], "conditions": [yes("Established"), yes("NamesAccepted")]});
        let patched = server.patch(&format!("{path}/status"), &json!({ "status": status })).await;
        assert_eq!(patched.code, 200, "{}", patched.text());
        let found = server
            .until(&path, |found| {
                found["status"]["conditions"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["status"] == "False"))
            })
            .await;
        let patched =
            server.patch(&path, &json!({"spec": {"names": {"categories": ["all"]}}})).await;
        assert_eq!(patched.code, 200, "{}: {found}", patched.text());
        assert_eq!(
            server.0.get(&format!("/apis/{group}/v1/namespaces/default/{plural}")).await.code,
            404,
            "{name}"
        );
        assert_eq!(server.0.get(&native).await.json()["kind"], before["kind"], "{name}");
        server.delete(&path, &json!({})).await;
        server.gone(&path).await;
        assert_eq!(server.0.get(&native).await.json()["kind"], before["kind"], "{name}");
    }
}

#[tokio::test]
async fn a_delete_marks_and_then_removes() {
    let server = Definitions::new().await;
    let group = "c.example.com";
    server.create(&definition(group, "things", "Thing")).await;
    let held = json!({"apiVersion": "c.example.com/v1", "kind": "Thing", "metadata": {"name": "held", "finalizers": ["e.example.com/x"]}});
    assert_eq!(server.0.post(&objects(group, "things"), &held).await.code, 201);
    let path = format!("{DEFINITIONS}/things.c.example.com");
    let before = server
        .condition("things.c.example.com", "Established", "True", "InitialNamesAccepted")
        .await;
    // Only the definition's own finalizer is set, whatever propagation is requested, and there is
    // no grace period.
    let dry = server
        .delete(&path, &json!({"propagationPolicy": "Foreground", "dryRun": ["All"]}))
        .await
        .json();
    let marked = server.delete(&path, &json!({"propagationPolicy": "Foreground"})).await.json();
    for answer in [dry, marked] {
        assert_eq!(
            answer["metadata"]["finalizers"],
            json!(["customresourcecleanup.apiextensions.k8s.io"]),
            "{answer}"
        );
        assert_eq!(
            (
                answer["metadata"].get("deletionGracePeriodSeconds"),
                &answer["metadata"]["generation"]
            ),
            (None, &json!(1))
        );
        assert_eq!(
            answer["metadata"]["managedFields"], before["metadata"]["managedFields"],
            "nobody wrote this"
        );
    }
    server
        .condition("things.c.example.com", "Terminating", "True", "InstanceDeletionInProgress")
        .await;
    let refused = server
        .0
        .post(
            &objects(group, "things"),
            &json!({"apiVersion": "c.example.com/v1", "kind": "Thing", "metadata": {"name": "b"}}),
        )
        .await;
    assert_eq!(
        (refused.code, refused.reason()),
        (403, "Forbidden".to_owned()),
        "{}",
        refused.text()
    );
    assert_eq!(
        server.delete(&path, &json!({})).await.json()["metadata"]["deletionGracePeriodSeconds"],
        0,
        "the second delete is as any object's"
    );
    let released = server
        .patch(
            &format!("{}/held", objects(group, "things")),
            &json!({"metadata": {"finalizers": null}}),
        )
        .await;
    assert_eq!(released.code, 200, "{}", released.text());
    server.gone(&path).await;
    // The loop that removes it from the catalog follows the store.
    let served = async || server.0.get(&objects(group, "things")).await.code != 404;
    let ends = async {
        while served().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BOUND, ends).await.expect("the kind is served no more");
}

#[tokio::test]
async fn the_status_has_managers_and_keeps_a_stored_version() {
    let server = Definitions::new().await;
    server.create(&definition("d.example.com", "things", "Thing")).await;
    server.condition("things.d.example.com", "Established", "True", "InitialNamesAccepted").await;
    let status = format!("{DEFINITIONS}/things.d.example.com/status");
    let emptied = server.patch(&status, &json!({"status": {"storedVersions": []}})).await.json();
    assert_eq!(emptied["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(managers(&emptied, "status"), Vec::<Value>::new(), "nothing changed");
    let labeled = server
        .patch(&status, &json!({"metadata": {"labels": {"x": "y"}}, "spec": {"scope": "Cluster"}}))
        .await
        .json();
    assert_eq!(
        (&labeled["metadata"]["labels"], &labeled["spec"]["scope"]),
        (&json!({"x": "y"}), &json!("Namespaced"))
    );
    let fields: Vec<Value> =
        managers(&labeled, "status").into_iter().map(|entry| entry["fieldsV1"].clone()).collect();
    assert_eq!(fields, [json!({"f:metadata": {"f:labels": {".": {}, "f:x": {}}}})]);
}

#[tokio::test]
async fn the_last_stored_version_may_go_when_the_status_says_so() {
    let server = Definitions::new().await;
    let mut two = definition("e.example.com", "things", "Thing");
    let mut v2 = two["spec"]["versions"][0].clone();
    v2["name"] = json!("v2");
    v2["storage"] = json!(false);
    two["spec"]["versions"].as_array_mut().unwrap().push(v2.clone());
    server.create(&two).await;
    let path = format!("{DEFINITIONS}/things.e.example.com");
    let v1 = two["spec"]["versions"][0].clone();
    let with = |v1_stored: bool| {
        let (mut one, mut other) = (v1.clone(), v2.clone());
        one["storage"] = json!(v1_stored);
        other["storage"] = json!(!v1_stored);
        json!({"spec": {"versions": [one, other]}})
    };
    let moved = server.patch(&path, &with(false)).await.json();
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v2"]));
    let mut only = v2.clone();
    only["storage"] = json!(true);
    let early = server.patch(&path, &json!({"spec": {"versions": [only]}})).await;
    assert_eq!(
        (early.code, &early.json()["details"]["causes"][0]["field"]),
        (422, &json!("status.storedVersions[0]"))
    );
    assert_eq!(
        server
            .patch(&format!("{path}/status"), &json!({"status": {"storedVersions": ["v2"]}}))
            .await
            .code,
        200
    );
    let trimmed = server.patch(&path, &json!({"spec": {"versions": [only]}})).await;
    assert_eq!(trimmed.code, 200, "{}", trimmed.text());
    assert_eq!(server.0.get(&objects("e.example.com", "things")).await.code, 404);
    assert_eq!(server.0.get("/apis/e.example.com/v2/namespaces/default/things").await.code, 200);
}

/// Fault 42, end to end: oversized definitions are rejected, large ones served, and other requests
/// are not delayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_42_large_definitions_are_bounded_and_delay_no_request() {
    let server = Definitions::new().await;
    let group = "f.example.com";
    server.create(&definition(group, "others", "Other")).await;
    let other = |name: &str| json!({"apiVersion": "f.example.com/v1", "kind": "Other", "metadata": {"name": name}, "spec": {"size": 1}});
    assert_eq!(server.0.post(&objects(group, "others"), &other("before")).await.code, 201);

    let mut many = definition(group, "many", "Many");
    let versions: Vec<Value> = (1..=100)
        .map(|number| {
            let mut version = many["spec"]["versions"][0].clone();
            version["name"] = json!(format!("v{number}"));
            version["storage"] = json!(number == 1);
            version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
                [format!("field{number}")] = json!({"type": "string"});
            version
        })
        .collect();
    many["spec"]["versions"] = json!(versions);
    server.create(&many).await;
    let path = |version: &str| format!("/apis/{group}/{version}/namespaces/default/many");
    let object = json!({"apiVersion": "f.example.com/v50", "kind": "Many", "metadata": {"name": "a"}, "spec": {"size": 1, "field50": "x", "field51": "y"}});
    let made = server.0.post(&path("v50"), &object).await;
    assert_eq!(made.code, 201, "{}", made.text());
    assert_eq!(
        server.0.get(&format!("{}/a", path("v100"))).await.json()["apiVersion"],
        "f.example.com/v100"
    );

    let root = |schema: Value| {
        let mut bomb = definition(group, "bombs", "Bomb");
        bomb["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema;
        bomb
    };
    let nested = (0..500).fold(
        json!({"type": "string"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}}),
    );
    let bombs = [
        (root(json!({"type": "object", "description": "x".repeat(10 << 20)})), 413),
        (root(nested), 400),
        (root(json!({"$ref": "#/properties/spec"})), 422),
        (root(json!({"type": "string", "pattern": "((a{1000}){1000}){1000}"})), 422),
        (
            root(
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, self.all(c, a == b)))"}]}),
            ),
            422,
        ),
    ];
    for (index, (bomb, code)) in bombs.iter().enumerate() {
        let answer = server.0.post(DEFINITIONS, bomb).await;
        assert_eq!(answer.code, *code, "bomb {index}: {:.500}", answer.text());
        assert_eq!(
            server.0.get(&format!("{DEFINITIONS}/bombs.{group}")).await.code,
            404,
            "bomb {index}"
        );
    }
    assert_eq!(server.0.post(&objects(group, "others"), &other("after")).await.code, 201);
    assert_eq!(
        server.0.get(&objects(group, "others")).await.json()["items"].as_array().unwrap().len(),
        2
    );
}

/// Blocks the thread that compiles a definition, until released.
struct ThreadHold {
    begun: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

thread_local!(static HOLDING: RefCell<Option<Arc<ThreadHold>>> = const { RefCell::new(None) });

/// Process-wide, for threads that have a [`ThreadHold`]: a thread-local subscriber would not be
/// asked about callsites that another thread reached first.
struct Log;

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let is_ours = metadata.target() == "ferrokube_apiextensions"
            && *metadata.level() == tracing::Level::DEBUG;
        if is_ours { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        HOLDING.with_borrow(Option::is_some)
    }

    fn event(&self, _event: &Event<'_>) {
        let holding = HOLDING.with_borrow(Clone::clone);
        // Only waits for the first event.
        if let Some(holding) = holding.filter(|holding| holding.begun.send(()).is_ok()) {
            holding.go_on.lock().unwrap().recv_timeout(BOUND).expect("others go on meanwhile");
        }
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn fault_34_definitions_are_compiled_off_the_workers() {
    tracing::subscriber::set_global_default(Log).expect("no other test has one");
    let ((begun, begins), (go_on, waits)) = (mpsc::channel(), mpsc::channel());
    let holding = Arc::new(ThreadHold { begun, go_on: Mutex::new(waits) });
    let start = move || HOLDING.set(Some(Arc::clone(&holding)));
    // With one worker, nothing else could run while a definition compiles on it.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(start)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Arc::new(Definitions::new().await);
        let creates = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.create(&definition("held.example.com", "things", "Thing")).await.code }
        });
        // The receiver is gone afterwards.
        let has_begun = tokio::task::spawn_blocking(move || begins.recv_timeout(BOUND));
        has_begun.await.unwrap().expect("a definition is compiled");
        assert_eq!(tokio::spawn(async { 1 }).await.unwrap(), 1);
        go_on.send(()).unwrap();
        assert_eq!(creates.await.unwrap(), 201);
        server.condition("things.held.example.com", "Established", "True", "InitialNamesAccepted").await;
    });
}
