//! The measured user: creates objects at a steady, low rate, small ones over HTTP/1.1 and manifests
//! over HTTP/2. Manifests are large enough to need the shared body budget.

use crate::testbed::{Testbed, VICTIM};
use crate::wire::{Wire, WireProtocol};
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Connections, with one request at a time each.
const CONNECTIONS: usize = 4;
/// Interval of creates per connection.
const PACE: Duration = Duration::from_millis(20);
/// Interval of manifest creates, per connection.
const MANIFEST_PACE: Duration = Duration::from_millis(50);
const MANIFEST_CONNECTIONS: usize = 2;
/// Lengths of manifests, in turn.
const MANIFEST_BYTES: [usize; 4] = [20_000, 40_000, 64_000, 100_000];
const PATH: &str = "/api/v1/namespaces/victim/configmaps";
/// Creates that take longer count as errors.
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates ConfigMaps in its own namespace.
pub(crate) struct Victim {
    stage: Arc<Testbed>,
    number: Cell<u64>,
}

/// Latencies of creates.
#[derive(Default)]
pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    /// Refused, failed or timed out creates.
    pub(crate) errors: usize,
}

impl Latencies {
    pub(crate) fn record(&mut self, latency: Duration, is_created: bool) {
        self.sorted.push(latency);
        self.errors += usize::from(!is_created);
    }

    pub(crate) fn of(parts: Vec<Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.sorted.extend(part.sorted);
            all.errors += part.errors;
        }
        all.sorted.sort_unstable();
        all
    }

    /// Number of creates.
    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Percentile in milliseconds.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (self.sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        self.sorted.get(rank).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }
}

impl Victim {
    pub(crate) fn new(stage: &Arc<Testbed>) -> Self {
        Self { stage: Arc::clone(stage), number: Cell::new(0) }
    }

    /// Creates small objects and manifests for `time`.
    pub(crate) async fn measure(&self, time: Duration) -> (Latencies, Latencies) {
        let end = Instant::now() + time;
        let small = futures::future::join_all((0..CONNECTIONS).map(|_| {
            self.create_until(end, PACE, async |kept: &mut Option<Wire>| self.create(kept).await)
        }));
        let manifests = futures::future::join_all((0..MANIFEST_CONNECTIONS).map(|_| {
            self.create_until(
                end,
                MANIFEST_PACE,
                async |kept: &mut Option<SendRequest<Full<Bytes>>>| {
                    self.create_manifest(kept).await
                },
            )
        }));
        let (small, manifests) = tokio::join!(small, manifests);
        (Latencies::of(small), Latencies::of(manifests))
    }

    async fn create_until<C>(
        &self,
        end: Instant,
        pace: Duration,
        create: impl AsyncFn(&mut Option<C>) -> anyhow::Result<()>,
    ) -> Latencies {
        let mut latencies = Latencies::default();
        let mut wire = None;
        let mut ticks = tokio::time::interval(pace);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < end {
            ticks.tick().await;
            let begun = Instant::now();
            let created = tokio::time::timeout(PATIENCE, create(&mut wire)).await;
            let is_created = matches!(created, Ok(Ok(())));
            if let Ok(Err(error)) = created
                && latencies.errors == 0
            {
                eprintln!("  a create failed: {error:#}");
            }
            if !is_created {
                wire = None;
            }
            latencies.record(begun.elapsed(), is_created);
        }
        latencies
    }

    async fn create_manifest(
        &self,
        kept: &mut Option<SendRequest<Full<Bytes>>>,
    ) -> anyhow::Result<()> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => {
                let io =
                    TokioIo::new(Wire::connect(&self.stage, WireProtocol::Http2).await?.stream);
                let (connection, driver) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(driver);
                connection
            }
        };
        let number = self.number.get() + 1;
        self.number.set(number);
        let lines = "a line of a file: 40 bytes, more or less\\n"
            .repeat(MANIFEST_BYTES[number as usize % MANIFEST_BYTES.len()] / 42);
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"m{number}"}},"data":{{"file":"{lines}"}}}}"#
        );
        let request = http::Request::post(format!("https://{}{PATH}", self.stage.authority))
            .header("authorization", format!("Bearer {VICTIM}"))
            .header("content-type", "application/json")
            .body(Full::from(body))?;
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        let text = response.into_body().collect().await.context("no answer")?.to_bytes();
        anyhow::ensure!(
            status == 201,
            "{status}: {}",
            String::from_utf8_lossy(&text[..text.len().min(200)])
        );
        *kept = Some(connection);
        Ok(())
    }

    async fn create(&self, kept: &mut Option<Wire>) -> anyhow::Result<()> {
        let mut wire = match kept.take() {
            Some(wire) => wire,
            None => Wire::connect(&self.stage, WireProtocol::Http1).await?,
        };
        self.number.set(self.number.get() + 1);
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c{}"}},"data":{{"text":"{}"}}}}"#,
            self.number.get(),
            "x".repeat(1000)
        );
        let (status, text) = wire.post(PATH, VICTIM, "application/json", body.as_bytes()).await?;
        anyhow::ensure!(status == 201, "{status}: {}", &text[..text.len().min(200)]);
        *kept = Some(wire);
        Ok(())
    }
}
