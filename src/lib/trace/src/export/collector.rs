//! The OTLP exporter behind the batch processor: runs on the exporter's runtime, within a bound,
//! counted, and logged once per outage.

use super::queue::Counts;
use super::{Endpoint, EndpointError, ExportConfig, ExportError};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError, OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, Protocol, SpanExporter,
    WithExportConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    self, OTEL_BSP_EXPORT_TIMEOUT, OTEL_BSP_EXPORT_TIMEOUT_DEFAULT, SpanData,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Max `OTEL_BSP_EXPORT_TIMEOUT`.
const MAX_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Collector {
    exporter: Arc<SpanExporter>,
    /// The batch processor's thread has no runtime, which connections and timers need.
    runtime: Handle,
    /// For a batch and its retries. The exporter's own timeout does not cover connecting.
    timeout: Duration,
    counts: Arc<Counts>,
    /// Whether the last batch failed; only the first failure is logged.
    failing: AtomicBool,
}

impl Collector {
    /// Connects on the first batch.
    pub(super) fn new(
        config: &ExportConfig,
        runtime: Handle,
        counts: Arc<Counts>,
    ) -> Result<Self, ExportError> {
        let entered = runtime.enter();
        let built = match &config.endpoint {
            Some(endpoint) => configured(endpoint),
            None => of_environment()?,
        };
        drop(entered);
        let mut exporter = built.map_err(ExportError::Exporter)?;
        trace::SpanExporter::set_resource(&mut exporter, &resource(config));
        let timeout = variable(&[OTEL_BSP_EXPORT_TIMEOUT])
            .and_then(|text| text.parse().ok())
            .map_or(OTEL_BSP_EXPORT_TIMEOUT_DEFAULT, Duration::from_millis);
        Ok(Self {
            exporter: Arc::new(exporter),
            runtime,
            timeout: timeout.min(MAX_TIMEOUT),
            counts,
            failing: AtomicBool::new(false),
        })
    }

    fn report(&self, spans: usize, result: &OTelSdkResult) {
        match result {
            Ok(()) => {
                self.counts.exported(spans);
                if self.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "ferrokube::spans", "span export recovered");
                }
            }
            Err(error) => {
                self.counts.dropped(spans);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(target: "ferrokube::spans", %error, "cannot export spans, dropping them");
                }
            }
        }
    }
}

impl trace::SpanExporter for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (spans, timeout) = (batch.len(), self.timeout);
        self.counts.dequeue(spans);
        let exporter = Arc::clone(&self.exporter);
        let sent = self.runtime.spawn(async move {
            tokio::time::timeout(timeout, trace::SpanExporter::export(&*exporter, batch)).await
        });
        let result = match sent.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(OTelSdkError::Timeout(timeout)),
            Err(_) => Err(OTelSdkError::AlreadyShutdown),
        };
        self.report(spans, &result);
        result
    }
}

fn configured(endpoint: &Endpoint) -> Result<SpanExporter, ExporterBuildError> {
    match endpoint {
        Endpoint::Grpc(url) => SpanExporter::builder().with_tonic().with_endpoint(url).build(),
        Endpoint::Http(url) => SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .build(),
    }
}

/// gRPC unless the environment specifies another protocol, as in kube-apiserver.
fn of_environment() -> Result<Result<SpanExporter, ExporterBuildError>, ExportError> {
    let protocol = variable(&[OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL])
        .unwrap_or_else(|| "grpc".to_owned());
    let endpoint = variable(&[OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT]);
    match protocol.as_str() {
        "grpc" => Ok(SpanExporter::builder().with_tonic().build()),
        // For gRPC the exporter checks this itself.
        "http/protobuf" => match endpoint.filter(|endpoint| !endpoint.starts_with("http://")) {
            Some(endpoint) => Err(ExportError::Environment(EndpointError::Scheme(endpoint))),
            None => {
                Ok(SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build())
            }
        },
        _ => Err(ExportError::Environment(EndpointError::Protocol(protocol))),
    }
}

/// The first of these variables that has a value.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        std::env::var(name)
            .ok()
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    })
}

/// The process's resource attributes, including `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(config: &ExportConfig) -> Resource {
    let own = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", config.instance.clone()),
    ];
    Resource::builder().with_service_name(config.service.clone()).with_attributes(own).build()
}
