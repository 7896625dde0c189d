//! `ferrokube controller-manager`: the controllers as a separate process, against any API server.

use super::controllers::{ControllersFlag, signer};
use super::flags::{FeatureFlags, LogFlags, duration};
use super::notify;
use super::process::{self, Signals};
use super::tls::TlsFlags;
use super::tracing::TracingFlags;
use anyhow::{Context, bail};
use clap::Args;
use ferrokube_client::{Connection, LeaseTiming};
use ferrokube_controllers::ControllerManager;
use ferrokube_features::Gates;
use ferrokube_pki as pki;
use ferrokube_serve::{
    Handler, ListenerLimits, Request, Response, Server, ShutdownTrigger, Tls, full,
};
use ferrokube_server::KeyFiles;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

#[derive(Debug, Args)]
pub(crate) struct ControllerManagerFlags {
    /// Kubeconfig of the API server, with the manager's identity
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    #[command(flatten)]
    controllers: ControllersFlag,
    /// Act only while holding the lease kube-system/kube-controller-manager
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// Time after which a lease without renewal may be taken over
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    leader_elect_lease_duration: Duration,
    /// Time without a renewal after which the leader gives up
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    leader_elect_renew_deadline: Duration,
    /// Interval of attempts to acquire or renew the lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    leader_elect_retry_period: Duration,
    /// CA to publish in every namespace [default: the kubeconfig's]
    #[arg(long, value_name = "FILE")]
    root_ca_file: Option<PathBuf>,
    /// Key (P-256 or RSA) that signs tokens in secrets; without it such secrets are not filled
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    /// CA that signs certificates of kubelets, in PEM; without it their requests are left alone
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Key of --cluster-signing-cert-file
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    /// Longest lifetime of certificates that it signs
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration)]
    cluster_signing_duration: Duration,
    /// Address of /healthz and /metrics
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    bind_address: IpAddr,
    /// Port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 10257)]
    secure_port: u16,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    features: FeatureFlags,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    tracing: TracingFlags,
}

impl ControllerManagerFlags {
    fn timing(&self) -> LeaseTiming {
        LeaseTiming {
            duration: self.leader_elect_lease_duration,
            deadline: self.leader_elect_renew_deadline,
            retry: self.leader_elect_retry_period,
        }
    }

    /// The CA that signs certificates of kubelets, if any.
    fn request_signer(&self) -> anyhow::Result<Option<pki::RequestSigner>> {
        let pair =
            self.cluster_signing_cert_file.as_ref().zip(self.cluster_signing_key_file.as_ref());
        let open = |(certificate, key): (&PathBuf, &PathBuf)| {
            pki::RequestSigner::open(certificate, key, self.cluster_signing_duration)
        };
        Ok(pair.map(open).transpose()?)
    }

    /// Checks flags before anything is opened. Returns the CA to publish.
    fn check(&self) -> anyhow::Result<Option<String>> {
        ferrokube_controllers::check_names(&self.controllers.chosen)?;
        self.timing().check().context("inconsistent --leader-elect times")?;
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        read(&self.kubeconfig)?;
        if let Some(path) = &self.service_account_private_key_file {
            KeyFiles::signing(path.clone()).keys()?;
        }
        self.request_signer()?;
        self.root_ca_file.as_ref().map(read).transpose()
    }
}

/// Runs until a signal, or until leadership is lost.
pub(crate) fn run(flags: ControllerManagerFlags) -> anyhow::Result<ExitCode> {
    let (gates, warnings) = flags.features.gates()?;
    let spans = flags.tracing.config("controller-manager")?;
    let log = flags.log.config(&gates, None);
    process::check_log(&log)?;
    let root_ca = flags.check()?;
    let _telemetry = process::set_up(&log, &gates, &warnings, spans.as_ref())?;
    process::block_on(work(flags, gates, root_ca))
}

