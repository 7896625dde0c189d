//! Rules about devices, their drivers and pools.

use super::field::{CheckFn, RuledField};
use crate::checks::FieldErrors;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;

/// Max bytes of the name of a driver.
const MAX_DRIVER_BYTES: usize = 63;
const MAX_POOL_BYTES: usize = 253;
/// Max bytes of the expression of a selector, as in `rules.tsv`.
const MAX_SELECTOR_BYTES: usize = 10_240;

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "driver" => driver,
        "poolname" => pool_name,
        "oneitem" => |it, errors| {
            if it.items().len() != 1 {
                errors.invalid(it.path, it.value, it.rule.detail);
            }
        },
        // One that is too long is refused for its length.
        "deviceselector" => |it, errors| {
            if it.text().len() <= MAX_SELECTOR_BYTES
                && let Err(why) = ferrokube_cel::devices::check_selector(it.text())
            {
                errors.invalid(it.path, it.text(), &why);
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
        _ => return None,
    })
}

/// The name of a device attribute or capacity: an identifier, optionally with a domain.
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
                errors.push(|| FieldError::too_long(path, MAX_DRIVER_BYTES));
            }
            errors.all_invalid(path, domain, name::dns1123_subdomain(&domain.to_lowercase()));
        }
        None => {}
    }
    if id.is_empty() && domain.is_some() {
        errors.invalid(path, "", "the name must not be empty");
    } else {
        if id.len() > MAX_BYTES {
            errors.push(|| FieldError::too_long(path, MAX_BYTES));
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

/// Whether a text is a semantic version.
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

fn driver(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    if text.is_empty() {
        return;
    }
    if text.len() > MAX_DRIVER_BYTES {
        errors.push(|| FieldError::too_long(it.path, MAX_DRIVER_BYTES));
    }
    errors.all_invalid(it.path, text, name::dns1123_subdomain(&text.to_lowercase()));
}

fn pool_name(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let text = it.text();
    if text.is_empty() {
        return;
    }
    if text.len() > MAX_POOL_BYTES {
        errors.push(|| FieldError::too_long(it.path, MAX_POOL_BYTES));
    }
    for part in text.split('/') {
        errors.all_invalid(it.path, part, name::dns1123_subdomain(part));
    }
}
