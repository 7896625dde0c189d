//! Node: a machine that runs pods. RuntimeClass: how its containers are run. ComponentStatus: the
//! health of a component.

use crate::cells::{CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, is_true, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::resources;
use crate::paths::FieldPath;
use crate::resource_names::{NameCheck, container_resource_name};
use crate::types;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_resource::Change;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::SystemTime;

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE: &str = "kubernetes.io/role";

#[derive(Debug)]
pub(crate) struct NodeKind;

impl KindCode for NodeKind {
    fn default(&self, _version: &str, object: &mut Document) {
        let capacity = object.get(&["status", "capacity"]).filter(|map| map.is_object()).cloned();
        if let Some(capacity) = capacity
            && object.get(&["status", "allocatable"]).is_none_or(Value::is_null)
        {
            object.set(&["status", "allocatable"], capacity);
        }
        // The range and the first one of the ranges are the same; the former counts.
        let first = object.list(&["spec", "podCIDRs"]).first().and_then(Value::as_str);
        let first = first.unwrap_or_default().to_owned();
        let range = object.str(&["spec", "podCIDR"]).unwrap_or_default().to_owned();
        if !range.is_empty() && range != first {
            object.set(&["spec", "podCIDRs"], vec![Value::from(range)]);
        } else if range.is_empty() && !first.is_empty() {
            object.set(&["spec", "podCIDR"], first);
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        // The older field is the first of the list.
        let range = object.str(&["spec", "podCIDR"]).unwrap_or_default().to_owned();
        let first = object.list(&["spec", "podCIDRs"]).first().and_then(Value::as_str);
        if !range.is_empty() && first != Some(range.as_str()) {
            object.set(&["spec", "podCIDRs"], json!([range]));
        }
        if change.old.is_none() {
            // A kubelet registers itself with its status.
            return;
        }
        if change.subresource == "status" {
            object.remove(&["status", "config"]);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let id =
            |object: &Document| object.str(&["spec", "providerID"]).unwrap_or_default().to_owned();
        let before = change.old.filter(|_| change.subresource.is_empty()).map(id);
        if before.is_some_and(|before| !before.is_empty() && before != id(object)) {
            let root = FieldPath::Root;
            let why = "node updates may not change providerID except from \"\" to valid";
            errors.forbidden(root.field("spec.providerID"), why);
        }
        // kube-apiserver looks twice at what is updated.
        let is_update = change.old.is_some() && change.subresource.is_empty();
        amounts(object, errors);
        if change.subresource.is_empty() {
            swap(object, errors);
        }
        taints(object, errors);
        if is_update {
            amounts(object, errors);
            taint_rules(object, errors);
            taints(object, errors);
        }
        let addresses = object.list(&["status", "addresses"]);
        let (root, mut seen) = (FieldPath::Root, HashSet::new());
        let path = root.field("status.addresses");
        for (at, address) in addresses.iter().enumerate().filter(|_| change.old.is_some()) {
            if !seen.insert(address.to_string()) && !errors.is_full() {
                errors.duplicate(path.index(at), address);
            }
        }
        pod_ranges(change, object, errors);
        for _ in 0..=usize::from(is_update) {
            features(object, errors);
        }
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "spec.unschedulable").then(|| {
            let set = object.get(&["spec", "unschedulable"]).and_then(Value::as_bool);
            set.unwrap_or_default().to_string()
        })
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "status" => status(object),
            "roles" => roles(object),
            "internal-ip" => address(object, "InternalIP"),
            "external-ip" => address(object, "ExternalIP"),
            "kernel" => kernel(object),
            _ => String::new(),
        })
    }
}

/// Resources that the node has and offers.
fn amounts(node: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let status = root.field("status");
    for field in ["capacity", "allocatable"] {
        let path = status.field(field);
        let map = node.get(&["status", field]).and_then(Value::as_object);
        for (name, value) in map.into_iter().flatten() {
            if errors.is_full() {
                return;
            }
            resources::amount(name, value, path.field(name), errors);
        }
    }
}

