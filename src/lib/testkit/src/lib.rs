//! For tests: a real-process cluster, an HTTP client for it, kubectl, waiting on conditions.
//!
//! Must never be used by what is shipped. Start reading at [`cluster`].

pub mod client;
pub mod cluster;
pub mod kubectl;
pub mod raw;
pub mod wait;

pub use client::{Answer, Client, Lines};
pub use cluster::{Cluster, Launch};
pub use kubectl::{Kubectl, Ran, kubectls, newest_kubectl};
pub use raw::{RawStream, raw};
pub use wait::{BOUND, wait_until};
