//! Growing number of watchers of one object.

use super::{Figures, figures, progress};
use crate::connection::HttpVersion;
use crate::measure::Sample;
use crate::namespace::BenchNamespace;
use crate::scenarios::watch::{EVENTS, fan_out, held};
use crate::target::LoadTarget;
use std::sync::Arc;

/// CPU per delivered event, time until the last watcher has it, and memory.
pub(super) async fn measure(
    target: Arc<LoadTarget>,
    sizes: &[usize],
) -> anyhow::Result<Vec<(usize, Figures)>> {
    let mut points = Vec::new();
    for size in sizes {
        progress("watchers", *size);
        let held = held(&target, HttpVersion::Http2, *size, &mut Sample::default()).await?;
        let space = BenchNamespace::make(target.clone()).await?;
        let sample = fan_out(&space, HttpVersion::Http2, (*size, EVENTS)).await?;
        space.remove().await?;
        points.push((
            *size,
            figures([
                ("event-us", sample.cpu_ms() * 1e3),
                ("last-ms", sample.percentile(0.5)),
                ("KiB/watch", held),
            ]),
        ));
    }
    Ok(points)
}
