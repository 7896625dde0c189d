//! The client certificates of this server, for aggregated servers and kubelets.

use crate::error::{Because, InputError};
use ferrokube_controlplane::aggregator::ProxyIdentity as ClientIdentity;
use ferrokube_pki::{self as pki, Pair, Pki, PkiError, Renewal, Subject, files};
use ferrokube_serve::Shutdown;
use std::path::PathBuf;
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(20);

/// The purpose of a client certificate.
#[derive(Clone, Copy)]
pub(crate) struct ClientPurpose {
    /// Name in errors.
    name: &'static str,
    /// Issues one of our own.
    issue: fn(&Pki) -> Result<Pair, PkiError>,
}

/// Aggregated servers.
pub(crate) const FRONT_PROXY: ClientPurpose =
    ClientPurpose { name: "the front proxy certificate and its key", issue: Pki::front_proxy };
/// Kubelets. The user has no other rights: a node that says it is at this server's own address
/// gains nothing.
pub(crate) const KUBELET_CLIENT: ClientPurpose = ClientPurpose {
    name: "the certificate for kubelets and its key",
    issue: |pki| {
        let subject = Subject { common_name: "kube-apiserver-kubelet-client", organizations: &[] };
        pki.client(&subject, Duration::MAX)
    },
};

/// Chain and key in files; `None`: issued by our own CA.
pub(crate) type ClientFiles = Option<(PathBuf, PathBuf)>;

/// The server's identity, kept fresh by [`OwnCertificate::renew`].
pub(crate) struct OwnCertificate {
    purpose: ClientPurpose,
    identity: ClientIdentity,
    source: IdentitySource,
}

enum IdentitySource {
    /// Chain and key files, and their contents when last read.
    Files { paths: [PathBuf; 2], used: [Vec<u8>; 2] },
    /// Issued by our own CA.
    Own { pki: Pki, renewal: Renewal },
}

/// Reads the files, before anything is opened.
pub(crate) fn check(purpose: ClientPurpose, files: &ClientFiles) -> Result<(), InputError> {
    match paths(files) {
        Some(paths) => install(purpose, &ClientIdentity::default(), &read(&paths)?),
        None => Ok(()),
    }
}

fn paths(files: &ClientFiles) -> Option<[PathBuf; 2]> {
    let (chain, key) = files.clone()?;
    Some([chain, key])
}

fn read([chain, key]: &[PathBuf; 2]) -> Result<[Vec<u8>; 2], InputError> {
    let missing = |path: &PathBuf| InputError::missing(path);
    let key = files::read_private(key)?.ok_or_else(|| missing(key))?;
    Ok([files::read(chain)?.ok_or_else(|| missing(chain))?, key])
}

fn install(
    purpose: ClientPurpose,
    identity: &ClientIdentity,
    pair: &[Vec<u8>; 2],
) -> Result<(), InputError> {
    let [chain, key] = [0, 1].map(|at| String::from_utf8_lossy(&pair[at]).into_owned());
    identity.replace(&chain, &key).because(|| format!("cannot use {}", purpose.name))
}

/// Issues a certificate of our own.
fn issue(
    purpose: ClientPurpose,
    identity: &ClientIdentity,
    pki: &Pki,
) -> Result<Renewal, PkiError> {
    let pair = (purpose.issue)(pki)?;
    // A pair that was just made is well-formed.
    if let Err(error) = identity.replace(&pair.chain_pem, &pair.key_pem) {
        tracing::error!(%error, certificate = purpose.name, "cannot use a new certificate");
    }
    Ok(pair.renewal)
}

impl OwnCertificate {
    pub(crate) fn new(
        purpose: ClientPurpose,
        files: &ClientFiles,
        pki: &Pki,
    ) -> Result<Self, InputError> {
        let identity = ClientIdentity::default();
        let source = match paths(files) {
            Some(paths) => {
                let used = read(&paths)?;
                install(purpose, &identity, &used)?;
                IdentitySource::Files { paths, used }
            }
            None => {
                let renewal = issue(purpose, &identity, pki)?;
                IdentitySource::Own { pki: pki.clone(), renewal }
            }
        };
        Ok(Self { purpose, identity, source })
    }

    /// The certificate for TLS clients.
    pub(crate) fn identity(&self) -> ClientIdentity {
        self.identity.clone()
    }

    /// Renews the certificate, or reads its files again, until shutdown.
    pub(crate) async fn renew(self, shutdown: Shutdown) {
        let Self { purpose, identity, source } = self;
        match source {
            IdentitySource::Own { pki, renewal } => {
                let end = async { shutdown.begun().await };
                pki::renew(renewal, end, || issue(purpose, &identity, &pki)).await;
            }
            IdentitySource::Files { paths, mut used } => loop {
                tokio::select! {
                    () = shutdown.begun() => return,
                    () = tokio::time::sleep(RELOAD) => {}
                }
                match read(&paths) {
                    Ok(now) if now == used => {}
                    Ok(now) => match install(purpose, &identity, &now) {
                        Ok(()) => used = now,
                        Err(error) => report(purpose, &error),
                    },
                    Err(error) => report(purpose, &error),
                }
            },
        }
    }
}

fn report(purpose: ClientPurpose, error: &InputError) {
    tracing::error!(
        error = error as &dyn std::error::Error,
        certificate = purpose.name,
        "cannot reload a certificate"
    );
}
