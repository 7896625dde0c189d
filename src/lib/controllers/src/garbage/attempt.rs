//! What is done about a dependent or a dying owner: live reads, then one guarded write.

use super::graph::{Dependent, DyingOwner, FOREGROUND, GarbageTask, ORPHAN, ObjectLocation, OwnerGraph};
use crate::monitor::{Monitor, is_watched};
use crate::queue::Next;
use crate::rest::{self, RequestOptions, code, is_absent};
use ferrokube_client::{DiscoveredResource, ReconcileTrace};
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How many proven absences are remembered; a uid never comes back, so they stay true.
const MAX_ABSENT: usize = 10_000;
/// Between looks at a foreground deletion that waits for dependents (their watch events wake it earlier).
const RECHECK: Duration = Duration::from_secs(30);

/// Until the next look whether all lists have ended.
const SETTLE: Duration = Duration::from_millis(50);

/// Why an attempt did not end; it is tried again with back-off.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// The API server refused or could not be reached.
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    /// A kind is not served now, or not in the version that was asked: nothing can be said about its objects.
    #[error("the kind {0} is not served, so its objects cannot be looked at")]
    UnknownKind(String),
    /// The object changed since it was read.
    #[error("the object changed meanwhile")]
    Changed,
}

/// The workers' common state.
pub(super) struct GarbageCollector {
    client: Client,
    graph: Arc<OwnerGraph>,
    monitor: Arc<Monitor>,
    absent: Mutex<HashSet<String>>,
}

/// One action of a worker: its client carries the action's ids.
struct Attempt<'a> {
    client: Client,
    trace: &'a ReconcileTrace,
    graph: &'a OwnerGraph,
    monitor: &'a Monitor,
    absent: &'a Mutex<HashSet<String>>,
}

/// What became of the owners of a dependent.
#[derive(Default)]
struct Owners {
    solid: Vec<OwnerReference>,
    dangling: Vec<OwnerReference>,
    /// Being deleted in the foreground: they wait for this dependent.
    waiting: Vec<OwnerReference>,
}

/// What a live read showed of an owner.
enum OwnerLookup {
    /// Its metadata.
    Present(Value),
    /// Proven: no object of this kind, namespace and name has the uid.
    Absent,
    /// The reference goes from a cluster-scoped object to a namespaced kind.
    AcrossScopes,
}

/// A reference that can never be right: a cluster-scoped object owned by a namespaced kind.
struct ScopeMismatch(OwnerReference);

impl GarbageCollector {
    pub(super) fn new(client: Client, graph: Arc<OwnerGraph>, monitor: Arc<Monitor>) -> Self {
        Self { client, graph, monitor, absent: Mutex::default() }
    }

    pub(super) async fn work(&self, task: GarbageTask, trace: &ReconcileTrace) -> Result<Next, AttemptError> {
        let Self { client, graph, monitor, absent } = self;
        Attempt { client: trace.client(client), trace, graph, monitor, absent }.work(task).await
    }
}

