//! The kubelet on a real containerd, with a registry on loopback that holds layers back.

mod all_in_one;
mod csi;
mod engine;
mod idle;
mod kills;
mod logs;
mod node;
mod pods;
mod pulls;
mod registry;
mod secrets;
mod serving;
mod static_pods;
mod streams;

pub(crate) use engine::Containerd;
