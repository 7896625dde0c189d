//! ResourceClaim and ResourceSlice: dynamic allocation of devices.

mod capacities;
mod claims;
mod slices;

use crate::cells::{CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, items, text};
use crate::hooks::KindCode;
use crate::kinds::podspec;
use crate::paths::FieldPath;
use crate::rules::same;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::Change;
use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

/// Names of a claim's requests and their subrequests, to which other fields refer.
struct RequestNames<'a>(HashMap<&'a str, HashSet<&'a str>>);

impl<'a> RequestNames<'a> {
    fn of(devices: &'a Value) -> Self {
        let subrequests = |request: &'a Value| {
            items(request, "firstAvailable").iter().map(|one| text(one, "name")).collect()
        };
        let requests = items(devices, "requests").iter();
        Self(requests.map(|request| (text(request, "name"), subrequests(request))).collect())
    }

    fn check(&self, name: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
        const WHY: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        if name.matches('/').count() > 1 {
            return errors.invalid(path, name, WHY);
        }
        for part in name.split('/') {
            errors.all_invalid(path, part, ferrokube_apimachinery::name::dns1123_label(part));
        }
        let (request, subrequest) = match name.split_once('/') {
            Some((request, subrequest)) => (request, Some(subrequest)),
            None => (name, None),
        };
        let is_known = self.0.get(request).is_some_and(|subrequests| {
            subrequest.is_none_or(|subrequest| subrequests.contains(subrequest))
        });
        if !is_known {
            errors.invalid(path, name, WHY);
        }
    }

    /// Checks the field `requests` of each item of a list.
    fn check_items(&self, list: &[Value], path: FieldPath<'_>, errors: &mut FieldErrors) {
        for (at, item) in list.iter().enumerate() {
            let item_path = path.index(at);
            let names = item_path.field("requests");
            for (index, name) in at_most(MAX_ITEMS, item, "requests").iter().enumerate() {
                if errors.is_full() {
                    return;
                }
                self.check(name.as_str().unwrap_or_default(), names.index(index), errors);
            }
        }
    }
}

/// Validates a claim's spec.
fn check_claim(devices: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let names = RequestNames::of(devices);
    for list in ["constraints", "config"] {
        names.check_items(at_most(MAX_ITEMS, devices, list), path.field(list), errors);
    }
}

/// Max items of most lists of a claim. Of longer lists, the rows say only that they are too long.
const MAX_ITEMS: usize = 32;

/// The list of a field, unless it is longer.
fn at_most<'a>(most: usize, value: &'a Value, field: &str) -> &'a [Value] {
    Some(items(value, field)).filter(|list| list.len() <= most).unwrap_or_default()
}

/// Validates a claim's allocation.
fn check_allocation(devices: &Value, got: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let names = RequestNames::of(devices);
    let results = path.field("results");
    for (at, result) in at_most(MAX_ITEMS, got, "results").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let item = results.index(at);
        names.check(text(result, "request"), item.field("request"), errors);
        slices::check_conditions(result, item, errors);
        claims::share(result, item, errors);
    }
    names.check_items(at_most(2 * MAX_ITEMS, got, "config"), path.field("config"), errors);
}

/// ResourceClaim: a request for devices.
#[derive(Debug)]
pub(crate) struct ResourceClaim;

impl KindCode for ResourceClaim {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({}));
        }
    }

    /// Immutable fields are only compared.
    fn validated(&self, change: &Change<'_>, object: &Document) -> Option<Document> {
        const GOT: [&str; 2] = ["status", "allocation"];
        let old = change.old?;
        let mut validated = object.clone();
        if change.subresource.is_empty() {
            validated.remove(&["spec"]);
        } else if is_allocated(old) && is_allocated(object) {
            validated.set(&GOT, json!({"devices": {}}));
        }
        Some(validated)
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let (root, none) = (FieldPath::Root, Value::Null);
        let devices = object.get(&["spec", "devices"]).unwrap_or(&none);
        let status = root.field("status");
        match change.old {
            None => check_claim(devices, root.field("spec.devices"), errors),
            Some(old) if change.subresource.is_empty() => fixed(old, object, &["spec"], errors),
            Some(old) if is_allocated(old) => {
                if is_allocated(object) {
                    fixed(old, object, &["status", "allocation"], errors);
                }
            }
            Some(_) => {
                if let Some(got) = object.get(&["status", "allocation", "devices"]) {
                    check_allocation(devices, got, status.field("allocation.devices"), errors);
                }
            }
        }
        if let Some(status_value) =
            object.get(&["status"]).filter(|_| !change.subresource.is_empty())
        {
            claims::check_devices(status_value, status.field("devices"), errors);
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let is_set = |path: &[&str]| at(object, path).is_some_and(|value| !value.is_null());
        let deleted = is_set(&["metadata", "deletionTimestamp"]);
        let mut states = Vec::new();
        if deleted {
            states.push("deleted");
        }
        if is_set(&["status", "allocation"]) {
            states.push("allocated");
            if !list_at(object, &["status", "reservedFor"]).is_empty() {
                states.push("reserved");
            }
        } else if !deleted {
            states.push("pending");
        }
        CellValue::text(states.join(","))
    }
}

