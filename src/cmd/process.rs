//! What every role needs of its process: logs, panics, file handles, the runtime, signals.

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

/// What the process tells about itself; dropped at its end, it sends the last spans and writes the last lines.
pub(crate) struct Telemetry {
    _spans: Option<Finish>,
    _log: LastLines,
}

/// Starts logging and, when asked, the export of spans; takes all file handles there are, and makes panics one log line.
pub(crate) fn set_up(log: &log::Config, gates: &Gates, warnings: &[GateWarning], spans: Option<&export::Config>) -> anyhow::Result<Telemetry> {
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
    // Not fatal: connections are then refused earlier.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Ok(Telemetry { _spans: spans, _log: log })
}

/// Whether logging could start like this, as far as can be seen without opening anything.
pub(crate) fn check_log(log: &log::Config) -> anyhow::Result<()> {
    log::check(log)?;
    check_log_path("--log-file", log.file.as_ref().map(|file| file.path.as_path()))
}

/// Whether a log could be kept there; `-` is no file.
pub(crate) fn check_log_path(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(!path.is_dir(), "cannot use {flag} {}: it is a directory", path.display());
    ensure!(folder.is_dir(), "cannot use {flag} {}: {} is no directory", path.display(), folder.display());
    Ok(())
}

/// Where, and what if it is a constant of the program: a computed message may hold what must not be in a log.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let reason = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("(computed)");
        let thread = std::thread::current();
        tracing::error!(location, reason, thread = thread.name().unwrap_or_default(), "panic");
    }));
}

/// Runs a role to its end on a runtime of its own: two workers or more.
pub(crate) fn block_on(role: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores.max(2))
        .on_thread_park(crate::memory::at_rest)
        .thread_keep_alive(crate::memory::IDLE_THREAD)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    // Ends with the runtime; holds nothing.
    runtime.spawn(crate::memory::wake());
    let result = runtime.block_on(role);
    // Blocking work that is still under way must not hold up the end; whatever must be durable was waited for.
    runtime.shutdown_background();
    result
}

/// The signals that ask the process to end.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one: its name, and the exit code of a process that it ends.
    pub(crate) async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 143),
            _ = self.interrupt.recv() => ("SIGINT", 130),
        }
    }
}
