//! Scenarios, a file per family. A scenario gets an empty namespace, prepares it, and measures one
//! round. Cleanup is not measured.

mod admission;
mod apply;
mod create;
pub(crate) mod custom;
mod delete;
mod get;
mod idle;
mod list;
mod memory;
mod patch;
mod pods;
mod start;
pub(crate) mod watch;

use crate::measure::Sample;
use crate::namespace::BenchNamespace;
use std::pin::Pin;

/// Sizes of the workload.
pub(crate) struct LoadPlan {
    /// Requests per scenario.
    pub(crate) requests: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// Objects in lists.
    pub(crate) objects: usize,
    /// Objects in the memory and restart scenarios.
    pub(crate) stored: usize,
    /// Watchers.
    pub(crate) watchers: usize,
    /// Events per watcher.
    pub(crate) events: usize,
}

/// A running measurement.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Sample>> + 'a>>;

/// A scenario.
pub(crate) struct Scenario {
    /// Name.
    pub(crate) name: &'static str,
    /// Description.
    pub(crate) what: &'static str,
    /// Starts servers itself, so it requires a target that is a binary.
    pub(crate) starts: bool,
    /// Measures one round.
    pub(crate) run: for<'a> fn(&'a BenchNamespace, &'a LoadPlan) -> Measuring<'a>,
}

/// All scenarios in order of execution.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        start::ALL,
        create::ALL,
        get::ALL,
        patch::ALL,
        apply::ALL,
        delete::ALL,
        list::ALL,
        watch::ALL,
        custom::ALL,
        admission::ALL,
        pods::ALL,
        memory::ALL,
        idle::ALL,
    ]
    .into_iter()
    .flatten()
}
