//! The real kubectl, in the versions installed by `tests/install-kubectl`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Installs them once, below `target/kubectl`, and prints a line per version: version, space, path.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/install-kubectl");

/// An installed kubectl.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// Minor version, such as `1.27`.
    pub version: String,
    path: PathBuf,
}

/// Output and status of a run.
#[derive(Clone, Debug)]
pub struct KubectlOutput {
    /// Whether the exit code was 0.
    pub ok: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The oldest supported version, and one of the server's version, in this order.
///
/// # Panics
/// If they cannot be installed: a test that did not run must not pass.
pub fn kubectls() -> Vec<Kubectl> {
    let output = Command::new(INSTALL)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{INSTALL} failed to run (it needs python3): {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "kubectl cannot be installed below target/kubectl; the first run needs pip and its registry: {errors}"
    );
    let lines = String::from_utf8_lossy(&output.stdout);
    let found: Vec<_> = lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(version, path)| Kubectl { version: version.into(), path: path.into() })
        .collect();
    assert!(found.len() > 1, "{INSTALL} named less than two versions: {lines}");
    found
}

/// The newest of [`kubectls`].
///
/// # Panics
/// See [`kubectls`].
pub fn newest_kubectl() -> Kubectl {
    kubectls().pop().expect("kubectls() returns at least two")
}

impl Kubectl {
    /// A command against a cluster, with a discovery cache next to the kubeconfig.
    pub fn command(&self, kubeconfig: &Path) -> Command {
        let cache = kubeconfig.with_file_name(format!("kubectl-cache-{}", self.version));
        let mut command = Command::new(&self.path);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--cache-dir={}", cache.display()))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to completion.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run<S: AsRef<OsStr>>(&self, kubeconfig: &Path, arguments: &[S]) -> KubectlOutput {
        let output = self.command(kubeconfig).args(arguments).output().expect("start kubectl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        KubectlOutput {
            ok: output.status.success(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}
