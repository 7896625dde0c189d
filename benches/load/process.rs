//! Servers started for the run, each in its own directory, some with an etcd of their own.

use anyhow::{Context, ensure};
use ferrokube_etcd::testing::EtcdProcess;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

fn all_roles() -> String {
    "all-in-one".to_owned()
}

/// A binary to start.
#[derive(Clone)]
pub(crate) struct Binary {
    /// Name in the report.
    pub(crate) name: String,
    path: PathBuf,
    /// Subcommand.
    role: String,
    /// Flags in addition to those for directory and port.
    flags: Vec<String>,
    /// The etcd that is started for each server; `None`: its state is in its directory.
    etcd: Option<PathBuf>,
}

impl Binary {
    /// `[NAME=]PATH [ROLE] [FLAG...]`; the name defaults to the file name.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut words = text.split_whitespace();
        let first = words.next().context("empty argument")?;
        let (name, path) =
            first.split_once('=').map_or((None, first), |(name, path)| (Some(name), path));
        let file = Path::new(path).file_name().context("not a file")?;
        let name = name.map_or_else(|| file.to_string_lossy().into_owned(), str::to_owned);
        let mut words = words.map(str::to_owned).peekable();
        let role = words.next_if(|word| !word.starts_with('-')).unwrap_or_else(all_roles);
        Ok(Self { name, path: path.into(), role, flags: words.collect(), etcd: None })
    }

    /// The same with its state in an etcd of this executable.
    pub(crate) fn on_etcd(&self, executable: &Path) -> Self {
        Self {
            name: format!("{}-etcd", self.name),
            etcd: Some(executable.to_owned()),
            ..self.clone()
        }
    }

    /// The same with one more flag.
    pub(crate) fn with_flag(&self, flag: &str) -> Self {
        let flags = self.flags.iter().cloned().chain([flag.to_owned()]).collect();
        Self { flags, ..self.clone() }
    }

    /// The release build.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn ours() -> anyhow::Result<Self> {
        let path = ferrokube_benches::built_binary()?;
        let (name, role) = ("ferrokube".to_owned(), all_roles());
        Ok(Self { name, path, role, flags: Vec::new(), etcd: None })
    }
}

/// A server process in its own directory.
pub(crate) struct OwnServer {
    /// The running executable.
    pub(crate) binary: Arc<Binary>,
    process: Child,
    /// Goes on while the server is restarted.
    etcd: Option<EtcdProcess>,
    directory: tempfile::TempDir,
    /// Time from spawning to the ready line.
    pub(crate) ready: Duration,
}

impl OwnServer {
    /// Starts a server in an empty directory and waits until it is ready.
    pub(crate) async fn start(binary: Arc<Binary>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let etcd = binary
            .etcd
            .as_deref()
            .map(|executable| EtcdProcess::start(executable, &directory.path().join("etcd")));
        Self::start_in(binary, directory, etcd).await
    }

    async fn start_in(
        binary: Arc<Binary>,
        directory: tempfile::TempDir,
        etcd: Option<EtcdProcess>,
    ) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let mut process = Command::new(&binary.path)
            .args([&binary.role, "--secure-port", "0", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(&binary.flags)
            .args(etcd.as_ref().map(|etcd| format!("--etcd-servers={}", etcd.url())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.path.display()))?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line())
            .await
            .context("not ready in 60 s")??
            .context("the server exited")?;
        ensure!(line.starts_with("ready in "), "unexpected line {line:?}");
        Ok(Self { binary, process, etcd, directory, ready: begun.elapsed() })
    }

    pub(crate) fn has_etcd(&self) -> bool {
        self.etcd.is_some()
    }

    /// Administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("data/admin.kubeconfig")
    }

    /// Process id.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.process.id().context("it ended")
    }

    /// Terminates the server and restarts it on its data.
    pub(crate) async fn restart(mut self) -> anyhow::Result<Self> {
        let pid = Pid::from_raw(i32::try_from(self.pid()?)?).context("no process")?;
        kill_process(pid, Signal::TERM)?;
        let status = tokio::time::timeout(Duration::from_secs(60), self.process.wait())
            .await
            .context("still running after SIGTERM")??;
        ensure!(status.success(), "exited with {status}");
        Self::start_in(self.binary, self.directory, self.etcd).await
    }

    /// Terminates the server.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        Ok(())
    }
}
