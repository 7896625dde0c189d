//! An idle server.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::measure::{Sample, cpu, resident_kib};
use crate::namespace::BenchNamespace;
use anyhow::ensure;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(5);

pub(crate) const ALL: &[Scenario] = &[Scenario {
    name: "idle",
    what: "CPU share of a core, and disk syncs, while idle",
    starts: false,
    run: idle,
}];

fn idle<'a>(space: &'a BenchNamespace, _: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let pids = &space.target.pids;
        ensure!(!pids.is_empty(), "the idle scenario needs PIDs");
        let syncs = syncs(space).await?;
        let (before, begun) = (cpu(pids), Instant::now());
        tokio::time::sleep(WINDOW).await;
        let (used, wall) = (cpu(pids).since(before), begun.elapsed());
        let mut figures = vec![
            ("percent-of-a-core", used.as_secs_f64() / wall.as_secs_f64() * 100.0),
            ("MB", resident_kib(pids) as f64 / 1024.0),
        ];
        if let (Some(before), Some(after)) = (syncs, self::syncs(space).await?) {
            figures.push(("syncs/s", (after - before) / wall.as_secs_f64()));
        }
        Ok(Sample { count: 1, wall, cpu: used, figures, ..Sample::default() })
    })
}

/// From the server's metrics; other stores do not have it.
async fn syncs(space: &BenchNamespace) -> anyhow::Result<Option<f64>> {
    let (_, body) = space.connect().await?.ask(&LoadRequest::get("/metrics")).await?;
    let text = String::from_utf8_lossy(&body);
    Ok(text
        .lines()
        .find_map(|line| line.strip_prefix("ferrokube_store_syncs ")?.trim().parse().ok()))
}
