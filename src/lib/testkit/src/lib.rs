//! For tests: a real-process cluster, an HTTP client for it, kubectl, waiting on conditions.
//!
//! Must never be used by what is shipped. Start reading at [`cluster`].

pub mod client;
pub mod cluster;
pub mod kubectl;
pub mod raw;
pub mod wait;

pub use client::{ApiResponse, Client, WatchLines};
pub use cluster::{Cluster, Launch};
pub use kubectl::{Kubectl, KubectlOutput, kubectls, newest_kubectl};
pub use raw::{RawStream, raw};
pub use wait::{BOUND, wait_until};

/// Writes a file that only its owner may read, as the server demands of secrets.
///
/// # Panics
/// When it exists or cannot be written.
pub fn write_secret(path: &std::path::Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(path).expect("a new file");
    file.write_all(text.as_bytes()).expect("it can be written");
}
