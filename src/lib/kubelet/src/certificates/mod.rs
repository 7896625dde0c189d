//! The node's certificates: requested from the API server (CertificateSigningRequest), kept in
//! files that only their owner may read, and renewed.

mod bootstrap;
mod store;

pub use bootstrap::{BootstrapFiles, NodeBootstrapError};
pub(crate) use store::StoredCertificate;

use ferrokube_client::Outage;
use ferrokube_pki::{NODES, PkiError, RequestedKey, Subject, node_name};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::CertificateStore;

/// Interval of reads of a request without a decision.
const POLL: Duration = Duration::from_secs(2);
/// Pause between two requests, also after one that succeeded.
const RETRY: Duration = Duration::from_secs(10);

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateKind {
    Client,
    Serving,
}

impl CertificateKind {
    /// Start of the names of its files.
    fn prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// Without `key encipherment`, which is for RSA.
    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// Why there is no new certificate. Each is tried again.
#[derive(Debug, thiserror::Error)]
enum CertificateFailure {
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    /// A key or file is unusable, or the certificate is not the requested one.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// Another key is tried next.
    #[error("the certificate request {name} was refused: {why}")]
    Refused { name: String, why: String },
    #[error("the certificate request {0} was deleted")]
    Deleted(String),
}

/// Where the node's certificates are, and the node.
#[derive(Clone, Debug)]
pub struct NodeCertificates {
    directory: PathBuf,
    node: String,
}

impl NodeCertificates {
    /// In a directory, which is created with mode 0700.
    pub fn new(directory: &Path, node: &str) -> Self {
        Self { directory: directory.to_owned(), node: node.to_owned() }
    }

    /// Renews the client certificate of a bootstrap until dropped; ends if there was none. New
    /// connections show the new one.
    pub async fn renew_client(&self, client: &Client) {
        let kind = CertificateKind::Client;
        let path = CertificateStore::new(&self.directory, kind.prefix()).current_path();
        if !path.exists() {
            tracing::warn!(file = %path.display(), "without this file the node's certificate is not renewed");
            return;
        }
        self.renew(client, kind, &[], |_| {}).await;
    }

    /// Requests and renews the serving certificate until dropped; `serve` is called with each.
    pub(crate) async fn renew_serving(
        &self,
        client: &Client,
        names: &[String],
        serve: impl Fn(&StoredCertificate),
    ) {
        self.renew(client, CertificateKind::Serving, names, serve).await;
    }

