//! OTLP span export: one span per interface crossed, parent-based sampling, a bounded queue.
//! Requests never wait for a collector.
//!
//! OpenTelemetry's SDK batches and its OTLP exporter sends. Ours are the span API (ids come with
//! the [`TraceContext`], and an unsampled context costs one bit test and no allocation), the
//! sampling decision, and the counters of exported and dropped spans, which the SDK does not
//! publish.

mod collector;
mod endpoint;
mod queue;
mod sampling;
mod span;
#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, EndpointError};
pub use queue::SpanStats;
pub use sampling::Sampler;
pub use span::{Span, SpanSide, SpanStart};

use crate::context::TraceContext;
use collector::Collector;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::BatchConfigBuilder;
use queue::SpanQueue;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long [`Finish`] waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// Collector and settings of the span export.
#[derive(Clone, Debug)]
pub struct ExportConfig {
    /// The collector; `None` uses `OTEL_EXPORTER_OTLP_ENDPOINT` and related variables, by default
    /// gRPC on `localhost:4317`.
    pub endpoint: Option<Endpoint>,
    /// Samples traces without a trusted parent; `None` uses `OTEL_TRACES_SAMPLER`, by default none.
    pub sampler: Option<Sampler>,
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`: distinguishes processes of a service.
    pub instance: String,
}

/// Why export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Starting the exporter's runtime failed.
    #[error("cannot start the exporter of spans")]
    Runtime(#[source] io::Error),
    /// The environment specifies no usable collector.
    #[error("cannot export spans")]
    Environment(#[source] EndpointError),
    /// The OTLP exporter rejected its configuration.
    #[error("cannot export spans")]
    Exporter(#[source] ExporterBuildError),
    /// Export was started before in this process.
    #[error("the export of spans was started before")]
    Twice,
}

/// The exporter, as used by spans.
#[derive(Debug)]
pub(crate) struct Exporter {
    sampler: Sampler,
    queue: SpanQueue,
}

/// One per process, like the log: spans are created in every crate, and all would have to pass a
/// handle on.
static EXPORTER: OnceLock<Arc<Exporter>> = OnceLock::new();

/// Flushes on drop, for at most a second.
#[derive(Debug)]
pub struct Finish {
    exporter: Arc<Exporter>,
    runtime: Option<Runtime>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.exporter.queue.shut_down(LAST_SPANS);
        if let Some(runtime) = self.runtime.take() {
            // Cancels an export that still waits for a collector.
            runtime.shutdown_background();
        }
    }
}

/// Starts exporting the process's spans, until the returned guard is dropped.
///
/// `OTEL_EXPORTER_OTLP_*`, `OTEL_BSP_*`, `OTEL_TRACES_SAMPLER` and `OTEL_RESOURCE_ATTRIBUTES` apply
/// to what [`ExportConfig`] leaves open.
///
/// # Errors
/// [`ExportError`].
pub fn start(config: &ExportConfig) -> Result<Finish, ExportError> {
    let finish = start_batching(config, BatchConfigBuilder::default())?;
    EXPORTER.set(Arc::clone(&finish.exporter)).map_err(|_| ExportError::Twice)?;
    Ok(finish)
}

/// The exporter has its own runtime, so that a busy server and a slow collector cannot starve each
/// other.
fn start_batching(
    config: &ExportConfig,
    batching: BatchConfigBuilder,
) -> Result<Finish, ExportError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("spans")
        .enable_all()
        .build()
        .map_err(ExportError::Runtime)?;
    let counts = Arc::default();
    let collector = Collector::new(config, runtime.handle().clone(), Arc::clone(&counts))?;
    let queue = SpanQueue::new(collector, batching, counts);
    let sampler = config.sampler.unwrap_or_else(Sampler::of_environment);
    Ok(Finish { exporter: Arc::new(Exporter { sampler, queue }), runtime: Some(runtime) })
}

/// The sampling decision for a context without a trusted parent: by its trace id, so that all
/// processes with the same rate agree. Returns the context unchanged while nothing is exported.
#[must_use]
pub fn sample(context: TraceContext) -> TraceContext {
    match EXPORTER.get() {
        Some(exporter) => context.with_sampled(exporter.sampler.samples(context.trace_id)),
        None => context,
    }
}

/// Spans exported and dropped since the start; `None` while nothing is exported.
pub fn stats() -> Option<SpanStats> {
    EXPORTER.get().map(|exporter| exporter.queue.stats())
}

fn current() -> Option<Arc<Exporter>> {
    EXPORTER.get().cloned()
}