fn swap(node: &Document, errors: &mut FieldErrors) {
    let capacity = node.get(&["status", "nodeInfo", "swap", "capacity"]).and_then(Value::as_i64);
    if let Some(bytes) = capacity.filter(|bytes| *bytes <= 0) {
        let (root, place) = (FieldPath::Root, "metadata.nodeSwapStatus.capacity");
        errors.invalid(root.field(place), bytes, "must be greater than zero");
    }
}

/// Repeats the taint rules of the table, as kube-apiserver does.
fn taint_rules(node: &Document, errors: &mut FieldErrors) {
    let (root, rules) = (FieldPath::Root, types::of("core.v1.Taint"));
    let path = root.field("metadata.taints");
    let taints = node.list(&["spec", "taints"]).iter().filter_map(Value::as_object);
    for (at, taint) in taints.enumerate() {
        rules.iter().for_each(|rules| rules.check(taint, None, path.index(at), errors));
    }
}

fn taints(node: &Document, errors: &mut FieldErrors) {
    let (root, mut seen) = (FieldPath::Root, HashSet::new());
    let path = root.field("metadata.taints");
    for (at, taint) in node.list(&["spec", "taints"]).iter().enumerate() {
        if !seen.insert((text(taint, "key"), text(taint, "effect"))) && !errors.is_full() {
            let why = "taints must be unique by key and effect pair";
            let shown = ["key", "value", "effect", "timeAdded"].map(|field| {
                let mut name = field.to_owned();
                name[..1].make_ascii_uppercase();
                let value = match taint.get(field) {
                    None if field == "timeAdded" => Value::Null,
                    None => Value::from(""),
                    Some(value) => value.clone(),
                };
                format!("{:?}:{value}", name)
            });
            let why = format!("{{{}}}: {why}", shown.join(","));
            errors.push(|| FieldError::unshown(FieldReason::Duplicate, path.index(at), why));
        }
    }
}

/// At most one pod CIDR per family; immutable once set.
fn pod_ranges(change: &Change<'_>, node: &Document, errors: &mut FieldErrors) {
    let ranges = |node: &Document| node.list(&["spec", "podCIDRs"]).to_vec();
    let root = FieldPath::Root;
    let path = root.field("spec.podCIDRs");
    let all = ranges(node);
    let parsed: Vec<_> =
        all.iter().filter_map(Value::as_str).filter_map(crate::checks::parse_cidr).collect();
    let is_pair = parsed.len() == 2 && parsed[0].0.is_ipv4() != parsed[1].0.is_ipv4();
    let malformed = all.iter().enumerate().find_map(|(at, range)| {
        let range = range.as_str().unwrap_or_default();
        crate::checks::parse_cidr(range).is_none().then_some((at, range))
    });
    if let Some((at, range)) = malformed.filter(|_| all.len() > 1) {
        let why = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{at}]: <nil> (invalid CIDR address: {range})"
        );
        errors.push(|| FieldError::internal(path, why));
    }
    if all.len() > 1 && !(is_pair && all.len() == 2) {
        let why = "may specify no more than one CIDR for each IP family";
        errors.invalid(path, Value::from(all.clone()), why);
    }
    let old = change.old.filter(|_| change.subresource.is_empty()).map(ranges);
    let Some(old) = old.filter(|old| !old.is_empty()) else { return };
    // Each that is another one.
    let changed = old.iter().zip(&all).filter(|(before, after)| before != after).count();
    for _ in 0..if old.len() == all.len() { changed } else { 1 } {
        errors.forbidden(path, "node updates may not change podCIDR except from \"\" to valid");
    }
}

