//! Rules of webhooks and policies: which operations on which resources they see.

use crate::candidate::operation_name;
use crate::matching::items;
use ferrokube_apimachinery::document::Value;
use ferrokube_registry::Operation;

/// Matches requests in its scope if each list contains the request's value or `*`.
#[derive(Clone, Debug)]
pub(crate) struct RequestRule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Resource and subresource.
    resources: Vec<(String, String)>,
    scope: RuleScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleScope {
    Any,
    Cluster,
    Namespaced,
}

/// A request as rules match it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleSubject<'a> {
    pub(crate) operation: Operation,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// False for namespaces themselves.
    pub(crate) is_namespaced: bool,
}

impl RequestRule {
    pub(crate) fn of(rule: &Value) -> Self {
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
                Some("Cluster") => RuleScope::Cluster,
                Some("Namespaced") => RuleScope::Namespaced,
                _ => RuleScope::Any,
            },
        }
    }

    pub(crate) fn matches(&self, subject: &RuleSubject<'_>) -> bool {
        let is_among = |list: &[String], given: &str| {
            list.iter().any(|listed| listed == "*" || listed == given)
        };
        let in_scope = match self.scope {
            RuleScope::Any => true,
            RuleScope::Cluster => !subject.is_namespaced,
            RuleScope::Namespaced => subject.is_namespaced,
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
pub(crate) fn strings(value: &Value, field: &str) -> Vec<String> {
    items(value, field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
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

    fn rule(resources: &[&str], scope: &str) -> RequestRule {
        RequestRule::of(&json!({"operations": ["CREATE"], "apiGroups": [""],
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
