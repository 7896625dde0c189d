//! Startup, with an empty directory and with many objects.

use super::{LoadPlan, Measuring, Scenario};
use crate::measure::{Sample, resident_kib, whole_cpu};
use crate::namespace::BenchNamespace;
use crate::process::{Binary, OwnServer};
use crate::target::LoadTarget;
use anyhow::Context;
use std::sync::Arc;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "start",
        what: "start to ready in an empty directory",
        starts: true,
        run: start,
    },
    Scenario {
        name: "restart",
        what: "start to ready with --stored objects of 1 KiB",
        starts: true,
        run: restart,
    },
];

/// Binary of the target.
pub(super) fn binary(space: &BenchNamespace) -> anyhow::Result<Arc<Binary>> {
    space.target.binary.clone().context("only for binaries")
}

fn start<'a>(space: &'a BenchNamespace, _: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let own = OwnServer::start(binary(space)?).await?;
        let sample = sample(&own)?;
        own.stop().await?;
        Ok(sample)
    })
}

fn restart<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let own = OwnServer::start(binary(space)?).await?;
        BenchNamespace::make(Arc::new(LoadTarget::of(&own)?)).await?.fill(plan.stored).await?;
        let own = own.restart().await?;
        let sample = sample(&own)?;
        own.stop().await?;
        Ok(sample)
    })
}

fn sample(own: &OwnServer) -> anyhow::Result<Sample> {
    let pid = own.pid()?;
    let figures = vec![("MB-ready", resident_kib(&[pid]) as f64 / 1024.0)];
    Ok(Sample {
        count: 1,
        wall: own.ready,
        cpu: whole_cpu(pid),
        latencies: vec![own.ready],
        figures,
    })
}
