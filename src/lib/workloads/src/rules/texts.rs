//! Rules about texts, labels and selectors.

use super::{CheckFn, RuledField, listed};
use crate::checks::{self, FieldErrors, PORT, is_port, items, text};
use crate::conditions::is_set;
use crate::kinds::podspec::resources;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use std::net::IpAddr;

/// Of the name of a driver.
const MAX_DRIVER_BYTES: usize = 63;
const MAX_POOL_BYTES: usize = 253;
const STANDARD_LIMITS: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
const MACROS: [&str; 8] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@every"];
/// Areas of time zones, and zones without an area.
const ZONES: [&str; 21] = [
    "Africa/",
    "America/",
    "Antarctica/",
    "Arctic/",
    "Asia/",
    "Atlantic/",
    "Australia/",
    "Europe/",
    "Indian/",
    "Pacific/",
    "Etc/",
    "US/",
    "Canada/",
    "UTC",
    "GMT",
    "EST",
    "MST",
    "HST",
    "CET",
    "EET",
    "WET",
];

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "enum" => |it, errors| {
            let text = it.text();
            if it.set().is_some() && !it.names().any(|name| name == text) {
                listed(it, text, errors);
            }
        },
        "enum?" => |it, errors| {
            if let Some(text) = it.value.and_then(Value::as_str)
                && !it.names().any(|name| name == text)
            {
                listed(it, text, errors);
            }
        },
        "form?" => |it, errors| {
            if it.value.is_some_and(|value| !value.is_null()) {
                form(it, errors);
            }
        },
        "enum-each" => |it, errors| {
            for item in it.items().iter().filter_map(Value::as_str) {
                if errors.is_full() {
                    return;
                }
                if !it.names().any(|name| name == item) {
                    listed(it, item, errors);
                }
            }
        },
        "enum!" => |it, errors| {
            let text = it.text();
            if !it.names().any(|name| name == text) {
                match it.value {
                    Some(value @ Value::Object(_)) => listed(it, value, errors),
                    _ => listed(it, text, errors),
                }
            }
        },
        "form" => |it, errors| {
            if it.set().is_some() {
                form(it, errors);
            }
        },
        "form!" => form,
        "maxlength" => |it, errors| {
            let most = usize::try_from(it.bound()).unwrap_or(usize::MAX);
            if it.text().len() > most {
                errors.push(FieldError::too_long(it.path, most));
            }
        },
        "atmostlength" => |it, errors| {
            let most = usize::try_from(it.bound()).unwrap_or(usize::MAX);
            if it.text().len() > most {
                errors.invalid(it.path, it.text(), it.detail(""));
            }
        },
        "port-or-name" => |it, errors| {
            if it.value.is_some_and(|value| !value.is_null()) {
                port_or_name(it, errors);
            }
        },
        "port-or-name!" => port_or_name,
        word => return paths(word),
    })
}

/// Rules about paths, labels and selectors.
fn paths(word: &str) -> Option<CheckFn> {
    Some(match word {
        "abspath" => |it, errors| {
            if it.set().is_some() && !it.text().starts_with('/') {
                errors.invalid(it.path, it.text(), it.detail("must be an absolute path"));
            }
        },
        "abspath!" => |it, errors| {
            if !it.text().starts_with('/') {
                errors.invalid(it.path, it.text(), it.detail("must be an absolute path"));
            }
        },
        "relpath" => |it, errors| {
            if it.text().starts_with('/') {
                errors.invalid(it.path, it.text(), "must be a relative path");
            }
            backsteps(it, errors);
        },
        "nobacksteps" => backsteps,
        "labels" => labels,
        "annotations" => |it, errors| {
            for (key, _) in it.value.and_then(Value::as_object).into_iter().flatten() {
                errors.all_invalid(it.path, key, name::qualified_name(&key.to_lowercase()));
            }
        },
        "selector" => |it, errors| {
            if let Some(value) = it.value.filter(|value| value.is_object()) {
                selector(value, it.path, errors);
                let is_empty = |field: &str| {
                    value.get(field).is_none_or(|value| match value {
                        Value::Object(map) => map.is_empty(),
                        value => !is_set(value),
                    })
                };
                if !it.rule.detail.is_empty()
                    && is_empty("matchLabels")
                    && is_empty("matchExpressions")
                {
                    errors.invalid(it.path, value, it.rule.detail);
                }
            }
        },
        word => return special(word),
    })
}

