//! The integration test binary: checks of the source tree, and real processes with real clients.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod admission_webhooks;
mod aggregation;
mod apiserver;
mod audit;
mod backup;
mod canary;
mod central_features;
mod cli;
mod clients;
mod controllers;
mod coordinated_election;
mod custom_controller;
mod deploy;
mod envtest;
mod etcd;
mod faults;
mod feature_admin;
mod feature_crashes;
mod feature_metrics;
mod features;
mod features_page;
mod foreign_ids;
mod full_disk;
mod garbage;
mod hostile;
mod image;
mod kill9;
mod kubectl;
mod language;
mod layering;
mod library;
mod lifecycle;
mod log_file;
mod log_tracking;
mod map;
mod objects;
mod outside_features;
mod previous_version;
mod profile;
mod security;
mod shapes;
mod sizes;
mod starved;
mod takeover;
mod tokens;
mod trace_page;
mod trace_review;
mod trace_webhook;
mod trails;
mod upgrades;
mod workloads;
mod wrong_flags;

/// The binary under test.
const FERROKUBE: &str = env!("CARGO_BIN_EXE_ferrokube");