/// Declared features must be valid names, and sorted.
fn features(node: &Document, errors: &mut FieldErrors) {
    const MAX_BYTES: usize = 253;
    let all = node.list(&["status", "declaredFeatures"]);
    let text = |at: usize| all.get(at).and_then(Value::as_str).unwrap_or_default();
    let root = FieldPath::Root;
    let path = root.field("status.declaredFeatures");
    for at in 0..all.len() {
        if errors.is_full() {
            return;
        }
        let feature = text(at);
        let shown = ferrokube_apimachinery::field::quote(feature);
        if feature.len() > MAX_BYTES {
            let why = format!(
                "invalid feature name {shown}: must be no more than {MAX_BYTES} characters"
            );
            errors.invalid(path.index(at), feature, &why);
        } else if !is_feature(feature) {
            let why = format!(
                "invalid feature name {shown}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.invalid(path.index(at), feature, &why);
        }
        if at == 0 {
            continue;
        }
        match text(at - 1).cmp(feature) {
            Ordering::Less => {}
            Ordering::Equal => errors.duplicate(path.index(at), feature),
            Ordering::Greater => {
                errors.invalid(path.index(at), feature, "list must be sorted alphabetically");
            }
        }
    }
}

fn is_feature(text: &str) -> bool {
    let is_name = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.split('/').all(is_name)
}

fn status(node: &Value) -> String {
    let conditions = list_at(node, &["status", "conditions"]).iter();
    let ready = conditions.rev().find(|condition| text(condition, "type") == "Ready");
    let ready = match ready.map(|condition| text(condition, "status")) {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    };
    let unschedulable = at(node, &["spec"]).is_some_and(|spec| is_true(spec, "unschedulable"));
    if unschedulable { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

fn roles(node: &Value) -> String {
    let labels = at(node, &["metadata", "labels"]).and_then(Value::as_object);
    let role = |(key, value): (&'_ _, &'_ Value)| -> Option<String> {
        let key: &ferrokube_apimachinery::document::Text = key;
        match key.strip_prefix(ROLE_PREFIX) {
            Some(role) => Some(role.to_owned()),
            None if key.as_str() == ROLE => value.as_str().map(str::to_owned),
            None => None,
        }
        .filter(|role| !role.is_empty())
    };
    let mut roles: Vec<String> = labels.into_iter().flatten().filter_map(role).collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn address(node: &Value, kind: &str) -> String {
    let addresses = list_at(node, &["status", "addresses"]).iter();
    let found = addresses.clone().find(|address| text(address, "type") == kind);
    found.map_or("<none>", |address| text(address, "address")).to_owned()
}

fn kernel(node: &Value) -> String {
    let info = |field: &str| str_at(node, &["status", "nodeInfo", field]);
    let version = match info("kernelVersion") {
        "" => "<unknown>",
        version => version,
    };
    match info("architecture") {
        "" => version.to_owned(),
        architecture => format!("{version} ({architecture})"),
    }
}

/// RuntimeClass: a container runtime configuration and its overhead.
#[derive(Debug)]
pub(crate) struct RuntimeClass;

impl KindCode for RuntimeClass {
    fn validate(&self, _change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let root = FieldPath::Root;
        if let Some(fixed) = object.get(&["overhead", "podFixed"]).filter(|map| map.is_object()) {
            let limits = json!({"limits": fixed.clone()});
            let names = Some(container_resource_name as NameCheck);
            let path = root.field("overhead");
            resources::requirements(Some(&limits), names, &HashSet::new(), path, errors);
        }
        let path = root.field("scheduling.tolerations");
        let mut seen = HashSet::new();
        for (at, one) in object.list(&["scheduling", "tolerations"]).iter().enumerate() {
            let key = ["key", "operator", "value", "effect"].map(|field| text(one, field));
            if !seen.insert(key) && !errors.is_full() {
                errors.duplicate(path.index(at), one);
            }
        }
    }
}

/// ComponentStatus: deprecated and read-only.
#[derive(Debug)]
pub(crate) struct ComponentStatus;

impl KindCode for ComponentStatus {
    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let conditions = list_at(object, &["conditions"]).iter();
        let healthy = conditions.clone().find(|condition| text(condition, "type") == "Healthy");
        CellValue::text(match (word, healthy) {
            ("status", None) => "Unknown",
            ("status", Some(condition)) if text(condition, "status") == "True" => "Healthy",
            ("status", _) => "Unhealthy",
            (field, Some(condition)) => text(condition, field),
            _ => "",
        })
    }
}
