//! CustomResourceDefinition: validation. The paths are those of a real API server.

use crate::WriteCase;
use ferrokube_apimachinery::document::{Map, Value, json};

const GROUP: &str = "apiextensions.k8s.io";
const ROOT: &str = "spec.validation.openAPIV3Schema";

type Errors<'a> = &'a [(&'a str, &'a str)];

/// A definition with one version, and changes by JSON pointer.
fn definition(changes: Value) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}});
    let mut out = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": [version]},
    });
    for (pointer, value) in changes.as_object().expect("changes by pointer") {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        out.pointer_mut(parent).expect("the parent is there")[name] = value.clone();
    }
    out
}

fn refused(changes: Value, errors: Errors<'_>) {
    WriteCase::create(GROUP, "customresourcedefinitions").refused(definition(changes), errors);
}

fn of_root(schema: Value, errors: Errors<'_>) {
    let places: Vec<(&str, String)> =
        errors.iter().map(|(reason, place)| (*reason, format!("{ROOT}{place}"))).collect();
    let places: Vec<(&str, &str)> =
        places.iter().map(|(reason, place)| (*reason, place.as_str())).collect();
    refused(json!({"/spec/versions/0/schema": {"openAPIV3Schema": schema}}), &places);
}

/// The schema of one field; paths are relative to it.
fn of_field(schema: Value, errors: Errors<'_>) {
    let places: Vec<(&str, String)> =
        errors.iter().map(|(reason, place)| (*reason, format!(".properties[a]{place}"))).collect();
    let places: Vec<(&str, &str)> =
        places.iter().map(|(reason, place)| (*reason, place.as_str())).collect();
    of_root(json!({"type": "object", "properties": {"a": schema}}), &places);
}

#[test]
fn definitions_have_names() {
    refused(json!({}), &[]);
    let names = |names: Value, errors: Errors<'_>| refused(json!({"/spec/names": names}), errors);
    names(
        json!({"plural": "Things", "kind": "Thing"}),
        &[("Invalid", "metadata.name"), ("Invalid", "spec.names.plural")],
    );
    names(
        json!({"plural": "things"}),
        &[
            ("Required", "spec.names.kind"),
            ("Required", "spec.names.listKind"),
            ("Required", "spec.names.singular"),
        ],
    );
    names(
        json!({"plural": "things", "kind": "Thing", "shortNames": ["ok", "Th"]}),
        &[("Invalid", "spec.names.shortNames[1]")],
    );
    names(
        json!({"plural": "things", "kind": "Thing", "categories": ["a b"]}),
        &[("Invalid", "spec.names.categories[0]")],
    );
    names(
        json!({"plural": "things", "kind": "Thing", "listKind": "Thing"}),
        &[("Invalid", "spec.names.listKind")],
    );
    refused(json!({"/spec/scope": ""}), &[("Required", "spec.scope")]);
    refused(json!({"/spec/scope": "Galaxy"}), &[("NotSupported", "spec.scope")]);
    refused(
        json!({"/spec/group": "nodot", "/metadata/name": "things.nodot"}),
        &[("Invalid", "spec.group")],
    );
}

#[test]
fn protected_groups_need_an_approval() {
    const PLACE: &str = "metadata.annotations[api-approved.kubernetes.io]";
    let with = |approval: &str| {
        let annotations = if approval.is_empty() {
            json!({})
        } else {
            json!({"api-approved.kubernetes.io": approval})
        };
        definition(
            json!({"/spec/group": "x.k8s.io", "/metadata/name": "things.x.k8s.io", "/metadata/annotations": annotations}),
        )
    };
    let create = WriteCase::create(GROUP, "customresourcedefinitions");
    create.refused(with(""), &[("Required", PLACE)]);
    create.refused(with("maybe"), &[("Invalid", PLACE)]);
    create.refused(with("https://"), &[("Invalid", PLACE)]);
    create.refused(with("https://example.com/pull/1"), &[]);
    create.refused(with("unapproved, a test"), &[]);
    // Unchanged parts are not validated.
    WriteCase::update(GROUP, "customresourcedefinitions", with("")).refused(with(""), &[]);
    WriteCase::update(GROUP, "customresourcedefinitions", with("unapproved"))
        .refused(with("maybe"), &[("Invalid", PLACE)]);
}

