//! The schema cases of parity area `crd`.

use super::*;
use crate::testing::{document, schema};
use crate::validate::{check_embedded, default, prune, validate, validate_status, validate_update};
use ferrokube_apimachinery::document::json;
use ferrokube_apimachinery::field::FieldReason;
use proptest::prelude::*;

fn load(given: &Value) -> Result<Schema, Vec<FieldError>> {
    let metadata = Some(schema("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    from_json_schema(
        given,
        &SchemaContext { path: "P", name: Some("com.example.v1.Thing".into()), metadata },
    )
}

fn of_spec(spec: Value) -> Schema {
    load(&json!({"type": "object", "properties": {"spec": spec}})).unwrap()
}

fn refused(given: &Value) -> Vec<(FieldReason, String)> {
    load(given).unwrap_err().into_iter().map(|error| (error.reason, error.field)).collect()
}

fn property(a: Value) -> Vec<(FieldReason, String)> {
    refused(&json!({"type": "object", "properties": {"a": a}}))
}

fn errors(schema: &Schema, spec: Value) -> Vec<(FieldReason, String)> {
    let object = document(
        json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec}),
    );
    let mut out: Vec<_> =
        validate(schema, &object).into_iter().map(|error| (error.reason, error.field)).collect();
    out.sort();
    out.dedup();
    out
}

fn one(reason: FieldReason, field: &str) -> Vec<(FieldReason, String)> {
    vec![(reason, field.to_owned())]
}

#[test]
fn values_are_checked_with_one_cause_each() {
    let schema = of_spec(json!({"type": "object", "required": ["r"], "properties": {
        "e": {"type": "string", "enum": ["a", "b"]}, "p": {"type": "string", "pattern": "^x+$"}, "n": {"type": "integer", "minimum": 1, "maximum": 5},
        "x": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 0.5}, "s": {"type": "string", "minLength": 2, "maxLength": 3},
        "l": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "m": {"type": "object", "maxProperties": 1, "minProperties": 1, "additionalProperties": {"type": "string"}},
        "r": {"type": "string"}, "b": {"type": "boolean"}
    }}));
    let check = |mut extra: Value| {
        extra.as_object_mut().unwrap().entry("r").or_insert(json!("x"));
        errors(&schema, extra)
    };
    assert_eq!(errors(&schema, json!({})), one(FieldReason::Required, "spec.r"));
    assert_eq!(check(json!({})), []);
    assert_eq!(check(json!({"e": "c"})), one(FieldReason::NotSupported, "spec.e"));
    for bad in [
        json!({"p": "y"}),
        json!({"n": 0}),
        json!({"n": 6}),
        json!({"x": 0}),
        json!({"x": 0.7}),
        json!({"s": "a"}),
        json!({"l": []}),
        json!({"m": {}}),
    ] {
        let field = format!("spec.{}", bad.as_object().unwrap().keys().next().unwrap());
        assert_eq!(check(bad), one(FieldReason::Invalid, &field));
    }
    assert_eq!(check(json!({"s": "abcd"})), one(FieldReason::TooLong, "spec.s"));
    assert_eq!(check(json!({"s": "\u{e9}\u{e9}\u{e9}"})), []);
    assert_eq!(check(json!({"l": ["a", "b", "c"]})), one(FieldReason::TooMany, "spec.l"));
    assert_eq!(check(json!({"m": {"a": "1", "b": "2"}})), one(FieldReason::TooMany, "spec.m"));
    let types =
        ["spec.b", "spec.n", "spec.r"].map(|field| (FieldReason::TypeInvalid, field.to_owned()));
    assert_eq!(check(json!({"r": 1, "n": "1", "b": "true"})), types);
    assert_eq!(
        check(json!({"n": 1.5})),
        [
            (FieldReason::Invalid, "<nil>".to_owned()),
            (FieldReason::TypeInvalid, "spec.n".to_owned())
        ]
    );
    assert_eq!(check(json!({"n": 2.0})), []);
    assert_eq!(errors(&schema, json!("str")), one(FieldReason::TypeInvalid, "spec"));
}

