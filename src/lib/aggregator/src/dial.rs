//! Connections to one aggregated service: its address, TCP, TLS.

use crate::service::RemoteService;
use crate::tls::{self, ProxyIdentity};
use ferrokube_webhook::{CertificateFaults, ServiceError, ServiceResolver};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

/// TCP and TLS together, for one address.
const CONNECT: Duration = Duration::from_secs(5);

/// Why there is no connection. Addresses, certificates and system errors are only logged: they
/// reveal the server's network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DialError {
    /// The service has no address.
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("{0}")]
    Setup(String),
    #[error("it could not be reached")]
    Unreachable,
    #[error("its certificate could not be verified")]
    Untrusted,
}

/// Makes connections to one service. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dialer(Arc<DialTarget>);

struct DialTarget {
    service: RemoteService,
    resolver: Arc<dyn ServiceResolver>,
    tls: Result<(TlsConnector, ServerName<'static>), String>,
    certificates: CertificateFaults,
}

impl Dialer {
    pub(crate) fn new(
        service: RemoteService,
        resolver: Arc<dyn ServiceResolver>,
        identity: &ProxyIdentity,
        certificates: CertificateFaults,
    ) -> Self {
        let tls = tls::config(&service, identity).and_then(|config| {
            Ok((TlsConnector::from(Arc::new(config)), tls::server_name(&service)?))
        });
        Self(Arc::new(DialTarget { service, resolver, tls, certificates }))
    }

    pub(crate) fn service(&self) -> &RemoteService {
        &self.0.service
    }

    pub(crate) async fn dial(&self) -> Result<Dialed, DialError> {
        let DialTarget { service, resolver, tls, certificates } = &*self.0;
        // kube-apiserver looks for the service first.
        let addresses = resolver.resolve(&service.namespace, &service.name, service.port).await?;
        let (connector, name) = tls.as_ref().map_err(|why| DialError::Setup(why.clone()))?;
        let mut last = DialError::Unreachable;
        for address in addresses {
            let connecting = async {
                let socket = TcpStream::connect(address).await.map_err(|error| {
                    self.report("cannot connect to an aggregated server", &error);
                    DialError::Unreachable
                })?;
                let _ = socket.set_nodelay(true);
                connector.connect(name.clone(), socket).await.map_err(|error| {
                    self.report("cannot set up TLS with an aggregated server", &error);
                    certificates.count(&error);
                    DialError::Untrusted
                })
            };
            match tokio::time::timeout(CONNECT, connecting).await {
                Ok(Ok(stream)) => return Ok(Dialed(TokioIo::new(stream))),
                Ok(Err(error)) => last = error,
                Err(_) => last = DialError::Unreachable,
            }
        }
        Err(last)
    }

    fn report(&self, what: &'static str, error: &io::Error) {
        let service = &self.0.service;
        tracing::debug!(namespace = service.namespace, service = service.name, %error, "{what}");
    }
}

/// A connection with TLS.
pub(crate) struct Dialed(TokioIo<TlsStream<TcpStream>>);

impl Dialed {
    pub(crate) fn into_inner(self) -> TlsStream<TcpStream> {
        self.0.into_inner()
    }
}

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Dialed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }
}

impl Service<Uri> for Dialer {
    type Response = Dialed;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    /// The URI is always the service's.
    fn call(&mut self, _uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move { dialer.dial().await })
    }
}
