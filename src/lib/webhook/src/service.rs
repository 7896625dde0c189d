//! Webhooks behind services.

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

/// Finds the addresses of a service.
pub trait ServiceResolver: Send + Sync + Debug {
    /// Addresses of a service's port, with ports. Called for every new connection.
    ///
    /// # Errors
    /// Why there are none: kube-apiserver's message for clients.
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Vec<SocketAddr>, String>;
}

/// For servers without services.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl ServiceResolver for NoServices {
    fn resolve(&self, _namespace: &str, name: &str, _port: u16) -> Result<Vec<SocketAddr>, String> {
        Err(format!("service {name:?} not found"))
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

impl ServiceTarget {
    pub(crate) fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        self.services.resolve(&self.namespace, &self.name, self.port)
    }
}

impl Resolve for ServiceTarget {
    fn resolve(&self, _name: Name) -> Resolving {
        let found = self.addresses();
        Box::pin(std::future::ready(match found {
            Ok(addresses) => Ok(Box::new(addresses.into_iter()) as Addrs),
            Err(why) => Err(why.into()),
        }))
    }
}
