//! Servers to measure: any by kubeconfig, or our own started for the run.

use anyhow::{Context, bail};
use base64::Engine;
use kube::config::Kubeconfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::ExposeSecret;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A running server.
pub(crate) struct Target {
    /// For the report.
    pub(crate) name: String,
    /// `host:port`
    pub(crate) authority: String,
    /// For certificates.
    pub(crate) server_name: ServerName<'static>,
    /// Without ALPN; connections add theirs.
    pub(crate) tls: rustls::ClientConfig,
    /// `Bearer ...`, when the kubeconfig has a token.
    pub(crate) authorization: Option<String>,
    /// Whose CPU and memory count.
    pub(crate) pids: Vec<u32>,
}

impl Target {
    /// `NAME=KUBECONFIG,PID[,PID...]`
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, rest) = text.split_once('=').context("expected NAME=KUBECONFIG,PID")?;
        let mut words = rest.split(',');
        let path = words.next().unwrap_or_default();
        let pids = words.map(str::parse).collect::<Result<Vec<u32>, _>>().context("a PID is no number")?;
        Self::from_kubeconfig(name, Path::new(path), pids)
    }

    fn from_kubeconfig(name: &str, path: &Path, pids: Vec<u32>) -> anyhow::Result<Self> {
        let config = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
        let cluster = config.clusters.first().and_then(|named| named.cluster.clone()).context("no cluster")?;
        let user = config.auth_infos.first().and_then(|named| named.auth_info.clone()).context("no user")?;
        let server = cluster.server.clone().context("no server")?;
        let authority = server.strip_prefix("https://").context("only https")?.trim_end_matches('/').to_owned();
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host).to_owned();
        let ca = decode(cluster.certificate_authority_data.as_deref(), cluster.certificate_authority.as_deref())?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate?)?;
        }
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        let tls = match decode(user.client_certificate_data.as_deref(), user.client_certificate.as_deref()) {
            Ok(chain) => {
                let key = decode(user.client_key_data.as_ref().map(ExposeSecret::expose_secret), user.client_key.as_deref())?;
                let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?
            }
            Err(_) => builder.with_no_client_auth(),
        };
        let authorization = user.token.as_ref().map(|token| format!("Bearer {}", token.expose_secret()));
        Ok(Self { name: name.to_owned(), authority, server_name: ServerName::try_from(host)?, tls, authorization, pids })
    }
}

fn decode(data: Option<&str>, path: Option<&str>) -> anyhow::Result<Vec<u8>> {
    match (data, path) {
        (Some(data), _) => Ok(base64::engine::general_purpose::STANDARD.decode(data)?),
        (None, Some(path)) => std::fs::read(path).with_context(|| format!("cannot read {path}")),
        (None, None) => bail!("the kubeconfig has neither data nor a file"),
    }
}

/// Our own server, started for the run in a directory of its own.
pub(crate) struct Own {
    process: Child,
    directory: tempfile::TempDir,
    /// From its ready line.
    pub(crate) ready_ms: f64,
}

impl Own {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut process = Command::new(env!("CARGO_BIN_EXE_ferrokube"))
            .args(["all-in-one", "--secure-port", "0", "--data-dir"])
            .arg(directory.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.context("not ready in 30 s")??.context("it ended")?;
        let ready_ms =
            line.strip_prefix("ready in ").and_then(|rest| rest.split(' ').next()?.parse().ok()).with_context(|| format!("unexpected line {line:?}"))?;
        Ok(Self { process, directory, ready_ms })
    }

    /// As a target.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        let kubeconfig: PathBuf = self.directory.path().join("data/admin.kubeconfig");
        Target::from_kubeconfig("ferrokube", &kubeconfig, vec![self.process.id().context("it ended")?])
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        Ok(())
    }
}
