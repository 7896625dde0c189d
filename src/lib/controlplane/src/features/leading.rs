//! The leader's steps for one feature: records of the state machine are stored, tasks run.

use super::record::{self, FeatureFacts, FeatureStatus, ObjectCensus, UsesBlock};
use super::settings::{FeatureFailpoint, FeatureFunction};
use super::stats::transition_time;
use super::sweep::{RemainingObjects, Sweep, SweepProgress, count, verify};
use super::{FeatureFlow, RETRY, components};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_features::FeatureTask;
use ferrokube_features::transition::{
    Blocker, FeatureState, RECHECK, ServerReport, TransitionRecord, TransitionStep, TransitionView,
};
use ferrokube_registry::offload::block_in_place;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::Instant;

/// Between writes of a task's progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// Between counts of the objects that use a feature at rest.
const CENSUS: Duration = Duration::from_secs(600);

/// Identifies the transition and write that a run belongs to; results for others are discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskKey {
    /// A task of a transition.
    Task(u64, String),
    /// The look for remaining objects, at a revision.
    Verification(String),
    /// The count at rest.
    Census,
}

/// End of a run.
pub(super) struct TaskEnd {
    feature: String,
    key: TaskKey,
    /// `None`: nothing remains.
    remaining: Option<RemainingObjects>,
}

/// The runs for a feature.
#[derive(Default)]
pub(super) struct TaskState {
    running: Option<(TaskKey, Arc<SweepProgress>)>,
    ended: Option<(TaskKey, Option<RemainingObjects>)>,
    /// After a run that left objects.
    retry: Option<Instant>,
    /// Last count, and when.
    census: Option<(Instant, Option<RemainingObjects>)>,
    /// Revision at the last count. A component that has renewed its Lease since is alive.
    counted: u64,
    /// Lease of a component that had the feature on, although it is off, at the last count.
    late: Option<String>,
    /// Why the last event says that the transition is blocked.
    announced: String,
}

impl FeatureFlow {
    pub(super) async fn lead(
        &mut self,
        facts: &FeatureFacts,
        document: &Document,
        since: Instant,
    ) -> Result<Option<Instant>, Failure> {
        let tasks: Vec<String> = match facts.desired {
            true => Vec::new(),
            false => facts.tasks.iter().map(ToString::to_string).collect(),
        };
        let record = record::read(document, facts);
        let base = self.known.get(&facts.name).map_or("", |known| known.base.as_str());
        let others = self.leases.others(&facts.name, base);
        let observed = since.elapsed();
        let is_over = record.evaluating && observed >= self.settings.evaluation;
        let component = is_over.then(|| self.differing(facts, document)).flatten();
        let view = TransitionView {
            desired: facts.desired,
            tasks: &tasks,
            others: &others,
            observed,
            evaluation: self.settings.evaluation,
            canary: facts.canary,
            component: component.as_deref(),
        };
        let mut status = FeatureStatus::new(facts, record.clone(), &self.gates);
        let differs = |server: &&ServerReport| server.enabled == Some(!facts.desired);
        status.disagreeing = others.iter().find(differs).map(|server| server.id.clone());
        let step = match facts.gate {
            Some(_) => record.next(&view),
            None => TransitionStep::Rest,
        };
        if facts.gate.is_none() && record.state != FeatureState::Off {
            let version = self.gates.version();
            status.blocked = Some(format!("version {version} does not have the feature"));
        }
        if step != TransitionStep::Rest
            && let Some(state) = self.states.get_mut(&facts.name)
        {
            state.census = None;
        }
        let mut wake = None;
        match step {
            TransitionStep::Rest => {
                let recheck = record.late_use().map(|_| since + RECHECK);
                wake = self.rest(facts, document, &mut status).into_iter().chain(recheck).min();
            }
            TransitionStep::Write(next) => self.advance(&mut status, next),
            TransitionStep::Wait(left) => {
                // Only its completion shows whether it is still blocked.
                status.uses_block = UsesBlock::AsStored;
                wake = Some(Instant::now() + left);
            }
            TransitionStep::Blocked(blocker, next) => {
                status.blocked = Some(blocker.to_string());
                if matches!(blocker, Blocker::Use(_) | Blocker::Component(..) | Blocker::Full) {
                    status.uses_block = UsesBlock::Now;
                }
                if let Some(next) = next {
                    self.advance(&mut status, next);
                }
            }
            TransitionStep::Verify { complete, again } => {
                let revision = document.meta("resourceVersion").to_owned();
                self.verify(facts, revision, [complete, again], &mut status);
            }
            TransitionStep::Run(task) => wake = self.run_task(facts, &task, &mut status),
        }
        let Some(next) = status.applied(document) else { return Ok(wake) };
        let blocked = status.blocked.take();
        let failpoints = FeatureFailpoint::around(&record, &status.record);
        let reached = |at: usize| {
            if let Some(failpoints) = failpoints {
                self.failpoint(&facts.name, failpoints[at]);
            }
        };
        reached(0);
        let written = self.features.update(next, "status").await?;
        reached(1);
        // Before its event arrives.
        self.guard(&facts.name, &written);
        self.announce_step(facts, document, &written, blocked).await;
        Ok(wake)
    }

