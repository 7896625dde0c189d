//! Functions of IP addresses and CIDRs.

use super::function::{Arg, Function, FunctionBody, function, method, one, walk};
use crate::failure::{Failure, no_overload};
use crate::types::Type;
use crate::value::Value;
use crate::value::cidr::{Cidr, parse_address};
use crate::value::library::{CIDR, IP, Library};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use std::net::IpAddr;

const fn of_ip(name: &'static str, run: FunctionBody) -> Function {
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
        Value::String(text) => parse_address(text).ok_or_else(|| no_address(text)),
        Value::Library(library) => match **library {
            Library::Ip(address) => Ok(address),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

fn of(value: &Value<'_>) -> Result<Cidr, Failure> {
    match value {
        Value::String(text) => Cidr::parse(text).ok_or_else(|| no_network(text)),
        Value::Library(library) => match **library {
            Library::Cidr(cidr) => Ok(cidr),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}

function!(ip, [value] => address(value).map(|address| Value::library(Library::Ip(address))));
function!(is_ip, [Value::String(text)] => Ok(Value::Bool(parse_address(text).is_some())));
function!(is_canonical, [Value::String(text)] => {
    let address = parse_address(text).ok_or_else(|| no_address(text))?;
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
    [cidr, Value::String(text)] => match parse_address(text) {
        Some(address) => Ok(Value::Bool(of(cidr)?.contains(address))),
        None => no_overload(),
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
