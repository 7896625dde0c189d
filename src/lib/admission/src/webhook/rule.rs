//! The rules of a webhook: which operations on which resources it reviews.

use crate::matching::operation_name;
use ferrokube_apimachinery::document::{Array, Value};
use ferrokube_registry::Operation;

/// A rule.
#[derive(Clone, Debug)]
pub(super) struct WebhookRule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource.
    resources: Vec<(String, String)>,
    scope: HookScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookScope {
    Any,
    Cluster,
    Namespaced,
}

/// What rules decide about.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleSubject<'a> {
    pub(super) operation: Operation,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) resource: &'a str,
    pub(super) subresource: &'a str,
    /// False for namespaces themselves.
    pub(super) is_namespaced: bool,
}

impl WebhookRule {
    pub(super) fn of(rule: &Value) -> Self {
        let resources = strings(rule, "resources").into_iter().map(|whole| {
            let (resource, subresource) = whole.split_once('/').unwrap_or((&whole, ""));
            (resource.to_owned(), subresource.to_owned())
        });
        Self {
            operations: strings(rule, "operations"),
            groups: strings(rule, "apiGroups"),
            versions: strings(rule, "apiVersions"),
            resources: resources.collect(),
            scope: match rule.get("scope").and_then(Value::as_str) {
                Some("Cluster") => HookScope::Cluster,
                Some("Namespaced") => HookScope::Namespaced,
                _ => HookScope::Any,
            },
        }
    }

    pub(super) fn matches(&self, subject: &RuleSubject<'_>) -> bool {
        let is_among = |list: &[String], given: &str| {
            list.iter().any(|listed| listed == "*" || listed == given)
        };
        let in_scope = match self.scope {
            HookScope::Any => true,
            HookScope::Cluster => !subject.is_namespaced,
            HookScope::Namespaced => subject.is_namespaced,
        };
        in_scope
            && is_among(&self.operations, operation_name(subject.operation))
            && is_among(&self.groups, subject.group)
            && is_among(&self.versions, subject.version)
            && self.resources.iter().any(|(resource, subresource)| {
                (resource == "*" || resource == subject.resource)
                    && (subresource == "*" || subresource == subject.subresource)
            })
    }
}

/// The strings of a list.
pub(super) fn strings(value: &Value, field: &str) -> Vec<String> {
    let items = value.get(field).and_then(Value::as_array).map_or(&[][..], Array::as_slice);
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    const CONFIGMAP: RuleSubject<'_> = RuleSubject {
        operation: Operation::Create,
        group: "",
        version: "v1",
        resource: "configmaps",
        subresource: "",
        is_namespaced: true,
    };

    fn rule(resources: &[&str], scope: &str) -> WebhookRule {
        WebhookRule::of(&json!({"operations": ["CREATE"], "apiGroups": [""],
            "apiVersions": ["*"], "resources": resources, "scope": scope}))
    }

    #[test]
    fn resources_and_subresources() {
        let status = RuleSubject { subresource: "status", ..CONFIGMAP };
        for (given, of_object, of_status) in [
            ("configmaps", true, false),
            ("*", true, false),
            ("configmaps/status", false, true),
            ("configmaps/*", true, true),
            ("*/status", false, true),
            ("*/*", true, true),
            ("secrets", false, false),
        ] {
            let rule = rule(&[given], "*");
            assert_eq!((rule.matches(&CONFIGMAP), rule.matches(&status)), (of_object, of_status));
        }
    }

    #[test]
    fn scopes_operations_and_groups() {
        let cluster = RuleSubject { is_namespaced: false, ..CONFIGMAP };
        assert!(rule(&["*"], "Namespaced").matches(&CONFIGMAP));
        assert!(!rule(&["*"], "Cluster").matches(&CONFIGMAP));
        assert!(rule(&["*"], "Cluster").matches(&cluster));
        let update = RuleSubject { operation: Operation::Update, ..CONFIGMAP };
        assert!(!rule(&["*"], "*").matches(&update));
        assert!(!rule(&["*"], "*").matches(&RuleSubject { group: "apps", ..CONFIGMAP }));
    }
}
