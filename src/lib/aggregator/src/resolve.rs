//! Where services are: the operator's list, for servers without Service objects.
//!
//! Users of the API name services, never addresses; the list has addresses, not names, so that
//! nothing is left to be resolved to something else (fault 47).

use ferrokube_webhook::ServiceResolver;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// First words of the error for a service without the port.
pub(crate) const NO_PORT: &str = "no service port";

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

/// Whether a service can have this address: not one of a link (cloud metadata), nor one that stands
/// for many. Loopback is allowed: operators name the addresses, users of the API cannot.
pub fn is_allowed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.octets()[0] == 0)
        }
        IpAddr::V6(v6) => match embedded(v6) {
            Some(v4) => is_allowed(v4),
            None => !(v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local()),
        },
    }
}

/// The IPv4 address in an IPv6 one: mapped, or of a translator (RFC 6052).
fn embedded(address: Ipv6Addr) -> Option<IpAddr> {
    if let Some(v4) = address.to_ipv4_mapped() {
        return Some(v4.into());
    }
    let octets = address.octets();
    let is_translated = octets[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    is_translated.then(|| <[u8; 4]>::try_from(&octets[12..]).expect("4 of 16").into())
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
}

impl ServiceResolver for ListedServices {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let entries = self
            .services
            .get(&(namespace.to_owned(), name.to_owned()))
            .ok_or_else(|| format!("service {name:?} not found"))?;
        entries
            .iter()
            .find(|entry| entry.port.is_none_or(|listed| listed == port))
            .map(|entry| vec![entry.address])
            .ok_or_else(|| format!("{NO_PORT} {port} found for service {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_47_links_and_groups_are_no_service_addresses() {
        for forbidden in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert!(!is_allowed(forbidden.parse().unwrap()), "{forbidden}");
        }
        for allowed in ["127.0.0.1", "10.0.0.1", "::1", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert!(is_allowed(allowed.parse().unwrap()), "{allowed}");
        }
    }

    #[test]
    fn services_are_found_by_name_and_port() {
        let listed = ListedServices::new([
            "a.ns:443=127.0.0.1:1".parse().unwrap(),
            "b.ns=[::1]:2".parse().unwrap(),
        ]);
        let find = |name, port| listed.resolve("ns", name, port);
        assert_eq!(find("a", 443), Ok(vec!["127.0.0.1:1".parse().unwrap()]));
        assert_eq!(find("a", 444), Err("no service port 444 found for service \"a\"".to_owned()));
        assert_eq!(find("b", 9), Ok(vec!["[::1]:2".parse().unwrap()]));
        assert_eq!(find("c", 9), Err("service \"c\" not found".to_owned()));
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
