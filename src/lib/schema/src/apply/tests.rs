//! The cases of parity area `apply`, and further ones.

use super::*;
use crate::schema::{Kind, ListType, Property};
use crate::testing::{core, document, schema};
use ferrokube_apimachinery::document::json;
use proptest::prelude::*;

fn manager(name: &str, operation: ManagerOperation) -> Manager {
    Manager {
        name: name.to_owned(),
        operation,
        api_version: "v1".to_owned(),
        subresource: String::new(),
        time: "2024-01-02T03:04:05Z".to_owned(),
        ids_are_servers: true,
        other_versions: None,
    }
}

/// An object and its writers.
struct ApplyFixture {
    schema: std::sync::Arc<Schema>,
    reset: ResetFields,
    object: Option<Document>,
}

impl ApplyFixture {
    fn new(kind: &str) -> Self {
        Self::of(core(kind))
    }

    fn of(schema: std::sync::Arc<Schema>) -> Self {
        Self { schema, reset: ResetFields::of_paths(&["status"]), object: None }
    }

    fn update(&mut self, name: &str, object: Value) -> &mut Self {
        let mut new = document(object);
        track_update(
            &self.schema,
            &self.reset,
            self.object.as_ref(),
            &mut new,
            &manager(name, ManagerOperation::Update),
        );
        self.object = Some(new);
        self
    }

    /// Merge-patches the object.
    fn patch(&mut self, name: &str, edit: impl FnOnce(&mut Document)) -> &mut Self {
        let mut new = self.object.clone().unwrap_or_default();
        edit(&mut new);
        track_update(
            &self.schema,
            &self.reset,
            self.object.as_ref(),
            &mut new,
            &manager(name, ManagerOperation::Update),
        );
        self.object = Some(new);
        self
    }

    fn try_apply(
        &mut self,
        name: &str,
        applied: &Value,
        force: bool,
    ) -> Result<&mut Self, ApplyError> {
        let who = manager(name, ManagerOperation::Apply);
        let mut object = apply(
            &self.schema,
            &self.reset,
            self.object.as_ref(),
            &document(applied.clone()),
            &who,
            force,
        )?;
        // As the encoder treats nulls and empty maps of optional fields.
        object.fields_mut().retain(|_, value| {
            !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty())
        });
        if let Some(Value::Object(meta)) = object.get_mut(&["metadata"]) {
            meta.retain(|_, value| !value.is_null());
        }
        self.object = Some(object);
        Ok(self)
    }

    fn apply(&mut self, name: &str, applied: Value) -> &mut Self {
        self.try_apply(name, &applied, false).unwrap()
    }

    fn force(&mut self, name: &str, applied: Value) -> &mut Self {
        self.try_apply(name, &applied, true).unwrap()
    }

    fn conflicts(&mut self, name: &str, applied: Value) -> Vec<(String, String)> {
        match self.try_apply(name, &applied, false).map(drop) {
            Err(ApplyError::Conflicts(conflicts, _)) => conflicts,
            other => panic!("expected conflicts, got {other:?}"),
        }
    }

    fn get(&self, path: &[&str]) -> Value {
        self.object.as_ref().unwrap().get(path).cloned().unwrap_or(Value::Null)
    }

    /// `manager operation` -> fields, with `!` for entries without a time.
    fn owners(&self) -> Value {
        let entries = self.get(&["metadata", "managedFields"]);
        let mut out = Map::new();
        for entry in entries.as_array().into_iter().flatten() {
            let mark = if entry.get("time").is_none() { "!" } else { "" };
            let sub = entry
                .get("subresource")
                .map_or(String::new(), |sub| format!("/{}", sub.as_str().unwrap()));
            out.insert(
                format!(
                    "{} {}{sub}{mark}",
                    entry["manager"].as_str().unwrap(),
                    entry["operation"].as_str().unwrap()
                ),
                entry["fieldsV1"].clone(),
            );
        }
        Value::Object(out)
    }
}

