//! Validating policies: which writes they refuse, and with which words.

use super::{TestPipeline, UserClient, document};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{DeleteOptions, WriteOptions};

pub(super) const GROUP: &str = "admissionregistration.k8s.io";

/// Adds a policy for ConfigMaps and its binding.
pub(super) async fn bind(server: &TestPipeline, spec: Value, binding: Value) {
    let mut policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]}}});
    let mut bound = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (object, change) in [(&mut policy, &spec), (&mut bound, &binding)] {
        for (field, value) in change.as_object().unwrap() {
            object["spec"][field.as_str()] = value.clone();
        }
    }
    for (plural, object) in
        [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", bound)]
    {
        let kind = server.kind(GROUP, plural);
        let name = document(object.clone()).name().to_owned();
        let _ = kind.delete("", &name, &DeleteOptions::default()).await;
        kind.create("", document(object)).await.unwrap();
    }
}

pub(super) async fn create(
    server: &TestPipeline,
    name: &str,
    data: Value,
) -> Result<Document, Failure> {
    let object = document(json!({"metadata": {"name": name}, "data": data}));
    server.as_user("", "configmaps").create("n", object).await
}

#[tokio::test]
async fn a_policy_holds_for_the_next_write() {
    let server = TestPipeline::with_namespace().await;
    create(&server, "before", json!({"bad": "1"})).await.unwrap();
    let spec = json!({"validations": [{"expression": "!has(object.data) || !('bad' in object.data)", "message": "no bad"}]});
    bind(&server, spec, json!({})).await;
    let failure = create(&server, "a", json!({"bad": "1"})).await.unwrap_err();
    let message = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no bad";
    assert_eq!(failure.reason, Some(Reason::Invalid));
    assert_eq!(failure.message, format!("configmaps \"a\" is forbidden: {message}"));
    assert_eq!(failure.details.unwrap().causes[0].message, message);
    create(&server, "a", json!({"good": "1"})).await.unwrap();
    server
        .kind(GROUP, "validatingadmissionpolicybindings")
        .delete("", "b", &DeleteOptions::default())
        .await
        .unwrap();
    create(&server, "c", json!({"bad": "1"})).await.unwrap();
}

#[tokio::test]
async fn errors_refuse_unless_the_policy_ignores_them() {
    let server = TestPipeline::with_namespace().await;
    let missing = json!([{"expression": "object.data.missing == 'x'", "reason": "Forbidden"}]);
    bind(&server, json!({ "validations": missing }), json!({})).await;
    let failure = create(&server, "a", json!({"k": "v"})).await.unwrap_err();
    assert!(
        failure.message.ends_with(
            "expression 'object.data.missing == 'x'' resulted in error: no such key: missing"
        ),
        "{}",
        failure.message
    );
    assert_eq!(failure.reason, Some(Reason::Invalid), "errors have no reason of their own");
    bind(&server, json!({"validations": missing, "failurePolicy": "Ignore"}), json!({})).await;
    create(&server, "a", json!({"k": "v"})).await.unwrap();
    let conditions = json!([{"name": "c", "expression": "request.name == 'other'"}]);
    bind(&server, json!({"validations": missing, "matchConditions": conditions}), json!({})).await;
    create(&server, "b", json!({"k": "v"})).await.unwrap();
    assert!(create(&server, "other", json!({})).await.is_err());
}

#[tokio::test]
async fn parameters_come_from_the_binding() {
    let server = TestPipeline::with_namespace().await;
    create(&server, "limits", json!({"max": "1"})).await.unwrap();
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "count", "expression": "has(object.data) ? object.data.size() : 0"}],
        "validations": [{"expression": "variables.count <= int(params.data.max)", "messageExpression": "'at most ' + params.data.max"}],
    });
    let param = json!({"name": "limits", "parameterNotFoundAction": "Deny"});
    bind(&server, spec.clone(), json!({ "paramRef": param })).await;
    create(&server, "a", json!({"a": "1"})).await.unwrap();
    let failure = create(&server, "b", json!({"a": "1", "b": "2"})).await.unwrap_err();
    assert!(failure.message.ends_with("denied request: at most 1"), "{}", failure.message);
    let none = json!({"name": "nothing", "parameterNotFoundAction": "Deny"});
    bind(&server, spec.clone(), json!({ "paramRef": none })).await;
    let failure = create(&server, "b", json!({})).await.unwrap_err();
    assert!(failure.message.ends_with("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"), "{}", failure.message);
    let none = json!({"name": "nothing", "parameterNotFoundAction": "Allow"});
    bind(&server, spec, json!({ "paramRef": none })).await;
    create(&server, "b", json!({"a": "1", "b": "2"})).await.unwrap();
}

