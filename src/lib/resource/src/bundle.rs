//! Bundles: native kinds that are developed together, with the data of their types. A server serves
//! the union of its bundles.

use crate::definition::{ApiPriority, Definition};
use crate::native::NativeKind;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::protobuf::Messages;
use ferrokube_schema::tables::Tables;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Native kinds and their data. All of its kinds are chosen at first, except those of
/// [`Self::on_request`].
///
/// Kinds are named as in `kubectl get`: `configmaps`, `leases.coordination.k8s.io`, or
/// `*.coordination.k8s.io` for all of a group; those of [`Self::on_request`] are only chosen by
/// their full name. A name that fits no kind fails [`compose`].
///
/// Columns of the three texts: see `resources/data/generate.py`. Types of the generic bundle, such
/// as `ObjectMeta`, are known to all bundles.
#[derive(Clone, Debug)]
pub struct Bundle {
    name: &'static str,
    kinds: Vec<BundledKind>,
    schemas: &'static str,
    descriptions: &'static str,
    messages: &'static str,
    roles: &'static str,
    priorities: &'static [ApiPriorityRow],
    unknown: Vec<String>,
}

#[derive(Clone, Debug)]
struct BundledKind {
    kind: NativeKind,
    is_chosen: bool,
    /// In a version that is not served by default.
    is_optional: bool,
}

impl Bundle {
    /// An empty bundle; the name is for error messages.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            kinds: Vec::new(),
            schemas: "",
            descriptions: "",
            messages: "",
            roles: "",
            priorities: &[],
            unknown: Vec::new(),
        }
    }

    /// Adds a kind.
    #[must_use]
    pub fn kind(self, kind: NativeKind) -> Self {
        self.kinds(&[kind])
    }

    /// Adds kinds.
    #[must_use]
    pub fn kinds(mut self, kinds: &[NativeKind]) -> Self {
        self.kinds.extend(kinds.iter().map(|kind| BundledKind {
            kind: *kind,
            is_chosen: true,
            is_optional: false,
        }));
        self
    }

    /// Adds kinds that are served only if chosen by [`Self::with`].
    #[must_use]
    pub fn on_request(mut self, kinds: &[NativeKind]) -> Self {
        self.kinds.extend(kinds.iter().map(|kind| BundledKind {
            kind: *kind,
            is_chosen: false,
            is_optional: true,
        }));
        self
    }

    /// Sets the table of schemas, as `schema.tsv`; the first line is a heading.
    #[must_use]
    pub fn schemas(mut self, text: &'static str) -> Self {
        self.schemas = text;
        self
    }

    /// Sets the texts for `kubectl explain`, as `descriptions.tsv`.
    #[must_use]
    pub fn descriptions(mut self, text: &'static str) -> Self {
        self.descriptions = text;
        self
    }

    /// Sets the protobuf messages, as `protobuf.tsv`; the first line is a heading. Kinds without a
    /// message are served as JSON and YAML only.
    #[must_use]
    pub fn messages(mut self, text: &'static str) -> Self {
        self.messages = text;
        self
    }

    /// Sets roles and bindings that every start restores, in the format of
    /// `auth/bootstrap/policy.txt`.
    #[must_use]
    pub fn roles(mut self, text: &'static str) -> Self {
        self.roles = text;
        self
    }

    /// Sets places of the bundle's group versions in discovery. Those without a row are at the end,
    /// and have no APIService.
    #[must_use]
    pub fn priorities(mut self, rows: &'static [ApiPriorityRow]) -> Self {
        self.priorities = rows;
        self
    }

    /// Chooses these kinds only.
    #[must_use]
    pub fn only<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.kinds.iter_mut().for_each(|bundled| bundled.is_chosen = false);
        self.with(names)
    }

    /// Chooses these kinds, too.
    #[must_use]
    pub fn with<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.choose(names, true)
    }

    /// Leaves out these kinds: they are absent from discovery, OpenAPI, the RBAC policy and
    /// behavior, as if they were unknown.
    #[must_use]
    pub fn without<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.choose(names, false)
    }

    fn choose<'a>(mut self, names: impl IntoIterator<Item = &'a str>, chosen: bool) -> Self {
        for name in names {
            let mut named =
                self.kinds.iter_mut().filter(|bundled| is_named(&bundled.kind, name)).peekable();
            if named.peek().is_none() {
                self.unknown.push(name.to_owned());
                continue;
            }
            let takes = |bundled: &&mut BundledKind| {
                !(chosen && bundled.is_optional && name.starts_with('*'))
            };
            named.filter(takes).for_each(|bundled| bundled.is_chosen = chosen);
        }
        self
    }

    /// For error messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The chosen kinds.
    pub fn chosen(&self) -> impl Iterator<Item = &NativeKind> {
        self.kinds.iter().filter(|bundled| bundled.is_chosen).map(|bundled| &bundled.kind)
    }

    /// The kinds of [`Self::on_request`].
    pub fn optional(&self) -> impl Iterator<Item = &NativeKind> {
        self.kinds.iter().filter(|bundled| bundled.is_optional).map(|bundled| &bundled.kind)
    }
}

