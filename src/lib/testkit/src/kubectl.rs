//! The real kubectl, in the versions that `tests/install-kubectl` installs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Installs them below `target/kubectl`, once, and prints a line for each: version, space, path.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/install-kubectl");

/// One kubectl.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// Such as `1.27`.
    pub version: String,
    path: PathBuf,
}

/// What it printed, and whether it liked it.
#[derive(Clone, Debug)]
pub struct KubectlOutput {
    /// Exit code 0.
    pub ok: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The oldest version that is supported and one of the server's own, in this order.
///
/// # Panics
/// When they cannot be installed: a test that did not run must not pass.
pub fn kubectls() -> Vec<Kubectl> {
    let output = Command::new(INSTALL).stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{INSTALL} cannot be run (it needs python3): {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl cannot be installed below target/kubectl; the first run needs pip and its registry: {errors}");
    let lines = String::from_utf8_lossy(&output.stdout);
    let found: Vec<_> =
        lines.lines().filter_map(|line| line.split_once(' ')).map(|(version, path)| Kubectl { version: version.into(), path: path.into() }).collect();
    assert!(found.len() > 1, "{INSTALL} named less than two versions: {lines}");
    found
}

/// The newest of [`kubectls`].
///
/// # Panics
/// As [`kubectls`].
pub fn newest_kubectl() -> Kubectl {
    kubectls().pop().expect("there is at least one")
}

impl Kubectl {
    /// A command against a cluster, with a cache of its own next to the kubeconfig.
    pub fn command(&self, kubeconfig: &Path) -> Command {
        let cache = kubeconfig.with_file_name(format!("kubectl-cache-{}", self.version));
        let mut command = Command::new(&self.path);
        command.arg(format!("--kubeconfig={}", kubeconfig.display())).arg(format!("--cache-dir={}", cache.display())).stdin(Stdio::null());
        command
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it cannot be run at all.
    pub fn run<S: AsRef<OsStr>>(&self, kubeconfig: &Path, arguments: &[S]) -> KubectlOutput {
        let output = self.command(kubeconfig).args(arguments).output().expect("kubectl can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        KubectlOutput { ok: output.status.success(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}
