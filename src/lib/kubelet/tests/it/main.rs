//! The kubelet against a runtime in memory.

mod config;
mod node;
mod pods;
mod probes;
