//! Creates.

use super::Scenario;

pub(crate) const ALL: &[Scenario] = &[Scenario {
    name: "create",
    what: "creates of a 1 KiB ConfigMap, one request at a time on each connection",
    starts: false,
    run: |space, plan| Box::pin(space.fill_range(0..plan.requests, plan.connections)),
}];
