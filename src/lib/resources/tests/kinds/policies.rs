//! Admission policies and their bindings.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::{Value, json};

const GROUP: &str = "admissionregistration.k8s.io";

fn rule(change: &Value) -> Value {
    let mut rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    for (name, value) in change.as_object().expect("an object") {
        rule[name.as_str()] = value.clone();
    }
    rule
}

fn policy(change: &Value) -> Value {
    let mut spec = json!({"matchConstraints": {"resourceRules": [rule(&json!({}))]}});
    for (name, value) in change.as_object().expect("an object") {
        spec[name.as_str()] = value.clone();
    }
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn validating(change: &Value) -> Value {
    let mut policy = policy(change);
    if policy["spec"].get("validations").is_none() {
        policy["spec"]["validations"] = json!([{"expression": "true"}]);
    }
    policy
}

#[test]
fn expressions_compile_before_they_are_stored() {
    let create = WriteCase::create(GROUP, "validatingadmissionpolicies");
    create.refused(validating(&json!({})), &[]);
    let both = [("Required", "spec.auditAnnotations"), ("Required", "spec.validations")];
    create.refused(policy(&json!({"validations": []})), &both);
    let first = "spec.validations[0].expression";
    for source in ["object.", "1", "params.a == 1", "variables.a"] {
        create.refused(
            validating(&json!({"validations": [{"expression": source}]})),
            &[("Invalid", first)],
        );
    }
    create.refused(
        validating(&json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "variables": [{"name": "a", "expression": "params.a"}, {"name": "b", "expression": "variables.a == 1"}],
            "validations": [{"expression": "variables.b", "messageExpression": "'a' + params.b"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "'v'"}],
        })),
        &[],
    );
    create.refused(
        validating(&json!({"variables": [{"name": "a", "expression": "variables.b"}, {"name": "if", "expression": "1"}]})),
        &[("Invalid", "spec.variables[0].expression"), ("Invalid", "spec.variables[1].name")],
    );
    create.refused(
        validating(&json!({"validations": [{"expression": "true", "reason": "Odd", "message": "a\nb", "messageExpression": "authorizer.path('/')"}]})),
        &[
            ("Invalid", "spec.validations[0].message"),
            ("Invalid", "spec.validations[0].messageExpression"),
            ("NotSupported", "spec.validations[0].reason"),
        ],
    );
    create.refused(
        validating(&json!({"matchConditions": [{"name": "a", "expression": "nothing"}, {"name": "a", "expression": "true"}]})),
        &[
            ("Duplicate", "spec.matchConditions[1].name"),
            ("Invalid", "spec.matchConditions[0].expression"),
        ],
    );
}

#[test]
fn rules_say_which_requests_match() {
    let create = WriteCase::create(GROUP, "validatingadmissionpolicies");
    let with = |change: Value| {
        validating(&json!({"matchConstraints": {"resourceRules": [rule(&change)]}}))
    };
    let at = |field: &str| format!("spec.matchConstraints.resourceRules[0].{field}");
    for (change, reason, field) in [
        (json!({"operations": []}), "Required", "operations"),
        (json!({"operations": ["*", "CREATE"]}), "Invalid", "operations"),
        (json!({"operations": ["create"]}), "NotSupported", "operations[0]"),
        (json!({"apiGroups": []}), "Required", "apiGroups"),
        (json!({"apiVersions": [""]}), "Required", "apiVersions[0]"),
        (json!({"resources": ["*/*", "a"]}), "Invalid", "resources"),
        (json!({"resources": ["a/*", "a/b"]}), "Invalid", "resources[1]"),
        (json!({"scope": "Everywhere"}), "NotSupported", "scope"),
        (json!({"resourceNames": ["a/b"]}), "Invalid", "resourceNames[0]"),
    ] {
        create.refused(with(change), &[(reason, &at(field))]);
    }
    create.refused(
        validating(&json!({"matchConstraints": {}})),
        &[("Required", "spec.matchConstraints.resourceRules")],
    );
}

#[test]
fn mutations_evaluate_to_patches() {
    let create = WriteCase::create(GROUP, "mutatingadmissionpolicies");
    let with =
        |mutation: Value| policy(&json!({"reinvocationPolicy": "Never", "mutations": [mutation]}));
    create.refused(
        with(json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{data: Object.data{a: 'b'}}"}})),
        &[],
    );
    create.refused(
        with(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/data'}]"}})),
        &[],
    );
    create.refused(
        with(json!({"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}})),
        &[
            ("Invalid", "spec.mutations[0].applyConfiguration"),
            ("Required", "spec.mutations[0].jsonPatch"),
        ],
    );
    create.refused(
        with(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "Object{}"}})),
        &[("Invalid", "spec.mutations[0].jsonPatch.expression")],
    );
    create.refused(
        policy(&json!({"mutations": []})),
        &[("Required", "spec.mutations"), ("Required", "spec.reinvocationPolicy")],
    );
    let deletes = json!({"resourceRules": [rule(&json!({"operations": ["DELETE"]}))]});
    let mut policy = with(json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}));
    policy["spec"]["matchConstraints"] = deletes;
    create.refused(
        policy,
        &[
            ("Invalid", "spec.mutations[0].jsonPatch.expression"),
            ("NotSupported", "spec.matchConstraints.resourceRules.operations"),
        ],
    );
}

#[test]
fn bindings_say_what_happens_and_with_which_parameters() {
    let create = WriteCase::create(GROUP, "validatingadmissionpolicybindings");
    let with = |change: Value| {
        let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
        for (name, value) in change.as_object().expect("an object") {
            spec[name.as_str()] = value.clone();
        }
        json!({"metadata": {"name": "b"}, "spec": spec})
    };
    create.refused(with(json!({})), &[]);
    create.refused(
        with(json!({"validationActions": ["Deny", "Warn"]})),
        &[("Invalid", "spec.validationActions")],
    );
    create.refused(
        with(json!({"validationActions": ["Audit", "Audit", "Log"]})),
        &[
            ("Duplicate", "spec.validationActions[1]"),
            ("NotSupported", "spec.validationActions[2]"),
        ],
    );
    create.refused(
        with(json!({"paramRef": {"name": "a", "selector": {}, "parameterNotFoundAction": "Skip"}})),
        &[
            ("Forbidden", "spec.paramRef.name"),
            ("Forbidden", "spec.paramRef.selector"),
            ("NotSupported", "spec.paramRef.parameterNotFoundAction"),
        ],
    );
    create.refused(
        with(json!({"paramRef": {"parameterNotFoundAction": "Deny"}, "policyName": ""})),
        &[("Required", "spec.paramRef"), ("Required", "spec.policyName")],
    );
    let object = with(
        json!({"paramRef": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]}}}),
    );
    assert_eq!(
        cells(GROUP, "validatingadmissionpolicybindings", object)[1..3],
        [
            json!("p"),
            json!(
                "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:k,Operator:Exists,Values:[],},},}"
            )
        ]
    );
}
