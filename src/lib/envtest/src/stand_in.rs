//! The stand-in for etcd in tests: names the directory of the state of one API server.
//!
//! It is not an etcd: it has no keys, no watches and no gRPC. It answers health checks like etcd,
//! and `GET /ferrokube` with the directory for the API server's state. That directory outlives the
//! API server and the stand-in; it belongs to the caller that chose `--data-dir`.

use ferrokube_pki::files::{self, FileError, FileMode};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Path of the descriptor; etcd answers it with 404.
pub const DESCRIPTOR_PATH: &str = "/ferrokube";
/// First line of a descriptor.
pub const DESCRIPTOR_MARK: &str = "ferrokube stand-in for etcd, version 1";
/// Folder in the data directory.
const FOLDER: &str = "ferrokube";
/// File in it that proves that caller and stand-in see the same directory.
const ID_FILE: &str = "stand-in.id";

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 8 << 10;
/// Time limit of a connection, which carries one request.
const EXCHANGE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, such as without descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const WHAT_IT_IS_NOT: &str = "ferrokube's stand-in for etcd in tests: it names a directory for the state, and has no etcd API\n";

/// Why the stand-in cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    /// A URL that it cannot listen on.
    #[error("cannot listen on {url}: {why}")]
    Url {
        /// As given.
        url: String,
        /// The error.
        why: &'static str,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// As given by the flags.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The directory cannot be used.
    #[error("cannot use the data directory")]
    Directory(#[from] FileError),
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
}

/// A stand-in that listens.
pub struct StandIn {
    listeners: Vec<TcpListener>,
    descriptor: Arc<str>,
    directory: PathBuf,
}

impl StandIn {
    /// Creates the directory and binds. To be called within a runtime.
    ///
    /// # Errors
    /// [`StandInError`].
    pub async fn bind(data_dir: &Path, client_urls: &[String]) -> Result<Self, StandInError> {
        let addresses: Vec<SocketAddr> =
            client_urls.iter().map(|url| listen_address(url)).collect::<Result<_, _>>()?;
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let bound = TcpListener::bind(address).await;
            listeners.push(bound.map_err(|source| StandInError::Bind { address, source })?);
        }
        let directory =
            std::path::absolute(data_dir.join(FOLDER)).unwrap_or_else(|_| data_dir.join(FOLDER));
        files::private_directory(&directory)?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|_| StandInError::Random)?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        files::write_volatile(&directory.join(ID_FILE), id.as_bytes(), FileMode::Private)?;
        let descriptor =
            format!("{DESCRIPTOR_MARK}\nid {id}\ndirectory {}\n", directory.display()).into();
        Ok(Self { listeners, descriptor, directory })
    }

    /// The folder of the API server's state.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Listening addresses, in the order of the URLs.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves until `end` resolves.
    pub async fn serve(self, end: impl Future<Output = ()>) {
        let mut tasks = tokio::task::JoinSet::new();
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        for listener in self.listeners {
            tasks.spawn(accept(listener, Arc::clone(&self.descriptor), Arc::clone(&free)));
        }
        // Dropping the set ends its tasks.
        end.await;
    }
}

async fn accept(listener: TcpListener, descriptor: Arc<str>, free: Arc<Semaphore>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::debug!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let descriptor = Arc::clone(&descriptor);
        connections.spawn(async move {
            let _permit = permit;
            // A client that vanishes or is slow loses its connection.
            let _ = tokio::time::timeout(EXCHANGE, exchange(socket, &descriptor)).await;
        });
    }
}

/// One request and its response; the connection is then closed.
async fn exchange(mut socket: TcpStream, descriptor: &str) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES || socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let response = respond(&head, descriptor);
    socket.write_all(response.as_bytes()).await?;
    socket.shutdown().await
}

