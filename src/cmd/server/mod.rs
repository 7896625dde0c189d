//! The API server process: opens its inputs, wires the crates, waits, and shuts down in order.

mod authentication_info;
mod front_proxy;
mod inputs;
mod listener;
mod rights;
mod static_tokens;
mod token_keys;
mod trace_page;
mod wiring;

use super::data_dir::DataDir;
use super::flags::{KubeApiserverFlags, ServerFlags, Storage};
use super::process::{self, Signals};
use anyhow::{Context, anyhow};
use ferrokube_controlplane::ControlPlane;
use ferrokube_features::LOG_TRACKING;
use ferrokube_pki::Pki;
use ferrokube_serve::{Shutdown, ShutdownTrigger};
use ferrokube_storage::{Config, Environment, OpenError, Store};
use ferrokube_timeline::Ring;
use ferrokube_trace::log;
use inputs::Inputs;
use listener::Listener;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};

pub(crate) use token_keys::KeyFiles;

/// Time limit of the shutdown, draining included; the rest is cut off.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(40);

/// A server's command line, and what was opened for it first.
pub(crate) struct ServerSetup<'a> {
    pub(crate) flags: &'a ServerFlags,
    pub(crate) kube_apiserver: &'a KubeApiserverFlags,
    pub(crate) inputs: Inputs,
    pub(crate) directory: DataDir,
    /// Recent events for the trace page; all-in-one only.
    pub(crate) ring: Option<Arc<Ring>>,
}

/// Runs alongside the server in the same process, once it is ready.
pub(crate) trait Companion {
    /// Checks its own flags, before anything is opened.
    fn check(&self) -> anyhow::Result<()>;

