//! A write that webhooks and policies may match, with lazily computed data that they share.

use crate::request::kind_of;
use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{
    Attributes, Catalog, FieldValidation, Operation, Served, Target, decode_mutated, schema_at,
    view,
};
use ferrokube_resource::encoding;
use ferrokube_schema::Schema;
use ferrokube_storage::{Prefix, Store};
use std::sync::{Arc, OnceLock};

pub(crate) struct CandidateWrite<'a> {
    pub(crate) attributes: Attributes<'a>,
    catalog: &'a Catalog,
    store: &'a Store,
    equivalents: OnceLock<Vec<Served>>,
    namespace: OnceLock<Option<Document>>,
}

impl<'a> CandidateWrite<'a> {
    pub(crate) fn new(attributes: Attributes<'a>, catalog: &'a Catalog, store: &'a Store) -> Self {
        let (equivalents, namespace) = Default::default();
        Self { attributes, catalog, store, equivalents, namespace }
    }

    /// The version of the request.
    pub(crate) fn served(&self) -> &'a Served {
        &self.attributes.target.served
    }

    /// The other versions in which the object can be seen, in order.
    pub(crate) fn equivalents(&self) -> &[Served] {
        self.equivalents.get_or_init(|| {
            let subresource = self.attributes.target.subresource.as_str();
            let mut others = self.catalog.equivalents(self.served());
            others.retain(|other| {
                subresource.is_empty()
                    || other.definition.subresource(other.version, subresource).is_some()
            });
            others
        })
    }

    /// The stored namespace of the write; `None` if it does not exist.
    pub(crate) fn namespace(&self) -> Option<&Document> {
        let read = || {
            let served = self.catalog.find("", "v1", "namespaces")?;
            let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
            let key = prefix.key(None, namespace_of(&self.attributes)).ok()?;
            Some(view(&*self.store.get(&key)?, &served))
        };
        self.namespace.get_or_init(read).as_ref()
    }

    /// Decodes an object changed by a step, in the given version.
    ///
    /// # Errors
    /// Why it is malformed, or has unknown fields if they are validated strictly.
    pub(crate) fn decode(
        &self,
        served: &Served,
        object: Document,
        validation: FieldValidation,
    ) -> Result<Document, String> {
        let target = self.target_in(served);
        decode_mutated(self.catalog, self.attributes.context, &target, object, validation)
    }

    /// The schema of the object in the given version.
    pub(crate) fn schema(&self, served: &Served) -> Arc<Schema> {
        schema_at(self.catalog, &self.target_in(served))
    }

    fn target_in(&self, served: &Served) -> Target {
        Target { served: served.clone(), ..self.attributes.target.clone() }
    }

    /// Sets the defaults of a version, unless the subresource has a kind of its own, or a step has
    /// changed the kind.
    pub(crate) fn set_defaults(&self, served: &Served, object: &mut Document) {
        let kind = kind_of(served, &self.attributes.target.subresource);
        if kind == served.definition.gvk(served.version) && object.kind() == kind.kind {
            served.definition.set_defaults(served.version, object);
        }
    }

    /// Whether two objects of a version differ in more than nulls and other forms of none.
    pub(crate) fn differ(&self, served: &Served, one: &Document, other: &Document) -> bool {
        let schema = self.schema(served);
        let normal = |object: &Document| {
            let mut object = object.clone();
            encoding::normalize(&schema, &mut object);
            object
        };
        normal(one) != normal(other)
    }

    /// Whether both versions have the same object kind, also for subresources with their own kind.
    pub(crate) fn is_same_kind(&self, one: &Served, other: &Served) -> bool {
        let subresource = &self.attributes.target.subresource;
        kind_of(one, subresource) == kind_of(other, subresource)
    }
}

/// Whether a Namespace is written.
pub(crate) fn is_namespace(attributes: &Attributes<'_>) -> bool {
    let definition = &attributes.target.served.definition;
    definition.group.is_empty() && definition.plural == "namespaces"
}

/// The namespace of a write; a namespace is in itself.
pub(crate) fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    let target = attributes.target;
    let named = if is_namespace(attributes) { &target.name } else { &target.namespace };
    named.as_deref().unwrap_or_default()
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
