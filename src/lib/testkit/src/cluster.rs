//! Runs the executable as a real process, with a directory and a port of its own.

use crate::client::Client;
use crate::wait::{BOUND, wait_until};
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Configures a cluster to start.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    role: String,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// `all-in-one` of an executable; tests pass `env!("CARGO_BIN_EXE_ferrokube")`.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            role: "all-in-one".into(),
            flags: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets the role; empty: the executable's name is the role.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.role = role.into();
        self
    }

    /// Adds a flag.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts the process in a new directory and waits until it is ready.
    ///
    /// # Errors
    /// It exited, or was not ready in time; the message has its log.
    pub fn start(self) -> anyhow::Result<Cluster> {
        let mut cluster = self.begin()?;
        cluster.wait_ready()?;
        Ok(cluster)
    }

    /// Starts the process in a new directory, and does not wait.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn begin(self) -> anyhow::Result<Cluster> {
        let directory = TempDir::with_prefix("ferrokube-").context("cannot create a directory")?;
        let mut cluster = Cluster {
            launch: self,
            directory,
            process: None,
            starting: None,
            url: String::new(),
            ready_after: Duration::ZERO,
        };
        cluster.begin()?;
        Ok(cluster)
    }

    /// The command, for tests of starts that fail.
    pub fn command(&self, data_dir: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        if !self.role.is_empty() {
            command.arg(&self.role);
        }
        command.arg("--data-dir").arg(data_dir).args(["--secure-port", "0"]).args(&self.flags);
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null());
        command
    }
}

/// A running process, killed on drop.
#[derive(Debug)]
pub struct Cluster {
    launch: Launch,
    directory: TempDir,
    process: Option<Child>,
    /// Until it is ready.
    starting: Option<Starting>,
    url: String,
    ready_after: Duration,
}

/// A process that is not ready yet.
#[derive(Debug)]
struct Starting {
    started: Instant,
    /// Lines of its standard output.
    lines: Mutex<Receiver<String>>,
}

impl Cluster {
    /// `all-in-one` with its defaults.
    ///
    /// # Errors
    /// See [`Launch::start`].
    pub fn start(binary: impl Into<PathBuf>) -> anyhow::Result<Self> {
        Launch::new(binary).start()
    }

    /// `https://127.0.0.1:port`. The port changes with a restart.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("admin.kubeconfig")
    }

    /// Time from spawning the process to its ready line.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// The process's log, across restarts.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the log has these words: lines are written after what they tell of.
    ///
    /// # Panics
    /// If it never has, with the log.
    pub async fn wait_for_log(&self, words: &str) {
        wait_until(words, BOUND, || async {
            let log = self.log();
            if log.contains(words) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// A client with the administrator's certificate.
    ///
    /// # Errors
    /// The kubeconfig is unusable.
    pub fn admin(&self) -> anyhow::Result<Client> {
        Client::from_kubeconfig(&self.kubeconfig())
    }

    /// A client without credentials.
    ///
    /// # Errors
    /// The CA is unusable.
    pub fn anonymous(&self) -> anyhow::Result<Client> {
        Client::new(&self.url, &std::fs::read(self.data_dir().join("pki/ca.crt"))?, None, None)
    }

    /// A client with a bearer token.
    ///
    /// # Errors
    /// The CA is unusable.
    pub fn with_token(&self, token: &str) -> anyhow::Result<Client> {
        Client::new(
            &self.url,
            &std::fs::read(self.data_dir().join("pki/ca.crt"))?,
            None,
            Some(token),
        )
    }

    /// Sends SIGKILL and waits for the exit.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Whether SIGKILL ended the process, even if sent by itself.
    pub fn is_killed(&mut self) -> bool {
        let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
        ended.is_some_and(|status| status.signal() == Some(9))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process is not running.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("not running")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for the process to exit.
    ///
    /// # Errors
    /// It did not exit in time, or is not running.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + BOUND;
        let process = self.process.as_mut().context("not running")?;
        loop {
            if let Some(status) = process.try_wait()? {
                self.process = None;
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "still running after {BOUND:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends SIGTERM and waits for the exit.
    ///
    /// # Errors
    /// See [`Self::wait`].
    pub fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    /// Starts the process (again) on the same data and waits until it is ready.
    ///
    /// # Errors
    /// See [`Launch::start`].
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.begin()?;
        self.wait_ready()
    }

    /// Starts the process (again) on the same data, and does not wait.
    ///
    /// # Errors
    /// The operating system refused.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        let started = Instant::now();
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut process = self
            .launch
            .command(&self.data_dir())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start the process")?;
        let output = process.stdout.take().context("no standard output")?;
        self.process = Some(process);
        self.starting = Some(Starting { started, lines: Mutex::new(lines(output)) });
        Ok(())
    }

    /// Waits until a process that [`Self::begin`] started is ready.
    ///
    /// # Errors
    /// See [`Launch::start`].
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let Starting { started, lines } = self.starting.take().context("nothing was started")?;
        let lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
        loop {
            match lines.recv_timeout(BOUND.saturating_sub(started.elapsed())) {
                Ok(line) if line.starts_with("ready in ") => {
                    self.ready_after = started.elapsed();
                    self.url = line
                        .split_whitespace()
                        .find(|word| word.starts_with("https://"))
                        .context("no URL in the ready line")?
                        .to_owned();
                    return Ok(());
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("not ready within {BOUND:?}; its log:\n{}", self.log())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("exited before it was ready; its log:\n{}", self.log())
                }
            }
        }
    }

    /// Restarts with other flags.
    ///
    /// # Errors
    /// See [`Launch::start`].
    pub fn restart_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.launch.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.restart()
    }

    /// Sets the program for the next start, such as that of another version.
    pub fn set_binary(&mut self, binary: impl Into<PathBuf>) {
        self.launch.binary = binary.into();
    }

    /// Sets an environment variable for the next start.
    pub fn set_environment(&mut self, name: &str, value: &str) {
        self.launch.environment.retain(|(known, _)| known != name);
        self.launch.environment.push((name.into(), value.into()));
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Drains the output, so that the process never blocks on it.
fn lines(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}
