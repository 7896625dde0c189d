//! Handling of dependents and of dying owners: live reads, then one guarded write.

mod lookup;

use super::graph::{
    Dependent, DyingOwner, FOREGROUND, GarbageTask, ORPHAN, ObjectLocation, OwnerGraph,
};
use super::recent::RecentMap;
use crate::monitor::{Monitor, is_watched};
use crate::queue::Next;
use crate::rest::{self, ObjectFacts, RequestOptions, code, is_absent};
use ferrokube_client::ReconcileTrace;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::discovery::ApiResource;
use lookup::OwnerLookup;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of checks on foreground deletions that wait for dependents; watch events wake them
/// earlier.
const RECHECK: Duration = Duration::from_secs(30);

/// Interval of checks whether all lists have ended.
const SETTLE: Duration = Duration::from_millis(50);

/// Why an attempt failed. Retried with back-off.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// The API server refused, or could not be reached.
    #[error("the API server refused: {0}")]
    Api(#[from] kube::Error),
    /// A kind is not served, or not in the requested version: the state of its objects is unknown.
    #[error("the kind {0} is not served, so the state of its objects is unknown")]
    UnknownKind(String),
    /// The object changed since it was read.
    #[error("the object changed concurrently")]
    Changed,
}

/// State shared by the workers.
pub(super) struct GarbageCollector {
    client: Client,
    graph: Arc<OwnerGraph>,
    monitor: Arc<Monitor>,
    absent: Mutex<RecentMap<()>>,
}

/// One attempt of a worker. Its client carries the trace ids.
struct Attempt<'a> {
    client: Client,
    trace: &'a ReconcileTrace,
    graph: &'a OwnerGraph,
    monitor: &'a Monitor,
    /// Proven absences. Uids never come back, so they stay valid.
    absent: &'a Mutex<RecentMap<()>>,
}

/// A dependent's owners by state.
#[derive(Default)]
struct Owners {
    solid: Vec<OwnerReference>,
    dangling: Vec<OwnerReference>,
    /// In foreground deletion: waiting for this dependent.
    waiting: Vec<OwnerReference>,
}

/// An invalid reference: a cluster-scoped object owned by a namespaced kind.
struct ScopeMismatch(OwnerReference);

impl GarbageCollector {
    pub(super) fn new(client: Client, graph: Arc<OwnerGraph>, monitor: Arc<Monitor>) -> Self {
        Self { client, graph, monitor, absent: Mutex::default() }
    }

    pub(super) async fn work(
        &self,
        task: GarbageTask,
        trace: &ReconcileTrace,
    ) -> Result<Next, AttemptError> {
        let Self { client, graph, monitor, absent } = self;
        Attempt { client: trace.client(client), trace, graph, monitor, absent }.work(task).await
    }
}

