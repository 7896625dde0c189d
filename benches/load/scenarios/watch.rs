//! Events to many watchers of one object: CPU per delivered event, time until the last watcher has
//! it, and memory per watch.

use super::patch::patch;
use super::{LoadPlan, Measuring, Scenario};
use crate::connection::{HttpVersion, LoadConnection, LoadRequest};
use crate::measure::{Sample, cpu, resident_kib};
use crate::namespace::BenchNamespace;
use crate::process::OwnServer;
use crate::target::LoadTarget;
use anyhow::{Context, ensure};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Default events per round: enough to hide what the server still does for newly opened
/// connections.
pub(crate) const EVENTS: usize = 300;
/// Watches per HTTP/2 connection, the maximum that client-go opens.
const STREAMS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);
/// Delay before memory is measured.
const REST: Duration = Duration::from_secs(2);

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "watch-h1",
        what: "events to --watchers watchers, a connection each",
        starts: false,
        run: |space, plan| watches(space, plan, HttpVersion::Http1),
    },
    Scenario {
        name: "watch-h2",
        what: "events to --watchers watchers, 100 on a connection",
        starts: false,
        run: |space, plan| watches(space, plan, HttpVersion::Http2),
    },
    Scenario {
        name: "watch-memory",
        what: "opening --watchers watches, and resident KiB for each, a connection each and 100 on a connection",
        starts: false,
        run: |space, plan| Box::pin(memory(space, plan.watchers)),
    },
];

/// Memory per watch; each HTTP version in a separate process if possible, as the second one would
/// reuse memory freed by the first.
async fn memory(space: &BenchNamespace, watchers: usize) -> anyhow::Result<Sample> {
    let mut sample = Sample::default();
    for (protocol, name) in
        [(HttpVersion::Http1, "KiB/h1-watch"), (HttpVersion::Http2, "KiB/h2-watch")]
    {
        let held = match space.target.binary.clone() {
            None => held(&space.target, protocol, watchers, &mut sample).await?,
            Some(binary) => {
                let own = OwnServer::start(binary).await?;
                let held =
                    held(&Arc::new(LoadTarget::of(&own)?), protocol, watchers, &mut sample).await?;
                own.stop().await?;
                held
            }
        };
        sample.figures.push((name, held));
    }
    Ok(sample)
}

/// Resident KiB per watch, shortly after all were opened. Adds the cost of opening them.
pub(crate) async fn held(
    target: &Arc<LoadTarget>,
    protocol: HttpVersion,
    watchers: usize,
    sample: &mut Sample,
) -> anyhow::Result<f64> {
    let space = BenchNamespace::make(Arc::clone(target)).await?;
    space.fill(1).await?;
    let pids = &target.pids;
    tokio::time::sleep(REST).await;
    let idle = resident_kib(pids);
    let (before, begun) = (cpu(pids), Instant::now());
    let crowd = Crowd::open(&space, protocol, watchers).await?;
    sample.count += crowd.watchers;
    sample.wall += begun.elapsed();
    sample.cpu += cpu(pids).since(before);
    tokio::time::sleep(REST).await;
    let held = resident_kib(pids).saturating_sub(idle) as f64 / crowd.watchers as f64;
    drop(crowd);
    space.remove().await?;
    tokio::time::sleep(REST).await;
    Ok(held)
}

fn watches<'a>(
    space: &'a BenchNamespace,
    plan: &'a LoadPlan,
    protocol: HttpVersion,
) -> Measuring<'a> {
    Box::pin(fan_out(space, protocol, (plan.watchers, plan.events)))
}