#[test]
fn compositions_add_checks() {
    let schema = of_spec(
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "n": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"properties": {"n": {"enum": [13]}}, "required": ["n"]},
        "anyOf": [{"properties": {"n": {"minimum": 10}}}, {"properties": {"n": {"maximum": 5}}}]}),
    );
    assert_eq!(errors(&schema, json!({"a": "1"})), []);
    assert_eq!(errors(&schema, json!({"a": "1", "b": "2"})), one(FieldReason::Invalid, "<nil>"));
    assert_eq!(
        errors(&schema, json!({})),
        [(FieldReason::Required, "spec.a".to_owned()), (FieldReason::Invalid, "<nil>".to_owned())]
    );
    assert_eq!(
        errors(&schema, json!({"a": "1", "n": 7})),
        [(FieldReason::Invalid, "<nil>".to_owned()), (FieldReason::Invalid, "spec.n".to_owned())]
    );
    assert_eq!(errors(&schema, json!({"a": "1", "n": 13})), one(FieldReason::Invalid, "<nil>"));
}

#[test]
fn nulls_stay_only_where_allowed() {
    let schema = of_spec(
        json!({"type": "object", "properties": {"n": {"type": "string", "nullable": true}, "s": {"type": "string"}, "d": {"type": "string", "default": "x"}}}),
    );
    let mut object = document(json!({"spec": {"n": null, "s": null, "d": null}}));
    default(&schema, &mut object);
    assert_eq!(object.get(&["spec"]), Some(&json!({"n": null, "s": null, "d": "x"})));
    let found: Vec<_> =
        validate(&schema, &object).into_iter().map(|error| (error.reason, error.field)).collect();
    assert_eq!(found, one(FieldReason::TypeInvalid, "spec.s"), "what an apply leaves");
    assert!(prune(&schema, &mut object).is_empty());
    assert_eq!(object.get(&["spec"]), Some(&json!({"n": null, "d": "x"})), "what a body leaves");
    assert_eq!(validate(&schema, &object), []);
}

#[test]
fn lists_refuse_duplicates() {
    let schema = of_spec(
        json!({"type": "object", "properties": {"s": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "m": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}, "required": ["k"]},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}}}),
    );
    assert_eq!(errors(&schema, json!({"s": ["x", "x"]})), one(FieldReason::Duplicate, "spec.s[1]"));
    assert_eq!(
        errors(&schema, json!({"m": [{"k": "1"}, {"k": "1"}]})),
        one(FieldReason::Duplicate, "spec.m[1]")
    );
    assert_eq!(
        errors(&schema, json!({"m": [{"v": "nokey"}]})),
        one(FieldReason::Required, "spec.m[0].k")
    );
    assert_eq!(errors(&schema, json!({"s": ["x", "y"], "m": [{"k": "1"}, {"k": "2"}]})), []);
}

#[test]
fn duplicate_items_are_reported_once_by_key() {
    let list =
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let schema = of_spec(
        json!({"type": "object", "properties": {"m": {"type": "object", "additionalProperties": list}, "s": list}}),
    );
    assert_eq!(
        errors(&schema, json!({"m": {"k": ["a", "a", "a"]}})),
        one(FieldReason::Duplicate, "spec.m[k][1]")
    );
    // An object that had duplicates may have others.
    let object = |spec: Value| document(json!({"metadata": {"name": "a"}, "spec": spec}));
    let old = object(json!({"s": ["a", "a"]}));
    assert_eq!(validate_update(&schema, Some(&old), &object(json!({"s": ["b", "b"]}))), []);
    assert_eq!(
        validate_update(&schema, Some(&object(json!({}))), &object(json!({"s": ["b", "b"]}))).len(),
        1
    );
}