/// The expressions hold for each of them.
#[tokio::test]
async fn parameters_are_chosen_by_a_selector() {
    let server = TestPipeline::with_namespace().await;
    let configmaps = server.as_user("", "configmaps");
    for (name, max, role) in [("few", "1", "limit"), ("many", "3", "limit"), ("no", "0", "other")] {
        let metadata = json!({"name": name, "labels": {"role": role}});
        let object = document(json!({"metadata": metadata, "data": {"max": max}}));
        configmaps.create("n", object).await.unwrap();
    }
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{"expression": "!has(object.data) || object.data.size() <= int(params.data.max)", "messageExpression": "'at most ' + params.data.max"}],
    });
    let by = |role: &str| {
        json!({"paramRef": {"selector": {"matchLabels": {"role": role}},
            "parameterNotFoundAction": "Deny"}})
    };
    bind(&server, spec.clone(), by("limit")).await;
    create(&server, "a", json!({"a": "1"})).await.unwrap();
    let failure = create(&server, "b", json!({"a": "1", "b": "2"})).await.unwrap_err();
    assert!(failure.message.ends_with("denied request: at most 1"), "{}", failure.message);
    bind(&server, spec, by("nobody")).await;
    let failure = create(&server, "b", json!({})).await.unwrap_err();
    assert!(failure.message.contains("no params found"), "{}", failure.message);
}

