//! Hosts in network namespaces, which a test cuts off from each other.
//!
//! What is lost is lost on the way: neither end notices, as in a partition. The packets of one host
//! to another then have the hardware address of no host, so one direction can be lost alone.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// Hardware address of no host.
const NO_HOST: &str = "02:00:00:00:00:01";

/// Hosts on one bridge, each in a network namespace of its own, and one in which the test reaches
/// them. The namespaces end with the last process in them.
#[derive(Debug)]
pub struct TestHosts {
    own: NetworkNamespace,
    hosts: Vec<NetworkNamespace>,
    lost: Mutex<Vec<LostPackets>>,
}

/// Packets from one host to another.
#[derive(Clone, Copy, Debug)]
struct LostPackets {
    from: usize,
    to: usize,
}

impl TestHosts {
    /// # Errors
    /// Namespaces cannot be made: that needs root and iproute2.
    pub fn new(count: usize) -> Result<Self, String> {
        let own = NetworkNamespace::new()?;
        own.run(|| {
            ip("link add hub type bridge")?;
            ip("address add 10.83.0.1/24 dev hub")?;
            ip("link set hub up")
        })?;
        let new_host = |number: usize| -> Result<NetworkNamespace, String> {
            let host = NetworkNamespace::new()?;
            own.run(|| {
                let pid = host.holder.id();
                ip(&format!("link add host{number} type veth peer name eth0 netns {pid}"))?;
                ip(&format!("link set host{number} master hub up"))
            })?;
            host.run(|| {
                ip(&format!("address add {}/24 dev eth0", address(number)))?;
                ip("link set eth0 up")
            })?;
            Ok(host)
        };
        let hosts = (0..count).map(new_host).collect::<Result<_, String>>()?;
        Ok(Self { own, hosts, lost: Mutex::default() })
    }

    /// The host's only address, on the bridge of all hosts.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        assert!(host < self.hosts.len(), "there is no host {host}");
        address(host)
    }

    /// Runs something where all hosts are reached, with the threads and processes that it starts.
    ///
    /// # Panics
    /// If it does.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.own.run(body)
    }

    /// Runs something on a host, with the threads and processes that it starts.
    ///
    /// # Panics
    /// If it does.
    pub fn run_on<T: Send>(&self, host: usize, body: impl FnOnce() -> T + Send) -> T {
        self.hosts[host].run(body)
    }

    /// From now on, what a host sends to another is lost.
    ///
    /// # Panics
    /// If the network is no longer there.
    pub fn lose(&self, from: usize, to: usize) {
        let place = format!("{} lladdr {NO_HOST} dev eth0 nud permanent", self.address(to));
        self.run_on(from, || ip(&format!("neighbour replace {place}"))).expect("a network");
        self.lost.lock().expect("no panic").push(LostPackets { from, to });
    }

    /// From now on, what two hosts send each other is lost.
    ///
    /// # Panics
    /// See [`Self::lose`].
    pub fn cut(&self, one: usize, other: usize) {
        self.lose(one, other);
        self.lose(other, one);
    }

    /// Everything arrives again.
    ///
    /// # Panics
    /// See [`Self::lose`].
    pub fn heal(&self) {
        for LostPackets { from, to } in self.lost.lock().expect("no panic").drain(..) {
            let place = format!("{} dev eth0", address(to));
            self.run_on(from, || ip(&format!("neighbour del {place}"))).expect("a network");
        }
    }
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 83, 0, u8::try_from(host + 2).expect("few hosts"))
}

/// A namespace, kept by a process that ends with this one.
#[derive(Debug)]
struct NetworkNamespace {
    holder: Child,
}

impl NetworkNamespace {
    fn new() -> Result<Self, String> {
        let script = "ip link set lo up && echo && exec cat";
        let holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut namespace = Self { holder: holder.map_err(|error| error.to_string())? };
        let output = namespace.holder.stdout.as_mut().expect("piped");
        if output.read_exact(&mut [0]).is_ok() {
            return Ok(namespace);
        }
        let mut why = String::new();
        let errors = namespace.holder.stderr.as_mut().expect("piped");
        errors.read_to_string(&mut why).map_err(|error| error.to_string())?;
        Err(why)
    }

    /// On a thread of its own, which never leaves the namespace.
    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let enter = || {
            let namespace = File::open(path).expect("a namespace");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root enters a namespace");
            body()
        };
        std::thread::scope(|scope| {
            let ended = scope.spawn(enter).join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = ran.map_err(|error| format!("ip: {error}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {why}")) }
}
