//! The first certificate of a node (TLS bootstrap): a kubeconfig that may only request one becomes
//! the node's own.

use super::{CertificateKind, CertificateStore, NodeCertificates, RETRY};
use ferrokube_client::{Connection, ConnectionError, Outage};
use ferrokube_pki::files::{self, FileError, FileMode};
use ferrokube_pki::{CertificateFacts, Validity};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Kubeconfigs before and after a bootstrap.
#[derive(Clone, Debug)]
pub struct BootstrapFiles {
    /// The node's own kubeconfig, written by [`NodeCertificates::bootstrap`].
    pub kubeconfig: PathBuf,
    /// A kubeconfig whose user may create CertificateSigningRequests.
    pub bootstrap: PathBuf,
}

/// Why a node cannot get its kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum NodeBootstrapError {
    /// The bootstrap kubeconfig cannot be used.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// It names no cluster.
    #[error("{0} has no current context with a cluster")]
    NoCluster(PathBuf),
    /// It cannot be read.
    #[error("cannot read {path}: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error chain as text. Not a `source`: kube's errors already print theirs.
        why: String,
    },
    /// The kubeconfig cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl NodeCertificates {
    /// Makes sure that the node has a kubeconfig with a valid certificate: waits until a request
    /// for one is approved and signed, however long that takes. `agent` is the client's user agent.
    ///
    /// # Errors
    /// [`NodeBootstrapError`]; refused and lost requests are logged and repeated.
    pub async fn bootstrap(
        &self,
        files: &BootstrapFiles,
        agent: &'static str,
    ) -> Result<(), NodeBootstrapError> {
        if is_usable(&files.kubeconfig, SystemTime::now()) {
            return Ok(());
        }
        // Before the wait: what is wrong here no approval repairs.
        let cluster = cluster(&files.bootstrap)?;
        let store = CertificateStore::new(&self.directory, CertificateKind::Client.prefix());
        if !matches!(store.current(), Ok(Some(_))) {
            let connection = Connection::from_kubeconfig(&files.bootstrap).await?;
            let client = connection.with_agent(agent).client()?;
            let mut outage = Outage::new("request the first certificate of this node");
            while let Err(error) = self.request(&client, CertificateKind::Client, &[]).await {
                outage.failed(&error);
                tokio::time::sleep(RETRY).await;
            }
        }
        let path = std::path::absolute(store.current_path()).unwrap_or(store.current_path());
        let text = own_kubeconfig(&cluster, &path).to_string();
        files::write(&files.kubeconfig, text.as_bytes(), FileMode::Private)?;
        tracing::info!(file = %files.kubeconfig.display(), "the node has its own kubeconfig");
        Ok(())
    }
}

/// Whether a kubeconfig exists whose certificate, if it has one, is valid.
fn is_usable(path: &Path, now: SystemTime) -> bool {
    let Ok(kubeconfig) = ferrokube_client::kubeconfig::read(path) else { return false };
    let user = kubeconfig.current_context.as_ref().and_then(|name| {
        let context = kubeconfig.contexts.iter().find(|it| it.name == *name)?.context.as_ref()?;
        let user = context.user.as_ref()?;
        kubeconfig.auth_infos.iter().find(|it| it.name == *user)?.auth_info.as_ref()
    });
    let Some(user) = user else { return false };
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => {
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).ok()
        }
        (None, Some(path)) => files::read(Path::new(path)).ok().flatten(),
        // A token, for example.
        (None, None) => return true,
    };
    let facts = pem.and_then(|pem| CertificateFacts::read_all(&pem).ok());
    facts
        .and_then(|facts| Some(facts.first()?.validity(now)))
        .is_some_and(|validity| matches!(validity, Validity::Valid | Validity::ExpiresSoon))
}

/// The cluster of the current context.
fn cluster(path: &Path) -> Result<Value, NodeBootstrapError> {
    let unreadable = |why: String| NodeBootstrapError::Unreadable { path: path.to_owned(), why };
    let kubeconfig =
        ferrokube_client::kubeconfig::read(path).map_err(|error| unreadable(error.to_string()))?;
    let cluster = kubeconfig.current_context.as_ref().and_then(|name| {
        let context = kubeconfig.contexts.iter().find(|it| it.name == *name)?.context.as_ref()?;
        kubeconfig.clusters.iter().find(|it| it.name == context.cluster)?.cluster.as_ref()
    });
    let cluster = cluster.ok_or_else(|| NodeBootstrapError::NoCluster(path.to_owned()))?;
    serde_json::to_value(cluster).map_err(|error| unreadable(error.to_string()))
}

/// With kubelet's names.
fn own_kubeconfig(cluster: &Value, certificate: &Path) -> Value {
    let certificate = certificate.display().to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": {
            "client-certificate": certificate, "client-key": certificate}}],
        "contexts": [{"name": "default-context", "context": {
            "cluster": "default-cluster", "user": "default-auth", "namespace": "default"}}],
        "current-context": "default-context",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_pki::{ADMIN, Pki, kubeconfig};
    use std::time::Duration;

    #[test]
    fn a_kubeconfig_counts_while_its_certificate_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let now = SystemTime::now();
        assert!(!is_usable(&path, now), "there is none");
        let pki = Pki::open(&folder.path().join("pki")).unwrap();
        let client = pki.client(&ADMIN, Duration::from_secs(3600)).unwrap();
        let of = kubeconfig::Kubeconfig {
            server: "https://192.0.2.1:6443",
            cluster: "c",
            user: "u",
            ca_pem: pki.ca_pem(),
            client: &client,
        };
        of.write(&path).unwrap();
        assert!(is_usable(&path, now));
        assert!(!is_usable(&path, now + Duration::from_secs(3601)), "expired");
        let cluster = cluster(&path).unwrap();
        assert_eq!(cluster["server"], "https://192.0.2.1:6443");
        let pair = folder.path().join("pair.pem");
        let text = own_kubeconfig(&cluster, &pair).to_string();
        std::fs::write(&path, text).unwrap();
        assert!(!is_usable(&path, now), "the pair is missing");
        std::fs::write(&pair, format!("{}{}", client.chain_pem, client.key_pem)).unwrap();
        assert!(is_usable(&path, now));
        std::fs::write(&path, "{}").unwrap();
        assert!(!is_usable(&path, now));
    }
}