#[test]
fn a_status_write_validates_only_the_status() {
    let schema = load(&json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "string"}, "status": {"type": "integer"}}})).unwrap();
    let [old, fits, fails] =
        [json!({}), json!({"status": 1}), json!({"status": "x"})].map(document);
    assert_eq!(validate_status(&schema, &old, &fits), []);
    assert_eq!(validate_status(&schema, &old, &fails)[0].field, "status");
    assert_eq!(validate_update(&schema, Some(&old), &fits)[0].field, "spec");
}

#[test]
fn fields_in_maps_of_any_type_are_unknown() {
    let schema = of_spec(json!({"type": "object", "properties": {
        "m": {"type": "object", "additionalProperties": true}, "c": {"type": "object", "additionalProperties": false}
    }}));
    let mut object =
        document(json!({"spec": {"m": {"s": "x", "o": {"in": 1}, "l": [{"in": 1}], "n": null}}}));
    assert_eq!(prune(&schema, &mut object), ["spec.m.l[0].in", "spec.m.o.in"]);
    default(&schema, &mut object);
    assert_eq!(object.get(&["spec", "m"]), Some(&json!({"s": "x", "o": {}, "l": [{}], "n": null})));
    assert_eq!(errors(&schema, json!({"m": {"s": 1, "n": null}})), []);
    assert_eq!(errors(&schema, json!({"c": {"s": 1}})), one(FieldReason::Invalid, "spec.c"));
}

#[test]
fn embedded_objects_are_well_formed() {
    let resource = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let schema = of_spec(
        json!({"type": "object", "properties": {"t": resource, "m": {"type": "object", "additionalProperties": resource}}}),
    );
    let faults = [
        (json!({"apiVersion": "v1", "kind": ""}), "spec.t.kind"),
        (json!({"apiVersion": "v1", "kind": "Po_d"}), "spec.t.kind"),
        (json!({"apiVersion": "a/b/c", "kind": "Pod"}), "spec.t.apiVersion"),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}),
            "spec.t.metadata.name",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "A"}}),
            "spec.t.metadata.namespace",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"a b": "c"}}}),
            "spec.t.metadata.annotations",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"finalizers": ["a b"]}}),
            "spec.t.metadata.finalizers",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generation": -1}}),
            "spec.t.metadata.generation",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"finalizers": ["orphan", "foregroundDeletion"]}}),
            "spec.t.metadata.finalizers",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"}]}}),
            "spec.t.metadata.ownerReferences",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"managedFields": [{"operation": "Update", "fieldsType": "x"}]}}),
            "spec.t.metadata.managedFields[0].fieldsType",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": ""}}),
            "spec.t.metadata",
        ),
    ];
    for (object, field) in faults {
        assert_eq!(errors(&schema, json!({ "t": object })), one(FieldReason::Invalid, field));
    }
    assert_eq!(
        errors(&schema, json!({"m": {"k": {"kind": "Pod"}}})),
        one(FieldReason::Required, "spec.m[k].apiVersion")
    );
    let typed = |object: Value| check_embedded(&schema, &document(json!({"spec": {"t": object}})));
    typed(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}})).unwrap();
    typed(json!({"apiVersion": 1, "kind": "Pod"})).unwrap_err();
    typed(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}))
        .unwrap_err();
    typed(json!({"apiVersion": "v1", "kind": "Pod", "metadata": "x"})).unwrap_err();
}

#[test]
fn formats_are_checked() {
    let cases = [
        ("date", "2020-01-01", "x"),
        ("ssn", "123-45-6789", "1-2"),
        ("isbn", "0321751043", "1"),
        ("isbn13", "978-0321751041", "978-0321751042"),
        ("creditcard", "4111 1111 1111 1111", "4111111111111112"),
        ("rgbcolor", "rgb(1, 2,3)", "rgb(300,1,1)"),
        ("quantity", "10Gi", "x"),
        ("k8s-short-name", "a-b", "A"),
        ("date-time", "2020-01-01T00:00:00Z", "2020"),
    ];
    for (format, good, bad) in cases {
        let schema = of_spec(json!({"type": "string", "format": format}));
        assert_eq!(errors(&schema, json!(good)), [], "{format}");
        assert_eq!(errors(&schema, json!(bad)), one(FieldReason::TypeInvalid, "spec"), "{format}");
    }
    assert_eq!(errors(&of_spec(json!({"type": "string", "format": "odd"})), json!("x")), []);
}

