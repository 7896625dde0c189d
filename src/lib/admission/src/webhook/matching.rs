//! Whether a webhook reviews a write, and in which version of the object.

use super::WebhookEnvironment;
use super::hook::Hook;
use crate::request::admission_request;
use crate::rule::RuleSubject;
use crate::step::authorizer_of;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_cel::CheckedResource;
use ferrokube_cel::admission::AdmissionInput;
use ferrokube_registry::{Attributes, Local, Operation, Served, convert};
use ferrokube_storage::Prefix;

/// Objects of this group's kinds are never reviewed: a faulty webhook could not be removed.
const OWN_GROUP: &str = "admissionregistration.k8s.io";

/// A write as webhooks of one kind see it.
pub(super) struct ReviewedWrite<'a> {
    pub(super) environment: &'a WebhookEnvironment,
    pub(super) attributes: Attributes<'a>,
    equivalents: Option<Vec<Served>>,
    /// Labels of the namespace, once known.
    namespace: Option<Result<Option<Value>, Failure>>,
}

/// The objects of a write in the version that a webhook wants.
pub(super) struct ReviewedObjects {
    pub(super) served: Served,
    pub(super) object: Option<Document>,
    pub(super) old: Option<Document>,
}

/// Whether no webhook reviews the write: configurations of admission, so that faulty ones can be
/// removed, and what the control plane itself needs to start and to elect leaders.
pub(super) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let definition = &attributes.target.served.definition;
    match definition.group.as_str() {
        OWN_GROUP => true,
        "coordination.k8s.io" if definition.plural == "leases" => {
            let namespace = attributes.target.namespace.as_deref().unwrap_or_default();
            let user = attributes.context.user.name.as_str();
            matches!(namespace, "kube-system" | "kube-node-lease") && is_component(user)
        }
        _ => is_server(attributes),
    }
}

fn is_server(attributes: &Attributes<'_>) -> bool {
    let server = Local::user();
    let user = &attributes.context.user;
    user.name == server.name && user.groups == server.groups
}

fn is_component(user: &str) -> bool {
    let is_account = user.starts_with("system:serviceaccount:");
    user.starts_with("system:serviceaccount:kube-system:")
        || user.starts_with("system:") && !is_account && user != "system:anonymous"
}

impl<'a> ReviewedWrite<'a> {
    pub(super) fn new(environment: &'a WebhookEnvironment, attributes: Attributes<'a>) -> Self {
        Self { environment, attributes, equivalents: None, namespace: None }
    }

