//! Fault 34: adversarial input for everything that works on user data. Asserts steps, not time.

use crate::apply::{ApplyError, Manager, ManagerOperation, ResetFields, apply, track_update};
use crate::custom::{SchemaContext, from_json_schema};
use crate::schema::Schema;
use crate::strategic::strategic_merge;
use crate::testing::{core, document, schema};
use crate::validate::{default, prune, validate, validate_update};
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::patch::PatchError;
use ferrokube_apimachinery::work::{breaths, counted};

/// Runs, and fails if it counts more steps.
fn within<T>(what: &str, most: usize, run: impl FnOnce() -> T) -> T {
    let (result, steps) = counted(run);
    assert!(steps <= most as u64, "{what}: {steps} steps, at most {most} are allowed");
    result
}

fn load(schema: &Value) -> Result<Schema, Vec<FieldError>> {
    from_json_schema(schema, &SchemaContext { path: "P", ..SchemaContext::default() })
}

fn of_spec(spec: Value) -> Schema {
    load(&json!({"type": "object", "properties": {"spec": spec}})).expect("structural")
}

fn spec(value: Value) -> Document {
    document(json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": value}))
}

fn many<V: Into<Value>>(count: usize, one: impl Fn(usize) -> (String, V)) -> Value {
    Value::Object((0..count).map(one).map(|(name, value)| (name, value.into())).collect())
}

fn list(count: usize, one: impl Fn(usize) -> Value) -> Value {
    Value::Array((0..count).map(one).collect())
}

fn bytes(value: &Value) -> usize {
    json::to_vec(value).len()
}

fn merged(kind: &Schema, target: &Value, patch: &Value, most: usize) -> Result<(), PatchError> {
    let (mut target, patch) = (document(target.clone()), document(patch.clone()));
    within("a strategic merge", most, || strategic_merge(kind, &mut target, &patch))
}

#[test]
fn fault_34_retained_keys_are_looked_up() {
    let data = many(20_000, |n| (format!("k{n}"), "v"));
    let keys: Vec<Value> = (0..20_000).map(|n| json!(format!("k{n}"))).collect();
    let patch = json!({"data": {"$retainKeys": keys}});
    merged(&core("ConfigMap"), &json!({"data": data}), &patch, 100_000).expect("merges");
}

#[test]
fn fault_34_merging_one_element_repeatedly_is_bounded() {
    let kind = schema("io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration");
    let conditions = list(5_000, |n| json!({"name": format!("c{n}"), "expression": "true"}));
    let target = json!({"webhooks": [{"name": "a", "matchConditions": conditions}]});
    // Each of these scans all conditions of the one webhook.
    let again = list(5_000, |_| json!({"name": "a", "matchConditions": [{"name": "x"}]}));
    let refused = merged(&kind, &target, &json!({"webhooks": again}), 2_100_000);
    assert!(matches!(refused, Err(PatchError::TooLarge(_))), "{refused:?}");
    let each =
        list(5_000, |n| json!({"name": format!("b{n}"), "matchConditions": [{"name": "x"}]}));
    merged(&kind, &target, &json!({"webhooks": each}), 40_000).expect("different elements merge");
    let order = list(5_000, |n| json!({"name": format!("c{}", 5_000 - n)}));
    let patch = json!({"webhooks": [{"name": "a", "$setElementOrder/matchConditions": order, "matchConditions": conditions}]});
    let _ = merged(&kind, &target, &patch, 60_000);
    let finalizers = list(20_000, |n| json!(format!("x/{n}")));
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers, "finalizers": finalizers}});
    merged(&core("ConfigMap"), &json!({"metadata": {"finalizers": finalizers}}), &patch, 200_000)
        .expect("merges");
}

fn manager(name: &str, operation: ManagerOperation) -> Manager {
    let text = str::to_owned;
    Manager {
        name: text(name),
        operation,
        api_version: text("v1"),
        subresource: String::new(),
        time: text("2026-01-02T00:00:00Z"),
        ids_are_servers: true,
        other_versions: None,
    }
}

fn entry(number: usize, operation: &str, fields: &Value) -> Value {
    json!({"manager": format!("m{number}"), "operation": operation, "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

#[test]
fn fault_34_many_managers_are_merged_in_one_pass() {
    let entries = list(10_000, |n| entry(n, "Update", &json!({"f:data": {format!("f:k{n}"): {}}})));
    let old = document(json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}));
    let mut new = document(
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "managedFields": entries}, "data": {"k": "v"}}),
    );
    within("tracking", 60_000, || {
        track_update(
            &core("ConfigMap"),
            &ResetFields::default(),
            Some(&old),
            &mut new,
            &manager("w", ManagerOperation::Update),
        )
    });
    assert_eq!(new.list(&["metadata", "managedFields"]).len(), 10);
}

