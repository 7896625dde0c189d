//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: approving and signing
//! require rights to the signer.

use crate::step::{AdmissionStep, PermitQuery, Permits};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Attributes, Effects, Operation};
use std::sync::Arc;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

const GROUP: &str = "certificates.k8s.io";
/// Signer of client certificates for this API server.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const MASTERS: &str = "system:masters";

/// Approving or denying requires the verb `approve` on the signer.
pub struct CertificateApproval(Arc<dyn Permits>);

/// Writing a certificate or conditions requires the verb `sign` on the signer.
pub struct CertificateSigning(Arc<dyn Permits>);

/// Rejects requests for client certificates of `system:masters`.
pub struct CertificateSubjectRestriction;

impl CertificateApproval {
    /// `permits` is the server's authorizer.
    pub fn new(permits: Arc<dyn Permits>) -> Self {
        Self(permits)
    }
}

impl CertificateSigning {
    /// `permits` is the server's authorizer.
    pub fn new(permits: Arc<dyn Permits>) -> Self {
        Self(permits)
    }
}

impl AdmissionStep for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn mutates(&self) -> bool {
        false
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        let Some(object) = object.filter(|_| is_signing_request(attributes, "approval")) else {
            return Ok(());
        };
        may(&*self.0, attributes, "approve", signer(object))
    }
}

impl AdmissionStep for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn mutates(&self) -> bool {
        false
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        let (Some(object), Some(old)) =
            (object.filter(|_| is_signing_request(attributes, "status")), attributes.old)
        else {
            return Ok(());
        };
        let same = |field: &str| old.get(&["status", field]) == object.get(&["status", field]);
        if same("certificate") && same("conditions") {
            return Ok(());
        }
        may(&*self.0, attributes, "sign", signer(old))
    }
}

impl AdmissionStep for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn mutates(&self) -> bool {
        false
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        let creates =
            attributes.operation == Operation::Create && is_signing_request(attributes, "");
        let Some(object) = object.filter(|object| creates && signer(object) == CLIENT_SIGNER)
        else {
            return Ok(());
        };
        if organizations(object.str(&["spec", "request"]).unwrap_or_default())
            .iter()
            .any(|name| name == MASTERS)
        {
            return Err(forbidden(
                attributes,
                &format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"),
            ));
        }
        Ok(())
    }
}

fn is_signing_request(attributes: &Attributes<'_>, subresource: &str) -> bool {
    let target = attributes.target;
    let definition = &target.served.definition;
    target.subresource == subresource
        && definition.group == GROUP
        && definition.plural == "certificatesigningrequests"
}

fn signer(object: &Document) -> &str {
    object.str(&["spec", "signerName"]).unwrap_or_default()
}

/// Whether the user has the verb on the signer, or on all signers of its domain.
fn may(
    permits: &dyn Permits,
    attributes: &Attributes<'_>,
    verb: &str,
    signer: &str,
) -> Result<(), Failure> {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    for name in [signer, &domain] {
        let question = PermitQuery {
            verb,
            group: GROUP,
            version: "*",
            resource: "signers",
            namespace: "",
            name,
        };
        if permits.permits(&attributes.context.user, &question) {
            return Ok(());
        }
    }
    Err(forbidden(
        attributes,
        &format!("user not permitted to {verb} requests with signerName {signer:?}"),
    ))
}

fn forbidden(attributes: &Attributes<'_>, why: &str) -> Failure {
    let name = attributes.target.name.as_deref().unwrap_or_default();
    Failure::forbidden(&attributes.target.served.definition.group_resource(), name, why)
}

/// Organizations in a request's subject; none if it does not parse, which validation rejects.
fn organizations(request: &str) -> Vec<String> {
    let Some(bytes) = STANDARD.decode(request).ok() else {
        return Vec::new();
    };
    let Ok((_, pem)) = parse_x509_pem(&bytes) else {
        return Vec::new();
    };
    let Ok((_, request)) = X509CertificationRequest::from_der(&pem.contents) else {
        return Vec::new();
    };
    let subject = &request.certification_request_info.subject;
    subject
        .iter_organization()
        .map(|name| name.as_str().map_or_else(|_| MASTERS.to_owned(), str::to_owned))
        .collect()
}