fn config(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

/// A value that is owned as a whole includes the fields that are always written.
#[test]
fn an_atomic_value_is_another_one_without_a_field_that_is_always_written() {
    let mut fixture = ApplyFixture::of(crate::testing::schema("io.k8s.api.rbac.v1.RoleBinding"));
    let binding = |role: Value| json!({"metadata": {"name": "a"}, "roleRef": role});
    let whole = json!({"apiGroup": "", "kind": "Role", "name": "r"});
    fixture.update("m", binding(whole.clone()));
    let found = fixture.conflicts("n", binding(json!({"kind": "Role", "name": "r"})));
    assert_eq!(found.iter().map(|(_, path)| path.as_str()).collect::<Vec<_>>(), [".roleRef"]);
    fixture.apply("n", binding(whole));
}

#[test]
fn a_raw_extension_has_one_owner() {
    let schema = crate::testing::schema("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent");
    let mut fixture = ApplyFixture::of(schema);
    let event = |object: Value| json!({"type": "t", "object": object});
    fixture.apply("a", event(json!({"a": {"b": 1}, "c": 1})));
    assert_eq!(
        fixture.conflicts("b", event(json!({"a": {"b": 2}}))),
        [(r#""a""#.to_owned(), ".object".to_owned())]
    );
    // The whole value is replaced.
    fixture.force("b", event(json!({"a": {"b": 2}})));
    let object = fixture.object.as_ref().expect("applied").get(&["object"]);
    assert_eq!(object, Some(&json!({"a": {"b": 2}})));
}

#[test]
fn create_by_update_and_by_apply() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.update("parity", config(json!({"k": "v"})));
    assert_eq!(fixture.owners(), json!({"parity Update": {"f:data": {".": {}, "f:k": {}}}}));
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.apply("m1", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"k": "v"}}));
    assert_eq!(
        fixture.owners(),
        json!({"m1 Apply": {"f:data": {"f:k": {}}, "f:metadata": {"f:labels": {"f:l": {}}}}})
    );
}

#[test]
fn a_null_in_metadata_is_a_change() {
    for (metadata, owner) in [
        (json!({"name": "a"}), "m Apply!"),
        (json!({"name": "a", "creationTimestamp": null}), "m Apply"),
        (json!({"name": "a", "uid": null}), "m Apply"),
        (json!({"name": "a", "managedFields": null}), "m Apply"),
    ] {
        let mut fixture = ApplyFixture::new("ConfigMap");
        let mut applied = config(json!({"k": "v"}));
        fixture.update("one", applied.clone());
        applied["metadata"] = metadata;
        let owners = fixture.apply("m", applied).owners();
        assert!(owners.get(owner).is_some(), "{owners}");
    }
}

#[test]
fn an_apply_without_a_name_keeps_the_name() {
    for metadata in [json!({}), json!(null), json!({"managedFields": null}), json!({"uid": null})] {
        let mut fixture = ApplyFixture::new("ConfigMap");
        fixture.update("one", config(json!({"k": "v"})));
        let mut applied = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        applied["metadata"] = json!({"annotations": {"a": "b"}});
        fixture.apply("m", applied.clone());
        applied["metadata"] = metadata.clone();
        fixture.apply("m", applied);
        assert_eq!(fixture.get(&["metadata", "name"]), "a", "{metadata}");
        assert_eq!(fixture.get(&["metadata", "annotations", "a"]), Value::Null, "{metadata}");
        assert_eq!(fixture.owners().as_object().map(Map::len), Some(1), "{metadata}");
    }
}

#[test]
fn conflicts_force_and_shared_ownership() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.update("parity", config(json!({"k": "v"})));
    assert_eq!(
        fixture.conflicts("m1", config(json!({"k": "w"}))),
        [("\"parity\" using v1".to_owned(), ".data.k".to_owned())]
    );
    fixture.apply("m1", config(json!({"k": "v"})));
    assert_eq!(
        fixture.owners(),
        json!({"m1 Apply!": {"f:data": {"f:k": {}}}, "parity Update": {"f:data": {".": {}, "f:k": {}}}})
    );
    fixture.force("m1", config(json!({"k": "w"})));
    assert_eq!(
        fixture.owners(),
        json!({"m1 Apply": {"f:data": {"f:k": {}}}, "parity Update": {"f:data": {}}})
    );
    assert_eq!(fixture.get(&["data", "k"]), "w");
}

