//! CertificateSigningRequests: those of kubelets are approved if their user may have them, those of
//! other clients by people; signed once approved, removed after a while.

mod approval;
mod cleaning;
mod signing;

pub(crate) use approval::run as approve;
pub(crate) use cleaning::run as clean;
pub(crate) use signing::run as sign;

use crate::queue::WorkQueue;
use crate::watching;
use ferrokube_client::cause;
use ferrokube_pki::CertificateRequest;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

/// Requests that are handled at a time.
const WORKERS: usize = 2;
/// Client certificates of users, which people approve.
const USER_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Client certificates of kubelets.
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Serving certificates of kubelets.
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";
const KEY_ENCIPHERMENT: &str = "key encipherment";

/// Adds each request to a queue. Runs until dropped.
async fn watch(client: Client, queue: &WorkQueue<String>) {
    let requests = Api::<PartialObjectMeta<CertificateSigningRequest>>::all(client);
    let each = watching::each(requests, watcher::Config::default(), |request, gone| {
        if !gone {
            queue.add(request.name_any(), cause(&request.metadata));
        }
    });
    each.await;
}

/// The condition of a type, if it is true.
fn condition<'a>(
    request: &'a CertificateSigningRequest,
    kind: &str,
) -> Option<&'a CertificateSigningRequestCondition> {
    let all = request.status.as_ref()?.conditions.as_deref()?;
    all.iter().find(|it| it.type_ == kind && it.status == "True")
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    certificate(request).is_some_and(|bytes| !bytes.is_empty())
}

fn certificate(request: &CertificateSigningRequest) -> Option<&[u8]> {
    Some(&request.status.as_ref()?.certificate.as_ref()?.0)
}

fn add_condition(
    request: &mut CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: String,
) {
    let condition = CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(Timestamp::now())),
        last_transition_time: None,
    };
    request.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
}

/// Why a request is not one for the client certificate of a user. A subject that the API server
/// would take for an administrator is refused in spite of its approval, as at its creation.
fn user_fault(
    spec: &CertificateSigningRequestSpec,
    request: &CertificateRequest,
) -> Option<String> {
    if request.common_name.is_empty() {
        return Some("subject common name is required".to_owned());
    }
    if request.organizations.iter().any(|group| group == "system:masters") {
        return Some(format!(
            "use of {USER_SIGNER} signer with system:masters group is not allowed"
        ));
    }
    // The library signs one of them, and the holder would lack the groups that were approved.
    if request.organizations.len() > 1 {
        return Some("subjects with several organizations are not supported".to_owned());
    }
    if !request.mail_addresses.is_empty() || !request.uris.is_empty() || request.has_other_names {
        return Some("subjectAltNames other than DNS and IP are not supported".to_owned());
    }
    let mut usages = spec.usages.iter().flatten();
    let known = ["client auth", "digital signature", KEY_ENCIPHERMENT];
    if let Some(other) = usages.clone().find(|usage| !known.contains(&usage.as_str())) {
        return Some(format!("invalid usage for client certificate: {other}"));
    }
    let has_purpose = usages.any(|usage| usage == "client auth");
    (!has_purpose).then(|| "missing required usage for client certificate: client auth".to_owned())
}

/// Why a request is not one for the client certificate of a kubelet; kube-controller-manager's
/// words.
fn client_fault(
    spec: &CertificateSigningRequestSpec,
    request: &CertificateRequest,
) -> Option<&'static str> {
    if let Some(fault) = node_fault(request) {
        return Some(fault);
    }
    if !request.dns_names.is_empty() {
        return Some("DNS subjectAltNames are not allowed");
    }
    if !request.addresses.is_empty() {
        return Some("IP subjectAltNames are not allowed");
    }
    (!has_usages(spec, "client auth")).then_some(
        "usages did not match [client auth digital signature] or [client auth digital signature \
         key encipherment]",
    )
}

/// Why a request is not one for the serving certificate of a kubelet.
fn serving_fault(
    spec: &CertificateSigningRequestSpec,
    request: &CertificateRequest,
) -> Option<&'static str> {
    if let Some(fault) = node_fault(request) {
        return Some(fault);
    }
    if request.dns_names.is_empty() && request.addresses.is_empty() {
        return Some("DNS or IP subjectAltName is required");
    }
    (!has_usages(spec, "server auth")).then_some(
        "usages did not match [digital signature key encipherment server auth] or [digital \
         signature server auth]",
    )
}

/// Faults of requests for either certificate of a kubelet.
fn node_fault(request: &CertificateRequest) -> Option<&'static str> {
    if request.organizations != ["system:nodes"] {
        return Some("subject organization is not system:nodes");
    }
    let node = request.common_name.strip_prefix("system:node:");
    if node.is_none_or(str::is_empty) {
        return Some("subject common name does not begin with system:node:");
    }
    if !request.mail_addresses.is_empty() {
        return Some("email subjectAltNames are not allowed");
    }
    if !request.uris.is_empty() || request.has_other_names {
        return Some("URI subjectAltNames are not allowed");
    }
    None
}