#[test]
fn warnings_of_deprecated_versions_can_be_printed() {
    let version = |deprecated: bool, warning: &str, errors: Errors<'_>| {
        refused(
            json!({"/spec/versions/0/deprecated": deprecated, "/spec/versions/0/deprecationWarning": warning}),
            errors,
        );
    };
    const PLACE: &str = "spec.versions[0].deprecationWarning";
    version(true, "use another one", &[]);
    for (deprecated, warning) in
        [(false, "x"), (true, ""), (true, "a\nb"), (true, "x".repeat(257).as_str())]
    {
        version(deprecated, warning, &[("Invalid", PLACE)]);
    }
}

#[test]
fn conversion_webhooks_can_be_called() {
    let conversion = |given: Value, errors: Errors<'_>| {
        let places: Vec<(&str, String)> = errors
            .iter()
            .map(|(reason, place)| (*reason, format!("spec.conversion.{place}")))
            .collect();
        let places: Vec<(&str, &str)> =
            places.iter().map(|(reason, place)| (*reason, place.as_str())).collect();
        refused(json!({"/spec/conversion": given}), &places);
    };
    let webhook = |client: Value, reviews: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": reviews}});
    let url = |url: &str| json!({ "url": url });
    conversion(webhook(url("https://example.com/convert"), json!(["v1"])), &[]);
    conversion(webhook(url("https://example.com"), json!(["v1beta1", "v7"])), &[]);
    conversion(
        webhook(url("http://example.com"), json!(["v1"])),
        &[("Invalid", "webhookClientConfig.url")],
    );
    conversion(
        webhook(url("https://user@example.com"), json!(["v1"])),
        &[("Invalid", "webhookClientConfig.url")],
    );
    conversion(webhook(json!({}), json!(["v1"])), &[("Required", "webhookClientConfig")]);
    conversion(
        webhook(url("https://example.com"), json!([])),
        &[("Required", "conversionReviewVersions")],
    );
    conversion(
        webhook(url("https://example.com"), json!(["v9"])),
        &[("Invalid", "conversionReviewVersions")],
    );
    conversion(
        webhook(
            json!({"service": {"name": "", "namespace": "n", "port": 70_000, "path": "a"}}),
            json!(["v1", "v1"]),
        ),
        &[
            ("Invalid", "conversionReviewVersions[1]"),
            ("Invalid", "webhookClientConfig.service.path"),
            ("Invalid", "webhookClientConfig.service.port"),
            // kube-apiserver takes the name for the namespace.
            ("Required", "webhookClientConfig.service.namespace"),
        ],
    );
    conversion(
        json!({"strategy": "None", "webhook": {"clientConfig": {"url": "https://x"}, "conversionReviewVersions": ["v1"]}}),
        &[("Forbidden", "conversionReviewVersions"), ("Forbidden", "webhookClientConfig")],
    );
    conversion(json!({"strategy": "Magic"}), &[("NotSupported", "strategy")]);
}

#[test]
fn paths_must_exist_in_the_schema() {
    let column = |column: Value, errors: Errors<'_>| {
        refused(json!({"/spec/versions/0/additionalPrinterColumns": [column]}), errors)
    };
    const COLUMN: &str = "spec.additionalPrinterColumns[0]";
    column(json!({"name": "A", "type": "string", "jsonPath": ".a[0]['b']"}), &[]);
    column(
        json!({"name": "A", "type": "string", "jsonPath": "a"}),
        &[("Invalid", &format!("{COLUMN}.JSONPath"))],
    );
    column(
        json!({"name": "A", "type": "string", "format": "odd", "jsonPath": ".a"}),
        &[("Invalid", &format!("{COLUMN}.format"))],
    );
    let scale = |scale: Value, errors: Errors<'_>| {
        refused(json!({"/spec/versions/0/subresources": {"scale": scale}}), errors)
    };
    scale(
        json!({"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.b", "labelSelectorPath": ".status.c"}),
        &[],
    );
    scale(
        json!({"specReplicasPath": ".status.a", "statusReplicasPath": "status.b", "labelSelectorPath": ".c"}),
        &[
            ("Invalid", "spec.subresources.scale.labelSelectorPath"),
            ("Invalid", "spec.subresources.scale.specReplicasPath"),
            ("Invalid", "spec.subresources.scale.statusReplicasPath"),
        ],
    );
}

