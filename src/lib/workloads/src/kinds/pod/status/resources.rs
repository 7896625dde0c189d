//! Validation of resources and users in container statuses.

use crate::checks::{FieldErrors, given, items, text};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::work::CountedKey;
use std::collections::{HashMap, HashSet};

const HEALTHS: [&str; 3] = ["Healthy", "Unhealthy", "Unknown"];
const MAX_MESSAGE_BYTES: usize = 1024;

/// Containers by name; the last one wins.
type Containers<'a> = HashMap<CountedKey<&'a str>, &'a Value>;
/// Claims of containers: container, claim, and its request or nothing.
type ContainerClaims<'a> = HashSet<CountedKey<(&'a str, &'a str, &'a str)>>;

/// Checks the statuses of a container list; ephemeral containers have no resources.
pub(super) fn check(
    spec: &Value,
    of: &str,
    statuses: &[Value],
    list: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let containers: Containers<'_> =
        items(spec, of).iter().rev().map(|one| (CountedKey(text(one, "name")), one)).collect();
    let claims: ContainerClaims<'_> =
        containers.values().flat_map(|container| claims(container)).collect();
    let system = spec.get("os").map_or("linux", |os| text(os, "name"));
    for (index, status) in statuses.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = list.index(index);
        user(status, system, path.field("user.linux"), errors);
        let (allocated, below) =
            (items(status, "allocatedResourcesStatus"), path.field("allocatedResourcesStatus"));
        if of.is_empty() && !allocated.is_empty() {
            errors.forbidden(below, "must not be specified in container status");
            continue;
        }
        let container = containers.get(&CountedKey(text(status, "name"))).copied();
        for (index, resource) in allocated.iter().enumerate() {
            if errors.is_full() {
                return;
            }
            check_resource(resource, container, &claims, below.index(index), errors);
        }
    }
}

fn user(status: &Value, system: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(user) = status.get("user").and_then(|user| given(user, "linux")) else { return };
    match system {
        "windows" => return errors.forbidden(path, "cannot be set for a windows pod"),
        "linux" => {}
        _ => return,
    }
    let mut check = |id: Option<&Value>, path: FieldPath<'_>| {
        let number = id.and_then(Value::as_i64).unwrap_or_default();
        if i32::try_from(number).is_ok_and(|number| number >= 0) || errors.is_full() {
            return;
        }
        errors.invalid(path, number, "must be between 0 and 2147483647, inclusive");
    };
    check(user.get("uid"), path.field("uid"));
    check(user.get("gid"), path.field("gid"));
    let below = path.field("supplementalGroups");
    for (index, group) in items(user, "supplementalGroups").iter().enumerate() {
        check(Some(group), below.index(index));
    }
}

/// Checks an allocated resource and the health of its parts.
fn check_resource(
    resource: &Value,
    container: Option<&Value>,
    claims: &ContainerClaims<'_>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let name = text(resource, "name");
    // Of a container that is not there nothing is known.
    let resources = container.map(|container| container.get("resources").unwrap_or(&Value::Null));
    let (is_known, why) = match name.strip_prefix("claim:") {
        Some(claim) => (
            container.is_none_or(|container| has(claims, text(container, "name"), claim)),
            "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
        ),
        None => (
            resources.is_none_or(|all| requests(all).is_some_and(|all| all.contains_key(name))),
            "must match one of the container's resource requests",
        ),
    };
    if !is_known {
        errors.invalid(path.field("name"), name, why);
    }
    let mut seen = HashSet::new();
    let list = path.field("resources");
    for (index, part) in items(resource, "resources").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = list.index(index);
        let health = text(part, "health");
        if !HEALTHS.contains(&health) {
            errors.not_supported(path.field("health"), health, &HEALTHS);
        }
        match given(part, "message").and_then(Value::as_str) {
            Some("") => errors.required(path.field("message"), "must be non-empty if specified"),
            Some(message) if message.len() > MAX_MESSAGE_BYTES => {
                errors.push(|| FieldError::too_long(path.field("message"), MAX_MESSAGE_BYTES));
            }
            _ => {}
        }
        let id = text(part, "resourceID");
        if !seen.insert(id) {
            errors.duplicate(path.field("resourceID"), id);
        }
    }
}

fn requests(resources: &Value) -> Option<&Map> {
    resources.get("requests").and_then(Value::as_object)
}

/// Whether `called` names a claim of the container: its name, plus its request if it has one.
fn has(claims: &ContainerClaims<'_>, container: &str, called: &str) -> bool {
    claims.contains(&CountedKey((container, called, "")))
        || called.split_once('/').is_some_and(|(name, request)| {
            !request.is_empty() && claims.contains(&CountedKey((container, name, request)))
        })
}

fn claims(container: &Value) -> impl Iterator<Item = CountedKey<(&str, &str, &str)>> {
    let resources = container.get("resources").unwrap_or(&Value::Null);
    let key = |claim| (text(container, "name"), text(claim, "name"), text(claim, "request"));
    items(resources, "claims").iter().map(move |claim| CountedKey(key(claim)))
}