fn respond(head: &[u8], descriptor: &str) -> String {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/health") => {
            ("200 OK", "application/json", "{\"health\":\"true\",\"reason\":\"\"}")
        }
        ("GET" | "HEAD", "/livez" | "/readyz") => ("200 OK", "text/plain", "ok\n"),
        ("GET" | "HEAD", "/version") => (
            "200 OK",
            "application/json",
            "{\"etcdserver\":\"0.0.0\",\"etcdcluster\":\"0.0.0\",\"standIn\":\"ferrokube\"}",
        ),
        ("GET" | "HEAD", DESCRIPTOR_PATH) => ("200 OK", "text/plain", descriptor),
        _ => ("404 Not Found", "text/plain", WHAT_IT_IS_NOT),
    };
    let sent = if method == "HEAD" { "" } else { body };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{sent}",
        body.len()
    )
}

/// The address of `http://IP:PORT`. Only loopback ones, as there are no credentials: of all
/// addresses, which some starters name, it is the loopback one.
fn listen_address(url: &str) -> Result<SocketAddr, StandInError> {
    let refused = |why| StandInError::Url { url: url.to_owned(), why };
    let authority = url.strip_prefix("http://").ok_or(refused("only http:// is supported"))?;
    let authority = authority.trim_end_matches('/').replace("localhost:", "127.0.0.1:");
    let mut address: SocketAddr =
        authority.parse().map_err(|_| refused("not an address and a port"))?;
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    if address.ip().is_loopback() { Ok(address) } else { Err(refused("not a loopback address")) }
}

/// The directory that a descriptor names, if the caller sees the same one.
pub(crate) fn directory_of(descriptor: &str) -> Option<PathBuf> {
    let mut lines = descriptor.lines();
    if lines.next()? != DESCRIPTOR_MARK {
        return None;
    }
    let id = lines.next()?.strip_prefix("id ")?;
    let directory = PathBuf::from(lines.next()?.strip_prefix("directory ")?);
    let known = files::read_private(&directory.join(ID_FILE)).ok().flatten()?;
    (directory.is_absolute() && known == id.as_bytes()).then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_probes_and_is_no_etcd() {
        let status = |head: &str| {
            let response = respond(head.as_bytes(), "descriptor");
            response.split("\r\n").next().unwrap().to_owned()
        };
        for path in ["/health", "/health?serializable=true", "/livez", "/readyz", "/version"] {
            assert_eq!(status(&format!("GET {path} HTTP/1.1\r\n\r\n")), "HTTP/1.1 200 OK");
        }
        for head in
            ["POST /v3/kv/range HTTP/1.1", "PRI * HTTP/2.0", "GET /v2/keys HTTP/1.1", "", "\0\r\n"]
        {
            assert_eq!(status(&format!("{head}\r\n\r\n")), "HTTP/1.1 404 Not Found", "{head:?}");
        }
        let response = respond(b"GET /ferrokube HTTP/1.1\r\n\r\n", "descriptor");
        assert!(response.ends_with("\r\n\r\ndescriptor"), "{response}");
        assert!(!respond(b"HEAD /health HTTP/1.1\r\n\r\n", "").contains("reason"));
    }

    #[test]
    fn it_listens_on_loopback_only() {
        for url in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1/"] {
            assert_eq!(listen_address(url).unwrap().port(), 1);
        }
        for url in ["http://0.0.0.0:1", "http://[::]:1"] {
            assert!(listen_address(url).unwrap().ip().is_loopback(), "{url}");
        }
        for url in ["https://127.0.0.1:1", "http://192.0.2.1:1", "http://127.0.0.1", "x", ""] {
            listen_address(url).unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_directory_is_believed_only_if_it_has_the_id() {
        let directory = tempfile::tempdir().unwrap();
        let urls = ["http://127.0.0.1:0".to_owned()];
        let stand_in = StandIn::bind(directory.path(), &urls).await.unwrap();
        assert_eq!(directory_of(&stand_in.descriptor).unwrap(), stand_in.directory());
        let other = stand_in.descriptor.replacen("id ", "id 0", 1);
        assert_eq!(directory_of(&other), None);
        assert_eq!(directory_of("ferrokube"), None);
        // The next one has an id of its own.
        let next = StandIn::bind(directory.path(), &urls).await.unwrap();
        assert_eq!(directory_of(&stand_in.descriptor), None);
        assert!(directory_of(&next.descriptor).is_some());
    }
}
