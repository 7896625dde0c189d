//! Maintains the rules of aggregated ClusterRoles: the union of the rules of all ClusterRoles they
//! select.
//!
//! A user that may write ClusterRoles makes them as large and as many as it likes: a page of them
//! is in memory at a time, and what is computed of it is linear, off the workers, which in an
//! all-in-one are the API server's.

use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use crate::watching;
use ferrokube_client::cause;
use http::Request;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::core::{ObjectList, PartialObjectMeta, Selector, SelectorExt};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use std::collections::HashSet;

/// A single key: roles are few, and a change of one can affect any other.
const ALL: &str = "all cluster roles";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// Roles that are read at a time.
const PAGE: usize = 8;
/// Bytes of rules from which on no role with them can be stored.
const MAX_RULE_BYTES: usize = 3 << 19;

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<&'static str> = WorkQueue::default();
    let roles: Api<PartialObjectMeta<ClusterRole>> = Api::all(client.clone());
    let watch = watching::each(roles, watcher::Config::default(), |role, _| {
        queue.add(ALL, cause(&role.metadata))
    });
    let work =
        queue.run("clusterrole-aggregation", 1, move |_, trace| aggregate(trace.client(&client)));
    tokio::join!(watch, work);
}

/// An aggregated role, and the union of the rules that it selects.
struct AggregatedRole {
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
    selectors: Vec<Selector>,
    rules: Vec<PolicyRule>,
    union: Vec<PolicyRule>,
    /// The rules of the union, as JSON.
    known: HashSet<String>,
    /// Bytes of `known`.
    bytes: usize,
}

impl AggregatedRole {
    /// `None` for an ordinary role.
    fn new(role: ClusterRole) -> Option<Self> {
        let selectors = role.aggregation_rule.as_ref()?.cluster_role_selectors.iter().flatten();
        let selectors =
            selectors.filter_map(|selector| Selector::try_from(selector.clone()).ok()).collect();
        let (name, uid, resource_version) = (role.name_any(), role.uid(), role.resource_version());
        let rules = role.rules.unwrap_or_default();
        let (union, known, bytes) = (Vec::new(), HashSet::new(), 0);
        Some(Self { name, uid, resource_version, selectors, rules, union, known, bytes })
    }

    fn selects(&self, other: &ClusterRole) -> bool {
        other.metadata.name.as_deref() != Some(&self.name)
            && self.selectors.iter().any(|selector| selector.matches(other.labels()))
    }

    /// Adds the rules of a role, those that it has not, until they are too many to be stored.
    fn add(&mut self, other: &ClusterRole) {
        if !self.selects(other) {
            return;
        }
        for rule in other.rules.iter().flatten() {
            if self.is_too_large() {
                return;
            }
            let text = serde_json::to_string(rule).unwrap_or_default();
            let bytes = text.len();
            if self.known.insert(text) {
                self.bytes += bytes;
                self.union.push(rule.clone());
            }
        }
    }

    fn is_too_large(&self) -> bool {
        self.bytes > MAX_RULE_BYTES
    }
}

async fn aggregate(client: Client) -> Result<Next, kube::Error> {
    let found = each(&client, Vec::new(), |all: &mut Vec<AggregatedRole>, role| {
        all.extend(AggregatedRole::new(role));
    });
    let found = found.await?;
    if found.is_empty() {
        return Ok(Next::Done);
    }
    let found = each(&client, found, |all, role| {
        all.iter_mut().for_each(|aggregated| aggregated.add(&role));
    });
    let roles: Api<ClusterRole> = Api::all(client.clone());
    for role in found.await? {
        if role.is_too_large() {
            tracing::warn!(k8s.name = role.name, "the aggregated rules are too long to be stored");
            continue;
        }
        if role.rules == role.union {
            continue;
        }
        let patch = json!({"metadata": {"uid": role.uid, "resourceVersion": role.resource_version}, "rules": role.union});
        match roles.patch(&role.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            // Changed or deleted since: its event wakes us again.
            Err(error) if matches!(code(&error), 404 | 409) => {}
            other => drop(other?),
        }
    }
    Ok(Next::Done)
}

