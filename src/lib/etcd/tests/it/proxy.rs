//! A TCP proxy in front of an etcd: a member's connection that hangs, and delivers later.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a proxy does with bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forwarding {
    Now,
    /// Keeps them, in both directions, as a paused process does.
    Held,
    /// Takes no more, and delivers what was kept up to [`Proxy::cut`].
    Rest,
    /// Ends all connections, and every new one.
    Severed,
}

/// The proxy; ends when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    mode: Arc<watch::Sender<Forwarding>>,
    /// What arrives from now on is lost.
    is_cut: Arc<watch::Sender<bool>>,
    /// What clients sent while it was kept.
    requests: Arc<watch::Sender<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn new(etcd: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = etcd.trim_start_matches("http://").to_owned();
        let mode = Arc::new(watch::Sender::new(Forwarding::Now));
        let is_cut = Arc::new(watch::Sender::new(false));
        let requests = Arc::new(watch::Sender::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let (modes, cuts) = (Arc::clone(&mode), Arc::clone(&is_cut));
        let seen = Arc::clone(&requests);
        let modes_of_all = mode.subscribe();
        tasks.spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                if *modes_of_all.borrow() == Forwarding::Severed {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&target).await else { continue };
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                let commands = || PumpCommands { mode: modes.subscribe(), cut: cuts.subscribe() };
                tokio::spawn(pump(from_client, to_server, commands(), Some(Arc::clone(&seen))));
                tokio::spawn(pump(from_server, to_client, commands(), None));
            }
        });
        Self { address, mode, is_cut, requests, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Keeps all bytes.
    pub(crate) fn hold(&self) {
        self.mode.send_replace(Forwarding::Held);
    }

    /// Waits until bytes that a client sent are kept.
    pub(crate) async fn keeps(&self, part: &[u8]) {
        let mut requests = self.requests.subscribe();
        let has = |all: &Vec<u8>| all.windows(part.len()).any(|bytes| bytes == part);
        requests.wait_for(has).await.unwrap();
    }

    /// Loses bytes that arrive from now on, such as those that cancel a call.
    pub(crate) fn cut(&self) {
        self.is_cut.send_replace(true);
    }

    /// Ends all connections, and every new one.
    pub(crate) fn sever(&self) {
        self.mode.send_replace(Forwarding::Severed);
    }

    /// Delivers what was kept, and forwards again.
    pub(crate) fn heal(&self) {
        self.mode.send_replace(Forwarding::Now);
    }

    /// Delivers what was kept.
    pub(crate) fn deliver(&self) {
        self.mode.send_replace(Forwarding::Rest);
    }
}

struct PumpCommands {
    mode: watch::Receiver<Forwarding>,
    cut: watch::Receiver<bool>,
}

/// `seen`: gets what is kept.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    commands: PumpCommands,
    seen: Option<Arc<watch::Sender<Vec<u8>>>>,
) {
    let PumpCommands { mut mode, cut } = commands;
    let (mut kept, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let mut is_open = true;
    loop {
        let now = *mode.borrow_and_update();
        if now == Forwarding::Severed {
            return;
        }
        if now != Forwarding::Held && !kept.is_empty() {
            let _ = to.write_all(&std::mem::take(&mut kept)).await;
        }
        if now == Forwarding::Now && !is_open {
            return;
        }
        tokio::select! {
            read = from.read(&mut buffer), if is_open => match read {
                Ok(0) | Err(_) => {
                    // A paused process sees no end.
                    is_open = false;
                }
                Ok(_) if *cut.borrow() => {}
                Ok(length) => {
                    kept.extend_from_slice(&buffer[..length]);
                    let is_held = *mode.borrow() == Forwarding::Held;
                    if let Some(seen) = seen.as_ref().filter(|_| is_held) {
                        seen.send_modify(|all| all.extend_from_slice(&buffer[..length]));
                    }
                }
            },
            changed = mode.changed() => if changed.is_err() { return },
        }
    }
}
