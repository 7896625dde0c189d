//! Test support: a real etcd process.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Fails tests instead of skipping them when etcd is missing.
const MUST: &str = "FERROKUBE_MUST_ETCD";
/// Path of the executable to test with, instead of those of [`INSTALL`].
const CHOSEN: &str = "FERROKUBE_ETCD";
/// Installs them once, below `target/etcd`, and prints a line per version: version, space, path.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/install-etcd");

/// An etcd with one member on loopback, killed on drop.
#[derive(Debug)]
pub struct EtcdProcess {
    executable: PathBuf,
    directory: PathBuf,
    ports: [u16; 2],
    child: Option<Child>,
}

impl EtcdProcess {
    /// The executables to test with, an old and a new version. Empty, with a message, if they
    /// cannot be installed.
    ///
    /// # Panics
    /// If they cannot be installed and `FERROKUBE_MUST_ETCD` is set.
    pub fn executables() -> Vec<PathBuf> {
        if let Some(chosen) = std::env::var_os(CHOSEN) {
            return vec![chosen.into()];
        }
        let ran = Command::new(INSTALL).stdin(Stdio::null()).output();
        match ran.map_err(|error| error.to_string()) {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(_, path)| path.into())
                .collect(),
            failed => {
                let why = failed.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
                assert!(std::env::var_os(MUST).is_none(), "etcd cannot be installed: {why:?}");
                eprintln!("skipped: etcd cannot be installed: {why:?}");
                Vec::new()
            }
        }
    }

    /// Starts an etcd with its data in a directory. It answers a little later.
    pub fn start(executable: &Path, directory: &Path) -> Self {
        let listeners = [0, 0].map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap());
        let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
        let directory = directory.to_owned();
        let mut process = Self { executable: executable.to_owned(), directory, ports, child: None };
        process.restart();
        process
    }

    /// URL of its client port, also across restarts.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Starts it again, on the same data and ports.
    pub fn restart(&mut self) {
        self.kill();
        let peer = format!("http://127.0.0.1:{}", self.ports[1]);
        let log = std::fs::File::create(self.directory.with_extension("log")).unwrap();
        let flag = |name: &str, value: &str| format!("--{name}={value}");
        let child = Command::new(&self.executable)
            .arg(flag("data-dir", self.directory.to_str().unwrap()))
            .arg(flag("listen-client-urls", &self.url()))
            .arg(flag("advertise-client-urls", &self.url()))
            .arg(flag("listen-peer-urls", &peer))
            .arg(flag("initial-advertise-peer-urls", &peer))
            .arg(flag("initial-cluster", &format!("default={peer}")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Removes its data; to be called when it does not run.
    pub fn forget(&self) {
        assert!(self.child.is_none(), "it runs");
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
