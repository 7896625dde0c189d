//! Deletes, one by one and a whole collection.

use super::{Measuring, Plan, Scenario};
use crate::connection::Ask;
use crate::space::Space;

pub(crate) const ALL: &[Scenario] = &[
    Scenario { name: "delete", what: "deletes, each of another object", starts: false, run: one_by_one },
    Scenario { name: "delete-all", what: "one DELETE of a collection of --requests objects, counted by object", starts: false, run: collection },
];

fn one_by_one<'a>(space: &'a Space, plan: &'a Plan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(plan.requests).await?;
        let paths = space.objects();
        space.load(plan.requests, plan.connections, move |index| Ask::delete(format!("{paths}/o{index}"))).await
    })
}

fn collection<'a>(space: &'a Space, plan: &'a Plan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(plan.requests).await?;
        let path = space.objects();
        let sample = space.load(1, 1, move |_| Ask::delete(path.clone())).await?;
        Ok(crate::measure::Sample { count: plan.requests, ..sample })
    })
}