fn is_allocated(claim: &Document) -> bool {
    claim.get(&["status", "allocation"]).is_some_and(|got| !got.is_null())
}

/// Rejects a change of an immutable field.
fn fixed(old: &Document, object: &Document, path: &[&str], errors: &mut FieldErrors) {
    let (before, after) = (old.get(path), object.get(path));
    if !same(before, after) {
        let (root, dotted) = (FieldPath::Root, path.join("."));
        errors.invalid(root.field(&dotted), after, "field is immutable");
    }
}

/// ResourceClaimTemplate: a claim for each pod.
#[derive(Debug)]
pub(crate) struct ResourceClaimTemplate;

impl KindCode for ResourceClaimTemplate {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if let Some(old) = change.old {
            fixed(old, object, &["spec"], errors);
        }
        let root = FieldPath::Root;
        if let Some(devices) = object.get(&["spec", "spec", "devices"]) {
            check_claim(devices, root.field("spec.spec.devices"), errors);
        }
    }
}

/// ResourceSlice: devices of a pool.
#[derive(Debug)]
pub(crate) struct ResourceSlice;

impl KindCode for ResourceSlice {
    /// Sets the time of taints without one, even if the stored slice had one.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
        let now = ferrokube_apimachinery::time::rfc3339_seconds(change.now);
        podspec::each(spec, "devices", |device| {
            podspec::each(device, "taints", |taint| {
                if taint.get("timeAdded").is_none_or(Value::is_null) {
                    taint.insert("timeAdded", now.as_str().into());
                }
            });
        });
    }

    fn validate(&self, _change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if let Some(spec) = object.get(&["spec"]) {
            slices::check(spec, FieldPath::Root.field("spec"), errors);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        let driver = object.str(&["spec", "driver"]).unwrap_or_default();
        if driver.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let driver = ferrokube_apimachinery::field::quote(driver);
            let why =
                format!("driver names should be lowercase; {driver} contains uppercase characters");
            out.at(FieldPath::Root.field("spec.driver"), &why);
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(str_at(object, &["spec", "nodeName"]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(errors: FieldErrors) -> Vec<String> {
        errors.into_vec().into_iter().map(|error| error.field).collect()
    }

    fn devices() -> Value {
        json!({
            "requests": [{"name": "r"}, {"name": "s", "firstAvailable": [{"name": "t"}]}],
            "constraints": [{"requests": ["r", "s", "s/t", "z", "r/t", "s/t/u"]}],
            "config": [{}, {"requests": ["y"]}],
        })
    }

    #[test]
    fn claims_refer_to_their_requests() {
        let mut errors = FieldErrors::default();
        let root = FieldPath::Root;
        check_claim(&devices(), root.field("spec.devices"), &mut errors);
        let at = |place: &str| format!("spec.devices.{place}");
        let wrong = [3, 4, 5].map(|index| at(&format!("constraints[0].requests[{index}]")));
        assert_eq!(fields(errors), [&wrong[..], &[at("config[1].requests[0]")]].concat());
    }

    #[test]
    fn allocations_refer_to_requests_of_the_claim() {
        let got = json!({
            "results": [{"request": "r"}, {"request": "s/t"}, {"request": "z"}, {}],
            "config": [{"requests": ["r"]}, {"requests": ["z"]}],
        });
        let mut errors = FieldErrors::default();
        let root = FieldPath::Root;
        check_allocation(&devices(), &got, root.field("got"), &mut errors);
        // A name that is none is wrong twice.
        let empty = "got.results[3].request";
        let wrong = ["got.results[2].request", empty, empty, "got.config[1].requests[0]"];
        assert_eq!(fields(errors), wrong);
    }
}