    /// Starts it. It stops by itself on shutdown.
    fn start(
        &self,
        setup: &ServerSetup<'_>,
        pki: &Pki,
        url: &str,
        shutdown: Shutdown,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<()>;
}

/// Runs a server until a signal.
pub(crate) fn run(
    flags: &ServerFlags,
    kube_apiserver: &KubeApiserverFlags,
    companion: Option<&dyn Companion>,
    started: Instant,
) -> anyhow::Result<ExitCode> {
    let inputs = Inputs::read(flags, kube_apiserver, companion)?;
    let remembers =
        flags.trace_ui.enabled && companion.is_some() && inputs.gates.enabled(&LOG_TRACKING);
    let ring = remembers.then(|| Arc::new(Ring::default()));
    // Opened first: the log may be in it.
    let directory = DataDir::open(flags.data_dir.as_deref())?;
    let log_file = (companion.is_some() && flags.storage == Storage::Embedded)
        .then(|| directory.join("ferrokube.log"));
    let log = log::LogConfig {
        tap: ring.clone().map(|ring| ring as Arc<dyn log::Tap>),
        ..flags.log.config(&inputs.gates, log_file.as_deref())
    };
    let _telemetry = process::set_up(&log, &inputs.gates, &inputs.warnings, inputs.spans.as_ref())?;
    let setup = ServerSetup { flags, kube_apiserver, inputs, directory, ring };
    process::block_on(serve(&setup, companion, started))
}

/// A running server.
struct RunningServer {
    control_plane: ControlPlane,
    store: Store,
    audit: ferrokube_auth::audit::AuditLog,
    trigger: ShutdownTrigger,
    serving: JoinHandle<usize>,
    tasks: JoinSet<()>,
}

async fn serve(
    setup: &ServerSetup<'_>,
    companion: Option<&dyn Companion>,
    started: Instant,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let (pki, store) = open(setup)?;
    let listener = Listener::bind(setup, &pki)?;
    let wiring::AssembledServer { control_plane, audit, tokens, keys, front_proxy } =
        wiring::build(setup, &pki, &store)?;
    let (key_files, pem) = keys;
    control_plane.show_listener(listener.stats());
    let url = listener.url();
    let mut tasks = JoinSet::new();
    let (trigger, shutdown) = ShutdownTrigger::new();
    tasks.spawn(front_proxy.renew(shutdown.clone()));
    tasks.spawn(key_files.watch(tokens, pem, shutdown.clone()));
    if let Some(tokens) = setup.inputs.static_tokens.clone() {
        tasks.spawn(tokens.watch(shutdown.clone()));
    }
    let kubeconfig = setup.directory.join("admin.kubeconfig");
    let serving =
        listener.start(control_plane.handler(), pki.clone(), &kubeconfig, &shutdown, &mut tasks)?;
    let mut running = RunningServer { control_plane, store, audit, trigger, serving, tasks };
    tokio::select! {
        result = running.control_plane.start() => result?,
        // Nothing to drain yet.
        (name, _) = signals.next() => {
            tracing::info!(signal = name, "shutting down before being ready");
            return Ok(ExitCode::SUCCESS);
        }
        reason = running.store.failed() => return Err(anyhow!("the store failed: {reason}")),
    }
    if let Some(companion) = companion {
        companion.start(setup, &pki, &url, shutdown, &mut running.tasks)?;
    }
    setup.directory.hold_back();
    report(&format!(
        "ready in {} ms: {url} kubeconfig {}",
        started.elapsed().as_millis(),
        kubeconfig.display()
    ));
    running.wait(&mut signals).await
}

fn open(setup: &ServerSetup<'_>) -> anyhow::Result<(Pki, Store)> {
    let config = match setup.flags.storage {
        Storage::Embedded => Config {
            must_exist: setup.directory.had_state(),
            ..Config::embedded(setup.directory.join("store"))
        },
        Storage::Memory => Config::memory(),
    };
    // Overlaps recovery (IO), key generation (CPU, syncs) and parsing of definitions.
    std::thread::scope(|scope| {
        let store = scope.spawn(|| open_store(setup, config));
        scope.spawn(|| (ferrokube_resources::tables(), ferrokube_resources::messages()));
        setup.directory.finish()?;
        let pki = Pki::open(&setup.directory.join("pki"))?;
        let store = store.join().map_err(|_| anyhow!("opening the state panicked"))??;
        Ok((pki, store))
    })
}

fn open_store(setup: &ServerSetup<'_>, config: Config) -> anyhow::Result<Store> {
    let is_embedded = setup.flags.storage == Storage::Embedded;
    let store = match Store::open_with(config, store_environment()?) {
        Err(error @ OpenError::Missing(_)) => {
            return Err(error)
                .with_context(|| setup.directory.advice())
                .context("cannot open the state");
        }
        outcome => outcome.context("cannot open the state")?,
    };
    if is_embedded {
        setup.directory.note_state()?;
    }
    Ok(store)
}

/// The store's environment. In debug builds `FERROKUBE_FAILPOINT` may name a call at which the
/// process dies (`none`: never), with segments small enough to exercise the whole journal.
#[cfg(debug_assertions)]
fn store_environment() -> anyhow::Result<Environment> {
    use ferrokube_storage::JournalLimits;
    use ferrokube_storage::testing::FailpointDisk;
    let Ok(text) = std::env::var("FERROKUBE_FAILPOINT") else { return Ok(Environment::default()) };
    let failpoint =
        if text == "none" { None } else { Some(text.parse().map_err(|why: String| anyhow!(why))?) };
    let journal = JournalLimits {
        segment_bytes: 64 << 10,
        retain_bytes: 512 << 10,
        ..JournalLimits::default()
    };
    Ok(Environment {
        io: Arc::new(FailpointDisk::new(failpoint)),
        journal,
        ..Environment::default()
    })
}

#[cfg(not(debug_assertions))]
#[allow(clippy::unnecessary_wraps, reason = "same signature as in debug builds")]
fn store_environment() -> anyhow::Result<Environment> {
    Ok(Environment::default())
}

/// Prints the ready line. Ignores a closed standard output.
pub(crate) fn report(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

impl RunningServer {
    /// Waits for a signal or a fatal error.
    async fn wait(mut self, signals: &mut Signals) -> anyhow::Result<ExitCode> {
        tokio::select! {
            (name, _) = signals.next() => tracing::info!(signal = name, "ending"),
            reason = self.store.failed() => return Err(anyhow!("the store failed: {reason}")),
            ended = &mut self.serving => return Err(anyhow!("the listener stopped unexpectedly: {ended:?}")),
        }
        tokio::select! {
            () = self.end() => Ok(ExitCode::SUCCESS),
            (name, code) = signals.next() => {
                tracing::warn!(signal = name, "shutting down at once");
                Ok(ExitCode::from(code))
            }
        }
    }

    /// Finishes requests, then watches and companions, then closes the store: in this order, so
    /// that no acknowledged write is lost.
    async fn end(mut self) {
        self.control_plane.begin_shutdown();
        self.trigger.begin();
        let in_order = async {
            match (&mut self.serving).await {
                Ok(0) => {}
                Ok(cut) => tracing::warn!(connections = cut, "requests were cut off"),
                Err(error) => tracing::error!(%error, "the listener failed"),
            }
            while self.tasks.join_next().await.is_some() {}
            self.control_plane.stopped().await;
            self.store.close().await;
        };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, in_order).await.is_err() {
            tracing::error!("shutdown timed out");
        }
        let audit = self.audit;
        // Joins its thread.
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
    }
}
