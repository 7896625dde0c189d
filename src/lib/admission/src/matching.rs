//! Which requests a policy or binding matches: rules and selectors, compiled once per change.

use crate::rule::{RequestRule, RuleSubject, strings};
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::selector::LabelSelector;
use ferrokube_registry::{Attributes, Catalog, Operation, Served};

/// Rules and selectors of a policy or binding.
#[derive(Debug)]
pub(crate) struct RequestMatcher {
    namespaces: LabelSelector,
    objects: LabelSelector,
    /// None: every request.
    rules: Vec<NamedRule>,
    excluded: Vec<NamedRule>,
    /// Whether rules also match the other versions of the resource.
    equivalent: bool,
}

/// A rule, for some objects.
#[derive(Debug)]
struct NamedRule {
    rule: RequestRule,
    /// Object names; empty: any.
    names: Vec<String>,
}

/// The labels of the request's namespace, read when a selector needs them.
pub(crate) trait NamespaceLabels {
    /// The stored namespace; `None` if it does not exist.
    fn namespace(&self, name: &str) -> Option<Document>;
}

impl RequestMatcher {
    /// Compiles `matchConstraints` or `matchResources`.
    ///
    /// # Errors
    /// A malformed selector.
    pub(crate) fn compile(matching: &Value) -> Result<Self, String> {
        let selector = |field: &str| match matching.get(field).filter(|value| !value.is_null()) {
            None => Ok(LabelSelector::default()),
            Some(value) => LabelSelector::from_document(value).map_err(|why| why.to_string()),
        };
        Ok(Self {
            namespaces: selector("namespaceSelector")?,
            objects: selector("objectSelector")?,
            rules: items(matching, "resourceRules").iter().map(NamedRule::compile).collect(),
            excluded: items(matching, "excludeResourceRules")
                .iter()
                .map(NamedRule::compile)
                .collect(),
            equivalent: text(matching, "matchPolicy") != "Exact",
        })
    }

    /// Whether a write may match, as far as its resource and operation tell.
    pub(crate) fn may_match(&self, attributes: &Attributes<'_>, catalog: &Catalog) -> bool {
        self.resource(&self.rules, attributes, catalog).is_some()
    }

    /// The version in which the write matches.
    ///
    /// # Errors
    /// The namespace of the request does not exist.
    pub(crate) fn matches(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        namespaces: &dyn NamespaceLabels,
        catalog: &Catalog,
    ) -> Result<Option<Served>, String> {
        let selected = self.selects_namespace(attributes, object, namespaces);
        if selected == Ok(false) || !self.selects_object(attributes, object) {
            return Ok(None);
        }
        let is_excluded = !self.excluded.is_empty()
            && self.resource(&self.excluded, attributes, catalog).is_some();
        if is_excluded {
            return Ok(None);
        }
        match self.resource(&self.rules, attributes, catalog) {
            Some(served) => selected.map(|_| Some(served)),
            None => Ok(None),
        }
    }

    fn resource(
        &self,
        rules: &[NamedRule],
        attributes: &Attributes<'_>,
        catalog: &Catalog,
    ) -> Option<Served> {
        let served = &attributes.target.served;
        if rules.is_empty() || rules.iter().any(|rule| rule.matches(attributes, served)) {
            return Some(served.clone());
        }
        if !self.equivalent {
            return None;
        }
        // Earlier rules take precedence over earlier versions.
        let equivalents = catalog.equivalents(served);
        rules.iter().find_map(|rule| {
            equivalents.iter().find(|other| rule.matches(attributes, other)).cloned()
        })
    }

    fn selects_namespace(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        namespaces: &dyn NamespaceLabels,
    ) -> Result<bool, String> {
        if self.namespaces.is_empty() {
            return Ok(true);
        }
        let labels_match = |object: &Document| self.namespaces.matches_value(object.get(LABELS));
        if is_namespace(attributes) {
            let writes = attributes.operation != Operation::Delete
                && attributes.target.subresource.is_empty();
            if let Some(object) = object.filter(|_| writes) {
                return Ok(labels_match(object));
            }
        }
        match namespace_of(attributes) {
            // Only namespaced requests can be exempted.
            "" => Ok(true),
            name => match namespaces.namespace(name) {
                Some(namespace) => Ok(labels_match(&namespace)),
                None => Err(format!("namespaces {name:?} not found")),
            },
        }
    }

    /// Whether the selector matches the new or the stored object.
    fn selects_object(&self, attributes: &Attributes<'_>, object: Option<&Document>) -> bool {
        self.objects.is_empty()
            || [object, attributes.old]
                .into_iter()
                .flatten()
                .any(|object| self.objects.matches_value(object.get(LABELS)))
    }
}

const LABELS: &[&str] = &["metadata", "labels"];

impl NamedRule {
    fn compile(rule: &Value) -> Self {
        Self { rule: RequestRule::of(rule), names: strings(rule, "resourceNames") }
    }

    fn matches(&self, attributes: &Attributes<'_>, served: &Served) -> bool {
        let target = attributes.target;
        let subject = RuleSubject {
            operation: attributes.operation,
            group: &served.definition.group,
            version: &served.version().name,
            resource: &served.definition.plural,
            subresource: &target.subresource,
            is_namespaced: !is_namespace(attributes) && target.namespace.is_some(),
        };
        self.rule.matches(&subject)
            && (self.names.is_empty()
                || self.names.iter().any(|name| Some(name) == target.name.as_ref()))
    }
}

/// The operation in rules and reviews.
pub(crate) fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

fn is_namespace(attributes: &Attributes<'_>) -> bool {
    let definition = &attributes.target.served.definition;
    definition.group.is_empty() && definition.plural == "namespaces"
}

/// The namespace of a request; an existing namespace is in itself.
pub(crate) fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    let target = attributes.target;
    if is_namespace(attributes) && attributes.operation != Operation::Create {
        return target.name.as_deref().unwrap_or_default();
    }
    target.namespace.as_deref().unwrap_or_default()
}

/// A list; empty if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// A text; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