#[test]
fn selectable_fields_are_limited_and_scalar() {
    let mut fields: Map =
        (0..10).map(|index| (format!("f{index}"), json!({"type": "string"}))).collect();
    fields.insert("l".to_owned(), json!({"type": "array", "items": {"type": "string"}}));
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}});
    let select = |paths: &[&str], errors: Errors<'_>| {
        let listed: Vec<Value> = paths.iter().map(|path| json!({"jsonPath": path})).collect();
        refused(
            json!({"/spec/versions/0/schema": schema, "/spec/versions/0/selectableFields": listed}),
            errors,
        );
    };
    const FIRST: &str = "spec.selectableFields[0].jsonPath";
    select(&[".spec.f1", ".spec.f2"], &[]);
    select(&[".spec.f1", ".spec.f1"], &[("Duplicate", "spec.selectableFields[1].jsonPath")]);
    select(&[".spec.l"], &[("Invalid", FIRST)]);
    select(&[".spec.l[0]"], &[("Invalid", FIRST)]);
    select(&[".metadata.name"], &[("Invalid", FIRST)]);
    select(&[""], &[("Required", FIRST)]);
    let many: Vec<String> = (0..9).map(|index| format!(".spec.f{index}")).collect();
    select(
        &many.iter().map(String::as_str).collect::<Vec<_>>(),
        &[("TooMany", "spec.selectableFields")],
    );
}

/// Versions with the same schema share it, but not their selectable fields.
#[test]
fn selectable_fields_of_one_of_two_equal_versions() {
    let text = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": text}}});
    let version = |name: &str, selects: bool| {
        let mut version =
            json!({"name": name, "served": true, "storage": name == "v1", "schema": schema});
        if selects {
            version["selectableFields"] = json!([{"jsonPath": ".spec.a"}]);
        }
        version
    };
    for (selects, errors) in [
        ([true, true], &[][..]),
        ([true, false], &[("Invalid", "spec.versions[0].selectableFields")][..]),
        ([false, true], &[("Invalid", "spec.versions[1].selectableFields")][..]),
    ] {
        let versions = json!([version("v1", selects[0]), version("v2", selects[1])]);
        refused(json!({"/spec/versions": versions}), errors);
    }
}

#[test]
fn keywords_without_structure_are_refused() {
    of_field(json!({"type": "null"}), &[("Forbidden", ".type"), ("NotSupported", ".type")]);
    of_field(json!({"type": "string", "$ref": "#/x"}), &[("Forbidden", ".$ref")]);
    of_field(
        json!({"type": "object", "definitions": {"x": {"type": "string"}}}),
        &[("Forbidden", ".definitions")],
    );
    of_field(
        json!({"type": "object", "dependencies": {"x": ["y"]}}),
        &[("Forbidden", ".dependencies")],
    );
    of_field(
        json!({"type": "object", "patternProperties": {"x": {"type": "string"}}}),
        &[("Forbidden", ".patternProperties")],
    );
    of_field(
        json!({"type": "array", "items": {"type": "string"}, "additionalItems": false}),
        &[("Forbidden", ".additionalItems")],
    );
    of_field(json!({"type": "array", "items": [{"type": "string"}]}), &[("Forbidden", ".items")]);
    of_field(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &[("Forbidden", ".uniqueItems")],
    );
    of_field(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
        &[("Invalid", ".x-kubernetes-preserve-unknown-fields")],
    );
    of_root(json!({"type": "object", "$schema": "https://example.com"}), &[("Invalid", "")]);
    // These suppress all other structural errors.
    of_field(json!({"id": "x"}), &[("Forbidden", ".id")]);
}

#[test]
fn numbers_of_schemas_are_floats() {
    let field = json!({"type": "number", "default": 1e3, "enum": [1.0, 1000.0, 2.5], "maximum": 7.0, "x-kubernetes-validations": [{"rule": "self < 9.0"}]});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": field}}}});
    let changes = json!({"/spec/versions/0/schema": {"openAPIV3Schema": schema}});
    let case = WriteCase::create(GROUP, "customresourcedefinitions");
    let stored = case.run(definition(changes)).object.into_value();
    let field = &stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["a"];
    assert_eq!(
        [&field["default"], &field["enum"], &field["maximum"]],
        [&json!(1000), &json!([1, 1000, 2.5]), &json!(7)]
    );
}