/// Checks the claim created for a pod's extended resources.
pub(super) fn check_extended(
    spec: &Value,
    status: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(status) = given(status, "extendedResourceClaimStatus") else { return };
    let containers: Containers<'_> = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| items(spec, list))
        .map(|one| (CountedKey(text(one, "name")), one))
        .collect();
    let (mappings, list) = (items(status, "requestMappings"), path.field("requestMappings"));
    if mappings.is_empty() {
        errors.required(list, "at least one request mapping is required");
    }
    let mut seen = HashSet::new();
    for (index, mapping) in mappings.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let below = list.index(index);
        let key =
            ["containerName", "resourceName", "requestName"].map(|it| (it, text(mapping, it)));
        let [(_, container), (_, resource), (_, request)] = key;
        match containers.get(&CountedKey(container)) {
            Some(container) => {
                let all = container.get("resources").and_then(requests);
                if !all.is_some_and(|all| all.contains_key(resource)) {
                    let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                    errors.invalid(below.field("resourceName"), resource, why);
                }
            }
            None => {
                let why = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid(below.field("containerName"), container, why);
            }
        }
        errors.all_invalid(path.field("requestName"), request, name::dns1123_label(request));
        if !seen.insert(key) {
            for (field, value) in key {
                errors.duplicate(below.field(field), value);
            }
        }
    }
    let (claim, place) = (text(status, "resourceClaimName"), path.field("resourceClaimName"));
    match claim {
        "" => errors.required(place, ""),
        claim => errors.all_invalid(place, claim, name::dns1123_subdomain(claim)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn spec() -> Value {
        json!({"containers": [{"name": "c", "resources": {
            "requests": {"example.com/gpu": "1"},
            "claims": [{"name": "a"}, {"name": "b", "request": "r"}],
        }}]})
    }

    fn fields(of: &str, statuses: Value) -> Vec<String> {
        let (mut errors, root) = (FieldErrors::default(), FieldPath::Root);
        let list = statuses.as_array().expect("a list").as_slice();
        check(&spec(), of, list, root.field("s"), &mut errors);
        errors.into_vec().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn containers_have_the_resources_that_they_asked_for() {
        let named = |name: &str| {
            let allocated = json!([{"name": name, "resources": []}]);
            fields("containers", json!([{"name": "c", "allocatedResourcesStatus": allocated}]))
        };
        for known in ["example.com/gpu", "claim:a", "claim:b/r"] {
            assert!(named(known).is_empty(), "{known}");
        }
        for unknown in ["example.com/x", "claim:b", "claim:a/r", "cpu"] {
            assert_eq!(named(unknown), ["s[0].allocatedResourcesStatus[0].name"], "{unknown}");
        }
        let of_none = json!([{"name": "z", "allocatedResourcesStatus": [{"name": "x"}]}]);
        assert!(fields("containers", of_none.clone()).is_empty());
        assert_eq!(fields("", of_none), ["s[0].allocatedResourcesStatus"]);
    }

    #[test]
    fn parts_have_a_health_and_an_id() {
        let parts = json!([
            {"resourceID": "1", "health": "Healthy", "message": "m"},
            {"resourceID": "1", "health": "x", "message": ""},
            {"health": "Unknown", "message": "m".repeat(1025)},
        ]);
        let allocated = json!([{"name": "claim:a", "resources": parts}]);
        let found =
            fields("containers", json!([{"name": "c", "allocatedResourcesStatus": allocated}]));
        let at = |place: &str| format!("s[0].allocatedResourcesStatus[0].resources{place}");
        let wrong = ["[1].health", "[1].message", "[1].resourceID", "[2].message"];
        assert_eq!(found, wrong.map(at));
    }

    #[test]
    fn users_have_ids() {
        let user =
            json!({"linux": {"uid": -1, "gid": 5, "supplementalGroups": [1, 2_147_483_648_i64]}});
        let found = fields("containers", json!([{"name": "c", "user": user}]));
        assert_eq!(found, ["s[0].user.linux.uid", "s[0].user.linux.supplementalGroups[1]"]);
    }

    #[test]
    fn claims_for_extended_resources_refer_to_containers() {
        let mapping = |container: &str, resource: &str| json!({"containerName": container, "resourceName": resource, "requestName": "r"});
        let found = |mappings: Value| {
            let (mut errors, root) = (FieldErrors::default(), FieldPath::Root);
            let claim = json!({"resourceClaimName": "c", "requestMappings": mappings});
            let status = json!({"extendedResourceClaimStatus": claim});
            check_extended(&spec(), &status, root.field("e"), &mut errors);
            errors.into_vec().into_iter().map(|error| error.field).collect::<Vec<_>>()
        };
        let known = mapping("c", "example.com/gpu");
        assert!(found(json!([known.clone()])).is_empty());
        assert_eq!(found(json!([])), ["e.requestMappings"]);
        assert_eq!(found(json!([mapping("c", "x")])), ["e.requestMappings[0].resourceName"]);
        assert_eq!(found(json!([mapping("z", "x")])), ["e.requestMappings[0].containerName"]);
        assert_eq!(found(json!([known.clone(), known])).len(), 3);
    }
}