impl Attempt<'_> {
    async fn work(&self, task: GarbageTask) -> Result<Next, AttemptError> {
        match task {
            GarbageTask::Dependent(uid) => match self.graph.dependent(&uid) {
                Some(dependent) => self.dependent(dependent).await,
                None => Ok(Next::Done),
            },
            GarbageTask::Owner(uid) => match self.graph.dying(&uid) {
                Some(_) if !self.all_listed() => Ok(Next::After(SETTLE)),
                Some(dying) if dying.foreground => self.foreground(dying).await,
                Some(dying) => self.orphan(dying).await,
                None => Ok(Next::Done),
            },
        }
    }

    /// After a start, an owner's dependents may not have been listed yet: to let it go then would be to lose them, or to end its wait early.
    fn all_listed(&self) -> bool {
        let known = self.monitor.known();
        self.graph.has_listed(known.resources.iter().filter(|resource| is_watched(resource)))
    }

    async fn dependent(&self, dependent: Dependent) -> Result<Next, AttemptError> {
        if dependent.terminating {
            // Its own finalizers decide now.
            return Ok(Next::Done);
        }
        let owners = match self.classify(&dependent).await? {
            Ok(owners) => owners,
            Err(ScopeMismatch(owner)) => {
                self.report_mismatch(&dependent, &owner).await?;
                return Ok(Next::Done);
            }
        };
        for owner in owners.dangling.iter().filter(|owner| self.graph.lives_elsewhere(&owner.uid, &dependent.location)) {
            // For people only: that it cannot be told (the namespace is going, say) keeps nothing from happening.
            _ = self.report_mismatch(&dependent, owner).await;
        }
        if owners.dangling.is_empty() && owners.waiting.is_empty() {
            return Ok(Next::Done);
        }
        if !owners.solid.is_empty() {
            return self.retain_owners(&dependent, &owners.solid).await;
        }
        let has_dependents = !self.graph.owned_by(&dependent.uid).is_empty();
        let policy = match () {
            () if !owners.waiting.is_empty() && has_dependents => {
                self.break_cycle(&dependent, &owners).await?;
                "Foreground"
            }
            () if dependent.finalizers.iter().any(|finalizer| finalizer == ORPHAN) => "Orphan",
            () if dependent.finalizers.iter().any(|finalizer| finalizer == FOREGROUND) => "Foreground",
            () => "Background",
        };
        self.delete(&dependent, policy).await
    }

    async fn classify(&self, dependent: &Dependent) -> Result<Result<Owners, ScopeMismatch>, AttemptError> {
        let mut owners = Owners::default();
        for owner in &dependent.owners {
            match self.look_up(owner, &dependent.location).await {
                Ok(OwnerLookup::AcrossScopes) => return Ok(Err(ScopeMismatch(owner.clone()))),
                Ok(OwnerLookup::Absent) => owners.dangling.push(owner.clone()),
                Ok(OwnerLookup::Present(metadata)) if waits_for_dependents(&metadata) => owners.waiting.push(owner.clone()),
                Ok(OwnerLookup::Present(_)) => owners.solid.push(owner.clone()),
                // The kind went too (its definition was deleted), but that the owner was deleted was seen before.
                Err(AttemptError::UnknownKind(_)) if self.graph.saw_deletion(&owner.uid, dependent.location.namespace.is_some()) => {
                    owners.dangling.push(owner.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Ok(owners))
    }

    fn resource_of(&self, owner: &OwnerReference) -> Result<DiscoveredResource, AttemptError> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let known = self.monitor.known();
        known.find_kind(group, &owner.kind).cloned().ok_or_else(|| {
            self.monitor.rediscover();
            AttemptError::UnknownKind(format!("{} {}", owner.api_version, owner.kind))
        })
    }

    /// The owner by a live read.
    async fn look_up(&self, owner: &OwnerReference, dependent: &ObjectLocation) -> Result<OwnerLookup, AttemptError> {
        let resource = self.resource_of(owner)?;
        if resource.namespaced && dependent.namespace.is_none() {
            return Ok(OwnerLookup::AcrossScopes);
        }
        let namespace = dependent.namespace.as_deref().filter(|_| resource.namespaced);
        let path = rest::path(&resource.resource, namespace, &owner.name);
        let proof = format!("{path}#{}", owner.uid);
        if self.absent.lock().expect("no panic while held").contains(&proof) {
            return Ok(OwnerLookup::Absent);
        }
        let found = self.read(&resource.resource, namespace, &owner.name).await?;
        if let Some(metadata) = found.map(|mut object| object["metadata"].take()).filter(|metadata| metadata["uid"] == owner.uid.as_str()) {
            return Ok(OwnerLookup::Present(metadata));
        }
        let mut absent = self.absent.lock().expect("no panic while held");
        if absent.len() >= MAX_ABSENT {
            absent.clear();
        }
        absent.insert(proof);
        Ok(OwnerLookup::Absent)
    }

    /// An object's metadata; `None` when it is proven not to exist.
    async fn read(&self, resource: &ApiResource, namespace: Option<&str>, name: &str) -> Result<Option<Value>, AttemptError> {
        let ask = RequestOptions { representation: rest::Representation::Metadata, body: None };
        rest::get(&self.client, resource, namespace, name, ask).await.map_err(|error| self.refused(error, resource))
    }

    /// Why a request about an object failed. A 404 that is not about the object says that what is known of the resource is older than the server.
    fn refused(&self, error: kube::Error, resource: &ApiResource) -> AttemptError {
        if code(&error) != 404 {
            return error.into();
        }
        self.monitor.rediscover();
        AttemptError::UnknownKind(format!("{} {}", resource.api_version, resource.kind))
    }

    /// The resource of an object as it is served now: its version may have changed since the object was seen.
    fn served(&self, location: &ObjectLocation) -> ApiResource {
        let seen = &location.resource.resource;
        let known = self.monitor.known();
        let now = known.resources.iter().map(|found| &found.resource).find(|now| now.group == seen.group && now.plural == seen.plural);
        now.unwrap_or(seen).clone()
    }

    async fn delete(&self, dependent: &Dependent, policy: &str) -> Result<Next, AttemptError> {
        let preconditions = json!({"uid": &*dependent.uid, "resourceVersion": dependent.resource_version});
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy, "preconditions": preconditions});
        let ObjectLocation { resource, namespace, name } = &dependent.location;
        let served = self.served(&dependent.location);
        let path = rest::path(&served, namespace.as_deref(), name);
        tracing::debug!(
            controller = "garbage-collector",
            k8s.resource = crate::monitor::qualified(resource),
            k8s.namespace = namespace.as_deref().unwrap_or_default(),
            k8s.name = name,
            policy,
            "a dependent has no owner left and is deleted"
        );
        let outcome =
            rest::send(&self.client, Method::DELETE, &path, RequestOptions { representation: rest::Representation::Metadata, body: Some(&options) }).await;
        match outcome {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, name) => Ok(Next::Done),
            // It changed, perhaps its owners: the watch event that tells so queues it again; until then back off.
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// Drops the references to owners that are gone or leaving; the others stay.
    async fn retain_owners(&self, dependent: &Dependent, solid: &[OwnerReference]) -> Result<Next, AttemptError> {
        self.patch(&dependent.location, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": solid})).await
    }

    /// A dependent of a waiting owner that is itself waited for must not block it for ever.
    async fn break_cycle(&self, dependent: &Dependent, owners: &Owners) -> Result<(), AttemptError> {
        let circle = self.graph.owned_by(&dependent.uid).iter().any(|below| self.graph.dying(&below.uid).is_some_and(|dying| dying.foreground));
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
        if !circle || !owners.waiting.iter().any(blocks) {
            return Ok(());
        }
        let unblocked: Vec<OwnerReference> =
            dependent.owners.iter().cloned().map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner }).collect();
        self.patch(&dependent.location, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": unblocked})).await?;
        // The delete needs the new resourceVersion; the watch brings it.
        Err(AttemptError::Changed)
    }

    /// An owner in foreground deletion goes when nothing that blocks it is left.
    async fn foreground(&self, dying: DyingOwner) -> Result<Next, AttemptError> {
        let blocking: Vec<Dependent> = self.graph.owned_by(&dying.uid).into_iter().filter(|dependent| blocks(dependent, &dying.uid)).collect();
        if blocking.is_empty() {
            return self.drop_finalizer(&dying, FOREGROUND).await;
        }
        for dependent in self.graph.owned_by(&dying.uid) {
            if !dependent.terminating {
                self.graph.queue(GarbageTask::Dependent(dependent.uid), self.trace.context().copied());
            }
        }
        Ok(Next::After(RECHECK))
    }

    /// An owner whose dependents are to stay: they lose the reference, then it goes.
    async fn orphan(&self, dying: DyingOwner) -> Result<Next, AttemptError> {
        for dependent in self.graph.owned_by(&dying.uid) {
            let others: Vec<&OwnerReference> = dependent.owners.iter().filter(|owner| owner.uid != *dying.uid).collect();
            self.patch(&dependent.location, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": others})).await?;
        }
        self.drop_finalizer(&dying, ORPHAN).await
    }

    async fn drop_finalizer(&self, dying: &DyingOwner, finalizer: &str) -> Result<Next, AttemptError> {
        let ObjectLocation { namespace, name, .. } = &dying.location;
        let Some(object) = self.read(&self.served(&dying.location), namespace.as_deref(), name).await? else { return Ok(Next::Done) };
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].clone()).map_err(kube::Error::SerdeError)?;
        let present = metadata.finalizers.unwrap_or_default();
        if metadata.uid.as_deref() != Some(&*dying.uid) || !present.iter().any(|own| own == finalizer) {
            return Ok(Next::Done);
        }
        let left: Vec<String> = present.into_iter().filter(|own| own != finalizer).collect();
        self.patch(&dying.location, &dying.uid, &metadata.resource_version.unwrap_or_default(), json!({"finalizers": left})).await
    }

    /// A merge patch of metadata, guarded by uid and resourceVersion: an object that is gone is done, one that changed is tried again.
    async fn patch(&self, location: &ObjectLocation, uid: &str, resource_version: &str, mut metadata: Value) -> Result<Next, AttemptError> {
        metadata["uid"] = json!(uid);
        metadata["resourceVersion"] = json!(resource_version);
        let body = json!({"metadata": metadata});
        let served = self.served(location);
        let path = rest::path(&served, location.namespace.as_deref(), &location.name);
        match rest::send(&self.client, Method::PATCH, &path, RequestOptions { representation: rest::Representation::Metadata, body: Some(&body) }).await {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, &location.name) => Ok(Next::Done),
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// A reference into another namespace, or across scopes, is an event for people; it alone deletes nothing.
    async fn report_mismatch(&self, dependent: &Dependent, owner: &OwnerReference) -> Result<(), AttemptError> {
        let ObjectLocation { resource, namespace, name } = &dependent.location;
        let within = namespace.as_deref().unwrap_or_default();
        let home = namespace.as_deref().unwrap_or("default");
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut about = json!({"apiVersion": resource.resource.api_version, "kind": resource.resource.kind, "name": name, "uid": &*dependent.uid});
        if let Some(namespace) = namespace {
            about["namespace"] = json!(namespace);
        }
        let reference = format!("[{}/{}, namespace: {within}, name: {}, uid: {}]", owner.api_version, owner.kind, owner.name, owner.uid);
        let event = json!({
            "kind": "Event", "apiVersion": "v1", "type": "Warning", "reason": "OwnerRefInvalidNamespace",
            "metadata": {"generateName": format!("{name}."), "namespace": home},
            "message": format!("ownerRef {reference} does not exist in namespace {within:?}"),
            "involvedObject": about,
            "source": {"component": "garbage-collector-controller"}, "reportingComponent": "garbage-collector-controller",
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        let path = format!("/api/v1/namespaces/{home}/events");
        rest::send(&self.client, Method::POST, &path, RequestOptions { representation: rest::Representation::Whole, body: Some(&event) }).await?;
        Ok(())
    }
}

fn waits_for_dependents(metadata: &Value) -> bool {
    let foreground = metadata["finalizers"].as_array().is_some_and(|finalizers| finalizers.iter().any(|finalizer| finalizer == FOREGROUND));
    foreground && metadata["deletionTimestamp"].is_string()
}

fn blocks(dependent: &Dependent, owner: &str) -> bool {
    dependent.owners.iter().any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
}
