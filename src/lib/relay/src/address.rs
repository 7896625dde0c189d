//! Addresses that may be connected to (fault 47).

use std::net::{IpAddr, Ipv6Addr};

/// Whether a server chosen by the operator may have this address: not link-local (cloud metadata),
/// unspecified or multicast. Loopback is allowed.
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
            None => {
                !(v6.is_unspecified()
                    || v6.is_multicast()
                    || v6.is_unicast_link_local()
                    || v6 == AWS_METADATA)
            }
        },
    }
}

/// Whether an API user may choose this address: as [`is_allowed`], but not loopback.
pub fn is_global(address: IpAddr) -> bool {
    let is_loopback = match address {
        IpAddr::V4(v4) => v4.is_loopback(),
        IpAddr::V6(v6) => embedded(v6).map_or(v6.is_loopback(), |v4| v4.is_loopback()),
    };
    is_allowed(address) && !is_loopback
}

/// AWS's metadata service over IPv6, which is not link-local.
const AWS_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// The IPv4 address in an IPv6 one: mapped, compatible (RFC 4291), of 6to4 (RFC 3056), or of a
/// translator (RFC 6052).
fn embedded(address: Ipv6Addr) -> Option<IpAddr> {
    if address.is_unspecified() || address.is_loopback() {
        return None;
    }
    if let Some(v4) = address.to_ipv4() {
        return Some(v4.into());
    }
    let octets = address.octets();
    if octets[..2] == [0x20, 0x02] {
        return Some(<[u8; 4]>::try_from(&octets[2..6]).expect("4 of 16").into());
    }
    let is_translated = octets[..12] == [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    is_translated.then(|| <[u8; 4]>::try_from(&octets[12..]).expect("4 of 16").into())
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
            "::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fd00:ec2::254",
        ] {
            assert!(!is_allowed(forbidden.parse().unwrap()), "{forbidden}");
        }
        for allowed in ["127.0.0.1", "10.0.0.1", "::1", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert!(is_allowed(allowed.parse().unwrap()), "{allowed}");
        }
        for loopback in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"] {
            assert!(!is_global(loopback.parse().unwrap()), "{loopback}");
        }
        assert!(is_global("10.0.0.1".parse().unwrap()));
    }
}
