//! HTTP requests of probes and hooks to containers: a connection of its own for each, any
//! certificate, and no proxy.

use http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes of a response that are read; kubelet's.
const MAX_BODY: usize = 10 << 10;
/// Redirects that are followed, to the same host; kubelet's.
const MAX_REDIRECTS: usize = 10;
const DEFAULT_AGENT: &str = "kube-probe/1.36";

/// A GET to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// HTTPS, with whatever certificate.
    pub is_tls: bool,
    /// Name or address, IPv6 without brackets.
    pub host: String,
    /// A named one is already resolved.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// Sent as they are; `Host`, `User-Agent` and `Accept` have defaults.
    pub headers: Vec<(String, String)>,
}

/// Status and body of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResponse {
    /// HTTP status.
    pub status: u16,
    /// The body's first 10 KiB.
    pub body: String,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ProbeRequestError {
    /// The pod's author wrote no valid URL or header.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// No connection.
    #[error("dial tcp {address}: connect: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The connection ended before the response.
    #[error("{0}")]
    Broken(String),
    /// Still redirected after ten requests.
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    Redirects,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes a GET and follows redirects to the same host. The caller limits its time by dropping it.
///
/// # Errors
/// [`ProbeRequestError`]: none of them concerns a status.
pub async fn probe(mut request: ProbeRequest) -> Result<ProbeResponse, ProbeRequestError> {
    for _ in 0..MAX_REDIRECTS {
        let (status, location, body) = once(&request).await?;
        let next = location.filter(|_| (300..400).contains(&status));
        let Some(next) = next.and_then(|location| redirected(&request, &location)) else {
            return Ok(ProbeResponse { status, body });
        };
        request = next;
    }
    Err(ProbeRequestError::Redirects)
}

/// The target of a redirect; `None` for another host, which is not followed.
fn redirected(request: &ProbeRequest, location: &str) -> Option<ProbeRequest> {
    let mut next = request.clone();
    if location.starts_with('/') && !location.starts_with("//") {
        next.path = location.to_owned();
        return Some(next);
    }
    let uri: Uri = location.parse().ok()?;
    next.is_tls = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    if host != request.host {
        return None;
    }
    next.port = uri.port_u16().unwrap_or(if next.is_tls { 443 } else { 80 });
    uri.path_and_query().map_or("/", |path| path.as_str()).clone_into(&mut next.path);
    Some(next)
}

/// `host:port`, with brackets around IPv6.
fn authority(request: &ProbeRequest) -> String {
    let ProbeRequest { host, port, .. } = request;
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn once(request: &ProbeRequest) -> Result<(u16, Option<String>, String), ProbeRequestError> {
    let broken = |error: &dyn std::fmt::Display| ProbeRequestError::Broken(error.to_string());
    let head = head(request)?;
    let address = authority(request);
    let connected = TcpStream::connect((request.host.as_str(), request.port)).await;
    let stream = connected.map_err(|source| ProbeRequestError::Connect { address, source })?;
    let stream: Box<dyn Stream> = if request.is_tls {
        let name = ServerName::try_from(request.host.clone());
        let name = name.map_err(|error| ProbeRequestError::Invalid(error.to_string()))?;
        let connector = TlsConnector::from(trusting());
        Box::new(connector.connect(name, stream).await.map_err(|error| broken(&error))?)
    } else {
        Box::new(stream)
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    let exchange = async {
        let response = sender.send_request(head).await.map_err(|error| broken(&error))?;
        let status = response.status().as_u16();
        let location = response.headers().get(LOCATION);
        let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = beginning(response.into_body()).await.map_err(|error| broken(&error))?;
        Ok((status, location, body))
    };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        outcome = &mut exchange => outcome,
        // The connection may end with the response still to be read.
        _ = &mut connection => exchange.await,
    }
}

fn head(request: &ProbeRequest) -> Result<Request<String>, ProbeRequestError> {
    let invalid = |error: &dyn std::fmt::Display| ProbeRequestError::Invalid(error.to_string());
    let mut headers = HeaderMap::new();
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| invalid(&error))?;
        let value = HeaderValue::from_str(value).map_err(|error| invalid(&error))?;
        headers.append(name, value);
    }
    let host = HeaderValue::from_str(&authority(request)).map_err(|error| invalid(&error))?;
    for (name, value) in [
        (HOST, host),
        (USER_AGENT, HeaderValue::from_static(DEFAULT_AGENT)),
        (ACCEPT, HeaderValue::from_static("*/*")),
    ] {
        // As in kubelet, an empty value means none.
        match headers.get(&name) {
            None => _ = headers.insert(name, value),
            Some(given) if given.is_empty() && name != HOST => _ = headers.remove(name),
            Some(_) => {}
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let slash = if request.path.starts_with('/') { "" } else { "/" };
    let path = format!("{slash}{}", request.path);
    let mut made = Request::get(path).body(String::new()).map_err(|error| invalid(&error))?;
    *made.headers_mut() = headers;
    Ok(made)
}

async fn beginning(mut body: Incoming) -> Result<String, hyper::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_BODY {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let Some(frame) = next else { break };
        if let Some(data) = frame?.data_ref() {
            let room = MAX_BODY - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn trusting() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(UncheckedCertificate(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the suites of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Arc::new(config)
}

/// Accepts any certificate, as kubelet's probes do: nothing secret is sent, and the address is the
/// pod's own.
#[derive(Debug)]
struct UncheckedCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for UncheckedCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str) -> ProbeRequest {
        ProbeRequest {
            is_tls: false,
            host: "10.0.0.1".to_owned(),
            port: 8080,
            path: path.to_owned(),
            headers: Vec::new(),
        }
    }

    #[test]
    fn redirects_stay_on_the_host() {
        let from = request("/a");
        let to = |location: &str| redirected(&from, location).map(|next| (next.port, next.path));
        assert_eq!(to("/b?c"), Some((8080, "/b?c".to_owned())));
        assert_eq!(to("http://10.0.0.1/b"), Some((80, "/b".to_owned())));
        assert_eq!(to("https://10.0.0.1:8443"), Some((8443, "/".to_owned())));
        for elsewhere in ["http://10.0.0.2/b", "//10.0.0.2/b", "file:///etc/passwd", "b"] {
            assert_eq!(to(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn headers_have_defaults_that_the_author_may_replace() {
        let sent = |headers: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let headers = headers.iter().map(pair).collect();
            let made = head(&ProbeRequest { headers, ..request("a") }).unwrap();
            assert_eq!(made.uri(), "/a");
            let text = |name: HeaderName| {
                made.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
            };
            (text(HOST), text(USER_AGENT))
        };
        let own = |text: &str| Some(text.to_owned());
        assert_eq!(sent(&[]), (own("10.0.0.1:8080"), own(DEFAULT_AGENT)));
        assert_eq!(sent(&[("host", "x"), ("User-Agent", "")]), (own("x"), None));
        let bad =
            ProbeRequest { headers: vec![("a\n".to_owned(), "b".to_owned())], ..request("/") };
        assert!(matches!(head(&bad), Err(ProbeRequestError::Invalid(_))));
    }
}
