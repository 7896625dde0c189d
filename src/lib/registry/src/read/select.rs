//! Selectors, compiled for one resource and matched on entries without parsing them.
//!
//! What a match costs depends on the object, hardly on the selector: terms on one label or field
//! are put together. It is counted, so that a long evaluation can make room for others, see
//! [`Work`].

use crate::catalog::{Catalog, Served};
use crate::codec::view;
use crate::context::Target;
use crate::read::ListOptions;
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::selector::{CompiledLabels, FieldTerm};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
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
    labels: CompiledLabels,
    fields: Box<[FieldRule]>,
}

/// Everything that is required of one field.
struct FieldRule {
    source: Source,
    /// Its value, if one is named. Two different ones are no value: then nothing matches.
    wanted: Option<Result<Box<str>, NoValue>>,
    /// Values that it does not have, sorted.
    unwanted: Box<[Box<str>]>,
}

/// Two terms name different values.
struct NoValue;

impl FieldRule {
    fn new(source: Source) -> Self {
        Self { source, wanted: None, unwanted: Box::default() }
    }

    fn holds(&self, value: &str) -> bool {
        let is_wanted = match &self.wanted {
            None => true,
            Some(Ok(wanted)) => **wanted == *value,
            Some(Err(NoValue)) => false,
        };
        is_wanted && self.unwanted.binary_search_by(|unwanted| (**unwanted).cmp(value)).is_err()
    }
}

/// What matching has cost since it last made room for others, in units of about a label that is
/// looked at.
#[derive(Debug, Default)]
pub(super) struct Work {
    spent: usize,
}

impl Work {
    /// So much is done without a pause: about a tenth of a millisecond.
    const SLICE: usize = 2048;
    /// Bytes of an object that are parsed for a unit.
    const PARSED: usize = 8;

    fn add(&mut self, units: usize) {
        self.spent += units;
    }

    /// Whether it is time to make room for others.
    pub(super) fn is_due(&self) -> bool {
        self.spent >= Self::SLICE
    }