/// [`ApiPriority`] of a group version.
#[derive(Clone, Copy, Debug)]
pub struct ApiPriorityRow {
    group: &'static str,
    version: &'static str,
    priority: ApiPriority,
}

impl ApiPriorityRow {
    /// `place`: the two numbers of an [`ApiPriority`].
    pub const fn new(group: &'static str, version: &'static str, place: [i64; 2]) -> Self {
        Self { group, version, priority: ApiPriority { group: place[0], version: place[1] } }
    }

    /// Sets the priorities of a definition's versions.
    pub fn apply(rows: &[Self], definition: &mut Definition) {
        for version in &mut definition.versions {
            let row = rows
                .iter()
                .find(|row| (row.group, row.version) == (&*definition.group, &*version.name));
            version.priority = row.map(|row| row.priority);
        }
    }
}

fn is_named(kind: &NativeKind, name: &str) -> bool {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    group == kind.group && (plural == "*" || plural == kind.plural)
}

/// The sum of bundles.
#[derive(Clone)]
#[non_exhaustive]
pub struct Composition {
    /// The chosen kinds.
    pub definitions: Vec<Arc<Definition>>,
    /// Schemas of all kinds.
    pub tables: Tables,
    /// Protobuf messages of all kinds.
    pub messages: Arc<Messages>,
    /// Kinds that were left out; the RBAC policy does not name them.
    pub absent: Vec<GroupResource>,
    /// Texts of [`Bundle::roles`], by bundle.
    pub roles: Vec<(&'static str, &'static str)>,
}

/// Bundles do not fit together, or one of them is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A kind was chosen or left out that the bundle lacks.
    #[error("bundle {bundle} has no kind {name:?}: kinds are named PLURAL.GROUP")]
    UnknownKind {
        /// Name of the bundle.
        bundle: &'static str,
        /// As given.
        name: String,
    },
    /// Two chosen kinds have the same group and plural name.
    #[error("two kinds are called {0}")]
    Duplicate(GroupResource),
    /// The bundle's tables lack the OpenAPI definition of a kind.
    #[error("bundle {bundle} has no schema {definition} for {kind}")]
    NoSchema {
        /// Name of the bundle.
        bundle: &'static str,
        /// The kind with the row that refers to the definition.
        kind: &'static str,
        /// As in the first column of the table.
        definition: String,
    },
    /// The table of schemas cannot be parsed, or refers to a type that is nowhere defined.
    #[error("bundle {bundle} has a malformed table of schemas: {why}")]
    Schemas {
        /// Name of the bundle.
        bundle: &'static str,
        /// The line, or the type.
        why: String,
    },
    /// Two kinds would be stored under the same keys, or the prefix cannot be one of keys.
    #[error("{resource} cannot be stored in {prefix:?}: {why}")]
    Storage {
        /// Kind.
        resource: GroupResource,
        /// As in [`KindBody::storage`](crate::native::KindBody::storage).
        prefix: String,
        /// The error.
        why: String,
    },
    /// The tables of messages cannot be parsed, or two bundles have the same message.
    #[error("the bundles have malformed tables of messages: {0}")]
    Messages(String),
}

