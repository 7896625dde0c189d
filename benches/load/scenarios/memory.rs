//! Memory per stored object, and how much is returned after deletion.

use super::custom::BenchDefinition;
use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::measure::{Sample, resident_kib};
use crate::namespace::BenchNamespace;
use crate::process::OwnServer;
use crate::target::LoadTarget;
use std::sync::Arc;
use std::time::Duration;

/// How long memory is observed after the last delete.
const RETURN: Duration = Duration::from_secs(10);
/// Connections for the creates.
const CONNECTIONS: usize = 16;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "memory",
        what: "resident KiB for each of --stored objects, and what stays 10 s after they are deleted",
        starts: false,
        run: |space, plan| memory(space, plan, StoredKind::ConfigMap),
    },
    Scenario {
        name: "custom-memory",
        what: "the same for custom objects with 20 fields, 1.1 KB",
        starts: false,
        run: |space, plan| memory(space, plan, StoredKind::Custom),
    },
];

/// Type of the stored objects.
#[derive(Clone, Copy)]
enum StoredKind {
    ConfigMap,
    Custom,
}

/// In a separate process if possible, to exclude memory of earlier scenarios.
fn memory<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan, kind: StoredKind) -> Measuring<'a> {
    Box::pin(async move {
        let Some(binary) = space.target.binary.clone() else {
            return measure(space, plan.stored, kind).await;
        };
        let own = OwnServer::start(binary).await?;
        let sample = measure(
            &BenchNamespace::make(Arc::new(LoadTarget::of(&own)?)).await?,
            plan.stored,
            kind,
        )
        .await?;
        own.stop().await?;
        Ok(sample)
    })
}

async fn measure(space: &BenchNamespace, count: usize, kind: StoredKind) -> anyhow::Result<Sample> {
    let resident = || resident_kib(&space.target.pids) as f64;
    let definition = match kind {
        StoredKind::ConfigMap => None,
        StoredKind::Custom => {
            Some(BenchDefinition::make(space, &mut space.connect().await?).await?.0)
        }
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = resident();
    let (path, sample) = match &definition {
        None => (space.objects(), space.fill(count).await?),
        Some(definition) => {
            (definition.path(space), definition.fill(space, count, CONNECTIONS).await?)
        }
    };
    let full = resident();
    space.connect().await?.send(&LoadRequest::delete(path)).await?;
    let deleted = resident();
    tokio::time::sleep(RETURN).await;
    let after = resident();
    if let Some(definition) = definition {
        definition.remove(&mut space.connect().await?).await?;
    }
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
