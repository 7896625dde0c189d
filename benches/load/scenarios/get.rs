//! Reads of one object.

use super::{Measuring, Plan, Scenario};
use crate::connection::Ask;
use crate::space::Space;

pub(crate) const ALL: &[Scenario] = &[Scenario { name: "get", what: "GETs of one object", starts: false, run: get }];

fn get<'a>(space: &'a Space, plan: &'a Plan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(1).await?;
        let path = space.object(0);
        space.load(plan.requests, plan.connections, move |_| Ask::get(path.clone())).await
    })
}
