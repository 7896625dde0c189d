//! Rules for field references, and for formats of other systems: iSCSI initiators, sysctls, Windows
//! users.

use super::field::{CheckFn, RuledField, listed};
use crate::checks::{self, FieldErrors, text};
use crate::conditions::find;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::quantity::Quantity;

/// Fields of pods available to the downward API.
const POD_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];
const UNITS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
const MAX_SYSCTL_BYTES: usize = 253;

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "fieldpath" => field_path,
        "resourcefield" => resource_field,
        "localpath" => local_path,
        "iqn" => initiator,
        "notofroot" => |it, errors| {
            let path: Vec<&str> = it.rule.argument.split('.').collect();
            if find(it.object, &path).and_then(Value::as_str).is_some_and(is_root) {
                errors.forbidden(it.path, it.detail(""));
            }
        },
        // Of an object that was stored with a group, none is judged.
        "group" => |it, errors| {
            let has_group = |old: &Map| {
                it.names()
                    .any(|field| find(old, &[field, "apiGroup"]).is_some_and(Value::is_string))
            };
            if it.set().is_some() && !it.old.is_some_and(has_group) {
                errors.all_invalid(it.path, it.text(), name::dns1123_subdomain(it.text()));
            }
        },
        "hostports" => |it, errors| {
            const MAX_TENANT_BYTES: usize = 64;
            let tenant = it.object.get("tenant").and_then(Value::as_str).unwrap_or_default();
            if it.set().is_some()
                && tenant.len() > MAX_TENANT_BYTES
                && let FieldPath::Field(parent, _) = it.path
            {
                let why = "must be a UUID and may not exceed a length of 64 characters";
                return errors.required(parent.field("tenant"), why);
            }
            for pair in it.text().split(',').filter(|_| it.set().is_some()) {
                let is_pair = pair.rsplit_once(':').is_some_and(|(host, _)| {
                    !host.contains(':') || (host.starts_with('[') && host.ends_with(']'))
                });
                if !is_pair {
                    errors.invalid(it.path, it.text(), it.detail(""));
                }
            }
        },
        "flexoptions" => |it, errors| {
            for (key, _) in it.value.and_then(Value::as_object).into_iter().flatten() {
                let domain = key.split_once('/').map_or(key.as_str(), |(domain, _)| domain);
                let domain = format!(".{}", domain.to_lowercase());
                if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
                    let why = "kubernetes.io and k8s.io namespaces are reserved";
                    errors.invalid(it.path.key(key), key.as_str(), why);
                }
            }
        },
        "lacks" => |it, errors| {
            if it.text().contains(it.rule.argument) {
                let usual = format!("must not contain '{}'", it.rule.argument);
                errors.invalid(it.path, it.text(), &usual);
            }
        },
        "starts" => |it, errors| {
            if !it.text().starts_with(it.rule.argument) {
                errors.not_supported(it.path, it.text(), &[it.detail("")]);
            }
        },
        "unsupported" => |it, errors| listed(it, it.text(), errors),
        "sysctl" => sysctl,
        "dnssearches" => searches,
        "windowsuser" => windows_user,
        "joined-label-value" => |it, errors| {
            let whys = name::label_value(it.text());
            if !whys.is_empty() {
                errors.invalid(it.path, it.text(), &whys.join(";"));
            }
        },
        _ => return None,
    })
}

/// Splits a path with a subscript such as `['x']` into path and subscript.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(path, _)| !path.is_empty())
}

/// A reference to a field of the pod; the argument lists those without a subscript.
fn field_path(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Some(reference) = it.value.filter(|value| value.is_object()) else { return };
    let (version, path) = (text(reference, "apiVersion"), text(reference, "fieldPath"));
    let place = it.path.field("fieldPath");
    let unknown = |why: String| format!("error converting fieldPath: {why}");
    if version.is_empty() {
        return errors.required(it.path.field("apiVersion"), "");
    }
    if path.is_empty() {
        return errors.required(place, "");
    }
    if version != "v1" {
        let why = format!("unsupported pod version: {version}");
        return errors.invalid(place, path, &unknown(why));
    }
    match subscripted(path) {
        Some(("metadata.annotations", key)) => {
            errors.all_invalid(
                it.path,
                &key.to_lowercase(),
                name::qualified_name(&key.to_lowercase()),
            );
        }
        Some(("metadata.labels", key)) => {
            errors.all_invalid(it.path, key, name::qualified_name(key));
        }
        Some(_) => {
            let why = format!("field label does not support subscript: {path}");
            errors.invalid(place, path, &unknown(why));
        }
        None if path != "spec.host" && !POD_FIELDS.contains(&path) => {
            let why = format!("field label not supported: {path}");
            errors.invalid(place, path, &unknown(why));
        }
        None if !it.names().any(|known| known == path) => listed_at(it, path, errors),
        None => {}
    }
}

fn listed_at(it: &RuledField<'_>, path: &str, errors: &mut FieldErrors) {
    errors.push(|| FieldError::not_supported(it.path.field("fieldPath"), path, it.names()));
}

