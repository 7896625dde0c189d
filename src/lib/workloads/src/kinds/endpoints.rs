//! Endpoints and EndpointSlices: the addresses behind services.

use crate::cells::{CellValue, list_at};
use crate::checks::{FieldErrors, ip, items, number, strict_ip, text};
use crate::hooks::KindCode;
use crate::kinds::podspec;
use crate::paths::FieldPath;
use crate::rules::{addresses, same, same_before_completion};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::name;
use ferrokube_resource::Change;
use std::collections::HashSet;
use std::net::IpAddr;
use std::time::SystemTime;

/// Max addresses shown in a cell.
const SHOWN: usize = 3;
const TOPOLOGY: &str = "deprecatedTopology";

/// Endpoints: deprecated; all addresses in one object.
#[derive(Debug)]
pub(crate) struct Endpoints;

/// Whether an update leaves a list as it is. Nothing is said of it, then.
fn is_kept(change: &Change<'_>, object: &Document, list: &str) -> bool {
    change.old.is_some_and(|old| same(old.get(&[list]), object.get(&[list])))
}

impl KindCode for Endpoints {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if is_kept(change, object, "subsets") {
            errors.forget(FieldPath::Root.field("subsets"));
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        // Every address with every port: counted, and only those that are shown are made.
        let (mut shown, mut count) = (Vec::new(), 0usize);
        let subsets = list_at(object, &["subsets"]);
        for subset in subsets {
            let (addresses, ports) = (items(subset, "addresses"), items(subset, "ports"));
            count = count.saturating_add(addresses.len().saturating_mul(ports.len().max(1)));
            let ports: Vec<Option<i64>> = match ports {
                [] => vec![None],
                ports => ports.iter().take(SHOWN).map(|port| Some(number(port, "port"))).collect(),
            };
            for port in ports {
                let left = SHOWN - shown.len();
                let addresses = addresses.iter().take(left).map(|address| text(address, "ip"));
                shown.extend(addresses.map(|ip| match port {
                    None => ip.to_owned(),
                    Some(port) if ip.contains(':') => format!("[{ip}]:{port}"),
                    Some(port) => format!("{ip}:{port}"),
                }));
            }
        }
        CellValue::text(if subsets.is_empty() { "<none>".to_owned() } else { cell(&shown, count) })
    }
}

/// Drops the topology of each endpoint. A node that only a stored topology named becomes the node
/// of the endpoint.
fn drop_topologies(old: Option<&Document>, object: &mut Document) {
    let node = |topology: Option<&Value>| {
        topology.map_or("", |labels| text(labels, "kubernetes.io/hostname")).to_owned()
    };
    let before = old.map_or(&[][..], |old| old.list(&["endpoints"]));
    let before = before.iter().map(|endpoint| node(endpoint.get(TOPOLOGY)));
    let known: HashSet<String> = before.filter(|name| !name.is_empty()).collect();
    podspec::each(object.fields_mut(), "endpoints", |endpoint| {
        let name = node(endpoint.get(TOPOLOGY));
        let is_named = endpoint.get("nodeName").is_some_and(|name| !name.is_null());
        if !is_named && known.contains(&name) {
            endpoint.insert("nodeName", name.into());
        }
        endpoint.remove(TOPOLOGY);
    });
}

/// EndpointSlice: part of a service's endpoints.
#[derive(Debug)]
pub(crate) struct EndpointSlice;

