//! Test support: real etcd processes.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Fails tests instead of skipping them when etcd is missing.
const MUST: &str = "FERROKUBE_MUST_ETCD";
/// Path of the executable to test with, instead of those of [`INSTALL`].
const CHOSEN: &str = "FERROKUBE_ETCD";
/// Installs them once, below `target/etcd`, and prints a line per version: version, space, path.
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/install-etcd");

/// A member of an etcd, killed on drop.
#[derive(Debug)]
pub struct EtcdProcess {
    executable: PathBuf,
    directory: PathBuf,
    place: MemberPlace,
    /// `http` or `https`.
    scheme: &'static str,
    flags: Vec<String>,
    child: Option<Child>,
}

/// Address of a member.
#[derive(Clone, Copy, Debug)]
struct MemberPlace {
    address: Ipv4Addr,
    /// For clients, for members.
    ports: [u16; 2],
}

impl MemberPlace {
    fn on_loopback() -> Self {
        Self { address: Ipv4Addr::LOCALHOST, ports: [(); 2].map(|()| free_port()) }
    }

    /// URL at which the other members reach it.
    fn peer_url(self) -> String {
        format!("http://{}:{}", self.address, self.ports[1])
    }
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

    /// Starts an etcd of one member with its data in a directory. It answers a little later.
    pub fn start(executable: &Path, directory: &Path) -> Self {
        Self::start_with(executable, directory, "http", &[])
    }

    /// [`Self::start`] with more flags; `scheme` is that of its client port.
    pub fn start_with(
        executable: &Path,
        directory: &Path,
        scheme: &'static str,
        flags: &[String],
    ) -> Self {
        let place = MemberPlace::on_loopback();
        let members = format!("m0={}", place.peer_url());
        let mut own = vec![flag("name", "m0"), flag("initial-cluster", &members)];
        own.extend_from_slice(flags);
        Self::spawned(executable, directory.to_owned(), place, scheme, own)
    }

    /// Starts a cluster, with the members' data below a directory.
    pub fn cluster(executable: &Path, directory: &Path, members: usize) -> Vec<Self> {
        let places: Vec<_> = (0..members).map(|_| MemberPlace::on_loopback()).collect();
        let member = |index| Self::member(executable, directory, &places, index);
        (0..members).map(member).collect()
    }

    /// Starts a member of a cluster whose members have an address each. To be called on its host.
    pub fn on_host(
        executable: &Path,
        directory: &Path,
        addresses: &[Ipv4Addr],
        index: usize,
    ) -> Self {
        let place = |address: &Ipv4Addr| MemberPlace { address: *address, ports: [2379, 2380] };
        let places: Vec<_> = addresses.iter().map(place).collect();
        Self::member(executable, directory, &places, index)
    }

    fn member(executable: &Path, directory: &Path, places: &[MemberPlace], index: usize) -> Self {
        let all = places.iter().enumerate();
        let all: Vec<String> =
            all.map(|(index, place)| format!("m{index}={}", place.peer_url())).collect();
        let name = format!("m{index}");
        // Elections take a second, whatever else the machine does.
        let flags = vec![
            flag("name", &name),
            flag("initial-cluster", &all.join(",")),
            flag("heartbeat-interval", "100"),
            flag("election-timeout", "1000"),
        ];
        Self::spawned(executable, directory.join(name), places[index], "http", flags)
    }

    fn spawned(
        executable: &Path,
        directory: PathBuf,
        place: MemberPlace,
        scheme: &'static str,
        flags: Vec<String>,
    ) -> Self {
        let executable = executable.to_owned();
        let mut process = Self { executable, directory, place, scheme, flags, child: None };
        process.restart();
        process
    }

    /// URL of its client port, also across restarts.
    pub fn url(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.place.address, self.place.ports[0])
    }

    /// Starts it again, on the same data and ports. To be called on its host.
    pub fn restart(&mut self) {
        self.kill();
        let log = std::fs::File::create(self.directory.with_extension("log")).unwrap();
        let child = Command::new(&self.executable)
            .arg(flag("data-dir", self.directory.to_str().unwrap()))
            .arg(flag("listen-client-urls", &self.url()))
            .arg(flag("advertise-client-urls", &self.url()))
            .arg(flag("listen-peer-urls", &self.place.peer_url()))
            .arg(flag("initial-advertise-peer-urls", &self.place.peer_url()))
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Sends SIGSTOP, or SIGCONT.
    pub fn pause(&self, is_paused: bool) {
        let signal = if is_paused { "-STOP" } else { "-CONT" };
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// HTTP gateway of the member, also across restarts.
    pub fn gateway(&self) -> EtcdGateway {
        EtcdGateway((self.place.address, self.place.ports[0]).into())
    }

    /// See [`EtcdGateway::post`].
    pub fn post(&self, path: &str, body: &str) -> String {
        self.gateway().post(path, body)
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

/// The HTTP gateway of a member.
#[derive(Clone, Copy, Debug)]
pub struct EtcdGateway(SocketAddr);

impl EtcdGateway {
    /// Calls it (`/v3/kv/put`, ...) until it replies. Returns the body.
    ///
    /// # Panics
    /// Without a reply in three minutes.
    pub fn post(self, path: &str, body: &str) -> String {
        for _ in 0..1800 {
            match self.try_post(path, body) {
                Some(reply) => return reply,
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        panic!("{path}: no reply");
    }

    /// Calls it once. `None`: no reply.
    pub fn try_post(self, path: &str, body: &str) -> Option<String> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let call = || {
            let mut stream = TcpStream::connect(self.0)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.write_all(request.as_bytes())?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply).map(|_| reply)
        };
        let reply = call().ok().filter(|reply| reply.starts_with("HTTP/1.1 "))?;
        Some(reply.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// The member's id and that of its leader (0: none); `None`: it does not say.
    pub fn ids(self) -> Option<(u64, u64)> {
        let status = self.try_post("/v3/maintenance/status", "{}")?;
        let number = |name: &str| {
            let rest = status.split_once(&format!("\"{name}\":\""))?.1;
            rest.split_once('"')?.0.parse().ok()
        };
        Some((number("member_id")?, number("leader").unwrap_or(0)))
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port for a process that may be restarted on the same one. The system gives it to no connection
/// that is opened meanwhile: otherwise a client connecting to a stopped process could get that very
/// port for its own end, and connect to itself.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let given: u32 = range.split_whitespace().next().unwrap().parse().unwrap();
    // Another process begins elsewhere.
    let (first, begin) = (10_000, std::process::id().wrapping_mul(97));
    let ports = given.checked_sub(first).filter(|ports| *ports > 100).expect("ports are left");
    loop {
        let at = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % ports;
        let port = u16::try_from(first + at).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn flag(name: &str, value: &str) -> String {
    format!("--{name}={value}")
}