    /// Makes room for others if it is time.
    pub(super) async fn share(&mut self) {
        if self.is_due() {
            self.spent = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Selection {
    /// Compiles the selectors of a request. The target's name, if it has one, is selected too.
    ///
    /// # Errors
    /// 400 for a field that is not selectable.
    pub(super) fn new(
        catalog: &Catalog,
        target: &Target,
        options: &ListOptions,
    ) -> Result<Self, Failure> {
        let served = target.served.clone();
        let owner = catalog.owner(&served.definition);
        let mut terms = Vec::new();
        for term in &options.fields.terms {
            terms.push((source(&served, &owner, &term.field)?, term));
        }
        let named = target.name.as_ref().map(|name| FieldTerm {
            field: "metadata.name".to_owned(),
            value: name.clone(),
            negated: false,
        });
        terms.extend(named.as_ref().map(|term| (Source::Name, term)));
        let (fields, labels) = (field_rules(terms), CompiledLabels::new(&options.labels));
        let namespace = target
            .namespace
            .clone()
            .filter(|_| served.definition.scope == ferrokube_resource::Scope::Namespaced);
        Ok(Self { served, owner, namespace, labels, fields })
    }

    /// The namespace that is selected by the path.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether everything in the namespace is selected.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// What follows the prefix in the only key that can match.
    pub(super) fn only_key(&self) -> Option<String> {
        let exact = |source: Source| {
            let rule = self.fields.iter().find(|rule| rule.source == source)?;
            rule.wanted.as_ref()?.as_ref().ok().map(|wanted| &**wanted)
        };
        let name = exact(Source::Name)?;
        if self.served.definition.scope == ferrokube_resource::Scope::Cluster {
            return Some(name.to_owned());
        }
        let namespace = self.namespace().or_else(|| exact(Source::Namespace))?;
        Some(format!("{namespace}/{name}"))
    }

    /// Whether an entry is selected, its namespace included.
    pub(super) fn matches(&self, entry: &Entry, work: &mut Work) -> bool {
        work.add(1);
        if self.namespace.is_some() && entry.key.namespace() != self.namespace.as_deref() {
            return false;
        }
        self.fields_match(entry, work) && self.labels_match(entry, work)
    }

    fn labels_match(&self, entry: &Entry, work: &mut Work) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let sidecar = &entry.sidecar;
        let layout = Layout::from_marks(sidecar.marks, sidecar.revision_at);
        let (matches, seen) = self.labels.matches(forms::labels(&entry.bytes, &layout));
        work.add(seen);
        matches
    }

    fn fields_match(&self, entry: &Entry, work: &mut Work) -> bool {
        // Those that need the object parsed are last, and share one parse.
        let mut values = None;
        self.fields.iter().all(|rule| {
            work.add(1);
            match rule.source {
                Source::Name => rule.holds(entry.key.name()),
                Source::Namespace => rule.holds(entry.key.namespace().unwrap_or_default()),
                Source::Sidecar(index) if entry.sidecar.schema_epoch == self.owner.epoch => {
                    rule.holds(entry.sidecar.fields.get(index).map_or("", |value| &**value))
                }
                Source::Sidecar(index) | Source::Object(index) => {
                    let values = values.get_or_insert_with(|| {
                        work.add(entry.bytes.len() / Work::PARSED);
                        self.values_in_object(entry)
                    });
                    rule.holds(values.get(index).map_or("", String::as_str))
                }
            }
        })
    }

    /// Of an entry that was written under another definition, or of fields that its storage version
    /// does not declare: parsed.
    fn values_in_object(&self, entry: &Entry) -> Vec<String> {
        let object = view(entry, &self.served);
        self.served.definition.hooks.selectable(&self.served.version().selectable, &object)
    }
}

/// The terms on each field together; those that may need the object parsed last.
fn field_rules(terms: Vec<(Source, &FieldTerm)>) -> Box<[FieldRule]> {
    let mut rules: Vec<(FieldRule, Vec<Box<str>>)> = Vec::new();
    for (source, term) in terms {
        // A resource declares few fields.
        let at = rules.iter().position(|(rule, _)| rule.source == source).unwrap_or_else(|| {
            rules.push((FieldRule::new(source), Vec::new()));
            rules.len() - 1
        });
        let (rule, unwanted) = &mut rules[at];
        let value: Box<str> = term.value.as_str().into();
        if term.negated {
            unwanted.push(value);
            continue;
        }
        rule.wanted = Some(match rule.wanted.take() {
            None => Ok(value),
            Some(Ok(before)) if before == value => Ok(before),
            _ => Err(NoValue),
        });
    }
    rules.sort_by_key(|(rule, _)| matches!(rule.source, Source::Object(_)));
    let finished = rules.into_iter().map(|(mut rule, mut unwanted)| {
        unwanted.sort_unstable();
        unwanted.dedup();
        rule.unwanted = unwanted.into();
        rule
    });
    finished.collect()
}

fn source(served: &Served, owner: &Definition, field: &str) -> Result<Source, Failure> {
    match field {
        "metadata.name" => return Ok(Source::Name),
        "metadata.namespace" if served.definition.policy.selects_namespace => {
            return Ok(Source::Namespace);
        }
        _ => {}
    }
    let definition = &served.definition;
    let declared = |paths: &[String]| {
        paths.iter().position(|path| path == field).filter(|_| !field.is_empty())
    };
    let Some(index) = declared(&served.version().selectable) else {
        // Kinds with fields of their own word it themselves.
        let only = if definition.policy.selects_namespace {
            "\"metadata.name\", \"metadata.namespace\""
        } else {
            "\"metadata.name\""
        };
        return Err(Failure::bad_request(
            match !definition.dialect.is_typed() || !served.version().selectable.is_empty() {
                true => format!("field label not supported: {field}"),
                false => format!("{} is not a known field selector: only {only}", quote(field)),
            },
        ));
    };
    // Definitions that share a prefix list their fields in parallel; versions of one definition
    // need not.
    let stored = &owner.versions[owner.storage_version].selectable;
    let is_owner = owner.group == definition.group && owner.plural == definition.plural;
    Ok(match (is_owner, declared(stored)) {
        (false, _) => Source::Sidecar(index),
        (true, Some(at)) if at == index => Source::Sidecar(index),
        _ => Source::Object(index),
    })
}
