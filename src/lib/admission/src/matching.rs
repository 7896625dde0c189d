//! Which writes a webhook, policy or binding matches: rules and selectors, compiled once per
//! change.

use crate::candidate::{CandidateWrite, is_namespace, namespace_of};
use crate::rule::{RequestRule, RuleSubject, strings};
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::selector::LabelSelector;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Operation, Served};

const LABELS: &[&str] = &["metadata", "labels"];

/// Rules and selectors of one owner.
#[derive(Debug)]
pub(crate) struct RequestMatcher {
    namespaces: LabelSelector,
    objects: LabelSelector,
    /// `None`: every write matches.
    rules: Option<Vec<NamedRule>>,
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

impl RequestMatcher {
    /// Reads the `matchConstraints` or `matchResources` of a policy or binding. Without rules they
    /// match everything.
    ///
    /// # Errors
    /// A malformed selector.
    pub(crate) fn of_policy(matching: &Value) -> Result<Self, String> {
        let rules = NamedRule::all(matching, "resourceRules");
        let rules = (!rules.is_empty()).then_some(rules);
        let excluded = NamedRule::all(matching, "excludeResourceRules");
        Self::compile(matching, rules, excluded)
    }

    /// Reads the rules and selectors of a webhook. Without rules it matches nothing.
    ///
    /// # Errors
    /// A malformed selector.
    pub(crate) fn of_webhook(webhook: &Value) -> Result<Self, String> {
        Self::compile(webhook, Some(NamedRule::all(webhook, "rules")), Vec::new())
    }

    fn compile(
        owner: &Value,
        rules: Option<Vec<NamedRule>>,
        excluded: Vec<NamedRule>,
    ) -> Result<Self, String> {
        let selector = |field: &str| match owner.get(field).filter(|value| !value.is_null()) {
            None => Ok(LabelSelector::default()),
            Some(value) => LabelSelector::from_document(value).map_err(|why| why.to_string()),
        };
        Ok(Self {
            namespaces: selector("namespaceSelector")?,
            objects: selector("objectSelector")?,
            rules,
            excluded,
            equivalent: text(owner, "matchPolicy") != "Exact",
        })
    }

    /// Whether a write may match, judging by resource and operation alone.
    pub(crate) fn may_match(&self, write: &CandidateWrite<'_>) -> bool {
        self.rules.as_ref().is_none_or(|rules| self.find(rules, write).is_some())
    }

    /// The version in which the write matches. A missing namespace is an error only for writes that
    /// everything else matches.
    ///
    /// # Errors
    /// 404: the namespace of the write does not exist.
    pub(crate) fn matches(
        &self,
        write: &CandidateWrite<'_>,
        object: Option<&Document>,
    ) -> Result<Option<Served>, Failure> {
        let in_namespace = self.selects_namespace(write, object);
        if matches!(in_namespace, Ok(false)) || !self.selects_object(write, object) {
            return Ok(None);
        }
        if self.find(&self.excluded, write).is_some() {
            return Ok(None);
        }
        let found = match &self.rules {
            Some(rules) => self.find(rules, write),
            None => Some(write.served()),
        };
        match found {
            Some(served) => in_namespace.map(|_| Some(served.clone())),
            None => Ok(None),
        }
    }

    fn find<'w>(&self, rules: &[NamedRule], write: &'w CandidateWrite<'_>) -> Option<&'w Served> {
        let served = write.served();
        if rules.iter().any(|rule| rule.matches(write, served)) {
            return Some(served);
        }
        if !self.equivalent || rules.is_empty() {
            return None;
        }
        // Earlier rules take precedence over earlier versions.
        let others = write.equivalents();
        rules.iter().find_map(|rule| others.iter().find(|other| rule.matches(write, other)))
    }

    fn selects_namespace(
        &self,
        write: &CandidateWrite<'_>,
        object: Option<&Document>,
    ) -> Result<bool, Failure> {
        let (attributes, name) = (&write.attributes, namespace_of(&write.attributes));
        // As kube-apiserver does, by the name of the resource alone.
        let of_namespaces = attributes.target.served.definition.plural == "namespaces";
        // Only writes in namespaces can be exempted.
        if self.namespaces.is_empty() || name.is_empty() && !of_namespaces {
            return Ok(true);
        }
        let writes_labels = of_namespaces
            && attributes.target.subresource.is_empty()
            && matches!(attributes.operation, Operation::Create | Operation::Update);
        let namespace = if writes_labels { object } else { write.namespace() };
        match namespace {
            Some(namespace) => Ok(self.namespaces.matches_value(namespace.get(LABELS))),
            None => Err(Failure::not_found(&GroupResource::new("", "namespaces"), name)),
        }
    }

    /// Whether the selector matches the new or the stored object.
    fn selects_object(&self, write: &CandidateWrite<'_>, object: Option<&Document>) -> bool {
        self.objects.is_empty()
            || [object, write.attributes.old]
                .into_iter()
                .flatten()
                .any(|object| self.objects.matches_value(object.get(LABELS)))
    }
}

impl NamedRule {
    fn all(owner: &Value, field: &str) -> Vec<Self> {
        let rule = |rule: &Value| Self {
            rule: RequestRule::of(rule),
            names: strings(rule, "resourceNames"),
        };
        items(owner, field).iter().map(rule).collect()
    }

    fn matches(&self, write: &CandidateWrite<'_>, served: &Served) -> bool {
        let attributes = &write.attributes;
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

/// A list; empty if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// A text; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