impl Attempt<'_> {
    async fn work(&self, task: GarbageTask) -> Result<Next, AttemptError> {
        match task {
            GarbageTask::Dependent(uid, _) => match self.graph.dependent(&uid) {
                Some(dependent) => self.dependent(&dependent).await,
                None => Ok(Next::Done),
            },
            GarbageTask::Owner(uid, _) => match self.graph.dying(&uid) {
                Some(_) if !self.all_listed() => Ok(Next::After(SETTLE)),
                Some(dying) if dying.foreground => self.foreground(dying).await,
                Some(dying) => self.orphan(dying).await,
                None => Ok(Next::Done),
            },
        }
    }

    /// After a start, dependents of an owner may not be listed yet: letting the owner go would lose
    /// them, or end its wait early.
    fn all_listed(&self) -> bool {
        let known = self.monitor.known();
        self.graph.has_listed(known.resources.iter().filter(|resource| is_watched(resource)))
    }

    async fn dependent(&self, dependent: &Dependent) -> Result<Next, AttemptError> {
        if dependent.terminating {
            // Its own finalizers are in charge.
            return Ok(Next::Done);
        }
        let owners = match self.classify(dependent).await? {
            Ok(owners) => owners,
            Err(ScopeMismatch(owner)) => {
                self.report_mismatch(dependent, &owner).await?;
                return Ok(Next::Done);
            }
        };
        for owner in owners
            .dangling
            .iter()
            .filter(|owner| self.graph.lives_elsewhere(&owner.uid, &dependent.location))
        {
            // Informational only: a failure to report (in a terminating namespace, say) must not
            // block collection.
            _ = self.report_mismatch(dependent, owner).await;
        }
        if owners.dangling.is_empty() && owners.waiting.is_empty() {
            return Ok(Next::Done);
        }
        if !owners.solid.is_empty() {
            return self.retain_owners(dependent, &owners.solid).await;
        }
        let has_dependents = !self.graph.owned_by(&dependent.uid, &dependent.location).is_empty();
        let policy = match () {
            () if !owners.waiting.is_empty() && has_dependents => {
                self.break_cycle(dependent, &owners).await?;
                "Foreground"
            }
            () if dependent.finalizers.iter().any(|finalizer| finalizer == ORPHAN) => "Orphan",
            () if dependent.finalizers.iter().any(|finalizer| finalizer == FOREGROUND) => {
                "Foreground"
            }
            () => "Background",
        };
        self.delete(dependent, policy).await
    }

    async fn classify(
        &self,
        dependent: &Dependent,
    ) -> Result<Result<Owners, ScopeMismatch>, AttemptError> {
        let mut owners = Owners::default();
        let listed = self.list_owners(dependent).await?;
        for owner in &dependent.owners {
            match self.look_up(owner, &dependent.location, &listed).await {
                Ok(OwnerLookup::AcrossScopes) => return Ok(Err(ScopeMismatch(owner.clone()))),
                Ok(OwnerLookup::Absent) => owners.dangling.push(owner.clone()),
                Ok(OwnerLookup::Present(metadata)) if waits_for_dependents(&metadata) => {
                    owners.waiting.push(owner.clone())
                }
                Ok(OwnerLookup::Present(_)) => owners.solid.push(owner.clone()),
                // Its kind is gone, too (the definition was deleted), but the owner's deletion was
                // seen before.
                Err(AttemptError::UnknownKind(_))
                    if self
                        .graph
                        .saw_deletion(&owner.uid, dependent.location.namespace.is_some()) =>
                {
                    owners.dangling.push(owner.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Ok(owners))
    }

    /// Reads an object's metadata; `None` if it is proven absent.
    async fn read(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, AttemptError> {
        let ask = RequestOptions { representation: rest::Representation::Metadata, body: None };
        rest::get(&self.client, resource, namespace, name, ask)
            .await
            .map_err(|error| self.refused(error, resource))
    }

    /// Classifies a failed request. A 404 that is not about the object means that discovery is
    /// outdated.
    fn refused(&self, error: kube::Error, resource: &ApiResource) -> AttemptError {
        if code(&error) != 404 {
            return error.into();
        }
        self.monitor.rediscover();
        AttemptError::UnknownKind(format!("{} {}", resource.api_version, resource.kind))
    }

    /// The object's resource as currently served; its version may have changed since the object was
    /// seen.
    fn served(&self, location: &ObjectLocation) -> ApiResource {
        let seen = &location.resource.resource;
        let known = self.monitor.known();
        let now = known
            .resources
            .iter()
            .map(|found| &found.resource)
            .find(|now| now.group == seen.group && now.plural == seen.plural);
        now.unwrap_or(seen).clone()
    }

    async fn delete(&self, dependent: &Dependent, policy: &str) -> Result<Next, AttemptError> {
        let preconditions =
            json!({"uid": &*dependent.uid, "resourceVersion": dependent.resource_version});
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
            "deleting a dependent without owners"
        );
        let outcome = rest::send(
            &self.client,
            Method::DELETE,
            &path,
            RequestOptions { representation: rest::Representation::Metadata, body: Some(&options) },
        )
        .await;
        match outcome {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, name) => Ok(Next::Done),
            // Its owners may have changed: the watch event requeues it; back off until then.
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// Drops references to owners that are gone or leaving.
    async fn retain_owners(
        &self,
        dependent: &Dependent,
        solid: &[OwnerReference],
    ) -> Result<Next, AttemptError> {
        self.patch(
            &dependent.location,
            &dependent.uid,
            &dependent.resource_version,
            json!({"ownerReferences": solid}),
        )
        .await
    }

    /// A dependent that blocks its owner and waits for dependents itself must not block forever.
    async fn break_cycle(
        &self,
        dependent: &Dependent,
        owners: &Owners,
    ) -> Result<(), AttemptError> {
        let circle = self
            .graph
            .owned_by(&dependent.uid, &dependent.location)
            .iter()
            .any(|below| self.graph.dying(&below.uid).is_some_and(|dying| dying.foreground));
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
        if !circle || !owners.waiting.iter().any(blocks) {
            return Ok(());
        }
        let unblocked: Vec<OwnerReference> = dependent
            .owners
            .iter()
            .cloned()
            .map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner })
            .collect();
        self.patch(
            &dependent.location,
            &dependent.uid,
            &dependent.resource_version,
            json!({"ownerReferences": unblocked}),
        )
        .await?;
        // The delete needs the new resourceVersion, which the watch delivers.
        Err(AttemptError::Changed)
    }

    /// Completes an owner's foreground deletion once nothing blocks it.
    async fn foreground(&self, dying: DyingOwner) -> Result<Next, AttemptError> {
        let begun = Instant::now();
        let dependents = self.graph.owned_by(&dying.uid, &dying.location);
        if !dependents.iter().any(|dependent| blocks(dependent, &dying.uid)) {
            return self.drop_finalizer(&dying, FOREGROUND).await;
        }
        for dependent in dependents {
            if !dependent.terminating {
                self.graph.queue(dependent.task(), self.trace.context().copied());
            }
        }
        self.graph.took(&dying.uid, begun.elapsed());
        Ok(Next::After(RECHECK))
    }

    /// Completes an orphaning deletion: dependents lose the reference, then the owner goes.
    async fn orphan(&self, dying: DyingOwner) -> Result<Next, AttemptError> {
        for dependent in self.graph.owned_by(&dying.uid, &dying.location) {
            let others: Vec<&OwnerReference> =
                dependent.owners.iter().filter(|owner| owner.uid != *dying.uid).collect();
            self.patch(
                &dependent.location,
                &dependent.uid,
                &dependent.resource_version,
                json!({"ownerReferences": others}),
            )
            .await?;
        }
        self.drop_finalizer(&dying, ORPHAN).await
    }

    async fn drop_finalizer(
        &self,
        dying: &DyingOwner,
        finalizer: &str,
    ) -> Result<Next, AttemptError> {
        let ObjectLocation { namespace, name, .. } = &dying.location;
        let Some(object) =
            self.read(&self.served(&dying.location), namespace.as_deref(), name).await?
        else {
            return Ok(Next::Done);
        };
        let metadata: ObjectMeta =
            serde_json::from_value(object["metadata"].clone()).map_err(kube::Error::SerdeError)?;
        let present = metadata.finalizers.unwrap_or_default();
        if metadata.uid.as_deref() != Some(&*dying.uid)
            || !present.iter().any(|own| own == finalizer)
        {
            return Ok(Next::Done);
        }
        let left: Vec<String> = present.into_iter().filter(|own| own != finalizer).collect();
        self.patch(
            &dying.location,
            &dying.uid,
            &metadata.resource_version.unwrap_or_default(),
            json!({"finalizers": left}),
        )
        .await
    }

    /// Merge-patches metadata, guarded by uid and resourceVersion. Done if the object is gone;
    /// retried if it changed.
    async fn patch(
        &self,
        location: &ObjectLocation,
        uid: &str,
        resource_version: &str,
        mut metadata: Value,
    ) -> Result<Next, AttemptError> {
        metadata["uid"] = json!(uid);
        metadata["resourceVersion"] = json!(resource_version);
        let body = json!({"metadata": metadata});
        let served = self.served(location);
        let path = rest::path(&served, location.namespace.as_deref(), &location.name);
        match rest::send(
            &self.client,
            Method::PATCH,
            &path,
            RequestOptions { representation: rest::Representation::Metadata, body: Some(&body) },
        )
        .await
        {
            Ok(_) => Ok(Next::Done),
            Err(error) if is_absent(&error, &served, &location.name) => Ok(Next::Done),
            Err(error) if code(&error) == 409 => Err(AttemptError::Changed),
            Err(error) => Err(self.refused(error, &served)),
        }
    }

    /// Reports a reference across namespaces or scopes as an event; it never causes a deletion.
    async fn report_mismatch(
        &self,
        dependent: &Dependent,
        owner: &OwnerReference,
    ) -> Result<(), AttemptError> {
        let ObjectLocation { resource, namespace, name } = &dependent.location;
        let within = namespace.as_deref().unwrap_or_default();
        let home = namespace.as_deref().unwrap_or("default");
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut about = json!({"apiVersion": resource.resource.api_version, "kind": resource.resource.kind, "name": name, "uid": &*dependent.uid});
        if let Some(namespace) = namespace {
            about["namespace"] = json!(namespace);
        }
        let reference = format!(
            "[{}/{}, namespace: {within}, name: {}, uid: {}]",
            owner.api_version, owner.kind, owner.name, owner.uid
        );
        let event = json!({
            "kind": "Event", "apiVersion": "v1", "type": "Warning", "reason": "OwnerRefInvalidNamespace",
            "metadata": {"generateName": format!("{name}."), "namespace": home},
            "message": format!("ownerRef {reference} does not exist in namespace {within:?}"),
            "involvedObject": about,
            "source": {"component": "garbage-collector-controller"}, "reportingComponent": "garbage-collector-controller",
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        let path = format!("/api/v1/namespaces/{home}/events");
        rest::send(
            &self.client,
            Method::POST,
            &path,
            RequestOptions { representation: rest::Representation::Whole, body: Some(&event) },
        )
        .await?;
        Ok(())
    }
}

fn waits_for_dependents(metadata: &ObjectFacts) -> bool {
    let foreground = metadata.finalizers.iter().any(|finalizer| finalizer == FOREGROUND);
    foreground && metadata.deletion_timestamp.is_some()
}

fn blocks(dependent: &Dependent, owner: &str) -> bool {
    dependent
        .owners
        .iter()
        .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
}
