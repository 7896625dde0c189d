//! What is measured, a file for each family: a scenario gets an empty namespace, prepares it, and measures one round. What it leaves is deleted
//! outside the measured time.

mod apply;
mod create;
pub(crate) mod custom;
mod delete;
mod get;
mod idle;
mod list;
mod memory;
mod patch;
mod start;
pub(crate) mod watch;

use crate::measure::Sample;
use crate::namespace::BenchNamespace;
use std::pin::Pin;

/// How much of everything.
pub(crate) struct LoadPlan {
    /// Requests per scenario.
    pub(crate) requests: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// Objects in lists.
    pub(crate) objects: usize,
    /// Objects in the scenarios about memory and restarts.
    pub(crate) stored: usize,
    /// Watchers.
    pub(crate) watchers: usize,
    /// Events to each of them.
    pub(crate) events: usize,
}

/// A measurement under way.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Sample>> + 'a>>;

/// One row of `--list`.
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) what: &'static str,
    /// It starts servers itself: only for targets that are binaries.
    pub(crate) starts: bool,
    /// Measures one round.
    pub(crate) run: for<'a> fn(&'a BenchNamespace, &'a LoadPlan) -> Measuring<'a>,
}

/// All, in the order in which they run.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    [start::ALL, create::ALL, get::ALL, patch::ALL, apply::ALL, delete::ALL, list::ALL, watch::ALL, custom::ALL, memory::ALL, idle::ALL].into_iter().flatten()
}
