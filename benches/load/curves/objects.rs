//! Growing number of stored objects.

use super::{Figures, figures, progress};
use crate::connection::LoadRequest;
use crate::measure::{Sample, cpu, resident_kib};
use crate::namespace::{BenchNamespace, MERGE};
use crate::scenarios::watch::{EVENTS, fan_out};
use crate::target::LoadTarget;
use std::sync::Arc;
use std::time::Instant;

/// Operations of each kind per size.
const PROBES: usize = 2000;
const PAGES: usize = 20;

/// CPU per operation, by number of objects in one namespace.
pub(super) async fn measure(
    target: Arc<LoadTarget>,
    sizes: &[usize],
) -> anyhow::Result<Vec<(usize, Figures)>> {
    let idle = resident_kib(&target.pids);
    let space = BenchNamespace::make(target.clone()).await?;
    let (mut made, mut points) = (0, Vec::new());
    for size in sizes {
        progress("objects", *size);
        let filling = space.fill_range(made..*size, 16).await?;
        made = *size;
        let resident = resident_kib(&target.pids).saturating_sub(idle) as f64 / *size as f64;
        let mut figures = figures([
            ("KiB/object", resident),
            ("fill-cpu-ms", filling.cpu_ms()),
            ("create-cpu-ms", create(&space, *size).await?.cpu_ms()),
            ("get-cpu-ms", get(&space, *size).await?.cpu_ms()),
            ("patch-cpu-ms", patch(&space, *size).await?.cpu_ms()),
            ("page-cpu-ms", page(&space).await?.cpu_ms()),
        ]);
        figures.insert("page-middle-cpu-ms".to_owned(), middle_page(&space, *size).await?);
        let other = BenchNamespace::make(target.clone()).await?;
        figures.insert(
            "event-us".to_owned(),
            fan_out(&other, crate::connection::HttpVersion::Http2, (100, EVENTS)).await?.cpu_ms()
                * 1e3,
        );
        other.remove().await?;
        points.push((*size, figures));
    }
    let begun = (Instant::now(), cpu(&target.pids));
    space.remove().await?;
    let used = cpu(&target.pids).since(begun.1).as_secs_f64();
    if let Some((size, figures)) = points.last_mut() {
        figures.insert("delete-all-cpu-ms".to_owned(), used * 1e3 / *size as f64);
        figures.insert("delete-all-s".to_owned(), begun.0.elapsed().as_secs_f64());
    }
    Ok(points)
}

/// Creates objects that are deleted again.
async fn create(space: &BenchNamespace, size: usize) -> anyhow::Result<Sample> {
    let sample = space.fill_range(size..size + PROBES, 16).await?;
    let paths = space.objects();
    space
        .load(PROBES, 16, move |index| LoadRequest::delete(format!("{paths}/o{}", size + index)))
        .await?;
    Ok(sample)
}

/// Spreads accesses over all objects.
fn spread(index: usize, size: usize) -> usize {
    index.wrapping_mul(7919) % size
}

async fn get(space: &BenchNamespace, size: usize) -> anyhow::Result<Sample> {
    let paths = space.objects();
    space
        .load(PROBES, 16, move |index| {
            LoadRequest::get(format!("{paths}/o{}", spread(index, size)))
        })
        .await
}

async fn patch(space: &BenchNamespace, size: usize) -> anyhow::Result<Sample> {
    let paths = space.objects();
    let body = move |index: usize| format!(r#"{{"data":{{"count":"{index}-{size}"}}}}"#);
    space
        .load(PROBES, 16, move |index| {
            LoadRequest::write(
                "PATCH",
                format!("{paths}/o{}", spread(index, size)),
                MERGE,
                body(index),
            )
        })
        .await
}

async fn page(space: &BenchNamespace) -> anyhow::Result<Sample> {
    let path = format!("{}?limit=500", space.objects());
    space.load(PAGES, 1, move |_| LoadRequest::get(path.clone())).await
}

/// A page in the middle of a list, at the revision of its first page.
async fn middle_page(space: &BenchNamespace, size: usize) -> anyhow::Result<f64> {
    let mut connection = space.connect().await?;
    let (_, body) = connection
        .ask(&LoadRequest::get(format!("{}?limit={}", space.objects(), (size / 2).min(5000))))
        .await?;
    let text = String::from_utf8_lossy(&body[..body.len().min(2000)]);
    let Some(token) = text
        .split_once("\"continue\":\"")
        .and_then(|(_, rest)| rest.split('"').next())
        .map(str::to_owned)
    else {
        return Ok(f64::NAN);
    };
    let path = format!("{}?limit=500&continue={token}", space.objects());
    Ok(space.load(PAGES, 1, move |_| LoadRequest::get(path.clone())).await?.cpu_ms())
}
