//! ConfigMap, Secret, ServiceAccount.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::json;

#[test]
fn configmaps() {
    let create = WriteCase::create("", "configmaps");
    create.gives(
        json!({"data": {"k": "v"}, "binaryData": {"b": "AP8="}}),
        &json!({"metadata": {}, "data": {"k": "v"}, "binaryData": {"b": "AP8="}}),
    );
    create.gives(
        json!({"data": {}, "immutable": false, "binaryData": null}),
        &json!({"metadata": {}, "immutable": false}),
    );
    create.refused(json!({"data": {"bad key": "x"}}), &[("Invalid", "data[bad key]")]);
    create.refused(
        json!({"data": {".": "", "..": "", "..z": ""}}),
        &[("Invalid", "data[.]"), ("Invalid", "data[..]"), ("Invalid", "data[..z]")],
    );
    create.refused(
        json!({"data": {"k": "v"}, "binaryData": {"k": "dg=="}}),
        &[("Invalid", "data[k]")],
    );
    create.refused(json!({"data": {"k": "x".repeat(1 << 20)}}), &[]);
    create.refused(json!({"data": {"k": "x".repeat((1 << 20) + 1)}}), &[("TooLong", "[]")]);
}

#[test]
fn immutable_configmaps() {
    let update =
        WriteCase::update("", "configmaps", json!({"data": {"k": "v"}, "immutable": true}));
    update.refused(
        json!({"data": {"k": "v"}, "immutable": true, "metadata": {"labels": {"a": "b"}}}),
        &[],
    );
    update
        .refused(json!({"data": {"k": "w"}}), &[("Forbidden", "data"), ("Forbidden", "immutable")]);
    update.refused(
        json!({"data": {"k": "v"}, "binaryData": {"b": ""}, "immutable": true}),
        &[("Forbidden", "binaryData")],
    );
}

#[test]
fn configmap_cells() {
    let row = cells(
        "",
        "configmaps",
        json!({"metadata": {"name": "t"}, "data": {"a": "1"}, "binaryData": {"b": ""}}),
    );
    assert_eq!(row, [json!("t"), json!(2), json!("5m")]);
}

#[test]
fn secrets() {
    let create = WriteCase::create("", "secrets");
    create.gives(
        json!({"stringData": {"k": "v"}, "data": {"k": "AA==", "n": null}}),
        &json!({"metadata": {}, "data": {"k": "dg==", "n": ""}, "type": "Opaque"}),
    );
    create.gives(
        json!({"type": "Not/A/Type at all"}),
        &json!({"metadata": {}, "type": "Not/A/Type at all"}),
    );
    create.refused(json!({"stringData": {"k": "x".repeat((1 << 20) + 1)}}), &[("TooLong", "data")]);
    create.refused(
        json!({"type": "kubernetes.io/tls"}),
        &[("Required", "data[tls.crt]"), ("Required", "data[tls.key]")],
    );
    create.refused(
        json!({"type": "kubernetes.io/basic-auth", "stringData": {"x": "y"}}),
        &[("Required", "data[username]"), ("Required", "data[password]")],
    );
    create
        .refused(json!({"type": "kubernetes.io/basic-auth", "stringData": {"password": ""}}), &[]);
    create.refused(
        json!({"type": "kubernetes.io/ssh-auth", "stringData": {}}),
        &[("Required", "data[ssh-privatekey]")],
    );
    let account = "metadata.annotations[kubernetes.io/service-account.name]";
    create
        .refused(json!({"type": "kubernetes.io/service-account-token"}), &[("Required", account)]);
    for (text, errors) in [("nope", 1), ("{}", 0), ("[]", 1)] {
        let object = json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": text}});
        assert_eq!(create.run(object).errors.len(), errors, "{text}");
    }
    create.refused(json!({"type": "kubernetes.io/dockercfg"}), &[("Required", "data[.dockercfg]")]);
}

#[test]
fn the_type_and_immutable_data_of_a_secret_cannot_change() {
    let update = WriteCase::update(
        "",
        "secrets",
        json!({"type": "Opaque", "data": {"k": "dg=="}, "immutable": true}),
    );
    update.refused(json!({"data": {"k": "dw=="}, "immutable": true}), &[("Forbidden", "data")]);
    update.refused(json!({"stringData": {"k": "v"}, "immutable": true}), &[]);
    update.refused(
        json!({"data": {"k": "dg=="}, "immutable": true, "type": "example.com/x"}),
        &[("Invalid", "type")],
    );
}

#[test]
fn tls_secrets_without_a_pair_are_warned_of() {
    let create = WriteCase::create("", "secrets");
    let warnings = create
        .run(json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": "", "tls.key": ""}}))
        .warnings;
    assert_eq!(warnings.len(), 1);
    assert!(create.run(json!({"type": "Opaque"})).warnings.is_empty());
}

/// Errors contain no values.
#[test]
fn fault_54_errors_do_not_quote_secrets() {
    let create = WriteCase::create("", "secrets");
    for kind in ["kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson", "kubernetes.io/tls"] {
        let object = json!({"type": kind, "stringData": {".dockercfg": "canary", ".dockerconfigjson": "canary", "tls.crt": "canary", "tls.key": "canary"}});
        let outcome = create.run(object);
        assert!(!format!("{:?}{:?}", outcome.errors, outcome.warnings).contains("canary"));
    }
}

#[test]
fn secret_cells() {
    let row = cells(
        "",
        "secrets",
        json!({"metadata": {"name": "s"}, "type": "Opaque", "data": {"a": "", "b": ""}}),
    );
    assert_eq!(row, [json!("s"), json!("Opaque"), json!(2), json!("5m")]);
}

#[test]
fn service_accounts() {
    let create = WriteCase::create("", "serviceaccounts");
    let given = json!({"secrets": [{"name": "s", "kind": "Secret", "namespace": "x"}], "automountServiceAccountToken": false, "imagePullSecrets": []});
    create.gives(
        given,
        &json!({"metadata": {}, "secrets": [{"name": "s"}], "automountServiceAccountToken": false}),
    );
    let annotated =
        json!({"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}});
    assert_eq!(create.run(annotated.clone()).warnings.len(), 1);
    assert!(
        WriteCase::update("", "serviceaccounts", annotated.clone())
            .run(annotated)
            .warnings
            .is_empty()
    );
    assert_eq!(
        cells("", "serviceaccounts", json!({"metadata": {"name": "default"}})),
        [json!("default"), json!("5m")]
    );
}
