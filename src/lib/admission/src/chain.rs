//! The admission steps of a server, in kube-apiserver's order.

use crate::certificates::{CertificateApproval, CertificateSigning, CertificateSubjectRestriction};
use crate::namespace::NamespaceLifecycle;
use crate::plugins::{FIRST_POLICIES, Plugin};
use crate::quota::QuotaStep;
use crate::remote::{Mutation, RemoteStep};
use crate::step::{AdmissionStep, Permits};
use crate::trace_stamp;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Admission, Attributes, Effects, Operation, Stamps};
use ferrokube_storage::Store;
use ferrokube_trace::annotation::Ids;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The admission steps of a server.
pub struct Chain {
    steps: Vec<Arc<dyn AdmissionStep>>,
    /// Those that run outside the turn, in order.
    remote: Vec<Arc<dyn RemoteStep>>,
    gates: Gates,
    stamped: AtomicU64,
    skipped: AtomicU64,
}

impl Chain {
    /// No steps, apart from trace ids.
    pub fn empty(gates: Gates) -> Self {
        Self {
            steps: Vec::new(),
            remote: Vec::new(),
            gates,
            stamped: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// The built-in local steps of the generic profile. `permits` is the server's authorizer.
    pub fn new(store: &Store, gates: Gates, permits: Arc<dyn Permits>) -> Self {
        Self::empty(gates)
            .with(Arc::new(NamespaceLifecycle::new(store.clone())))
            .with(Arc::new(CertificateApproval::new(permits.clone())))
            .with(Arc::new(CertificateSigning::new(permits)))
            .with(Arc::new(CertificateSubjectRestriction))
            .with(Arc::new(QuotaStep::new(store.clone())))
    }

    /// Adds a step at its position in [`PLUGINS`](crate::PLUGINS). Steps that it lacks run before policies, in the
    /// order in which they are added.
    #[must_use]
    pub fn with(mut self, step: Arc<dyn AdmissionStep>) -> Self {
        self.steps.push(step);
        self.steps.sort_by_key(|step| place(step.name()));
        self
    }

    /// Adds a remote step, as [`Self::with`].
    #[must_use]
    pub fn with_remote(mut self, step: Arc<dyn RemoteStep>) -> Self {
        self.remote.push(step);
        self.remote.sort_by_key(|step| place(step.name()));
        self
    }

    /// Names of the steps, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let local = self.steps.iter().map(|step| step.name());
        let mut names: Vec<_> = local.chain(self.remote.iter().map(|step| step.name())).collect();
        names.sort_by_key(|name| place(name));
        names.into_iter()
    }

    /// The remote steps that a write matches: only they are called. None for the server's own
    /// writes: it must start, and serve the requests that correct a faulty webhook or policy.
    fn matching<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
    ) -> impl Iterator<Item = &'a dyn RemoteStep> {
        let steps = self.remote.iter().filter(|_| !attributes.context.is_own());
        steps.map(|step| &**step).filter(|step| step.matches(attributes))
    }

    /// The mutating remote steps; all mutating steps a second time if one of them changes the
    /// object.
    async fn mutate_all(
        &self,
        attributes: Attributes<'_>,
        object: Option<Document>,
    ) -> Result<Option<Document>, Failure> {
        let mut mutation = Mutation::new(object);
        let steps: Vec<_> = self.matching(&attributes).collect();
        for step in &steps {
            step.mutate(attributes, &mut mutation).await?;
        }
        if mutation.is_needed {
            mutation.is_second = true;
            if let Some(object) = &mut mutation.object {
                self.mutate(&attributes, object)?;
            }
            for step in &steps {
                step.mutate(attributes, &mut mutation).await?;
            }
        }
        Ok(mutation.object)
    }
}

/// Position in [`PLUGINS`](crate::PLUGINS); of other steps, that of the first policies, and before
/// these.
fn place(name: &str) -> (usize, bool) {
    match Plugin::position(name) {
        Some(at) => (at, true),
        None => (Plugin::position(FIRST_POLICIES).unwrap_or(usize::MAX), false),
    }
}

impl Admission for Chain {
    fn is_remote(&self, attributes: &Attributes<'_>) -> bool {
        self.matching(attributes).next().is_some()
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        self.steps.iter().try_for_each(|step| step.mutate(attributes, object))
    }

    fn mutate_remote<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Document,
    ) -> RemoteFuture<'a, Document> {
        Box::pin(
            async move { Ok(self.mutate_all(attributes, Some(object)).await?.unwrap_or_default()) },
        )
    }

    fn stamp(&self, attributes: &Attributes<'_>, object: &mut Document) -> Option<Ids> {
        let ids = trace_stamp::stamp(&self.gates, attributes, object);
        let counter = if ids.is_some() { &self.stamped } else { &self.skipped };
        counter.fetch_add(1, Ordering::Relaxed);
        ids
    }

    fn owns_ids(&self) -> bool {
        self.gates.enabled(&LOG_TRACKING)
    }

    fn stamps(&self) -> Stamps {
        Stamps {
            stamped: self.stamped.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
        }
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        self.steps.iter().try_for_each(|step| step.validate(attributes, object, effects))
    }

    fn validate_remote<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(async move {
            if attributes.operation == Operation::Delete {
                self.mutate_all(attributes, None).await?;
            }
            let steps: Vec<_> = self.matching(&attributes).collect();
            for step in steps {
                step.validate(attributes, object).await?;
            }
            Ok(())
        })
    }
}