#[test]
fn embedded_resources_must_be_objects() {
    let schema = of_spec(
        json!({"type": "object", "properties": {"t": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}),
    );
    assert_eq!(
        errors(
            &schema,
            json!({"t": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"x": 1}}})
        ),
        []
    );
    assert_eq!(
        errors(&schema, json!({"t": {"kind": "Pod"}})),
        one(FieldReason::Required, "spec.t.apiVersion")
    );
    assert_eq!(
        errors(
            &schema,
            json!({"t": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"bad key": "x"}}}})
        ),
        one(FieldReason::Invalid, "spec.t.metadata.labels")
    );
    let mut object = document(
        json!({"spec": {"t": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "Bad_", "junk": 1}, "spec": {"x": 1}}}}),
    );
    assert_eq!(prune(&schema, &mut object), ["spec.t.metadata.junk"]);
    assert_eq!(object.get(&["spec", "t", "spec"]), Some(&json!({"x": 1})));
    assert_eq!(validate(&schema, &object), []);
}

#[test]
fn pruning_continues_below_preserved_fields() {
    let schema = of_spec(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {"x": {"type": "string"}}}}}),
    );
    let mut object = document(
        json!({"metadata": {"name": "a"}, "extra": 1, "spec": {"free": {"any": [1, null]}, "known": {"x": "y", "gone": 1}}}),
    );
    assert_eq!(prune(&schema, &mut object), ["extra", "spec.known.gone"]);
    assert_eq!(
        object.get(&["spec"]),
        Some(&json!({"free": {"any": [1, null]}, "known": {"x": "y"}}))
    );
}

#[test]
fn defaults_must_fit() {
    assert_eq!(
        property(json!({"type": "integer", "default": "x"})),
        one(FieldReason::TypeInvalid, "P.properties[a].default")
    );
    assert_eq!(
        property(
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "default": {"junk": 1}})
        ),
        one(FieldReason::Invalid, "P.properties[a].default")
    );
    assert_eq!(
        property(json!({"type": "string", "enum": ["x"], "default": "y"})),
        one(FieldReason::NotSupported, "P.properties[a].default")
    );
    load(&json!({"type": "object", "properties": {"a": {"type": "string", "default": null}}}))
        .unwrap();
    let metadata = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}}});
    assert_eq!(
        refused(&metadata),
        one(FieldReason::Forbidden, "P.properties[metadata].properties[name].default")
    );
}

#[test]
fn list_and_map_types_are_checked() {
    let list = |items: Value, kind: &str| json!({"type": "array", "items": items, "x-kubernetes-list-type": kind});
    let keyed = |keys: Value| json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys});
    let object = json!({"type": "object", "properties": {"k": {"type": "string"}}});
    assert_eq!(
        property(list(json!({"type": "string"}), "bag")),
        one(FieldReason::NotSupported, "P.properties[a].x-kubernetes-list-type")
    );
    assert_eq!(
        property(list(object.clone(), "map")),
        one(FieldReason::Required, "P.properties[a].x-kubernetes-list-map-keys")
    );
    assert_eq!(
        property(keyed(json!(["z"]))),
        one(FieldReason::Invalid, "P.properties[a].x-kubernetes-list-map-keys")
    );
    assert_eq!(
        property(list(object, "set")),
        one(FieldReason::Invalid, "P.properties[a].items.x-kubernetes-map-type")
    );
    assert_eq!(
        property(keyed(json!(["k"]))),
        one(FieldReason::Required, "P.properties[a].items.properties[k].default")
    );
    assert_eq!(
        property(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
        one(FieldReason::Invalid, "P.properties[a].type")
    );
}

