//! Exec, attach and port-forward, which the runtime serves at its streaming URL.

use super::KubeletHandler;
use super::failure::ServerFailure;
use crate::observe::observe;
use ferrokube_cri::{AttachRequest, CriError, ExecRequest, PortForwardRequest};
use ferrokube_relay::{
    Relay, UpgradeCall, client_headers, take_upgrade, upgrade_protocol, upgraded,
};
use ferrokube_serve::{Request, Response};
use http::Uri;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Timeout for connecting to the runtime's streaming server.
const CONNECT: Duration = Duration::from_secs(5);

/// The requested streams of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

/// A kind of stream that the runtime offers.
pub(super) enum StreamKind {
    Exec { container: String, command: Vec<String>, streams: RequestedStreams },
    Attach { container: String, streams: RequestedStreams },
    Ports(Vec<i32>),
}

impl StreamKind {
    pub(super) fn exec(container: &str, query: &[(String, String)]) -> Result<Self, ServerFailure> {
        let commands = query.iter().filter(|(name, _)| name == "command");
        let command: Vec<String> = commands.map(|(_, value)| value.clone()).collect();
        let streams = RequestedStreams::read(query)?;
        Ok(Self::Exec { container: container.to_owned(), command, streams })
    }

    pub(super) fn attach(
        container: &str,
        query: &[(String, String)],
    ) -> Result<Self, ServerFailure> {
        let streams = RequestedStreams::read(query)?;
        Ok(Self::Attach { container: container.to_owned(), streams })
    }

    pub(super) fn ports(query: &[(String, String)]) -> Result<Self, ServerFailure> {
        let given = query.iter().filter(|(name, _)| name == "port" || name == "ports");
        let ports = given.flat_map(|(_, value)| value.split(',')).map(|port| {
            let number = port.parse::<u16>().ok().filter(|port| *port > 0).map(i32::from);
            number.ok_or_else(|| ServerFailure::BadRequest(format!("invalid port {port:?}")))
        });
        Ok(Self::Ports(ports.collect::<Result<_, _>>()?))
    }
}

/// The pod in a request's path.
pub(super) struct PodPath<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Any pod of that name if `None`.
    pub(super) uid: Option<&'a str>,
}

impl RequestedStreams {
    fn read(query: &[(String, String)]) -> Result<Self, ServerFailure> {
        let has = |wanted: &str| query.iter().any(|(name, value)| name == wanted && value == "1");
        let (stdin, stdout, tty) = (has("input"), has("output"), has("tty"));
        // A terminal merges stderr into stdout.
        let stderr = has("error") && !tty;
        if !(stdin || stdout || stderr) {
            let why = "you must specify at least 1 of stdin, stdout, stderr";
            return Err(ServerFailure::BadRequest(why.to_owned()));
        }
        Ok(Self { stdin, stdout, stderr, tty })
    }
}

impl KubeletHandler {
    /// Connects the client to the runtime's stream.
    pub(super) async fn stream(
        &self,
        mut request: Request,
        pod: PodPath<'_>,
        kind: &StreamKind,
    ) -> Result<Response, ServerFailure> {
        let protocol = upgrade_protocol(request.headers());
        let client = take_upgrade(request.extensions_mut());
        let (Some(protocol), Some(client)) = (protocol, client) else {
            return Err(ServerFailure::BadRequest("Upgrade request required".to_owned()));
        };
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_| ServerFailure::Full)?;
        let pod = self.served.find(pod.namespace, pod.name, pod.uid);
        let pod = pod.ok_or_else(|| ServerFailure::NotFound("pod does not exist".to_owned()))?;
        let url = self.streaming_url(&pod, kind).await?;
        let (uri, socket) = connect(&url).await?;
        let mut runtime = http::Request::new(ferrokube_serve::empty());
        *runtime.method_mut() = request.method().clone();
        *runtime.uri_mut() = uri;
        *runtime.headers_mut() = client_headers(request.headers(), None);
        let relay = Relay {
            loan: None,
            deadline: None,
            ended: self.tunnels.ended(),
            redirects: None,
            place: Some(Box::new(place)),
        };
        let call = UpgradeCall { protocol, client, relay, request: runtime };
        Ok(upgraded(socket, &self.tunnels, call).await?)
    }

    async fn streaming_url(&self, pod: &Pod, kind: &StreamKind) -> Result<String, ServerFailure> {
        let runtime = &self.served.node.runtime;
        let failed = |error: CriError| ServerFailure::Runtime(error.to_string());
        match kind {
            StreamKind::Exec { container, command, streams } => {
                let report = self.served.running(pod, container).await?;
                let RequestedStreams { stdin, stdout, stderr, tty } = *streams;
                let (container_id, cmd) = (report.id, command.clone());
                let exec = ExecRequest { container_id, cmd, tty, stdin, stdout, stderr };
                runtime.exec(exec).await.map(|response| response.url).map_err(failed)
            }
            StreamKind::Attach { container, streams } => {
                let report = self.served.running(pod, container).await?;
                let tty = has_terminal(pod, container);
                let RequestedStreams { stdin, stdout, stderr, .. } = *streams;
                let (container_id, stderr) = (report.id, stderr && !tty);
                let attach = AttachRequest { container_id, stdin, tty, stdout, stderr };
                runtime.attach(attach).await.map(|response| response.url).map_err(failed)
            }
            StreamKind::Ports(ports) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let seen = observe(&self.served.node, uid).await.map_err(failed)?;
                let sandbox = seen.sandboxes.into_iter().find(|sandbox| sandbox.is_ready);
                let sandbox = sandbox.ok_or_else(|| {
                    ServerFailure::Runtime(format!("not found sandbox for pod {uid:?}"))
                })?;
                let forward =
                    PortForwardRequest { pod_sandbox_id: sandbox.id, port: ports.clone() };
                runtime.port_forward(forward).await.map(|response| response.url).map_err(failed)
            }
        }
    }
}

/// A connection to the runtime's streaming server.
async fn connect(url: &str) -> Result<(Uri, TcpStream), ServerFailure> {
    let failed = |why: &'static str| {
        tracing::warn!(url, why, "cannot use the runtime's streaming server");
        ServerFailure::Failed(why)
    };
    let uri: Uri = url.parse().map_err(|_| failed("the runtime's streaming URL is malformed"))?;
    if uri.scheme_str() != Some("http") {
        return Err(failed("the runtime's streaming server must speak plain HTTP on loopback"));
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(80);
    let connecting = TcpStream::connect((host, port));
    let socket = tokio::time::timeout(CONNECT, connecting).await;
    let socket = socket.ok().and_then(Result::ok);
    let socket = socket.ok_or_else(|| failed("the runtime's streaming server is not reachable"))?;
    let _ = socket.set_nodelay(true);
    Ok((uri, socket))
}

/// Whether a container was created with a terminal.
fn has_terminal(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let inits = spec.init_containers.iter().flatten().chain(&spec.containers);
    let all = inits.map(|one| (&one.name, one.tty));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|one| (&one.name, one.tty));
    all.chain(ephemeral).any(|(name, tty)| name == container && tty == Some(true))
}