/// Kinds of one name may share a prefix, such as the events of two groups. Others would read each
/// other's objects with rights to their own.
fn check_storage(before: &[Arc<Definition>], definition: &Definition) -> Result<(), BundleError> {
    let Some(prefix) = &definition.storage_prefix else { return Ok(()) };
    let fail = |why: String| {
        Err(BundleError::Storage {
            resource: definition.group_resource(),
            prefix: prefix.clone(),
            why,
        })
    };
    let is_bad = |segment: &str| matches!(segment, "" | "." | "..") || segment.contains('\0');
    if prefix.split('/').any(is_bad) {
        return fail("a segment is empty, a dot, two dots, or contains NUL".to_owned());
    }
    let contains = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
    };
    for other in before {
        let Some(taken) = &other.storage_prefix else { continue };
        let is_shared = taken == prefix && other.kind == definition.kind;
        if !is_shared && (taken == prefix || contains(taken, prefix) || contains(prefix, taken)) {
            return fail(format!("{} are stored in {taken:?}", other.group_resource()));
        }
    }
    Ok(())
}

/// Composes bundles over the types of the generic bundle.
///
/// # Errors
/// [`BundleError`], for the first problem.
pub fn compose(
    bundles: &[Bundle],
    tables: &Tables,
    messages: &Arc<Messages>,
) -> Result<Composition, BundleError> {
    let mut tables = tables.clone();
    for bundle in bundles.iter().filter(|bundle| !bundle.schemas.is_empty()) {
        let own = Tables::parse(bundle.schemas)
            .map_err(|why| BundleError::Schemas { bundle: bundle.name, why })?;
        tables = own.described(bundle.descriptions).over(&tables);
        if let Some(name) = tables.dangling() {
            let why = format!("no definition {name}");
            return Err(BundleError::Schemas { bundle: bundle.name, why });
        }
    }
    let texts = bundles.iter().map(|bundle| bundle.messages).filter(|text| !text.is_empty());
    let messages = messages.extended(&texts.collect::<Vec<_>>()).map_err(BundleError::Messages)?;
    let mut seen = BTreeSet::new();
    let mut composition = Composition {
        definitions: Vec::new(),
        tables,
        messages,
        absent: Vec::new(),
        roles: Vec::new(),
    };
    for bundle in bundles {
        if let Some(name) = bundle.unknown.first() {
            return Err(BundleError::UnknownKind { bundle: bundle.name, name: name.clone() });
        }
        if !bundle.roles.is_empty() {
            composition.roles.push((bundle.name, bundle.roles));
        }
        for bundled in &bundle.kinds {
            let kind = &bundled.kind;
            let resource = GroupResource::new(kind.group, kind.plural);
            if !bundled.is_chosen {
                // The RBAC policy names optional kinds in any case, as kube-apiserver's does.
                if !bundled.is_optional {
                    composition.absent.push(resource);
                }
                continue;
            }
            if !seen.insert((kind.group, kind.plural)) {
                return Err(BundleError::Duplicate(resource));
            }
            let mut definition = kind.definition(&composition.tables).map_err(|definition| {
                BundleError::NoSchema { bundle: bundle.name, kind: kind.kind, definition }
            })?;
            ApiPriorityRow::apply(bundle.priorities, &mut definition);
            check_storage(&composition.definitions, &definition)?;
            composition.definitions.push(Arc::new(definition));
        }
    }
    // Kinds may share a name (events of two groups), and a bundle may add kinds that another left
    // out.
    let served = |resource: &GroupResource| {
        seen.contains(&(resource.group.as_str(), resource.resource.as_str()))
    };
    composition.absent.retain(|resource| !served(resource));
    Ok(composition)
}
