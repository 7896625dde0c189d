//! Webhooks behind services.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt::Debug;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

/// Why a service has no addresses, with kube-apiserver's message for clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// It does not exist.
    #[error("service {0:?} not found")]
    NotFound(String),
    /// It has no such port.
    #[error("no service port {port} found for service {service:?}")]
    NoPort {
        /// Name of the service.
        service: String,
        /// Port that was named.
        port: u16,
    },
    /// It has no EndpointSlices and no Endpoints.
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
    /// None of its endpoints is ready and has the port.
    #[error("no endpoints available for service {service:?}")]
    NotReady {
        /// Name of the service.
        service: String,
        /// Name of the service's port, which they lack.
        port_name: String,
    },
    /// It cannot be connected to.
    #[error("{0}")]
    Unroutable(String),
}

/// Addresses with ports, not empty, once they are found.
pub type Resolution<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, ServiceError>> + Send + 'a>>;

/// Finds the addresses of a service.
pub trait ServiceResolver: Send + Sync + Debug {
    /// Finds those of a service's port. Called for every new connection, on an async worker.
    fn resolve<'a>(&'a self, namespace: &'a str, name: &'a str, port: u16) -> Resolution<'a>;
}

/// For servers without services.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl ServiceResolver for NoServices {
    fn resolve<'a>(&'a self, _namespace: &'a str, name: &'a str, _port: u16) -> Resolution<'a> {
        Box::pin(ready(Err(ServiceError::NotFound(name.to_owned()))))
    }
}

/// A service that a client connects to, regardless of the host name in its URL.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTarget {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) services: Arc<dyn ServiceResolver>,
}

impl Resolve for ServiceTarget {
    fn resolve(&self, _name: Name) -> Resolving {
        let Self { namespace, name, port, services } = self.clone();
        Box::pin(async move {
            let found = services.resolve(&namespace, &name, port).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
