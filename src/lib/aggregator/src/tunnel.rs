//! Upgraded connections (websockets, SPDY) to aggregated servers.
//!
//! Each has a connection of its own, made for it. Only after a 101 for the requested protocol are
//! the two connections joined; after any other response the one to the server is closed, never
//! used again (fault 45).

use crate::backend::{DelegationError, Relay, relayed, unreachable_by};
use crate::backend::{HEAD_BYTES, HEAD_FIELDS};
use crate::dial::Dialer;
use ferrokube_flow::Loan;
use ferrokube_serve::{Body, Response};
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderValue, Request, StatusCode, Uri, Version};
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Max wait for a server's answer to the upgrade.
const ANSWER: Duration = Duration::from_secs(60);

/// Running tunnels; they end with the server.
pub(crate) struct Tunnels {
    tasks: Mutex<JoinSet<()>>,
    ended: watch::Receiver<bool>,
}

impl Tunnels {
    pub(crate) fn new(ended: watch::Receiver<bool>) -> Self {
        Self { tasks: Mutex::default(), ended }
    }

    fn spawn(&self, tunnel: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(tunnel);
    }
}

/// A request for an upgrade.
pub(crate) struct UpgradeCall {
    pub(crate) protocol: &'static str,
    pub(crate) client: OnUpgrade,
    pub(crate) loan: Loan,
    pub(crate) request: Request<Body>,
}

pub(crate) async fn forward(
    dialer: &Dialer,
    tunnels: &Tunnels,
    call: UpgradeCall,
) -> Result<Response, DelegationError> {
    let UpgradeCall { protocol, client, loan, mut request } = call;
    let connection =
        dialer.dial().await.map_err(|error| DelegationError::Unreachable(error.to_string()))?;
    let mut heads = http1::Builder::new();
    heads.max_buf_size(HEAD_BYTES).max_headers(HEAD_FIELDS);
    let (mut sender, connection) =
        heads.handshake(connection).await.map_err(|error| unreachable_by(&error))?;
    tunnels.spawn(async move { drop(connection.with_upgrades().await) });
    prepare(&mut request, protocol);
    let answered = tokio::time::timeout(ANSWER, sender.send_request(request)).await;
    let mut response = answered
        .map_err(|_| DelegationError::Unreachable("it did not answer in time".to_owned()))?
        .map_err(|error| unreachable_by(&error))?;
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS
        && response
            .headers()
            .get(UPGRADE)
            .is_some_and(|given| given.as_bytes().eq_ignore_ascii_case(protocol.as_bytes()));
    let mut relay = Relay { loan, deadline: None, ended: tunnels.ended.clone() };
    if !switches {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = "it switched to another protocol";
            return Err(DelegationError::Unreachable(why.to_owned()));
        }
        relay.deadline = Some(tokio::time::Instant::now() + ANSWER);
        return relayed(response, relay);
    }
    let server = hyper::upgrade::on(&mut response);
    tunnels.spawn(async move {
        tokio::select! {
            () = join(client, server) => {}
            _ = relay.interrupted() => {}
        }
    });
    let mut out = Response::new(ferrokube_serve::empty());
    *out.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *out.headers_mut() = response.headers().clone();
    Ok(out)
}

/// An origin-form request, as a connection of its own needs it.
fn prepare(request: &mut Request<Body>, protocol: &'static str) {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
}

async fn join(client: OnUpgrade, server: OnUpgrade) {
    let (Ok(client), Ok(server)) = futures::future::join(client, server).await else { return };
    let [mut client, mut server]: [TokioIo<Upgraded>; 2] = [client, server].map(TokioIo::new);
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
