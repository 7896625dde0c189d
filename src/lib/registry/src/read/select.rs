//! Selectors, compiled for a resource and matched on entries without parsing them.
//!
//! The cost of a match depends on the object, hardly on the selector, whose terms are merged by
//! label or field. It is counted in [`MatchCost`], so that long evaluations yield.

use crate::catalog::{Catalog, Served};
use crate::codec::view;
use crate::context::Target;
use crate::read::ListOptions;
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::selector::{CompiledLabels, FieldTerm};
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::Definition;
use ferrokube_storage::{Entry, Topic};
use std::sync::Arc;

/// Source of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
    Name,
    Namespace,
    /// Index into the sidecar, as written by the owner of the storage prefix.
    Sidecar(usize),
    /// Index into the selectable fields of the requested version; read from the object.
    Object(usize),
}

/// Objects selected by a list or watch.
pub(super) struct Selection {
    served: Served,
    owner: Arc<Definition>,
    namespace: Option<String>,
    labels: CompiledLabels,
    fields: Box<[FieldRule]>,
}

/// All requirements on a field.
struct FieldRule {
    source: FieldSource,
    /// Required value, if any. `Err` if terms require different values: then nothing matches.
    required: Option<Result<Box<str>, Contradiction>>,
    /// Excluded values, sorted.
    excluded: Box<[Box<str>]>,
}

/// Terms require different values.
struct Contradiction;

impl FieldRule {
    fn new(source: FieldSource) -> Self {
        Self { source, required: None, excluded: Box::default() }
    }

    fn exact(&self) -> Option<&str> {
        self.required.as_ref()?.as_ref().ok().map(|required| &**required)
    }

    fn holds(&self, value: &str) -> bool {
        let is_required = match &self.required {
            None => true,
            Some(Ok(required)) => **required == *value,
            Some(Err(Contradiction)) => false,
        };
        is_required && self.excluded.binary_search_by(|excluded| (**excluded).cmp(value)).is_err()
    }
}

/// Cost of matching since the last yield, in units of about one inspected label.
#[derive(Debug, Default)]
pub(super) struct MatchCost {
    spent: usize,
}

impl MatchCost {
    /// Cost between yields: about 0.1 ms.
    const SLICE: usize = 2048;
    /// Parsed bytes per unit.
    const PARSED: usize = 8;

    fn add(&mut self, units: usize) {
        self.spent += units;
    }

    /// Whether to yield.
    pub(super) fn is_due(&self) -> bool {
        self.spent >= Self::SLICE
    }

    pub(super) async fn yield_if_due(&mut self) {
        if self.is_due() {
            self.spent = 0;
            tokio::task::yield_now().await;
        }
    }
}

impl Selection {
    /// Compiles the selectors of a request, and the target's name if it has one.
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
        terms.extend(named.as_ref().map(|term| (FieldSource::Name, term)));
        let (fields, labels) = (field_rules(terms), CompiledLabels::new(&options.labels));
        let namespace = target
            .namespace
            .clone()
            .filter(|_| served.definition.scope == ferrokube_resource::Scope::Namespaced);
        Ok(Self { served, owner, namespace, labels, fields })
    }

    /// Namespace of the path.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether every object of the namespace matches.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The value that is required of a field.
    fn exact(&self, source: FieldSource) -> Option<&str> {
        self.fields.iter().find(|rule| rule.source == source)?.exact()
    }

    /// The only namespace whose objects can match.
    fn only_namespace(&self) -> Option<&str> {
        self.namespace().or_else(|| self.exact(FieldSource::Namespace))
    }

    /// The only key, without prefix, that can match.
    pub(super) fn only_key(&self) -> Option<String> {
        let name = self.exact(FieldSource::Name)?;
        if self.served.definition.scope == ferrokube_resource::Scope::Cluster {
            return Some(name.to_owned());
        }
        Some(format!("{}/{name}", self.only_namespace()?))
    }

    /// A topic of every event that the selection shows: the narrowest, if a definition lists its
    /// fields in that order.
    pub(super) fn topic(&self) -> Topic {
        if let Some(key) = self.only_key() {
            return Topic::key(&key);
        }
        if let Some(name) = self.exact(FieldSource::Name) {
            return Topic::name(name);
        }
        let fields = self.fields.iter().filter_map(|rule| match rule.source {
            FieldSource::Sidecar(index) => Some((index, rule.exact()?)),
            _ => None,
        });
        if let Some((index, value)) = fields.min() {
            return Topic::field(self.owner.epoch, index, value);
        }
        self.only_namespace().map_or_else(Topic::everything, Topic::namespace)
    }

    /// Whether an entry matches, its namespace included.
    pub(super) fn matches(&self, entry: &Entry, cost: &mut MatchCost) -> bool {
        cost.add(1);
        if self.namespace.is_some() && entry.key.namespace() != self.namespace.as_deref() {
            return false;
        }
        self.fields_match(entry, cost) && self.labels_match(entry, cost)
    }

    fn labels_match(&self, entry: &Entry, cost: &mut MatchCost) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let sidecar = &entry.sidecar;
        let layout = Layout::from_marks(sidecar.marks, sidecar.revision_at);
        let (matches, seen) = self.labels.matches(forms::labels(&entry.bytes, &layout));
        cost.add(seen);
        matches
    }

    fn fields_match(&self, entry: &Entry, cost: &mut MatchCost) -> bool {
        // Rules that parse the object come last, and share one parse.
        let mut values = None;
        self.fields.iter().all(|rule| {
            cost.add(1);
            match rule.source {
                FieldSource::Name => rule.holds(entry.key.name()),
                FieldSource::Namespace => rule.holds(entry.key.namespace().unwrap_or_default()),
                FieldSource::Sidecar(index) if entry.sidecar.schema_epoch == self.owner.epoch => {
                    rule.holds(entry.sidecar.fields.get(index).map_or("", |value| &**value))
                }
                FieldSource::Sidecar(index) | FieldSource::Object(index) => {
                    let values = values.get_or_insert_with(|| {
                        cost.add(entry.bytes.len() / MatchCost::PARSED);
                        self.values_in_object(entry)
                    });
                    rule.holds(values.get(index).map_or("", String::as_str))
                }
            }
        })
    }

    /// Parses an entry of another epoch, or for fields that its storage version does not declare.
    fn values_in_object(&self, entry: &Entry) -> Vec<String> {
        let object = view(entry, &self.served);
        self.served.definition.hooks.selectable(&self.served.version().selectable, &object)
    }
}