    /// The namespace that reviews name; that of a namespace is its own name.
    pub(super) fn namespace(&self) -> &'a str {
        let target = self.attributes.target;
        let definition = &target.served.definition;
        let is_namespace = definition.group.is_empty() && definition.plural == "namespaces";
        let named = if is_namespace { &target.name } else { &target.namespace };
        named.as_deref().unwrap_or_default()
    }

    fn subject<'b>(&'b self, served: &'b Served) -> RuleSubject<'b> {
        let definition = &served.definition;
        let is_namespace = definition.group.is_empty() && definition.plural == "namespaces";
        RuleSubject {
            operation: self.attributes.operation,
            group: &definition.group,
            version: &served.version().name,
            resource: &definition.plural,
            subresource: &self.attributes.target.subresource,
            is_namespaced: !is_namespace && !self.namespace().is_empty(),
        }
    }

    /// The version in which the webhook's rules match; `None`: they do not.
    pub(super) fn version_for(&mut self, hook: &Hook) -> Option<Served> {
        let own = &self.attributes.target.served;
        let subject = self.subject(own);
        if hook.rules.iter().any(|rule| rule.matches(&subject)) {
            return Some(own.clone());
        }
        if !hook.equivalent {
            return None;
        }
        let catalog = &self.environment.catalog;
        let equivalents = self.equivalents.take().unwrap_or_else(|| catalog.equivalents(own));
        // Earlier rules take precedence over earlier versions.
        let found = hook.rules.iter().find_map(|rule| {
            equivalents.iter().find(|served| rule.matches(&self.subject(served))).cloned()
        });
        self.equivalents = Some(equivalents);
        found
    }

    /// The objects for a webhook that reviews the write; `None`: it does not.
    ///
    /// # Errors
    /// The namespace does not exist, a conversion fails, or the conditions cannot be evaluated.
    pub(super) async fn objects_for(
        &mut self,
        hook: &Hook,
        object: Option<&Document>,
    ) -> Result<Option<ReviewedObjects>, Failure> {
        let Some(served) = self.version_for(hook) else { return Ok(None) };
        let old = self.attributes.old;
        let has_labels = |object: Option<&Document>| {
            object.is_some_and(|object| {
                hook.objects.matches_value(object.get(&["metadata", "labels"]))
            })
        };
        if !hook.objects.is_empty() && !has_labels(object) && !has_labels(old) {
            return Ok(None);
        }
        if !self.in_namespace(hook, object)? {
            return Ok(None);
        }
        let own = &self.attributes.target.served;
        let mut objects = ReviewedObjects { served, object: None, old: None };
        for (given, converted) in [(object, &mut objects.object), (old, &mut objects.old)] {
            if let Some(given) = given {
                *converted = Some(convert(own, &objects.served, given).await?);
            }
        }
        if !hook.conditions.is_empty() && !self.conditions_hold(hook, &objects)? {
            self.environment.stats.excluded(&hook.name, self.attributes.operation);
            return Ok(None);
        }
        Ok(Some(objects))
    }

    fn in_namespace(&mut self, hook: &Hook, object: Option<&Document>) -> Result<bool, Failure> {
        let target = self.attributes.target;
        let is_namespaces = target.served.definition.plural == "namespaces";
        let name = self.namespace();
        if hook.namespaces.is_empty() || name.is_empty() && !is_namespaces {
            return Ok(true);
        }
        let writes_namespace = is_namespaces
            && target.subresource.is_empty()
            && matches!(self.attributes.operation, Operation::Create | Operation::Update);
        if writes_namespace {
            let labels = object.and_then(|object| object.get(&["metadata", "labels"]));
            return Ok(hook.namespaces.matches_value(labels));
        }
        let environment = self.environment;
        let labels = self.namespace.get_or_insert_with(|| namespace_labels(environment, name));
        match labels {
            Ok(labels) => Ok(hook.namespaces.matches_value(labels.as_ref())),
            Err(failure) => Err(failure.clone()),
        }
    }

    fn conditions_hold(&self, hook: &Hook, objects: &ReviewedObjects) -> Result<bool, Failure> {
        let target = self.attributes.target;
        let definition = &target.served.definition;
        let name = target.name.as_deref().unwrap_or_default();
        let request = admission_request(&self.attributes, &objects.served);
        let user = &self.attributes.context.user;
        let authorizer = authorizer_of(&self.environment.permits, user);
        let resource = CheckedResource {
            group: definition.group.as_str().into(),
            resource: definition.plural.as_str().into(),
            subresource: target.subresource.as_str().into(),
            namespace: self.namespace().into(),
            name: name.into(),
        };
        let input = AdmissionInput {
            object: objects.object.as_ref(),
            old: objects.old.as_ref(),
            namespace: None,
            request: &request,
            params: None,
            authorizer: Some(&authorizer),
            resource: &resource,
        };
        hook.conditions.hold(&input).map_err(|why| {
            tracing::warn!(webhook = hook.name, why, "match conditions cannot be evaluated");
            Failure::forbidden(&definition.group_resource(), name, &why)
        })
    }
}

/// `metadata.labels` of a namespace.
fn namespace_labels(
    environment: &WebhookEnvironment,
    name: &str,
) -> Result<Option<Value>, Failure> {
    let missing = || Failure::not_found(&GroupResource::new("", "namespaces"), name);
    let key = Prefix::new("namespaces").and_then(|prefix| prefix.key(None, name));
    let key = key.map_err(|_| missing())?;
    let entry = environment.store.get(&key).ok_or_else(missing)?;
    let read = json::read(&entry.bytes)
        .map_err(|_| Failure::internal(format!("the namespace {name} cannot be read")))?;
    Ok(read.document.get(&["metadata", "labels"]).cloned())
}
