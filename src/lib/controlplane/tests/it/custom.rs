//! Custom objects; expectations were recorded from a real API server.

use crate::support::{TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

/// A server with the custom resource `things`, whose only version has these fields.
pub(crate) async fn things(version: Value) -> TestServer {
    let server = TestServer::new().await;
    let mut whole = json!({"name": "v1", "served": true, "storage": true});
    whole.as_object_mut().unwrap().extend(version.as_object().unwrap().clone());
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": [whole]}});
    let answer = server.post(DEFINITIONS, &definition).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    server
}

/// A schema of things with these spec and status properties.
fn of_spec(properties: &Value) -> Value {
    let fields = json!({"type": "object", "properties": properties});
    json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": fields, "status": fields}}})
}

fn thing(name: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
    )
}

impl TestServer {
    async fn patch(&self, path: &str, kind: &str, body: impl Into<String>) -> TestResponse {
        self.send("PATCH", path, &[("content-type", kind)], body.into()).await
    }

    async fn merge(&self, name: &str, body: &str) -> TestResponse {
        self.patch(&format!("{THINGS}/{name}"), "application/merge-patch+json", body).await
    }

    async fn apply(&self, name: &str, manager: &str, spec: &str) -> TestResponse {
        self.patch(
            &format!("{THINGS}/{name}?fieldManager={manager}"),
            "application/apply-patch+yaml",
            thing(name, spec),
        )
        .await
    }
}

/// Reason and field of each cause.
fn causes(answer: &TestResponse) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = answer.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    all.iter().map(|cause| (text(&cause["reason"]), text(&cause["field"]))).collect()
}

fn cause(reason: &str, field: &str) -> (String, String) {
    (reason.to_owned(), field.to_owned())
}

