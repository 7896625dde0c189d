//! `--share`: what a greedy tenant leaves to others. Eight tenants, each a flow of the same level,
//! create small objects: all as fast as they can, which shows each one's share; then seven of them
//! at a part of their share; then these next to an eighth that wants ten times its share.

use crate::testbed::{TENANTS, Testbed};
use crate::victim::Latencies;
use crate::wire::{Wire, WireProtocol};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior};

/// Connections of a modest tenant, with one request at a time each.
const CONNECTIONS: u32 = 4;
/// How many times its share the greedy tenant wants, and its connections.
const GREED: u32 = 10;
/// Part of its share that a modest tenant wants.
const MODESTY: f64 = 0.75;
/// Least part of their quiet throughput that the others keep.
const AIM: f64 = 0.95;
const PATH: &str = "/api/v1/namespaces/tenant/configmaps";
/// Creates that take longer count as failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rounds of the three phases. The machine's speed changes between phases, so that one round alone
/// measures that, too.
const ROUNDS: u32 = 5;

/// What a tenant got in a phase.
struct TenantOutcome {
    /// Creates per second.
    rate: f64,
    latencies: Latencies,
}

/// What the tenants got in a round.
struct ShareRound {
    /// Creates per second of each tenant when all are greedy.
    share: f64,
    quiet: Vec<TenantOutcome>,
    pressed: Vec<TenantOutcome>,
    greedy: TenantOutcome,
}

/// Runs the rounds, prints a table; the least part of its quiet throughput that a tenant kept in
/// the median of the rounds.
pub(crate) async fn run(
    stage: &Arc<Testbed>,
    greedy: &Handle,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round(stage, greedy, time / ROUNDS * 2).await?);
    }
    let mut table = format!(
        "Medians of {ROUNDS} rounds.\n\n\
         | tenant | quiet/s | p99 ms | next to the greedy one/s | p99 ms | kept |\n\
         |---|---|---|---|---|---|\n"
    );
    let median = |figure: &dyn Fn(&ShareRound) -> f64| sorted(&rounds, figure)[rounds.len() / 2];
    let mut least = f64::INFINITY;
    for (at, name) in TENANTS[1..].iter().enumerate() {
        let kept = |round: &ShareRound| round.pressed[at].rate / round.quiet[at].rate;
        let all = sorted(&rounds, kept);
        // No number is the worst.
        let kept = all[all.len() / 2];
        least = if kept.is_nan() { f64::NEG_INFINITY } else { least.min(kept) };
        writeln!(
            table,
            "| {} | {:.0} | {:.1} | {:.0} | {:.1} | {:.0} % [{:.0} .. {:.0}] |",
            name.trim_end_matches("-token"),
            median(&|round| round.quiet[at].rate),
            median(&|round| round.quiet[at].latencies.percentile(0.99)),
            median(&|round| round.pressed[at].rate),
            median(&|round| round.pressed[at].latencies.percentile(0.99)),
            kept * 100.0,
            all[0] * 100.0,
            all[all.len() - 1] * 100.0,
        )?;
    }
    println!("{table}");
    let errors = rounds.iter().map(|round| round.greedy.latencies.errors).sum::<usize>();
    println!(
        "the greedy one wanted {:.0}/s and got {:.0}/s, {errors} of its creates failed; a share is {:.0}/s",
        median(&|round| round.share) * f64::from(GREED),
        median(&|round| round.greedy.rate),
        median(&|round| round.share),
    );
    Ok(least)
}

/// The figures of all rounds, lowest first.
fn sorted(rounds: &[ShareRound], figure: impl Fn(&ShareRound) -> f64) -> Vec<f64> {
    let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures
}

async fn round(
    stage: &Arc<Testbed>,
    greedy: &Handle,
    time: Duration,
) -> anyhow::Result<ShareRound> {
    let all = phase(stage, &TENANTS, None, time).await;
    stage.clear().await?;
    let share = all.iter().map(|tenant| tenant.rate).sum::<f64>() / TENANTS.len() as f64;
    let tenants = TENANTS;
    let (glutton, modest) = (tenants[0], &tenants[1..]);
    let pace = Some(share * MODESTY);
    let quiet = phase(stage, modest, pace, time).await;
    stage.clear().await?;
    let wanted = share * f64::from(GREED);
    let work = {
        let stage = Arc::clone(stage);
        async move { create(&stage, glutton, GREED * CONNECTIONS, Some(wanted), time).await }
    };
    let (greedy, pressed) = tokio::join!(greedy.spawn(work), phase(stage, modest, pace, time));
    stage.clear().await?;
    Ok(ShareRound { share, quiet, pressed, greedy: greedy? })
}

/// Whether the aim is met.
pub(crate) fn is_enough(kept: f64) -> bool {
    kept >= AIM
}

async fn phase(
    stage: &Testbed,
    tenants: &[&str],
    pace: Option<f64>,
    time: Duration,
) -> Vec<TenantOutcome> {
    let tenants = tenants.iter().map(|token| create(stage, token, CONNECTIONS, pace, time));
    futures::future::join_all(tenants).await
}

/// Creates at `rate` per second over all connections; `None`: as fast as possible.
async fn create(
    stage: &Testbed,
    token: &str,
    connections: u32,
    rate: Option<f64>,
    time: Duration,
) -> TenantOutcome {
    let interval = rate.map(|rate| Duration::from_secs_f64(f64::from(connections) / rate.max(0.1)));
    let end = Instant::now() + time;
    let each = (0..connections).map(|_| create_until(stage, token, interval, end));
    let latencies = Latencies::of(futures::future::join_all(each).await);
    let done = latencies.count().saturating_sub(latencies.errors);
    TenantOutcome { rate: done as f64 / time.as_secs_f64(), latencies }
}

async fn create_until(
    stage: &Testbed,
    token: &str,
    interval: Option<Duration>,
    end: Instant,
) -> Latencies {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mut latencies = Latencies::default();
    let mut ticks = interval.map(|interval| {
        let mut ticks = tokio::time::interval(interval);
        // What a slow answer delays is caught up on.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    let mut wire = None;
    while Instant::now() < end {
        if let Some(ticks) = &mut ticks
            && tokio::time::timeout_at(end, ticks.tick()).await.is_err()
        {
            break;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let created = tokio::time::timeout(PATIENCE, create_one(stage, token, number, &mut wire));
        let is_created = matches!(created.await, Ok(Ok(())));
        if !is_created {
            wire = None;
        }
        latencies.record(begun.elapsed(), is_created);
    }
    latencies
}

async fn create_one(
    stage: &Testbed,
    token: &str,
    number: u64,
    kept: &mut Option<Wire>,
) -> anyhow::Result<()> {
    let mut wire = match kept.take() {
        Some(wire) => wire,
        None => Wire::connect(stage, WireProtocol::Http1).await?,
    };
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"s{number}"}},"data":{{"text":"{}"}}}}"#,
        "x".repeat(200)
    );
    let (status, text) = wire.post(PATH, token, "application/json", body.as_bytes()).await?;
    if status != 429 {
        anyhow::ensure!(status == 201, "{status}: {}", &text[..text.len().min(200)]);
    }
    *kept = Some(wire);
    anyhow::ensure!(status == 201, "rejected");
    Ok(())
}
