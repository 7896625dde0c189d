//! Live lookups of owners: a read each, or one list for many of one kind.

use super::{Attempt, AttemptError};
use crate::garbage::graph::{Dependent, ObjectLocation};
use crate::rest::{self, MetadataPages, ObjectFacts};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::discovery::ApiResource;
use serde_json::Value;
use std::collections::HashMap;

/// Owners of one kind from which they are listed. A page takes the place of as many reads, so a
/// list of more pages is cut; the first one is short.
const LIST_FROM: usize = 4;

/// Result of a live lookup of an owner.
pub(super) enum OwnerLookup {
    /// Metadata of the owner.
    Present(ObjectFacts),
    /// Proven: no object of this kind, namespace and name has the uid.
    Absent,
    /// A cluster-scoped object refers to a namespaced kind.
    AcrossScopes,
}

/// Resource path of an owner, if it exists.
struct OwnerPath {
    resource: ApiResource,
    namespace: Option<String>,
    path: String,
    /// Key of the proof that it is absent.
    proof: String,
}

/// Metadata of listed owners by path; `None`: the list has no such object.
#[derive(Default)]
pub(super) struct ListedOwners(HashMap<String, Option<ObjectFacts>>);

impl Attempt<'_> {
    /// `None`: a cluster-scoped object refers to a namespaced kind.
    fn locate(
        &self,
        owner: &OwnerReference,
        dependent: &ObjectLocation,
    ) -> Result<Option<OwnerPath>, AttemptError> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let known = self.monitor.known();
        let Some(found) = known.find_kind(group, &owner.kind) else {
            self.monitor.rediscover();
            return Err(AttemptError::UnknownKind(format!("{} {}", owner.api_version, owner.kind)));
        };
        if found.namespaced && dependent.namespace.is_none() {
            return Ok(None);
        }
        let namespace = dependent.namespace.clone().filter(|_| found.namespaced);
        let path = rest::path(&found.resource, namespace.as_deref(), &owner.name);
        let proof = format!("{path}#{}", owner.uid);
        Ok(Some(OwnerPath { resource: found.resource.clone(), namespace, path, proof }))
    }

    fn is_proven_absent(&self, proof: &str) -> bool {
        self.absent.lock().get(proof).is_some()
    }

    /// Lists owners of kinds of which the dependent has many.
    pub(super) async fn list_owners(
        &self,
        dependent: &Dependent,
    ) -> Result<ListedOwners, AttemptError> {
        let mut listed = ListedOwners::default();
        if dependent.owners.len() < LIST_FROM {
            return Ok(listed);
        }
        let mut kinds: HashMap<String, (ApiResource, HashMap<&str, String>)> = HashMap::new();
        for owner in &dependent.owners {
            // Lookups report failures.
            let Ok(Some(at)) = self.locate(owner, &dependent.location) else { continue };
            if !self.is_proven_absent(&at.proof) {
                let collection = rest::path(&at.resource, at.namespace.as_deref(), "");
                kinds
                    .entry(collection)
                    .or_insert_with(|| (at.resource, HashMap::new()))
                    .1
                    .insert(&owner.name, at.path);
            }
        }
        for (collection, (resource, wanted)) in
            kinds.into_iter().filter(|(_, (_, wanted))| wanted.len() >= LIST_FROM)
        {
            self.list(&collection, &resource, wanted, &mut listed).await?;
        }
        Ok(listed)
    }

    /// Lists a collection. Owners that are not in it are absent; of a list that is cut, they are
    /// unknown.
    async fn list(
        &self,
        collection: &str,
        resource: &ApiResource,
        mut wanted: HashMap<&str, String>,
        listed: &mut ListedOwners,
    ) -> Result<(), AttemptError> {
        let mut pages = MetadataPages::new(&self.client, collection);
        for _ in 0..=wanted.len().div_ceil(LIST_FROM) {
            let page = pages.next().await.map_err(|error| self.refused(error, resource))?;
            let Some(page) = page else { break };
            for object in page.objects {
                if let Some(path) = wanted.remove(object.name.as_str()) {
                    listed.0.insert(path, Some(object));
                }
            }
        }
        if pages.is_over() {
            listed.0.extend(wanted.into_values().map(|path| (path, None)));
        }
        Ok(())
    }

    /// Looks up an owner live: in a list of this attempt, else by a read.
    pub(super) async fn look_up(
        &self,
        owner: &OwnerReference,
        dependent: &ObjectLocation,
        listed: &ListedOwners,
    ) -> Result<OwnerLookup, AttemptError> {
        let Some(at) = self.locate(owner, dependent)? else { return Ok(OwnerLookup::AcrossScopes) };
        if self.is_proven_absent(&at.proof) {
            return Ok(OwnerLookup::Absent);
        }
        let found = match listed.0.get(&at.path) {
            Some(found) => found.clone(),
            None => {
                let read = self.read(&at.resource, at.namespace.as_deref(), &owner.name).await?;
                let facts = |mut object: Value| serde_json::from_value(object["metadata"].take());
                read.map(facts).transpose().map_err(kube::Error::SerdeError)?
            }
        };
        if let Some(metadata) = found.filter(|metadata: &ObjectFacts| metadata.uid == owner.uid) {
            return Ok(OwnerLookup::Present(metadata));
        }
        self.absent.lock().insert(&at.proof, ());
        Ok(OwnerLookup::Absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::garbage::graph::OwnerGraph;
    use crate::monitor::Monitor;
    use crate::queue::WorkQueue;
    use ferrokube_client::{Discovered, DiscoveredResource, ReconcileTrace};
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::core::GroupVersionKind;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::sync::Arc;

    fn maps() -> DiscoveredResource {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("", "v1", "ConfigMap"),
            "configmaps",
        );
        DiscoveredResource { resource, namespaced: true, verbs: Vec::new() }
    }

    /// Number of lists and reads until one of `owners` is found to be present, the others absent.
    /// Lists have this many pages.
    async fn requests(owners: usize, pages: usize) -> (usize, usize) {
        let counts: Arc<Mutex<(usize, usize)>> = Arc::default();
        let seen = counts.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let mut counts = seen.lock();
                let (path, here) =
                    (request.uri().path(), json!({"metadata": {"name": "o-1", "uid": "u-1"}}));
                let (code, answer) = if path.ends_with("/configmaps") {
                    counts.0 += 1;
                    let token = if counts.0 < pages { "more/" } else { "" };
                    (
                        200,
                        json!({"metadata": {"continue": token}, "items": if counts.0 == 1 { vec![here] } else { Vec::new() }}),
                    )
                } else {
                    counts.1 += 1;
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let status = json!({"kind": "Status", "status": "Failure", "code": 404, "details": {"name": name, "kind": "configmaps"}});
                    if name == "o-1" { (200, here) } else { (404, status) }
                };
                Ok::<_, std::io::Error>(
                    Response::builder()
                        .status(code)
                        .body(Body::from(answer.to_string().into_bytes()))
                        .expect("a response"),
                )
            }
        });
        let client = Client::new(server, "default");
        let monitor = Monitor::knowing(
            client.clone(),
            Discovered { resources: vec![maps()], ..Discovered::default() },
        );
        let (graph, absent, trace) = (
            OwnerGraph::new(WorkQueue::default()),
            Mutex::default(),
            ReconcileTrace::caused_by(Vec::new()),
        );
        let attempt =
            Attempt { client, trace: &trace, graph: &graph, monitor: &monitor, absent: &absent };
        let reference = |number: usize| OwnerReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: format!("o-{number}"),
            uid: format!("u-{number}"),
            ..OwnerReference::default()
        };
        let location = ObjectLocation {
            resource: Arc::new(maps()),
            namespace: Some("n".into()),
            name: "d".into(),
        };
        let owners = (0..owners).map(reference).collect();
        let dependent = Dependent {
            location,
            uid: "d".into(),
            resource_version: "1".into(),
            owners,
            finalizers: Vec::new(),
            terminating: false,
        };
        let Ok(Ok(found)) = attempt.classify(&dependent).await else { panic!("classified") };
        assert_eq!((found.solid.len(), found.dangling.len()), (1, dependent.owners.len() - 1));
        let first = *counts.lock();
        // What was absent stays so: only the other is looked up again.
        let Ok(Ok(_)) = attempt.classify(&dependent).await else { panic!("classified") };
        let second = *counts.lock();
        assert_eq!((second.0 - first.0, second.1 - first.1), (0, 1));
        first
    }

    #[tokio::test]
    async fn many_owners_of_a_kind_cost_one_list() {
        assert_eq!(requests(3, 1).await, (0, 3));
        assert_eq!(requests(1_000, 1).await, (1, 0));
        assert_eq!(requests(1_000, 3).await, (3, 0));
        // A list of many pages is cut.
        assert_eq!(requests(40, 1_000).await, (11, 39));
    }
}