/// Passes all roles to `fold`, in the order of their names.
async fn each(
    client: &Client,
    mut state: Vec<AggregatedRole>,
    fold: fn(&mut Vec<AggregatedRole>, ClusterRole),
) -> Result<Vec<AggregatedRole>, kube::Error> {
    let mut token = String::new();
    loop {
        let path = format!("{ROLES}?limit={PAGE}{token}");
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let text = client.request_text(request).await?;
        let folding = tokio::task::spawn_blocking(move || {
            let page: ObjectList<ClusterRole> = serde_json::from_str(&text)?;
            page.items.into_iter().for_each(|role| fold(&mut state, role));
            Ok::<_, serde_json::Error>((state, page.metadata.continue_))
        });
        let folded = folding.await.map_err(|error| kube::Error::Service(error.into()))?;
        let (next, rest) = folded.map_err(kube::Error::SerdeError)?;
        state = next;
        let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return Ok(state) };
        token = format!("&continue={}", utf8_percent_encode(&rest, NON_ALPHANUMERIC));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;
    use std::sync::Arc;

    /// A server with these roles, three to a page whatever is asked for, and the patches that it
    /// gets.
    fn server(roles: Vec<Value>) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let patches: Arc<Mutex<Vec<Value>>> = Arc::default();
        let seen = patches.clone();
        let serve = tower::service_fn(move |request: Request<Body>| {
            let (roles, seen) = (roles.clone(), seen.clone());
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let answer = if request.method() == http::Method::PATCH {
                    let body = request.into_body().collect_bytes().await.expect("a body");
                    let patch: Value = serde_json::from_slice(&body).expect("JSON");
                    seen.lock().push(patch);
                    roles[0].clone()
                } else {
                    assert!(query.starts_with(&format!("limit={PAGE}")), "{query}");
                    let token = query.split_once("continue=").map_or("0", |(_, token)| token);
                    let from: usize = token.parse().expect("a number");
                    let page: Vec<&Value> = roles.iter().skip(from).take(3).collect();
                    let rest =
                        if from + 3 < roles.len() { (from + 3).to_string() } else { String::new() };
                    json!({"kind": "ClusterRoleList", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"continue": rest}, "items": page})
                };
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::new(body))
            }
        });
        (Client::new(serve, "default"), patches)
    }

    fn rule(resource: &str) -> Value {
        json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]})
    }

    fn role(name: &str, rules: &[Value]) -> Value {
        let labels = json!({"to": "all"});
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}, "rules": rules})
    }

    fn aggregated(name: &str, rules: &[Value]) -> Value {
        let mut role = role(name, rules);
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]});
        role
    }

    #[tokio::test]
    async fn rules_are_united_in_order_without_repeats() {
        let parts = ["a", "b", "c", "d", "e"].map(|name| role(name, &[rule(name), rule("pods")]));
        let (client, patches) = server([&[aggregated("all", &[])][..], &parts].concat());
        aggregate(client).await.expect("aggregated");
        let rules = ["a", "pods", "b", "c", "d", "e"].map(rule);
        let metadata = json!({"uid": "all", "resourceVersion": "1"});
        assert_eq!(*patches.lock(), [json!({"metadata": metadata, "rules": rules})]);
        let (client, patches) = server([&parts[..], &[aggregated("z", &rules)]].concat());
        aggregate(client).await.expect("aggregated");
        assert!(patches.lock().is_empty(), "they are there");
    }

    /// The roles of one writer, which fit into no other role.
    #[tokio::test]
    async fn fault_34_roles_are_read_in_pages_and_united_up_to_what_can_be_stored() {
        const RULES: usize = 10_000;
        let large = |name: &str| {
            let rules: Vec<Value> = (0..RULES).map(|n| rule(&format!("{name}{n:0100}"))).collect();
            role(name, &rules)
        };
        let (client, patches) = server(vec![aggregated("all", &[]), large("a"), large("b")]);
        aggregate(client.clone()).await.expect("aggregated");
        assert!(patches.lock().is_empty(), "it would be refused");
        let found = each(&client, Vec::new(), |all: &mut Vec<AggregatedRole>, role| {
            all.extend(AggregatedRole::new(role));
        });
        let found = each(&client, found.await.expect("read"), |all, role| {
            all.iter_mut().for_each(|aggregated| aggregated.add(&role));
        });
        let [all] = &found.await.expect("read")[..] else { panic!("one is aggregated") };
        assert!(all.union.len() < 2 * RULES && all.bytes < MAX_RULE_BYTES + 1000);
    }
}
