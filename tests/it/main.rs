//! The integration test binary: checks of the source tree, and real processes with real clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod admission_webhooks;
mod aggregation;
mod apiserver;
mod audit;
mod canary;
mod cli;
mod controllers;
mod custom_controller;
mod faults;
mod foreign_ids;
mod full_disk;
mod garbage;
mod hostile;
mod kill9;
mod kubectl;
mod language;
mod layering;
mod lifecycle;
mod log_file;
mod log_tracking;
mod map;
mod objects;
mod security;
mod sizes;
mod starved;
mod tokens;
mod trace_page;
mod trace_review;
mod trace_webhook;
mod trails;
mod wrong_flags;

/// The binary under test.
const FERROKUBE: &str = env!("CARGO_BIN_EXE_ferrokube");
