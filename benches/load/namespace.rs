//! A scenario's namespace, and helpers that generate load.

use crate::connection::{HttpVersion, LoadConnection, LoadRequest};
use crate::measure::{Sample, cpu};
use crate::target::LoadTarget;
use anyhow::ensure;
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Content type of merge patches.
pub(crate) const MERGE: &str = "application/merge-patch+json";
/// Content type of JSON bodies.
pub(crate) const JSON: &str = "application/json";

/// A namespace on a target.
pub(crate) struct BenchNamespace {
    /// Target server.
    pub(crate) target: Arc<LoadTarget>,
    /// Namespace name.
    pub(crate) name: String,
    /// Whether this run created it.
    own: bool,
}

/// About 1 KiB of data, 1.4 KiB as stored JSON.
pub(crate) fn config_map(name: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{"value":"{}"}}}}"#,
        "x".repeat(1024)
    )
}

/// A name unique among runs.
pub(crate) fn unique() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("load-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

impl BenchNamespace {
    /// Creates the namespace. Falls back to `default` on servers without namespaces (custom
    /// resources only).
    pub(crate) async fn make(target: Arc<LoadTarget>) -> anyhow::Result<Self> {
        let name = unique();
        let mut connection = LoadConnection::open(&target, HttpVersion::Http1).await?;
        let body =
            format!(r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
        let (status, answer) =
            connection.ask(&LoadRequest::write("POST", "/api/v1/namespaces", JSON, body)).await?;
        if status == http::StatusCode::NOT_FOUND {
            return Ok(Self { target, name: "default".to_owned(), own: false });
        }
        ensure!(
            status.is_success(),
            "the namespace {name} was answered with {status}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(Self { target, name, own: true })
    }

    /// Deletes the objects and the namespace, without waiting for controllers.
    pub(crate) async fn remove(&self) -> anyhow::Result<()> {
        if !self.own {
            return Ok(());
        }
        let mut connection = self.connect().await?;
        // A million objects exceed the time limit of one request.
        while connection.ask(&LoadRequest::delete(self.objects())).await?.0
            == StatusCode::GATEWAY_TIMEOUT
        {}
        connection.send(&LoadRequest::delete(format!("/api/v1/namespaces/{}", self.name))).await?;
        Ok(())
    }

    /// An HTTP/1.1 connection.
    pub(crate) async fn connect(&self) -> anyhow::Result<LoadConnection> {
        LoadConnection::open(&self.target, HttpVersion::Http1).await
    }

    /// Path of the ConfigMaps.
    pub(crate) fn objects(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.name)
    }

    /// Path of an object created by [`Self::fill`].
    pub(crate) fn object(&self, index: usize) -> String {
        format!("{}/o{index}", self.objects())
    }

    /// Creates `count` ConfigMaps of 1 KiB over 16 connections.
    pub(crate) async fn fill(&self, count: usize) -> anyhow::Result<Sample> {
        self.fill_range(0..count, 16).await
    }

    /// Creates ConfigMaps with these numbers.
    pub(crate) async fn fill_range(
        &self,
        numbers: std::ops::Range<usize>,
        connections: usize,
    ) -> anyhow::Result<Sample> {
        let (path, first) = (self.objects(), numbers.start);
        let ask = move |index: usize| {
            LoadRequest::write(
                "POST",
                path.clone(),
                JSON,
                config_map(&format!("o{}", first + index)),
            )
        };
        self.load(numbers.len(), connections, ask).await
    }

    /// Sends `count` requests over `connections` connections, one at a time on each.
    pub(crate) async fn load(
        &self,
        count: usize,
        connections: usize,
        ask: impl Fn(usize) -> LoadRequest + Send + Sync + 'static,
    ) -> anyhow::Result<Sample> {
        let (ask, next) = (Arc::new(ask), Arc::new(AtomicUsize::new(0)));
        let mut open = Vec::new();
        for _ in 0..connections.min(count) {
            open.push(self.connect().await?);
        }
        let (before, begun) = (cpu(&self.target.pids), Instant::now());
        let mut tasks: JoinSet<anyhow::Result<Vec<Duration>>> = JoinSet::new();
        for mut connection in open {
            let (ask, next) = (ask.clone(), next.clone());
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return Ok(latencies);
                    }
                    let started = Instant::now();
                    connection.send(&ask(index)).await?;
                    latencies.push(started.elapsed());
                }
            });
        }
        let mut latencies = Vec::with_capacity(count);
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        let sample = Sample {
            count,
            wall: begun.elapsed(),
            cpu: cpu(&self.target.pids).since(before),
            ..Sample::default()
        };
        latencies.sort_unstable();
        Ok(Sample { latencies, ..sample })
    }
}
