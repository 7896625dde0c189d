//! `/version`.

use ferrokube_apimachinery::document::{Document, json};

/// The Kubernetes minor version whose API this is.
pub(crate) const MINOR: &str = "36";
/// The oldest minor that it can be told to emulate the compatibility of: kube-apiserver's default.
const MIN_COMPATIBILITY_MINOR: &str = "35";

pub(crate) fn document() -> Document {
    let package = env!("CARGO_PKG_VERSION");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let value = json!({
        "major": "1",
        "minor": MINOR,
        "emulationMajor": "1",
        "emulationMinor": MINOR,
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": MIN_COMPATIBILITY_MINOR,
        "gitVersion": format!("v1.{MINOR}.0+ferrokube-{package}"),
        "gitCommit": option_env!("FERROKUBE_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": option_env!("FERROKUBE_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{arch}", std::env::consts::OS),
    });
    Document::from_value(value).expect("an object literal")
}
