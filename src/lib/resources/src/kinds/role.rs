//! Role and ClusterRole: lists of rules. Admission checks that the writer may grant them.

use crate::checks::{ErrorList, items, label_selector};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, Policy, Printable, TableRow};
use std::sync::Arc;

pub(crate) fn role() -> KindBody {
    body("roles", true)
}

pub(crate) fn cluster_role() -> KindBody {
    body("clusterroles", false)
}

fn body(storage: &'static str, namespaced: bool) -> KindBody {
    KindBody {
        columns: &[NativeColumn::NAME, NativeColumn::CREATED_AT],
        storage: Some(storage),
        // Admission compares all rules with those of the writer.
        policy: Policy {
            computes_long: true,
            create_on_update: true,
            prefix_is_name: true,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(RoleHooks { namespaced }),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct RoleHooks {
    namespaced: bool,
}

impl Hooks for RoleHooks {
    fn validate(&self, _change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = ErrorList::default();
        errors.check_each(object.list(&["rules"]).iter().enumerate(), |(index, rule)| {
            self.rule(rule, &format!("rules[{index}]"))
        });
        if object.get(&["aggregationRule"]).is_some() && !self.namespaced {
            errors.extend(aggregation(object));
        }
        errors.into_vec()
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::path_segment(name))
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["metadata", "creationTimestamp"]));
    }
}

impl RoleHooks {
    fn rule(&self, rule: &Value, path: &str) -> Vec<FieldError> {
        let is_empty = |field: &str| items(rule, field).is_empty();
        let mut errors = Vec::new();
        if is_empty("verbs") {
            errors.push(FieldError::required(
                format!("{path}.verbs"),
                "verbs must contain at least one value",
            ));
        }
        if !is_empty("nonResourceURLs") {
            let field = format!("{path}.nonResourceURLs");
            let urls = rule.get("nonResourceURLs");
            if self.namespaced {
                errors.push(FieldError::invalid(
                    &field,
                    urls,
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            if !["apiGroups", "resources", "resourceNames"].iter().all(|field| is_empty(field)) {
                errors.push(FieldError::invalid(
                    field,
                    urls,
                    "rules cannot apply to both regular resources and non-resource URLs",
                ));
            }
            return errors;
        }
        if is_empty("apiGroups") {
            errors.push(FieldError::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if is_empty("resources") {
            errors.push(FieldError::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
        errors
    }
}

fn aggregation(object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "aggregationRule.clusterRoleSelectors";
    let selectors = object.list(&["aggregationRule", "clusterRoleSelectors"]);
    if selectors.is_empty() {
        return vec![FieldError::required(
            FIELD,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        )];
    }
    let mut all = ErrorList::default();
    all.check_each(selectors.iter().enumerate(), |(index, selector)| {
        let field = format!("{FIELD}[{index}]");
        let mut errors = label_selector(selector, &field);
        if !errors.is_empty() {
            // Reported again as a whole, as by kube-apiserver.
            errors.push(FieldError::invalid(field, Value::Null, "invalid label selector."));
        }
        errors
    });
    all.into_vec()
}
