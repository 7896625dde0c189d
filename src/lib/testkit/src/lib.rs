//! Test support: clusters of real processes, an HTTP client, kubectl, waiting for conditions.
//!
//! Must never be used by shipped code. Start at [`cluster`].

use anyhow::Context;

pub mod client;
pub mod cluster;
pub mod csi;
pub mod hosts;
pub mod kubectl;
pub mod mounts;
pub mod raw;
pub mod wait;

pub use client::{ApiResponse, Client, WatchLines};
pub use cluster::{Cluster, Launch};
pub use csi::{CsiCall, CsiDriverConfig, CsiTestDriver};
pub use hosts::TestHosts;
pub use kubectl::{Kubectl, KubectlOutput, kubectls, newest_kubectl};
pub use mounts::{MountGuard, is_mount_point};
pub use raw::{RawStream, raw};
pub use wait::{BOUND, wait_until};

/// The values of a file of JSON lines that may be being written: without a last line that is not
/// whole yet.
///
/// # Panics
/// If it cannot be read, or a whole line is no JSON.
pub fn json_lines(path: &std::path::Path) -> Vec<serde_json::Value> {
    let text = std::fs::read(path).expect("a file");
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let text = std::str::from_utf8(&text[..whole]).expect("UTF-8");
    let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text.lines().map(value).collect()
}

/// The executable to measure: `FERROKUBE_BINARY`, or else what `cargo build --release` put next to
/// the running bench.
///
/// # Errors
/// If there is none.
pub fn built_binary() -> anyhow::Result<std::path::PathBuf> {
    if let Some(given) = std::env::var_os("FERROKUBE_BINARY") {
        return Ok(given.into());
    }
    let bench = std::env::current_exe()?;
    let built = bench.ancestors().nth(2).map(|profile| profile.join("ferrokube"));
    built
        .filter(|binary| binary.is_file())
        .with_context(|| format!("no ferrokube next to {}: cargo build --release", bench.display()))
}

/// Writes an executable script. By a process of its own: this one may start others at any time,
/// which have the file open for a moment, and what is open for writing cannot be executed.
///
/// # Panics
/// If it cannot be written.
pub fn write_script(path: &std::path::Path, text: &str) {
    let script = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
    let written =
        std::process::Command::new("sh").args(["-c", script]).arg(path).arg(text).status();
    assert!(written.expect("a shell").success(), "cannot write {}", path.display());
}

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