#[test]
fn fault_34_conflicts_are_counted_and_some_are_named() {
    let fields = Value::Object((0..2_000).map(|n| (format!("f:k{n}"), json!({}))).collect::<Map>());
    let entries = list(20, |n| entry(n, "Apply", &json!({"f:data": fields})));
    let data = many(2_000, |n| (format!("k{n}"), "v"));
    let live = document(
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "managedFields": entries}, "data": data}),
    );
    let changed = many(2_000, |n| (format!("k{n}"), "w"));
    let applied = document(
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": changed}),
    );
    let refused = within("an apply", 200_000, || {
        apply(
            &core("ConfigMap"),
            &ResetFields::default(),
            Some(&live),
            &applied,
            &manager("w", ManagerOperation::Apply),
            false,
        )
    });
    let Err(ApplyError::Conflicts(named, count)) = refused else { panic!("{refused:?}") };
    assert_eq!((named.len(), count), (1_000, 40_000));
}

#[test]
fn fault_34_keyed_lists_apply_in_any_order() {
    let kind = of_spec(
        json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}, "v": {"type": "string"}}}}}}),
    );
    let live = spec(json!({"l": list(10_000, |n| json!({"k": n, "v": "x"}))}));
    let applied = spec(json!({"l": list(10_000, |n| json!({"k": 10_000 - n, "v": "y"}))}));
    let applied = within("an apply", 500_000, || {
        apply(
            &kind,
            &ResetFields::default(),
            Some(&live),
            &applied,
            &manager("w", ManagerOperation::Apply),
            true,
        )
    });
    assert_eq!(applied.expect("applies").list(&["spec", "l"]).len(), 10_001);
}

#[test]
fn fault_34_an_items_cost_follows_its_fields_not_the_schemas() {
    let properties = many(5_000, |n| (format!("p{n}"), json!({"type": "string"})));
    let wide = json!({"type": "object", "properties": properties});
    let kind = of_spec(json!({"type": "array", "items": wide}));
    let object = spec(list(20_000, |_| json!({})));
    let mut completed = object.clone();
    within("defaulting", 100_000, || default(&kind, &mut completed));
    assert!(within("validation", 100_000, || validate(&kind, &object)).is_empty());
    within("pruning", 100_000, || prune(&kind, &mut completed));
    let mut tracked = object.clone();
    within("tracking", 200_000, || {
        track_update(
            &kind,
            &ResetFields::default(),
            None,
            &mut tracked,
            &manager("w", ManagerOperation::Update),
        )
    });
}

