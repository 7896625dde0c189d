//! The user who did nothing: creates at a steady, low rate.

use crate::stage::{Stage, VICTIM};
use crate::wire::{Protocol, Wire};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Connections; each has one request at a time.
const CONNECTIONS: usize = 4;
/// From one create to the next on a connection.
const PACE: Duration = Duration::from_millis(20);
/// A create that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates ConfigMaps in a namespace of its own.
pub(crate) struct Victim {
    stage: Arc<Stage>,
    number: Cell<u64>,
}

/// How long creates took.
#[derive(Default)]
pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    /// Refused, failed or later than the patience.
    pub(crate) errors: usize,
}

impl Latencies {
    /// All creates.
    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }

    /// By rank, in milliseconds.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let rank = (self.sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        self.sorted.get(rank).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
    }
}

impl Victim {
    pub(crate) fn new(stage: &Arc<Stage>) -> Self {
        Self { stage: Arc::clone(stage), number: Cell::new(0) }
    }

    /// Creates for this long.
    pub(crate) async fn measure(&self, time: Duration) -> Latencies {
        let end = Instant::now() + time;
        let parts = futures::future::join_all((0..CONNECTIONS).map(|_| self.create_until(end))).await;
        let mut all = Latencies::default();
        for part in parts {
            all.sorted.extend(part.sorted);
            all.errors += part.errors;
        }
        all.sorted.sort_unstable();
        all
    }

    async fn create_until(&self, end: Instant) -> Latencies {
        let mut latencies = Latencies::default();
        let mut wire = None;
        let mut ticks = tokio::time::interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < end {
            ticks.tick().await;
            let begun = Instant::now();
            let created = tokio::time::timeout(PATIENCE, self.create(&mut wire)).await;
            latencies.sorted.push(begun.elapsed());
            match created {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    if latencies.errors == 0 {
                        eprintln!("  a create failed: {error:#}");
                    }
                    latencies.errors += 1;
                    wire = None;
                }
                Err(_) => {
                    latencies.errors += 1;
                    wire = None;
                }
            }
        }
        latencies
    }

    async fn create(&self, kept: &mut Option<Wire>) -> anyhow::Result<()> {
        let mut wire = match kept.take() {
            Some(wire) => wire,
            None => Wire::connect(&self.stage, Protocol::Http1).await?,
        };
        self.number.set(self.number.get() + 1);
        let body =
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c{}"}},"data":{{"text":"{}"}}}}"#, self.number.get(), "x".repeat(1000));
        let (status, text) = wire.post("/api/v1/namespaces/victim/configmaps", VICTIM, "application/json", body.as_bytes()).await?;
        anyhow::ensure!(status == 201, "{status}: {}", &text[..text.len().min(200)]);
        *kept = Some(wire);
        Ok(())
    }
}
