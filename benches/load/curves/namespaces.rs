//! Growing number of namespaces.

use super::{Figures, figures, progress};
use crate::connection::LoadRequest;
use crate::measure::{cpu, resident_kib};
use crate::namespace::{BenchNamespace, JSON, config_map};
use crate::target::LoadTarget;
use anyhow::ensure;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROBES: usize = 500;

/// CPU of creating a namespace, including the controllers' work; of a create in each of many; and
/// of a list over all.
pub(super) async fn measure(
    target: Arc<LoadTarget>,
    sizes: &[usize],
) -> anyhow::Result<Vec<(usize, Figures)>> {
    let idle = resident_kib(&target.pids);
    let space = BenchNamespace::make(target.clone()).await?;
    let (mut made, mut points) = (0, Vec::new());
    for size in sizes {
        progress("namespaces", *size);
        let (before, first, more) = (cpu(&target.pids), made, *size - made);
        let name = space.name.clone();
        let body = move |index: usize| {
            format!(
                r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"{name}-{}"}}}}"#,
                first + index
            )
        };
        space
            .load(more, 16, move |index| {
                LoadRequest::write("POST", "/api/v1/namespaces", JSON, body(index))
            })
            .await?;
        settle(&space, *size).await?;
        let making = cpu(&target.pids).since(before);
        made = *size;
        let paths = format!("/api/v1/namespaces/{}", space.name);
        let size = *size;
        let ask = move |index: usize| {
            let body = config_map(&format!("p{size}"));
            LoadRequest::write(
                "POST",
                format!("{paths}-{}/configmaps", index.wrapping_mul(7919) % size),
                JSON,
                body,
            )
        };
        // At most one per namespace.
        let creating = space.load(PROBES.min(size), 16, ask).await?;
        let listing =
            space.load(5, 1, |_| LoadRequest::get("/api/v1/serviceaccounts?limit=500")).await?;
        points.push((
            size,
            figures([
                ("make-cpu-ms", making.as_secs_f64() * 1e3 / more as f64),
                ("create-cpu-ms", creating.cpu_ms()),
                ("list-page-cpu-ms", listing.cpu_ms()),
                (
                    "KiB/namespace",
                    resident_kib(&target.pids).saturating_sub(idle) as f64 / size as f64,
                ),
            ]),
        ));
    }
    Ok(points)
}

/// Waits until the controllers have created a service account in each namespace (their last
/// action), so that their work does not distort the next measurement.
async fn settle(space: &BenchNamespace, size: usize) -> anyhow::Result<()> {
    let mut connection = space.connect().await?;
    let begun = Instant::now();
    for index in size.saturating_sub(200)..size {
        let ask = LoadRequest::get(format!(
            "/api/v1/namespaces/{}-{index}/serviceaccounts/default",
            space.name
        ));
        while !connection.ask(&ask).await?.0.is_success() {
            ensure!(
                begun.elapsed() < Duration::from_secs(300),
                "the controllers have not served {size} namespaces within 300 s"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let mut before = cpu(&space.target.pids);
    while begun.elapsed() < Duration::from_secs(300) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = cpu(&space.target.pids);
        if now.since(before) < Duration::from_millis(20) {
            break;
        }
        before = now;
    }
    Ok(())
}
