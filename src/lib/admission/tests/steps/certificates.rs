//! CertificateApproval, CertificateSigning, CertificateSubjectRestriction.

use crate::{GrantedRights, StepRequest, definition, document, gates, store, target};
use ferrokube_admission::Chain;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_registry::Operation;
use ferrokube_resource::Scope;
use std::sync::Arc;

/// A request for `O=system:masters, CN=mallory`, made for these tests.
const MASTERS: &str = include_str!("masters.base64");

fn code(rights: &[&str], subresource: &str, old: Option<Value>, object: Value) -> Option<u16> {
    let rights = rights.iter().map(|right| (*right).to_owned()).collect();
    let chain = Chain::new(&store(), gates(""), Arc::new(GrantedRights(rights)));
    let mut target = target(
        &definition("certificates.k8s.io", "certificatesigningrequests", Scope::Cluster),
        None,
        "c",
    );
    target.subresource = subresource.to_owned();
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let request = StepRequest { operation, old: old.map(document), ..StepRequest::create(target) };
    request.pass(&chain, &mut document(object)).err().map(|failure| failure.code)
}

fn request(signer: &str, status: Value) -> Value {
    json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "request": MASTERS.trim()}, "status": status})
}

#[tokio::test]
async fn approval_needs_the_right_to_the_signer_or_its_domain() {
    let old = || Some(request("example.com/a", json!({})));
    let new = || request("example.com/a", json!({"conditions": [{"type": "Approved"}]}));
    assert_eq!(code(&[], "approval", old(), new()), Some(403));
    assert_eq!(code(&["sign example.com/a"], "approval", old(), new()), Some(403));
    assert_eq!(code(&["approve example.com/a"], "approval", old(), new()), None);
    assert_eq!(code(&["approve example.com/*"], "approval", old(), new()), None);
}

#[tokio::test]
async fn signing_needs_the_right_only_when_something_changes() {
    let old = || Some(request("example.com/a", json!({})));
    assert_eq!(code(&[], "status", old(), request("example.com/a", json!({}))), None);
    assert_eq!(
        code(&[], "status", old(), request("example.com/a", json!({"certificate": "x"}))),
        Some(403)
    );
    assert_eq!(
        code(&[], "status", old(), request("example.com/a", json!({"conditions": []}))),
        Some(403)
    );
    assert_eq!(
        code(
            &["sign example.com/a"],
            "status",
            old(),
            request("example.com/a", json!({"certificate": "x"}))
        ),
        None
    );
}

#[tokio::test]
async fn client_certificates_of_masters_are_rejected() {
    assert_eq!(
        code(&[], "", None, request("kubernetes.io/kube-apiserver-client", json!({}))),
        Some(403)
    );
    assert_eq!(code(&[], "", None, request("example.com/a", json!({}))), None);
    let mut unreadable = request("kubernetes.io/kube-apiserver-client", json!({}));
    unreadable["spec"]["request"] = json!("junk");
    assert_eq!(code(&[], "", None, unreadable), None);
}
