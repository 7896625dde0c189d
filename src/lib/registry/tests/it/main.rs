//! The pipeline on the memory engine, with the bundled kinds and a recording admission.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod conversion;
mod create;
mod delete;
mod durable;
mod exact;
mod faults;
mod lists;
mod patch;
mod races;
mod remote;
mod shared;
mod stored_forms;
mod support;
mod topics;
mod update;
mod watch;
