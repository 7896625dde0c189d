//! How aggregated servers are reached, and the certificate by which they recognize this server.

use super::ServerSetup;
use crate::cmd::flags::KubeApiserverFlags;
use anyhow::{Context, anyhow};
use ferrokube_controlplane::aggregator::{Aggregator, ListedServices, ProxyIdentity};
use ferrokube_pki::{self as pki, Pki, PkiError, Renewal, files};
use ferrokube_serve::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(20);
const CANNOT_USE: &str = "cannot use --proxy-client-cert-file and --proxy-client-key-file";

/// The server's identity as a front proxy, kept fresh by [`ProxyCertificate::renew`].
pub(super) struct ProxyCertificate {
    identity: ProxyIdentity,
    source: IdentitySource,
}

enum IdentitySource {
    /// Chain and key, and what was read last.
    Files { paths: [PathBuf; 2], used: [Vec<u8>; 2] },
    /// Issued by our own CA.
    Own { pki: Pki, renewal: Renewal },
}

/// Reads the files, before anything is opened.
pub(super) fn check(flags: &KubeApiserverFlags) -> anyhow::Result<()> {
    match paths(flags) {
        Some(paths) => install(&ProxyIdentity::default(), &read(&paths)?),
        None => Ok(()),
    }
}

fn paths(flags: &KubeApiserverFlags) -> Option<[PathBuf; 2]> {
    Some([flags.proxy_client_cert_file.clone()?, flags.proxy_client_key_file.clone()?])
}

fn read([chain, key]: &[PathBuf; 2]) -> anyhow::Result<[Vec<u8>; 2]> {
    let missing = |path: &PathBuf| anyhow!("{} does not exist", path.display());
    let key = files::read_private(key)?.ok_or_else(|| missing(key))?;
    Ok([files::read(chain)?.ok_or_else(|| missing(chain))?, key])
}

fn install(identity: &ProxyIdentity, pair: &[Vec<u8>; 2]) -> anyhow::Result<()> {
    let [chain, key] = [0, 1].map(|at| String::from_utf8_lossy(&pair[at]).into_owned());
    identity.replace(&chain, &key).context(CANNOT_USE)
}

/// Issues a certificate of our own.
fn issue(identity: &ProxyIdentity, pki: &Pki) -> Result<Renewal, PkiError> {
    let pair = pki.front_proxy()?;
    // A pair that was just made is well-formed.
    if let Err(error) = identity.replace(&pair.chain_pem, &pair.key_pem) {
        tracing::error!(%error, "cannot use the front proxy certificate");
    }
    Ok(pair.renewal)
}

impl ProxyCertificate {
    pub(super) fn new(setup: &ServerSetup<'_>, pki: &Pki) -> anyhow::Result<Self> {
        let identity = ProxyIdentity::default();
        let source = match paths(setup.kube_apiserver) {
            Some(paths) => {
                let used = read(&paths)?;
                install(&identity, &used)?;
                IdentitySource::Files { paths, used }
            }
            None => {
                let renewal = issue(&identity, pki)?;
                IdentitySource::Own { pki: pki.clone(), renewal }
            }
        };
        Ok(Self { identity, source })
    }

    /// Reaches the services of `--service-address`.
    pub(super) fn aggregator(&self, setup: &ServerSetup<'_>) -> Aggregator {
        let listed = ListedServices::new(setup.flags.service_address.iter().cloned());
        Aggregator::new(Arc::new(listed), self.identity.clone())
    }

    /// Renews the certificate, or reads its files again, until shutdown.
    pub(super) async fn renew(self, shutdown: Shutdown) {
        let identity = self.identity;
        match self.source {
            IdentitySource::Own { pki, renewal } => {
                let end = async { shutdown.begun().await };
                pki::renew(renewal, end, || issue(&identity, &pki)).await;
            }
            IdentitySource::Files { paths, mut used } => loop {
                tokio::select! {
                    () = shutdown.begun() => return,
                    () = tokio::time::sleep(RELOAD) => {}
                }
                match read(&paths) {
                    Ok(now) if now == used => {}
                    Ok(now) => match install(&identity, &now) {
                        Ok(()) => used = now,
                        Err(error) => report(&error),
                    },
                    Err(error) => report(&error),
                }
            },
        }
    }
}

fn report(error: &anyhow::Error) {
    tracing::error!(error = format!("{error:#}"), "cannot reload the front proxy certificate");
}
