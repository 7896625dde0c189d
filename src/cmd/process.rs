//! Process setup for every role: logs, panics, file descriptors, runtime, signals.

use anyhow::{Context, ensure};
use ferrokube_features::{GateWarning, Gates, LOG_TRACKING_INTEROP};
use ferrokube_trace::export::{self, Finish};
use ferrokube_trace::log::{self, LastLines};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Logging and tracing of the process. Flushed on drop.
pub(crate) struct Telemetry {
    _spans: Option<Finish>,
    _log: LastLines,
}

/// Starts logging and, if configured, span export; raises the file descriptor limit, and turns
/// panics into log lines.
pub(crate) fn set_up(
    log: &log::LogConfig,
    gates: &Gates,
    warnings: &[GateWarning],
    spans: Option<&export::ExportConfig>,
) -> anyhow::Result<Telemetry> {
    if gates.enabled(&LOG_TRACKING_INTEROP) {
        ferrokube_trace::interop::turn_on();
    }
    let log = log::start(log, io::stderr())?;
    let spans = spans.map(export::start).transpose()?;
    for warning in warnings {
        tracing::warn!(%warning, "feature gate");
    }
    report_panics();
    let limit = getrlimit(Resource::Nofile);
    // Not fatal: connections are refused earlier.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Ok(Telemetry { _spans: spans, _log: log })
}

/// Checks the log configuration without opening anything.
pub(crate) fn check_log(log: &log::LogConfig) -> anyhow::Result<()> {
    log::check(log)?;
    check_log_path("--log-file", log.file.as_ref().map(|file| file.path.as_path()))
}

/// Checks a log path; `-` means no file.
pub(crate) fn check_log_path(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(()) };
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(!path.is_dir(), "cannot use {flag} {}: is a directory", path.display());
    ensure!(
        folder.is_dir(),
        "cannot use {flag} {}: {} is not a directory",
        path.display(),
        folder.display()
    );
    Ok(())
}

/// Logs the location, and the message only if constant: formatted messages may contain secrets.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let reason =
            panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("(computed)");
        let thread = std::thread::current();
        tracing::error!(location, reason, thread = thread.name().unwrap_or_default(), "panic");
    }));
}

/// Runs a role to completion on a new runtime with at least two workers.
pub(crate) fn block_on(
    role: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores.max(2))
        .on_thread_park(crate::memory::at_rest)
        .thread_keep_alive(crate::memory::IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    // Stops with the runtime.
    runtime.spawn(crate::memory::wake());
    runtime.spawn(super::notify::watchdog());
    let result = runtime.block_on(role);
    // Do not wait for blocking work: whatever must be durable was awaited.
    runtime.shutdown_background();
    result
}

/// Termination signals.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next signal's name, and the exit code of a process that it terminates.
    pub(crate) async fn next(&mut self) -> (&'static str, u8) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
        };
        super::notify::stopping();
        signal
    }
}