#[tokio::test]
async fn a_policy_cannot_protect_itself_or_its_binding() {
    let server = TestPipeline::with_namespace().await;
    let everything = json!({"resourceRules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]});
    let spec = json!({"matchConstraints": everything, "validations": [{"expression": "false"}]});
    bind(&server, spec, json!({})).await;
    assert!(create(&server, "a", json!({})).await.is_err());
    for (plural, name) in
        [("validatingadmissionpolicybindings", "b"), ("validatingadmissionpolicies", "p")]
    {
        server.as_user(GROUP, plural).delete("", name).await.unwrap();
    }
    create(&server, "a", json!({})).await.unwrap();
}

#[tokio::test]
async fn exclusions_and_the_binding_narrow_a_policy() {
    let server = TestPipeline::with_namespace().await;
    let rules = |names: &[&str]| {
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"], "resourceNames": names}])
    };
    let refuse = json!([{"expression": "false"}]);
    let all_but_one =
        json!({"resourceRules": rules(&[]), "excludeResourceRules": rules(&["free"])});
    let spec = json!({"validations": refuse, "matchConstraints": all_but_one});
    bind(&server, spec, json!({})).await;
    create(&server, "free", json!({})).await.unwrap();
    create(&server, "a", json!({})).await.unwrap_err();
    let named = json!({"matchResources": {"resourceRules": rules(&["b"])}});
    bind(&server, json!({"validations": refuse}), named).await;
    create(&server, "a", json!({})).await.unwrap();
    create(&server, "b", json!({})).await.unwrap_err();
    let labeled = json!({"matchResources": {"objectSelector": {"matchLabels": {"w": "yes"}}}});
    bind(&server, json!({"validations": refuse}), labeled).await;
    create(&server, "b", json!({})).await.unwrap();
    let object = document(json!({"metadata": {"name": "c", "labels": {"w": "yes"}}}));
    server.as_user("", "configmaps").create("n", object).await.unwrap_err();
}

#[tokio::test]
async fn fault_32_policies_do_not_apply_to_the_servers_own_writes() {
    let server = TestPipeline::with_namespace().await;
    let everything = json!({"resourceRules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]});
    let spec = json!({"matchConstraints": everything, "validations": [{"expression": "false"}]});
    bind(&server, spec, json!({})).await;
    bind_mutation(&server, "m", json!([patch("[JSONPatch{op: 'remove', path: '/x'}]")]), false)
        .await;
    assert!(create(&server, "a", json!({})).await.is_err(), "whatever the name of its user");
    let object = document(json!({"metadata": {"name": "a"}}));
    server.core("configmaps").create("n", object).await.unwrap();
    server.core("configmaps").delete("n", "a", &DeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn expensive_expressions_end_at_their_budget() {
    let server = TestPipeline::with_namespace().await;
    let ten = "[1,2,3,4,5,6,7,8,9,10]";
    let nested =
        (0..7).fold("true".to_owned(), |inner, depth| format!("{ten}.all(x{depth}, {inner})"));
    bind(&server, json!({"validations": [{"expression": nested}]}), json!({})).await;
    let failure = create(&server, "a", json!({})).await.unwrap_err();
    assert!(
        failure.message.ends_with("operation cancelled: actual cost limit exceeded"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn expressions_see_the_namespace_of_the_write() {
    let server = TestPipeline::with_namespace().await;
    for (name, is_admitted) in [("n", true), ("other", false)] {
        let validation = format!("namespaceObject.metadata.name == '{name}'");
        bind(&server, json!({"validations": [{"expression": validation}]}), json!({})).await;
        assert_eq!(create(&server, "a", json!({})).await.is_ok(), is_admitted);
    }
}

#[tokio::test]
async fn a_binding_says_whether_to_deny_warn_or_audit() {
    let server = TestPipeline::with_namespace().await;
    let spec = json!({
        "validations": [{"expression": "true"}, {"expression": "false", "message": "not so"}],
        "auditAnnotations": [
            {"key": "size", "valueExpression": "string(object.data.size())"},
            {"key": "none", "valueExpression": "null"},
        ],
    });
    let configmaps = server.as_user("", "configmaps");
    let target = configmaps.target("n", "");
    let object = || document(json!({"metadata": {"name": "a"}, "data": {"k": "v"}}));
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    for (actions, is_denied) in [(vec!["Warn", "Audit"], false), (vec!["Deny", "Audit"], true)] {
        bind(&server, spec.clone(), json!({"validationActions": actions})).await;
        let context = UserClient::context();
        let made = server.registry.create(&context, &target, object().into(), &options).await;
        assert_eq!(made.is_err(), is_denied);
        let warning =
            "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': not so";
        let expected: &[&str] = if is_denied { &[] } else { &[warning] };
        assert_eq!(context.take_warnings(), expected);
        let noted = context.take_audit();
        assert_eq!(noted.get("p/size").map(String::as_str), Some("1"));
        assert!(!noted.contains_key("p/none"));
        let failures = &noted["validation.policy.admission.k8s.io/validation_failure"];
        let failures = ferrokube_apimachinery::json::read_value(failures.as_bytes()).unwrap();
        let failure = json!([{"message": "not so", "policy": "p", "binding": "b",
            "expressionIndex": 1, "validationActions": actions}]);
        assert_eq!(failures, failure);
    }
}

/// Adds a mutating policy for ConfigMaps and its binding.
pub(super) async fn bind_mutation(
    server: &TestPipeline,
    name: &str,
    mutations: Value,
    repeats: bool,
) {
    let policy = json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
        "reinvocationPolicy": if repeats { "IfNeeded" } else { "Never" },
        "mutations": mutations,
    }});
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    for (plural, object) in
        [("mutatingadmissionpolicies", policy), ("mutatingadmissionpolicybindings", binding)]
    {
        server.kind(GROUP, plural).create("", document(object)).await.unwrap();
    }
}

pub(super) fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

pub(super) fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

#[tokio::test]
async fn mutations_change_the_object_in_order() {
    let server = TestPipeline::with_namespace().await;
    let mutations = json!([
        apply(
            "Object{metadata: Object.metadata{labels: {'a/b': 'c'}}, data: {'added': object.metadata.name}}"
        ),
        patch(
            "[JSONPatch{op: 'test', path: '/data/added', value: object.data.added}, JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('d/e'), value: 'f'}]"
        ),
        patch(
            "[JSONPatch{op: 'test', path: '/data/added', value: 'another'}, JSONPatch{op: 'remove', path: '/data'}]"
        ),
    ]);
    bind_mutation(&server, "m", mutations, false).await;
    let made = create(&server, "a", json!({"own": "1"})).await.unwrap();
    assert_eq!(made.get(&["data"]), Some(&json!({"own": "1", "added": "a"})));
    assert_eq!(made.get(&["metadata", "labels"]), Some(&json!({"a/b": "c", "d/e": "f"})));
}

#[tokio::test]
async fn mutations_that_fail_refuse_the_write() {
    let server = TestPipeline::with_namespace().await;
    for (mutation, expected) in [
        (
            apply("Object{metadata: Object.wrong{}}"),
            "type mismatch: unexpected type name \"Object.wrong\", expected \"Object.metadata\"",
        ),
        (
            apply("Object{nothing: 1}"),
            "error applying patch: failed to convert patch object to typed object: ",
        ),
        (patch("[JSONPatch{op: 'remove', path: '/nothing'}]"), "JSON Patch: "),
        (
            patch("[JSONPatch{op: 'add', path: object.nothing, value: 1}]"),
            "resulted in error: no such key: nothing",
        ),
    ] {
        bind_mutation(&server, "m", json!([mutation]), false).await;
        let failure = create(&server, "a", json!({})).await.unwrap_err();
        assert!(failure.message.starts_with("policy 'm' with binding 'm' denied request: "));
        assert!(failure.message.contains(expected), "{}", failure.message);
        assert_eq!((failure.reason, failure.code), (Some(Reason::Invalid), 403));
        for plural in ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"] {
            let kind = server.kind(GROUP, plural);
            kind.delete("", "m", &DeleteOptions::default()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_policy_sees_later_changes_if_it_asks_for_it() {
    let server = TestPipeline::with_namespace().await;
    let copy = "Object{data: {'copy': has(object.data.late) ? 'yes' : 'no'}}";
    bind_mutation(&server, "a", json!([apply(copy)]), true).await;
    bind_mutation(&server, "b", json!([apply("Object{data: {'late': '1'}}")]), false).await;
    let made = create(&server, "a", json!({"own": "1"})).await.unwrap();
    assert_eq!(made.get(&["data"]), Some(&json!({"own": "1", "late": "1", "copy": "yes"})));
}

#[tokio::test]
async fn conditions_are_about_the_object_before_the_first_mutation() {
    let server = TestPipeline::with_namespace().await;
    let condition = json!([{"name": "c", "expression": "!has(object.data.a)"}]);
    let add = |key: &str| apply(&format!("Object{{data: {{'{key}': '1'}}}}"));
    bind_mutation(&server, "m", json!([add("a"), add("b")]), false).await;
    let policies = server.kind(GROUP, "mutatingadmissionpolicies");
    let mut policy = policies.get("", "m").await.unwrap().unwrap();
    policy.set(&["spec", "matchConditions"], condition);
    policies.update(policy, "").await.unwrap();
    let made = create(&server, "x", json!({"own": "1"})).await.unwrap();
    assert_eq!(made.get(&["data"]), Some(&json!({"own": "1", "a": "1", "b": "1"})));
}

#[tokio::test]
async fn a_policy_that_asks_for_it_repeats_its_own_change() {
    let server = TestPipeline::with_namespace().await;
    let count = json!([apply("Object{data: {'n': string(size(object.data))}}")]);
    bind_mutation(&server, "once", count.clone(), false).await;
    let made = create(&server, "a", json!({"own": "1"})).await.unwrap();
    assert_eq!(made.get(&["data", "n"]), Some(&json!("1")));
    let policies = server.kind(GROUP, "mutatingadmissionpolicies");
    policies.delete("", "once", &DeleteOptions::default()).await.unwrap();
    bind_mutation(&server, "again", count, true).await;
    let made = create(&server, "b", json!({"own": "1"})).await.unwrap();
    assert_eq!(made.get(&["data", "n"]), Some(&json!("2")));
}
