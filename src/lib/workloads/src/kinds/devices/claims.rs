//! Validation of the device status that drivers report for an allocated claim.

use crate::cells::str_at;
use crate::checks::{FieldErrors, given, items, parse_cidr};
use crate::paths::FieldPath;
use crate::rules::status_conditions;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, FormattedValue, Word};
use std::collections::HashSet;

const MAX_CONDITIONS: usize = 8;

/// A device, or a share of one: driver, pool, name, share.
type DeviceId<'a> = [&'a str; 4];

fn id(device: &Value) -> DeviceId<'_> {
    ["driver", "pool", "device", "shareID"].map(|field| str_at(device, &[field]))
}

/// Formatted like Go's struct.
fn shown(id: DeviceId<'_>) -> FormattedValue {
    let names = ["Driver", "Pool", "Device", "ShareID"].into_iter();
    FormattedValue::object(names.zip(id.map(|text| FormattedValue::new(Word(text)))))
}

/// Appends the errors of a status's devices that the rows cannot find.
pub(super) fn check_devices(status: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let got = given(status, "allocation").and_then(|got| given(got, "devices"));
    let got: HashSet<DeviceId<'_>> =
        got.map_or(&[][..], |got| items(got, "results")).iter().map(id).collect();
    let mut seen = HashSet::new();
    for (at, device) in items(status, "devices").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (path, id) = (path.index(at), id(device));
        share(device, path, errors);
        if !got.contains(&id) {
            errors.invalid(path, shown(id), "must be an allocated device in the claim");
        }
        let (conditions, place) = (items(device, "conditions"), path.field("conditions"));
        if conditions.len() > MAX_CONDITIONS {
            errors.push(|| FieldError::too_many(place, conditions.len(), MAX_CONDITIONS));
        }
        status_conditions::check(conditions, place, errors);
        if let Some(network) = given(device, "networkData") {
            let list = path.field("networkData.ips");
            for (at, address) in items(network, "ips").iter().enumerate() {
                interface_address(address.as_str().unwrap_or_default(), list.index(at), errors);
            }
        }
        if !seen.insert(id) {
            errors.duplicate(path, shown(id));
        }
    }
}

/// The share of a device is a UUID.
pub(super) fn share(device: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const FORM: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
    let Some(uid) = given(device, "shareID").and_then(Value::as_str) else { return };
    let path = path.field("shareID");
    match uuid_fault(uid) {
        Some(why) => errors.invalid(path, uid, &format!("error validating uid: {why}")),
        None if uid.len() != 36 || uid.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            errors.invalid(path, uid, FORM);
        }
        None => {}
    }
}

/// Why a text is no UUID: plain, without dashes, in braces, or as a URN.
fn uuid_fault(text: &str) -> Option<String> {
    const FAULT: &str = "invalid UUID format";
    let bytes = text.as_bytes();
    let plain = match bytes.len() {
        36 => bytes,
        45 if !bytes[..9].eq_ignore_ascii_case(b"urn:uuid:") => {
            let prefix = String::from_utf8_lossy(&bytes[..9]).into_owned();
            return Some(format!(
                "invalid urn prefix: {}",
                ferrokube_apimachinery::field::quote(&prefix)
            ));
        }
        45 => &bytes[9..],
        38 if bytes[0] != b'{' || bytes[37] != b'}' => {
            return Some("invalid bracketed UUID format".to_owned());
        }
        38 => &bytes[1..37],
        32 => {
            return (!bytes.iter().all(u8::is_ascii_hexdigit)).then(|| FAULT.to_owned());
        }
        length => return Some(format!("invalid UUID length: {length}")),
    };
    let fits = plain.iter().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    (!fits).then(|| FAULT.to_owned())
}

fn interface_address(text: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some((address, length)) = parse_cidr(text) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return errors.invalid(path, text, why);
    };
    let plain = address.to_canonical();
    let length = if plain.is_ipv4() && length > 32 { length - 96 } else { length };
    let canonical = format!("{plain}/{length}");
    if canonical != text {
        errors.invalid(path, text, &format!("must be in canonical form ({canonical:?})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn errors(device: Value) -> Vec<String> {
        let one = json!({"driver": "d", "pool": "p", "device": "v"});
        let mut whole = one.clone();
        for (field, value) in device.as_object().expect("fields") {
            whole[field.as_str()] = value.clone();
        }
        let mut result = one;
        result["request"] = "r".into();
        let status = json!({"allocation": {"devices": {"results": [result]}}, "devices": [whole]});
        let (mut errors, root) = (FieldErrors::default(), FieldPath::Root);
        check_devices(&status, root.field("devices"), &mut errors);
        errors
            .into_vec()
            .iter()
            .map(|error| format!("{}: {}", error.field, error.message))
            .collect()
    }

    #[test]
    fn devices_are_those_that_were_allocated() {
        assert_eq!(errors(json!({})), [""; 0]);
        assert_eq!(
            errors(json!({"device": "other"})),
            [
                r#"devices[0]: Invalid value: {"Driver":"d","Pool":"p","Device":"other","ShareID":""}: must be an allocated device in the claim"#
            ]
        );
    }

    #[test]
    fn shares_are_uuids() {
        let uuid = |text: &str| {
            let (mut errors, device) = (FieldErrors::default(), json!({ "shareID": text }));
            share(&device, FieldPath::Root, &mut errors);
            errors.into_vec().first().map(|error| error.message.clone()).unwrap_or_default()
        };
        assert_eq!(uuid("0b2f7c9e-6a1d-4f5b-8c3e-2d1a0f9e8b7c"), "");
        let found = uuid("");
        assert!(found.ends_with("error validating uid: invalid UUID length: 0"), "{found}");
        let found = uuid("0B2f7c9e-6a1d-4f5b-8c3e-2d1a0f9e8b7c");
        assert!(found.contains("RFC 4122 normalized form"), "{found}");
        let found = uuid("0b2f7c9e-6a1d-4f5b-8c3e-2d1a0f9e8b7x");
        assert!(found.ends_with("invalid UUID format"), "{found}");
        assert!(uuid("{0b2f7c9e-6a1d-4f5b-8c3e-2d1a0f9e8b7c)").ends_with("bracketed UUID format"));
        assert!(uuid(&"x".repeat(45)).contains("invalid urn prefix: \"xxxxxxxxx\""));
    }

    #[test]
    fn conditions_and_addresses_are_well_formed() {
        let condition = json!({"type": "A_b", "status": "x", "reason": "-", "lastTransitionTime": "2024-01-02T03:04:05Z"});
        let found = errors(json!({"conditions": [condition]}));
        assert_eq!(found.len(), 2, "{found:?}");
        let addresses = json!({"networkData": {"ips": ["10.0.0.1/8", "10.0.0.1", "::FFFF/64"]}});
        let found = errors(addresses);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].ends_with("must be in canonical form (\"::ffff/64\")"), "{found:?}");
    }
}