/// A reference to a container's resources; in volumes it must name the container.
fn resource_field(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let Some(reference) = it.value.filter(|value| value.is_object()) else { return };
    let resource = text(reference, "resource");
    let is_huge = HUGE_PAGES.iter().any(|prefix| resource.starts_with(prefix));
    if it.rule.argument == "volume" && text(reference, "containerName").is_empty() {
        errors.required(it.path.field("containerName"), "");
    } else if resource.is_empty() {
        errors.required(it.path.field("resource"), "");
    } else if !RESOURCES.contains(&resource) && !is_huge {
        errors.not_supported(it.path.field("resource"), resource, &RESOURCES);
    }
    let divisor = reference.get("divisor").and_then(|value| Quantity::from_value(value).ok());
    let Some(divisor) = divisor.filter(|divisor| !divisor.is_zero()) else { return };
    let given = divisor.canonical();
    let many = "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the";
    let (known, why) = match resource {
        "limits.cpu" | "requests.cpu" => (
            &["1m", "1"][..],
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned(),
        ),
        "limits.memory" | "requests.memory" => (&UNITS[..], format!("{many} memory resource")),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&UNITS[..], format!("{many} local ephemeral storage resource"))
        }
        _ if is_huge => (&UNITS[..], format!("{many} hugepages resource")),
        _ => return,
    };
    if !known.contains(&given.as_str()) {
        errors.invalid(it.path.field("divisor"), resource, &why);
    }
}

/// A relative path that avoids the names reserved in volumes.
fn local_path(it: &RuledField<'_>, errors: &mut FieldErrors) {
    checks::local_path(it.text(), it.path, errors);
}

/// Whether a path leads to the root.
fn is_root(path: &str) -> bool {
    let mut depth = 0usize;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
    }
    path.starts_with('/') && depth == 0
}

/// An iSCSI name in one of its three formats.
fn initiator(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    if it.value.is_none_or(Value::is_null) || (text.is_empty() && it.rule.path == ["iqn"]) {
        return;
    }
    let alphanumeric = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let after = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.get(1..));
    let fits = if text.starts_with("iqn") {
        is_qualified(text)
    } else if text.starts_with("eui") {
        after("eui").is_some_and(|rest| alphanumeric(rest, 16))
    } else if text.starts_with("naa") {
        after("naa").is_some_and(|rest| alphanumeric(rest, 32))
    } else {
        return errors.invalid(it.path, text, it.detail("must be valid format"));
    };
    if !fits {
        errors.invalid(it.path, text, "must be valid format");
    }
}

/// `iqn.`, year and month, an authority, and a name.
fn is_qualified(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("iqn.") else { return false };
    let (Some(date), Some(rest)) = (rest.get(..7), rest.get(7..)) else { return false };
    let is_date = date.bytes().enumerate().all(|(at, byte)| match at {
        4 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let Some((authority, name)) = rest.strip_prefix('.').and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    let is_authority = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let is_name = |letter: char| !",;*&$|".contains(letter) && !letter.is_ascii_whitespace();
    is_date
        && !authority.is_empty()
        && authority.bytes().all(is_authority)
        && !name.is_empty()
        && name.chars().all(is_name)
}

/// The name of a kernel parameter.
fn sysctl(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    let is_segment = |segment: &str| {
        let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = segment.as_bytes();
        bytes.first().is_some_and(|first| edge(*first))
            && bytes.last().is_some_and(|last| edge(*last))
            && bytes.iter().all(|byte| edge(*byte) || matches!(byte, b'-' | b'_'))
    };
    if it.set().is_some()
        && (text.len() > MAX_SYSCTL_BYTES || !text.split(['.', '/']).all(is_segment))
    {
        let why = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
        errors.invalid(it.path, text, why);
    }
}

/// DNS search domains; underscores are permitted.
fn searches(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const MOST: usize = 32;
    const MAX_BYTES: usize = 2048;
    let texts: Vec<&str> = it.items().iter().filter_map(Value::as_str).collect();
    if texts.len() > MOST {
        errors.invalid(it.path, it.value, "must not have more than 32 search paths");
    }
    let bytes = texts.iter().map(|text| text.len() + 1).sum::<usize>().saturating_sub(1);
    if bytes > MAX_BYTES {
        let why = "must not have more than 2048 characters (including spaces) in the search list";
        errors.invalid(it.path, it.value, why);
    }
    for (at, text) in texts.iter().enumerate().filter(|(_, text)| **text != ".") {
        if errors.is_full() {
            return;
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        errors.all_invalid(it.path.index(at), text, checks::underscored_subdomain(text));
    }
}

/// A user of Windows: `DOMAIN\USER` or `USER`.
fn windows_user(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const MAX_DOMAIN: usize = 256;
    const MAX_USER: usize = 104;
    let Some(text) = it.value.and_then(Value::as_str) else { return };
    let mut refuse = |why: &str| errors.invalid(it.path, text, why);
    if text.is_empty() {
        return refuse("runAsUserName cannot be an empty string");
    }
    if text.chars().any(|letter| letter.is_ascii_control()) {
        return refuse("runAsUserName cannot contain control characters");
    }
    let parts: Vec<&str> = text.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return refuse("runAsUserName cannot contain more than one backslash"),
    };
    if let Some(domain) = domain {
        if domain.len() >= MAX_DOMAIN {
            refuse("runAsUserName's Domain length must be under 256 characters");
        }
        if !is_windows_domain(domain) {
            refuse("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        refuse("runAsUserName's User cannot be empty");
    } else if user.len() > MAX_USER {
        refuse("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|letter| matches!(letter, '.' | ' ')) {
        refuse("runAsUserName's User cannot contain only periods or spaces");
    }
    if user
        .contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']'])
    {
        refuse("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

fn is_windows_domain(domain: &str) -> bool {
    const MAX_NETBIOS: usize = 15;
    let is_netbios = (1..=MAX_NETBIOS).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|']);
    is_netbios
        || domain.split('.').all(|label| name::dns1123_label(&label.to_lowercase()).is_empty())
}
