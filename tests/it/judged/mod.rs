//! API servers as processes under faults: what their clients saw is judged by the one history that
//! there is (`ferrokube_storage::testing::ClientRecorder`).

mod clients;
mod embedded;
mod etcd;
mod process_clock;
mod rolling;

use serde_json::Value;

/// Longest wait for a few writes: elections and restarts included, on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// A number from the environment.
fn wished(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// The revision of an object or a list.
fn revision(value: &Value) -> ferrokube_storage::Revision {
    let text = value["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    ferrokube_storage::Revision(text.parse().unwrap_or(0))
}
