//! The admission steps of a server, in kube-apiserver's order.

use crate::certificates::{CertificateApproval, CertificateSigning, CertificateSubjectRestriction};
use crate::namespace::NamespaceLifecycle;
use crate::plugins::{FIRST_POLICIES, Plugin};
use crate::quota::QuotaStep;
use crate::remote::{Mutation, RemoteStep};
use crate::step::{AdmissionStep, Permits};
use crate::times::{AdmissionPhase, AdmissionTimes, StepClock, StepTimes};
use crate::trace_stamp;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_features::{Gates, LOG_TRACKING};
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{Admission, Attributes, Effects, Operation, Stamps, Target};
use ferrokube_storage::Store;
use ferrokube_trace::annotation::Ids;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The admission steps of a server.
pub struct Chain {
    steps: Vec<TimedStep<dyn AdmissionStep>>,
    /// Those that run outside the turn, in order.
    remote: Vec<TimedStep<dyn RemoteStep>>,
    /// Durations of whole phases.
    times: Arc<StepTimes>,
    gates: Gates,
    stamped: AtomicU64,
    skipped: AtomicU64,
}

struct TimedStep<S: ?Sized> {
    step: Arc<S>,
    times: Arc<StepTimes>,
}

impl<S: ?Sized> TimedStep<S> {
    fn new(step: Arc<S>) -> Self {
        Self { step, times: Arc::default() }
    }
}

impl Chain {
    /// No steps, apart from trace ids.
    pub fn empty(gates: Gates) -> Self {
        Self {
            steps: Vec::new(),
            remote: Vec::new(),
            times: Arc::default(),
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

    /// Adds a step at its position in [`PLUGINS`](crate::PLUGINS). Steps that it lacks run before
    /// policies, in the order in which they are added.
    #[must_use]
    pub fn with(mut self, step: Arc<dyn AdmissionStep>) -> Self {
        self.steps.push(TimedStep::new(step));
        self.steps.sort_by_key(|timed| place(timed.step.name()));
        self
    }

    /// Adds a remote step, as [`Self::with`].
    #[must_use]
    pub fn with_remote(mut self, step: Arc<dyn RemoteStep>) -> Self {
        self.remote.push(TimedStep::new(step));
        self.remote.sort_by_key(|timed| place(timed.step.name()));
        self
    }

    /// Names of the steps, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let mut names: Vec<_> = self.named_times().map(|(name, _)| name).collect();
        names.sort_by_key(|name| place(name));
        names.into_iter()
    }

    /// How long its steps take.
    pub fn times(&self) -> AdmissionTimes {
        let steps = self.named_times().map(|(name, times)| (name, Arc::clone(times))).collect();
        AdmissionTimes { steps, all: Arc::clone(&self.times) }
    }

    fn named_times(&self) -> impl Iterator<Item = (&'static str, &Arc<StepTimes>)> {
        let local = self.steps.iter().map(|timed| (timed.step.name(), &timed.times));
        local.chain(self.remote.iter().map(|timed| (timed.step.name(), &timed.times)))
    }

    /// The remote steps that a write matches: only they are called. None for the server's own
    /// writes: it must start, and serve the requests that correct a faulty webhook or policy.
    fn matching<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
    ) -> impl Iterator<Item = &'a TimedStep<dyn RemoteStep>> {
        let steps = self.remote.iter().filter(|_| !attributes.context.is_own());
        steps.filter(|timed| timed.step.matches(attributes))
    }

    /// Runs local steps up to the first that rejects the write.
    fn local<'a>(
        &self,
        phase: AdmissionPhase,
        attributes: &Attributes<'_>,
        mut steps: impl Iterator<Item = &'a TimedStep<dyn AdmissionStep>>,
        mut run: impl FnMut(&dyn AdmissionStep) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (operation, mut clock) = (attributes.operation, StepClock::start());
        let done = steps.try_for_each(|timed| {
            let done = run(&*timed.step);
            timed.times.observe(phase, operation, clock.lap(), done.is_err());
            done
        });
        // Those outside of the turn take far longer, and count for the phase instead.
        if done.is_err() || !self.is_remote(attributes) {
            self.times.observe(phase, operation, clock.total(), done.is_err());
        }
        done
    }

    fn mutate_local(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Document,
    ) -> Result<(), Failure> {
        let steps = self.steps.iter().filter(|timed| timed.step.mutates());
        self.local(AdmissionPhase::Admit, attributes, steps, |step| step.mutate(attributes, object))
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
        self.mutate_each(&steps, attributes, &mut mutation).await?;
        if mutation.is_needed {
            mutation.is_second = true;
            if let Some(object) = &mut mutation.object {
                self.mutate_local(&attributes, object)?;
            }
            self.mutate_each(&steps, attributes, &mut mutation).await?;
        }
        Ok(mutation.object)
    }

    async fn mutate_each(
        &self,
        steps: &[&TimedStep<dyn RemoteStep>],
        attributes: Attributes<'_>,
        mutation: &mut Mutation,
    ) -> Result<(), Failure> {
        let mut clock = StepClock::start();
        for timed in steps {
            let done = timed.step.mutate(attributes, mutation).await;
            let (operation, rejected) = (attributes.operation, done.is_err());
            timed.times.observe(AdmissionPhase::Admit, operation, clock.lap(), rejected);
            done?;
        }
        Ok(())
    }

    async fn validate_all(
        &self,
        attributes: Attributes<'_>,
        object: Option<&Document>,
    ) -> Result<(), Failure> {
        let steps: Vec<_> = self.matching(&attributes).collect();
        let mut clock = StepClock::start();
        for timed in steps {
            let done = timed.step.validate(attributes, object).await;
            let (operation, rejected) = (attributes.operation, done.is_err());
            timed.times.observe(AdmissionPhase::Validate, operation, clock.lap(), rejected);
            done?;
        }
        Ok(())
    }

    /// Times a phase outside of the turn.
    async fn timed<T>(
        &self,
        phase: AdmissionPhase,
        attributes: Attributes<'_>,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut clock = StepClock::start();
        let done = work.await;
        self.times.observe(phase, attributes.operation, clock.lap(), done.is_err());
        done
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

    fn create_takes_long(&self, target: &Target) -> bool {
        self.steps.iter().any(|timed| timed.step.create_takes_long(target))
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        self.mutate_local(attributes, object)
    }

    fn mutate_remote<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Document,
    ) -> RemoteFuture<'a, Document> {
        let mutated = self.mutate_all(attributes, Some(object));
        let timed = self.timed(AdmissionPhase::Admit, attributes, mutated);
        Box::pin(async move { Ok(timed.await?.unwrap_or_default()) })
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
        let (phase, steps) = (AdmissionPhase::Validate, self.steps.iter());
        self.local(phase, attributes, steps, |step| step.validate(attributes, object, effects))
    }

    fn validate_remote<'a>(
        &'a self,
        attributes: Attributes<'a>,
        object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        Box::pin(async move {
            if attributes.operation == Operation::Delete {
                let mutated = self.mutate_all(attributes, None);
                self.timed(AdmissionPhase::Admit, attributes, mutated).await?;
            }
            let validated = self.validate_all(attributes, object);
            self.timed(AdmissionPhase::Validate, attributes, validated).await
        })
    }
}
