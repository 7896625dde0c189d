//! IP addresses and CIDRs.

use super::{Arg, CIDR, Function, IP, Library, function, method, one, walk};
use crate::evaluator::Failure;
use crate::types::Type;
use crate::value::Value;
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address = parse(address)?;
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

    fn masked(self) -> Self {
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

    fn contains(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self { address, prefix: self.prefix }.masked().address == self.masked().address
    }

    fn covers(self, other: Self) -> bool {
        other.prefix >= self.prefix && self.contains(other.address)
    }
}

/// Parses an address; zones and IPv4-mapped IPv6 addresses are refused.
fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(
        |address| !matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()),
    )
}

const fn of_ip(name: &'static str, run: super::Run) -> Function {
    Function {
        name,
        method: true,
        args: &[Arg::Library(IP)],
        answer: |_| Type::Bool,
        cost: one,
        run,
    }
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "ip",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Library(IP),
        cost: walk,
        run: ip,
    },
    Function {
        name: "isIP",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_ip,
    },
    Function {
        name: "ip.isCanonical",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_canonical,
    },
    Function {
        name: "family",
        method: true,
        args: &[Arg::Library(IP)],
        answer: |_| Type::Int,
        cost: one,
        run: family,
    },
    of_ip("isUnspecified", is_unspecified),
    of_ip("isLoopback", is_loopback),
    of_ip("isLinkLocalMulticast", is_link_local_multicast),
    of_ip("isLinkLocalUnicast", is_link_local_unicast),
    of_ip("isGlobalUnicast", is_global_unicast),
    Function {
        name: "cidr",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Library(CIDR),
        cost: walk,
        run: cidr,
    },
    Function {
        name: "isCIDR",
        method: false,
        args: &[Arg::String],
        answer: |_| Type::Bool,
        cost: walk,
        run: is_cidr,
    },
    method("containsIP", &[Arg::Library(CIDR), Arg::String], |_| Type::Bool, contains_ip),
    method("containsIP", &[Arg::Library(CIDR), Arg::Library(IP)], |_| Type::Bool, contains_ip),
    method("containsCIDR", &[Arg::Library(CIDR), Arg::String], |_| Type::Bool, contains_cidr),
    method(
        "containsCIDR",
        &[Arg::Library(CIDR), Arg::Library(CIDR)],
        |_| Type::Bool,
        contains_cidr,
    ),
    method("ip", &[Arg::Library(CIDR)], |_| Type::Library(IP), network),
    method("masked", &[Arg::Library(CIDR)], |_| Type::Library(CIDR), masked),
    method("prefixLength", &[Arg::Library(CIDR)], |_| Type::Int, prefix_length),
];

fn no_address(text: &str) -> Failure {
    let shown = quote(text);
    Failure::Failed(match go::address_fault(text) {
        Some(why) => format!("IP Address {shown} parse error during conversion from string: {why}"),
        None if text.contains('%') => format!("IP address {shown} with zone value is not allowed"),
        None => mapped(text),
    })
}

fn mapped(text: &str) -> String {
    format!("IPv4-mapped IPv6 address {} is not allowed", quote(text))
}

fn no_network(text: &str) -> Failure {
    const CONVERSION: &str = "network address parse error during conversion from string: ";
    let why = go::prefix_fault(text)
        .map_or_else(|| mapped(text), |why| [CONVERSION, why.as_str()].concat());
    Failure::Failed([CONVERSION, why.as_str()].concat())
}

fn address(value: &Value<'_>) -> Result<IpAddr, Failure> {
    match value {
        Value::String(text) => parse(text).ok_or_else(|| no_address(text)),
        Value::Library(library) => match **library {
            Library::Ip(address) => Ok(address),
            _ => crate::evaluator::no_overload(),
        },
        _ => crate::evaluator::no_overload(),
    }
}

fn of(value: &Value<'_>) -> Result<Cidr, Failure> {
    match value {
        Value::String(text) => Cidr::parse(text).ok_or_else(|| no_network(text)),
        Value::Library(library) => match **library {
            Library::Cidr(cidr) => Ok(cidr),
            _ => crate::evaluator::no_overload(),
        },
        _ => crate::evaluator::no_overload(),
    }
}

function!(ip, [value] => address(value).map(|address| Value::library(Library::Ip(address))));
function!(is_ip, [Value::String(text)] => Ok(Value::Bool(parse(text).is_some())));
function!(is_canonical, [Value::String(text)] => {
    let address = parse(text).ok_or_else(|| no_address(text))?;
    Ok(Value::Bool(address.to_string() == **text))
});
function!(family, [value] => address(value).map(|address| Value::Int(if address.is_ipv4() { 4 } else { 6 })));
function!(is_unspecified, [value] => address(value).map(|address| Value::Bool(address.is_unspecified())));
function!(is_loopback, [value] => address(value).map(|address| Value::Bool(address.is_loopback())));
function!(is_link_local_multicast, [value] => address(value).map(|address| Value::Bool(local_multicast(address))));
function!(is_link_local_unicast, [value] => address(value).map(|address| Value::Bool(local_unicast(address))));
function!(is_global_unicast, [value] => address(value).map(|address| {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    Value::Bool(!(broadcast || address.is_unspecified() || address.is_loopback() || address.is_multicast() || local_unicast(address)))
}));
function!(cidr, [value] => of(value).map(|cidr| Value::library(Library::Cidr(cidr))));
function!(is_cidr, [Value::String(text)] => Ok(Value::Bool(Cidr::parse(text).is_some())));
function!(contains_ip,
    // An invalid address is reported as a wrong argument type.
    [cidr, Value::String(text)] => match parse(text) {
        Some(address) => Ok(Value::Bool(of(cidr)?.contains(address))),
        None => crate::evaluator::no_overload(),
    },
    [cidr, value] => Ok(Value::Bool(of(cidr)?.contains(address(value)?))),
);
function!(contains_cidr, [cidr, other] => Ok(Value::Bool(of(cidr)?.covers(of(other)?))));
function!(network, [value] => of(value).map(|cidr| Value::library(Library::Ip(cidr.address))));
function!(masked, [value] => of(value).map(|cidr| Value::library(Library::Cidr(cidr.masked()))));
function!(prefix_length, [value] => of(value).map(|cidr| Value::Int(i64::from(cidr.prefix))));

fn local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

fn local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    }
}
