//! The kubelet against a runtime in memory.

mod config;
mod logs;
mod node;
mod pods;
mod probes;
