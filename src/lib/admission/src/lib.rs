//! Admission: the ordered steps that every write passes.
//!
//! Must never know HTTP routing or the authorizer: rights are checked through [`Permits`]. Start
//! reading at [`chain`]; a step is a file.

mod candidate;
pub mod certificates;
pub mod chain;
mod condition;
pub mod config;
pub mod devices;
mod event_rate;
mod matching;
pub mod namespace;
mod objects;
mod plugins;
pub mod policy;
pub mod quota;
pub mod remote;
mod request;
pub mod review;
mod rule;
mod spending;
pub mod step;
mod times;
pub mod trace_stamp;
pub mod webhook;

pub use chain::Chain;
pub use event_rate::{EVENT_RATE_LIMIT, EventRateLimit};
pub use ferrokube_cel::{CheckDecision, CheckedResource, Right};
pub use plugins::{Availability, PLUGINS, Plugin};
pub use policy::{
    MutatingPolicies, PolicyInputs, PolicyReaders, PolicyStats, PolicyStatus, ValidatingPolicies,
};
pub use remote::{Mutation, RemoteStep};
pub use step::{AdmissionStep, PermitQuery, Permits};
pub use times::AdmissionTimes;
pub use webhook::{MutatingWebhooks, ValidatingWebhooks, WebhookEnvironment, WebhookStats};
