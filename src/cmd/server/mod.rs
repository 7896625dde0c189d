//! The API server process: checks its flags, opens its log, builds the control plane that the flags
//! describe, waits, and shuts down in order.

mod advice;
mod features_page;
mod inputs;
mod pages;
mod plan;
mod trace_page;

use super::flags::{KubeApiserverFlags, Profile, ServerFlags};
use super::notify;
use super::process::{self, Signals};
use anyhow::anyhow;
use ferrokube_features::LOG_TRACKING;
use ferrokube_server::{DataDir, KeyFiles, RunningControlPlane};
use ferrokube_timeline::Ring;
use ferrokube_trace::log;
use inputs::Inputs;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// A server's command line, and the inputs read before it starts.
pub(crate) struct ServerSetup<'a> {
    pub(crate) flags: &'a ServerFlags,
    pub(crate) kube_apiserver: &'a KubeApiserverFlags,
    pub(crate) inputs: Inputs,
    /// Recent events for the trace page; all-in-one only.
    pub(crate) ring: Option<Arc<Ring>>,
    /// Whether controllers run in the same process.
    pub(crate) has_controllers: bool,
}

/// Runs alongside the server in the same process, once it is ready.
pub(crate) trait Companion {
    /// Checks its own flags, before anything is opened.
    fn check(&self) -> anyhow::Result<()>;

    /// Starts it as a task of the server, which ends when that stops.
    fn start(&self, setup: &ServerSetup<'_>, server: &mut RunningControlPlane);
}

impl ServerSetup<'_> {
    /// Whether nodes are served.
    pub(crate) fn has_nodes(&self) -> bool {
        self.flags.profile == Profile::Kubernetes
    }

    /// Keys of service account tokens.
    pub(crate) fn key_files(&self, directory: &DataDir) -> KeyFiles {
        KeyFiles::new(&plan::service_accounts(self), &directory.join("pki"))
    }
}

/// Checks flags and the files that they name, without the port; writes nothing.
pub(crate) fn check(
    flags: &ServerFlags,
    kube_apiserver: &KubeApiserverFlags,
) -> anyhow::Result<()> {
    let inputs = Inputs::read(flags, None)?;
    let setup = ServerSetup { flags, kube_apiserver, inputs, ring: None, has_controllers: false };
    plan::builder(&setup).listener(plan::any_port(&setup)).check().map_err(advice::advise)
}

/// Runs a server until a signal.
pub(crate) fn run(
    flags: &ServerFlags,
    kube_apiserver: &KubeApiserverFlags,
    companion: Option<&dyn Companion>,
    started: Instant,
) -> anyhow::Result<ExitCode> {
    let inputs = Inputs::read(flags, companion)?;
    let remembers =
        flags.trace_ui.enabled && companion.is_some() && inputs.gates.enabled(&LOG_TRACKING);
    let ring = remembers.then(|| Arc::new(Ring::default()));
    let has_controllers = companion.is_some();
    let setup = ServerSetup { flags, kube_apiserver, inputs, ring, has_controllers };
    plan::builder(&setup).check().map_err(advice::advise)?;
    // Opened first: the log may be in it.
    let directory = DataDir::open(flags.data_dir.as_deref()).map_err(advice::advise)?;
    let log_file =
        (companion.is_some() && flags.is_persistent()).then(|| directory.join("ferrokube.log"));
    let inputs = &setup.inputs;
    let log = log::LogConfig {
        tap: setup.ring.clone().map(|ring| ring as Arc<dyn log::Tap>),
        ..flags.log.config(&inputs.gates, log_file.as_deref())
    };
    let _telemetry = process::set_up(&log, &inputs.gates, &inputs.warnings, inputs.spans.as_ref())?;
    process::block_on(serve(&setup, directory, companion, started))
}

async fn serve(
    setup: &ServerSetup<'_>,
    directory: DataDir,
    companion: Option<&dyn Companion>,
    started: Instant,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let builder = plan::in_directory(plan::builder(setup), setup, directory)?;
    let mut server = tokio::select! {
        result = builder.on_wait(notify::waiting).start() => result.map_err(advice::of_start)?,
        // Nothing to drain yet.
        (name, _) = signals.next() => {
            tracing::info!(signal = name, "shutting down before the server is ready");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let steps = server.admission_steps();
    for name in setup.inputs.admission.config.names().filter(|name| !steps.contains(name)) {
        tracing::warn!(
            plugin = name,
            "no such admission plug-in runs here, so its section in --admission-control-config-file has no effect"
        );
    }
    keep_service(setup, &mut server).await;
    if let Some(companion) = companion {
        companion.start(setup, &mut server);
    }
    server.directory().hold_back();
    notify::ready(server.url());
    report(&format!(
        "ready in {} ms: {} kubeconfig {}",
        started.elapsed().as_millis(),
        server.url(),
        server.kubeconfig().display()
    ));
    wait(server, &mut signals).await
}

/// Keeps the Service of the API servers while the server runs, where Services are served.
async fn keep_service(setup: &ServerSetup<'_>, server: &mut RunningControlPlane) {
    let port = server.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port = port.unwrap_or(setup.flags.secure_port);
    let service = setup.flags.service.service(setup.flags.bind_address, port);
    let registry = server.api().registry().clone();
    service.prepare(&registry).await;
    let shutdown = server.shutdown();
    server.spawn(service.maintain(registry, async move { shutdown.begun().await }));
}

/// Prints the ready line. Ignores a closed standard output.
pub(crate) fn report(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

/// Waits for a signal or a fatal error.
async fn wait(mut server: RunningControlPlane, signals: &mut Signals) -> anyhow::Result<ExitCode> {
    tokio::select! {
        (name, _) = signals.next() => tracing::info!(signal = name, "ending"),
        error = server.failed() => return Err(anyhow!(error)),
    }
    tokio::select! {
        () = server.stop() => Ok(ExitCode::SUCCESS),
        (name, code) = signals.next() => {
            tracing::warn!(signal = name, "shutting down at once");
            Ok(ExitCode::from(code))
        }
    }
}
