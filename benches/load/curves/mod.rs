//! Costs by size. Each curve fills a server step by step and measures the same operations at every
//! size.

mod definitions;
mod namespaces;
mod objects;
mod watchers;

use crate::results::Curve;
use crate::target::LoadTarget;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Figures at one size.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Name, what grows, and default sizes.
pub(crate) const ALL: &[(&str, &str, &[usize])] = &[
    ("objects", "stored ConfigMaps of 1 KiB", &[1_000, 10_000, 100_000]),
    ("watchers", "watches of one object over HTTP/2", &[100, 1_000, 10_000]),
    ("namespaces", "namespaces, with what controllers put there", &[100, 1_000, 10_000]),
    ("definitions", "served CustomResourceDefinitions", &[10, 100, 1_000]),
];

/// A curve to measure: `NAME[=SIZE,SIZE...]`, sizes ascending.
pub(crate) struct CurveSpec {
    name: &'static str,
    sizes: Vec<usize>,
}

impl CurveSpec {
    /// Parses the argument.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let (name, sizes) =
            text.split_once('=').map_or((text, None), |(name, sizes)| (name, Some(sizes)));
        let Some((name, _, usual)) = ALL.iter().find(|(known, ..)| *known == name) else {
            bail!("unknown curve {name}; see --list")
        };
        let given = sizes
            .map(|sizes| sizes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>())
            .transpose()
            .context("a size is not a number")?;
        Ok(Self { name, sizes: given.unwrap_or_else(|| usual.to_vec()) })
    }

    /// Measures the curve. Does not clean up, so a separate server is best.
    pub(crate) async fn measure(&self, target: Arc<LoadTarget>) -> anyhow::Result<Curve> {
        let name = target.name.clone();
        let points = match self.name {
            "objects" => objects::measure(target, &self.sizes).await?,
            "watchers" => watchers::measure(target, &self.sizes).await?,
            "namespaces" => namespaces::measure(target, &self.sizes).await?,
            _ => definitions::measure(target, &self.sizes).await?,
        };
        let points = points.into_iter().map(|(size, figures)| (size as f64, figures)).collect();
        Ok(Curve { name: self.name.to_owned(), target: name, points })
    }
}

/// Builds named figures.
fn figures<const N: usize>(pairs: [(&str, f64); N]) -> Figures {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Reports progress.
fn progress(name: &str, size: usize) {
    eprint!("\r\x1b[K{name} {size}");
}
