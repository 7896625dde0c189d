//! Audit: who did what, as upstream's `audit.k8s.io/v1` events, one JSON line each.
//!
//! The request chain asks [`AuditLog::plan`] once, [`AuditLog::admit`] before a write is executed,
//! and awaits [`AuditLog::record`] before it answers a write: a write that was acknowledged is in
//! the file, also after `kill -9`.
//!
//! What that promise means: the event was given to the system before the answer, so the end of the
//! process loses nothing; after a power cut the file may lack what the system had not yet written
//! to the disk (some 30 seconds at most), although the journal has the writes. A sync for each
//! group of events, as the journal does, would double the disk's work for every write; who needs
//! the log to survive power cuts as the state does, asks for it ([`Config::sync`],
//! `--audit-log-sync`).

mod event;
mod line;
mod log;
mod policy;
mod refusals;
mod reserve;
mod sink;

pub use event::{Event, Level, ObjectRef, Outcome, Payload, Stage, Stages, TraceIds};
pub use ferrokube_trace::log::Rotation;
pub use line::{MAX_URI, MAX_USER_AGENT, TRUNCATED, cut};
pub use log::{AuditError, AuditLog, Config, OnFailure, Stats};
pub use policy::{Plan, Policy, PolicyError, Subject};
pub use refusals::LEFT_OUT;
