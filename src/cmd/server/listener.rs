//! The listener: certificates and their renewal, and the administrator's kubeconfig.

use super::ServerSetup;
use crate::cmd::flags::{KubeApiserverFlags, ServerFlags};
use anyhow::{Context, anyhow};
use ferrokube_pki::kubeconfig::Kubeconfig;
use ferrokube_pki::{self as pki, ADMIN, Pair, Pki, PkiError, Renewal};
use ferrokube_serve::reload::{LoadedFiles, TlsFiles};
use ferrokube_serve::{Handler, ListenerLimits, ListenerStats, Server, ServerError, Shutdown, Tls};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};

/// Interval of certificate file checks.
const RELOAD: Duration = Duration::from_secs(20);

const SAN: &str = "cannot make the serving certificate (see --tls-san)";
const PAIR: &str = "cannot use --tls-cert-file and --tls-private-key-file";

/// A bound listener with its certificates.
pub(super) struct Listener {
    server: Server,
    tls: Tls,
    files: TlsFiles,
    loaded: LoadedFiles,
    /// Our serving certificate, unless files are given.
    serving: Option<Pair>,
    names: Vec<String>,
    admin_lifetime: Duration,
}

/// Checks address, port and files before anything is opened, as a port in use should cost nothing.
/// Discards what it creates.
pub(super) fn check(
    flags: &ServerFlags,
    kube_apiserver: &KubeApiserverFlags,
) -> anyhow::Result<()> {
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    TcpListener::bind(address).map_err(|source| advise(ServerError::Bind { address, source }))?;
    let (files, policy) = (tls_files(kube_apiserver), flags.tls.policy());
    if files == TlsFiles::default() && flags.tls_sans.is_empty() && policy.suites.is_empty() {
        return Ok(());
    }
    let own =
        pki::self_signed(&pki::serving_names(flags.bind_address, &flags.tls_sans)).context(SAN)?;
    let tls = match files.read_serving()? {
        Some((chain, key)) => Tls::with_policy(&chain, &key, &policy).context(PAIR)?,
        None => Tls::with_policy(own.chain_pem.as_bytes(), own.key_pem.as_bytes(), &policy)?,
    };
    files.apply(&tls, &LoadedFiles::default())?;
    Ok(())
}

fn limits(flags: &ServerFlags) -> ListenerLimits {
    ListenerLimits { connections: flags.max_connections as usize, ..ListenerLimits::default() }
}

fn tls_files(kube_apiserver: &KubeApiserverFlags) -> TlsFiles {
    TlsFiles {
        serving: kube_apiserver
            .tls_cert_file
            .clone()
            .zip(kube_apiserver.tls_private_key_file.clone()),
        client_ca: kube_apiserver.client_ca_file.clone(),
        proxy_ca: kube_apiserver.requestheader_client_ca_file.clone(),
        ..TlsFiles::default()
    }
}

impl Listener {
    /// Binds with the certificates from the flags, or with our own.
    pub(super) fn bind(setup: &ServerSetup<'_>, pki: &Pki) -> anyhow::Result<Self> {
        let (flags, kube_apiserver) = (setup.flags, setup.kube_apiserver);
        let files =
            TlsFiles { client_ca_pem: pki.client_ca_pem().into(), ..tls_files(kube_apiserver) };
        let names = pki::serving_names(flags.bind_address, &flags.tls_sans);
        let policy = flags.tls.policy();
        let own = || pki.serving(&names).context(SAN);
        let (serving, tls) = match files.read_serving()? {
            Some((chain, key)) => (None, Tls::with_policy(&chain, &key, &policy).context(PAIR)?),
            None => own().and_then(|pair| {
                Ok((
                    Some(pair.clone()),
                    Tls::with_policy(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes(), &policy)?,
                ))
            })?,
        };
        let loaded = files.apply(&tls, &LoadedFiles::default())?;
        let server = Server::bind(
            SocketAddr::new(flags.bind_address, flags.secure_port),
            tls.clone(),
            limits(flags).of_process(),
        )
        .map_err(advise)?;
        Ok(Self {
            server,
            tls,
            files,
            loaded,
            serving,
            names,
            admin_lifetime: flags.admin_certificate_lifetime,
        })
    }

    pub(super) fn stats(&self) -> Arc<ListenerStats> {
        self.server.stats()
    }

    /// URL for clients on this machine.
    pub(super) fn url(&self) -> String {
        let address = self.server.local_address();
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("https://{}", SocketAddr::new(ip, address.port()))
    }

    /// Writes the kubeconfig, then starts serving, renewing and reloading certificates.
    pub(super) fn start(
        self,
        handler: Arc<dyn Handler>,
        pki: Pki,
        kubeconfig: &Path,
        shutdown: &Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<JoinHandle<usize>> {
        let url = self.url();
        let Self { server, tls, files, loaded, serving, names, admin_lifetime } = self;
        let first = write_kubeconfig(&pki, &url, kubeconfig, admin_lifetime)?;
        let (kubeconfig, clients) = (kubeconfig.to_owned(), pki.clone());
        tasks.spawn(pki::renew(first, ended(shutdown.clone()), move || {
            write_kubeconfig(&clients, &url, &kubeconfig, admin_lifetime)
        }));
        if let Some(own) = serving {
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
        Ok(tokio::spawn(server.serve(handler, shutdown.clone())))
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

fn write_kubeconfig(
    pki: &Pki,
    url: &str,
    path: &Path,
    lifetime: Duration,
) -> Result<Renewal, PkiError> {
    let admin = pki.client(&ADMIN, lifetime)?;
    Kubeconfig {
        server: url,
        cluster: "ferrokube",
        user: ADMIN.common_name,
        ca_pem: pki.ca_pem(),
        client: &admin,
    }
    .write(path)?;
    Ok(admin.renewal)
}

fn advise(error: ServerError) -> anyhow::Error {
    match error {
        ServerError::Bind { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
            anyhow!(
                "cannot listen on {address}: in use by another process; stop it, or choose another port with --secure-port (0 takes any free one)"
            )
        }
        ServerError::Bind { address, source }
            if source.kind() == io::ErrorKind::AddrNotAvailable =>
        {
            anyhow!(
                "cannot listen on {address}: not an address of this machine; choose another with --bind-address"
            )
        }
        ServerError::Bind { address, source }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            anyhow!(
                "cannot listen on {address}: not permitted; choose a port above 1023 with --secure-port"
            )
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ServerCli {
        #[command(flatten)]
        flags: ServerFlags,
    }

    #[test]
    fn connections_are_bounded_by_a_flag() {
        let connections = |flags: &[&str]| {
            let parsed = ServerCli::try_parse_from([&["x"], flags].concat());
            parsed.ok().map(|cli| limits(&cli.flags).connections)
        };
        assert_eq!(connections(&[]), Some(ListenerLimits::default().connections));
        assert_eq!(connections(&["--max-connections=20000"]), Some(20_000));
        assert_eq!(connections(&["--max-connections=0"]), None);
    }
}
