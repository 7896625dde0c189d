//! Signs approved requests of kubelets and of other clients. Subject and usages of an approved
//! request are checked again: an approval of a wrong one fails.

use super::{
    APPROVED, CLIENT_SIGNER, FAILED, KEY_ENCIPHERMENT, SERVING_SIGNER, USER_SIGNER, WORKERS,
};
use super::{add_condition, client_fault, condition, is_issued, serving_fault, user_fault, watch};
use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use ferrokube_pki::{
    CertificatePurpose, CertificateRequest, CertificateTerms, PkiError, RequestSigner,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;

/// Why a request was not signed. Retried with back-off.
#[derive(Debug, thiserror::Error)]
enum SigningError {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    #[error("the certificate cannot be signed")]
    Pki(#[from] PkiError),
}

/// Runs until dropped.
pub(crate) async fn run(client: Client, signer: RequestSigner) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let watch = watch(client.clone(), &queue);
    let work = queue.run("certificatesigningrequest-signing", WORKERS, move |name, trace| {
        sign(trace.client(&client), name, signer.clone())
    });
    tokio::join!(watch, work);
}

async fn sign(client: Client, name: String, signer: RequestSigner) -> Result<Next, SigningError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let Some(mut request) = requests.get_opt(&name).await? else { return Ok(Next::Done) };
    let is_open = condition(&request, APPROVED).is_some()
        && condition(&request, FAILED).is_none()
        && !is_issued(&request);
    let Some(own) = signer_of(&request.spec).filter(|_| is_open) else { return Ok(Next::Done) };
    match issue(&request.spec, own, &signer)? {
        Ok(certificate) => {
            let status = request.status.get_or_insert_default();
            status.certificate = Some(ByteString(certificate.into_bytes()));
        }
        Err(fault) => {
            tracing::warn!(request = name, fault, "approved certificate request refused");
            add_condition(&mut request, FAILED, "SignerValidationFailure", fault);
        }
    }
    match requests.replace_status(&name, &PostParams::default(), &request).await {
        Ok(_) => {
            tracing::info!(request = name, "certificate request answered");
            Ok(Next::Done)
        }
        // Deleted, or changed: the watch wakes us again.
        Err(error) if matches!(code(&error), 404 | 409) => Ok(Next::Done),
        Err(error) => Err(error.into()),
    }
}

/// Signers that this controller is, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnSigner {
    User,
    NodeClient,
    NodeServing,
}

/// `None`: another signer's.
fn signer_of(spec: &CertificateSigningRequestSpec) -> Option<OwnSigner> {
    match spec.signer_name.as_str() {
        USER_SIGNER => Some(OwnSigner::User),
        CLIENT_SIGNER => Some(OwnSigner::NodeClient),
        SERVING_SIGNER => Some(OwnSigner::NodeServing),
        _ => None,
    }
}

/// The certificate, or why it is not given.
fn issue(
    spec: &CertificateSigningRequestSpec,
    own: OwnSigner,
    signer: &RequestSigner,
) -> Result<Result<String, String>, PkiError> {
    let request = match CertificateRequest::parse(&spec.request.0) {
        Ok(request) => request,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let fault = match own {
        OwnSigner::User => user_fault(spec, &request),
        OwnSigner::NodeClient => client_fault(spec, &request).map(str::to_owned),
        OwnSigner::NodeServing => serving_fault(spec, &request).map(str::to_owned),
    };
    if let Some(fault) = fault {
        return Ok(Err(fault));
    }
    let lifetime = spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let terms = CertificateTerms {
        purpose: match own {
            OwnSigner::User | OwnSigner::NodeClient => CertificatePurpose::Client,
            OwnSigner::NodeServing => CertificatePurpose::Serving,
        },
        enciphers_keys: spec.usages.iter().flatten().any(|usage| usage == KEY_ENCIPHERMENT),
        lifetime: lifetime.map(Duration::from_secs),
    };
    signer.sign(&request, terms).map(Ok)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, USAGES, request};
    use super::*;
    use ferrokube_pki::{CertificateFacts, Pki, Subject};

    #[test]
    fn an_approval_does_not_widen_what_is_signed() {
        let folder = std::env::temp_dir().join(format!("ferrokube-csr-{}", std::process::id()));
        let signer = Pki::open(&folder).expect("a directory").request_signer();
        let spec = request(&NODE, &[], &USAGES).spec;
        let issued = issue(&spec, OwnSigner::NodeClient, &signer);
        let issued = issued.expect("signed").expect("given");
        let facts = CertificateFacts::read_all(issued.as_bytes()).expect("a certificate");
        assert_eq!(facts[0].subject, "O=system:nodes, CN=system:node:a");
        let masters = Subject { common_name: "me", organizations: &["system:masters"] };
        let refused = |spec: &CertificateSigningRequestSpec, own| {
            issue(spec, own, &signer).expect("nothing to sign").expect_err("a fault")
        };
        let spec = request(&masters, &[], &USAGES).spec;
        for own in [OwnSigner::NodeClient, OwnSigner::NodeServing] {
            assert_eq!(refused(&spec, own), "subject organization is not system:nodes");
        }
        let spec = request(&NODE, &["kubernetes"], &USAGES).spec;
        assert!(refused(&spec, OwnSigner::NodeServing).starts_with("usages"));
        assert!(
            refused(&request(&masters, &[], &USAGES).spec, OwnSigner::User).contains("not allowed")
        );
        let jane = Subject { common_name: "jane", organizations: &["devs"] };
        let issued = issue(&request(&jane, &[], &["client auth"]).spec, OwnSigner::User, &signer);
        let issued = issued.expect("signed").expect("given");
        let facts = CertificateFacts::read_all(issued.as_bytes()).expect("a certificate");
        assert_eq!(facts[0].subject, "O=devs, CN=jane");
        std::fs::remove_dir_all(&folder).expect("it exists");
    }

    #[test]
    fn other_signers_are_left_alone() {
        let mut spec = request(&NODE, &[], &USAGES).spec;
        assert_eq!(signer_of(&spec), Some(OwnSigner::NodeClient));
        spec.signer_name = USER_SIGNER.to_owned();
        assert_eq!(signer_of(&spec), Some(OwnSigner::User));
        for other in ["kubernetes.io/legacy-unknown", "example.com/signer", ""] {
            spec.signer_name = other.to_owned();
            assert_eq!(signer_of(&spec), None);
        }
    }
}
