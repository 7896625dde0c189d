//! Validation of pod status updates.

mod resources;

use crate::checks::{FieldErrors, given, ip, items, number, parse_sloppy_ip, text};
use crate::kinds::podspec::is_sidecar;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::work::CountedKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;

/// Conditions without a qualified name.
const SYSTEM: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];
const NOT_NEGATIVE: &str = "must be a non-negative integer";
const OBSERVED: &str = "observedGeneration";
const LISTS: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    ("ephemeralContainerStatuses", ""),
];

pub(super) fn validate(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let nothing = Value::Null;
    let (before, after) =
        (old.get(&["status"]).unwrap_or(&nothing), object.get(&["status"]).unwrap_or(&nothing));
    let (spec, root) = (old.get(&["spec"]).unwrap_or(&nothing), FieldPath::Root);
    let path = root.field("status");
    conditions(after, path.field("conditions"), errors);
    let nominated = text(after, "nominatedNodeName");
    if nominated != text(before, "nominatedNodeName") && !nominated.is_empty() {
        let place = path.field("nominatedNodeName");
        errors.all_invalid(place, nominated, name::dns1123_subdomain(nominated));
        if !text(spec, "nodeName").is_empty() {
            errors.forbidden(place, "may not be set on pods that are already bound to a node");
        }
    }
    if number(after, OBSERVED) < 0 {
        let value = number(after, OBSERVED);
        errors.invalid(path.field(OBSERVED), value, NOT_NEGATIVE);
    }
    if text(before, "qosClass") != text(after, "qosClass") {
        errors.invalid(path.field("qosClass"), text(after, "qosClass"), "field is immutable");
    }
    for (list, of) in LISTS {
        transitions(spec, of, items(before, list), items(after, list), path.field(list), errors);
    }
    for (list, of) in LISTS {
        resources::check(spec, of, items(after, list), path.field(list), errors);
    }
    claims(spec, after, path.field("resourceClaimStatuses"), errors);
    resources::check_extended(spec, after, path.field("extendedResourceClaimStatus"), errors);
    let own = items(after, "podIPs");
    addresses(own, items(before, "podIPs"), path.field("podIPs"), errors);
    if let Some(first) = items(after, "hostIPs").first() {
        let place = path.field("hostIPs");
        let first = text(first, "ip");
        if first != text(after, "hostIP") {
            errors.invalid(place.index(0).field("ip"), first, "must be equal to `hostIP`");
        }
        addresses(items(after, "hostIPs"), items(before, "hostIPs"), place, errors);
    }
}

/// Keeps the generations that a status was of, where a new one does not say.
pub(super) fn keep_observed(old: &Document, object: &mut Document) {
    const OF_STATUS: [&str; 2] = ["status", OBSERVED];
    let observed = |path: &[&str], of: &Document| of.get(path).and_then(Value::as_i64).unwrap_or(0);
    let before = observed(&OF_STATUS, old);
    if before != 0 && observed(&OF_STATUS, object) == 0 {
        object.set(&OF_STATUS, before);
    }
    let mut known: HashMap<&str, VecDeque<i64>> = HashMap::new();
    for condition in old.list(&["status", "conditions"]) {
        let generation = number(condition, OBSERVED);
        known.entry(text(condition, "type")).or_default().push_back(generation);
    }
    let conditions = object.get_mut(&["status", "conditions"]).and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flat_map(|list| list.iter_mut()) {
        let before = known.get_mut(text(condition, "type")).and_then(VecDeque::pop_front);
        let before = before.unwrap_or(0);
        let is_given = number(condition, OBSERVED) != 0;
        if let Some(fields) = condition.as_object_mut().filter(|_| before != 0 && !is_given) {
            fields.insert(OBSERVED, before.into());
        }
    }
}

fn conditions(status: &Value, list: FieldPath<'_>, errors: &mut FieldErrors) {
    for (at, condition) in items(status, "conditions").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (path, kind) = (list.index(at), text(condition, "type"));
        if number(condition, OBSERVED) < 0 {
            let value = number(condition, OBSERVED);
            errors.invalid(path.field(OBSERVED), value, NOT_NEGATIVE);
        }
        if !SYSTEM.contains(&kind) {
            errors.all_invalid(path.field("Type"), kind, name::qualified_name(kind));
        }
    }
}

