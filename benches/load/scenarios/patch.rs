//! Merge patches: of many objects, and of a contended one.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::namespace::{BenchNamespace, MERGE};

/// Clients of the contended object.
const CROWD: usize = 64;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "patch-many",
        what: "merge patches, each of another object",
        starts: false,
        run: many,
    },
    Scenario {
        name: "patch-hot",
        what: "merge patches of one object by 64 clients",
        starts: false,
        run: hot,
    },
];

/// A patch that changes the object.
pub(crate) fn patch(path: String, index: usize) -> LoadRequest {
    LoadRequest::write("PATCH", path, MERGE, format!(r#"{{"data":{{"count":"{index}"}}}}"#))
}

fn many<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(plan.requests).await?;
        let paths = space.objects();
        space
            .load(plan.requests, plan.connections, move |index| {
                patch(format!("{paths}/o{index}"), index)
            })
            .await
    })
}

fn hot<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        space.fill(1).await?;
        let path = space.object(0);
        space.load(plan.requests, CROWD, move |index| patch(path.clone(), index)).await
    })
}
