//! Approves requests for client certificates of kubelets, if RBAC lets their user have one: a new
//! node's (`nodeclient`), or a node's next one (`selfnodeclient`). Serving certificates are
//! approved by people.

use super::{APPROVED, CLIENT_SIGNER, DENIED, WORKERS};
use super::{add_condition, client_fault, condition, is_issued, watch};
use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use ferrokube_pki::CertificateRequest;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;

/// Interval of reviews of a request whose user has no right yet.
const REVIEW: Duration = Duration::from_secs(60);

/// A right to a client certificate.
struct ApprovalRule {
    /// Subresource that RBAC must let the user create.
    right: &'static str,
    applies: fn(&CertificateSigningRequestSpec, &CertificateRequest) -> bool,
    message: &'static str,
}

static RULES: [ApprovalRule; 2] = [
    ApprovalRule {
        right: "selfnodeclient",
        applies: |spec, request| {
            spec.username.as_deref() == Some(&request.common_name) && is_client(spec, request)
        },
        message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
    },
    ApprovalRule {
        right: "nodeclient",
        applies: is_client,
        message: "Auto approving kubelet client certificate after SubjectAccessReview.",
    },
];

fn is_client(spec: &CertificateSigningRequestSpec, request: &CertificateRequest) -> bool {
    client_fault(spec, request).is_none()
}

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let watch = watch(client.clone(), &queue);
    let work = queue.run("certificatesigningrequest-approving", WORKERS, move |name, trace| {
        review(trace.client(&client), name)
    });
    tokio::join!(watch, work);
}

async fn review(client: Client, name: String) -> Result<Next, kube::Error> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let Some(mut request) = requests.get_opt(&name).await? else { return Ok(Next::Done) };
    let is_decided = [APPROVED, DENIED].iter().any(|kind| condition(&request, kind).is_some());
    if is_decided || is_issued(&request) {
        return Ok(Next::Done);
    }
    let rules = applicable(&request.spec);
    if rules.is_empty() {
        return Ok(Next::Done);
    }
    for rule in rules {
        if !permits(&client, &request.spec, rule.right).await? {
            continue;
        }
        add_condition(&mut request, APPROVED, "AutoApproved", rule.message.to_owned());
        let parameters = PostParams::default();
        return match requests.replace_subresource("approval", &name, &parameters, &request).await {
            Ok(_) => {
                tracing::info!(request = name, right = rule.right, "certificate request approved");
                Ok(Next::Done)
            }
            // Deleted, or changed: the watch wakes us again.
            Err(error) if matches!(code(&error), 404 | 409) => Ok(Next::Done),
            Err(error) => Err(error),
        };
    }
    let user = request.spec.username.as_deref().unwrap_or_default();
    tracing::debug!(request = name, user, "the user has no right to a client certificate");
    Ok(Next::After(REVIEW))
}

/// The rules by which a request may be approved. None for one of another signer, which is not even
/// parsed, or one that cannot be read, which the API server refuses.
fn applicable(spec: &CertificateSigningRequestSpec) -> Vec<&'static ApprovalRule> {
    if spec.signer_name != CLIENT_SIGNER {
        return Vec::new();
    }
    let Ok(request) = CertificateRequest::parse(&spec.request.0) else { return Vec::new() };
    RULES.iter().filter(|rule| (rule.applies)(spec, &request)).collect()
}

async fn permits(
    client: &Client,
    spec: &CertificateSigningRequestSpec,
    right: &str,
) -> Result<bool, kube::Error> {
    let text = |text: &str| Some(text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: spec.username.clone(),
            uid: spec.uid.clone(),
            groups: spec.groups.clone(),
            extra: spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: text("certificates.k8s.io"),
                version: text("*"),
                resource: text("certificatesigningrequests"),
                subresource: text(right),
                verb: text("create"),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let reviewed = reviews.create(&PostParams::default(), &review).await?;
    Ok(reviewed.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NODE, USAGES, request};
    use super::*;

    fn rights(spec: &CertificateSigningRequestSpec) -> Vec<&'static str> {
        applicable(spec).iter().map(|rule| rule.right).collect()
    }

    #[test]
    fn a_node_may_renew_its_own_certificate_and_others_need_more() {
        let mut spec = request(&NODE, &[], &USAGES).spec;
        assert_eq!(rights(&spec), ["selfnodeclient", "nodeclient"]);
        spec.username = Some("system:node:b".to_owned());
        assert_eq!(rights(&spec), ["nodeclient"], "another node's");
        spec.username = Some("system:bootstrap:abcdef".to_owned());
        assert_eq!(rights(&spec), ["nodeclient"]);
        spec.signer_name = "kubernetes.io/kubelet-serving".to_owned();
        assert!(rights(&spec).is_empty());
        let spec = request(&NODE, &["kubernetes.default"], &["server auth", "digital signature"]);
        assert!(rights(&spec.spec).is_empty());
        let mut garbage = request(&NODE, &[], &USAGES).spec;
        garbage.request.0.truncate(100);
        assert!(rights(&garbage).is_empty());
    }
}
