//! Collector endpoints, in the forms of kube-apiserver's TracingConfiguration, and OTLP over HTTP.

use std::str::FromStr;

/// A collector, reached without TLS as in kube-apiserver: an agent on the same machine or network,
/// which may encrypt. Contains the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// OTLP over gRPC: `host:port`, `dns:///host:port` or `unix:///path`.
    Grpc(String),
    /// OTLP over HTTP (protobuf): `http://host:port`, with or without a path.
    Http(String),
}

/// Why an endpoint is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// An unknown scheme.
    #[error(
        "endpoint {0:?}: the scheme must be none, dns, unix or http (spans go unencrypted to an agent nearby, which may encrypt)"
    )]
    Scheme(String),
    /// Host or port are missing or invalid.
    #[error("endpoint {0:?} has no usable host and port")]
    Authority(String),
    /// An unsupported `OTEL_EXPORTER_OTLP_PROTOCOL`.
    #[error("protocol {0:?} of OTLP: must be grpc or http/protobuf")]
    Protocol(String),
}

/// Default port of OTLP over gRPC.
const GRPC_PORT: u16 = 4317;
/// Default port of OTLP over HTTP.
const HTTP_PORT: u16 = 4318;

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let grpc =
            |given: &str| Ok(Self::Grpc(format!("http://{}", authority(text, given, GRPC_PORT)?)));
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.strip_prefix("unix:") {
                Some(path) => unix(text, path),
                None => grpc(text.strip_prefix("dns:").unwrap_or(text)),
            };
        };
        match scheme {
            // The authority names a DNS server; the system's resolver is used instead.
            "dns" => grpc(rest.rsplit('/').next().unwrap_or(rest)),
            "unix" => unix(text, rest),
            "http" => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let path = if path.is_empty() { "v1/traces" } else { path };
                let is_clean = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
                if !is_clean {
                    return Err(EndpointError::Authority(text.to_owned()));
                }
                Ok(Self::Http(format!("http://{}/{path}", authority(text, host, HTTP_PORT)?)))
            }
            _ => Err(EndpointError::Scheme(text.to_owned())),
        }
    }
}

fn unix(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    if path.starts_with('/') {
        Ok(Endpoint::Grpc(format!("unix://{path}")))
    } else {
        Err(EndpointError::Authority(text.to_owned()))
    }
}

/// Host and port, with the default port if there is none.
fn authority(text: &str, given: &str, port: u16) -> Result<String, EndpointError> {
    let wrong = || EndpointError::Authority(text.to_owned());
    let after_host = given.rfind(']').map_or(given, |end| &given[end..]);
    let whole = if after_host.contains(':') { given.to_owned() } else { format!("{given}:{port}") };
    let parsed: http::uri::Authority = whole.parse().map_err(|_| wrong())?;
    let is_plain = !parsed.host().is_empty()
        && parsed.port_u16().is_some_and(|port| port != 0)
        && !whole.contains('@');
    if is_plain { Ok(whole) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kube_apiservers_forms_and_http() {
        let grpc = |authority: &str| Ok(Endpoint::Grpc(format!("http://{authority}")));
        let unix = |path: &str| Ok(Endpoint::Grpc(format!("unix://{path}")));
        let http =
            |authority: &str, path: &str| Ok(Endpoint::Http(format!("http://{authority}{path}")));
        for (text, want) in [
            ("localhost", grpc("localhost:4317")),
            ("10.0.0.1:99", grpc("10.0.0.1:99")),
            ("[::1]:99", grpc("[::1]:99")),
            ("dns:///collector:4317", grpc("collector:4317")),
            ("dns://8.8.8.8/collector", grpc("collector:4317")),
            ("unix:///run/otel.sock", unix("/run/otel.sock")),
            ("unix:/run/otel.sock", unix("/run/otel.sock")),
            ("http://127.0.0.1:6006", http("127.0.0.1:6006", "/v1/traces")),
            ("http://[::1]/x/y", http("[::1]:4318", "/x/y")),
        ] {
            assert_eq!(text.parse::<Endpoint>(), want, "{text}");
        }
        for text in ["https://x:1", "unix-abstract://x", "tcp://x:1"] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Scheme(text.to_owned())));
        }
        for text in [
            "",
            "a b:1",
            "x:0",
            "x:99999",
            ":1",
            "http://",
            "http://u@x:1",
            "http://x:1/a b",
            "unix://relative",
        ] {
            assert_eq!(
                text.parse::<Endpoint>(),
                Err(EndpointError::Authority(text.to_owned())),
                "{text}"
            );
        }
    }
}