#[test]
fn withdrawn_fields_are_removed_unless_others_own_them() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.apply("m1", config(json!({"k": "v"}))).apply("m2", config(json!({"k": "v"})));
    fixture.apply("m1", config(json!({})));
    assert_eq!(
        fixture.owners(),
        json!({"m1 Apply": {"f:data": {}}, "m2 Apply!": {"f:data": {"f:k": {}}}})
    );
    assert_eq!(fixture.get(&["data"]), json!({"k": "v"}));
    fixture.apply("m2", config(json!({})));
    assert_eq!(fixture.owners(), json!({"m1 Apply": {"f:data": {}}, "m2 Apply": {"f:data": {}}}));
    assert_eq!(fixture.get(&["data"]), Value::Null);
    let bare = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    fixture.apply("m1", bare.clone()).apply("m2", bare);
    assert_eq!(fixture.get(&["metadata", "managedFields"]), Value::Null);
}

#[test]
fn unowned_fields_stay() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.apply("m1", config(json!({"k": "v", "x": "y"})));
    fixture.object.as_mut().unwrap().set(&["data", "webhook"], "added");
    fixture.apply("m1", config(json!({"k": "v"})));
    assert_eq!(fixture.get(&["data"]), json!({"k": "v", "webhook": "added"}));
    // As in kube-apiserver, withdrawing a whole field removes the unowned fields in it, but not
    // those of an updater.
    fixture.patch("editor", |object| object.set(&["data", "e"], "1"));
    fixture
        .apply("m1", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    assert_eq!(fixture.get(&["data"]), json!({"e": "1", "webhook": "added"}));
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.apply("m1", config(json!({"k": "v"})));
    fixture.object.as_mut().unwrap().set(&["data", "webhook"], "added");
    fixture
        .apply("m1", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    assert_eq!(fixture.get(&["data"]), Value::Null);
}

#[test]
fn an_update_takes_ownership() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture
        .apply("m1", config(json!({"k": "v"})))
        .patch("editor", |object| object.set(&["data", "k"], "w"));
    assert_eq!(fixture.owners(), json!({"editor Update": {"f:data": {"f:k": {}}}}));
    fixture.conflicts("m1", config(json!({"k": "v"})));
    fixture.force("m1", config(json!({"k": "v"})));
    assert_eq!(fixture.owners(), json!({"m1 Apply": {"f:data": {"f:k": {}}}}));
}

#[test]
fn sets_are_shared() {
    let applied = |finalizers: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture
        .apply("m1", applied(json!(["example.com/a"])))
        .apply("m2", applied(json!(["example.com/b", "example.com/a"])));
    assert_eq!(fixture.get(&["metadata", "finalizers"]), json!(["example.com/b", "example.com/a"]));
    assert_eq!(
        fixture.owners()["m1 Apply"],
        json!({"f:metadata": {"f:finalizers": {"v:\"example.com/a\"": {}}}})
    );
    fixture
        .apply("m1", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    assert_eq!(fixture.get(&["metadata", "finalizers"]), json!(["example.com/b", "example.com/a"]));
    fixture
        .apply("m2", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    assert_eq!(fixture.get(&["metadata"]), json!({"name": "a"}));
}

#[test]
fn keyed_lists_are_owned_by_item() {
    let applied = |names: &[&str]| {
        let secrets: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}, "secrets": secrets})
    };
    let mut fixture = ApplyFixture::new("ServiceAccount");
    fixture.apply("m1", applied(&["a"])).apply("m2", applied(&["b"]));
    assert_eq!(fixture.owners()["m1 Apply"], json!({"f:secrets": {"k:{\"name\":\"a\"}": {}}}));
    assert_eq!(fixture.get(&["secrets"]), json!([{"name": "a"}, {"name": "b"}]));
    fixture.apply(
        "m1",
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}}),
    );
    assert_eq!(fixture.get(&["secrets"]), json!([{"name": "b"}]));
    assert!(matches!(
        fixture.try_apply("m1", &applied(&["x", "x"]), false),
        Err(ApplyError::Malformed(_))
    ));
    let pull = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}, "imagePullSecrets": [{"name": "x"}, {"name": "x"}]});
    fixture.apply("m3", pull);
    assert_eq!(fixture.owners()["m3 Apply"], json!({"f:imagePullSecrets": {}}));
}

