//! What stored objects cost in memory, and whether it comes back when they are gone.

use super::{Measuring, Plan, Scenario};
use crate::connection::Ask;
use crate::measure::{Sample, resident_kib};
use crate::process::Own;
use crate::space::Space;
use crate::target::Target;
use std::sync::Arc;
use std::time::Duration;

/// After the last delete, the memory is looked at for so long.
const RETURN: Duration = Duration::from_secs(10);

pub(crate) const ALL: &[Scenario] =
    &[Scenario { name: "memory", what: "resident KiB for each of --stored objects, and what stays 10 s after they are deleted", starts: false, run: memory }];

/// In a process of its own when it can be started: what came before would be counted, too.
fn memory<'a>(space: &'a Space, plan: &'a Plan) -> Measuring<'a> {
    Box::pin(async {
        let Some(binary) = space.target.binary.clone() else { return measure(space, plan.stored).await };
        let own = Own::start(binary).await?;
        let sample = measure(&Space::make(Arc::new(Target::of(&own)?)).await?, plan.stored).await?;
        own.stop().await?;
        Ok(sample)
    })
}

async fn measure(space: &Space, count: usize) -> anyhow::Result<Sample> {
    let resident = || resident_kib(&space.target.pids) as f64;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = resident();
    let sample = space.fill(count).await?;
    let full = resident();
    space.connect().await?.send(&Ask::delete(space.objects())).await?;
    let deleted = resident();
    tokio::time::sleep(RETURN).await;
    let after = resident();
    let figures = vec![
        ("KiB/object", (full - idle) / count as f64),
        ("MB-idle", idle / 1024.0),
        ("MB-full", full / 1024.0),
        ("MB-deleted", deleted / 1024.0),
        ("MB-10s-later", after / 1024.0),
        ("x-idle-10s-later", after / idle),
    ];
    Ok(Sample { figures, ..sample })
}
