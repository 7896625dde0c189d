//! FlowSchema and PriorityLevelConfiguration.

use crate::{WriteCase, cells, definition};
use ferrokube_apimachinery::document::{Value, json};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

fn schema(change: Value) -> Value {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": "l"},
        "matchingPrecedence": 500,
        "rules": [{
            "subjects": [{"kind": "Group", "group": {"name": "g"}}],
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["*"], "namespaces": ["*"]}],
        }],
    });
    for (name, value) in change.as_object().expect("an object") {
        spec[name.as_str()] = value.clone();
    }
    json!({"metadata": {"name": "s"}, "spec": spec})
}

#[test]
fn flow_schemas() {
    let create = WriteCase::create(GROUP, "flowschemas");
    create.refused(schema(json!({})), &[]);
    let precedence = "spec.matchingPrecedence";
    for (number, is_valid) in
        [(0, true), (2, true), (10_000, true), (-1, false), (10_001, false), (1, false)]
    {
        let want = [("Invalid", precedence)];
        create.refused(
            schema(json!({"matchingPrecedence": number})),
            if is_valid { &[] } else { &want },
        );
    }
    create.refused(
        schema(json!({"distinguisherMethod": {"type": "Moon"}, "priorityLevelConfiguration": {"name": ""}})),
        &[
            ("NotSupported", "spec.distinguisherMethod.type"),
            ("Required", "spec.priorityLevelConfiguration.name"),
        ],
    );
    create.refused(
        schema(json!({"rules": [
            {"subjects": [
                {"kind": "User", "user": {"name": ""}, "group": {"name": "x"}},
                {"kind": "ServiceAccount", "serviceAccount": {"name": "A", "namespace": "-"}},
                {"kind": "Group"},
                {"kind": "X"},
            ], "resourceRules": [
                {"verbs": ["fly", "get"], "apiGroups": ["*", "a"], "resources": ["*", "b"], "namespaces": ["*", "c"]},
                {"verbs": ["*", "get"], "apiGroups": [], "resources": [], "namespaces": ["-a"]},
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true},
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
            ], "nonResourceRules": [
                {"verbs": ["x"], "nonResourceURLs": ["a", "/a b", "//", "/*a", "", "/", "/b*", "/c/*"]},
                {"verbs": [], "nonResourceURLs": ["*", "/a"]},
            ]},
            {},
        ]})),
        &[
            ("Forbidden", "spec.rules[0].subjects[0].group"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[1]"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[2]"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[3]"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[4]"),
            ("Invalid", "spec.rules[0].nonResourceRules[0].nonResourceURLs[6]"),
            ("Invalid", "spec.rules[0].nonResourceRules[1].nonResourceURLs"),
            ("Invalid", "spec.rules[0].resourceRules[0].apiGroups"),
            ("Invalid", "spec.rules[0].resourceRules[0].namespaces"),
            ("Invalid", "spec.rules[0].resourceRules[0].resources"),
            ("Invalid", "spec.rules[0].resourceRules[1].namespaces[0]"),
            ("Invalid", "spec.rules[0].resourceRules[1].verbs"),
            ("Invalid", "spec.rules[0].subjects[1].serviceAccount.name"),
            ("Invalid", "spec.rules[0].subjects[1].serviceAccount.namespace"),
            ("NotSupported", "spec.rules[0].nonResourceRules[0].verbs"),
            ("NotSupported", "spec.rules[0].resourceRules[0].verbs"),
            ("NotSupported", "spec.rules[0].subjects[3].kind"),
            ("Required", "spec.rules[0].nonResourceRules[1].verbs"),
            ("Required", "spec.rules[0].resourceRules[1].apiGroups"),
            ("Required", "spec.rules[0].resourceRules[1].resources"),
            ("Required", "spec.rules[0].resourceRules[3].namespaces"),
            ("Required", "spec.rules[0].subjects[0].user.name"),
            ("Required", "spec.rules[0].subjects[2].group"),
            ("Required", "spec.rules[1]"),
            ("Required", "spec.rules[1].subjects"),
        ],
    );
}

#[test]
fn flow_schema_status_and_cells() {
    let update = WriteCase::update(GROUP, "flowschemas", schema(json!({}))).of("status");
    let mut object = schema(json!({"matchingPrecedence": -5}));
    object["status"] = json!({"conditions": [{"type": "A"}, {"type": "A"}, {"type": ""}]});
    update.refused(
        object,
        &[("Duplicate", "status.conditions[1].type"), ("Required", "status.conditions[2].type")],
    );
    let mut object = schema(json!({"distinguisherMethod": {"type": "ByUser"}}));
    assert_eq!(
        cells(GROUP, "flowschemas", object.clone()),
        [json!("s"), json!("l"), json!(500), json!("ByUser"), json!("5m"), json!("?")]
    );
    object["spec"]["distinguisherMethod"] = Value::Null;
    object["status"] = json!({"conditions": [{"type": "Dangling", "status": "True"}]});
    assert_eq!(
        cells(GROUP, "flowschemas", object)[3..],
        [json!("<none>"), json!("5m"), json!("True")]
    );
}

