//! The listener: certificates and their renewal, and the administrator's kubeconfig.

use crate::config::ListenerConfig;
use crate::data_dir::DataDir;
use crate::error::{Because, InputError};
use ferrokube_pki::kubeconfig::Kubeconfig;
use ferrokube_pki::{self as pki, ADMIN, Pair, Pki, PkiError, Renewal, Subject};
use ferrokube_serve::reload::{LoadedFiles, TlsFiles};
use ferrokube_serve::{Handler, InProcess, ListenerStats, Server, Shutdown, Tls};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Interval of certificate file checks.
const RELOAD: Duration = Duration::from_secs(20);

const PAIR: &str = "cannot use the serving certificate and its key";

/// A bound listener with its certificates.
pub(crate) struct Listener {
    server: Server,
    tls: Tls,
    files: TlsFiles,
    loaded: LoadedFiles,
    /// Our serving certificate, unless files are given.
    own: Option<Pair>,
    names: Vec<String>,
    admin_lifetime: Duration,
    kubeconfigs: Vec<(&'static str, Subject<'static>)>,
}

/// The administrator's kubeconfig in the data directory.
pub(crate) const ADMIN_KUBECONFIG: &str = "admin.kubeconfig";

/// Checks address, port and files before anything is opened, so that a port in use has no side
/// effects. Discards everything that it creates.
pub(crate) fn check(config: &ListenerConfig) -> Result<(), InputError> {
    let address = config.address;
    TcpListener::bind(address).map_err(|source| InputError::Address { address, source })?;
    let ListenerConfig { files, names, tls: policy, .. } = config;
    if *files == TlsFiles::default() && names.is_empty() && policy.suites.is_empty() {
        return Ok(());
    }
    let names = pki::serving_names(address.ip(), names);
    let own = pki::self_signed(&names).map_err(InputError::Names)?;
    let tls = match files.read_serving()? {
        Some((chain, key)) => Tls::with_policy(&chain, &key, policy).because(|| PAIR.to_owned())?,
        None => Tls::with_policy(own.chain_pem.as_bytes(), own.key_pem.as_bytes(), policy)?,
    };
    files.apply(&tls, &LoadedFiles::default())?;
    Ok(())
}

impl Listener {
    /// Binds with the certificates of the configuration, or with our own.
    pub(crate) fn bind(config: ListenerConfig, pki: &Pki) -> Result<Self, InputError> {
        let ListenerConfig { address, names, tls: policy, mut files, limits, .. } = config;
        let ListenerConfig { admin_lifetime, kubeconfigs, .. } = config;
        files.client_ca_pem.extend_from_slice(pki.client_ca_pem().as_bytes());
        let names = pki::serving_names(address.ip(), &names);
        let (own, tls) = match files.read_serving()? {
            Some((chain, key)) => {
                let tls = Tls::with_policy(&chain, &key, &policy).because(|| PAIR.to_owned())?;
                (None, tls)
            }
            None => {
                let pair = pki.serving(&names).map_err(InputError::Names)?;
                let tls =
                    Tls::with_policy(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes(), &policy)?;
                (Some(pair), tls)
            }
        };
        let loaded = files.apply(&tls, &LoadedFiles::default())?;
        let server = Server::bind(address, tls.clone(), limits)?;
        Ok(Self { server, tls, files, loaded, own, names, admin_lifetime, kubeconfigs })
    }

    pub(crate) fn stats(&self) -> Arc<ListenerStats> {
        self.server.stats()
    }

    /// Makes clients in this process.
    pub(crate) fn in_process(&self) -> InProcess {
        self.server.in_process()
    }

    /// URL for clients on this machine.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.server.loopback_address())
    }

    /// Writes the kubeconfigs, then starts renewing and reloading certificates. The returned future
    /// serves until shutdown, and returns the number of connections that were cut off.
    pub(crate) fn start(
        self,
        handler: Arc<dyn Handler>,
        pki: Pki,
        directory: &DataDir,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> Result<impl Future<Output = usize> + Send + 'static + use<>, PkiError> {
        let url = self.url();
        let Self { server, tls, files, loaded, own, names, admin_lifetime, kubeconfigs } = self;
        let kubeconfigs = KubeconfigFiles {
            pki: pki.clone(),
            url,
            lifetime: admin_lifetime,
            files: std::iter::once((ADMIN_KUBECONFIG, ADMIN))
                .chain(kubeconfigs)
                .map(|(name, subject)| (directory.join(name), subject))
                .collect(),
        };
        let first = kubeconfigs.write()?;
        tasks.spawn(pki::renew(first, ended(shutdown.clone()), move || kubeconfigs.write()));
        if let Some(own) = own {
            let renewed = tls.clone();
            tasks.spawn(pki::renew(
                own.renewal,
                ended(shutdown.clone()),
                move || -> Result<_, RenewError> {
                    let pair = pki.serving(&names)?;
                    renewed.replace_serving(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes())?;
                    Ok(pair.renewal)
                },
            ));
        }
        if files.serving.is_some() || files.client_ca.is_some() || files.proxy_ca.is_some() {
            tasks.spawn(files.watch(tls, loaded, RELOAD, shutdown.clone()));
        }
        Ok(server.serve(handler, shutdown.clone()))
    }
}

/// Why a renewal failed; it is retried.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Tls(#[from] ferrokube_serve::TlsError),
}

async fn ended(shutdown: Shutdown) {
    shutdown.begun().await;
}

/// The kubeconfigs in the data directory.
struct KubeconfigFiles {
    pki: Pki,
    url: String,
    lifetime: Duration,
    files: Vec<(PathBuf, Subject<'static>)>,
}

impl KubeconfigFiles {
    /// Writes all with new certificates; returns when they are due.
    fn write(&self) -> Result<Renewal, PkiError> {
        let mut due = None::<Renewal>;
        for (path, subject) in &self.files {
            let client = self.pki.client(subject, self.lifetime)?;
            Kubeconfig {
                server: &self.url,
                cluster: "ferrokube",
                user: subject.common_name,
                ca_pem: self.pki.ca_pem(),
                client: &client,
            }
            .write(path)?;
            due = Some(due.map_or(client.renewal, |due| due.or(client.renewal)));
        }
        Ok(due.expect("there is the administrator's"))
    }
}