#[test]
fn only_structural_schemas_load() {
    assert_eq!(property(json!({})), one(FieldReason::Required, "P.properties[a].type"));
    assert_eq!(
        property(json!({"type": "array"})),
        one(FieldReason::Required, "P.properties[a].items")
    );
    assert_eq!(
        property(json!({"type": "string", "$ref": "#/x"})),
        one(FieldReason::Forbidden, "P.properties[a].$ref")
    );
    assert_eq!(
        property(json!({"type": "string", "pattern": "("})),
        one(FieldReason::Invalid, "P.properties[a].pattern")
    );
    assert_eq!(
        property(json!({"type": "string", "allOf": [{"type": "string"}]})),
        one(FieldReason::Forbidden, "P.properties[a].allOf[0].type")
    );
    assert_eq!(
        refused(&json!({"type": "object", "anyOf": [{"properties": {"x": {"enum": [1]}}}]})),
        one(FieldReason::Required, "P.properties[x]")
    );
    assert_eq!(
        property(json!({"type": "blob"})),
        one(FieldReason::NotSupported, "P.properties[a].type")
    );
    assert_eq!(refused(&json!({"type": "string"})), one(FieldReason::Invalid, "P.type"));
    assert_eq!(
        refused(
            &json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}})
        ),
        one(FieldReason::Forbidden, "P.properties[metadata]")
    );
    let int = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    let schema = of_spec(int);
    assert_eq!(errors(&schema, json!(1)), []);
    assert_eq!(errors(&schema, json!("50%")), []);
    assert!(!errors(&schema, json!(true)).is_empty());
}

#[test]
fn unchanged_stored_values_are_not_refused() {
    let schema = of_spec(
        json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "string"}}}),
    );
    let object = |a: &str, b: &str| document(json!({"spec": {"a": a, "b": b}}));
    assert_eq!(
        validate_update(&schema, Some(&object("toolong", "1")), &object("toolong", "2")),
        []
    );
    assert_eq!(
        validate_update(&schema, Some(&object("toolong", "1")), &object("alsolong", "1"))[0].reason,
        FieldReason::TooLong
    );
}

#[test]
fn names_may_be_restricted() {
    let schema =
        load(&json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 2}}}}})).unwrap();
    let named =
        |name: &str| validate(&schema, &document(json!({"metadata": {"name": name}}))).len();
    assert_eq!((named("ab"), named("abc")), (0, 1));
}

#[test]
fn schemas_are_published_as_given() {
    let given = json!({"type": "object", "properties": {"a": {"type": "string", "description": "words", "pattern": "^x", "enum": ["x"]}}, "required": ["a"],
        "anyOf": [{"required": ["a"]}]});
    let schema = of_spec(given.clone());
    let mut out = Map::new();
    crate::openapi::components_v3(&schema, &mut out);
    assert_eq!(out["com.example.v1.Thing"]["properties"]["spec"], given);
}

#[test]
fn huge_and_deep_schemas_are_refused() {
    let mut deep = json!({"type": "string"});
    for _ in 0..300 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(load(&deep).is_err());
    let many: Map =
        (0..60_000).map(|number| (format!("p{number}"), json!({"type": "string"}))).collect();
    assert!(load(&json!({"type": "object", "properties": many})).is_err());
    assert_eq!(
        property(json!({"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"})),
        one(FieldReason::Invalid, "P.properties[a].pattern")
    );
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        proptest::sample::select(vec![
            "object", "array", "string", "integer", "map", "set", "k", "", "("
        ])
        .prop_map(Value::from)
    ];
    let keys = proptest::sample::select(vec![
        "type",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "enum",
        "default",
        "nullable",
        "pattern",
        "minimum",
        "maxLength",
        "anyOf",
        "oneOf",
        "not",
        "allOf",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "metadata",
        "k",
        "format",
    ]);
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
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
    fn no_schema_and_no_value_panics(given in any_schema(), value in any_schema()) {
        let _ = load(&given);
        if let Ok(schema) = load(&json!({"type": "object", "properties": {"spec": given}})) {
            let mut object = document(json!({"spec": value}));
            prune(&schema, &mut object);
            default(&schema, &mut object);
            validate(&schema, &object);
        }
    }
}