    /// Lease of a component that has the other value.
    fn differing(&self, facts: &FeatureFacts, document: &Document) -> Option<String> {
        let since = document.meta("resourceVersion").parse().ok()?;
        let value = format!("{}={}", facts.name, !facts.desired);
        block_in_place(|| components::with_value(&self.registry, &value, since))
    }

    fn failpoint(&self, feature: &str, failpoint: FeatureFailpoint) {
        self.settings.failpoints.at(feature, failpoint);
    }

    /// Metrics and events of a step that is stored.
    async fn announce_step(
        &mut self,
        facts: &FeatureFacts,
        before: &Document,
        written: &Document,
        blocked: Option<String>,
    ) {
        self.stats.note(facts, written, true);
        let is_turning = |feature| record::state(feature).is_some_and(FeatureState::is_turning);
        if is_turning(before) && !is_turning(written) {
            self.stats.ended(facts, transition_time(before));
        }
        self.events.changed(before, written).await;
        let Some(why) = blocked.filter(|_| is_turning(written)) else { return };
        let state = self.states.entry(facts.name.clone()).or_default();
        if state.announced != why {
            state.announced.clone_from(&why);
            self.events.blocked(written, &why).await;
        }
    }

    /// For a feature at rest: counts its uses.
    fn rest(
        &mut self,
        facts: &FeatureFacts,
        document: &Document,
        status: &mut FeatureStatus<'_>,
    ) -> Option<Instant> {
        let is_on = status.record.state == FeatureState::On;
        let is_countable =
            |task: &&FeatureTask| !(is_on && matches!(task, FeatureTask::ClearAnnotations { .. }));
        let tasks: Vec<FeatureTask> = facts.tasks.iter().filter(is_countable).copied().collect();
        if tasks.is_empty() {
            self.states.remove(&facts.name);
            return None;
        }
        let state = self.states.entry(facts.name.clone()).or_default();
        state.retry = None;
        state.announced.clear();
        if let Some((TaskKey::Census, counted)) = state.ended.take() {
            state.census = Some((Instant::now(), counted));
        }
        if let Some((at, counted)) = &state.census {
            status.census = ObjectCensus::Counted(counted.clone());
            status.late_component.clone_from(&state.late);
            let next = *at + CENSUS;
            if next > Instant::now() {
                return Some(next);
            }
        }
        if state.running.is_none() {
            let (registry, unserved) = (self.registry.clone(), self.settings.unserved.clone());
            let stored = document.meta("resourceVersion").parse().unwrap_or(u64::MAX);
            let since = stored.max(state.counted);
            state.counted = registry.store().revision().0;
            let value = format!("{}=true", facts.name);
            let is_off = status.record.state == FeatureState::Off;
            // A standby that has taken over, whose reports do not arrive.
            state.late = is_off
                .then(|| block_in_place(|| components::with_value(&registry, &value, since)))
                .flatten();
            let look = async move { count(&registry, &unserved, &tasks) };
            self.spawn(&facts.name, TaskKey::Census, Arc::default(), look);
        }
        // Its end is a reason to look again.
        None
    }

    /// Another record.
    fn advance(&self, status: &mut FeatureStatus<'_>, next: TransitionRecord) {
        if next.state != status.record.state {
            let state = next.state.as_str();
            tracing::info!(k8s.name = status.name(), state, "feature transition");
        }
        status.evaluation_ends = next.evaluating.then_some(self.settings.evaluation);
        status.record = next;
    }

