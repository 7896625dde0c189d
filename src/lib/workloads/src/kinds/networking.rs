//! Ingress, IngressClass, IPAddress, NetworkPolicy and ServiceCIDR.

use crate::cells::{self, CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, strict_ip, text};
use crate::hooks::KindCode;
use crate::kinds::service::ingress_points;
use crate::kinds::storage::named;
use crate::paths::FieldPath;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Change;
use std::time::SystemTime;

const DEFAULT_CLASS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];
/// Max entries shown in a cell.
const SHOWN: usize = 3;

/// Ingress: HTTP routes to services.
#[derive(Debug)]
pub(crate) struct Ingress;

impl KindCode for Ingress {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        const CLASS: &str = "kubernetes.io/ingress.class";
        let root = FieldPath::Root;
        let rules = root.field("spec.rules");
        for (index, rule) in object.list(&["spec", "rules"]).iter().enumerate() {
            let rule_path = rules.index(index);
            let paths = rule_path.field("http.paths");
            for (index, path) in list_at(rule, &["http", "paths"]).iter().enumerate() {
                if path.get("pathType").is_none_or(Value::is_null) {
                    // Nothing else of it is checked.
                    errors.forget(paths.index(index).field("backend"));
                }
            }
        }
        let annotated = object.str(&["metadata", "annotations", CLASS]);
        let class = object.str(&["spec", "ingressClassName"]);
        if let (Some(annotated), Some(class), None) = (annotated, class, change.old)
            && annotated != class
        {
            let notes = "annotations";
            let why = "must match `ingressClassName` when both are specified";
            errors.invalid(root.field(notes).field(CLASS), annotated, why);
        }
    }

    fn warnings(&self, change: &Change<'_>, object: &Document, out: &mut Warnings) {
        const CLASS: &str = "kubernetes.io/ingress.class";
        let annotated = object.get(&["metadata", "annotations", CLASS]).is_some();
        let class = object.str(&["spec", "ingressClassName"]);
        if annotated && class.is_none() && change.old.is_none() {
            out.push(format!(
                "annotation {CLASS:?} is deprecated, please use 'spec.ingressClassName' instead"
            ));
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "class" => {
                let class = at(object, &["spec", "ingressClassName"]).and_then(Value::as_str);
                class.unwrap_or("<none>").to_owned()
            }
            "hosts" => hosts(list_at(object, &["spec", "rules"])),
            "address" => ingress_points(object).join(","),
            "ports" if list_at(object, &["spec", "tls"]).is_empty() => "80".to_owned(),
            _ => "80, 443".to_owned(),
        })
    }
}

fn hosts(rules: &[Value]) -> String {
    let mut shown: Vec<&str> = Vec::new();
    let mut more = false;
    for rule in rules {
        more |= shown.len() == SHOWN;
        let host = text(rule, "host");
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => shown.join(","),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - SHOWN),
    }
}

/// IngressClass: the controller of ingresses.
#[derive(Debug)]
pub(crate) struct IngressClass;

impl KindCode for IngressClass {
    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        if word == "name" {
            return CellValue::text(named(object, &DEFAULT_CLASS));
        }
        let parameters = at(object, &["spec", "parameters"]).filter(|value| !value.is_null());
        let Some(parameters) = parameters else { return CellValue::text("<none>") };
        let kind = match parameters.get("apiGroup").and_then(Value::as_str) {
            Some(group) => format!("{}.{group}", text(parameters, "kind")),
            None => text(parameters, "kind").to_owned(),
        };
        CellValue::text(format!("{kind}/{}", text(parameters, "name")))
    }
}

/// IPAddress: an allocated address.
#[derive(Debug)]
pub(crate) struct IpAddress;

impl KindCode for IpAddress {
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(strict_ip(name))
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let parent = |field: &str| str_at(object, &["spec", "parentRef", field]);
        let mut name = parent("resource").to_owned();
        if !parent("group").is_empty() {
            name = format!("{name}.{}", parent("group"));
        }
        if !parent("namespace").is_empty() {
            name = format!("{name}/{}", parent("namespace"));
        }
        let has_parent = at(object, &["spec", "parentRef"]).is_some_and(|value| !value.is_null());
        CellValue::text(match has_parent {
            true => format!("{}/{}", name.to_lowercase(), parent("name")),
            false => "<none>".to_owned(),
        })
    }
}

/// NetworkPolicy: the traffic allowed to and from pods.
#[derive(Debug)]
pub(crate) struct NetworkPolicy;

impl KindCode for NetworkPolicy {
    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(cells::selector(at(object, &["spec", "podSelector"])))
    }
}

/// ServiceCIDR: a range of addresses for services.
#[derive(Debug)]
pub(crate) struct ServiceCidr;

impl KindCode for ServiceCidr {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        const WHY: &str = "field is immutable";
        let Some(old) = change.old.filter(|_| change.subresource.is_empty()) else { return };
        let (before, after) = (old.list(&["spec", "cidrs"]), object.list(&["spec", "cidrs"]));
        let root = FieldPath::Root;
        let path = root.field("spec.cidrs");
        // A range of the other family may be added.
        if before.len() != after.len() && (before.len(), after.len()) != (1, 2) {
            return errors.invalid(path, object.get(&["spec", "cidrs"]), WHY);
        }
        for (at, (before, after)) in before.iter().zip(after).enumerate() {
            if before != after {
                errors.invalid(path.index(at), after, WHY);
            }
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let ranges = list_at(object, &["spec", "cidrs"]).iter();
        let ranges: Vec<&str> = ranges.filter_map(Value::as_str).collect();
        CellValue::text(ranges.join(","))
    }
}
