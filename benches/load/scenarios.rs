//! What is measured: each scenario prepares its namespace, runs its operations, and cleans up outside the measured time.

use crate::connection::{Ask, Connection, Protocol};
use crate::measure::{Sample, cpu, resident_kib};
use crate::target::Target;
use anyhow::{Context, ensure};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The scenarios: name and what it is.
pub(crate) const NAMES: &[(&str, &str)] = &[
    ("create", "creates of a 1 KiB ConfigMap, one request at a time on each connection"),
    ("get", "GETs of one object"),
    ("patch-many", "merge patches, each of another object"),
    ("patch-hot", "merge patches of one object by 64 clients"),
    ("apply", "server-side applies of a 4 KiB object with 3 managers"),
    ("delete", "deletes"),
    ("list", "LIST of all objects"),
    ("list-page", "LIST with limit=500"),
    ("list-table", "LIST as a Table"),
    ("list-metadata", "LIST of metadata only"),
    ("list-gzip", "LIST with gzip"),
    ("list-protobuf", "LIST in protobuf"),
    ("watch-h1", "events to many watchers, a connection each"),
    ("watch-h2", "events to many watchers, 100 on a connection"),
    ("memory", "resident KiB for each stored object"),
    ("idle", "CPU share of a core while nobody asks"),
];

/// How much of everything.
pub(crate) struct Plan {
    /// Requests per scenario.
    pub(crate) requests: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// Objects in lists.
    pub(crate) objects: usize,
    /// Watchers.
    pub(crate) watchers: usize,
}

const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A namespace that a scenario works in.
struct Space<'a> {
    target: &'a Target,
    path: String,
    name: String,
}

/// Runs one round.
pub(crate) async fn run(name: &str, target: &Target, plan: &Plan) -> anyhow::Result<Sample> {
    let space = Space::make(target).await?;
    let sample = match name {
        "create" => space.creates(plan).await,
        "get" => {
            space.fill(1).await?;
            let path = space.object(0);
            space.load(plan.requests, plan.connections, move |_| Ask::get(path.clone())).await
        }
        "patch-many" => {
            space.fill(plan.requests).await?;
            let paths = space.objects();
            space.load(plan.requests, plan.connections, move |index| patch(format!("{paths}/o{index}"), index)).await
        }
        "patch-hot" => {
            space.fill(1).await?;
            let path = space.object(0);
            space.load(plan.requests, 64, move |index| patch(path.clone(), index)).await
        }
        "apply" => space.applies(plan).await,
        "delete" => {
            space.fill(plan.requests).await?;
            let paths = space.objects();
            space.load(plan.requests, plan.connections, move |index| Ask { method: "DELETE", path: format!("{paths}/o{index}"), ..Ask::default() }).await
        }
        "list" | "list-page" | "list-table" | "list-metadata" | "list-gzip" | "list-protobuf" => space.lists(name, plan).await,
        "watch-h1" => space.watches(Protocol::Http1, plan).await,
        "watch-h2" => space.watches(Protocol::Http2, plan).await,
        "memory" => space.memory(plan).await,
        _ => space.idle().await,
    };
    space.remove().await?;
    sample
}

/// About 1 KiB of data, 1.4 KiB as stored JSON.
fn config_map(name: &str) -> String {
    format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{"value":"{}"}}}}"#, "x".repeat(1024))
}

