//! Audit: who did what, as upstream's `audit.k8s.io/v1` events, one JSON line each.
//!
//! The request chain asks [`AuditLog::plan`] once, [`AuditLog::admit`] before a write is executed, and awaits [`AuditLog::record`] before it answers a write:
//! a write that was acknowledged is in the file, also after `kill -9`.

mod event;
mod line;
mod log;
mod policy;
mod rotate;

pub use event::{Event, Level, ObjectRef, Outcome, Payload, Stage, Stages, TraceIds};
pub use log::{AuditError, AuditLog, Config, OnFailure, Stats};
pub use policy::{Plan, Policy, PolicyError, Subject};
pub use rotate::Rotation;