#[tokio::test]
async fn nulls_are_dropped_from_bodies_and_refused_from_applies() {
    let properties = json!({"a": {"type": "integer"}, "n": {"type": "integer", "nullable": true}, "d": {"type": "integer", "default": 7},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}}, "any": {"x-kubernetes-preserve-unknown-fields": true}});
    let server =
        things(json!({"schema": of_spec(&properties), "subresources": {"status": {}}})).await;
    let nulls = r#"{"a":null,"n":null,"d":null,"m":{"x":null}}"#;
    let created = server.send("POST", THINGS, &[], thing("a", nulls)).await;
    assert_eq!(
        (created.code, &created.json()["spec"]),
        (201, &json!({"n": null, "d": 7, "m": {}}))
    );
    let operation = r#"[{"op":"add","path":"/spec/a","value":null}]"#;
    let patched =
        server.patch(&format!("{THINGS}/a"), "application/json-patch+json", operation).await;
    assert_eq!((patched.code, &patched.json()["metadata"]["generation"]), (200, &json!(1)));

    let refused = server.apply("b", "m", nulls).await;
    assert_eq!(
        (refused.code, causes(&refused)),
        (
            422,
            vec![
                cause("FieldValueTypeInvalid", "spec.a"),
                cause("FieldValueTypeInvalid", "spec.m.x")
            ]
        )
    );
    assert_eq!(server.get(&format!("{THINGS}/b")).await.code, 404);
    let fits = server.apply("b", "m", r#"{"n":null,"d":null,"any":null}"#).await;
    assert_eq!(
        (fits.code, &fits.json()["spec"]),
        (201, &json!({"n": null, "d": 7})),
        "what has no type may be null, and is not kept"
    );
    let fields = &fits.json()["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(fields, &json!({"f:any": {}, "f:d": {}, "f:n": {}}));
    let again = server.apply("b", "m", r#"{"n":null,"d":null,"any":null}"#).await;
    assert_eq!(again.json()["metadata"]["generation"], 2, "it was not there");
    let status = r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"b"},"status":{"a":null}}"#;
    let refused = server
        .patch(&format!("{THINGS}/b/status?fieldManager=m"), "application/apply-patch+yaml", status)
        .await;
    assert_eq!(causes(&refused), [cause("FieldValueTypeInvalid", "status.a")]);

    server.send("POST", THINGS, &[], thing("c", r#"{"any":{"a":1}}"#)).await;
    let kept = server.apply("c", "m", r#"{"any":null}"#).await;
    assert_eq!(
        (kept.code, &kept.json()["spec"]["any"]),
        (200, &json!({"a": 1})),
        "null for what merges changes nothing"
    );
}

/// For each entry: manager, operation, subresource, whether it has a time, and the fields below
/// `spec`.
fn managers(object: &Value) -> Vec<String> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or("-").to_owned();
    let line = |entry: &Value| {
        let words =
            ["manager", "operation", "subresource"].map(|field| text(entry, field)).join(" ");
        format!("{words} {} {}", entry["time"].is_string(), entry["fieldsV1"]["f:spec"])
    };
    object["metadata"]["managedFields"]
        .as_array()
        .map(|entries| entries.iter().map(line).collect())
        .unwrap_or_default()
}

/// Replicas are counted in objects of the kind.
#[tokio::test]
async fn an_object_of_another_kind_has_no_replicas() {
    let count = json!({"type": "integer"});
    let scale = json!({"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"});
    let server = things(
        json!({"schema": of_spec(&json!({"r": count})), "subresources": {"status": {}, "scale": scale}}),
    )
    .await;
    for (kind, message) in [
        (
            "Thing",
            r#"Thing.example.com "x" is invalid: .spec.r: Invalid value: -1: should be a non-negative integer"#,
        ),
        (
            "Other",
            r#"Other.example.com "x" is invalid: kind: Invalid value: "Other": must be Thing"#,
        ),
    ] {
        let body = format!(
            r#"{{"kind":"{kind}","apiVersion":"example.com/v1","metadata":{{"name":"x"}},"spec":{{"r":-1}}}}"#
        );
        let answer = server.send("POST", THINGS, &[], body).await;
        assert_eq!((answer.code, answer.json()["message"].as_str()), (422, Some(message)));
    }
}

#[tokio::test]
async fn a_patch_to_another_version_names_what_else_cannot_change() {
    let server = things(json!({"schema": of_spec(&json!({}))})).await;
    server.send("POST", THINGS, &[], thing("a", "{}")).await;
    let patch = r#"{"apiVersion":"0","metadata":{"uid":"x","creationTimestamp":null}}"#;
    let path = format!("{THINGS}/a");
    let refused = server.patch(&path, "application/merge-patch+json", patch).await;
    let wrong = |field: &str| cause("FieldValueInvalid", field);
    assert_eq!(causes(&refused), [wrong("metadata.uid"), wrong("apiVersion")]);
}

#[tokio::test]
async fn a_scale_is_printed_and_managed_as_one() {
    let count = json!({"type": "integer"});
    let scale = json!({"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"});
    let server = things(json!({"schema": of_spec(&json!({"r": count, "x": count})), "subresources": {"status": {}, "scale": scale}})).await;
    let path = &format!("{THINGS}/a/scale");
    server.send("POST", THINGS, &[], thing("a", r#"{"r":3,"x":1}"#)).await;
    let table = server.get_as(path, "application/json;as=Table;v=v1;g=meta.k8s.io").await.json();
    let columns: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(columns, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().unwrap()[..3],
        [json!("a"), json!(3), json!(0)]
    );
    assert_eq!(
        server
            .get_as(path, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
            .await
            .code,
        406
    );

    let by = |manager: &str, count: i64| {
        let (server, path) = (server.clone(), format!("{path}?fieldManager={manager}"));
        async move {
            server
                .patch(
                    &path,
                    "application/merge-patch+json",
                    format!(r#"{{"spec":{{"replicas":{count}}}}}"#),
                )
                .await
        }
    };
    let scaled = by("autoscaler", 4).await;
    assert_eq!((scaled.code, &scaled.json()["metadata"]["managedFields"]), (200, &Value::Null));
    let object = server.get(&format!("{THINGS}/a")).await.json();
    assert_eq!(
        managers(&object),
        [r#"autoscaler Update scale false {"f:r":{}}"#, r#"test Update - true {".":{},"f:x":{}}"#]
    );
    let same = by("anybody", 4).await;
    assert_eq!(
        same.json()["metadata"]["resourceVersion"],
        object["metadata"]["resourceVersion"],
        "nothing to own"
    );

    let applied = |count: i64| {
        format!(
            r#"{{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{{"name":"a"}},"spec":{{"replicas":{count}}}}}"#
        )
    };
    let apply = |query: &str, count: i64| {
        let (server, path) = (server.clone(), format!("{path}?fieldManager=applier{query}"));
        async move { server.patch(&path, "application/apply-patch+yaml", applied(count)).await }
    };
    let refused = apply("", 5).await;
    assert_eq!(
        (refused.code, causes(&refused)),
        (409, vec![cause("FieldManagerConflict", ".spec.replicas")])
    );
    assert_eq!(apply("&force=true", 5).await.code, 200);
    let object = server.get(&format!("{THINGS}/a")).await.json();
    assert_eq!(
        managers(&object),
        [r#"applier Apply scale false {"f:r":{}}"#, r#"test Update - true {".":{},"f:x":{}}"#]
    );
    let refused = server.apply("a", "m", r#"{"r":9}"#).await;
    assert_eq!(causes(&refused), [cause("FieldManagerConflict", ".spec.r")]);
}

#[tokio::test]
async fn entries_of_a_version_that_is_gone_end_tracking() {
    let count = json!({"type": "integer"});
    let server = things(json!({"schema": of_spec(&json!({"a": count, "b": count}))})).await;
    server.send("POST", THINGS, &[], thing("a", r#"{"a":1}"#)).await;
    let entry = |version: &str| json!({"manager": "old", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}});
    let given =
        |version: &str| json!({"metadata": {"managedFields": [entry(version)]}}).to_string();
    assert_eq!(
        managers(&server.merge("a", &given("example.com/v1")).await.json()),
        [r#"old Update - false {"f:a":{}}"#]
    );
    for version in ["example.com/v0", "other.io/v1", "v1"] {
        let updated = server.merge("a", &given(version)).await.json();
        assert_eq!(updated["metadata"]["managedFields"], Value::Null, "{version}");
        assert_eq!(
            server.merge("a", r#"{"spec":{"b":2}}"#).await.json()["metadata"]["managedFields"],
            Value::Null
        );
    }
    let applied = server.apply("a", "m", r#"{"b":2}"#).await.json();
    assert_eq!(
        managers(&applied),
        [
            r#"m Apply - false {"f:b":{}}"#,
            r#"before-first-apply Update - true {".":{},"f:a":{},"f:b":{}}"#
        ]
    );
}

#[tokio::test]
async fn whole_numbers_with_a_fraction_are_doubles_until_they_are_stored() {
    let rule = json!([{"rule": "self >= 0"}]);
    let set =
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
    let properties = json!({"plain": {"type": "integer"}, "ruled": {"type": "integer", "x-kubernetes-validations": rule}, "set": set,
        "lists": {"type": "object", "properties": {"ports": {"type": "array", "items": {"type": "integer"}}, "others": {"type": "array", "items": {"type": "integer"}}},
            "x-kubernetes-validations": [{"rule": "!(22 in self.ports)"}, {"rule": "!has(self.others) || self.ports != self.others"}]},
        "text": {"x-kubernetes-int-or-string": true, "x-kubernetes-validations": [{"rule": "type(self) == int"}]},
        "number": {"type": "number", "x-kubernetes-validations": [{"rule": "self >= 0.0 && type(self) == double"}]}});
    let scale = json!({"specReplicasPath": ".spec.plain", "statusReplicasPath": ".status.plain"});
    let server = things(
        json!({"schema": of_spec(&properties), "subresources": {"status": {}, "scale": scale}}),
    )
    .await;
    for (spec, expected) in [
        (r#"{"ruled":1.0}"#, vec![cause("FieldValueInvalid", "spec.ruled")]),
        (r#"{"text":1.0}"#, vec![cause("FieldValueInvalid", "spec.text")]),
        (r#"{"lists":{"ports":[22]}}"#, vec![cause("FieldValueInvalid", "spec.lists")]),
        (r#"{"lists":{"ports":[80,22.0]}}"#, vec![cause("FieldValueInvalid", "spec.lists")]),
        (
            r#"{"lists":{"ports":[80.0],"others":[80]}}"#,
            vec![cause("FieldValueInvalid", "spec.lists")],
        ),
        (r#"{"plain":1.0}"#, vec![cause("FieldValueInvalid", ".spec.plain")]),
        (
            r#"{"ruled":1e19}"#,
            vec![cause("FieldValueTypeInvalid", "spec.ruled"), cause("FieldValueInvalid", "<nil>")],
        ),
    ] {
        let refused = server.send("POST", THINGS, &[], thing("a", spec)).await;
        let mut found = causes(&refused);
        found.retain(|cause| expected.contains(cause));
        found.dedup();
        assert_eq!(
            (refused.code, found.len()),
            (422, expected.len()),
            "{spec}: {}",
            refused.text()
        );
    }
    let yaml = server
        .send(
            "POST",
            THINGS,
            &[("content-type", "application/yaml")],
            thing("y", r#"{"ruled":1.0}"#),
        )
        .await;
    assert_eq!(yaml.code, 201, "YAML has no such difference: {}", yaml.text());

    let created =
        server.send("POST", THINGS, &[], thing("a", r#"{"number":1.0,"set":[1,1.0]}"#)).await;
    assert_eq!(created.code, 201, "{}", created.text());
    assert!(created.text().contains(r#""spec":{"number":1,"set":[1,1]}"#), "{}", created.text());
    let put = server.merge("a", r#"{"spec":{"number":1.0}}"#).await.json();
    assert_eq!(put["metadata"]["generation"], 2, "it was an integer");
    assert_eq!(
        put["metadata"]["managedFields"].as_array().unwrap().len(),
        1,
        "but is the same number"
    );
    let test = r#"[{"op":"test","path":"/spec/number","value":1.0}]"#;
    assert_eq!(
        server.patch(&format!("{THINGS}/a"), "application/json-patch+json", test).await.code,
        422,
        "a test compares what is written"
    );

    let applied = server.apply("b", "m", r#"{"ruled":1.0,"set":[1.0]}"#).await;
    let fields = &applied.json()["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(
        (applied.code, fields),
        (201, &json!({"f:ruled": {}, "f:set": {"v:1": {}}})),
        "what is applied is YAML"
    );
    assert_eq!(server.apply("b", "other", r#"{"ruled":1,"set":[1]}"#).await.code, 200);
    let refused = server.apply("b", "m", r#"{"set":[1,1.0]}"#).await;
    assert_eq!(
        (refused.code, refused.reason().as_str()),
        (500, ""),
        "an item is applied twice: {}",
        refused.text()
    );
}

#[tokio::test]
async fn fields_applied_below_open_objects_are_owned_even_if_pruned() {
    let count = json!({"type": "integer"});
    let inner = json!({"type": "object", "properties": {"x": count}});
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": inner}});
    let server = things(json!({"schema": of_spec(&json!({"open": open, "bare": {"type": "object"}, "closed": inner}))})).await;
    let applied =
        server.apply("a", "m", r#"{"open":{"any":1,"known":{"x":1,"y":1}},"bare":{"z":1}}"#).await;
    assert_eq!(
        (applied.code, &applied.json()["spec"]),
        (201, &json!({"open": {"any": 1, "known": {"x": 1}}, "bare": {}}))
    );
    assert_eq!(
        managers(&applied.json()),
        [
            r#"m Apply - true {"f:bare":{"f:z":{}},"f:open":{"f:any":{},"f:known":{"f:x":{},"f:y":{}}}}"#
        ]
    );
    let refused = server.apply("a", "other", r#"{"bare":{"z":1}}"#).await;
    assert_eq!(
        (refused.code, causes(&refused)),
        (409, vec![cause("FieldManagerConflict", ".spec.bare.z")])
    );
    assert_eq!(
        server.apply("a", "m", r#"{"closed":{"y":1}}"#).await.code,
        500,
        "nobody could own it"
    );
}

#[tokio::test]
async fn repeated_fields_of_an_open_object_are_reported() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let server = things(json!({"schema": of_spec(&json!({"open": open}))})).await;
    let body = thing("a", r#"{"open":{"any":1,"any":2,"in":[{"x":1,"x":1}]}}"#);
    let send = async |validation: &str| {
        let path = format!("{THINGS}?dryRun=All&fieldValidation={validation}");
        server.send("POST", &path, &[], body.clone()).await
    };
    let repeated = ["spec.open.any", "spec.open.in[0].x"];
    let found = repeated.map(|path| format!("duplicate field \"{path}\"")).join(", ");
    let strict = send("Strict").await;
    let message = strict.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(strict.code == 400 && message.ends_with(&found), "{message}");
    let warned = send("Warn").await;
    let warnings = warned.headers.get_all("warning").iter().count();
    assert_eq!((warned.code, warnings), (201, repeated.len()));
}

#[tokio::test]
async fn repeated_fields_of_a_json_patch_are_reported() {
    let server = things(json!({"schema": of_spec(&json!({"a": {"type": "integer"}}))})).await;
    server.send("POST", THINGS, &[], thing("a", r#"{"a":1}"#)).await;
    let patch = r#"[{"op":"add","path":"/spec","value":{"a":2,"a":3}}]"#;
    let path = |validation: &str| format!("{THINGS}/a?fieldValidation={validation}");
    let refused = server.patch(&path("Strict"), "application/json-patch+json", patch).await;
    assert_eq!((refused.code, causes(&refused)), (422, vec![cause("FieldValueInvalid", "patch")]));
    let warned = server.patch(&path("Warn"), "application/json-patch+json", patch).await;
    assert_eq!((warned.code, warned.header("warning").is_empty()), (200, false));
    let ignored = server.patch(&path("Ignore"), "application/json-patch+json", patch).await;
    assert_eq!((ignored.code, ignored.header("warning")), (200, ""));
}

#[tokio::test]
async fn an_object_has_the_defaults_of_the_version_in_which_it_was_decoded() {
    let server = TestServer::new().await;
    let version = |name: &str, stored: bool, field: &str| {
        let fields =
            json!({field: {"type": "string", "default": name}, "both": {"type": "string"}});
        json!({"name": name, "served": true, "storage": stored, "schema": of_spec(&fields)})
    };
    let versions = [version("v1", true, "one"), version("v2", false, "two")];
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": versions}});
    assert_eq!(server.post(DEFINITIONS, &definition).await.code, 201);
    let second = THINGS.replace("/v1/", "/v2/");
    let given = thing("a", r#"{"both":"b","one":"1","two":"2"}"#)
        .replace("example.com/v1", "example.com/v2");
    let created = server.send("POST", &second, &[], given).await;
    assert_eq!(
        (created.code, &created.json()["spec"]),
        (201, &json!({"both": "b"})),
        "what the stored version does not know is gone"
    );
    assert_eq!(server.get(&format!("{second}/a")).await.json()["spec"], json!({"both": "b"}));
    assert_eq!(
        server.get(&format!("{THINGS}/a")).await.json()["spec"],
        json!({"both": "b", "one": "v1"})
    );
    server.send("POST", THINGS, &[], thing("b", "{}")).await;
    assert_eq!(server.get(&format!("{second}/b")).await.json()["spec"], json!({}));
}

#[tokio::test]
async fn paths_of_custom_objects_are_routed_by_their_handler() {
    let count = json!({"type": "integer"});
    let server = things(json!({"schema": of_spec(&json!({"a": count})), "subresources": {"status": {}}, "deprecated": true})).await;
    server.send("POST", THINGS, &[], thing("a", r#"{"a":1}"#)).await;
    let path = &format!("{THINGS}/a");
    for (method, path, code) in [
        ("HEAD", path.clone(), 200),
        ("HEAD", THINGS.to_owned(), 200),
        ("HEAD", format!("{THINGS}/none"), 404),
        ("GET", format!("{path}/status/more"), 200),
        ("GET", format!("{path}/scale"), 404),
        ("DELETE", format!("{path}/status"), 405),
        ("PUT", THINGS.to_owned(), 400),
        ("POST", "/apis/example.com/v1".to_owned(), 200),
    ] {
        assert_eq!(server.send(method, &path, &[], "").await.code, code, "{method} {path}");
    }
    let own = format!("{THINGS}/own");
    for (name, code) in [("other", 400), ("", 400), ("own", 201), ("own", 409)] {
        assert_eq!(
            server.send("POST", &own, &[], thing(name, "{}")).await.code,
            code,
            "a create makes the name that was authorized, not {name:?}"
        );
    }
    let patch = |kind: &'static str| server.patch(THINGS, kind, "{}");
    assert_eq!(
        (patch("application/merge-patch+json").await.code, patch("text/plain").await.code),
        (400, 415)
    );
    let missing = server.get(&format!("{path}/scale")).await;
    assert!(
        !missing.header("warning").is_empty(),
        "the version is deprecated whatever is asked of it"
    );
}

#[tokio::test]
async fn nothing_is_created_while_the_definition_terminates() {
    let server = things(json!({"schema": of_spec(&json!({"a": {"type": "integer"}}))})).await;
    let definition = format!("{DEFINITIONS}/things.example.com");
    let held = r#"{"metadata":{"finalizers":["example.com/hold"]}}"#;
    let held = server.patch(&definition, "application/merge-patch+json", held).await;
    assert_eq!(held.code, 200, "{}", held.text());
    assert_eq!(server.send("DELETE", &definition, &[], "").await.code, 200);
    // Neither the namespace nor the object counts.
    let elsewhere = THINGS.replace("default", "none");
    for (path, object) in
        [(THINGS, thing("a", "{}")), (elsewhere.as_str(), thing("a", r#"{"a":"x"}"#))]
    {
        let refused = server.send("POST", path, &[], object).await;
        let want = "things.example.com \"a\" is forbidden: create not allowed while custom resource definition is terminating";
        assert_eq!((refused.code, refused.json()["message"].as_str()), (403, Some(want)));
    }
}

#[tokio::test]
async fn names_come_before_a_version_that_a_patch_removes() {
    let server = things(json!({"schema": of_spec(&json!({"a": {"type": "integer"}}))})).await;
    server.send("POST", THINGS, &[], thing("a", "{}")).await;
    let path = format!("{THINGS}/a");
    for (metadata, code) in
        [(r#"{"name":"b"}"#, 400), (r#"{"namespace":"other"}"#, 400), ("{}", 500)]
    {
        let patch = format!(r#"{{"apiVersion":null,"metadata":{metadata}}}"#);
        let answer = server.patch(&path, "application/merge-patch+json", patch).await;
        assert_eq!(answer.code, code, "{metadata}: {}", answer.text());
    }
}

#[tokio::test]
async fn owners_of_parts_own_a_value_that_becomes_atomic() {
    let count = json!({"type": "integer"});
    let schema = |atomic: bool| {
        let mut pair = json!({"type": "object", "properties": {"a": count, "b": count}});
        if atomic {
            pair["x-kubernetes-map-type"] = json!("atomic");
        }
        of_spec(&json!({"pair": pair, "x": count}))
    };
    let server = things(json!({"schema": schema(false)})).await;
    server.apply("a", "one", r#"{"pair":{"a":1}}"#).await;
    server.apply("a", "two", r#"{"pair":{"b":1}}"#).await;
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema(true)}]);
    let change = json!({"spec": {"versions": versions}}).to_string();
    assert_eq!(
        server
            .patch(
                &format!("{DEFINITIONS}/things.example.com"),
                "application/merge-patch+json",
                change
            )
            .await
            .code,
        200
    );
    let updated = server.merge("a", r#"{"spec":{"x":1}}"#).await.json();
    assert_eq!(
        managers(&updated),
        [
            r#"one Apply - true {"f:pair":{}}"#,
            r#"two Apply - true {"f:pair":{}}"#,
            r#"test Update - true {"f:x":{}}"#
        ]
    );
    let refused = server.apply("a", "one", r#"{"pair":{"a":2}}"#).await;
    assert_eq!(causes(&refused), [cause("FieldManagerConflict", ".spec.pair")]);
}

#[tokio::test]
async fn reordering_a_keyed_list_is_no_change() {
    let count = json!({"type": "integer"});
    let schema = |tight: bool| {
        let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": count}});
        let mut list = json!({"type": "array", "items": item, "maxItems": 3, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
        if tight {
            list["maxItems"] = json!(1);
            list["x-kubernetes-validations"] = json!([{"rule": "self.all(item, has(item.v))"}]);
        }
        of_spec(&json!({"list": list}))
    };
    let server = things(json!({"schema": schema(false)})).await;
    server.send("POST", THINGS, &[], thing("a", r#"{"list":[{"k":"a","v":1},{"k":"b"}]}"#)).await;
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema(true)}]);
    let change = json!({"spec": {"versions": versions}}).to_string();
    assert_eq!(
        server
            .patch(
                &format!("{DEFINITIONS}/things.example.com"),
                "application/merge-patch+json",
                change
            )
            .await
            .code,
        200
    );
    let reordered = server.merge("a", r#"{"spec":{"list":[{"k":"b"},{"k":"a","v":1}]}}"#).await;
    assert_eq!(
        (reordered.code, reordered.header("warning").is_empty()),
        (200, false),
        "{}",
        reordered.text()
    );
    let changed = server.merge("a", r#"{"spec":{"list":[{"k":"b"},{"k":"a","v":2}]}}"#).await;
    assert_eq!(
        (changed.code, causes(&changed)[0].clone()),
        (422, cause("FieldValueTooMany", "spec.list"))
    );
}

/// Creates with mismatched types, and the messages they get.
#[tokio::test]
async fn mismatched_types_are_rejected_as_in_kube_apiserver() {
    let raw = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let properties = json!({"a": {"type": "integer"}, "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}, "raw": raw});
    let server = things(json!({"schema": of_spec(&properties)})).await;
    let (object, unread) = (format!("{THINGS}/x"), "cannot be handled as a Thing: ");
    let parsing =
        r#"parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""#
            .replace('\\', "");
    let empty = parsing.replace('x', "");
    let refused: [(&str, &str, &str, u16, String); 11] = [
        (
            "POST",
            THINGS,
            r#"{"a":1}"#,
            400,
            r#"the object provided is unrecognized (must be of type Thing): Object 'Kind' is missing in '{"a":1}' ({"a":1})"#.into(),
        ),
        (
            "POST",
            &format!("{THINGS}?fieldValidation=Ignore"),
            r#"{"a":1}"#,
            400,
            format!(r#"Thing in version "v1" {unread}Object 'Kind' is missing in '{{"a":1}}'"#),
        ),
        ("POST", THINGS, r#"{"kind":"Thing","metadata":{"creationTimestamp":"x"}}"#, 400, format!(r#"Thing in version "" {unread}{parsing}"#)),
        (
            "POST",
            THINGS,
            r#"{"kind":"Thing","apiVersion":null}"#,
            400,
            format!(r#"Thing in version "" {unread}.apiVersion accessor error: <nil> is of the type <nil>, expected string"#),
        ),
        (
            "POST",
            THINGS,
            r#"{"kind":"Thing","metadata":{"name":"a"}}"#,
            400,
            "the API version in the data () does not match the expected API version (example.com/v1)".into(),
        ),
        (
            "POST",
            THINGS,
            &thing("a", r#"{"raw":{"apiVersion":1,"kind":"K"}}"#),
            400,
            format!(r#"Thing in version "v1" {unread}spec.raw.apiVersion: Invalid value: 1: must be a string"#),
        ),
        (
            "POST",
            THINGS,
            &thing("a", r#"{"raw":{"apiVersion":"v1","kind":"K","metadata":" "}}"#),
            400,
            format!(
                r#"Thing in version "v1" {unread}spec.raw.metadata: Invalid value: " ": json: cannot unmarshal string into Go value of type v1.ObjectMeta"#
            ),
        ),
        // Validation rejects it in an apply.
        (
            "PATCH",
            &format!("{THINGS}/raw?fieldManager=m"),
            &thing("raw", r#"{"raw":{"apiVersion":"v1","kind":"K","metadata":{"creationTimestamp":""}}}"#),
            422,
            format!(r#"Thing.example.com "raw" is invalid: spec.raw.metadata: Invalid value: {{"creationTimestamp":""}}: {empty}"#),
        ),
        ("PUT", &object, r#"{"kind":"Other","apiVersion":"example.com/v1","metadata":{"name":"x"}}"#, 404, r#"things.example.com "x" not found"#.into()),
        (
            "PUT",
            &object,
            r#"{"kind":"Thing","Kind":"Other","apiVersion":"example.com/v1","metadata":{"name":"x"}}"#,
            404,
            r#"things.example.com "x" not found"#.into(),
        ),
        (
            "POST",
            THINGS,
            r#"{"kind":"Other","apiVersion":"example.com/v1","metadata":{"name":"x"},"spec":{"a":"no","set":["b","b"]}}"#,
            422,
            r#"Other.example.com "x" is invalid: [kind: Invalid value: "Other": must be Thing, spec.set[1]: Duplicate value: "b"]"#.into(),
        ),
    ];
    for (method, path, body, code, message) in refused {
        let of_apply = [("content-type", "application/apply-patch+yaml")];
        let headers = if method == "PATCH" { &of_apply[..] } else { &[] };
        let answer = server.send(method, path, headers, body.to_owned()).await;
        assert_eq!(
            (answer.code, answer.json()["message"].as_str()),
            (code, Some(message.as_str())),
            "{method} {path} {body}"
        );
    }
}

#[tokio::test]
async fn a_custom_object_passes_for_a_list_and_is_not_written_as_one() {
    let server = things(json!({"schema": of_spec(&json!({"a": {"type": "integer"}}))})).await;
    let list = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let created = server.send("POST", THINGS, &list, thing("a", "{}")).await;
    assert_eq!(
        (created.code, created.json()["message"].as_str()),
        (500, Some("content is not a list"))
    );
    assert_eq!(server.get(&format!("{THINGS}/a")).await.code, 404);
    let table = server
        .get_as(
            &format!("{THINGS}?includeObject=x"),
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        .await;
    let why = r#"Unable to convert to Table as requested: includeObject: Invalid value: "x": must be 'Metadata', 'Object', 'None', or empty"#;
    assert_eq!((table.code, table.json()["message"].as_str()), (400, Some(why)));
}

#[tokio::test]
async fn an_apply_removes_fields_but_not_their_parents() {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let server =
        things(json!({"schema": of_spec(&json!({"free": free, "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}))}))
            .await;
    assert_eq!(server.apply("a", "m", r#"{"free":{"x":{"y":[1]}},"set":["a"]}"#).await.code, 201);
    let emptied = server.apply("a", "m", r#"{"free":{},"set":[]}"#).await;
    assert_eq!((emptied.code, &emptied.json()["spec"]), (200, &json!({"free": {}})));
}

#[tokio::test]
async fn applies_are_typed_as_in_kube_apiserver() {
    let properties = json!({"closed": {"type": "object", "additionalProperties": false}, "mail": {"type": "string", "format": "email"},
        "port": {"x-kubernetes-int-or-string": true}, "text": {"type": "string"}});
    let server = things(json!({"schema": of_spec(&properties)})).await;
    for (spec, code, why) in [
        (r#"{"closed":{"k":1}}"#, 500, ".spec.closed.k: field not declared in schema"),
        (r#"{"mail":{"a":1}}"#, 500, ".spec.mail: expected any scalar, got &{map[a:1]}"),
        (r#"{"mail":1}"#, 422, "must be of type email"),
        (r#"{"port":[1]}"#, 422, "must be of type integer,string"),
        (
            r#"{"text":9223372036854775808}"#,
            500,
            ".spec.text: expected string, got &value.valueUnstructured{Value:9.223372036854776e+18}",
        ),
    ] {
        let answer = server.apply("a", "m", spec).await;
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.code == code && message.contains(why), "{spec}: {} {message}", answer.code);
    }
    let times = r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a","creationTimestamp":"x"}}"#;
    let applied = server
        .patch(&format!("{THINGS}/a?fieldManager=m"), "application/apply-patch+yaml", times)
        .await;
    assert_eq!(applied.code, 201, "{}", applied.text());
}

#[tokio::test]
async fn the_spec_of_a_scale_has_no_metadata() {
    let scale = json!({"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"});
    let server = things(json!({"schema": of_spec(&json!({"r": {"type": "integer"}})), "subresources": {"scale": scale}})).await;
    server.send("POST", THINGS, &[], thing("a", "{}")).await;
    for metadata in [json!("x"), json!({"name": "a"}), json!(null)] {
        let body =
            json!({"metadata": {"name": "a"}, "spec": {"replicas": 3, "metadata": metadata}});
        let scaled = server.send("PUT", &format!("{THINGS}/a/scale"), &[], body.to_string()).await;
        assert_eq!((scaled.code, &scaled.json()["spec"]), (200, &json!({"replicas": 3})));
        assert_eq!(scaled.header("warning"), r#"299 - "unknown field \"spec.metadata\"""#);
    }
}

#[tokio::test]
async fn a_scale_below_an_undeclared_field_is_not_kept() {
    let scale = json!({"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"});
    let server = things(json!({"schema": of_spec(&json!({"x": {"type": "integer"}})), "subresources": {"status": {}, "scale": scale}})).await;
    server.send("POST", THINGS, &[], thing("a", "{}")).await;
    let path = format!("{THINGS}/a/scale");
    let scaled =
        server.patch(&path, "application/merge-patch+json", r#"{"spec":{"replicas":3}}"#).await;
    assert_eq!((scaled.code, &scaled.json()["spec"]), (200, &json!({})));
    assert_eq!(
        (server.get(&path).await.code, &server.get(&format!("{THINGS}/a")).await.json()["spec"]),
        (500, &json!({}))
    );
    let kind = server
        .patch(
            &format!("{THINGS}/a/status"),
            "application/merge-patch+json",
            r#"{"apiVersion":"other","kind":"Other"}"#,
        )
        .await;
    assert_eq!(
        (kind.code, &kind.json()["kind"]),
        (200, &json!("Thing")),
        "a status keeps its object's kind"
    );
}
