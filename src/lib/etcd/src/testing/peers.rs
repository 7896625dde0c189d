//! The network between the members of a cluster, from which one of them can be cut off.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Names the member that calls, in each request.
const FROM: &str = "x-server-from:";
/// Longest head of a request.
const MAX_HEAD: usize = 64 << 10;
/// Bytes that a connection keeps while it is cut; then its sender waits.
const MAX_KEPT: usize = 16 << 20;

/// The member that is cut off: its number, and its id as etcd writes it.
type CutOff = Option<(usize, String)>;

/// A proxy in front of each member's peer port. Ends when dropped.
pub struct PeerNetwork {
    addresses: Vec<SocketAddr>,
    targets: Vec<u16>,
    cut_off: Arc<watch::Sender<CutOff>>,
    _tasks: JoinSet<()>,
}

impl PeerNetwork {
    /// A network of some members, which [`super::EtcdProcess::cluster_on`] starts.
    pub async fn new(members: usize) -> Self {
        let cut_off = Arc::new(watch::Sender::new(None));
        let (mut addresses, mut targets, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
        for to in 0..members {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = SocketAddr::from(([127, 0, 0, 1], super::free_port()));
            addresses.push(listener.local_addr().unwrap());
            targets.push(target.port());
            tasks.spawn(accept(listener, target, to, Arc::clone(&cut_off)));
        }
        Self { addresses, targets, cut_off, _tasks: tasks }
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.targets.len()
    }

    /// URL at which the others reach a member.
    pub(super) fn url(&self, member: usize) -> String {
        format!("http://{}", self.addresses[member])
    }

    /// Port at which a member listens.
    pub(super) fn port(&self, member: usize) -> u16 {
        self.targets[member]
    }

    /// Keeps what a member and the others send each other; its clients still reach it.
    pub fn cut_off(&self, member: usize, id: u64) {
        self.cut_off.send_replace(Some((member, format!("{id:x}"))));
    }

    /// Delivers what was kept, and all that comes.
    pub fn heal(&self) {
        self.cut_off.send_replace(None);
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    to: usize,
    cut_off: Arc<watch::Sender<CutOff>>,
) {
    let mut links = JoinSet::new();
    loop {
        let Ok((caller, _)) = listener.accept().await else { return };
        links.spawn(link(caller, target, to, Arc::clone(&cut_off)));
        while links.try_join_next().is_some() {}
    }
}

/// One connection to a member.
async fn link(
    mut caller: TcpStream,
    target: SocketAddr,
    to: usize,
    cut_off: Arc<watch::Sender<CutOff>>,
) {
    let Some(head) = head(&mut caller).await else { return };
    let from = sender(&head);
    let Ok(member) = TcpStream::connect(target).await else { return };
    let ((from_caller, to_caller), (from_member, to_member)) =
        (caller.into_split(), member.into_split());
    let is_cut = |cut_off: &CutOff| {
        cut_off.as_ref().is_some_and(|(member, id)| *member == to || *id == from)
    };
    tokio::join!(
        pump(from_caller, to_member, head, cut_off.subscribe(), is_cut),
        pump(from_member, to_caller, Vec::new(), cut_off.subscribe(), is_cut),
    );
}

/// Up to the end of a request's head, and what came with it; `None`: the caller is gone.
async fn head(caller: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD {
        if caller.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// Id of the member that sends a request.
fn sender(head: &[u8]) -> String {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value = head.lines().find_map(|line| line.strip_prefix(FROM));
    value.unwrap_or_default().trim().to_owned()
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut kept: Vec<u8>,
    mut cut_off: watch::Receiver<CutOff>,
    is_cut: impl Fn(&CutOff) -> bool,
) {
    let (mut buffer, mut is_open) = (vec![0; 64 << 10], true);
    loop {
        let is_cut = is_cut(&cut_off.borrow_and_update());
        if !is_cut && (to.write_all(&std::mem::take(&mut kept)).await.is_err() || !is_open) {
            return;
        }
        tokio::select! {
            read = from.read(&mut buffer), if is_open && kept.len() < MAX_KEPT => match read {
                Ok(0) | Err(_) => is_open = false,
                Ok(length) => kept.extend_from_slice(&buffer[..length]),
            },
            changed = cut_off.changed() => if changed.is_err() { return },
        }
    }
}
