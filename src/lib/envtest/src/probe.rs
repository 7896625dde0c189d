//! Detects what `--etcd-servers` refers to: the stand-in, an etcd, or something else.

use crate::stand_in::{DESCRIPTOR_PATH, directory_of};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time for which a server may refuse connections: starters do not wait for etcd.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval of attempts meanwhile.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit of a connection, a read or a write.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_BYTES: u64 = 64 << 10;

/// Location of an API server's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateLocation {
    /// In this folder of the stand-in.
    StandIn(PathBuf),
    /// An etcd: any `https://` URL, or a server that answers `/version` like etcd.
    Etcd,
}

/// Why the location of the state is unknown. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no URL.
    #[error("--etcd-servers is missing: it names the stand-in, or an etcd")]
    Missing,
    /// Not a URL.
    #[error("--etcd-servers {0}: not an http:// or https:// URL with a port")]
    Url(String),
    /// No response.
    #[error("--etcd-servers {url} does not answer")]
    Silent {
        /// As given.
        url: String,
        /// The last error.
        source: io::Error,
    },
    /// A stand-in whose directory we do not see: on another machine, in another container, or of
    /// another user.
    #[error(
        "--etcd-servers {0} is a stand-in whose directory is not here: start both as the same user of one machine"
    )]
    Elsewhere(String),
    /// Neither the stand-in nor etcd.
    #[error("--etcd-servers {0} is neither etcd nor ferrokube's stand-in for it")]
    Unknown(String),
}

/// Asks the first server; waits up to 20 s for it to listen. An `https://` URL is taken for etcd,
/// which its client verifies.
///
/// # Errors
/// [`ProbeError`].
pub fn locate(servers: &[String]) -> Result<StateLocation, ProbeError> {
    let url = servers.first().ok_or(ProbeError::Missing)?;
    if url.starts_with("https://") {
        return Ok(StateLocation::Etcd);
    }
    let authority = url
        .strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'))
        .filter(|authority| authority.contains(':') && !authority.contains('/'))
        .ok_or_else(|| ProbeError::Url(url.clone()))?;
    let silent = |source| ProbeError::Silent { url: url.clone(), source };
    let descriptor = get_patiently(authority).map_err(silent)?;
    if let Some(text) = descriptor.strip_prefix("200 ") {
        return match directory_of(text) {
            Some(directory) => Ok(StateLocation::StandIn(directory)),
            None => Err(ProbeError::Elsewhere(url.clone())),
        };
    }
    let version = get(authority, "/version").map_err(silent)?;
    if version.starts_with("200 ") && version.contains("\"etcdserver\"") {
        Ok(StateLocation::Etcd)
    } else {
        Err(ProbeError::Unknown(url.clone()))
    }
}

/// The descriptor, once the server listens.
fn get_patiently(authority: &str) -> io::Result<String> {
    let started = Instant::now();
    loop {
        match get(authority, DESCRIPTOR_PATH) {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && started.elapsed() < PATIENCE =>
            {
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// Status code, a space, and the body.
fn get(authority: &str, path: &str) -> io::Result<String> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, IO_TIMEOUT) {
            Ok(socket) => return get_from(socket, authority, path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn get_from(mut socket: TcpStream, authority: &str, path: &str) -> io::Result<String> {
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    socket.set_write_timeout(Some(IO_TIMEOUT))?;
    // HTTP/1.0: the response ends with the connection, and is not chunked. One write: a server that
    // answers early and closes would fail the next one.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    socket.take(RESPONSE_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let status = text.split(' ').nth(1).unwrap_or_default();
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(format!("{status} {body}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stand_in::StandIn;
    use std::net::TcpListener;

    /// Answers each connection with the next response, and returns its URL.
    fn server(responses: &[&'static str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let responses = responses.to_vec();
        std::thread::spawn(move || {
            for response in responses {
                let (mut socket, _) = listener.accept().unwrap();
                // To its end: a socket closed with bytes unread resets the connection.
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    socket.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                let _ = socket.write_all(response.as_bytes());
            }
        });
        url
    }

    #[test]
    fn etcd_is_told_from_others() {
        let missing = "HTTP/1.0 404 Not Found\r\n\r\n404 page not found";
        let etcd = server(&[missing, "HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.5.0\"}"]);
        assert_eq!(locate(&[etcd]).unwrap(), StateLocation::Etcd);
        let other = locate(&[server(&[missing, missing])]);
        assert!(matches!(other, Err(ProbeError::Unknown(_))), "{other:?}");
        let elsewhere = locate(&[server(&[
            "HTTP/1.0 200 OK\r\n\r\nferrokube stand-in for etcd, version 1\nid 1\ndirectory /nowhere\n",
        ])]);
        assert!(matches!(elsewhere, Err(ProbeError::Elsewhere(_))), "{elsewhere:?}");
        let secure = ["https://192.0.2.1:2379".to_owned()];
        assert_eq!(locate(&secure).unwrap(), StateLocation::Etcd);
        assert!(matches!(locate(&[]), Err(ProbeError::Missing)));
        for url in ["127.0.0.1:1", "http://127.0.0.1", "ftp://127.0.0.1:1"] {
            assert!(matches!(locate(&[url.to_owned()]), Err(ProbeError::Url(_))), "{url}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_stand_in_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let urls = ["http://127.0.0.1:0".to_owned()];
        let stand_in = StandIn::bind(directory.path(), &urls).await.unwrap();
        let url = format!("http://{}", stand_in.addresses().unwrap()[0]);
        let expected = StateLocation::StandIn(stand_in.directory().to_owned());
        let serving = tokio::spawn(stand_in.serve(std::future::pending()));
        let found = tokio::task::spawn_blocking(move || locate(&[url])).await.unwrap().unwrap();
        assert_eq!(found, expected);
        serving.abort();
    }
}