/// Whether the usages are those of a purpose.
fn has_usages(spec: &CertificateSigningRequestSpec, purpose: &str) -> bool {
    let mut usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.retain(|usage| *usage != KEY_ENCIPHERMENT);
    usages.sort_unstable();
    usages == [purpose, "digital signature"] || usages == ["digital signature", purpose]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_pki::{RequestedKey, Subject};
    use k8s_openapi::ByteString;

    /// A request for a subject and host names.
    pub(super) fn request(
        subject: &Subject<'_>,
        names: &[&str],
        usages: &[&str],
    ) -> CertificateSigningRequest {
        let key = RequestedKey::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let pem = key.request(subject, &names, &[]).expect("a request");
        let usages = usages.iter().map(|usage| (*usage).to_owned()).collect();
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: CLIENT_SIGNER.to_owned(),
                username: Some("system:node:a".to_owned()),
                usages: Some(usages),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }

    pub(super) const NODE: Subject<'static> =
        Subject { common_name: "system:node:a", organizations: &["system:nodes"] };
    pub(super) const USAGES: [&str; 2] = ["client auth", "digital signature"];

    fn faults(subject: &Subject<'_>, names: &[&str], usages: &[&str]) -> [Option<&'static str>; 2] {
        let request = request(subject, names, usages);
        let parsed = CertificateRequest::parse(&request.spec.request.0).expect("it was just made");
        [client_fault(&request.spec, &parsed), serving_fault(&request.spec, &parsed)]
    }

    #[test]
    fn certificates_of_users_are_for_clients_that_are_not_administrators() {
        let fault = |common_name, organizations, usages: &[&str]| {
            let request = request(&Subject { common_name, organizations }, &[], usages);
            let parsed = CertificateRequest::parse(&request.spec.request.0).expect("a request");
            user_fault(&request.spec, &parsed)
        };
        assert_eq!(fault("jane", &["devs"], &["client auth"]), None);
        assert_eq!(
            fault("jane", &[], &["digital signature", "key encipherment", "client auth"]),
            None
        );
        let masters = fault("jane", &["devs", "system:masters"], &USAGES).expect("a fault");
        assert!(masters.contains("system:masters"), "{masters}");
        assert_eq!(fault("", &[], &USAGES).expect("a fault"), "subject common name is required");
        let several =
            request(&Subject { common_name: "jane", organizations: &["devs"] }, &[], &USAGES);
        let mut parsed = CertificateRequest::parse(&several.spec.request.0).expect("a request");
        parsed.organizations.push("ops".to_owned());
        let fault_of_several = user_fault(&several.spec, &parsed).expect("a fault");
        assert!(fault_of_several.contains("several organizations"), "{fault_of_several}");
        let missing = "missing required usage for client certificate: client auth";
        assert_eq!(fault("jane", &[], &["digital signature"]).expect("a fault"), missing);
        let other = "invalid usage for client certificate: server auth";
        assert_eq!(fault("jane", &[], &["client auth", "server auth"]).expect("a fault"), other);
    }

    #[test]
    fn only_requests_of_kubelets_are_recognized() {
        let all = ["digital signature", "key encipherment", "client auth"];
        let server = ["server auth", "digital signature"];
        assert_eq!(faults(&NODE, &[], &USAGES)[0], None);
        assert_eq!(faults(&NODE, &[], &all)[0], None);
        assert_eq!(faults(&NODE, &["a"], &server)[1], None);
        let names = faults(&NODE, &["a"], &USAGES)[0];
        assert_eq!(names, Some("DNS subjectAltNames are not allowed"));
        let none = faults(&NODE, &[], &server)[1];
        assert_eq!(none, Some("DNS or IP subjectAltName is required"));
        for usages in [&all[..2], &server, &["any"], &[], &["client auth", "server auth"]] {
            let [client, _] = faults(&NODE, &[], usages);
            assert!(client.is_some_and(|fault| fault.starts_with("usages")), "{usages:?}");
        }
        let of = |common_name, organizations| Subject { common_name, organizations };
        let organization = Some("subject organization is not system:nodes");
        for organizations in [&["system:masters"][..], &[]] {
            assert_eq!(
                faults(&of("system:node:a", organizations), &["a"], &USAGES),
                [organization; 2]
            );
        }
        let name = Some("subject common name does not begin with system:node:");
        for common_name in ["kubernetes-admin", "system:node:", "", "a system:node:a"] {
            assert_eq!(faults(&of(common_name, &["system:nodes"]), &["a"], &USAGES), [name; 2]);
        }
    }
}
