//! CertificateSigningRequest.

use crate::{WriteCase, cells};
use ferrokube_apimachinery::document::{Value, json};

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
/// An ECDSA request for `CN=parity`, made for these tests.
const REQUEST: &str = include_str!("request.base64");

fn request() -> Value {
    json!({"metadata": {"name": "c"}, "spec": {"request": REQUEST.trim(), "signerName": "example.com/signer", "usages": ["client auth"]}})
}

fn with(field: &str, value: Value) -> Value {
    let mut object = request();
    object["spec"][field] = value;
    object
}

fn stored(conditions: Value) -> Value {
    let mut object = request();
    object["status"] = json!({"conditions": conditions});
    object
}

#[test]
fn the_server_sets_the_requester() {
    let mut given = with("username", json!("mallory"));
    given["spec"]["groups"] = json!(["system:masters"]);
    given["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}]});
    let mut expected = request();
    for (field, value) in [
        ("username", json!("bob")),
        ("uid", json!("u-bob")),
        ("groups", json!(["devs"])),
        ("extra", json!({"scopes": ["s"]})),
    ] {
        expected["spec"][field] = value;
    }
    expected["status"] = json!({});
    WriteCase::create(GROUP, PLURAL).gives(given, &expected);
}

#[test]
fn requests_are_checked() {
    let create = WriteCase::create(GROUP, PLURAL);
    for bad in [
        "anVuaw==",
        "",
        "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=",
    ] {
        create.refused(with("request", json!(bad)), &[("Invalid", "spec.request")]);
    }
    create.refused(with("usages", json!([])), &[("Required", "spec.usages")]);
    create.refused(
        with("usages", json!(["client auth", "nonsense", "client auth"])),
        &[("NotSupported", "spec.usages[1]"), ("Duplicate", "spec.usages[2]")],
    );
    create.refused(with("expirationSeconds", json!(10)), &[("Invalid", "spec.expirationSeconds")]);
    create.refused(with("expirationSeconds", json!(600)), &[]);
    for bad in [
        "nodomain",
        "a/b/c",
        "nodots/x",
        "Example.com/x",
        "example.com/",
        "kubernetes.io/legacy-unknown",
    ] {
        create.refused(with("signerName", json!(bad)), &[("Invalid", "spec.signerName")]);
    }
    create.refused(with("signerName", json!("")), &[("Required", "spec.signerName")]);
}

#[test]
fn decisions_are_made_through_approval_only() {
    let approved = json!([{"type": "Approved", "status": "True", "reason": "X"}]);
    let denied = json!([{"type": "Denied", "status": "True", "reason": "X"}]);
    let fresh = || WriteCase::update(GROUP, PLURAL, stored(json!([])));
    fresh().of("status").refused(stored(approved.clone()), &[("Forbidden", "status.conditions")]);
    let outcome = fresh()
        .of("approval")
        .run(stored(json!([{"type": "Approved", "status": "True", "reason": "X"}])));
    assert_eq!(outcome.errors, []);
    let now = "2024-01-02T03:04:05Z";
    let expected = json!([{"type": "Approved", "status": "True", "reason": "X", "lastUpdateTime": now, "lastTransitionTime": now}]);
    assert_eq!(outcome.object.get(&["status", "conditions"]), Some(&expected));
    let decided = || WriteCase::update(GROUP, PLURAL, stored(approved.clone()));
    decided().of("approval").refused(stored(denied.clone()), &[("Forbidden", "status.conditions")]);
    let both =
        json!([{"type": "Approved", "status": "True"}, {"type": "Denied", "status": "True"}]);
    decided().of("approval").refused(stored(both), &[("Invalid", "status.conditions")]);
    // A plain update changes neither spec nor status.
    let mut other = stored(denied);
    other["spec"]["username"] = json!("other");
    let outcome = decided().run(other);
    assert_eq!(outcome.object.list(&["status", "conditions"])[0]["type"], json!("Approved"));
    assert_eq!(outcome.object.get(&["spec", "username"]), None);
}

#[test]
fn conditions_are_checked() {
    let approval = WriteCase::update(GROUP, PLURAL, stored(json!([]))).of("approval");
    approval.refused(
        stored(json!([{"type": "Approved", "status": "False"}])),
        &[("NotSupported", "status.conditions[0].status")],
    );
    approval.refused(
        stored(json!([{"type": "", "status": "True"}])),
        &[("Required", "status.conditions[0].type")],
    );
    approval.refused(
        stored(json!([{"type": "Approved"}])),
        &[("Required", "status.conditions[0].status")],
    );
    let twice = json!([{"type": "X", "status": "True"}, {"type": "X", "status": "True"}]);
    approval.refused(stored(twice), &[("Duplicate", "status.conditions[1].type")]);
}

#[test]
fn a_certificate_is_set_once_through_status() {
    let mut signed = stored(json!([]));
    signed["status"]["certificate"] = json!("anVuaw==");
    let status = WriteCase::update(GROUP, PLURAL, stored(json!([]))).of("status");
    status.refused(signed.clone(), &[("Invalid", "status.certificate")]);
    let update = WriteCase::update(GROUP, PLURAL, signed.clone()).of("status");
    signed["status"]["certificate"] = json!("b3RoZXI=");
    update
        .refused(signed, &[("Invalid", "status.certificate"), ("Forbidden", "status.certificate")]);
}

#[test]
fn signing_request_cells() {
    let mut object = stored(json!([{"type": "Approved"}]));
    object["spec"]["username"] = json!("bob");
    object["spec"]["expirationSeconds"] = json!(3600);
    object["status"]["certificate"] = json!("x");
    let expected = json!(["c", "5m", "example.com/signer", "bob", "60m", "Approved,Issued"]);
    assert_eq!(Value::from(cells(GROUP, PLURAL, object)), expected);
    let expected = json!(["c", "5m", "example.com/signer", "", "<none>", "Pending"]);
    assert_eq!(Value::from(cells(GROUP, PLURAL, request())), expected);
}