async fn work(
    flags: ControllerManagerFlags,
    gates: Gates,
    root_ca: Option<String>,
) -> anyhow::Result<ExitCode> {
    let timing = flags.timing();
    let connection = Connection::from_kubeconfig(&flags.kubeconfig).await?;
    let root_ca = root_ca.unwrap_or_else(|| connection.ca_pem());
    let (leading, is_leading) = watch::channel(false);
    let (trigger, shutdown) = ShutdownTrigger::new();
    let server = listen(&flags)?;
    let address = server.local_address();
    tracing::info!(%address, "listening for health and metrics");
    let request_signer = flags.request_signer()?;
    let handler = HealthHandler { is_leading, gates: gates.clone() };
    let serving = tokio::spawn(server.serve(Arc::new(handler), shutdown.clone()));
    let mut manager = ControllerManager::builder(connection)
        .controllers(flags.controllers.chosen)
        .root_ca(root_ca)
        .gates(gates)
        .component(component(address.port()))
        .counted_as(ferrokube_admission::quota::names)
        .request_signer(request_signer)
        .signer(flags.service_account_private_key_file.map(|path| signer(KeyFiles::signing(path))));
    if flags.leader_elect {
        manager = manager.leader_election(identity(), timing);
    }
    let manager = manager.build()?;
    let mut signals = Signals::new()?;
    let mut running = tokio::spawn(manager.run(shutdown, leading));
    // A standby is ready, too.
    notify::ready("running; only the leader acts");
    let outcome = tokio::select! {
        ended = &mut running => Some(ended),
        (name, _) = signals.next() => {
            tracing::info!(signal = name, "ending");
            None
        }
    };
    trigger.begin();
    let outcome = match outcome {
        Some(ended) => ended,
        None => tokio::select! {
            ended = running => ended,
            (_, code) = signals.next() => return Ok(ExitCode::from(code)),
        },
    };
    let _ = serving.await;
    outcome.context("the controllers panicked")??;
    Ok(ExitCode::SUCCESS)
}

fn listen(flags: &ControllerManagerFlags) -> anyhow::Result<Server> {
    let pair = pki::self_signed(&pki::serving_names(flags.bind_address, &[]))?;
    let tls =
        Tls::with_policy(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes(), &flags.tls.policy())?;
    let address = SocketAddr::new(flags.bind_address, flags.secure_port);
    match Server::bind(address, tls, ListenerLimits::default()) {
        Ok(server) => Ok(server),
        Err(error) => {
            bail!("{error}; choose another port with --secure-port (0 takes any free one)")
        }
    }
}

fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

/// Whether it is a canary depends on this name: the same after a restart if its port is.
fn component(port: u16) -> String {
    format!("{}:{port}", host())
}

/// Unique among managers: host name, process id, and a random part in case process ids are reused.
fn identity() -> String {
    format!(
        "{}_{}_{}",
        host(),
        std::process::id(),
        ferrokube_trace::SpanId::random().hex().as_str()
    )
}

/// Serves health and a few metrics, none of them confidential, to everyone.
struct HealthHandler {
    is_leading: watch::Receiver<bool>,
    gates: Gates,
}

impl Handler for HealthHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let leading = *self.is_leading.borrow();
        let (status, text) = match request.uri().path() {
            "/healthz" | "/livez" | "/readyz" => (200, "ok".to_owned()),
            "/metrics" => (200, metrics(leading, &self.gates)),
            _ => (404, "404 page not found\n".to_owned()),
        };
        let response = http::Response::builder()
            .status(status)
            .header("content-type", "text/plain; charset=utf-8")
            .body(full(text));
        Box::pin(std::future::ready(response.expect("a constant response is well-formed")))
    }
}

fn metrics(leading: bool, gates: &Gates) -> String {
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = resident.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut text = format!(
        "# HELP leader_election_master_status Whether this process leads.\n# TYPE leader_election_master_status gauge\n\
         leader_election_master_status{{name=\"kube-controller-manager\"}} {}\n\
         # HELP process_resident_memory_bytes Resident memory.\n# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {}\n",
        u8::from(leading),
        pages * 4096
    );
    ferrokube_features::metrics::write(&mut text, gates);
    text
}
