//! The kubelet on a real containerd, with a registry on loopback that holds layers back.

mod engine;
mod pulls;
mod registry;