/// One round with `watchers` watchers and `events` events.
pub(crate) async fn fan_out(
    space: &BenchNamespace,
    protocol: HttpVersion,
    (watchers, events): (usize, usize),
) -> anyhow::Result<Sample> {
    space.fill(1).await?;
    let pids = &space.target.pids;
    let crowd = Crowd::open(space, protocol, watchers).await?;
    let mut writer = space.connect().await?;
    let (before, begun) = (cpu(pids), Instant::now());
    let mut latencies = Vec::new();
    for event in 0..events {
        let goal = crowd.expect_from_all();
        let sent = crowd.seen.begun.elapsed();
        writer.send(&patch(space.object(0), event)).await?;
        latencies.push(crowd.last(goal).await?.saturating_sub(sent));
    }
    let (wall, cpu) = (begun.elapsed(), cpu(pids).since(before));
    latencies.sort_unstable();
    let count = events * crowd.watchers;
    let figures = vec![("us/event", cpu.as_secs_f64() * 1e6 / count as f64)];
    Ok(Sample { count, wall, cpu, latencies, figures })
}

/// Shared by the watchers.
struct WatchProgress {
    begun: Instant,
    lines: AtomicUsize,
    goal: AtomicUsize,
    /// Nanoseconds from `begun` until the goal was reached.
    reached: AtomicU64,
    wake: Notify,
}

impl WatchProgress {
    fn add(&self, lines: usize) {
        let before = self.lines.fetch_add(lines, Ordering::AcqRel);
        let goal = self.goal.load(Ordering::Acquire);
        if before < goal && before + lines >= goal {
            self.reached.store(
                u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
                Ordering::Release,
            );
            self.wake.notify_one();
        }
    }
}

/// Open watches and their readers.
struct Crowd {
    watchers: usize,
    seen: Arc<WatchProgress>,
    _readers: JoinSet<()>,
    _connections: Vec<LoadConnection>,
}

impl Crowd {
    /// Opens all watches and waits until each got its first event.
    async fn open(
        space: &BenchNamespace,
        protocol: HttpVersion,
        watchers: usize,
    ) -> anyhow::Result<Self> {
        let on_one = if protocol == HttpVersion::Http1 { 1 } else { STREAMS.min(watchers) };
        let connections = watchers.div_ceil(on_one);
        let watchers = connections * on_one;
        let lines = (AtomicUsize::new(0), AtomicUsize::new(watchers));
        let seen = Arc::new(WatchProgress {
            begun: Instant::now(),
            lines: lines.0,
            goal: lines.1,
            reached: AtomicU64::new(0),
            wake: Notify::new(),
        });
        let ask = LoadRequest::get(format!("{}?watch=true&resourceVersion=0", space.objects()));
        let (mut readers, mut open) = (JoinSet::new(), Vec::new());
        for _ in 0..connections {
            let mut connection = LoadConnection::open(&space.target, protocol).await?;
            for _ in 0..on_one {
                let response = connection.start(&ask).await?;
                ensure!(
                    response.status().is_success(),
                    "a watch was answered with {}",
                    response.status()
                );
                readers.spawn(read(response.into_body(), seen.clone()));
            }
            open.push(connection);
        }
        let crowd = Self { watchers, seen, _readers: readers, _connections: open };
        crowd.last(watchers).await.context("not all watchers got the first event")?;
        Ok(crowd)
    }

    /// Expects one more event for each.
    fn expect_from_all(&self) -> usize {
        let goal = self.seen.lines.load(Ordering::Acquire) + self.watchers;
        self.seen.goal.store(goal, Ordering::Release);
        goal
    }

    /// When the last watcher got its event.
    async fn last(&self, goal: usize) -> anyhow::Result<Duration> {
        let all = async {
            while self.seen.lines.load(Ordering::Acquire) < goal {
                self.seen.wake.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.context("not all watchers got an event")?;
        Ok(Duration::from_nanos(self.seen.reached.load(Ordering::Acquire)))
    }
}

async fn read(mut body: Incoming, seen: Arc<WatchProgress>) {
    while let Some(Ok(frame)) = body.frame().await {
        let lines =
            frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
        if lines > 0 {
            seen.add(lines);
        }
    }
}