fn patch(path: String, index: usize) -> Ask {
    Ask::write("PATCH", path, MERGE, format!(r#"{{"data":{{"count":"{index}"}}}}"#))
}

impl<'a> Space<'a> {
    async fn make(target: &'a Target) -> anyhow::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("load-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut connection = Connection::open(target, Protocol::Http1).await?;
        let body = format!(r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#);
        connection.send(&Ask::write("POST", "/api/v1/namespaces", "application/json", body)).await?;
        Ok(Self { target, path: format!("/api/v1/namespaces/{name}"), name })
    }

    /// Deletes the objects and the namespace; does not wait for controllers.
    async fn remove(&self) -> anyhow::Result<()> {
        let mut connection = Connection::open(self.target, Protocol::Http1).await?;
        connection.send(&Ask { method: "DELETE", path: self.objects(), ..Ask::default() }).await?;
        connection.send(&Ask { method: "DELETE", path: format!("/api/v1/namespaces/{}", self.name), ..Ask::default() }).await?;
        Ok(())
    }

    fn objects(&self) -> String {
        format!("{}/configmaps", self.path)
    }

    fn object(&self, index: usize) -> String {
        format!("{}/o{index}", self.objects())
    }

    async fn fill(&self, count: usize) -> anyhow::Result<()> {
        let path = self.objects();
        self.load(count, 16, move |index| Ask::write("POST", path.clone(), "application/json", config_map(&format!("o{index}")))).await.map(drop)
    }

    async fn creates(&self, plan: &Plan) -> anyhow::Result<Sample> {
        let path = self.objects();
        self.load(plan.requests, plan.connections, move |index| Ask::write("POST", path.clone(), "application/json", config_map(&format!("o{index}")))).await
    }

    /// `count` requests over so many connections, each with one request at a time.
    async fn load(&self, count: usize, connections: usize, ask: impl Fn(usize) -> Ask + Send + Sync + 'static) -> anyhow::Result<Sample> {
        let (ask, next) = (Arc::new(ask), Arc::new(AtomicUsize::new(0)));
        let mut open = Vec::new();
        for _ in 0..connections.min(count) {
            open.push(Connection::open(self.target, Protocol::Http1).await?);
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
        let mut latencies = Vec::new();
        while let Some(done) = tasks.join_next().await {
            latencies.extend(done??);
        }
        let sample = Sample { count, wall: begun.elapsed(), cpu: cpu(&self.target.pids).saturating_sub(before), ..Sample::default() };
        latencies.sort_unstable();
        Ok(Sample { latencies, ..sample })
    }

    async fn applies(&self, plan: &Plan) -> anyhow::Result<Sample> {
        let data = |manager: &str, value: &str| -> String {
            (0..20).map(|index| format!("\"{manager}-{index}\":\"{}{value}\"", "y".repeat(50))).collect::<Vec<_>>().join(",")
        };
        let body =
            |manager: &str, value: &str| format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a"}},"data":{{{}}}}}"#, data(manager, value));
        let path = |manager: &str| format!("{}/a?fieldManager={manager}", self.objects());
        for manager in ["m1", "m2", "m3"] {
            let mut connection = Connection::open(self.target, Protocol::Http1).await?;
            connection.send(&Ask::write("PATCH", path(manager), APPLY, body(manager, "first"))).await?;
        }
        let (path, bodies): (String, Vec<String>) = (path("m2"), (0..2).map(|turn| body("m2", if turn == 0 { "a" } else { "b" })).collect());
        self.load(plan.requests, plan.connections, move |index| Ask::write("PATCH", path.clone(), APPLY, bodies[index % 2].clone())).await
    }

    async fn lists(&self, name: &str, plan: &Plan) -> anyhow::Result<Sample> {
        self.fill(plan.objects).await?;
        let query = if name == "list-page" { "?limit=500" } else { "" };
        let accept = match name {
            "list-table" => TABLE,
            "list-metadata" => METADATA,
            "list-protobuf" => PROTOBUF,
            _ => "",
        };
        let ask = Ask { accept, gzip: name == "list-gzip", ..Ask::get(format!("{}{query}", self.objects())) };
        let mut connection = Connection::open(self.target, Protocol::Http1).await?;
        let (before, started) = (cpu(&self.target.pids), Instant::now());
        let size = connection.send(&ask).await?;
        let cold = (cpu(&self.target.pids).saturating_sub(before), started.elapsed());
        let mut sample = self.load(20, 1, move |_| ask.clone()).await?;
        sample.extra = vec![("MB", size as f64 / 1e6), ("cold-cpu-ms", cold.0.as_secs_f64() * 1e3), ("cold-ms", cold.1.as_secs_f64() * 1e3)];
        Ok(sample)
    }

    /// Events to many watchers: the count is events times watchers.
    async fn watches(&self, protocol: Protocol, plan: &Plan) -> anyhow::Result<Sample> {
        const EVENTS: usize = 20;
        self.fill(1).await?;
        let before_memory = resident_kib(&self.target.pids);
        let on_one = if protocol == Protocol::Http1 { 1 } else { 100 };
        let ask = Ask::get(format!("{}?watch=true&resourceVersion=0", self.objects()));
        let (ready, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (mut tasks, mut open) = (JoinSet::new(), Vec::new());
        for _ in 0..plan.watchers.div_ceil(on_one) {
            let mut connection = Connection::open(self.target, protocol).await?;
            for _ in 0..on_one {
                let mut body = connection.start(&ask).await?.into_body();
                let (ready, seen) = (ready.clone(), seen.clone());
                tasks.spawn(async move {
                    let mut lines = 0;
                    while let Some(Ok(frame)) = body.frame().await {
                        let now = frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                        if lines == 0 && now > 0 {
                            ready.fetch_add(1, Ordering::Relaxed);
                        }
                        lines += now;
                        seen.fetch_add(now, Ordering::Relaxed);
                    }
                });
            }
            open.push(connection);
        }
        let watchers = open.len() * on_one;
        until(|| ready.load(Ordering::Relaxed) == watchers).await.context("not all watchers got the first event")?;
        let held = resident_kib(&self.target.pids).saturating_sub(before_memory);
        let base = seen.load(Ordering::Relaxed);
        let (before, begun) = (cpu(&self.target.pids), Instant::now());
        let mut writer = Connection::open(self.target, Protocol::Http1).await?;
        let mut latencies = Vec::new();
        for event in 0..EVENTS {
            let started = Instant::now();
            writer.send(&patch(self.object(0), event)).await?;
            until(|| seen.load(Ordering::Relaxed) >= base + (event + 1) * watchers).await.context("not all watchers got an event")?;
            latencies.push(started.elapsed());
        }
        latencies.sort_unstable();
        let (wall, cpu) = (begun.elapsed(), cpu(&self.target.pids).saturating_sub(before));
        tasks.abort_all();
        let extra = vec![("KiB/watch", held as f64 / watchers as f64), ("us/event", cpu.as_secs_f64() * 1e6 / (EVENTS * watchers) as f64)];
        Ok(Sample { count: EVENTS * watchers, wall, cpu, latencies, extra })
    }

    async fn memory(&self, plan: &Plan) -> anyhow::Result<Sample> {
        let before = resident_kib(&self.target.pids);
        let begun = Instant::now();
        self.fill(plan.objects).await?;
        let full = resident_kib(&self.target.pids);
        let extra = vec![
            ("KiB/object", full.saturating_sub(before) as f64 / plan.objects as f64),
            ("MB-before", before as f64 / 1024.0),
            ("MB-full", full as f64 / 1024.0),
        ];
        Ok(Sample { count: plan.objects, wall: begun.elapsed(), extra, ..Sample::default() })
    }

    async fn idle(&self) -> anyhow::Result<Sample> {
        const WINDOW: Duration = Duration::from_secs(5);
        ensure!(!self.target.pids.is_empty(), "the idle scenario needs PIDs");
        let (before, begun) = (cpu(&self.target.pids), Instant::now());
        tokio::time::sleep(WINDOW).await;
        let (used, wall) = (cpu(&self.target.pids).saturating_sub(before), begun.elapsed());
        let extra = vec![("percent-of-a-core", used.as_secs_f64() / wall.as_secs_f64() * 100.0), ("MB", resident_kib(&self.target.pids) as f64 / 1024.0)];
        Ok(Sample { count: 1, wall, cpu: used, extra, ..Sample::default() })
    }
}

/// Polls finely; a condition that does not come within 30 s is an error.
async fn until(condition: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        ensure!(Instant::now() < deadline, "30 s passed");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}
