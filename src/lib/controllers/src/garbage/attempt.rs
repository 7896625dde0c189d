//! What is done about a dependent or a dying owner: live reads, then one guarded write.

use super::graph::{Dependent, Dying, FOREGROUND, Graph, ORPHAN, Place, Task};
use crate::monitor::{Monitor, is_watched};
use crate::queue::Next;
use crate::rest::{self, Ask, code, is_absent};
use ferrokube_client::{Action, DiscoveredResource};
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
pub(super) struct Collector {
    client: Client,
    graph: Arc<Graph>,
    monitor: Arc<Monitor>,
    absent: Mutex<HashSet<String>>,
}

/// One action of a worker: its client carries the action's ids.
struct Attempt<'a> {
    client: Client,
    action: &'a Action,
    graph: &'a Graph,
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
enum Looked {
    /// Its metadata.
    Present(Value),
    /// Proven: no object of this kind, namespace and name has the uid.
    Absent,
    /// The reference goes from a cluster-scoped object to a namespaced kind.
    AcrossScopes,
}

/// A reference that can never be right: a cluster-scoped object owned by a namespaced kind.
struct ScopeMismatch(OwnerReference);

impl Collector {
    pub(super) fn new(client: Client, graph: Arc<Graph>, monitor: Arc<Monitor>) -> Self {
        Self { client, graph, monitor, absent: Mutex::default() }
    }

    pub(super) async fn work(&self, task: Task, action: &Action) -> Result<Next, AttemptError> {
        let Self { client, graph, monitor, absent } = self;
        Attempt { client: action.client(client), action, graph, monitor, absent }.work(task).await
    }
}