#[test]
fn malformed_configurations_are_refused() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    for (applied, word) in [
        (config(json!({"k": 5})), ".data.k"),
        (json!({"metadata": {"name": "a"}, "nope": 1}), ".nope: field not declared in schema"),
        (json!({"metadata": {"name": "a", "finalizers": ["x/a", "x/a"]}}), "duplicate"),
        (json!({"metadata": 1}), ".metadata: expected map, got &{1}"),
        (
            json!({"metadata": {"name": {"": ""}}}),
            ".metadata.name: expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"\":\"\"}}",
        ),
        (
            json!({"data": {"k": 1}, "nope": 1}),
            "errors:\n  .data.k: expected string, got &value.valueUnstructured{Value:1}\n  .nope: field not declared in schema",
        ),
        (
            json!({"metadata": {"ownerReferences": [{"uid": "u"}, {"uid": "u"}]}}),
            ".metadata.ownerReferences: duplicate entries for key [uid=\"u\"]",
        ),
        // In Go, integers of more than 63 bits are floats.
        (
            json!({"metadata": {"ownerReferences": [{"uid": 12345678901234567890_u64}]}}),
            ".metadata.ownerReferences[uid=1.2345678901234567e+19].uid: expected string, got",
        ),
        (
            json!({"metadata": {"finalizers": [9223372036854775808_u64]}}),
            ".metadata.finalizers[=9.223372036854776e+18]: expected string, got",
        ),
        (
            json!({"metadata": {"ownerReferences": [1]}}),
            ".metadata.ownerReferences: element 0: associative list with keys may not have non-map elements",
        ),
    ] {
        match fixture.try_apply("m", &applied, true).map(drop) {
            Err(ApplyError::Malformed(why)) => assert!(why.contains(word), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let given = json!({"metadata": {"name": "a", "managedFields": []}});
    assert!(matches!(fixture.try_apply("m", &given, true), Err(ApplyError::ManagedFieldsGiven)));
}

#[test]
fn an_int_or_string_of_a_native_kind_may_be_anything_and_a_quantity_any_scalar() {
    for (format, fits) in [("int-or-string", true), ("quantity", false)] {
        let schema = Schema {
            kind: Kind::IntOrString,
            format: Some(format.into()),
            native: true,
            ..Schema::default()
        };
        let mut whole = Schema { kind: Kind::Object, native: true, ..Schema::default() };
        whole.properties.insert("n".into(), Property::new(schema, false));
        let checked =
            |value: Value| conform::check(&whole, document(json!({ "n": value })).fields());
        assert_eq!(checked(json!(true)), Ok(()));
        assert_eq!(checked(json!({})).is_ok(), fits, "{format}");
        assert_eq!(checked(json!([1])).is_ok(), fits, "{format}");
    }
}

#[test]
fn malformed_managed_fields_entries_are_dropped() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    let given = json!({"metadata": {"name": "a", "managedFields": [null]}});
    let applied = fixture.try_apply("m", &given, true).expect("applies");
    let object = applied.object.as_ref().expect("it was made");
    assert_eq!(object.get(&["metadata", "managedFields"]), None);
}

#[test]
fn always_written_fields_are_compared_with_the_empty_object() {
    let mut fixture = ApplyFixture::new("Event");
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e1"}, "involvedObject": {"kind": "ConfigMap", "name": "a"}, "reason": "Tested",
        "type": "Normal", "count": 1, "source": {"component": "parity"}, "firstTimestamp": "2024-01-02T03:04:05Z", "lastTimestamp": "2024-01-02T03:04:05Z"
    });
    fixture.update("parity", event.clone());
    let expected = json!({
        "f:count": {}, "f:firstTimestamp": {}, "f:involvedObject": {}, "f:lastTimestamp": {}, "f:reason": {}, "f:source": {"f:component": {}}, "f:type": {}
    });
    assert_eq!(fixture.owners(), json!({"parity Update": expected}));
    // The result does not depend on whether the object was completed.
    let mut completed = event;
    completed["eventTime"] = Value::Null;
    completed["reportingComponent"] = json!("");
    completed["reportingInstance"] = json!("");
    fixture.object = None;
    fixture.update("parity", completed);
    assert_eq!(fixture.owners(), json!({"parity Update": expected}));
}