/// Rules of one or two kinds.
fn special(word: &str) -> Option<CheckFn> {
    Some(match word {
        "publicip" => public_ip,
        "rwop" => |it, errors| {
            let alone = "ReadWriteOncePod";
            let modes = it.items();
            if modes.len() > 1 && modes.iter().any(|mode| mode.as_str() == Some(alone)) {
                let why = "may not use ReadWriteOncePod with other access modes";
                errors.forbidden(it.path, why);
            }
        },
        "within" => within,
        "headernames" => |it, errors| {
            for header in it.items() {
                if errors.is_full() {
                    return;
                }
                let name = text(header, "name");
                errors.all_invalid(it.path, name, checks::header_name(name));
            }
        },
        "nonempty-keys" => |it, errors| {
            if it.value.and_then(|map| map.get("")).is_some() {
                errors.invalid(it.path, "", "field can not be empty.");
            }
        },
        "named-if-many" => |it, errors| {
            let items = it.items();
            for (at, item) in items.iter().enumerate().filter(|_| items.len() > 1) {
                if errors.is_full() {
                    return;
                }
                if text(item, "name").is_empty() {
                    errors.required(it.path.index(at).field("name"), "");
                }
            }
        },
        "driver" => driver,
        "endport" => end_port,
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
        "groupversion" => |it, errors| {
            if it.text().matches('/').count() > 1 {
                let why = format!("unexpected GroupVersion string: {}", it.text());
                errors.invalid(it.path, it.text(), &why);
            }
        },
        "hasgroup" => |it, errors| {
            if !it.text().contains('/') || it.text().starts_with('/') {
                errors.invalid(it.path, it.text(), "apiVersion must specify API group");
            }
        },
        "semver" => |it, errors| {
            if it.value.and_then(Value::as_str).is_some_and(|text| !is_semver(text)) {
                let why = "must be a string compatible with semver.org spec 2.0.0";
                errors.invalid(it.path, it.text(), why);
            }
        },
        "fullyqualified" => |it, errors| {
            if it.set().is_some() {
                device_name(it.text(), true, it.path, errors);
            }
        },
        "extendedresource" => |it, errors| {
            if it.set().is_some() && !resources::is_extended(it.text()) {
                errors.invalid(it.path, it.text(), "must be a valid extended resource name");
            }
        },
        "poolname" => pool_name,
        "limittype" => limit_type,
        "cron" => cron,
        "timezone" => time_zone,
        "ingresshost" => ingress_host,
        "ingresspath" => ingress_path,
        "maxcidrs" => |it, errors| {
            if it.items().len() > 2 {
                errors.invalid(it.path, it.value, "may only hold up to 2 values");
            }
        },
        "maxpolicytypes" => |it, errors| {
            if it.items().len() > 2 {
                errors.invalid(it.path, it.value, "may not specify more than two policyTypes");
            }
        },
        _ => return None,
    })
}

fn form(it: &RuledField<'_>, errors: &mut FieldErrors) {
    if let Some(form) = it.rule.form {
        errors.all_invalid(it.path, it.text(), form(it.text()));
    }
}

fn port_or_name(it: &RuledField<'_>, errors: &mut FieldErrors) {
    match it.value {
        Some(Value::String(text)) => errors.all_invalid(it.path, text, checks::port_name(text)),
        _ => {
            let number = it.number().unwrap_or_default();
            if !is_port(number) {
                errors.invalid(it.path, number, PORT);
            }
        }
    }
}

fn backsteps(it: &RuledField<'_>, errors: &mut FieldErrors) {
    if it.text().split('/').any(|part| part == "..") {
        errors.invalid(it.path, it.text(), "must not contain '..'");
    }
}

fn labels(it: &RuledField<'_>, errors: &mut FieldErrors) {
    if let Some(map) = it.value.and_then(Value::as_object) {
        label_map(map, it.path, errors);
    }
}

