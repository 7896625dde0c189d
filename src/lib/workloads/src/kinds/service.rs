//! Service: a stable address for a set of pods.

mod addresses;

use crate::cells::{self, CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, cidr, number, text};
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::Change;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct Service;

impl KindCode for Service {
    fn default(&self, _version: &str, object: &mut Document) {
        let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
        if spec.get("sessionAffinity").and_then(Value::as_str) == Some("None") {
            spec.remove("sessionAffinityConfig");
        }
        super::podspec::each(spec, "ports", target_port);
        let balanced = spec.get("type").and_then(Value::as_str) == Some("LoadBalancer");
        let ingress = object.get_mut(&["status", "loadBalancer", "ingress"]);
        if let Some(Value::Array(ingress)) = ingress.filter(|_| balanced) {
            for point in ingress.iter_mut().filter_map(Value::as_object_mut) {
                if point.contains_key("ip") && !point.contains_key("ipMode") {
                    point.insert("ipMode", "VIP".into());
                }
            }
        }
    }

    /// Derives fields from those given. There is no allocator of addresses or ports.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.subresource.is_empty() {
            if let Some(old) = change.old {
                keep_ports(old, object);
                drop_unused(old, object);
            }
            addresses::normalize(change.old, object);
            addresses::families(change.old, object);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if change.subresource.is_empty() {
            // kube-apiserver allocates before it validates.
            if addresses::are_well_formed(object, errors) {
                match refused_port(change.old, object) {
                    Some(error) => errors.only(error),
                    None => validate(change.old, object, errors),
                }
            }
        } else if change.subresource == "status"
            && object.str(&["spec", "type"]) != Some("LoadBalancer")
            && !object.list(&["status", "loadBalancer", "ingress"]).is_empty()
        {
            let root = FieldPath::Root;
            let path = root.field("status.loadBalancer.ingress");
            // Nothing of them is checked, then.
            errors.forget(path);
            errors.forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'");
        }
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::dns1123_label(name))
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "cluster-ip" => match list_at(object, &["spec", "clusterIPs"]).first() {
                Some(address) => address.as_str().unwrap_or_default().to_owned(),
                None => "<none>".to_owned(),
            },
            "external-ip" => external(object),
            "ports" => ports(object),
            "selector" => cells::labels(at(object, &["spec", "selector"])),
            _ => String::new(),
        })
    }
}

const HEALTH_CHECK: &[&str] = &["spec", "healthCheckNodePort"];
const SOURCES: &[&str] = &["spec", "loadBalancerSourceRanges"];
const SOURCES_NOTE: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";

/// kube-apiserver's default range.
const NODE_PORTS: RangeInclusive<i64> = 30_000..=32_767;

/// Drops fields unused by the new type, unless they were changed as well.
fn drop_unused(old: &Document, object: &mut Document) {
    let kind = |object: &Document| object.str(&["spec", "type"]).unwrap_or_default().to_owned();
    let (before, after) = (kind(old), kind(object));
    let mut remove = |field: &str, used: &[&str]| {
        let path = ["spec", field];
        let was_used = used.contains(&before.as_str()) && !used.contains(&after.as_str());
        if was_used && old.get(&path) == object.get(&path) {
            object.remove(&path);
        }
    };
    for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass", "loadBalancerIP"] {
        remove(field, &["LoadBalancer"]);
    }
    remove("externalTrafficPolicy", &["NodePort", "LoadBalancer"]);
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        remove(field, &["ClusterIP", "NodePort", "LoadBalancer"]);
    }
    let is_freed = needs_health_check(old) && !needs_health_check(object);
    if is_freed && old.get(HEALTH_CHECK) == object.get(HEALTH_CHECK) {
        object.remove(HEALTH_CHECK);
    }
    let has_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if has_ports(&before) && !has_ports(&after) {
        let known: HashSet<i64> =
            old.list(&["spec", "ports"]).iter().map(|port| number(port, "nodePort")).collect();
        if let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) {
            super::podspec::each(spec, "ports", |port| {
                let node = port.get("nodePort").and_then(Value::as_i64);
                if node.is_some_and(|node| known.contains(&node)) {
                    port.remove("nodePort");
                }
            });
        }
    }
}

