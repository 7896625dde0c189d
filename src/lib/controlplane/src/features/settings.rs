//! Settings of the Feature API.

use ferrokube_features::transition::{FeatureState, TransitionRecord};
use ferrokube_registry::Registry;
use ferrokube_resource::Definition;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// Settings of [`ApiServerBuilder::features`](crate::ApiServerBuilder::features).
#[derive(Clone, Debug)]
pub struct FeatureSettings {
    /// Distinguishes this server from others on the same state, for example by address and data
    /// directory.
    pub identity: String,
    /// How long components have to report the value that they use.
    pub evaluation: Duration,
    /// Between renewals of the server's identity Lease. A server that misses three does not count.
    pub renewal: Duration,
    /// Kinds that are not served, whose objects a task may have to delete.
    pub unserved: Vec<Arc<Definition>>,
    /// Features that `spec.desired` sets. They must be central ones.
    pub dynamic: BTreeSet<String>,
    /// By name, those of [`FeatureTask::Function`](ferrokube_features::FeatureTask::Function).
    pub functions: BTreeMap<&'static str, FeatureFunction>,
    /// Called between the steps of turning a feature off.
    pub failpoints: FailpointObserver,
}

/// A moment between two steps of turning a feature off: a server may be killed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureFailpoint {
    /// The start is about to be stored.
    BeforeTurning,
    /// It is stored, with all tasks.
    AfterTurning,
    /// A task is about to run.
    TaskBegins,
    /// Some of its objects are written.
    ObjectsWritten,
    /// A task has done its work, and is still stored.
    TaskEnded,
    /// A task is about to be removed.
    BeforeRemovingTask,
    /// It is removed.
    AfterRemovingTask,
    /// The uses are about to be cleared.
    BeforeEvaluating,
    /// They are cleared.
    AfterEvaluating,
    /// The evaluation is over, and no object uses the feature.
    Verified,
    /// The end is about to be stored.
    BeforeCompleting,
    /// It is stored.
    AfterCompleting,
}

impl FeatureFailpoint {
    /// In their order.
    pub const ALL: [Self; 12] = [
        Self::BeforeTurning,
        Self::AfterTurning,
        Self::TaskBegins,
        Self::ObjectsWritten,
        Self::TaskEnded,
        Self::BeforeRemovingTask,
        Self::AfterRemovingTask,
        Self::BeforeEvaluating,
        Self::AfterEvaluating,
        Self::Verified,
        Self::BeforeCompleting,
        Self::AfterCompleting,
    ];

    /// Around the write of the next record; `None`: of no step, or on the way to on.
    pub(super) fn around(old: &TransitionRecord, new: &TransitionRecord) -> Option<[Self; 2]> {
        match (old.state, new.state) {
            (FeatureState::TurningOff, FeatureState::Off) => {
                Some([Self::BeforeCompleting, Self::AfterCompleting])
            }
            (old, FeatureState::TurningOff) if old != FeatureState::TurningOff => {
                Some([Self::BeforeTurning, Self::AfterTurning])
            }
            (_, FeatureState::TurningOff) if new.tasks.len() < old.tasks.len() => {
                Some([Self::BeforeRemovingTask, Self::AfterRemovingTask])
            }
            (_, FeatureState::TurningOff) if new.evaluating && !old.evaluating => {
                Some([Self::BeforeEvaluating, Self::AfterEvaluating])
            }
            _ => None,
        }
    }
}

type ObserveFailpoint = dyn Fn(&str, FeatureFailpoint) + Send + Sync;

/// For tests, which end a server between two steps.
#[derive(Clone, Default)]
pub struct FailpointObserver(Option<Arc<ObserveFailpoint>>);

impl FailpointObserver {
    /// It is given the name of the feature.
    pub fn new(observe: impl Fn(&str, FeatureFailpoint) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observe)))
    }

    pub(super) fn at(&self, feature: &str, failpoint: FeatureFailpoint) {
        if let Some(observe) = &self.0 {
            observe(feature, failpoint);
        }
    }
}

impl fmt::Debug for FailpointObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailpointObserver")
    }
}

/// Work of a feature's author on the way to off. An error is shown in the Feature, and the work
/// tried again.
#[derive(Clone)]
pub struct FeatureFunction(pub(super) Arc<dyn Fn(Registry) -> FunctionRun + Send + Sync>);

pub(super) type FunctionRun = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

impl FeatureFunction {
    /// It may run more than once, also at the same time in two servers.
    pub fn new<F>(run: impl Fn(Registry) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self(Arc::new(move |registry| Box::pin(run(registry))))
    }
}

impl fmt::Debug for FeatureFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FeatureFunction")
    }
}

impl Default for FeatureSettings {
    fn default() -> Self {
        Self {
            identity: String::new(),
            evaluation: Duration::from_secs(60),
            renewal: Duration::from_secs(10),
            unserved: Vec::new(),
            dynamic: BTreeSet::new(),
            functions: BTreeMap::new(),
            failpoints: FailpointObserver::default(),
        }
    }
}