fn label_map(map: &Map, path: FieldPath<'_>, errors: &mut FieldErrors) {
    for (key, value) in map {
        if errors.is_full() {
            return;
        }
        errors.all_invalid(path, key, name::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        errors.all_invalid(path, value, name::label_value(value));
    }
}

/// Errors in a label selector.
pub(crate) fn selector(selector: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if let Some(map) = selector.get("matchLabels").and_then(Value::as_object) {
        label_map(map, path.field("matchLabels"), errors);
    }
    let list = path.field("matchExpressions");
    for (at, requirement) in items(selector, "matchExpressions").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        expression(requirement, list.index(at), errors);
    }
}

fn expression(requirement: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let values = items(requirement, "values");
    let of_values = path.field("values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(of_values, "must be specified when `operator` is 'In' or 'NotIn'")
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
            of_values,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => {
            errors.invalid(path.field("operator"), Word(other), "not a valid selector operator");
        }
    }
    let key = text(requirement, "key");
    errors.all_invalid(path.field("key"), key, name::qualified_name(key));
    for (at, value) in values.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let value = value.as_str().unwrap_or_default();
        errors.all_invalid(of_values.index(at), value, name::label_value(value));
    }
}

/// A range of addresses strictly within another.
fn within(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let outer = it.object.get(it.rule.argument).and_then(Value::as_str).unwrap_or_default();
    let (Some(inner), Some(outer)) = (checks::parse_cidr(it.text()), checks::parse_cidr(outer))
    else {
        return;
    };
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

/// An address that may be another machine's.
fn public_ip(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Ok(address) = it.text().parse::<IpAddr>() else {
        if it.rule.argument == "parsed" {
            errors.invalid(it.path, it.text(), "must be a valid IP address");
        }
        return;
    };
    if let Some(why) = special_range(address) {
        errors.invalid(it.path, it.text(), why);
    }
}

/// Why an address is not another machine's.
pub(crate) fn special_range(address: IpAddr) -> Option<&'static str> {
    let local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => (address.segments()[0] & 0xffc0) == 0xfe80,
    };
    if address.is_unspecified() {
        Some("may not be unspecified (0.0.0.0 or ::)")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if address.is_multicast() {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
    } else {
        None
    }
}

/// The name of an attribute of devices: an identifier, in a domain.
pub(crate) fn device_name(
    text: &str,
    needs_domain: bool,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    const MAX_BYTES: usize = 32;
    let (domain, id) = match text.split('/').collect::<Vec<&str>>().as_slice() {
        [id] => (None, *id),
        [domain, id] => (Some(*domain), *id),
        _ => return,
    };
    match domain {
        Some("") => errors.invalid(path, "", "the domain must not be empty"),
        Some(domain) => {
            if domain.len() > MAX_DRIVER_BYTES {
                errors.push(FieldError::too_long(path, MAX_DRIVER_BYTES));
            }
            errors.all_invalid(path, domain, name::dns1123_subdomain(&domain.to_lowercase()));
        }
        None => {}
    }
    if id.is_empty() && domain.is_some() {
        errors.invalid(path, "", "the name must not be empty");
    } else {
        if id.len() > MAX_BYTES {
            errors.push(FieldError::too_long(path, MAX_BYTES));
        }
        let starts = id.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        if !starts || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            let why = "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')";
            errors.invalid(path, id, why);
        }
    }
    if needs_domain && !text.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(path, text, why);
    }
}