#[test]
fn fault_42_expensive_definitions_are_refused_in_time() {
    let nested = |levels: usize| {
        (0..levels).fold(
            json!({"type": "string"}),
            |inner, _| json!({"type": "object", "properties": {"a": inner}}),
        )
    };
    let wide: Map =
        (0..60_000).map(|number| (format!("f{number}"), json!({"type": "string"}))).collect();
    let choices = |levels: usize| {
        (0..levels).fold(json!({"minimum": 1}), |inner, _| json!({"allOf": [inner, inner]}))
    };
    // A schema may have this many; one that is not cut has many times more.
    const MOST: u64 = 10_000_000;
    let bombs =
        [
            property_of(json!({"type": "string", "pattern": "((((a{1000}){1000}){1000}){1000})"})),
            property_of(json!({"type": "string", "pattern": "(".repeat(10_000)})),
            property_of(json!({"type": "string", "pattern": "[".repeat(10_000)})),
            property_of(json!({"$ref": "#/properties/a"})),
            property_of(nested(300)),
            property_of(json!({"type": "object", "properties": wide})),
            property_of(json!({"type": "integer", "allOf": [choices(15)]})),
            property_of((0..300).fold(json!({}), |inner, _| json!({"not": inner}))),
            property_of((0..300).fold(
                json!({"type": "array"}),
                |inner, _| json!({"type": "array", "items": inner}),
            )),
        ];
    for (index, bomb) in bombs.iter().enumerate() {
        let (loaded, steps) = work::counted(|| load(bomb));
        assert!(loaded.is_err(), "bomb {index}");
        assert!(steps < MOST, "bomb {index}: {steps}");
    }
    // Accepted patterns match without backtracking.
    let schema = of_spec(
        json!({"type": "object", "properties": {"p": {"type": "string", "pattern": "^(a+)+$"}}}),
    );
    assert_eq!(
        errors(&schema, json!({"p": format!("{}b", "a".repeat(100_000))})),
        one(FieldReason::Invalid, "spec.p")
    );
}

fn property_of(a: Value) -> Value {
    json!({"type": "object", "properties": {"a": a}})
}

/// Messages recorded from kube-apiserver.
#[test]
fn messages_match_kube_apiserver() {
    let says = |given: Value| -> Vec<String> {
        load(&json!({"type": "object", "properties": {"a": given}}))
            .unwrap_err()
            .into_iter()
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect()
    };
    let cases = [
        (
            json!({"type": "x"}),
            "P.properties[a].type: Unsupported value: \"x\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "x"}),
            "P.properties[a].x-kubernetes-list-type: Unsupported value: \"x\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b"]}),
            "P.properties[a].items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
        ),
        (
            json!({"type": "string", "pattern": "("}),
            "P.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            "P.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
        (
            json!({"type": "integer", "default": "x"}),
            "P.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
        ),
    ];
    for (given, wanted) in cases {
        assert_eq!(says(given), [wanted]);
    }
}

