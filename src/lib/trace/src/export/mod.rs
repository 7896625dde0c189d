//! Spans for an OpenTelemetry collector (OTLP), only when asked: one for each seam, parent-based sampling, a bounded buffer, never a request that waits.
//!
//! Our own exporter and not the OpenTelemetry SDK: what is needed is one message of protobuf and one POST, the HTTP library is linked anyway, and the SDK
//! with its exporter would add a tenth to every build. Without [`start`] a span costs the test of one bit.

mod buffer;
mod endpoint;
mod otlp;
mod sampling;
mod send;
mod span;
mod worker;

pub use buffer::Stats;
pub use endpoint::{Endpoint, EndpointError};
pub use sampling::Sampler;
pub use span::{Kind, Span};
pub use worker::Finish;

use crate::context::TraceContext;
use buffer::Buffer;
use std::io;
use std::sync::{Arc, OnceLock};

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub struct Config {
    /// The collector.
    pub endpoint: Endpoint,
    /// Which traces without a trusted parent are sampled.
    pub sampler: Sampler,
    /// `service.name` of every span.
    pub service: String,
    /// `service.instance.id`: tells processes of one service apart.
    pub instance: String,
}

/// Why export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The exporter's thread did not start.
    #[error("cannot start the exporter of spans")]
    Thread(#[source] io::Error),
    /// Spans of this process are exported already.
    #[error("the export of spans was started before")]
    Twice,
}

/// An exporter's end that spans see.
#[derive(Debug)]
pub(crate) struct Exporter {
    sampler: Sampler,
    buffer: Buffer,
}

/// One for the process, as is its log: the seams are in every crate, and a handle through all of them would serve nobody else.
static EXPORTER: OnceLock<Arc<Exporter>> = OnceLock::new();

/// Starts the export of the process's spans. What is returned sends the last ones when it is dropped, if that takes no longer than a second.
///
/// # Errors
/// [`ExportError`].
pub fn start(config: &Config) -> Result<Finish, ExportError> {
    let exporter = Arc::new(Exporter { sampler: config.sampler, buffer: Buffer::default() });
    EXPORTER.set(Arc::clone(&exporter)).map_err(|_| ExportError::Twice)?;
    worker::start(config, exporter).map_err(ExportError::Thread)
}

/// The sampling decision for a context that no trusted sender has decided about: by its trace id, so that all processes with the same rate agree.
/// While nothing is exported the context stays as it is.
#[must_use]
pub fn sample(context: TraceContext) -> TraceContext {
    match EXPORTER.get() {
        Some(exporter) => context.with_sampled(exporter.sampler.samples(context.trace_id)),
        None => context,
    }
}

/// What was exported and dropped since the start; `None` while nothing is exported.
pub fn stats() -> Option<Stats> {
    EXPORTER.get().map(|exporter| exporter.buffer.stats())
}

fn current() -> Option<Arc<Exporter>> {
    EXPORTER.get().cloned()
}
