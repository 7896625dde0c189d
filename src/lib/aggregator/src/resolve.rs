//! Resolution of services to addresses by the operator's list, for servers without Service objects.
//!
//! Users of the API name services, never addresses; the list has addresses, not names, so that
//! nothing is left to be resolved to something else (fault 47).

pub use ferrokube_relay::is_allowed;
use ferrokube_webhook::{Resolution, ServiceError, ServiceResolver};
use std::collections::BTreeMap;
use std::future::ready;
use std::net::SocketAddr;
use std::str::FromStr;

/// One entry of the operator's list: `NAME.NAMESPACE[:PORT]=IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    namespace: String,
    name: String,
    /// `None`: all ports.
    port: Option<u16>,
    address: SocketAddr,
}

impl FromStr for ServiceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "must have the form NAME.NAMESPACE[:PORT]=IP:PORT".to_owned();
        let (service, address) = text.split_once('=').ok_or_else(form)?;
        let (service, port) = match service.split_once(':') {
            Some((service, port)) => (service, Some(port.parse().map_err(|_| form())?)),
            None => (service, None),
        };
        let (name, namespace) = service.split_once('.').ok_or_else(form)?;
        let address: SocketAddr = address.parse().map_err(|_| form())?;
        if name.is_empty() || namespace.is_empty() || namespace.contains('.') || address.port() == 0
        {
            return Err(form());
        }
        if !is_allowed(address.ip()) {
            return Err(format!("{} cannot be the address of a service", address.ip()));
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), port, address })
    }
}

/// The operator's list of services.
#[derive(Clone, Debug, Default)]
pub struct ListedServices {
    /// By namespace and name.
    services: BTreeMap<(String, String), Vec<ServiceAddress>>,
}

impl ListedServices {
    /// The first entry of a service and port counts.
    pub fn new(entries: impl IntoIterator<Item = ServiceAddress>) -> Self {
        let mut services: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for entry in entries {
            let key = (entry.namespace.clone(), entry.name.clone());
            services.entry(key).or_default().push(entry);
        }
        Self { services }
    }

    /// Whether the service has an entry, for any port.
    pub(crate) fn has(&self, namespace: &str, name: &str) -> bool {
        self.services.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    /// The address of a port.
    ///
    /// # Errors
    /// [`ServiceError::NotFound`], [`ServiceError::NoPort`].
    pub(crate) fn find(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ServiceError> {
        let entries = self
            .services
            .get(&(namespace.to_owned(), name.to_owned()))
            .ok_or_else(|| ServiceError::NotFound(name.to_owned()))?;
        entries
            .iter()
            .find(|entry| entry.port.is_none_or(|listed| listed == port))
            .map(|entry| vec![entry.address])
            .ok_or_else(|| ServiceError::NoPort { service: name.to_owned(), port })
    }
}

impl ServiceResolver for ListedServices {
    fn resolve<'a>(&'a self, namespace: &'a str, name: &'a str, port: u16) -> Resolution<'a> {
        Box::pin(ready(self.find(namespace, name, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_name_and_port() {
        let listed = ListedServices::new([
            "a.ns:443=127.0.0.1:1".parse().unwrap(),
            "b.ns=[::1]:2".parse().unwrap(),
        ]);
        let find = |name, port| listed.find("ns", name, port);
        assert_eq!(find("a", 443), Ok(vec!["127.0.0.1:1".parse().unwrap()]));
        let text = |name, port| find(name, port).map_err(|error| error.to_string());
        assert_eq!(text("a", 444), Err("no service port 444 found for service \"a\"".to_owned()));
        assert_eq!(find("b", 9), Ok(vec!["[::1]:2".parse().unwrap()]));
        assert_eq!(text("c", 9), Err("service \"c\" not found".to_owned()));
    }

    #[test]
    fn malformed_entries_are_rejected() {
        for wrong in [
            "",
            "a=b",
            "a.b=c",
            "a.b=c:1",
            "a.b=127.0.0.1:0",
            "a.b:x=127.0.0.1:1",
            ".b=127.0.0.1:1",
            "a.b.c=127.0.0.1:1",
            "a.b=127.1:80",
            "a.b=169.254.169.254:80",
        ] {
            assert!(wrong.parse::<ServiceAddress>().is_err(), "{wrong}");
        }
    }
}