#[test]
fn schemas_are_structural() {
    of_field(json!({}), &[("Required", ".type")]);
    of_field(json!({"type": "array", "items": {}}), &[("Required", ".items.type")]);
    of_root(json!({}), &[("Required", ".type")]);
    of_root(json!({"type": "string"}), &[("Invalid", ".type")]);
    of_root(json!({"type": "object", "nullable": true}), &[("Forbidden", ".nullable")]);
    of_root(
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        &[("Forbidden", ".additionalProperties")],
    );
    let both = |additional: Value| json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": additional});
    of_field(both(json!({"type": "string"})), &[("Forbidden", ".additionalProperties")]);
    of_field(both(json!(false)), &[("Forbidden", ".additionalProperties")]);
    of_field(both(json!(true)), &[]);
    let either = |more: Value| {
        let mut schema = json!({"x-kubernetes-int-or-string": true});
        more.as_object()
            .expect("keywords")
            .iter()
            .for_each(|(name, value)| schema[name.as_str()] = value.clone());
        schema
    };
    of_field(either(json!({"anyOf": [{"type": "integer"}, {"type": "string"}]})), &[]);
    of_field(
        either(
            json!({"allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "x"}]}),
        ),
        &[],
    );
    of_field(
        either(json!({"anyOf": [{"type": "string"}, {"type": "integer"}]})),
        &[("Forbidden", ".anyOf[0].type"), ("Forbidden", ".anyOf[1].type")],
    );
    of_field(
        either(json!({"x-kubernetes-preserve-unknown-fields": true})),
        &[("Invalid", ".x-kubernetes-preserve-unknown-fields")],
    );
}

#[test]
fn resources_in_resources_keep_their_metadata() {
    let embedded = |more: Value| {
        let mut schema = json!({"type": "object", "x-kubernetes-embedded-resource": true});
        more.as_object()
            .expect("keywords")
            .iter()
            .for_each(|(name, value)| schema[name.as_str()] = value.clone());
        schema
    };
    of_field(embedded(json!({})), &[("Required", ".properties")]);
    of_field(
        embedded(json!({"type": "string", "x-kubernetes-preserve-unknown-fields": true})),
        &[("Invalid", ".type")],
    );
    of_field(
        embedded(json!({"properties": {"kind": {"type": "integer"}}})),
        &[("Invalid", ".properties[kind].type")],
    );
    of_field(
        embedded(
            json!({"properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "x"}}}}}),
        ),
        &[],
    );
    let open = json!({"x-kubernetes-preserve-unknown-fields": true, "additionalProperties": {"type": "string"}});
    of_field(embedded(open), &[("Forbidden", ".additionalProperties")]);
    let metadata =
        |metadata: Value| json!({"type": "object", "properties": {"metadata": metadata}});
    of_root(
        metadata(
            json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}, "generateName": {"type": "string"}}}),
        ),
        &[],
    );
    of_root(
        metadata(json!({"type": "object", "description": "words"})),
        &[("Forbidden", ".properties[metadata]")],
    );
    of_root(
        metadata(json!({"type": "object", "properties": {"labels": {"type": "object"}}})),
        &[("Forbidden", ".properties[metadata]")],
    );
    of_root(
        json!({"type": "object", "properties": {"kind": {"type": "string", "default": "x"}}}),
        &[("Forbidden", ".properties[kind].default")],
    );
}