fn validate(old: Option<&Document>, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let ports = object.list(&["spec", "ports"]);
    let path = spec.field("ports");
    let mut seen = HashSet::new();
    let mut taken = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = path.index(index);
        if ports.len() > 1 && text(port, "name").is_empty() {
            errors.required(path.field("name"), "");
        }
        if !seen.insert((text(port, "protocol"), number(port, "port"))) {
            errors.duplicate(path, port);
        }
        let node = number(port, "nodePort");
        if node != 0 && !taken.insert((text(port, "protocol"), node)) {
            errors.duplicate(path.field("nodePort"), node);
        }
        let kind = object.str(&["spec", "type"]).unwrap_or_default();
        if node != 0 && kind == "ClusterIP" {
            let why = "may not be used when `type` is 'ClusterIP'";
            errors.forbidden(path.field("nodePort"), why);
        }
    }
    exposure(old, object, errors);
    addresses::validate_headless(object, errors);
    if let Some(old) = old {
        addresses::validate_change(old, object, errors);
        let is_checked = |object: &Document| needs_health_check(object);
        let port = |object: &Document| object.get(HEALTH_CHECK).and_then(Value::as_i64);
        if is_checked(old) && is_checked(object) && port(old).is_some() && port(old) != port(object)
        {
            errors.forbidden(spec.field("healthCheckNodePort"), "field is immutable");
        }
        let class =
            |object: &Document| object.str(&["spec", "loadBalancerClass"]).map(str::to_owned);
        if is_balanced(old) && is_balanced(object) && class(old) != class(object) {
            let shown = object.get(&["spec", "loadBalancerClass"]);
            errors.invalid(spec.field("loadBalancerClass"), shown, "may not change once set");
        }
        balancer_class(object, errors);
    }
}

/// Repeats the rules of the table, as kube-apiserver does for updates.
fn balancer_class(object: &Document, errors: &mut FieldErrors) {
    let (root, place) = (FieldPath::Root, "spec.loadBalancerClass");
    let class = object.get(&["spec", "loadBalancerClass"]).and_then(Value::as_str);
    match class {
        Some(class) if is_balanced(object) => {
            errors.all_invalid(root.field(place), class, name::qualified_name(class));
        }
        Some(_) => {
            errors.forbidden(root.field(place), "may only be used when `type` is 'LoadBalancer'")
        }
        None => {}
    }
}

/// The error of the first node port that cannot be allocated.
fn refused_port(old: Option<&Document>, object: &Document) -> Option<FieldError> {
    const RANGE: &str =
        "provided port is not in the valid range. The range of valid ports is 30000-32767";
    const TAKEN: &str = "provided port is already allocated";
    if !matches!(object.str(&["spec", "type"]), Some("NodePort" | "LoadBalancer")) {
        return None;
    }
    let ports = object.list(&["spec", "ports"]);
    let node = |port: &Value| number(port, "nodePort");
    let mut taken: HashSet<i64> =
        old.map_or(&[][..], |old| old.list(&["spec", "ports"])).iter().map(node).collect();
    // Of a new service, ports with one number share the first node port that one of them has.
    let mut shared: HashMap<i64, i64> = HashMap::new();
    for port in ports.iter().filter(|port| node(port) != 0) {
        shared.entry(number(port, "port")).or_insert_with(|| node(port));
    }
    let mut begun = HashSet::new();
    let allocates = needs_node_ports(object);
    for (at, port) in ports.iter().enumerate().filter(|(_, port)| allocates || node(port) != 0) {
        let own = number(port, "port");
        let wanted = match (old, shared.get(&own)) {
            (None, Some(first)) if begun.insert(own) => *first,
            (None, Some(first)) if node(port) == *first => continue,
            _ => node(port),
        };
        let why = match wanted {
            0 => continue,
            // Another protocol may have the same one.
            wanted if old.is_some() && taken.contains(&wanted) => continue,
            wanted if !NODE_PORTS.contains(&wanted) => RANGE,
            wanted if taken.insert(wanted) => continue,
            _ => TAKEN,
        };
        let (root, list) = (FieldPath::Root, "spec.ports");
        let list = root.field(list);
        return Some(FieldError::invalid(list.index(at).field("nodePort"), wanted, why));
    }
    None
}

/// Rules for external access: external names, source ranges, topology hints.
fn exposure(old: Option<&Document>, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let (spec, annotations) = (root.field("spec"), root.field("metadata.annotations"));
    if let (Some(hints), Some(mode)) = (object.annotation(HINTS), object.annotation(MODE))
        && hints != mode
    {
        let why = format!("must match annotations[{HINTS}] when both are specified");
        errors.invalid(annotations.key(MODE), mode, &why);
    }
    if object.str(&["spec", "type"]) == Some("ExternalName") {
        let (path, given) = (spec.field("externalName"), object.str(&["spec", "externalName"]));
        let given = given.unwrap_or_default();
        // A trailing dot says that it is fully qualified.
        match given.strip_suffix('.').unwrap_or(given) {
            "" => errors.required(path, ""),
            name => errors.all_invalid(path, name, name::dns1123_subdomain(name)),
        }
    }
    let only = "may only be used when `type` is 'LoadBalancer'";
    let is_balanced = is_balanced(object);
    let ranges = object.list(SOURCES);
    let path = spec.field("LoadBalancerSourceRanges");
    if !ranges.is_empty() {
        if !is_balanced {
            errors.forbidden(path, only);
        }
        let trimmed = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
        let known: HashSet<String> =
            old.map(|old| old.list(SOURCES).iter().map(trimmed).collect()).unwrap_or_default();
        for (index, range) in ranges.iter().map(trimmed).enumerate() {
            if errors.is_full() {
                return;
            }
            if !known.contains(&range) {
                errors.all_invalid(path.index(index), &range, cidr(&range));
            }
        }
    } else if let Some(given) = object.annotation(SOURCES_NOTE) {
        let path = annotations.key(SOURCES_NOTE);
        if !is_balanced {
            errors.forbidden(path, only);
        }
        let is_known = old.is_some_and(|old| old.annotation(SOURCES_NOTE) == Some(given));
        for range in given.trim().split(',').filter(|_| !is_known && !given.trim().is_empty()) {
            if errors.is_full() {
                return;
            }
            errors.all_invalid(path, range.trim(), cidr(range.trim()));
        }
    }
}