/// Whether a container restarts after this exit code.
fn restarts(spec: &Value, container: &Value, code: i64) -> bool {
    let by_policy = |policy: &str| match policy {
        "Always" => true,
        "OnFailure" => code != 0,
        _ => false,
    };
    let own = text(container, "restartPolicy");
    if own.is_empty() {
        return by_policy(text(spec, "restartPolicy"));
    }
    let matches = |rule: &&Value| {
        let codes = rule.get("exitCodes").unwrap_or(&Value::Null);
        let known = items(codes, "values").iter().any(|value| value.as_i64() == Some(code));
        match text(codes, "operator") {
            "In" => known,
            "NotIn" => !known,
            _ => false,
        }
    };
    items(container, "restartPolicyRules").iter().any(|rule| matches(&rule)) || by_policy(own)
}

/// Rejects restarts of terminated containers that the restart policy forbids.
fn transitions(
    spec: &Value,
    of: &str,
    before: &[Value],
    after: &[Value],
    list: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let ended =
        |status: &Value| status.get("state").and_then(|state| given(state, "terminated")).cloned();
    let all = ["containers", "initContainers"].into_iter().flat_map(|list| items(spec, list));
    let restarts_all = all.clone().flat_map(|container| items(container, "restartPolicyRules"));
    if !of.is_empty()
        && restarts_all.into_iter().any(|rule| text(rule, "action") == "RestartAllContainers")
    {
        return;
    }
    let (of_status, of_spec) = (by_name(after), by_name(items(spec, of)));
    for (at, old) in before.iter().enumerate() {
        let (Some(end), name) = (ended(old), CountedKey(text(old, "name"))) else { continue };
        let runs = of_status.get(&name).is_some_and(|new| ended(new).is_none());
        let may = of_spec.get(&name).is_some_and(|container| {
            is_sidecar(container) || restarts(spec, container, number(&end, "exitCode"))
        });
        if runs && !may && !errors.is_full() {
            let why = "may not be transitioned to non-terminated state";
            errors.forbidden(list.index(at).field("state"), why);
        }
    }
}

/// The first entry per name.
fn by_name(list: &[Value]) -> HashMap<CountedKey<&str>, &Value> {
    let mut named = HashMap::new();
    for one in list {
        named.entry(CountedKey(text(one, "name"))).or_insert(one);
    }
    named
}

fn claims(spec: &Value, status: &Value, list: FieldPath<'_>, errors: &mut FieldErrors) {
    let known: HashSet<&str> =
        items(spec, "resourceClaims").iter().map(|claim| text(claim, "name")).collect();
    let mut seen = HashSet::new();
    for (at, claim) in items(status, "resourceClaimStatuses").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (path, name) = (list.index(at), text(claim, "name"));
        if !known.contains(name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(path.field("name"), name, why);
        }
        if !seen.insert(name) {
            errors.duplicate(path.field("name"), name);
        }
        if let Some(made) = claim.get("resourceClaimName").and_then(Value::as_str) {
            let place = path.field("resourceClaimName");
            errors.all_invalid(place, made, name::dns1123_subdomain(made));
        }
    }
}

/// Checks for at most one address per family.
fn addresses(list: &[Value], old: &[Value], path: FieldPath<'_>, errors: &mut FieldErrors) {
    let kept: HashSet<&str> = old.iter().map(|one| text(one, "ip")).collect();
    for (at, one) in list.iter().enumerate() {
        let address = text(one, "ip");
        if errors.is_full() {
            return;
        }
        if !kept.contains(address) {
            errors.all_invalid(path.index(at), address, ip(address));
        }
    }
    let parse = |one| parse_sloppy_ip(text(one, "ip"));
    let malformed = list.iter().enumerate().find(|(_, one)| parse(one).is_none());
    if let Some((at, one)) = malformed.filter(|_| list.len() > 1) {
        let why = "failed to check for dual stack with error:invalid IP";
        errors.push(|| FieldError::internal(path, format!("{why}[{at}]: {}", text(one, "ip"))));
    }
    let parsed: Vec<IpAddr> = list.iter().filter_map(parse).collect();
    let is_pair = parsed.len() == 2 && parsed[0].is_ipv4() != parsed[1].is_ipv4();
    if list.len() > 1 && !(is_pair && list.len() == 2) {
        let why = "may specify no more than one IP for each IP family";
        errors.invalid(path, Value::from(list.to_vec()), why);
    }
}