#[test]
fn compositions_may_not_define_structure() {
    of_field(json!({"type": "string", "not": {"default": "x"}}), &[("Forbidden", ".not.default")]);
    of_field(
        json!({"type": "string", "not": {"title": "x", "nullable": true}}),
        &[("Forbidden", ".not.nullable"), ("Forbidden", ".not.title")],
    );
    // kube-apiserver requires fields of compositions in the structure of the root only.
    of_root(
        json!({"type": "object", "anyOf": [{"properties": {"x": {"minLength": 1}}}]}),
        &[("Required", ".properties[x]")],
    );
    let list = json!({"type": "object", "properties": {"l": {"type": "string"}}, "anyOf": [{"properties": {"l": {"items": {"minLength": 1}}}}]});
    of_root(list.clone(), &[("Required", ".properties[l].items")]);
    of_field(list, &[]);
    let metadata = json!({"type": "object", "properties": {"metadata": {"type": "object"}}, "anyOf": [{"properties": {"metadata": {"minProperties": 1}}}]});
    of_field(metadata, &[("Forbidden", ".anyOf[0].properties[metadata]")]);
    of_field(
        json!({"type": "object", "oneOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]}),
        &[("Forbidden", ".oneOf[0].x-kubernetes-validations")],
    );
    let status = |schema: Value, errors: Errors<'_>| {
        refused(
            json!({"/spec/versions/0/schema": {"openAPIV3Schema": schema}, "/spec/versions/0/subresources": {"status": {}}}),
            errors,
        );
    };
    status(json!({"type": "object", "minProperties": 1}), &[("Invalid", ROOT)]);
    status(
        json!({"type": "object", "description": "words", "required": ["a"], "properties": {"a": {"type": "string"}}}),
        &[],
    );
}

#[test]
fn list_and_map_types_fit_their_lists() {
    let keyed = |item: Value, keys: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": item});
    let item = |key: Value| json!({"type": "object", "required": ["k"], "properties": {"k": key}});
    of_field(keyed(item(json!({"type": "string"})), json!(["k"])), &[]);
    of_field(
        keyed(item(json!({"type": "string"})), json!(["k", "k"])),
        &[("Invalid", ".x-kubernetes-list-map-keys")],
    );
    of_field(
        keyed(item(json!({"type": "object"})), json!(["k"])),
        &[("Invalid", ".items.properties[k].type")],
    );
    of_field(
        keyed(item(json!({"type": "string", "nullable": true})), json!(["k"])),
        &[("Forbidden", ".items.properties[k].nullable")],
    );
    of_field(keyed(json!({"type": "string"}), json!(["k"])), &[("Invalid", ".items.type")]);
    let plain =
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["k"]});
    of_field(plain, &[("Required", ".x-kubernetes-list-type")]);
    let set = json!({"type": "array", "items": {"type": "string", "nullable": true}, "x-kubernetes-list-type": "set", "x-kubernetes-list-map-keys": ["k"]});
    of_field(set, &[("Forbidden", ".items.nullable"), ("Invalid", ".x-kubernetes-list-type")]);
    of_field(
        json!({"x-kubernetes-map-type": "atomic", "x-kubernetes-preserve-unknown-fields": true}),
        &[("Required", ".type")],
    );
}

#[test]
fn defaults_are_complete_in_themselves() {
    let object = json!({"type": "object", "default": {}, "required": ["x"], "properties": {"x": {"type": "string", "default": "y"}}});
    of_field(object, &[("Required", ".default.x")]);
    // Not validated in maps.
    of_field(
        json!({"type": "object", "additionalProperties": {"type": "integer", "default": "x"}}),
        &[],
    );
}

#[test]
fn rules_are_checked_before_they_are_compiled() {
    let rule = |rule: Value, errors: Errors<'_>| {
        let places: Vec<(&str, String)> = errors
            .iter()
            .map(|(reason, place)| (*reason, format!(".x-kubernetes-validations[0].{place}")))
            .collect();
        let places: Vec<(&str, &str)> =
            places.iter().map(|(reason, place)| (*reason, place.as_str())).collect();
        of_field(
            json!({"type": "string", "maxLength": 10, "x-kubernetes-validations": [rule]}),
            &places,
        );
    };
    rule(json!({"rule": " "}), &[("Required", "rule")]);
    rule(json!({"rule": "self"}), &[("Invalid", "rule")]);
    rule(json!({"rule": "true", "message": " "}), &[("Invalid", "message")]);
    rule(json!({"rule": "true\n&& true"}), &[("Required", "message")]);
    rule(json!({"rule": "true", "messageExpression": " "}), &[("Required", "messageExpression")]);
    rule(json!({"rule": "true", "messageExpression": "1"}), &[("Invalid", "messageExpression")]);
    rule(json!({"rule": "true", "optionalOldSelf": false}), &[("Invalid", "optionalOldSelf")]);
    // A rule that does not compile has no further errors.
    rule(
        json!({"rule": "nonsense", "reason": "Odd", "fieldPath": ".x"}),
        &[("Invalid", "fieldPath"), ("NotSupported", "reason")],
    );
}

/// Field paths are looked up in the structural schema, if one can be made of the node.
#[test]
fn field_paths_in_unsupported_schemas_are_not_looked_up() {
    let rules = || json!([{"rule": "true", "fieldPath": "a"}]);
    let with = |b: Value| json!({"type": "object", "properties": {"b": b}, "x-kubernetes-validations": rules()});
    let unknown = ("Invalid", ".x-kubernetes-validations[0].fieldPath");
    of_field(with(json!({"type": "string"})), &[unknown]);
    of_field(
        with(json!({"type": "string", "default": 1})),
        &[unknown, ("TypeInvalid", ".properties[b].default")],
    );
    of_field(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false, "x-kubernetes-validations": rules()}),
        &[("Invalid", ".x-kubernetes-preserve-unknown-fields")],
    );
    of_field(
        with(json!({"type": "array", "items": [{"type": "string"}]})),
        &[("Forbidden", ".properties[b].items")],
    );
    of_field(with(json!({"type": "string", "$ref": "x"})), &[("Forbidden", ".properties[b].$ref")]);
}