/// Three numbers, and perhaps words of a pre-release and of a build.
fn is_semver(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, end)| (rest, Some(end)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, end)| (core, Some(end)));
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_pre = |part: &str| {
        is_word(part) && (is_number(part) || !part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    core.split('.').count() == 3
        && core.split('.').all(is_number)
        && pre.is_none_or(|pre| pre.split('.').all(is_pre))
        && build.is_none_or(|build| build.split('.').all(is_word))
}

/// The last of a range of ports.
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

fn driver(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    if text.is_empty() {
        return;
    }
    if text.len() > MAX_DRIVER_BYTES {
        errors.push(FieldError::too_long(it.path, MAX_DRIVER_BYTES));
    }
    errors.all_invalid(it.path, text, name::dns1123_subdomain(&text.to_lowercase()));
}

fn pool_name(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    if text.is_empty() {
        return;
    }
    if text.len() > MAX_POOL_BYTES {
        errors.push(FieldError::too_long(it.path, MAX_POOL_BYTES));
    }
    for part in text.split('/') {
        errors.all_invalid(it.path, part, name::dns1123_subdomain(part));
    }
}

fn limit_type(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    let whys = name::qualified_name(text);
    if !whys.is_empty() {
        errors.all_invalid(it.path, text, whys);
    } else if !text.contains('/') && !STANDARD_LIMITS.contains(&text) {
        errors.invalid(it.path, text, "must be a standard limit type or fully qualified");
    }
}

/// A schedule in cron format: macros, or five fields of numbers and names.
fn cron(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const BOUNDS: [(u32, u32); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    let text = it.text();
    if text.is_empty() {
        return;
    }
    let zoned = text.contains("TZ");
    let before = it.old.and_then(|old| old.get("schedule")).and_then(Value::as_str);
    if zoned && before.is_none_or(|before| !before.contains("TZ")) {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.invalid(it.path, text, why);
        return;
    }
    let plain = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    let plain = plain.map_or(text, |rest| rest.split_once(' ').map_or("", |(_, rest)| rest));
    let fields: Vec<&str> = plain.split_whitespace().collect();
    if plain.starts_with('@') {
        if !fields.first().is_some_and(|first| MACROS.contains(first)) {
            errors.invalid(it.path, text, &format!("unrecognized descriptor: {plain}"));
        }
        return;
    }
    if fields.len() != BOUNDS.len() {
        let why = format!("expected exactly 5 fields, found {}: {fields:?}", fields.len());
        return errors.invalid(it.path, text, &why);
    }
    let wrong = fields.iter().zip(BOUNDS).find(|(field, bounds)| !is_cron_field(field, *bounds));
    if let Some((field, _)) = wrong {
        errors.invalid(it.path, text, &format!("failed to parse {field}"));
    }
}

fn is_cron_field(field: &str, (first, last): (u32, u32)) -> bool {
    let value = |text: &str| match text.parse::<u32>() {
        Ok(number) => Some(number),
        Err(_) => cron_name(text),
    };
    let fits = |number: u32| (first..=last).contains(&number);
    field.split(',').all(|part| {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let stepped = step.parse::<u32>().is_ok_and(|step| step > 0);
        let ranged = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => true,
            Some((from, to)) => value(from)
                .zip(value(to))
                .is_some_and(|(from, to)| from <= to && fits(from) && fits(to)),
            None => value(range).is_some_and(fits),
        };
        stepped && ranged
    })
}

/// Number of a month or a day.
fn cron_name(text: &str) -> Option<u32> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let text = text.to_ascii_lowercase();
    let month = MONTHS.iter().position(|name| *name == text).map(|at| at + 1);
    let day = || DAYS.iter().position(|name| *name == text);
    month.or_else(day).and_then(|at| u32::try_from(at).ok())
}

fn time_zone(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Some(Value::String(zone)) = it.value else { return };
    let before = it.old.and_then(|old| old.get("timeZone")).and_then(Value::as_str);
    if before == Some(zone.as_str()) {
        return;
    }
    if zone.is_empty() {
        return errors.invalid(it.path, "", "timeZone must be nil or non-empty string");
    }
    if zone.eq_ignore_ascii_case("local") {
        let why =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return errors.invalid(it.path, zone.as_str(), why);
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "/_+-".contains(letter);
    if !zone.chars().all(is_word) || !ZONES.iter().any(|known| zone.starts_with(known)) {
        errors.invalid(it.path, zone.as_str(), &format!("unknown time zone {zone}"));
    }
}

fn ingress_host(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let host = it.text();
    if host.is_empty() {
        return;
    }
    let is_name = it.rule.path == ["host"] || it.rule.path == ["hostname"];
    if is_name && host.parse::<IpAddr>().is_ok() {
        errors.invalid(it.path, host, "must be a DNS name, not an IP address");
    }
    let whys = match host.contains('*') {
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
        return errors.invalid(it.path, path, "must be an absolute path");
    }
    for part in WITHIN.iter().filter(|part| path.contains(**part)) {
        errors.invalid(it.path, path, &format!("must not contain '{part}'"));
    }
    for part in AT_END.iter().filter(|part| path.ends_with(**part)) {
        errors.invalid(it.path, path, &format!("cannot end with '{part}'"));
    }
}
