//! Actions of probes and hooks: a command in the container, a request to it, or a sleep.

use crate::node::PodNode;
use ferrokube_client::probe::{ProbeRequest, ProbeResponse, probe};
use ferrokube_cri::{CallCode, ExecSyncRequest, ServiceHealth, check_health};
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::time::Duration;
use tokio::net::TcpStream;

/// Max bytes of a command's output shown in an event.
const MAX_OUTPUT: usize = 1024;
/// Time for the runtime to stop a command that exceeded its timeout.
const EXEC_SLACK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct ActedContainer {
    /// The runtime's id.
    pub(crate) id: String,
    pub(crate) container: Container,
    /// The pod's address, for actions without a host.
    pub(crate) ip: String,
}

/// A one-time action in a container.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ContainerAction<'a> {
    Exec(&'a ExecAction),
    Http(&'a HTTPGetAction),
    /// Like `Http`, but any status succeeds: kubelet's rule for hooks.
    Request(&'a HTTPGetAction),
    Tcp(&'a TCPSocketAction),
    Grpc(&'a GRPCAction),
    /// Seconds.
    Sleep(i64),
}

/// Why an action did not succeed, worded as by kubelet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActionError {
    /// The container's answer, or that there was none in time.
    #[error("{0}")]
    Failed(String),
    /// It was not tried, which says nothing of the container: the runtime is down, or a port has no
    /// such name.
    #[error("{0}")]
    Untried(String),
}

impl<'a> ContainerAction<'a> {
    pub(crate) fn of_probe(probe: &'a Probe) -> Option<Self> {
        let exec = probe.exec.as_ref().map(Self::Exec);
        let http = || probe.http_get.as_ref().map(Self::Http);
        let tcp = || probe.tcp_socket.as_ref().map(Self::Tcp);
        exec.or_else(http).or_else(tcp).or_else(|| probe.grpc.as_ref().map(Self::Grpc))
    }

    pub(crate) fn of_hook(hook: &'a LifecycleHandler) -> Option<Self> {
        let exec = hook.exec.as_ref().map(Self::Exec);
        let http = || hook.http_get.as_ref().map(Self::Request);
        exec.or_else(http).or_else(|| hook.sleep.as_ref().map(|it| Self::Sleep(it.seconds)))
    }

    /// Performs the action within the timeout.
    pub(crate) async fn run(
        self,
        node: &PodNode,
        target: &ActedContainer,
        limit: Option<Duration>,
    ) -> Result<(), ActionError> {
        let late = || match self {
            Self::Exec(_) => {
                format!("command timed out: {:?} timed out after {}", self.command(), shown(limit))
            }
            Self::Grpc(_) => {
                let limit = shown(limit);
                format!(
                    "timeout: failed to connect service within {limit}: context deadline exceeded"
                )
            }
            _ => "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
                .to_owned(),
        };
        let work = async {
            match self {
                Self::Exec(action) => exec(node, target, action, limit, &late).await,
                Self::Http(action) => healthy(&http_get(target, action).await?),
                Self::Request(action) => http_get(target, action).await.map(drop),
                Self::Tcp(action) => connect(target, action).await,
                Self::Grpc(action) => health(target, action).await.map_err(ActionError::Failed),
                Self::Sleep(seconds) => {
                    tokio::time::sleep(Duration::from_secs(seconds.max(0).unsigned_abs())).await;
                    Ok(())
                }
            }
        };
        // Runtimes enforce the timeout; this is for those that do not.
        let slack = if matches!(self, Self::Exec(_)) { EXEC_SLACK } else { Duration::ZERO };
        match limit {
            None => work.await,
            Some(limit) => {
                let within = tokio::time::timeout(limit.saturating_add(slack), work).await;
                within.unwrap_or_else(|_| Err(ActionError::Failed(late())))
            }
        }
    }

    fn command(&self) -> String {
        match self {
            Self::Exec(action) => action.command.clone().unwrap_or_default().join(" "),
            _ => String::new(),
        }
    }
}

/// As Go prints whole seconds.
fn shown(limit: Option<Duration>) -> String {
    limit.map_or_else(String::new, ferrokube_images::go_duration)
}

async fn exec(
    node: &PodNode,
    target: &ActedContainer,
    action: &ExecAction,
    limit: Option<Duration>,
    late: &impl Fn() -> String,
) -> Result<(), ActionError> {
    let request = ExecSyncRequest {
        container_id: target.id.clone(),
        cmd: action.command.clone().unwrap_or_default(),
        timeout: limit.map_or(0, |limit| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)),
    };
    match node.runtime.within(None).exec_sync(request).await {
        Ok(response) if response.exit_code == 0 => Ok(()),
        Ok(response) => {
            let mut output = response.stdout;
            output.extend_from_slice(&response.stderr);
            output.truncate(MAX_OUTPUT);
            Err(ActionError::Failed(String::from_utf8_lossy(&output).into_owned()))
        }
        Err(error) if error.code == CallCode::DeadlineExceeded => Err(ActionError::Failed(late())),
        Err(error) => Err(ActionError::Untried(error.to_string())),
    }
}

async fn http_get(
    target: &ActedContainer,
    action: &HTTPGetAction,
) -> Result<ProbeResponse, ActionError> {
    let host = action.host.clone().filter(|host| !host.is_empty());
    let request = ProbeRequest {
        is_tls: action.scheme.as_deref() == Some("HTTPS"),
        host: host.unwrap_or_else(|| target.ip.clone()),
        port: port(&target.container, &action.port).map_err(ActionError::Untried)?,
        path: action.path.clone().unwrap_or_default(),
        headers: action
            .http_headers
            .iter()
            .flatten()
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect(),
    };
    let scheme = if request.is_tls { "https" } else { "http" };
    let address = address(&request.host, request.port);
    let slash = if request.path.starts_with('/') { "" } else { "/" };
    let url = format!("{scheme}://{address}{slash}{}", request.path);
    let answer = probe(request).await;
    answer.map_err(|error| ActionError::Failed(format!("Get {url:?}: {error}")))
}

fn healthy(response: &ProbeResponse) -> Result<(), ActionError> {
    if (200..400).contains(&response.status) {
        return Ok(());
    }
    let why = format!("HTTP probe failed with statuscode: {}", response.status);
    Err(ActionError::Failed(why))
}

async fn connect(target: &ActedContainer, action: &TCPSocketAction) -> Result<(), ActionError> {
    let host = action.host.clone().filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| target.ip.clone());
    let port = port(&target.container, &action.port).map_err(ActionError::Untried)?;
    let connected = TcpStream::connect((host.as_str(), port)).await;
    connected.map(drop).map_err(|error| {
        let address = address(&host, port);
        ActionError::Failed(format!("dial tcp {address}: connect: {error}"))
    })
}

async fn health(target: &ActedContainer, action: &GRPCAction) -> Result<(), String> {
    let port = u16::try_from(action.port).map_err(|_| wrong_port(&action.port.to_string()))?;
    let service = action.service.clone().unwrap_or_default();
    match check_health(&address(&target.ip, port), &service).await {
        Ok(ServiceHealth::Serving) => Ok(()),
        Ok(other) => Err(format!("service unhealthy (responded with {:?})", other.to_string())),
        Err(error) if error.code == CallCode::Unimplemented => {
            Err("this server does not implement the grpc health protocol (grpc.health.v1.Health)"
                .to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn wrong_port(port: &str) -> String {
    format!("invalid port number: {port}")
}

/// Resolves a port: a number, a number as text, or the name of a container port.
fn port(container: &Container, given: &IntOrString) -> Result<u16, String> {
    let number = match given {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.clone().find(|port| port.name.as_ref() == Some(name));
            named.map(|port| port.container_port).or_else(|| name.parse().ok())
        }
    };
    let shown = || match given {
        IntOrString::Int(number) => wrong_port(&number.to_string()),
        IntOrString::String(name) => format!("couldn't find port: {name:?} in container ports"),
    };
    number.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).ok_or_else(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_names() {
        let container = serde_json::from_value(serde_json::json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}],
        }));
        let container: Container = container.unwrap();
        let of = |given| port(&container, &given).map_err(|_| ());
        assert_eq!(of(IntOrString::Int(1)), Ok(1));
        assert_eq!(of(IntOrString::String("web".to_owned())), Ok(8080));
        assert_eq!(of(IntOrString::String("81".to_owned())), Ok(81));
        for wrong in [0, -1, 65_536] {
            assert_eq!(of(IntOrString::Int(wrong)), Err(()), "{wrong}");
        }
        assert_eq!(of(IntOrString::String("none".to_owned())), Err(()));
    }
}