fn level(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[test]
fn priority_levels() {
    let create = WriteCase::create(GROUP, "prioritylevelconfigurations");
    let limited = |limited: Value| level("l", json!({"type": "Limited", "limited": limited}));
    create.refused(limited(json!({"limitResponse": {"type": "Reject"}})), &[]);
    let queuing =
        |queuing: Value| limited(json!({"limitResponse": {"type": "Queue", "queuing": queuing}}));
    create.refused(queuing(json!({})), &[]);
    const QUEUING: &str = "spec.limited.limitResponse.queuing";
    for (given, field) in [
        (json!({"queues": 4, "handSize": 9}), "handSize"),
        (json!({"queues": 10_000_000, "handSize": 3}), "handSize"),
        (json!({"queues": 10_000_001, "handSize": 1}), "queues"),
        (json!({"handSize": -1}), "handSize"),
        (json!({"queueLengthLimit": -1}), "queueLengthLimit"),
    ] {
        create.refused(queuing(given), &[("Invalid", &format!("{QUEUING}.{field}"))]);
    }
    create.refused(limited(json!({"limitResponse": {"type": "Queue"}})), &[("Required", QUEUING)]);
    create.refused(
        limited(json!({
            "nominalConcurrencyShares": -1, "lendablePercent": 101, "borrowingLimitPercent": -1,
            "limitResponse": {"type": "Reject", "queuing": {}},
        })),
        &[
            ("Forbidden", QUEUING),
            ("Invalid", "spec.limited.borrowingLimitPercent"),
            ("Invalid", "spec.limited.lendablePercent"),
            ("Invalid", "spec.limited.nominalConcurrencyShares"),
        ],
    );
    create.refused(
        limited(json!({"limitResponse": {"type": "Moon"}})),
        &[("NotSupported", "spec.limited.limitResponse.type")],
    );
    create.refused(level("l", json!({"type": "Odd"})), &[("NotSupported", "spec.type")]);
    create.refused(level("l", json!({"type": "Limited"})), &[("Required", "spec.limited")]);
    create.refused(
        level("l", json!({"type": "Exempt", "limited": {"limitResponse": {"type": "Reject"}}})),
        &[("Forbidden", "spec.limited"), ("Invalid", "spec.type")],
    );
}

#[test]
fn priority_level_cells() {
    let shares = json!({"nominalConcurrencyShares": 7, "limitResponse": {"type": "Queue", "queuing": {
        "queues": 8, "handSize": 2, "queueLengthLimit": 9,
    }}});
    let none = || json!("<none>");
    for (object, want) in [
        (
            level("l", json!({"type": "Limited", "limited": shares})),
            [json!("l"), json!("Limited"), json!(7), json!(8), json!(2), json!(9)],
        ),
        (
            level("exempt", json!({"type": "Exempt"})),
            [json!("exempt"), json!("Exempt"), none(), none(), none(), none()],
        ),
    ] {
        assert_eq!(cells(GROUP, "prioritylevelconfigurations", object)[..6], want);
    }
}

/// What the server maintains is valid, has all defaults, and cannot be changed if it is mandatory.
#[test]
fn maintained_objects() {
    let mut mandatory = Vec::new();
    for (plural, count) in [("prioritylevelconfigurations", 8), ("flowschemas", 11)] {
        let definition = definition(GROUP, plural);
        let all = definition.hooks.maintained();
        assert_eq!(all.len(), count, "{plural}");
        let create = WriteCase::create(GROUP, plural);
        for maintained in all {
            let object = maintained.object.clone().into_value();
            let written = create.run(object.clone());
            assert_eq!(written.errors, [], "{object}");
            assert_eq!(written.object.get(&["spec"]), object.get("spec"), "{object}");
            if maintained.is_mandatory {
                mandatory.push(format!("{plural} {}", maintained.object.name()));
                let mut changed = object.clone();
                let field = if count == 8 { "limited" } else { "rules" };
                changed["spec"][field] = Value::Null;
                changed["spec"]["matchingPrecedence"] = json!(9);
                let errors = create.run(changed).errors;
                assert!(errors.iter().any(|(_, field)| field == "spec"), "{object}");
            }
        }
    }
    let want = [
        "prioritylevelconfigurations exempt",
        "prioritylevelconfigurations catch-all",
        "flowschemas exempt",
        "flowschemas catch-all",
    ];
    assert_eq!(mandatory, want);
    let create = WriteCase::create(GROUP, "prioritylevelconfigurations");
    let exempt = json!({"nominalConcurrencyShares": 3, "lendablePercent": 9});
    create.refused(level("exempt", json!({"type": "Exempt", "exempt": exempt})), &[]);
}
