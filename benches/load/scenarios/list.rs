//! LISTs of many objects in every format. The first of each is reported separately, as servers may
//! cache.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::measure::{Sample, cpu};
use crate::namespace::BenchNamespace;
use std::time::Instant;

/// LISTs per round, after the first.
const LISTS: usize = 20;
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "list",
        what: "LIST of --objects objects",
        starts: false,
        run: |space, plan| lists(space, plan, LoadRequest::default()),
    },
    Scenario {
        name: "list-page",
        what: "LIST with limit=500",
        starts: false,
        run: |space, plan| lists(space, plan, LoadRequest::get("?limit=500")),
    },
    Scenario {
        name: "list-table",
        what: "LIST as a Table",
        starts: false,
        run: |space, plan| lists(space, plan, accepting(TABLE)),
    },
    Scenario {
        name: "list-metadata",
        what: "LIST of metadata only",
        starts: false,
        run: |space, plan| lists(space, plan, accepting(METADATA)),
    },
    Scenario {
        name: "list-gzip",
        what: "LIST with gzip",
        starts: false,
        run: |space, plan| lists(space, plan, LoadRequest { gzip: true, ..LoadRequest::default() }),
    },
    Scenario {
        name: "list-protobuf",
        what: "LIST in protobuf",
        starts: false,
        run: |space, plan| lists(space, plan, accepting(PROTOBUF)),
    },
];

fn accepting(accept: &'static str) -> LoadRequest {
    LoadRequest { accept, ..LoadRequest::default() }
}

fn lists<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan, ask: LoadRequest) -> Measuring<'a> {
    Box::pin(async move {
        space.fill(plan.objects).await?;
        let ask =
            LoadRequest { method: "GET", path: format!("{}{}", space.objects(), ask.path), ..ask };
        repeat(space, ask).await
    })
}

/// One LIST, then [`LISTS`] more.
pub(super) async fn repeat(space: &BenchNamespace, ask: LoadRequest) -> anyhow::Result<Sample> {
    let mut connection = space.connect().await?;
    let (before, started) = (cpu(&space.target.pids), Instant::now());
    let size = connection.send(&ask).await?;
    let (cold_cpu, cold) = (cpu(&space.target.pids).since(before), started.elapsed());
    let mut sample = space.load(LISTS, 1, move |_| ask.clone()).await?;
    sample.figures = vec![
        ("MB", size as f64 / 1e6),
        ("first-cpu-ms", cold_cpu.as_secs_f64() * 1e3),
        ("first-ms", cold.as_secs_f64() * 1e3),
    ];
    Ok(sample)
}
