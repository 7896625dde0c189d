//! Maintains the rules of aggregated ClusterRoles: the union of the rules of all ClusterRoles they
//! select.

use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use crate::watching;
use ferrokube_client::cause;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Selector, SelectorExt};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// A single key: roles are few, and a change of one can affect any other.
const ALL: &str = "all cluster roles";

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<&'static str> = WorkQueue::default();
    let roles: Api<PartialObjectMeta<ClusterRole>> = Api::all(client.clone());
    let watch = watching::each(roles, watcher::Config::default(), |role, _| {
        queue.add(ALL, cause(&role.metadata))
    });
    let work = queue.run("clusterrole-aggregation", 1, move |_, trace| {
        aggregate(Api::all(trace.client(&client)))
    });
    tokio::join!(watch, work);
}

async fn aggregate(roles: Api<ClusterRole>) -> Result<Next, kube::Error> {
    let all = roles.list(&ListParams::default()).await?.items;
    for role in all.iter().filter(|role| role.aggregation_rule.is_some()) {
        let rules = aggregated(role, &all);
        if role.rules.as_deref().unwrap_or_default() == rules {
            continue;
        }
        let patch = json!({"metadata": {"uid": role.uid(), "resourceVersion": role.resource_version()}, "rules": rules});
        match roles.patch(&role.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
            // Changed or deleted since: its event wakes us again.
            Err(error) if matches!(code(&error), 404 | 409) => {}
            other => drop(other?),
        }
    }
    Ok(Next::Done)
}

/// The rules of all selected roles, by role name, without duplicates.
fn aggregated(role: &ClusterRole, all: &[ClusterRole]) -> Vec<PolicyRule> {
    let selectors =
        role.aggregation_rule.iter().flat_map(|rule| rule.cluster_role_selectors.iter().flatten());
    let selectors: Vec<&LabelSelector> = selectors.collect();
    let mut selected: Vec<&ClusterRole> = all
        .iter()
        .filter(|other| {
            other.name_any() != role.name_any()
                && selectors.iter().any(|selector| selects(selector, other))
        })
        .collect();
    selected.sort_by_key(|other| other.name_any());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for rule in selected.iter().flat_map(|other| other.rules.iter().flatten()) {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    rules
}

fn selects(selector: &LabelSelector, role: &ClusterRole) -> bool {
    let Ok(selector) = Selector::try_from(selector.clone()) else { return false };
    selector.matches(role.labels())
}