#[test]
fn status_writes_have_their_own_entry() {
    let mut fixture = ApplyFixture::new("Namespace");
    fixture.update(
        "parity",
        json!({"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}}),
    );
    fixture.patch("parity", |object| object.set(&["status", "phase"], "Active"));
    assert_eq!(
        fixture.owners(),
        json!({"parity Update": {"f:metadata": {"f:labels": {".": {}, "f:kubernetes.io/metadata.name": {}}}}})
    );
    let mut new = fixture.object.clone().unwrap();
    new.set(&["status", "conditions"], json!([{"type": "T", "status": "True"}]));
    let status =
        Manager { subresource: "status".to_owned(), ..manager("parity", ManagerOperation::Update) };
    let reset = ResetFields::of_paths(&["spec"]);
    track_update(&fixture.schema, &reset, fixture.object.as_ref(), &mut new, &status);
    fixture.object = Some(new);
    let condition = json!({".": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}});
    assert_eq!(
        fixture.owners()["parity Update/status"],
        json!({"f:status": {"f:conditions": {".": {}, "k:{\"type\":\"T\"}": condition}}})
    );
}

#[test]
fn reset_fields_have_no_owner() {
    let mut fixture = ApplyFixture::new("ResourceQuota");
    fixture
        .update("parity", json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/x": "3"}}}));
    fixture.apply("m1", json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/y": "5"}}, "status": {"hard": {"pods": "9"}}}));
    assert_eq!(fixture.owners()["m1 Apply"], json!({"f:spec": {"f:hard": {"f:count/y": {}}}}));
}

#[test]
fn names_of_reset_fields_have_dots_and_paths_are_split() {
    let (names, paths) =
        (ResetFields::of_names(["a.b".to_owned()]), ResetFields::of_paths(&["a.b", "c"]));
    assert!(names.has("a.b") && !names.has("a"));
    assert!(paths.has("c") && !paths.has("a.b"));
    let seen = |reset: &ResetFields| {
        let mut seen = Vec::new();
        reset.for_each(|path| seen.push(path.join("/")));
        seen
    };
    assert_eq!(seen(&names), ["a.b"]);
    assert_eq!(seen(&paths), ["a/b", "c"]);
}

#[test]
fn one_empty_entry_ends_tracking() {
    for empty in [json!([{}]), json!([null])] {
        let mut fixture = ApplyFixture::new("ConfigMap");
        fixture.update("parity", config(json!({"k": "v"})));
        fixture.patch("parity", |object| object.set(&["metadata", "managedFields"], empty));
        assert_eq!(fixture.owners(), json!({}));
    }
}

#[test]
fn clients_may_edit_and_reset_managed_fields() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.update("parity", config(json!({"k": "v"})));
    let parity = fixture.owners();
    let entry = |operation: &str, fields_type: &str| json!([{"manager": "x", "operation": operation, "apiVersion": "v1", "fieldsType": fields_type, "fieldsV1": {"f:data": {"f:k": {}}}}]);
    let set = |fixture: &mut ApplyFixture, value: Value| {
        fixture.patch("parity", |object| object.set(&["metadata", "managedFields"], value));
    };
    set(&mut fixture, entry("Fly", "FieldsV1"));
    assert_eq!(fixture.owners(), parity);
    set(&mut fixture, entry("Update", "FieldsV1"));
    assert_eq!(fixture.owners(), json!({"x Update!": {"f:data": {"f:k": {}}}}));
    for junk in [
        entry("Update", "FieldsV9"),
        Value::Null,
        json!([{"manager": "y"}]),
        json!("x"),
        json!([{"operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"nonsense": {"f:": []}}}]),
    ] {
        set(&mut fixture, junk);
        assert_eq!(fixture.owners(), json!({"x Update!": {"f:data": {"f:k": {}}}}));
    }
    set(&mut fixture, json!([]));
    assert_eq!(fixture.owners(), json!({}));
    // From here on nothing is tracked until the next apply.
    fixture.patch("after", |object| object.set(&["data", "k"], "w"));
    assert_eq!(fixture.owners(), json!({}));
    assert_eq!(
        fixture.conflicts("m1", config(json!({"k": "z"}))),
        [("\"before-first-apply\" using v1".to_owned(), ".data.k".to_owned())]
    );
    fixture.apply("m1", config(json!({"n": "1"})));
    assert_eq!(
        fixture.owners()["before-first-apply Update"],
        json!({"f:data": {".": {}, "f:k": {}}})
    );
    set(&mut fixture, json!([{}]));
    assert_eq!(fixture.owners(), json!({}));
}

#[test]
fn old_updaters_are_merged() {
    let mut fixture = ApplyFixture::new("ConfigMap");
    let many: Vec<Value> = (0..500)
        .map(|number| json!({"manager": format!("m{number}"), "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {format!("f:k{number}"): {}}}}))
        .collect();
    fixture.update(
        "parity",
        json!({"metadata": {"name": "a", "managedFields": many}, "data": {"k": "v"}}),
    );
    let owners = fixture.owners();
    assert_eq!(owners.as_object().unwrap().len(), 10);
    assert_eq!(owners["parity Update"], json!({"f:data": {".": {}, "f:k": {}}}));
    assert_eq!(owners["ancient-changes Update!"]["f:data"].as_object().unwrap().len(), 492);
    assert_eq!(fixture.conflicts("m1", config(json!({"k": "w"}))).len(), 1);
}

#[test]
fn kubectl_moves_from_client_side_apply() {
    const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let text = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{},"name":"a"},"data":{"k":"v","x":"y"}}"#;
    let mut fixture = ApplyFixture::new("ConfigMap");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "annotations": {ANNOTATION: text}}, "data": {"k": "v", "x": "y"}});
    fixture.update("kubectl-client-side-apply", object);
    assert_eq!(fixture.conflicts("m1", config(json!({"k": "w"}))).len(), 1);
    fixture.apply("kubectl", config(json!({"k": "w"})));
    let annotations = json!({".": {}, format!("f:{ANNOTATION}"): {}});
    let expected = json!({"kubectl Apply": {"f:data": {"f:k": {}}}, "kubectl-client-side-apply Update": {"f:data": {".": {}, "f:x": {}}, "f:metadata": {"f:annotations": annotations}}});
    assert_eq!(fixture.owners(), expected);
    let written = "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"w\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}\n";
    assert_eq!(fixture.get(&["metadata", "annotations", ANNOTATION]), written);
    // A change since the client-side apply is still a conflict.
    fixture.patch("editor", |object| object.set(&["data", "k"], "edited"));
    assert_eq!(fixture.conflicts("kubectl", config(json!({"k": "q"}))).len(), 1);
}

#[test]
fn trace_annotations_have_no_owner() {
    let trace = json!({"trace.kubernetes.io/trace-id": "t", "trace.kubernetes.io/span-id": "s", "trace.kubernetes.io/initial-trace-id": "i"});
    let mut fixture = ApplyFixture::new("ConfigMap");
    fixture.update("parity", config(json!({"k": "v"})));
    let owners = fixture.owners();
    // Stamped after tracking, as in the pipeline.
    fixture.object.as_mut().unwrap().set(&["metadata", "annotations"], trace.clone());
    // A PUT without them, one with other values, then a patch that keeps them.
    let managed = fixture.get(&["metadata", "managedFields"]);
    fixture.patch("other", |object| drop(object.remove(&["metadata", "annotations"])));
    assert_eq!(fixture.owners(), owners);
    fixture.patch("other", |object| object.set(&["metadata", "annotations"], trace.clone()));
    assert_eq!(fixture.get(&["metadata", "managedFields"]), managed);
    let applied = json!({"metadata": {"name": "a", "annotations": {"trace.kubernetes.io/trace-id": "mine", "n": "1"}}});
    fixture.apply("m1", applied);
    assert_eq!(fixture.owners()["m1 Apply"], json!({"f:metadata": {"f:annotations": {"f:n": {}}}}));
    assert_eq!(fixture.get(&["metadata", "annotations", "trace.kubernetes.io/trace-id"]), "t");
    fixture.apply(
        "m2",
        json!({"metadata": {"name": "a", "annotations": {"trace.kubernetes.io/trace-id": "mine"}}}),
    );
    assert!(fixture.owners().get("m2 Apply").is_none());
}

/// A custom resource with keyed lists like a pod's.
fn custom() -> std::sync::Arc<Schema> {
    let leaf = |kind| Schema { kind, ..Schema::default() };
    let object = |fields: Vec<(&str, Schema)>| Schema {
        kind: Kind::Object,
        properties: fields
            .into_iter()
            .map(|(name, schema)| (name.into(), Property::new(schema, false)))
            .collect(),
        ..Schema::default()
    };
    let list = |items: Schema, list_type| Schema {
        kind: Kind::Array,
        items: Some(items.into()),
        list_type,
        ..Schema::default()
    };
    let protocol = Schema { default: Some(json!("TCP")), ..leaf(Kind::String) };
    let port = object(vec![
        ("port", leaf(Kind::Integer)),
        ("protocol", protocol),
        ("name", leaf(Kind::String)),
    ]);
    let keys = ListType::Map(vec!["port".to_owned(), "protocol".to_owned()]);
    let container = object(vec![
        ("name", leaf(Kind::String)),
        ("image", leaf(Kind::String)),
        ("ports", list(port, keys)),
    ]);
    let spec = object(vec![
        ("containers", list(container, ListType::Map(vec!["name".to_owned()]))),
        ("free", Schema { preserve_unknown: true, ..leaf(Kind::Object) }),
        ("numbers", list(leaf(Kind::Integer), ListType::Set)),
        ("atomic", list(leaf(Kind::String), ListType::Atomic)),
        ("map", Schema { additional: Some(leaf(Kind::String).into()), ..leaf(Kind::Object) }),
    ]);
    let mut root = object(vec![("spec", spec)]);
    root.properties.insert(
        "metadata".into(),
        Property::new(schema("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"), false),
    );
    std::sync::Arc::new(root)
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn nested_keyed_lists_with_defaulted_keys() {
    let mut fixture = ApplyFixture::of(custom());
    let spec = json!({"containers": [{"name": "a", "image": "i", "ports": [{"port": 80}, {"port": 80, "protocol": "UDP"}]}]});
    fixture.apply("m1", thing(spec));
    let tcp = json!({".": {}, "f:port": {}});
    let udp = json!({".": {}, "f:port": {}, "f:protocol": {}});
    let ports = json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": tcp, "k:{\"port\":80,\"protocol\":\"UDP\"}": udp});
    let container = json!({".": {}, "f:image": {}, "f:name": {}, "f:ports": ports});
    assert_eq!(
        fixture.owners(),
        json!({"m1 Apply": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": container}}}})
    );
    let conflicts =
        fixture.conflicts("m2", thing(json!({"containers": [{"name": "a", "image": "j"}]})));
    assert_eq!(conflicts, [("\"m1\"".to_owned(), ".spec.containers[name=\"a\"].image".to_owned())]);
    fixture.apply("m2", thing(json!({"containers": [{"name": "b", "image": "j"}, {"name": "a", "ports": [{"port": 81, "name": "x"}]}]})));
    assert_eq!(fixture.get(&["spec", "containers"])[1]["ports"].as_array().unwrap().len(), 3);
    fixture.apply("m1", thing(json!({"containers": [{"name": "a", "image": "i"}]})));
    let containers = fixture.get(&["spec", "containers"]);
    assert_eq!(
        containers,
        json!([{"name": "b", "image": "j"}, {"name": "a", "image": "i", "ports": [{"port": 81, "name": "x"}]}])
    );
}

#[test]
fn atomics_free_form_and_sets() {
    let mut fixture = ApplyFixture::of(custom());
    fixture.apply(
        "m1",
        thing(json!({"atomic": ["a", "b"], "free": {"x": {"y": 1}, "l": [1]}, "numbers": [1, 2]})),
    );
    let expected = json!({"f:atomic": {}, "f:free": {"f:x": {".": {}, "f:y": {}}, "f:l": {}}, "f:numbers": {"v:1": {}, "v:2": {}}});
    assert_eq!(fixture.owners()["m1 Apply"]["f:spec"], expected);
    let conflicts = fixture
        .conflicts("m2", thing(json!({"atomic": ["a"], "numbers": [3], "free": {"x": {"y": 2}}})));
    assert_eq!(
        conflicts.iter().map(|(_, path)| path.as_str()).collect::<Vec<_>>(),
        [".spec.atomic", ".spec.free.x.y"]
    );
    fixture.apply("m1", thing(json!({"numbers": [2]})));
    assert_eq!(fixture.get(&["spec"]), json!({"numbers": [2]}));
}

fn any_spec() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c"], 0..3).prop_shuffle();
    let numbers = proptest::sample::subsequence(vec![1, 2, 3], 0..3).prop_shuffle();
    let words = || proptest::sample::select(vec!["x", "y"]);
    (names(), words(), numbers, proptest::option::of(words()), names(), words(), 0..2_u8).prop_map(
        |(names, image, numbers, atomic, keys, text, free)| {
            let containers: Vec<Value> =
                names.iter().map(|name| json!({"name": name, "image": image})).collect();
            let map: Map = keys.into_iter().map(|key| (key.to_owned(), json!(text))).collect();
            let mut spec = json!({"containers": containers, "numbers": numbers, "map": map});
            if let Some(atomic) = atomic {
                spec["atomic"] = json!([atomic]);
            }
            if free == 1 {
                spec["free"] = json!({"n": {"m": text}, "s": text});
            }
            spec
        },
    )
}

fn garbage() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from)
    ];
    let keys = proptest::sample::select(vec![
        "spec",
        "metadata",
        "managedFields",
        "containers",
        "name",
        "image",
        "ports",
        "port",
        "free",
        "numbers",
        "atomic",
        "map",
        "operation",
        "apiVersion",
        "fieldsType",
        "fieldsV1",
        "f:spec",
        "f:containers",
        "k:{\"name\":\"a\"}",
        "v:1",
        ".",
        "finalizers",
        "annotations",
        "labels",
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((keys.clone(), inner), 0..6).prop_map(
                |fields| Value::Object(
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
                )
            ),
        ]
    })
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(base in any_spec(), spec in any_spec()) {
        let mut fixture = ApplyFixture::of(custom());
        fixture.update("base", thing(base)).force("m1", thing(spec.clone()));
        let once = fixture.object.clone();
        fixture.apply("m1", thing(spec));
        prop_assert_eq!(&fixture.object, &once);
    }

    #[test]
    fn withdrawing_restores_the_object(base in any_spec(), names in proptest::sample::subsequence(vec!["p", "q", "r"], 1..3)) {
        let mut fixture = ApplyFixture::of(custom());
        fixture.apply("base", thing(base));
        let before = fixture.object.clone();
        // Fields that only this manager sets, in lists and maps that others use, too.
        let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
        let map: Map = names.iter().map(|name| ((*name).to_owned(), json!("1"))).collect();
        fixture.apply("m1", thing(json!({"containers": containers, "map": map, "numbers": [7]})));
        fixture.apply("m1", json!({"metadata": {"name": "a"}}));
        let clean = |object: Option<Document>| {
            let mut object = object.unwrap();
            if let Some(Value::Object(spec)) = object.get_mut(&["spec"]) {
                spec.retain(|_, value| !matches!(value, Value::Null) && value.as_array().is_none_or(|list| !list.is_empty()) && value.as_object().is_none_or(|map| !map.is_empty()));
                if spec.is_empty() {
                    object.remove(&["spec"]);
                }
            }
            object
        };
        prop_assert_eq!(clean(fixture.object), clean(before));
    }

    #[test]
    fn applied_values_are_set_and_owned(base in any_spec(), spec in any_spec()) {
        let mut fixture = ApplyFixture::of(custom());
        fixture.apply("base", thing(base)).force("m1", thing(spec.clone()));
        for container in spec["containers"].as_array().unwrap() {
            prop_assert!(fixture.get(&["spec", "containers"]).as_array().unwrap().contains(container));
        }
        for (key, value) in spec["map"].as_object().unwrap() {
            prop_assert_eq!(&fixture.get(&["spec", "map", key]), value);
        }
        let config = fields::of(&fixture.schema, thing(spec).as_object().unwrap(), &Skipped::of(&fixture.reset, true).root());
        let owners = fixture.owners();
        let owned = owners.get("m1 Apply").or(owners.get("m1 Apply!")).and_then(Value::as_object).cloned().unwrap_or_default();
        prop_assert_eq!(config, owned);
    }

    #[test]
    fn no_garbage_panics(old in garbage(), new in garbage(), applied in garbage()) {
        if let (Value::Object(old), Value::Object(new), Value::Object(applied)) = (old, new, applied) {
            let (schema, reset) = (custom(), ResetFields::default());
            let (old, mut new, applied) = (Document::from(old), Document::from(new), Document::from(applied));
            let _ = apply(&schema, &reset, Some(&old), &applied, &manager("m", ManagerOperation::Apply), true);
            track_update(&schema, &reset, Some(&old), &mut new, &manager("m", ManagerOperation::Update));
            track_update(&schema, &reset, None, &mut new, &manager("m", ManagerOperation::Update));
        }
    }
}