fn is_balanced(object: &Document) -> bool {
    object.str(&["spec", "type"]) == Some("LoadBalancer")
}

fn needs_health_check(object: &Document) -> bool {
    is_balanced(object) && object.str(&["spec", "externalTrafficPolicy"]) == Some("Local")
}

fn needs_node_ports(object: &Document) -> bool {
    let allocates = object.get(&["spec", "allocateLoadBalancerNodePorts"]);
    let allocates = allocates.and_then(Value::as_bool).unwrap_or(true);
    object.str(&["spec", "type"]) == Some("NodePort") || is_balanced(object) && allocates
}

/// Keeps node ports that an update omits.
fn keep_ports(old: &Document, object: &mut Document) {
    if needs_health_check(old)
        && needs_health_check(object)
        && object.get(HEALTH_CHECK).and_then(Value::as_i64).unwrap_or_default() == 0
        && let Some(port) = old.get(HEALTH_CHECK).cloned()
    {
        object.set(HEALTH_CHECK, port);
    }
    if !needs_node_ports(old) || !needs_node_ports(object) {
        return;
    }
    let node = |port: &Value| number(port, "nodePort");
    let ports = |object: &Document| -> HashSet<i64> {
        object.list(&["spec", "ports"]).iter().map(node).collect()
    };
    let given = ports(object);
    let known: HashMap<&str, i64> = old
        .list(&["spec", "ports"])
        .iter()
        .filter(|port| node(port) != 0 && !given.contains(&node(port)))
        .map(|port| (text(port, "name"), node(port)))
        .collect();
    let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
    super::podspec::each(spec, "ports", |port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_unset = port.get("nodePort").and_then(Value::as_i64).unwrap_or_default() == 0;
        if let Some(number) = known.get(name).filter(|_| is_unset) {
            port.insert("nodePort", (*number).into());
        }
    });
}

/// The target port defaults to the port.
fn target_port(port: &mut Map) {
    let is_unset = port.get("targetPort").is_none_or(|target| {
        target.is_null() || target.as_i64() == Some(0) || target.as_str() == Some("")
    });
    if is_unset && let Some(number) = port.get("port").cloned() {
        port.insert("targetPort", number);
    }
}

fn strings<'a>(object: &'a Value, path: &[&str]) -> Vec<&'a str> {
    list_at(object, path).iter().filter_map(Value::as_str).collect()
}

fn external(object: &Value) -> String {
    let external = strings(object, &["spec", "externalIPs"]);
    let joined = |texts: &[&str], none: &str| {
        if texts.is_empty() { none.to_owned() } else { texts.join(",") }
    };
    match str_at(object, &["spec", "type"]) {
        "ClusterIP" | "NodePort" => joined(&external, "<none>"),
        "LoadBalancer" => {
            let mut all = ingress_points(object);
            all.extend(external);
            joined(&all, "<pending>")
        }
        "ExternalName" => str_at(object, &["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Addresses or host names of a load balancer, sorted.
pub(crate) fn ingress_points(object: &Value) -> Vec<&str> {
    let points = list_at(object, &["status", "loadBalancer", "ingress"]);
    let mut texts: Vec<&str> = points
        .iter()
        .map(|point| match text(point, "ip") {
            "" => text(point, "hostname"),
            address => address,
        })
        .filter(|text| !text.is_empty())
        .collect();
    texts.sort_unstable();
    texts.dedup();
    texts
}

fn ports(object: &Value) -> String {
    let port = |port: &Value| {
        let (number, protocol) = (number(port, "port"), text(port, "protocol"));
        match crate::checks::number(port, "nodePort") {
            0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    };
    let texts: Vec<String> = list_at(object, &["spec", "ports"]).iter().map(port).collect();
    if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") }
}
