//! Deletes, one by one and a whole collection.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::namespace::BenchNamespace;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "delete",
        what: "deletes, each of another object",
        starts: false,
        run: one_by_one,
    },
    Scenario {
        name: "delete-all",
        what: "one DELETE of a collection of --requests objects, counted by object",
        starts: false,
        run: collection,
    },
];

fn one_by_one<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(plan.requests).await?;
        let paths = space.objects();
        space
            .load(plan.requests, plan.connections, move |index| {
                LoadRequest::delete(format!("{paths}/o{index}"))
            })
            .await
    })
}

fn collection<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(plan.requests).await?;
        let path = space.objects();
        let sample = space.load(1, 1, move |_| LoadRequest::delete(path.clone())).await?;
        Ok(crate::measure::Sample { count: plan.requests, ..sample })
    })
}
