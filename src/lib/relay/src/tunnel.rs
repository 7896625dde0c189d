//! Connections to other servers: one per request, and upgraded ones.
//!
//! The two connections are tunneled only after a 101 for the requested protocol. After any other
//! response the one to the server is closed and never reused (fault 45).

use crate::response::{DelegationError, Relay, broken_by, relayed};
use crate::{HEAD_BYTES, HEAD_FIELDS};
use ferrokube_serve::{Body, Response};
use futures::future::join;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Request, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Timeout for the response to an upgrade request.
const ANSWER: Duration = Duration::from_secs(60);

/// A connection before TLS or HTTP.
pub trait NetworkStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> NetworkStream for T {}

/// Running tunnels, which end at shutdown.
pub struct Tunnels {
    tasks: Mutex<JoinSet<()>>,
    ended: watch::Receiver<bool>,
}

impl Tunnels {
    /// `ended` is true once the server shuts down.
    pub fn new(ended: watch::Receiver<bool>) -> Self {
        Self { tasks: Mutex::default(), ended }
    }

    /// For a [`Relay`].
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Spawns a task that ends at shutdown.
    pub fn spawn(&self, tunnel: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(tunnel);
    }
}

/// Resolves when the server shuts down.
async fn shut_down(mut ended: watch::Receiver<bool>) {
    if ended.wait_for(|ended| *ended).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Takes the client's upgradable connection from a request.
pub fn take_upgrade(extensions: &mut http::Extensions) -> Option<OnUpgrade> {
    extensions.remove()
}

/// An upgrade request.
pub struct UpgradeCall {
    /// One returned by [`crate::upgrade_protocol`].
    pub protocol: &'static str,
    /// The client's connection.
    pub client: OnUpgrade,
    /// Relays the response, also if the server does not switch.
    pub relay: Relay,
    /// The request to send.
    pub request: Request<Body>,
}

/// Sends the only request of a connection.
///
/// # Errors
/// [`DelegationError::Unreachable`].
async fn send(
    connection: impl NetworkStream,
    tunnels: &Tunnels,
    mut request: Request<Body>,
) -> Result<http::Response<Incoming>, DelegationError> {
    let broken = |error: hyper::Error| DelegationError::Unreachable(broken_by(&error));
    let mut heads = http1::Builder::new();
    heads.max_buf_size(HEAD_BYTES).max_headers(HEAD_FIELDS);
    let handshake = heads.handshake(TokioIo::new(connection)).await;
    let (mut sender, connection) = handshake.map_err(broken)?;
    let ended = shut_down(tunnels.ended());
    tunnels.spawn(async move {
        tokio::select! {
            served = connection.with_upgrades() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection to another server broke");
                }
            }
            () = ended => {}
        }
    });
    to_origin(&mut request);
    sender.send_request(request).await.map_err(broken)
}

/// Relays a request over a connection of its own.
///
/// # Errors
/// [`DelegationError`].
pub async fn exchanged(
    connection: impl NetworkStream,
    tunnels: &Tunnels,
    request: Request<Body>,
    mut relay: Relay,
) -> Result<Response, DelegationError> {
    let answered = relay.unless_interrupted(send(connection, tunnels, request)).await?;
    relayed(answered, relay)
}

/// A server's response to an upgrade request.
pub enum Upgrading {
    /// It switched protocols: its connection and response.
    Switched(OnUpgrade, http::Response<()>),
    /// It responded otherwise.
    Answered(http::Response<Incoming>),
}

/// Requests an upgrade.
///
/// # Errors
/// [`DelegationError::Unreachable`].
pub async fn switch(
    connection: impl NetworkStream,
    tunnels: &Tunnels,
    protocol: &'static str,
    mut request: Request<Body>,
) -> Result<Upgrading, DelegationError> {
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    let answered = tokio::time::timeout(ANSWER, send(connection, tunnels, request)).await;
    let mut response = answered
        .map_err(|_| DelegationError::Unreachable("it did not answer in time".to_owned()))??;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Upgrading::Answered(response));
    }
    let given = response.headers().get(UPGRADE);
    if !given.is_some_and(|given| given.as_bytes().eq_ignore_ascii_case(protocol.as_bytes())) {
        let why = "it switched to another protocol";
        return Err(DelegationError::Unreachable(why.to_owned()));
    }
    let server = hyper::upgrade::on(&mut response);
    Ok(Upgrading::Switched(server, response.map(drop)))
}

/// Relays an upgrade: after a 101 bytes are copied both ways, until either side closes or the relay
/// is interrupted.
///
/// # Errors
/// [`DelegationError`].
pub async fn upgraded(
    connection: impl NetworkStream,
    tunnels: &Tunnels,
    call: UpgradeCall,
) -> Result<Response, DelegationError> {
    let UpgradeCall { protocol, client, mut relay, request } = call;
    let switched = relay.unless_interrupted(switch(connection, tunnels, protocol, request)).await?;
    let (server, response) = match switched {
        Upgrading::Switched(server, response) => (server, response),
        Upgrading::Answered(response) => {
            relay.deadline = Some(Instant::now() + ANSWER);
            return relayed(response, relay);
        }
    };
    tunnels.spawn(async move {
        tokio::select! {
            () = joined(client, server) => {}
            _ = relay.interrupted() => {}
        }
    });
    let mut out = Response::new(ferrokube_serve::empty());
    *out.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *out.headers_mut() = response.headers().clone();
    Ok(out)
}

/// Converts the request to origin form, as required on a direct connection.
fn to_origin(request: &mut Request<Body>) {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    *request.version_mut() = Version::HTTP_11;
}

/// The upgraded byte stream; `None` if the connection ended before.
pub async fn opened(upgrade: OnUpgrade) -> Option<TokioIo<Upgraded>> {
    upgrade.await.ok().map(TokioIo::new)
}

async fn joined(client: OnUpgrade, server: OnUpgrade) {
    let (Some(mut client), Some(mut server)) = join(opened(client), opened(server)).await else {
        return;
    };
    if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
        tracing::debug!(%error, "a tunnel broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_relay_that_is_interrupted_waits_for_no_upgrade() {
        let (_ended, ended) = watch::channel(false);
        let (connection, _server) = tokio::io::duplex(1 << 16);
        let deadline = Some(Instant::now() + ANSWER / 2);
        let relay =
            Relay { loan: None, deadline, ended: ended.clone(), place: None, redirects: None };
        let mut request = Request::new(ferrokube_serve::empty());
        *request.uri_mut() = Uri::from_static("http://a.example.com/");
        let client = hyper::upgrade::on(Request::new(()));
        let call = UpgradeCall { protocol: "SPDY/3.1", client, relay, request };
        let (began, tunnels) = (Instant::now(), Tunnels::new(ended));
        assert!(upgraded(connection, &tunnels, call).await.is_err());
        assert!(began.elapsed() < ANSWER);
    }
}