impl Attempt<'_> {
    async fn work(&self, task: Task) -> Result<Next, AttemptError> {
        match task {
            Task::Dependent(uid) => match self.graph.dependent(&uid) {
                Some(dependent) => self.dependent(dependent).await,
                None => Ok(Next::Done),
            },
            Task::Owner(uid) => match self.graph.dying(&uid) {
                Some(_) if !self.sees_all() => Ok(Next::After(SETTLE)),
                Some(dying) if dying.foreground => self.foreground(dying).await,
                Some(dying) => self.orphan(dying).await,
                None => Ok(Next::Done),
            },
        }
    }

    /// After a start, an owner's dependents may not have been listed yet: to let it go then would be to lose them, or to end its wait early.
    fn sees_all(&self) -> bool {
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
        for owner in owners.dangling.iter().filter(|owner| self.graph.lives_elsewhere(&owner.uid, &dependent.place)) {
            // For people only: that it cannot be told (the namespace is going, say) keeps nothing from happening.
            _ = self.report_mismatch(&dependent, owner).await;
        }
        if owners.dangling.is_empty() && owners.waiting.is_empty() {
            return Ok(Next::Done);
        }
        if !owners.solid.is_empty() {
            return self.keep_only(&dependent, &owners.solid).await;
        }
        let has_dependents = !self.graph.owned_by(&dependent.uid).is_empty();
        let policy = match () {
            () if !owners.waiting.is_empty() && has_dependents => {
                self.break_circle(&dependent, &owners).await?;
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
            match self.look(owner, &dependent.place).await {
                Ok(Looked::AcrossScopes) => return Ok(Err(ScopeMismatch(owner.clone()))),
                Ok(Looked::Absent) => owners.dangling.push(owner.clone()),
                Ok(Looked::Present(metadata)) if waits_for_dependents(&metadata) => owners.waiting.push(owner.clone()),
                Ok(Looked::Present(_)) => owners.solid.push(owner.clone()),
                // The kind went too (its definition was deleted), but that the owner was deleted was seen before.
                Err(AttemptError::UnknownKind(_)) if self.graph.saw_deletion(&owner.uid, dependent.place.namespace.is_some()) => {
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
    async fn look(&self, owner: &OwnerReference, dependent: &Place) -> Result<Looked, AttemptError> {
        let resource = self.resource_of(owner)?;
        if resource.namespaced && dependent.namespace.is_none() {
            return Ok(Looked::AcrossScopes);
        }
        let namespace = dependent.namespace.as_deref().filter(|_| resource.namespaced);
        let path = rest::path(&resource.resource, namespace, &owner.name);
        let proof = format!("{path}#{}", owner.uid);
        if self.absent.lock().expect("no panic while held").contains(&proof) {
            return Ok(Looked::Absent);
        }
        let found = self.read(&resource.resource, namespace, &owner.name).await?;
        if let Some(metadata) = found.map(|mut object| object["metadata"].take()).filter(|metadata| metadata["uid"] == owner.uid.as_str()) {
            return Ok(Looked::Present(metadata));
        }
        let mut absent = self.absent.lock().expect("no panic while held");
        if absent.len() >= MAX_ABSENT {
            absent.clear();
        }
        absent.insert(proof);
        Ok(Looked::Absent)
    }

    /// An object's metadata; `None` when it is proven not to exist.
    async fn read(&self, resource: &ApiResource, namespace: Option<&str>, name: &str) -> Result<Option<Value>, AttemptError> {
        let ask = Ask { view: rest::View::Metadata, body: None };
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
    fn served(&self, place: &Place) -> ApiResource {
        let seen = &place.resource.resource;
        let known = self.monitor.known();
        let now = known.resources.iter().map(|found| &found.resource).find(|now| now.group == seen.group && now.plural == seen.plural);
        now.unwrap_or(seen).clone()
    }

    async fn delete(&self, dependent: &Dependent, policy: &str) -> Result<Next, AttemptError> {
        let preconditions = json!({"uid": &*dependent.uid, "resourceVersion": dependent.resource_version});
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy, "preconditions": preconditions});
        let Place { resource, namespace, name } = &dependent.place;
        let served = self.served(&dependent.place);
        let path = rest::path(&served, namespace.as_deref(), name);
        tracing::debug!(
            controller = "garbage-collector",
            k8s.resource = crate::monitor::qualified(resource),
            k8s.namespace = namespace.as_deref().unwrap_or_default(),
            k8s.name = name,
            policy,
            "a dependent has no owner left and is deleted"
        );
        let outcome = rest::send(&self.client, Method::DELETE, &path, Ask { view: rest::View::Metadata, body: Some(&options) }).await;
        match outcome {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, name) => Ok(Next::Done),
            // It changed, perhaps its owners: the watch event that tells so queues it again; until then back off.
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// Drops the references to owners that are gone or leaving; the others stay.
    async fn keep_only(&self, dependent: &Dependent, solid: &[OwnerReference]) -> Result<Next, AttemptError> {
        self.patch(&dependent.place, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": solid})).await
    }

    /// A dependent of a waiting owner that is itself waited for must not block it for ever.
    async fn break_circle(&self, dependent: &Dependent, owners: &Owners) -> Result<(), AttemptError> {
        let circle = self.graph.owned_by(&dependent.uid).iter().any(|below| self.graph.dying(&below.uid).is_some_and(|dying| dying.foreground));
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
        if !circle || !owners.waiting.iter().any(blocks) {
            return Ok(());
        }
        let unblocked: Vec<OwnerReference> =
            dependent.owners.iter().cloned().map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner }).collect();
        self.patch(&dependent.place, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": unblocked})).await?;
        // The delete needs the new resourceVersion; the watch brings it.
        Err(AttemptError::Changed)
    }

    /// An owner in foreground deletion goes when nothing that blocks it is left.
    async fn foreground(&self, dying: Dying) -> Result<Next, AttemptError> {
        let blocking: Vec<Dependent> = self.graph.owned_by(&dying.uid).into_iter().filter(|dependent| blocks(dependent, &dying.uid)).collect();
        if blocking.is_empty() {
            return self.drop_finalizer(&dying, FOREGROUND).await;
        }
        for dependent in self.graph.owned_by(&dying.uid) {
            if !dependent.terminating {
                self.graph.queue(Task::Dependent(dependent.uid), self.action.context().copied());
            }
        }
        Ok(Next::After(RECHECK))
    }

    /// An owner whose dependents are to stay: they lose the reference, then it goes.
    async fn orphan(&self, dying: Dying) -> Result<Next, AttemptError> {
        for dependent in self.graph.owned_by(&dying.uid) {
            let others: Vec<&OwnerReference> = dependent.owners.iter().filter(|owner| owner.uid != *dying.uid).collect();
            self.patch(&dependent.place, &dependent.uid, &dependent.resource_version, json!({"ownerReferences": others})).await?;
        }
        self.drop_finalizer(&dying, ORPHAN).await
    }

    async fn drop_finalizer(&self, dying: &Dying, finalizer: &str) -> Result<Next, AttemptError> {
        let Place { namespace, name, .. } = &dying.place;
        let Some(object) = self.read(&self.served(&dying.place), namespace.as_deref(), name).await? else { return Ok(Next::Done) };
        let metadata: ObjectMeta = serde_json::from_value(object["metadata"].clone()).map_err(kube::Error::SerdeError)?;
        let present = metadata.finalizers.unwrap_or_default();
        if metadata.uid.as_deref() != Some(&*dying.uid) || !present.iter().any(|own| own == finalizer) {
            return Ok(Next::Done);
        }
        let left: Vec<String> = present.into_iter().filter(|own| own != finalizer).collect();
        self.patch(&dying.place, &dying.uid, &metadata.resource_version.unwrap_or_default(), json!({"finalizers": left})).await
    }

    /// A merge patch of metadata, guarded by uid and resourceVersion: an object that is gone is done, one that changed is tried again.
    async fn patch(&self, place: &Place, uid: &str, resource_version: &str, mut metadata: Value) -> Result<Next, AttemptError> {
        metadata["uid"] = json!(uid);
        metadata["resourceVersion"] = json!(resource_version);
        let body = json!({"metadata": metadata});
        let served = self.served(place);
        let path = rest::path(&served, place.namespace.as_deref(), &place.name);
        match rest::send(&self.client, Method::PATCH, &path, Ask { view: rest::View::Metadata, body: Some(&body) }).await {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, &place.name) => Ok(Next::Done),
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// A reference into another namespace, or across scopes, is an event for people; it alone deletes nothing.
    async fn report_mismatch(&self, dependent: &Dependent, owner: &OwnerReference) -> Result<(), AttemptError> {
        let Place { resource, namespace, name } = &dependent.place;
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
        rest::send(&self.client, Method::POST, &path, Ask { view: rest::View::Whole, body: Some(&event) }).await?;
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
