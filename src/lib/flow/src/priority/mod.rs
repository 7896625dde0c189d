//! API priority and fairness: which requests are worked on, and which wait.
//!
//! Every request is assigned to a flow of a priority level by the FlowSchemas (`matching`). A
//! level has a number of seats, adjusted to demand (`allocation`, `levels`); when they are
//! taken, requests wait in queues that are served fairly (`level`). kube-apiserver's rules, but:
//!
//! - A flow gets at most its share of a level's seats, no more than half, unless it leaves as many
//!   free as it then holds, so that newcomers find seats.
//! - Service accounts of a namespace other than kube-system are one flow.
//! - The total number of waiting requests is bounded.
//! - Seats are held while a request is worked on, not while it waits for its client or a webhook.
//!   A write holds none for the events that it causes: they are made once for all watchers.
//!
//! Without such objects, or if they are turned off, there is a level for reads and one for writes.

mod allocation;
mod config;
mod dump;
mod hand;
mod level;
mod levels;
mod matching;
mod retry_after;
mod stats;

pub use config::{
    Discipline, Distinguisher, FlowConfig, FlowRule, FlowSubject, LevelConfig, PathRule,
    ResourceRule, SchemaConfig,
};
pub use level::{DEMAND_BOUNDS, REQUEST_BOUNDS, SEAT_BOUNDS, SeatGrant, Utilization};
pub use levels::{Assignment, FlowRequest, Levels};
pub use matching::{FlowAction, FlowResource};
pub use stats::{
    BUCKETS, CountHistogram, FlowFigures, FlowHistogram, LENGTH_BOUNDS, LevelFigures,
    RatioHistogram, VirtualTime, WORK_BOUNDS,
};
