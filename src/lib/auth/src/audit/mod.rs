//! The audit log: kube-apiserver's `audit.k8s.io/v1` events, one JSON line each.
//!
//! The filter chain calls [`AuditLog::plan`] once, [`AuditLog::admit`] before executing a write,
//! and awaits [`AuditLog::record`] before responding to a write: the event of an acknowledged write
//! is in the file, also after `kill -9`.
//!
//! The event was handed to the operating system before the response, so a crash of the process
//! loses nothing. Power loss may lose what the system had not yet flushed (some 30 seconds at
//! most), although the journal has the writes. Syncing each group of events as the journal does
//! would double the disk's work per write; [`AuditConfig::sync`] (`--audit-log-sync`)
//! turns that on.

mod event;
mod line;
mod log;
mod missing;
mod output;
mod policy;
mod refusals;
mod reserve;

pub use event::{
    AuditEvent, AuditLevel, AuditObject, AuditStage, Outcome, Payload, StageSet, TraceIds,
};
pub use ferrokube_trace::log::Rotation;
pub use line::{MAX_URI, MAX_USER_AGENT, TRUNCATED, truncate_utf8};
pub use log::{AuditConfig, AuditError, AuditLog, AuditStats, OnFailure};
pub use missing::MISSING;
pub use policy::{AuditPlan, AuditPolicy, AuditRequest, PolicyError};
pub use refusals::LEFT_OUT;
