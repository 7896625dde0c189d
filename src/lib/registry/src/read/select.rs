//! Selectors, compiled for one resource and matched on entries without parsing them.

use crate::catalog::{Catalog, Served};
use crate::codec::view;
use crate::context::Target;
use crate::read::ListOptions;
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::selector::{FieldTerm, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
use std::borrow::Cow;
use std::sync::Arc;

/// Where a field's value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Name,
    Namespace,
    /// In the sidecar, as the owner of the storage prefix wrote it.
    Sidecar(usize),
    /// In the object, in the version of the request: index into that version's declared fields.
    Object(usize),
}

/// What a list or watch selects.
pub(super) struct Selection {
    served: Served,
    owner: Arc<Definition>,
    namespace: Option<String>,
    labels: LabelSelector,
    terms: Vec<(Source, FieldTerm)>,
}

impl Selection {
    /// Compiles the selectors of a request. The target's name, if it has one, is selected too.
    ///
    /// # Errors
    /// 400 for a field that is not selectable.
    pub(super) fn new(catalog: &Catalog, target: &Target, options: &ListOptions) -> Result<Self, Failure> {
        let served = target.served.clone();
        let owner = catalog.owner(&served.definition);
        let mut terms = Vec::new();
        for term in &options.fields.terms {
            terms.push((source(&served, &owner, &term.field)?, term.clone()));
        }
        if let Some(name) = &target.name {
            terms.push((Source::Name, FieldTerm { field: "metadata.name".to_owned(), value: name.clone(), negated: false }));
        }
        let namespace = target.namespace.clone().filter(|_| served.definition.scope == ferrokube_resource::Scope::Namespaced);
        Ok(Self { served, owner, namespace, labels: options.labels.clone(), terms })
    }

    /// The namespace that is selected by the path.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether everything in the namespace is selected.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.terms.is_empty()
    }

    /// What follows the prefix in the only key that can match.
    pub(super) fn only_key(&self) -> Option<String> {
        let exact = |source: Source| self.terms.iter().find(|(at, term)| *at == source && !term.negated).map(|(_, term)| term.value.as_str());
        let name = exact(Source::Name)?;
        if self.served.definition.scope == ferrokube_resource::Scope::Cluster {
            return Some(name.to_owned());
        }
        let namespace = self.namespace().or_else(|| exact(Source::Namespace))?;
        Some(format!("{namespace}/{name}"))
    }

    /// Whether an entry is selected, its namespace included.
    pub(super) fn matches(&self, entry: &Entry) -> bool {
        if self.namespace.is_some() && entry.key.namespace() != self.namespace.as_deref() {
            return false;
        }
        self.fields_match(entry) && self.labels_match(entry)
    }

    fn labels_match(&self, entry: &Entry) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let sidecar = &entry.sidecar;
        let layout = Layout::from_marks(sidecar.marks, sidecar.revision_at);
        self.labels.matches_bytes(forms::labels(&entry.bytes, &layout))
    }

    fn fields_match(&self, entry: &Entry) -> bool {
        self.terms.iter().all(|(source, term)| {
            let value = self.value(*source, entry);
            (value == term.value) != term.negated
        })
    }

    fn value<'a>(&self, source: Source, entry: &'a Entry) -> Cow<'a, str> {
        match source {
            Source::Name => Cow::Borrowed(entry.key.name()),
            Source::Namespace => Cow::Borrowed(entry.key.namespace().unwrap_or_default()),
            Source::Sidecar(index) if entry.sidecar.schema_epoch == self.owner.epoch => {
                entry.sidecar.fields.get(index).map_or(Cow::Borrowed(""), |value| Cow::Borrowed(&**value))
            }
            Source::Sidecar(index) | Source::Object(index) => self.value_in_object(index, entry),
        }
    }

    /// Of an entry that was written under another definition, or a field that its storage version does not declare: parsed.
    fn value_in_object(&self, index: usize, entry: &Entry) -> Cow<'static, str> {
        let object = view(entry, &self.served);
        let values = self.served.definition.hooks.selectable(&self.served.version().selectable, &object);
        values.into_iter().nth(index).map_or(Cow::Borrowed(""), Cow::Owned)
    }
}

/// Custom resources in no namespace know none, other kinds say it themselves.
fn selects_namespace(definition: &Definition) -> bool {
    let is_unknown = definition.custom && definition.scope == ferrokube_resource::Scope::Cluster;
    !is_unknown && definition.hooks.selects_namespace()
}

fn source(served: &Served, owner: &Definition, field: &str) -> Result<Source, Failure> {
    match field {
        "metadata.name" => return Ok(Source::Name),
        "metadata.namespace" if selects_namespace(&served.definition) => return Ok(Source::Namespace),
        _ => {}
    }
    let definition = &served.definition;
    let declared = |paths: &[String]| paths.iter().position(|path| path == field).filter(|_| !field.is_empty());
    let Some(index) = declared(&served.version().selectable) else {
        return Err(Failure::bad_request(format!("field label not supported: {field}")));
    };
    // Definitions that share a prefix list their fields in parallel; versions of one definition need not.
    let stored = &owner.versions[owner.storage_version].selectable;
    let is_owner = owner.group == definition.group && owner.plural == definition.plural;
    Ok(match (is_owner, declared(stored)) {
        (false, _) => Source::Sidecar(index),
        (true, Some(at)) if at == index => Source::Sidecar(index),
        _ => Source::Object(index),
    })
}