    /// Starts a task, or uses its result.
    fn run_task(
        &mut self,
        facts: &FeatureFacts,
        task: &str,
        status: &mut FeatureStatus<'_>,
    ) -> Option<Instant> {
        let key = TaskKey::Task(status.record.number, task.to_owned());
        let state = self.states.entry(facts.name.clone()).or_default();
        match state.ended.clone().filter(|(ended, _)| *ended == key) {
            Some((_, None)) => {
                status.record = status.record.without_first_task();
                return None;
            }
            Some((_, Some(remaining))) => {
                status.blocked = Some(remaining.to_string());
                status.dangling = Some(remaining);
            }
            None => {}
        }
        if let Some(retry) = state.retry.filter(|retry| *retry > Instant::now()) {
            return Some(retry);
        }
        if let Some((running, progress)) = &state.running {
            if *running == key {
                status.progress = Some((task.to_owned(), progress.snapshot()));
            }
            return Some(Instant::now() + PROGRESS);
        }
        self.failpoint(&facts.name, FeatureFailpoint::TaskBegins);
        let Some(known) = facts.tasks.iter().find(|known| known.to_string() == task) else {
            let version = self.gates.version();
            status.blocked = Some(format!("task {task:?} is unknown to version {version}"));
            return None;
        };
        if let FeatureTask::Function { name } = known {
            let function = self.settings.functions.get(name).cloned();
            let registry = self.registry.clone();
            let run = async move {
                let Some(FeatureFunction(function)) = function else {
                    return Some(RemainingObjects::unknown("the server has no such function"));
                };
                let ended = function(registry).await;
                ended.err().map(|why| RemainingObjects::unknown(&why))
            };
            self.spawn(&facts.name, key, Arc::default(), run);
            return Some(Instant::now() + PROGRESS);
        }
        let sweep = Sweep {
            registry: self.registry.clone(),
            features: self.features.clone(),
            feature: facts.name.clone(),
            transition: status.record.number,
            task: *known,
            unserved: self.settings.unserved.clone(),
            progress: Arc::default(),
            failpoints: self.settings.failpoints.clone(),
        };
        let progress = Arc::clone(&sweep.progress);
        self.spawn(&facts.name, key, progress, async move { sweep.run().await });
        Some(Instant::now() + PROGRESS)
    }

    /// Searches for remaining objects, or uses the result of an earlier search.
    fn verify(
        &mut self,
        facts: &FeatureFacts,
        revision: String,
        [complete, again]: [TransitionRecord; 2],
        status: &mut FeatureStatus<'_>,
    ) {
        let key = TaskKey::Verification(revision);
        let state = self.states.entry(facts.name.clone()).or_default();
        match state.ended.take_if(|(ended, _)| *ended == key) {
            Some((_, None)) => self.advance(status, complete),
            Some((_, Some(remaining))) => {
                status.dangling = Some(remaining);
                self.advance(status, again);
            }
            None if state.running.is_none() => {
                let (registry, tasks) = (self.registry.clone(), facts.tasks);
                let unserved = self.settings.unserved.clone();
                let look = async move { verify(&registry, &unserved, tasks) };
                self.spawn(&facts.name, key, Arc::default(), look);
            }
            // Its end is a reason to look again.
            None => {}
        }
    }

    fn spawn(
        &mut self,
        feature: &str,
        key: TaskKey,
        progress: Arc<SweepProgress>,
        run: impl Future<Output = Option<RemainingObjects>> + Send + 'static,
    ) {
        tracing::debug!(k8s.name = feature, task = ?key, "feature task begins");
        let state = self.states.entry(feature.to_owned()).or_default();
        state.running = Some((key.clone(), progress));
        let feature = feature.to_owned();
        self.tasks.spawn(async move { TaskEnd { feature, key, remaining: run.await } });
    }

    pub(super) fn end_task(&mut self, ended: Result<TaskEnd, JoinError>) {
        match ended {
            Ok(TaskEnd { feature, key, remaining }) => {
                let state = self.states.entry(feature.clone()).or_default();
                let is_task = matches!(key, TaskKey::Task(..));
                let failpoint = match (&key, &remaining) {
                    (TaskKey::Task(..), None) => Some(FeatureFailpoint::TaskEnded),
                    (TaskKey::Verification(_), None) => Some(FeatureFailpoint::Verified),
                    _ => None,
                };
                state.running = None;
                state.retry = (is_task && remaining.is_some()).then(|| Instant::now() + RETRY);
                state.ended = Some((key, remaining));
                if let Some(failpoint) = failpoint {
                    self.failpoint(&feature, failpoint);
                }
                self.enqueue([feature]);
            }
            Err(error) => {
                tracing::error!(%error, "a feature task ended unexpectedly");
                let names: Vec<String> = std::mem::take(&mut self.states).into_keys().collect();
                self.enqueue(names);
            }
        }
    }
}
