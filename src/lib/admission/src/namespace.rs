//! NamespaceLifecycle: rejects creates in a missing or terminating namespace, and deletes of
//! protected namespaces.
//!
//! Reads the namespace's pending head, not a cache, and guards the write with its revision: a
//! create and the deletion of its namespace cannot both succeed.

use crate::step::AdmissionStep;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_registry::{Attributes, Effects, Operation};
use ferrokube_storage::{Entry, Guard, Key, Prefix, Store};
use std::sync::Arc;

/// Namespaces that cannot be deleted.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];
/// Storage prefix of namespaces.
const PREFIX: &str = "namespaces";
/// `status.phase` of a terminating namespace, which is the first selectable field in its sidecar.
const TERMINATING: &str = "Terminating";

/// Guards each create with the revision of its namespace.
pub struct NamespaceLifecycle {
    store: Store,
    prefix: Prefix,
}

impl NamespaceLifecycle {
    /// Over the store of the namespaces.
    ///
    /// # Panics
    /// Never: the prefix is a constant.
    pub fn new(store: Store) -> Self {
        Self { store, prefix: Prefix::new(PREFIX).expect("a constant without a slash") }
    }

    /// Namespace of a create; `None` if there is nothing to check.
    fn namespace<'a>(attributes: &'a Attributes<'_>) -> Option<&'a str> {
        let definition = &attributes.target.served.definition;
        // Reviews may name missing namespaces; checking them would reveal which exist.
        let checked =
            attributes.operation == Operation::Create && definition.storage_prefix.is_some();
        attributes.target.namespace.as_deref().filter(|_| checked)
    }

    fn active(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        namespace: &str,
    ) -> Result<(Key, Arc<Entry>), Failure> {
        let missing = || Failure::not_found(&GroupResource::new("", "namespaces"), namespace);
        let key = self.prefix.key(None, namespace).map_err(|_| missing())?;
        let entry = self.store.pending(&key).ok_or_else(missing)?;
        if entry.sidecar.fields.first().is_some_and(|phase| &**phase == TERMINATING) {
            return Err(terminating(attributes, attributes.shown_name(object), namespace));
        }
        Ok((key, entry))
    }
}

impl AdmissionStep for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        match Self::namespace(attributes) {
            Some(namespace) => self.active(attributes, Some(&*object), namespace).map(drop),
            None => Ok(()),
        }
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        if attributes.operation == Operation::Delete {
            return protect(attributes);
        }
        if let Some(namespace) = Self::namespace(attributes) {
            let (key, entry) = self.active(attributes, object, namespace)?;
            effects.guards.push(Guard::At(key, entry.revision));
        }
        Ok(())
    }
}

fn protect(attributes: &Attributes<'_>) -> Result<(), Failure> {
    let definition = &attributes.target.served.definition;
    let name = attributes.target.name.as_deref().unwrap_or_default();
    if definition.group.is_empty() && definition.plural == "namespaces" && PROTECTED.contains(&name)
    {
        return Err(Failure::forbidden(
            &definition.group_resource(),
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}

fn terminating(attributes: &Attributes<'_>, name: &str, namespace: &str) -> Failure {
    let resource = attributes.target.served.definition.group_resource();
    let cause = Cause {
        reason: "NamespaceTerminating".to_owned(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".to_owned(),
    };
    let message = format!(
        "{resource} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated"
    );
    Failure::new(Reason::Forbidden, message)
        .with_details(Details { causes: vec![cause], ..Details::of(&resource, name) })
}