impl KindCode for EndpointSlice {
    /// The deprecated topology cannot be set. Label changes increment the generation, too.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let list = ["endpoints"];
        let is_kept =
            change.old.is_some_and(|old| same_before_completion(old.get(&list), object.get(&list)));
        if !is_kept {
            drop_topologies(change.old, object);
        }
        let Some(old) = change.old else { return };
        if labels(old) != labels(object) {
            let path = ["metadata", "generation"];
            let before = old.get(&path).and_then(Value::as_i64).unwrap_or_default();
            object.set(&path, before.saturating_add(1));
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if is_kept(change, object, "endpoints") {
            return errors.forget(FieldPath::Root.field("endpoints"));
        }
        // More are refused unchecked.
        const MOST: usize = 1000;
        let kind = object.str(&["addressType"]).unwrap_or_default();
        let root = FieldPath::Root;
        let list = root.field("endpoints");
        let endpoints = Some(object.list(&["endpoints"])).filter(|list| list.len() <= MOST);
        for (at, endpoint) in endpoints.unwrap_or_default().iter().enumerate() {
            let item = list.index(at);
            let path = item.field("addresses");
            for (index, address) in items(endpoint, "addresses").iter().enumerate() {
                if errors.is_full() {
                    return;
                }
                let address = address.as_str().unwrap_or_default();
                match kind {
                    "FQDN" => domain(address, path.index(index), errors),
                    "IPv4" | "IPv6" => of_family(kind, address, path, index, errors),
                    _ => {}
                }
            }
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let all: Vec<String> = if word == "ports" {
            let port = |port: &Value| match port.get("port").and_then(Value::as_i64) {
                Some(number) => number.to_string(),
                None => match port.get("name").and_then(Value::as_str) {
                    Some(name) => name.to_owned(),
                    None => "*".to_owned(),
                },
            };
            list_at(object, &["ports"]).iter().map(port).collect()
        } else {
            let endpoints = list_at(object, &["endpoints"]).iter();
            endpoints
                .flat_map(|endpoint| items(endpoint, "addresses"))
                .map(|address| address.as_str().unwrap_or_default().to_owned())
                .collect()
        };
        // Also of ports without number and name.
        let text = shortened(&all);
        CellValue::text(if text.is_empty() { "<unset>".to_owned() } else { text })
    }
}

/// Checks an address at an index of a list of addresses of a family.
fn of_family(
    kind: &str,
    address: &str,
    list: FieldPath<'_>,
    index: usize,
    errors: &mut FieldErrors,
) {
    let path = list.index(index);
    let whys = if kind == "IPv4" { ip(address) } else { strict_ip(address) };
    let Some(parsed) = address.parse::<IpAddr>().ok().filter(|_| whys.is_empty()) else {
        return errors.all_invalid(path, address, whys);
    };
    if (kind == "IPv4") != parsed.is_ipv4() {
        errors.invalid(list, address, &format!("must be an {kind} address"));
    }
    addresses::special_ranges(address, parsed, path, errors);
}

fn labels(object: &Document) -> Option<&Map> {
    let labels = object.get(&["metadata", "labels"]).and_then(Value::as_object);
    labels.filter(|labels| !labels.is_empty())
}

fn shortened(all: &[String]) -> String {
    cell(&all[..all.len().min(SHOWN)], all.len())
}

/// Formats the first texts of `count`.
fn cell(shown: &[String], count: usize) -> String {
    let text = shown.join(",");
    if count > SHOWN { format!("{text} + {} more...", count - SHOWN) } else { text }
}

/// A domain of at least two labels.
fn domain(text: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if text.is_empty() {
        return errors.required(path, "");
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    let whys = name::dns1123_subdomain(text);
    if !whys.is_empty() {
        return errors.invalid(path, text, &whys.join(","));
    }
    if !text.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        return errors.invalid(path, text, why);
    }
    let wrong = text.split('.').find(|label| !name::dns1123_label(label).is_empty());
    if let Some(label) = wrong {
        errors.invalid(path, label, &name::dns1123_label(label).join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn a_change_of_labels_is_a_generation() {
        let slice = |labels: Value| {
            let metadata = json!({"name": "s", "generation": 3, "labels": labels});
            Document::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let old = slice(json!({"a": "b"}));
        let generation = |labels: Value| {
            let mut object = slice(labels);
            let change = Change {
                old: Some(&old),
                subresource: "",
                version: "v1",
                user: "",
                user_uid: "",
                groups: &[],
                user_extra: &Default::default(),
                now: SystemTime::UNIX_EPOCH,
            };
            EndpointSlice.prepare(&change, &mut object);
            object.get(&["metadata", "generation"]).and_then(Value::as_i64)
        };
        assert_eq!(generation(json!({"a": "b"})), Some(3));
        assert_eq!(generation(json!({"a": "c"})), Some(4));
        assert_eq!(generation(json!({})), Some(4));
    }
}
