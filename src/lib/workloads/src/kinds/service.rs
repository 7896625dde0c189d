//! Service: a stable address of pods.

use crate::cells::{self, CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, ip, number, text};
use crate::conditions::is_given;
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::name;
use ferrokube_resource::Change;
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::SystemTime;

/// See the file.
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

    /// Without an allocator: what follows from the fields that were given.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.subresource.is_empty() {
            change.old.inspect(|old| drop_unused(old, object));
            addresses(change.old, object);
            families(object);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if change.subresource.is_empty() {
            validate(change.old, object, errors);
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

/// Ports of nodes that services may have.
const NODE_PORTS: RangeInclusive<i64> = 30_000..=32_767;

/// Drops what the new type does not use, unless it was changed, too.
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
    remove("healthCheckNodePort", &["LoadBalancer"]);
    remove("externalTrafficPolicy", &["NodePort", "LoadBalancer"]);
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        remove(field, &["ClusterIP", "NodePort", "LoadBalancer"]);
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

/// `clusterIP` is the first of `clusterIPs`.
fn addresses(old: Option<&Document>, object: &mut Document) {
    let kind = |object: &Document| object.str(&["spec", "type"]).unwrap_or_default().to_owned();
    let one = object.str(&["spec", "clusterIP"]).unwrap_or_default().to_owned();
    let many = object.list(&["spec", "clusterIPs"]).to_vec();
    if let Some(old) =
        old.filter(|old| kind(old) != "ExternalName" && kind(object) != "ExternalName")
    {
        // Addresses that are not given stay.
        if one.is_empty() && many.is_empty() {
            for field in ["clusterIP", "clusterIPs"] {
                if let Some(value) = old.get(&["spec", field]) {
                    object.set(&["spec", field], value.clone());
                }
            }
            return;
        }
        let same = old.list(&["spec", "clusterIPs"]) == many.as_slice();
        if same && old.str(&["spec", "clusterIP"]) != Some(one.as_str()) {
            match one.as_str() {
                "" => object.remove(&["spec", "clusterIPs"]).map_or((), drop),
                one => object.set(&["spec", "clusterIPs"], vec![Value::from(one)]),
            }
            return;
        }
    }
    if !one.is_empty() && many.is_empty() {
        object.set(&["spec", "clusterIPs"], vec![Value::from(one)]);
    }
}

/// Families of the addresses in a cluster of one family.
fn families(object: &mut Document) {
    let spec = |field: &str| object.get(&["spec", field]).filter(|value| is_given(value));
    if object.str(&["spec", "type"]) == Some("ExternalName") {
        return;
    }
    let is_v6 = |text: &Value| text.as_str().is_some_and(|text| text.contains(':'));
    let v6 = object.list(&["spec", "clusterIPs"]).first().is_some_and(is_v6);
    let headless = object.str(&["spec", "clusterIP"]) == Some("None");
    let unselected = spec("selector").and_then(Value::as_object).is_none_or(|map| map.is_empty());
    let (policy, family) = (spec("ipFamilyPolicy").is_none(), spec("ipFamilies").is_none());
    let dual = headless && unselected && policy && family;
    if policy {
        object.set(
            &["spec", "ipFamilyPolicy"],
            if dual { "RequireDualStack" } else { "SingleStack" },
        );
    }
    if family {
        let list: &[&str] = match (dual, v6) {
            (true, _) => &["IPv4", "IPv6"],
            (false, true) => &["IPv6"],
            (false, false) => &["IPv4"],
        };
        let list: Vec<Value> = list.iter().map(|name| Value::from(*name)).collect();
        object.set(&["spec", "ipFamilies"], list);
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
        if node != 0 && !NODE_PORTS.contains(&node) {
            let why =
                "provided port is not in the valid range. The range of valid ports is 30000-32767";
            errors.invalid(path.field("nodePort"), node, why);
        }
        if node != 0 && kind == "ClusterIP" {
            let why = "may not be used when `type` is 'ClusterIP'";
            errors.forbidden(path.field("nodePort"), why);
        }
    }
    let one = object.str(&["spec", "clusterIP"]).unwrap_or_default();
    let many = object.list(&["spec", "clusterIPs"]);
    let first = many.first().and_then(Value::as_str).unwrap_or_default();
    let path = spec.field("clusterIPs");
    let shown = object.get(&["spec", "clusterIPs"]);
    if one.is_empty() && !many.is_empty() {
        errors.invalid(path, shown, "must be empty when `clusterIP` is not specified");
    } else if one != first {
        errors.invalid(path, shown, "first value must match `clusterIP`");
    }
    let kind = object.str(&["spec", "type"]).unwrap_or_default();
    if one == "None" && matches!(kind, "NodePort" | "LoadBalancer") {
        let why = format!("may not be set to 'None' for {kind} services");
        errors.invalid(path.index(0), one, &why);
    }
    for (index, address) in many.iter().enumerate() {
        let address = address.as_str().unwrap_or_default();
        if index > 0 || address != "None" {
            errors.all_invalid(path.index(index), address, ip(address));
        }
    }
    if many.len() > 2 {
        errors.invalid(path, shown, "may only hold up to 2 values");
    }
    if let Some(old) = old {
        unchanged(old, object, spec, errors);
    }
}

fn unchanged(old: &Document, object: &Document, spec: FieldPath<'_>, errors: &mut FieldErrors) {
    let kind = |object: &Document| object.str(&["spec", "type"]).unwrap_or_default().to_owned();
    if kind(old) == "ExternalName" || kind(object) == "ExternalName" {
        return;
    }
    let before = old.list(&["spec", "clusterIPs"]).first().cloned();
    let after = object.list(&["spec", "clusterIPs"]).first().cloned();
    if before.is_some() && before != after {
        let path = spec.field("clusterIPs");
        let why = "may not change once set";
        errors.invalid(path.index(0), after.as_ref(), why);
    }
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
