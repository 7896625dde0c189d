//! Webhooks behind services.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt::Debug;
use std::net::SocketAddr;
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

/// Finds the addresses of a service.
pub trait ServiceResolver: Send + Sync + Debug {
    /// Addresses of a service's port, with ports; not empty. Called for every new connection.
    ///
    /// # Errors
    /// [`ServiceError`].
    fn resolve(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ServiceError>;
}

/// For servers without services.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl ServiceResolver for NoServices {
    fn resolve(
        &self,
        _namespace: &str,
        name: &str,
        _port: u16,
    ) -> Result<Vec<SocketAddr>, ServiceError> {
        Err(ServiceError::NotFound(name.to_owned()))
    }
}

/// A service that a client connects to, whatever host name its URL has.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTarget {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) services: Arc<dyn ServiceResolver>,
}

impl Resolve for ServiceTarget {
    fn resolve(&self, _name: Name) -> Resolving {
        let found = self.services.resolve(&self.namespace, &self.name, self.port);
        Box::pin(std::future::ready(match found {
            Ok(addresses) => Ok(Box::new(addresses.into_iter()) as Addrs),
            Err(why) => Err(why.into()),
        }))
    }
}
