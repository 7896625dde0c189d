//! Export of spans over OTLP: one per seam, parent-based sampling, a bounded queue, and no request
//! that waits for a collector.
//!
//! OpenTelemetry's SDK batches and its OTLP exporter sends. Ours are the span API (ids come with
//! the [`TraceContext`], and a context that is not sampled costs the test of one bit and no
//! allocation), the sampling decision, and the counters of exported and dropped spans, which the
//! SDK does not publish.

mod collector;
mod endpoint;
mod queue;
mod sampling;
mod span;
#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, EndpointError};
pub use queue::Stats;
pub use sampling::Sampler;
pub use span::{Kind, Span};

use crate::context::TraceContext;
use collector::Collector;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::BatchConfigBuilder;
use queue::Queue;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long [`Finish`] waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// What to export, and where to.
#[derive(Clone, Debug)]
pub struct Config {
    /// The collector; `None`: the one of `OTEL_EXPORTER_OTLP_ENDPOINT` and its kin, by default gRPC
    /// on `localhost:4317`.
    pub endpoint: Option<Endpoint>,
    /// Decides about traces without a trusted parent; `None`: the sampler of `OTEL_TRACES_SAMPLER`,
    /// by default none of them.
    pub sampler: Option<Sampler>,
    /// `service.name` of every span.
    pub service: String,
    /// `service.instance.id`: distinguishes processes of one service.
    pub instance: String,
}

/// Why export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The exporter's runtime did not start.
    #[error("cannot start the exporter of spans")]
    Runtime(#[source] io::Error),
    /// The environment names no usable collector.
    #[error("cannot export spans")]
    Environment(#[source] EndpointError),
    /// The OTLP exporter refused its configuration.
    #[error("cannot export spans")]
    Exporter(#[source] ExporterBuildError),
    /// This process exports spans already.
    #[error("the export of spans was started before")]
    Twice,
}

/// The exporter as spans see it.
#[derive(Debug)]
pub(crate) struct Exporter {
    sampler: Sampler,
    queue: Queue,
}

/// One per process, like the log: the seams are in every crate, and all of them would have to pass
/// a handle on.
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

/// Starts the export of the process's spans, which ends when the returned guard is dropped.
///
/// The variables `OTEL_EXPORTER_OTLP_*`, `OTEL_BSP_*`, `OTEL_TRACES_SAMPLER` and
/// `OTEL_RESOURCE_ATTRIBUTES` apply to what [`Config`] leaves open.
///
/// # Errors
/// [`ExportError`].
pub fn start(config: &Config) -> Result<Finish, ExportError> {
    let finish = start_batching(config, BatchConfigBuilder::default())?;
    EXPORTER.set(Arc::clone(&finish.exporter)).map_err(|_| ExportError::Twice)?;
    Ok(finish)
}

/// The runtime is the exporter's own, so that neither a busy server nor a slow collector starves
/// the other.
fn start_batching(config: &Config, batching: BatchConfigBuilder) -> Result<Finish, ExportError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("spans")
        .enable_all()
        .build()
        .map_err(ExportError::Runtime)?;
    let counts = Arc::default();
    let collector = Collector::new(config, runtime.handle().clone(), Arc::clone(&counts))?;
    let queue = Queue::new(collector, batching, counts);
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
pub fn stats() -> Option<Stats> {
    EXPORTER.get().map(|exporter| exporter.queue.stats())
}

fn current() -> Option<Arc<Exporter>> {
    EXPORTER.get().cloned()
}
