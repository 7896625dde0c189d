//! Servers to measure: by kubeconfig or URL, or started for the run.

use crate::connection::{HttpVersion, LoadConnection, LoadRequest};
use crate::measure::listeners;
use crate::process::{Binary, OwnServer};
use anyhow::{Context, bail, ensure};
use base64::Engine;
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::ExposeSecret;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A running server.
pub(crate) struct LoadTarget {
    /// Name in the report.
    pub(crate) name: String,
    /// `host:port`
    pub(crate) authority: String,
    /// Server name for TLS.
    pub(crate) server_name: ServerName<'static>,
    /// Without ALPN, which connections add.
    pub(crate) tls: rustls::ClientConfig,
    /// `Bearer ...`, if the kubeconfig has a token.
    pub(crate) authorization: Option<String>,
    /// Processes whose CPU and memory count.
    pub(crate) pids: Vec<u32>,
    /// Binary of a server started here; scenarios may start more of them.
    pub(crate) binary: Option<Arc<Binary>>,
}

impl LoadTarget {
    /// `NAME=KUBECONFIG[,PID...]`
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, path, pids) = split(text)?;
        Self::from_kubeconfig(name, Path::new(path), None, pids)
    }

    /// `NAME=URL[,PID...]`, with the credentials of a kubeconfig.
    pub(crate) fn by_url(text: &str, kubeconfig: &Path) -> anyhow::Result<Self> {
        let (name, url, pids) = split(text)?;
        Self::from_kubeconfig(name, kubeconfig, Some(url), pids)
    }

    /// A server started here.
    pub(crate) fn of(own: &OwnServer) -> anyhow::Result<Self> {
        let mut target =
            Self::from_kubeconfig(&own.binary.name, &own.kubeconfig(), None, vec![own.pid()?])?;
        target.binary = Some(own.binary.clone());
        Ok(target)
    }

    /// Waits until a server on an etcd of its own writes as it does in the long run: alone. Older
    /// ones have no gauge of that.
    pub(crate) async fn wait_until_alone(&self) -> anyhow::Result<()> {
        const GAUGE: &str = "\nferrokube_store_writes_alone ";
        let mut connection = LoadConnection::open(self, HttpVersion::Http1).await?;
        let metrics = LoadRequest::get("/metrics");
        let is_alone = async {
            loop {
                let (status, body) = connection.ask(&metrics).await?;
                ensure!(status.is_success(), "/metrics was answered with {status}");
                let text = String::from_utf8_lossy(&body);
                let Some((_, value)) = text.split_once(GAUGE) else { return Ok(()) };
                if value.starts_with('1') {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_alone).await.context("no claim in 60 s")?
    }

    fn from_kubeconfig(
        name: &str,
        path: &Path,
        url: Option<&str>,
        pids: Vec<u32>,
    ) -> anyhow::Result<Self> {
        let config = Kubeconfig::read_from(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let (cluster, user) = current(&config)
            .with_context(|| format!("{} has no cluster and user", path.display()))?;
        let server = url.or(cluster.server.as_deref()).context("no server")?;
        let authority =
            server.strip_prefix("https://").context("only https")?.trim_end_matches('/').to_owned();
        let (host, port) = authority.rsplit_once(':').context("the URL has no port")?;
        let pids = if pids.is_empty() {
            listeners(port.parse().context("the port is not a number")?)
        } else {
            pids
        };
        let server_name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        let authorization =
            user.token.as_ref().map(|token| format!("Bearer {}", token.expose_secret()));
        Ok(Self {
            name: name.to_owned(),
            server_name,
            tls: tls(cluster, user)?,
            authorization,
            pids,
            authority,
            binary: None,
        })
    }
}

fn split(text: &str) -> anyhow::Result<(&str, &str, Vec<u32>)> {
    let (name, rest) = text.split_once('=').context("expected NAME=WHAT[,PID...]")?;
    let mut words = rest.split(',');
    let what = words.next().unwrap_or_default();
    let pids = words.map(str::parse).collect::<Result<_, _>>().context("a PID is not a number")?;
    Ok((name, what, pids))
}

/// Cluster and user of the current context, or else the first ones.
fn current(config: &Kubeconfig) -> Option<(&Cluster, &AuthInfo)> {
    let context = config
        .contexts
        .iter()
        .find(|named| Some(&named.name) == config.current_context.as_ref())
        .and_then(|named| named.context.as_ref());
    let cluster = config
        .clusters
        .iter()
        .find(|named| context.is_none_or(|context| context.cluster == named.name))?;
    let user = context.and_then(|context| context.user.as_ref());
    let user =
        config.auth_infos.iter().find(|named| user.is_none_or(|user| *user == named.name))?;
    Some((cluster.cluster.as_ref()?, user.auth_info.as_ref()?))
}

fn tls(cluster: &Cluster, user: &AuthInfo) -> anyhow::Result<rustls::ClientConfig> {
    let ca = decode(
        cluster.certificate_authority_data.as_deref(),
        cluster.certificate_authority.as_deref(),
    )
    .context("no certificate authority")?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&ca) {
        roots.add(certificate?)?;
    }
    let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
    let Ok(chain) =
        decode(user.client_certificate_data.as_deref(), user.client_certificate.as_deref())
    else {
        return Ok(builder.with_no_client_auth());
    };
    let key = decode(
        user.client_key_data.as_ref().map(ExposeSecret::expose_secret),
        user.client_key.as_deref(),
    )?;
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
    Ok(builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?)
}

fn decode(data: Option<&str>, path: Option<&str>) -> anyhow::Result<Vec<u8>> {
    match (data, path) {
        (Some(data), _) => Ok(base64::engine::general_purpose::STANDARD.decode(data)?),
        (None, Some(path)) => std::fs::read(path).with_context(|| format!("cannot read {path}")),
        (None, None) => bail!("the kubeconfig has neither data nor a file"),
    }
}
