//! IP addresses and CIDRs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address = parse_address(address)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let digits = !prefix.is_empty()
            && prefix.bytes().all(|byte| byte.is_ascii_digit())
            && (prefix == "0" || !prefix.starts_with('0'));
        prefix
            .parse()
            .ok()
            .filter(|prefix| digits && *prefix <= most)
            .map(|prefix| Self { address, prefix })
    }

    pub(crate) fn masked(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from(
                address.to_bits() & u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0),
            )),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(
                address.to_bits()
                    & u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0),
            )),
        };
        Self { address, ..self }
    }

    pub(crate) fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self { address, prefix: self.prefix }.masked().address == self.masked().address
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        other.prefix >= self.prefix && self.contains(other.address)
    }
}

/// Parses an address; zones and IPv4-mapped IPv6 addresses are refused.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(
        |address| !matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()),
    )
}
