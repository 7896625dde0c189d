//! Settings of the Feature API.

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
        }
    }
}