/// As kube-apiserver: the default is checked first, and no expression is compiled once it fails.
#[test]
fn a_rule_that_does_not_compile_is_reported_at_the_default_of_its_node() {
    let node = |default: Value| {
        let rules = json!([{"rule": "self.b", "optionalOldSelf": false, "messageExpression": "1"}]);
        json!({"type": "object", "default": default, "properties": {"b": {"type": "string"}}, "x-kubernetes-validations": rules})
    };
    of_field(node(json!({})), &[("Invalid", ".default")]);
    let rule = |field: &'static str| ("Invalid", field);
    of_field(
        node(Value::Null),
        &[
            rule(".x-kubernetes-validations[0].optionalOldSelf"),
            rule(".x-kubernetes-validations[0].rule"),
        ],
    );
}

/// A list demands something of its items; rules of the items are compiled nevertheless.
#[test]
fn rules_of_items_are_compiled_whatever_the_list_demands() {
    let items =
        json!({"type": "string", "maxLength": 10, "x-kubernetes-validations": [{"rule": "self"}]});
    of_field(
        json!({"type": "array", "maxItems": 3, "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
        &[("Invalid", ".items.type"), ("Invalid", ".items.x-kubernetes-validations[0].rule")],
    );
}

#[test]
fn unknown_formats_are_reported_once() {
    let with = |format: &str| {
        definition(
            json!({"/spec/versions/0/schema": {"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "string", "format": format}}}}}),
        )
    };
    let warned = |write: WriteCase, object: Value| write.run(object).warnings.len();
    assert_eq!(warned(WriteCase::create(GROUP, "customresourcedefinitions"), with("date-time")), 0);
    assert_eq!(warned(WriteCase::create(GROUP, "customresourcedefinitions"), with("odd")), 1);
    assert_eq!(
        warned(WriteCase::update(GROUP, "customresourcedefinitions", with("odd")), with("odd")),
        0
    );
    assert_eq!(
        warned(WriteCase::update(GROUP, "customresourcedefinitions", with("odd")), with("odder")),
        1
    );
}

#[test]
fn a_definition_is_named_by_plural_and_group() {
    refused(json!({"/metadata/name": "x"}), &[("Invalid", "metadata.name")]);
    refused(json!({"/metadata/generateName": "x"}), &[("Invalid", "metadata.generateName")]);
    refused(
        json!({"/metadata/generateName": "x", "/metadata/name": "xabcde"}),
        &[("Invalid", "metadata.generateName"), ("Invalid", "metadata.name")],
    );
    refused(json!({"/metadata/name": ""}), &[]);
    // An update reports changed fields, but not that the name no longer fits.
    let update = WriteCase::update(GROUP, "customresourcedefinitions", definition(json!({})));
    update.refused(
        definition(json!({"/spec/group": "other.example.com"})),
        &[("Invalid", "spec.group")],
    );
    update.refused(
        definition(json!({"/spec/names/plural": "others"})),
        &[("Invalid", "spec.names.plural")],
    );
}

#[test]
fn webhook_urls_are_validated() {
    let conversion = |client: Value, place: &str, fits: bool| {
        let given = json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}});
        let place = format!("spec.conversion.webhookClientConfig.{place}");
        let errors = [("Invalid", place.as_str())];
        refused(json!({"/spec/conversion": given}), if fits { &[] } else { &errors });
    };
    let url = |url: &str, fits: bool| conversion(json!({"url": url}), "url", fits);
    url("https://x:1/y", true);
    url("https://x/?", true);
    for wrong in ["https://x/y?z", "https://x#f", "http://x", "https://u@x", "https:///y", "x"] {
        url(wrong, false);
    }
    let path = |path: &str, fits: bool| {
        conversion(
            json!({"service": {"name": "a", "namespace": "b", "path": path}}),
            "service.path",
            fits,
        )
    };
    for right in ["", "/", "/x", "/x/y/"] {
        path(right, true);
    }
    for wrong in ["//", "/x//y", "x", "x//y", "/X", "/x y"] {
        path(wrong, false);
    }
}
