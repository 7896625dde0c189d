//! Test support: clusters of real processes, an HTTP client, kubectl, waiting for conditions.
//!
//! Must never be used by shipped code. Start at [`cluster`].

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

/// Writes a file with mode 0600, as the server requires of secrets.
///
/// # Panics
/// If it exists or cannot be written.
pub fn write_secret(path: &std::path::Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .expect("create a new file");
    file.write_all(text.as_bytes()).expect("write the file");
}
