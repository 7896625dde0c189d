//! The real kubectl, in every version that is installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where versions are installed side by side.
const SIDE_BY_SIDE: &str = "/usr/lib/google-cloud-sdk/bin";

/// One kubectl.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// `1.27`; `default` if its name does not tell.
    pub version: String,
    path: PathBuf,
}

/// What it printed, and whether it liked it.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit code 0.
    pub ok: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The versions that are installed, oldest first; or the one in the search path. At least one.
///
/// # Panics
/// When there is none: a test that did not run must not pass.
pub fn kubectls() -> Vec<Kubectl> {
    let mut found: Vec<(u32, Kubectl)> = Vec::new();
    for entry in std::fs::read_dir(SIDE_BY_SIDE).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(minor) = name.strip_prefix("kubectl.1.").and_then(|minor| minor.parse().ok()) {
            found.push((minor, Kubectl { version: format!("1.{minor}"), path: entry.path() }));
        }
    }
    found.sort_by_key(|(minor, _)| *minor);
    let mut found: Vec<_> = found.into_iter().map(|(_, kubectl)| kubectl).collect();
    if found.is_empty() {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        found.extend(
            std::env::split_paths(&paths).map(|path| path.join("kubectl")).find(|path| path.is_file()).map(|path| Kubectl { version: "default".into(), path }),
        );
    }
    assert!(
        !found.is_empty(),
        "this test needs kubectl 1.27 or newer in PATH or {SIDE_BY_SIDE}: fetch one from https://kubernetes.io/releases/download/ (Debian's is too old)"
    );
    found
}

/// The newest that is installed.
///
/// # Panics
/// As [`kubectls`].
pub fn newest_kubectl() -> Kubectl {
    kubectls().pop().expect("there is at least one")
}

impl Kubectl {
    /// A command against a cluster, with a cache of its own beside the kubeconfig.
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
    pub fn run<S: AsRef<OsStr>>(&self, kubeconfig: &Path, arguments: &[S]) -> Ran {
        let output = self.command(kubeconfig).args(arguments).output().expect("kubectl can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { ok: output.status.success(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}
