//! Reads of one object.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::namespace::BenchNamespace;

pub(crate) const ALL: &[Scenario] =
    &[Scenario { name: "get", what: "GETs of one object", starts: false, run: get }];

fn get<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(1).await?;
        let path = space.object(0);
        space.load(plan.requests, plan.connections, move |_| LoadRequest::get(path.clone())).await
    })
}
