//! The kubelet against a runtime in memory.

mod config;
mod pods;
