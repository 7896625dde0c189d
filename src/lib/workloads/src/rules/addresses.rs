//! Rules about addresses, hosts and ports.

use super::field::{CheckFn, RuledField};
use crate::checks::{self, FieldErrors, PORT, is_port};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::name;
use std::net::IpAddr;

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "publicip" => public_ip,
        "within" => within,
        "endport" => end_port,
        "ingresshost" => ingress_host,
        "ingresspath" => ingress_path,
        "families" => |it, errors| {
            let first =
                |at: usize| it.items().get(at).and_then(Value::as_str).map(checks::parse_cidr);
            if let (Some(Some(one)), Some(Some(other)), 2) = (first(0), first(1), it.items().len())
                && one.0.is_ipv4() == other.0.is_ipv4()
            {
                let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                errors.invalid(it.path, it.value, why);
            }
        },
        "maxcidrs" => |it, errors| {
            if it.items().len() > 2 {
                errors.invalid(it.path, it.value, "may only hold up to 2 values");
            }
        },
        _ => return None,
    })
}

/// A CIDR strictly within another one, unless that is none.
fn within(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let outer = it.object.get(it.rule.argument).and_then(Value::as_str).unwrap_or_default();
    let Some(outer) = checks::parse_sloppy_cidr(outer) else { return };
    errors.all_invalid(it.path, it.text(), checks::cidr(it.text()));
    let Some(inner) = checks::parse_sloppy_cidr(it.text()) else { return };
    let network = |address: IpAddr, length: u32| match address {
        IpAddr::V4(address) => {
            u128::from(address.to_bits().checked_shr(32 - length).unwrap_or_default())
        }
        IpAddr::V6(address) => address.to_bits().checked_shr(128 - length).unwrap_or_default(),
    };
    let is_within = inner.0.is_ipv4() == outer.0.is_ipv4()
        && inner.1 > outer.1
        && network(inner.0, outer.1) == network(outer.0, outer.1);
    if !is_within {
        errors.invalid(it.path, it.text(), "must be a strict subset of `cidr`");
    }
}

/// An address that can belong to another machine.
fn public_ip(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let is_checked = it.rule.argument == "parsed";
    if !is_checked && !checks::ip(it.text()).is_empty() {
        return;
    }
    let Some(address) = checks::parse_sloppy_ip(it.text()) else {
        return errors.invalid(it.path, it.text(), "must be a valid IP address");
    };
    special_ranges(it.text(), address, it.path, errors);
}

/// Rejects addresses in special ranges, which cannot belong to another machine.
pub(crate) fn special_ranges(
    text: &str,
    address: IpAddr,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let address = address.to_canonical();
    let (is_local, is_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => {
            let first = address.segments()[0];
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    if address.is_unspecified() {
        errors.invalid(path, text, &format!("may not be unspecified ({text})"));
    }
    let ranges = [
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (is_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            is_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ];
    for (_, why) in ranges.iter().filter(|(is_in, _)| *is_in) {
        errors.invalid(path, text, why);
    }
}

/// The end of a port range.
fn end_port(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Some(last) = it.value.and_then(Value::as_i64) else { return };
    match it.object.get("port") {
        Some(Value::Number(first)) => {
            let first = first.as_i64().unwrap_or_default();
            if last < first {
                errors.invalid(it.path, first, "must be greater than or equal to `port`");
            }
            if !is_port(last) {
                errors.invalid(it.path, last, PORT);
            }
        }
        Some(Value::String(_)) => {
            errors.invalid(it.path, last, "may not be specified when `port` is non-numeric");
        }
        _ => errors.invalid(it.path, last, "may not be specified when `port` is not specified"),
    }
}

fn ingress_host(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let host = it.text();
    // A rule without a host is for all of them.
    if host.is_empty() && it.rule.path != ["hosts"] {
        return;
    }
    let is_name = it.rule.path == ["host"] || it.rule.path == ["hostname"];
    if is_name && checks::parse_sloppy_ip(host).is_some() {
        errors.invalid(it.path, host, "must be a DNS name, not an IP address");
    }
    let whys = match host.contains('*') && it.rule.path != ["hostname"] {
        true => checks::wildcard_subdomain(host),
        false => name::dns1123_subdomain(host),
    };
    errors.all_invalid(it.path, host, whys);
}

fn ingress_path(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const WITHIN: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
    const AT_END: [&str; 2] = ["/..", "/."];
    let path = it.text();
    if !path.starts_with('/') {
        errors.invalid(it.path, path, "must be an absolute path");
    }
    for part in WITHIN.iter().filter(|part| path.contains(**part)) {
        errors.invalid(it.path, path, &format!("must not contain '{part}'"));
    }
    for part in AT_END.iter().filter(|part| path.ends_with(**part)) {
        errors.invalid(it.path, path, &format!("cannot end with '{part}'"));
    }
}