#[test]
fn fault_34_passes_give_way_at_each_item() {
    let item = json!({"type": "object", "properties": {"x": {"type": "string", "default": "y"}}});
    let keyed = json!({"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["x"]});
    let kind = of_spec(keyed);
    let mut object = spec(list(1000, |n| json!({"x": n.to_string()})));
    let at_each = |what: &str, (result, breaths): (Vec<String>, u32)| {
        assert!(result.is_empty() && breaths >= 1000, "{what}: {result:?} {breaths}");
    };
    at_each(
        "defaulting",
        breaths(|| {
            default(&kind, &mut object);
            Vec::new()
        }),
    );
    at_each("pruning", breaths(|| prune(&kind, &mut object)));
    at_each(
        "validation",
        breaths(|| validate(&kind, &object).into_iter().map(|error| error.field).collect()),
    );
    at_each(
        "tracking",
        breaths(|| {
            let manager = manager("w", ManagerOperation::Update);
            track_update(&kind, &ResetFields::default(), None, &mut object, &manager);
            Vec::new()
        }),
    );
}

#[test]
fn fault_34_defaults_stop_at_the_storable_size() {
    let properties =
        many(1_000, |n| (format!("p{n}"), json!({"type": "string", "default": "x".repeat(20)})));
    let kind =
        of_spec(json!({"type": "array", "items": {"type": "object", "properties": properties}}));
    let mut object = spec(list(50_000, |_| json!({})));
    within("defaulting", 400_000, || default(&kind, &mut object));
    let length = bytes(&object.into_value());
    assert!(
        (2_000_000..5_000_000).contains(&length),
        "{length}: refused as too large when it is stored"
    );
}

#[test]
fn fault_34_enumerations_are_looked_up() {
    let kind = of_spec(
        json!({"type": "array", "items": {"type": "integer", "enum": list(20_000, |n| json!(n))}}),
    );
    let errors =
        within("validation", 100_000, || validate(&kind, &spec(list(20_000, |n| json!(n)))));
    assert!(errors.is_empty());
    let errors = validate(&kind, &spec(list(20_000, |n| json!(n + 20_000))));
    assert!(
        errors.len() <= MAX_ERRORS
            && errors.iter().all(|error| error.message.len() <= 4 * 1024 + 3),
        "each names the whole enumeration"
    );
}

#[test]
fn fault_34_compositions_are_bounded_by_steps_and_causes() {
    let never =
        |n: usize| json!({"required": [format!("r{n}")], "properties": {"a": {"minLength": 5}}});
    for composition in ["anyOf", "oneOf", "allOf"] {
        let item = json!({"type": "object", "properties": {"a": {"type": "string"}}, composition: list(2_000, never)});
        let kind = of_spec(json!({"type": "array", "items": item}));
        let errors = within(composition, 2_100_000, || {
            validate(&kind, &spec(list(5_000, |_| json!({"a": "b"}))))
        });
        assert!((1..=MAX_ERRORS).contains(&errors.len()), "{composition}: {}", errors.len());
    }
    // Valid, but only by the last alternative.
    let last = |n: usize| if n == 1_999 { json!({}) } else { never(n) };
    let item = json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": list(2_000, last)});
    let kind = of_spec(json!({"type": "array", "items": item}));
    let errors = within("the last of many", 4_400_000, || {
        validate(&kind, &spec(list(5_000, |_| json!({"a": "b"}))))
    });
    assert!(
        matches!(&errors[..], [only] if only.message.contains("more than 2000000 steps")),
        "{errors:?}"
    );
    let few = within("few", 900_000, || validate(&kind, &spec(list(100, |_| json!({"a": "b"})))));
    assert!(few.is_empty(), "{few:?}");
}

#[test]
fn fault_34_errors_and_repeats_are_bounded() {
    let kind = of_spec(
        json!({"type": "array", "items": {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}}}}),
    );
    let errors =
        within("missing fields", 30_000, || validate(&kind, &spec(list(20_000, |_| json!({})))));
    assert_eq!(errors.len(), MAX_ERRORS);
    let set = of_spec(
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
    );
    let same = spec(list(20_000, |n| json!(format!("{}", n / 2))));
    assert_eq!(within("a set", 100_000, || validate(&set, &same)).len(), MAX_ERRORS);
    assert!(
        within("a set that had repeats", 200_000, || validate_update(
            &set,
            Some(&same),
            &spec(json!(["a", "a"]))
        ))
        .is_empty()
    );
}

#[test]
fn fault_34_loading_a_schema_is_bounded() {
    // Long names above many nodes: each node has its own path.
    let leaves = many(3_000, |n| (format!("l{n}"), json!({"type": "string"})));
    let chain = (0..20).fold(
        json!({"type": "object", "properties": leaves}),
        |inner, _| json!({"type": "object", "properties": {"n".repeat(5_000): inner}}),
    );
    let errors = within("long paths", 70_000_000, || load(&chain)).expect_err("too large");
    assert!(errors.len() <= MAX_ERRORS && errors.iter().all(|error| error.field.len() <= 1024 + 3));
    let repeated: Vec<Value> = vec![json!("r"); 50_000];
    let kind = of_spec(
        json!({"type": "array", "items": {"type": "object", "required": repeated, "properties": {"a": {"type": "string"}}}}),
    );
    assert!(
        within("a name required often", 50_000, || validate(
            &kind,
            &spec(list(5_000, |_| json!({"r": 1})))
        ))
        .is_empty()
    );
    let keys = list(20_000, |n| json!(format!("k{n}")));
    let of_keys = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": {"type": "object"}});
    let errors = load(&json!({"type": "object", "properties": {"spec": of_keys}}))
        .expect_err("too many keys");
    assert!(errors.iter().any(|error| error.message.starts_with("Too many: 20000")), "{errors:?}");
    let nodes = many(60_000, |n| (format!("p{n}"), json!({})));
    within("many nodes", 3_000_000, || load(&json!({"type": "object", "properties": nodes})))
        .expect_err("too large");
}

#[test]
fn fault_42_patterns_are_charged_by_compiled_size() {
    let patterns = |count: usize, pattern: &str| {
        let properties: Map = (0..count)
            .map(|number| (format!("p{number}"), json!({"type": "string", "pattern": pattern})))
            .collect();
        json!({"type": "object", "properties": properties})
    };
    let (refused, steps) = counted(|| load(&patterns(500, "^((a{1,200}){1,200}){1,200}$")));
    assert!(refused.is_err());
    assert!(steps <= 100 << 20, "{steps} bytes of patterns for a schema of 35 KB");
    let (loaded, steps) = counted(|| load(&patterns(2_000, "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")));
    assert!(loaded.is_ok() && steps <= 100 << 20, "{steps}");
}
