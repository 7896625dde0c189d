//! Rules about texts, labels and selectors.

use super::field::{CheckFn, RuledField, listed};
use crate::checks::{self, FieldErrors, PORT, is_port, items, text};
use crate::conditions::is_set;
use crate::paths::FieldPath;
use crate::resource_names;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use std::collections::HashSet;

const STANDARD_LIMITS: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];

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
        // The error shows the value as compared.
        "provisioner" => |it, errors| {
            if it.set().is_some() {
                let lower = it.text().to_lowercase();
                errors.all_invalid(it.path, &lower, name::qualified_name(&lower));
            }
        },
        "containerresource" => |it, errors| {
            if it.set().is_some() {
                resource_names::container_resource_name(it.text(), it.path, errors);
            }
        },
        "nonempty" => |it, errors| {
            if it.value.and_then(Value::as_str) == Some("") {
                errors.invalid(it.path, "", it.detail(""));
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
                // The limit that kube-apiserver names may be another one.
                let shown = it.rule.detail.parse().unwrap_or(most);
                errors.push(|| FieldError::too_long(it.path, shown));
            }
        },
        "unpadded" => |it, errors| {
            if it.text().trim() != it.text() {
                errors.invalid(it.path, it.text(), it.detail(""));
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
        "rwop" => |it, errors| {
            const OTHERS: [&str; 3] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];
            let has = |name: &str| it.items().iter().any(|mode| mode.as_str() == Some(name));
            if has("ReadWriteOncePod") && OTHERS.iter().any(|other| has(other)) {
                let why = "may not use ReadWriteOncePod with other access modes";
                errors.forbidden(it.path, why);
            }
        },
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
            const MOST: usize = 512;
            const MAX_BYTES: usize = 256 << 10;
            let Some(map) = it.value.and_then(Value::as_object) else { return };
            if map.len() > MOST {
                return errors.push(|| FieldError::too_long(it.path, MOST));
            }
            if map.contains_key("") {
                errors.invalid(it.path, "", "field can not be empty.");
            }
            let bytes = |(key, value): (&_, &Value)| {
                let key: &ferrokube_apimachinery::document::Text = key;
                key.len() + value.as_str().unwrap_or_default().len()
            };
            if map.iter().map(bytes).sum::<usize>() > MAX_BYTES {
                errors.push(|| FieldError::too_long(it.path, MAX_BYTES));
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
        "tokenrequests" => token_requests,
        "extendedresource" => |it, errors| {
            if it.value.is_some_and(Value::is_string) && !resource_names::is_extended(it.text()) {
                errors.invalid(it.path, it.text(), "must be a valid extended resource name");
            }
        },
        "limittype" => limit_type,
        "policytypes" => policy_types,
        "domainpath" => |it, errors| {
            if it.value.is_some_and(|value| !value.is_null()) {
                domain_path(it, errors);
            }
        },
        "domainpath!" => domain_path,
        _ => return None,
    })
}

fn form(it: &RuledField<'_>, errors: &mut FieldErrors) {
    if let Some(form) = it.rule.form {
        errors.all_invalid(it.path, it.text(), form(it.text()));
    }
}

/// A domain and a path: `example.com/a`.
fn domain_path(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const WHY: &str =
        "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
    let whole = it.text();
    if whole.is_empty() {
        return errors.required(it.path, "");
    }
    let parts =
        whole.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty());
    let Some((domain, path)) = parts else {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        return errors.invalid(it.path, whole, why);
    };
    errors.all_invalid(it.path, domain, name::dns1123_subdomain(domain));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    if !path.bytes().all(fits) {
        errors.invalid(it.path, path, WHY);
    }
}

/// Network policy types; too many are rejected unchecked.
fn policy_types(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const TYPES: [&str; 2] = ["Ingress", "Egress"];
    if it.items().len() > TYPES.len() {
        return errors.invalid(it.path, it.value, "may not specify more than two policyTypes");
    }
    for (at, item) in it.items().iter().enumerate() {
        let kind = item.as_str().unwrap_or_default();
        if !TYPES.contains(&kind) {
            errors.not_supported(it.path.index(at), kind, &TYPES);
        }
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

/// Tokens requested by a CSI driver: one per audience, valid for at least ten minutes.
fn token_requests(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const SECONDS: std::ops::RangeInclusive<i64> = 600..=1 << 32;
    let mut audiences = HashSet::new();
    for (at, request) in it.items().iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = it.path.index(at);
        let audience = text(request, "audience");
        if !audiences.insert(audience) {
            errors.duplicate(path.field("audience"), audience);
            continue;
        }
        let Some(seconds) = request.get("expirationSeconds").and_then(Value::as_i64) else {
            continue;
        };
        let path = path.field("expirationSeconds");
        if seconds < *SECONDS.start() {
            errors.invalid(path, seconds, "may not specify a duration less than 10 minutes");
        } else if !SECONDS.contains(&seconds) {
            errors.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
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

fn limit_type(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    let whys = name::qualified_name(text);
    if !whys.is_empty() {
        errors.all_invalid(it.path, text, whys);
    } else if !text.contains('/') && !STANDARD_LIMITS.contains(&text) {
        errors.invalid(it.path, text, "must be a standard limit type or fully qualified");
    }
}