#[test]
fn number_bounds_match_kube_apiserver() {
    let says = |given: Value, value: Value| -> Vec<String> {
        let object = document(
            json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"a": value}}),
        );
        validate(&of_spec(json!({"type": "object", "properties": {"a": given}})), &object)
            .into_iter()
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(
        says(json!({"type": "number", "multipleOf": 0.5}), json!(1)),
        ["spec.a: Invalid value: 0: factor MultipleOf declared for spec.a must be positive: 0"]
    );
    assert_eq!(says(json!({"type": "number", "multipleOf": 0.5}), json!(1.5)), none);
    assert_eq!(
        says(json!({"type": "integer", "minimum": 1.5}), json!(2)),
        [
            "<nil>: Invalid value: \"\": Minimum boundary value must be of type integer (default format) in spec.a"
        ]
    );
    // A value that is compared as a float is shown as one.
    for (value, shown) in [(2_147_483_648_i64, "2.147483648e+09"), (12, "12")] {
        assert_eq!(
            says(json!({"type": "integer", "maximum": 10.5}), json!(value))[1],
            format!(
                "spec.a: Invalid value: {shown}: spec.a in body should be less than or equal to 10.5"
            )
        );
    }
    assert_eq!(
        says(json!({"type": "integer", "format": "int32"}), json!(2_147_483_648_i64)),
        [
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.a"
        ]
    );
    // The least integer, as a float.
    assert_eq!(
        says(json!({"type": "integer"}), json!(-9.223_372_036_854_776e18)),
        [
            "spec.a: Invalid value: \"number\": spec.a in body must be of type integer: \"number\"",
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.a"
        ]
    );
    assert_eq!(
        says(json!({"type": "number", "format": "float"}), json!(1e300)),
        [
            "<nil>: Invalid value: \"\": Checked value must be of type number with format float in spec.a"
        ]
    );
    assert_eq!(
        says(json!({"type": "number", "maximum": 1e6}), json!(1e7)),
        ["spec.a: Invalid value: 1e+07: spec.a in body should be less than or equal to 1e+06"]
    );
}

#[test]
fn any_default_fits_an_int_or_string() {
    for default in [json!([]), json!({}), json!(true), json!(1.5), json!("a")] {
        let port = json!({"x-kubernetes-int-or-string": true, "default": default});
        of_spec(json!({"type": "object", "properties": {"port": port}}));
        let whole = json!({"type": "object", "default": {"port": default}, "properties": {"port": {"x-kubernetes-int-or-string": true}}});
        of_spec(json!({"type": "object", "properties": {"whole": whole}}));
    }
    let schema = of_spec(
        json!({"type": "object", "properties": {"port": {"x-kubernetes-int-or-string": true}}}),
    );
    assert_eq!(
        errors(&schema, json!({"port": []})),
        [(FieldReason::TypeInvalid, "spec.port".to_owned())]
    );
}

#[test]
fn items_of_a_set_with_an_unknown_list_type_are_not_atomic() {
    let items =
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "x"});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": items});
    let field = "P.properties[a].items.x-kubernetes-list-type".to_owned();
    assert_eq!(
        property(set),
        [(FieldReason::NotSupported, field.clone()), (FieldReason::Invalid, field)]
    );
}

/// An unchanged part of a changed value still decides which alternative holds.
#[test]
fn compositions_judge_unchanged_parts() {
    let alternatives = json!([{"required": ["a"]}, {"properties": {"c": {"enum": ["x"]}}}]);
    let texts = json!({"a": {"type": "string"}, "c": {"type": "string"}});
    let spec = json!({"type": "object", "oneOf": alternatives, "properties": texts});
    let schema = of_spec(json!({"type": "object", "properties": {"s": spec}}));
    let object = |a: &str, c: &str| {
        document(
            json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"s": {"a": a, "c": c}}}),
        )
    };
    assert!(validate_update(&schema, Some(&object("a", "y")), &object("b", "y")).is_empty());
    assert!(!validate_update(&schema, Some(&object("a", "y")), &object("b", "x")).is_empty());
}

/// The same error of two compositions is reported once.
#[test]
fn errors_of_compositions_are_reported_once() {
    let not = json!({"required": ["a"]});
    let spec = json!({"type": "object", "allOf": [{"not": not}], "not": not, "properties": {"a": {"type": "string"}}});
    let schema = of_spec(json!({"type": "object", "properties": {"s": spec}}));
    let object = document(
        json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"s": {"a": "b"}}}),
    );
    let messages: Vec<String> =
        validate(&schema, &object).into_iter().map(|error| error.message).collect();
    assert_eq!(
        messages,
        [
            r#"Invalid value: "": "spec.s" must not validate the schema (not)"#,
            r#"Invalid value: "": "spec.s" must validate all the schemas (allOf). None validated"#,
        ]
    );
}
