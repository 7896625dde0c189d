//! Growing number of CustomResourceDefinitions.

use super::{Figures, figures, progress};
use crate::connection::LoadRequest;
use crate::measure::{cpu, resident_kib};
use crate::namespace::{BenchNamespace, JSON};
use crate::scenarios::custom::BenchDefinition;
use crate::target::LoadTarget;
use std::sync::Arc;
use std::time::Duration;

/// Definitions created in one timed batch.
const LAST: usize = 10;
const PROBES: usize = 500;

/// CPU and time until one more definition accepts its first object, and CPU of requests for objects
/// and discovery, by number of definitions.
pub(super) async fn measure(
    target: Arc<LoadTarget>,
    sizes: &[usize],
) -> anyhow::Result<Vec<(usize, Figures)>> {
    let idle = resident_kib(&target.pids);
    let space = BenchNamespace::make(target.clone()).await?;
    let mut connection = space.connect().await?;
    let (mut made, mut points) = (Vec::new(), Vec::new());
    for size in sizes {
        while made.len() < size.saturating_sub(LAST) {
            progress("definitions", made.len());
            made.push(BenchDefinition::make(&space, &mut connection).await?.0);
        }
        let (before, first) = (cpu(&target.pids), made.len());
        let mut took = Duration::ZERO;
        while made.len() < *size {
            let (definition, time) = BenchDefinition::make(&space, &mut connection).await?;
            took += time;
            made.push(definition);
        }
        let (used, count) = (cpu(&target.pids).since(before), (made.len() - first).max(1) as f64);
        let (creating, discovery) = probe(&space, &made, *size).await?;
        points.push((
            *size,
            figures([
                ("make-cpu-ms", used.as_secs_f64() * 1e3 / count),
                ("first-object-ms", took.as_secs_f64() * 1e3 / count),
                ("create-cpu-ms", creating),
                ("discovery-cpu-ms", discovery),
                (
                    "KiB/definition",
                    resident_kib(&target.pids).saturating_sub(idle) as f64 / *size as f64,
                ),
            ]),
        ));
    }
    for definition in &made {
        definition.remove(&mut connection).await?;
    }
    Ok(points)
}

/// CPU of requests for objects of the last definition, and for aggregated discovery.
async fn probe(
    space: &BenchNamespace,
    made: &[BenchDefinition],
    size: usize,
) -> anyhow::Result<(f64, f64)> {
    let Some(last) = made.last() else { return Ok((f64::NAN, f64::NAN)) };
    let (path, whole) = (last.path(space), last.object("NAME"));
    let create = move |index: usize| {
        LoadRequest::write(
            "POST",
            path.clone(),
            JSON,
            whole.replace("NAME", &format!("s{size}-{index}")),
        )
    };
    let creating = space.load(PROBES, 16, create).await?;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let discovery =
        space.load(10, 1, move |_| LoadRequest { accept, ..LoadRequest::get("/apis") }).await?;
    Ok((creating.cpu_ms(), discovery.cpu_ms()))
}
