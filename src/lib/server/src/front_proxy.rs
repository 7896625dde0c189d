//! How aggregated servers are reached, and the certificate by which they recognize this server.

use crate::config::AggregationConfig;
use crate::error::{Because, InputError};
use ferrokube_controlplane::aggregator::{Aggregator, ProxyIdentity, ServiceResolver};
use ferrokube_pki::{self as pki, Pki, PkiError, Renewal, files};
use ferrokube_serve::Shutdown;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(20);
const CANNOT_USE: &str = "cannot use the front proxy certificate and its key";

/// The server's identity as a front proxy, kept fresh by [`ProxyCertificate::renew`].
pub(crate) struct ProxyCertificate {
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
pub(crate) fn check(config: &AggregationConfig) -> Result<(), InputError> {
    match paths(config) {
        Some(paths) => install(&ProxyIdentity::default(), &read(&paths)?),
        None => Ok(()),
    }
}

fn paths(config: &AggregationConfig) -> Option<[PathBuf; 2]> {
    let (chain, key) = config.client_certificate.clone()?;
    Some([chain, key])
}

fn read([chain, key]: &[PathBuf; 2]) -> Result<[Vec<u8>; 2], InputError> {
    let missing = |path: &PathBuf| InputError::missing(path);
    let key = files::read_private(key)?.ok_or_else(|| missing(key))?;
    Ok([files::read(chain)?.ok_or_else(|| missing(chain))?, key])
}

fn install(identity: &ProxyIdentity, pair: &[Vec<u8>; 2]) -> Result<(), InputError> {
    let [chain, key] = [0, 1].map(|at| String::from_utf8_lossy(&pair[at]).into_owned());
    identity.replace(&chain, &key).because(|| CANNOT_USE.to_owned())
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
    pub(crate) fn new(config: &AggregationConfig, pki: &Pki) -> Result<Self, InputError> {
        let identity = ProxyIdentity::default();
        let source = match paths(config) {
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

    /// Reaches aggregated servers with this certificate.
    pub(crate) fn aggregator(&self, services: Arc<dyn ServiceResolver>) -> Aggregator {
        Aggregator::new(services, self.identity.clone())
    }

    /// Renews the certificate, or reads its files again, until shutdown.
    pub(crate) async fn renew(self, shutdown: Shutdown) {
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

fn report(error: &InputError) {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "cannot reload the front proxy certificate"
    );
}
