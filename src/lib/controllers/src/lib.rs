//! The controllers of a generic control plane, one module each, and the manager that runs them.
//!
//! They reach state only through the HTTP API, each as its own service account, except for the
//! secret token controller, which acts as the manager. Must never know storage or the API server's
//! crates.
//! Start at [`manager`].

mod builder;
mod certificates;
pub mod cluster_role_aggregation;
pub mod garbage;
pub mod manager;
mod monitor;
pub mod namespace;
pub mod queue;
pub mod resource_quota;
mod rest;
pub mod root_ca;
pub mod secret_tokens;
pub mod service_account;
mod storage_migration;
pub mod token_cleaner;
mod watching;

pub use builder::{ControllerManager, ManagerBuilder};
pub use manager::{ManagerError, NAMES, check_names};
pub use secret_tokens::{Sign, Signer, TokenSubject};