    async fn renew(
        &self,
        client: &Client,
        kind: CertificateKind,
        names: &[String],
        accept: impl Fn(&StoredCertificate),
    ) {
        let mut outage = Outage::new(format!("renew the certificate {}", kind.prefix()));
        let store = CertificateStore::new(&self.directory, kind.prefix());
        let mut is_first = true;
        loop {
            match store.current() {
                Ok(Some(current)) => {
                    accept(&current);
                    // The node's names may have changed since the last run. Later on a signer that
                    // leaves some out is not asked repeatedly.
                    let is_whole = names.iter().all(|name| current.names.contains(name));
                    if is_whole || !is_first {
                        current.renewal.due().await;
                    }
                }
                Ok(None) => {}
                // Expired, or damaged: replaced.
                Err(error) => tracing::warn!(%error, "cannot use the node's certificate"),
            }
            match self.request(client, kind, names).await {
                Ok(()) => _ = outage.works(),
                Err(error) => _ = outage.failed(&error),
            }
            is_first = false;
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Requests a certificate and waits until it is signed. The key is kept: when dropped, or after
    /// an error of the API server, the next call continues with the same request.
    async fn request(
        &self,
        client: &Client,
        kind: CertificateKind,
        names: &[String],
    ) -> Result<(), CertificateFailure> {
        let store = CertificateStore::new(&self.directory, kind.prefix());
        let key = store.pending_key()?;
        let digest = key.digest();
        let name = format!("node-csr-{}", digest.get(..40).unwrap_or(&digest));
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        let request = self.certificate_request(kind, names, &name, &key)?;
        match requests.create(&PostParams::default(), &request).await {
            Ok(_) => tracing::info!(request = name, "certificate requested"),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            let Some(found) = requests.get_opt(&name).await? else {
                return Err(CertificateFailure::Deleted(name));
            };
            match decision(&found) {
                RequestDecision::Issued(chain) => {
                    key.check(&chain, &store.current_path())?;
                    store.replace(&chain, &key)?;
                    tracing::info!(request = name, "certificate received");
                    return Ok(());
                }
                RequestDecision::Refused(why) => {
                    store.forget_key()?;
                    return Err(CertificateFailure::Refused { name, why });
                }
                RequestDecision::Pending => tokio::time::sleep(POLL).await,
            }
        }
    }

    fn certificate_request(
        &self,
        kind: CertificateKind,
        names: &[String],
        name: &str,
        key: &RequestedKey,
    ) -> Result<CertificateSigningRequest, PkiError> {
        let user = node_name(&self.node);
        let subject = Subject { common_name: &user, organizations: &[NODES] };
        let addresses: Vec<IpAddr> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let is_name = |name: &&String| name.parse::<IpAddr>().is_err();
        let dns_names: Vec<String> = names.iter().filter(is_name).cloned().collect();
        let pem = key.request(&subject, &dns_names, &addresses)?;
        Ok(CertificateSigningRequest {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: kind.signer().to_owned(),
                usages: Some(kind.usages().map(str::to_owned).into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        })
    }
}

/// State of a request.
#[derive(Debug, PartialEq, Eq)]
enum RequestDecision {
    /// With the chain in PEM.
    Issued(String),
    /// With the reason.
    Refused(String),
    Pending,
}

fn decision(request: &CertificateSigningRequest) -> RequestDecision {
    let status = request.status.clone().unwrap_or_default();
    let refused = status
        .conditions
        .into_iter()
        .flatten()
        .find(|it| matches!(it.type_.as_str(), "Denied" | "Failed") && it.status == "True");
    if let Some(refused) = refused {
        let reason = refused.reason.unwrap_or_default();
        return RequestDecision::Refused(format!(
            "{reason}: {}",
            refused.message.unwrap_or_default()
        ));
    }
    match status.certificate.and_then(|bytes| String::from_utf8(bytes.0).ok()) {
        Some(chain) if !chain.is_empty() => RequestDecision::Issued(chain),
        _ => RequestDecision::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_pki::CertificateRequest;
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestStatus,
    };

    #[test]
    fn requests_are_those_that_are_approved_for_nodes() {
        let node = NodeCertificates::new(Path::new("/unused"), "a");
        let key = RequestedKey::generate().unwrap();
        let names = ["a.example".to_owned(), "192.0.2.1".to_owned()];
        let made = |kind, names: &[String]| {
            let request = node.certificate_request(kind, names, "n", &key).unwrap();
            let parsed = CertificateRequest::parse(&request.spec.request.0).unwrap();
            assert_eq!(parsed.common_name, "system:node:a");
            assert_eq!(parsed.organizations, ["system:nodes"]);
            (request.spec.signer_name, parsed.dns_names, parsed.addresses)
        };
        let (signer, dns_names, addresses) = made(CertificateKind::Client, &[]);
        assert_eq!(signer, "kubernetes.io/kube-apiserver-client-kubelet");
        assert!(dns_names.is_empty() && addresses.is_empty());
        let (signer, dns_names, addresses) = made(CertificateKind::Serving, &names);
        assert_eq!(signer, "kubernetes.io/kubelet-serving");
        assert_eq!((dns_names, addresses.len()), (vec!["a.example".to_owned()], 1));
    }

    #[test]
    fn a_refusal_counts_before_a_certificate() {
        let mut request = CertificateSigningRequest::default();
        assert_eq!(decision(&request), RequestDecision::Pending);
        request.status = Some(CertificateSigningRequestStatus {
            certificate: Some(ByteString(b"chain".to_vec())),
            conditions: None,
        });
        assert_eq!(decision(&request), RequestDecision::Issued("chain".to_owned()));
        let denied = CertificateSigningRequestCondition {
            type_: "Denied".to_owned(),
            status: "True".to_owned(),
            reason: Some("KubectlDeny".to_owned()),
            message: Some("no".to_owned()),
            ..CertificateSigningRequestCondition::default()
        };
        request.status.as_mut().unwrap().conditions = Some(vec![denied]);
        assert_eq!(decision(&request), RequestDecision::Refused("KubectlDeny: no".to_owned()));
    }
}
