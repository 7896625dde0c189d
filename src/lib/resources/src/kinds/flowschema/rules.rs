//! Validation of a FlowSchema's rules.

use crate::checks::{all_invalid, is_full, items, text};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;

const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const SUBJECT_KINDS: [&str; 3] = ["Group", "ServiceAccount", "User"];
const IN_NAMESPACES: &str = "each member of this list must be '*' or a DNS-1123 label; ";

/// Errors in one of `spec.rules`.
pub(super) fn validate(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let subjects = items(rule, "subjects");
    if subjects.is_empty() {
        let field = format!("{path}.subjects");
        errors.push(FieldError::required(field, "subjects must contain at least one value"));
    }
    for (index, subject) in subjects.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(validate_subject(subject, &format!("{path}.subjects[{index}]")));
    }
    let (resources, paths) = (items(rule, "resourceRules"), items(rule, "nonResourceRules"));
    if resources.is_empty() && paths.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, detail));
    }
    for (index, resource) in resources.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(resource_rule(resource, &format!("{path}.resourceRules[{index}]")));
    }
    for (index, paths) in paths.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(path_rule(paths, &format!("{path}.nonResourceRules[{index}]")));
    }
    errors
}

fn validate_subject(subject: &Value, path: &str) -> Vec<FieldError> {
    let kind = text(subject, "kind");
    let own = match kind {
        "ServiceAccount" => "serviceAccount",
        "User" => "user",
        "Group" => "group",
        _ => {
            let field = format!("{path}.kind");
            return vec![FieldError::not_supported(field, Word(kind), SUBJECT_KINDS)];
        }
    };
    let mut errors = match subject.get(own).filter(|named| !named.is_null()) {
        None => vec![FieldError::required(
            format!("{path}.{own}"),
            format!("{own} is required when subject kind is '{kind}'"),
        )],
        Some(named) => subject_name(named, kind, &format!("{path}.{own}")),
    };
    // In kube-apiserver's order.
    for (other, kind) in
        [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")]
    {
        if other != own && subject.get(other).is_some_and(|named| !named.is_null()) {
            errors.push(FieldError::forbidden(
                format!("{path}.{other}"),
                format!("{other} is forbidden when subject kind is not '{kind}'"),
            ));
        }
    }
    errors
}

fn subject_name(named: &Value, kind: &str, path: &str) -> Vec<FieldError> {
    let (name, field) = (text(named, "name"), format!("{path}.name"));
    let mut errors = Vec::new();
    if name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else if kind == "ServiceAccount" && name != "*" {
        errors.extend(all_invalid(&field, name, name::dns1123_subdomain(name)));
    }
    if kind == "ServiceAccount" {
        let (namespace, field) = (text(named, "namespace"), format!("{path}.namespace"));
        if namespace.is_empty() {
            let detail = "must specify namespace for service account";
            errors.push(FieldError::required(field, detail));
        } else {
            errors.extend(all_invalid(&field, namespace, name::dns1123_label(namespace)));
        }
    }
    errors
}

fn resource_rule(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = verbs(rule, path);
    for (list, one, many) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        if items(rule, list).is_empty() {
            let detail = format!("resource rules must supply at least one {one}");
            errors.push(FieldError::required(format!("{path}.{list}"), detail));
        } else {
            errors.extend(more_than_all(rule, path, list, many));
        }
    }
    let namespaces = items(rule, "namespaces");
    if namespaces.is_empty() && rule.get("clusterScope").and_then(Value::as_bool) != Some(true) {
        let detail =
            "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(format!("{path}.namespaces"), detail));
    } else if has_all(namespaces) {
        errors.extend(more_than_all(rule, path, "namespaces", "namespaces"));
    } else {
        for (index, namespace) in namespaces.iter().enumerate() {
            if is_full(&errors) {
                break;
            }
            let namespace = namespace.as_str().unwrap_or_default();
            let sentences = name::dns1123_label(namespace);
            let sentences =
                sentences.into_iter().map(|sentence| format!("{IN_NAMESPACES}{sentence}"));
            let field = format!("{path}.namespaces[{index}]");
            errors.extend(all_invalid(&field, namespace, sentences.collect()));
        }
    }
    errors
}

fn path_rule(rule: &Value, path: &str) -> Vec<FieldError> {
    const LIST: &str = "nonResourceURLs";
    let mut errors = verbs(rule, path);
    let urls = items(rule, LIST);
    if urls.is_empty() {
        let detail = "nonResourceURLs must contain at least one value";
        errors.push(FieldError::required(format!("{path}.{LIST}"), detail));
    } else if has_all(urls) {
        errors.extend(more_than_all(rule, path, LIST, "non-resource URLs"));
    } else {
        for (index, url) in urls.iter().enumerate() {
            if is_full(&errors) {
                break;
            }
            let url = url.as_str().unwrap_or_default();
            if let Err(why) = url_path(url) {
                errors.push(FieldError::invalid(format!("{path}.{LIST}[{index}]"), url, why));
            }
        }
    }
    errors
}

fn verbs(rule: &Value, path: &str) -> Vec<FieldError> {
    let (verbs, field) = (items(rule, "verbs"), format!("{path}.verbs"));
    let is_known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if verbs.is_empty() {
        vec![FieldError::required(field, "verbs must contain at least one value")]
    } else if has_all(verbs) {
        more_than_all(rule, path, "verbs", "verbs")
    } else if verbs.iter().all(is_known) {
        Vec::new()
    } else {
        vec![FieldError::not_supported(field, rule.get("verbs"), VERBS)]
    }
}

/// An error if a list has `*` and other items. `what` names the items, in the plural.
fn more_than_all(rule: &Value, path: &str, field: &str, what: &str) -> Vec<FieldError> {
    let list = items(rule, field);
    if list.len() < 2 || !has_all(list) {
        return Vec::new();
    }
    let detail = format!("if '*' is present, must not specify other {what}");
    vec![FieldError::invalid(format!("{path}.{field}"), rule.get(field), detail)]
}

fn has_all(list: &[Value]) -> bool {
    list.iter().any(|item| item.as_str() == Some("*"))
}

fn url_path(path: &str) -> Result<(), &'static str> {
    let wildcards = path.matches('*').count();
    if path.is_empty() {
        Err("must not be empty")
    } else if path == "/" {
        Ok(())
    } else if !path.starts_with('/') {
        Err("must start with slash")
    } else if path.contains(' ') {
        Err("must not contain white-space")
    } else if path.contains("//") {
        Err("must not contain double slash")
    } else if wildcards > 1 || (wildcards == 1 && !path.ends_with("/*")) {
        Err("wildcard can only do suffix matching")
    } else {
        Ok(())
    }
}
