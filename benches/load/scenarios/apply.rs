//! Server-side apply.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::namespace::BenchNamespace;

const APPLY: &str = "application/apply-patch+yaml";

pub(crate) const ALL: &[Scenario] = &[Scenario {
    name: "apply",
    what: "server-side applies to a 4 KiB object with 3 managers",
    starts: false,
    run: applies,
}];

/// A manager's 20 fields.
fn body(manager: &str, value: &str) -> String {
    let data: Vec<String> = (0..20)
        .map(|index| format!("\"{manager}-{index}\":\"{}{value}\"", "y".repeat(50)))
        .collect();
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"a"}},"data":{{{}}}}}"#,
        data.join(",")
    )
}

fn applies<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let path = |manager: &str| format!("{}/a?fieldManager={manager}", space.objects());
        for manager in ["m1", "m2", "m3"] {
            space
                .connect()
                .await?
                .send(&LoadRequest::write("PATCH", path(manager), APPLY, body(manager, "first")))
                .await?;
        }
        // Alternating bodies: each apply changes all fields of its manager.
        let (path, bodies) = (path("m2"), [body("m2", "a"), body("m2", "b")]);
        space
            .load(plan.requests, plan.connections, move |index| {
                LoadRequest::write("PATCH", path.clone(), APPLY, bodies[index % 2].clone())
            })
            .await
    })
}