/// Merges the terms on each field. Rules that may parse the object come last.
fn field_rules(terms: Vec<(FieldSource, &FieldTerm)>) -> Box<[FieldRule]> {
    let mut rules: Vec<(FieldRule, Vec<Box<str>>)> = Vec::new();
    for (source, term) in terms {
        // Linear search: a resource declares few fields.
        let at = rules.iter().position(|(rule, _)| rule.source == source).unwrap_or_else(|| {
            rules.push((FieldRule::new(source), Vec::new()));
            rules.len() - 1
        });
        let (rule, excluded) = &mut rules[at];
        let value: Box<str> = term.value.as_str().into();
        if term.negated {
            excluded.push(value);
            continue;
        }
        rule.required = Some(match rule.required.take() {
            None => Ok(value),
            Some(Ok(before)) if before == value => Ok(before),
            _ => Err(Contradiction),
        });
    }
    rules.sort_by_key(|(rule, _)| matches!(rule.source, FieldSource::Object(_)));
    let finished = rules.into_iter().map(|(mut rule, mut excluded)| {
        excluded.sort_unstable();
        excluded.dedup();
        rule.excluded = excluded.into();
        rule
    });
    finished.collect()
}

fn source(served: &Served, owner: &Definition, field: &str) -> Result<FieldSource, Failure> {
    match field {
        "metadata.name" => return Ok(FieldSource::Name),
        "metadata.namespace" if served.definition.policy.selects_namespace => {
            return Ok(FieldSource::Namespace);
        }
        _ => {}
    }
    let definition = &served.definition;
    let declared = |paths: &[String]| {
        paths.iter().position(|path| path == field).filter(|_| !field.is_empty())
    };
    let Some(index) = declared(&served.version().selectable) else {
        // Kinds with own selectable fields have another message.
        let only = if definition.policy.selects_namespace {
            "\"metadata.name\", \"metadata.namespace\""
        } else {
            "\"metadata.name\""
        };
        if let Some(message) = definition.policy.unknown_field {
            return Err(Failure::bad_request(message(field)));
        }
        return Err(Failure::bad_request(
            match !definition.dialect.is_typed() || !served.version().selectable.is_empty() {
                true => format!("field label not supported: {field}"),
                false => format!("{} is not a known field selector: only {only}", quote(field)),
            },
        ));
    };
    // Definitions that share a prefix list their fields in parallel; versions of a definition need
    // not.
    let stored = &owner.versions[owner.storage_version].selectable;
    let is_owner = owner.group == definition.group && owner.plural == definition.plural;
    Ok(match (is_owner, declared(stored)) {
        (false, _) => FieldSource::Sidecar(index),
        (true, Some(at)) if at == index => FieldSource::Sidecar(index),
        _ => FieldSource::Object(index),
    })
}
