//! Where spans go: the forms that upstream's TracingConfiguration takes, and OTLP over HTTP besides.

use std::path::PathBuf;
use std::str::FromStr;

/// A collector that is reached without TLS, as upstream reaches it: meant for an agent on the same machine or network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// OTLP over gRPC: `host:port`, `dns:///host:port`.
    Grpc {
        /// Host and port.
        authority: String,
    },
    /// OTLP over gRPC on a socket of this machine: `unix:///path`.
    GrpcUnix {
        /// The socket.
        path: PathBuf,
    },
    /// OTLP over HTTP (protobuf): `http://host:port`, perhaps with a path.
    Http {
        /// Host and port.
        authority: String,
        /// `/v1/traces` unless given.
        path: String,
    },
}

/// A text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The scheme is not one of those above.
    #[error("endpoint {0:?}: the scheme must be none, dns, unix or http (spans go unencrypted to an agent nearby, which may encrypt)")]
    Scheme(String),
    /// Host or port are missing or wrong.
    #[error("endpoint {0:?} has no usable host and port")]
    Authority(String),
}

/// Of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;
/// Of OTLP over HTTP.
const HTTP_PORT: u16 = 4318;

impl Default for Endpoint {
    fn default() -> Self {
        Self::Grpc { authority: format!("localhost:{GRPC_PORT}") }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.strip_prefix("unix:") {
                Some(path) => unix(text, path),
                None => Ok(Self::Grpc { authority: authority(text, text.strip_prefix("dns:").unwrap_or(text), GRPC_PORT)? }),
            };
        };
        match scheme {
            // What stands before the path is the name server to ask, which the system decides here.
            "dns" => Ok(Self::Grpc { authority: authority(text, rest.rsplit('/').next().unwrap_or(rest), GRPC_PORT)? }),
            "unix" => unix(text, rest),
            "http" => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let path = if path.is_empty() { "/v1/traces".to_owned() } else { format!("/{path}") };
                let is_clean = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
                if !is_clean {
                    return Err(EndpointError::Authority(text.to_owned()));
                }
                Ok(Self::Http { authority: authority(text, host, HTTP_PORT)?, path })
            }
            _ => Err(EndpointError::Scheme(text.to_owned())),
        }
    }
}

fn unix(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    if path.starts_with('/') { Ok(Endpoint::GrpcUnix { path: path.into() }) } else { Err(EndpointError::Authority(text.to_owned())) }
}

/// Host and port, the port added where it is missing.
fn authority(text: &str, given: &str, port: u16) -> Result<String, EndpointError> {
    let wrong = || EndpointError::Authority(text.to_owned());
    let after_host = given.rfind(']').map_or(given, |end| &given[end..]);
    let whole = if after_host.contains(':') { given.to_owned() } else { format!("{given}:{port}") };
    let parsed: http::uri::Authority = whole.parse().map_err(|_| wrong())?;
    let is_plain = !parsed.host().is_empty() && parsed.port_u16().is_some_and(|port| port != 0) && !whole.contains('@');
    if is_plain { Ok(whole) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_upstreams_forms_and_http() {
        let grpc = |authority: &str| Ok(Endpoint::Grpc { authority: authority.to_owned() });
        let http = |authority: &str, path: &str| Ok(Endpoint::Http { authority: authority.to_owned(), path: path.to_owned() });
        for (text, want) in [
            ("", grpc("localhost:4317")),
            ("localhost", grpc("localhost:4317")),
            ("10.0.0.1:99", grpc("10.0.0.1:99")),
            ("[::1]:99", grpc("[::1]:99")),
            ("dns:///collector:4317", grpc("collector:4317")),
            ("dns://8.8.8.8/collector", grpc("collector:4317")),
            ("unix:///run/otel.sock", Ok(Endpoint::GrpcUnix { path: "/run/otel.sock".into() })),
            ("unix:/run/otel.sock", Ok(Endpoint::GrpcUnix { path: "/run/otel.sock".into() })),
            ("http://127.0.0.1:6006", http("127.0.0.1:6006", "/v1/traces")),
            ("http://[::1]/x/y", http("[::1]:4318", "/x/y")),
        ] {
            assert_eq!(text.parse::<Endpoint>(), want, "{text}");
        }
        for text in ["https://x:1", "unix-abstract://x", "tcp://x:1"] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Scheme(text.to_owned())));
        }
        for text in ["a b:1", "x:0", "x:99999", ":1", "http://", "http://u@x:1", "http://x:1/a b", "unix://relative"] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Authority(text.to_owned())), "{text}");
        }
    }
}
