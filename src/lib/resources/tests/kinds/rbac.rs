//! Roles and bindings.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::{Value, json};

const GROUP: &str = "rbac.authorization.k8s.io";

#[test]
fn roles() {
    let create = WriteCase::create(GROUP, "roles");
    create.gives(json!({"rules": []}), &json!({"metadata": {}, "rules": null}));
    create.gives(json!({}), &json!({"metadata": {}, "rules": null}));
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"]});
    create.gives(json!({"rules": [rule]}), &json!({"metadata": {}, "rules": [rule]}));
    let check =
        |rule: Value, expected: &[(&str, &str)]| create.refused(json!({"rules": [rule]}), expected);
    check(json!({"apiGroups": [""], "resources": ["pods"]}), &[("Required", "rules[0].verbs")]);
    check(json!({"verbs": ["get"], "resources": ["pods"]}), &[("Required", "rules[0].apiGroups")]);
    check(json!({"verbs": ["get"], "apiGroups": [""]}), &[("Required", "rules[0].resources")]);
    check(
        json!({"verbs": []}),
        &[
            ("Required", "rules[0].verbs"),
            ("Required", "rules[0].apiGroups"),
            ("Required", "rules[0].resources"),
        ],
    );
    check(
        json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "nonResourceURLs": ["/x"]}),
        &[("Invalid", "rules[0].nonResourceURLs")],
    );
    check(
        json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}),
        &[("Invalid", "rules[0].nonResourceURLs")],
    );
    let (hooks, policy) = (&create.definition.hooks, create.definition.policy);
    assert!(policy.create_on_update && policy.unconditional_update);
    assert!(hooks.validate_name("system:odd:name").unwrap().is_empty());
    assert!(!hooks.validate_name("a/b").unwrap().is_empty());
    assert_eq!(
        cells(GROUP, "roles", json!({"metadata": {"name": "r"}})),
        [json!("r"), json!("2024-01-02T02:59:05Z")]
    );
}

#[test]
fn cluster_roles() {
    let create = WriteCase::create(GROUP, "clusterroles");
    create.refused(json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}), &[]);
    create.refused(
        json!({"aggregationRule": {}}),
        &[("Required", "aggregationRule.clusterRoleSelectors")],
    );
    create.refused(
        json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
        &[],
    );
    create.refused(
        json!({"aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}}),
        &[("Required", "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].values"), ("Invalid", "aggregationRule.clusterRoleSelectors[0]")],
    );
}

fn role_ref(kind: &str, name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": kind, "name": name})
}

#[test]
fn role_bindings() {
    let create = WriteCase::create(GROUP, "rolebindings");
    let with = |subject: Value| json!({"roleRef": role_ref("Role", "r"), "subjects": [subject]});
    create.gives(
        with(json!({"kind": "User", "name": "x"})),
        &json!({"metadata": {}, "roleRef": role_ref("Role", "r"), "subjects": [{"kind": "User", "apiGroup": GROUP, "name": "x"}]}),
    );
    create.refused(with(json!({"kind": "ServiceAccount", "name": "x"})), &[]);
    create.refused(
        with(json!({"kind": "Robot", "name": "x"})),
        &[("NotSupported", "subjects[0].kind")],
    );
    create.refused(
        with(json!({"kind": "User", "name": "x", "apiGroup": "wrong"})),
        &[("NotSupported", "subjects[0].apiGroup")],
    );
    create.refused(
        with(json!({"kind": "ServiceAccount", "name": "x", "apiGroup": "v1"})),
        &[("NotSupported", "subjects[0].apiGroup")],
    );
    create.refused(with(json!({"kind": "User", "name": ""})), &[("Required", "subjects[0].name")]);
    create.refused(
        with(json!({"kind": "ServiceAccount", "name": "Bad Name"})),
        &[("Invalid", "subjects[0].name")],
    );
    create.refused(json!({}), &[("NotSupported", "roleRef.kind"), ("Required", "roleRef.name")]);
    create.refused(json!({"roleRef": role_ref("Role", "a/b")}), &[("Invalid", "roleRef.name")]);
    create.refused(
        json!({"roleRef": {"apiGroup": "x", "kind": "Role", "name": "r"}}),
        &[("NotSupported", "roleRef.apiGroup")],
    );
}

#[test]
fn cluster_role_bindings() {
    let create = WriteCase::create(GROUP, "clusterrolebindings");
    create.refused(json!({"roleRef": role_ref("ClusterRole", "r")}), &[]);
    create.refused(json!({"roleRef": role_ref("Role", "r")}), &[("NotSupported", "roleRef.kind")]);
    let account = json!({"roleRef": role_ref("ClusterRole", "r"), "subjects": [{"kind": "ServiceAccount", "name": "x"}]});
    create.refused(account, &[("Required", "subjects[0].namespace")]);
}

#[test]
fn the_role_of_a_binding_is_immutable() {
    let update =
        WriteCase::update(GROUP, "rolebindings", json!({"roleRef": role_ref("Role", "r")}));
    update.refused(json!({"roleRef": role_ref("Role", "other")}), &[("Invalid", "roleRef")]);
    update.gives(
        json!({"roleRef": role_ref("Role", "r"), "subjects": null}),
        &json!({"metadata": {}, "roleRef": role_ref("Role", "r")}),
    );
}

#[test]
fn binding_cells() {
    let subjects = json!([{"kind": "User", "name": "alice"}, {"kind": "User", "name": "bob"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]);
    let row = cells(
        GROUP,
        "rolebindings",
        json!({"metadata": {"name": "b"}, "roleRef": role_ref("Role", "r"), "subjects": subjects}),
    );
    assert_eq!(
        row,
        [json!("b"), json!("Role/r"), json!("5m"), json!("alice, bob"), json!(""), json!("n/s")]
    );
}

#[test]
fn binding_columns() {
    for (plural, kind, role) in [
        ("rolebindings", "roleBinding", "a Role in the current namespace or a ClusterRole"),
        ("clusterrolebindings", "clusterRoleBinding", "only reference a ClusterRole"),
    ] {
        let definition = crate::definition(GROUP, plural);
        let columns = &definition.versions[0].columns;
        assert!(columns[1].description.contains(role), "{}", columns[1].description);
        let wide: Vec<(&str, &str, i32)> = columns[3..]
            .iter()
            .map(|column| (&*column.name, &*column.description, column.priority))
            .collect();
        let described = |what: &str| format!("{what} in the {kind}");
        let expected =
            ["Users", "Groups", "ServiceAccounts"].map(|name| (name, described(name), 1));
        let expected: Vec<(&str, &str, i32)> =
            expected.iter().map(|(name, text, priority)| (*name, &**text, *priority)).collect();
        assert_eq!(wide, expected);
    }
}
