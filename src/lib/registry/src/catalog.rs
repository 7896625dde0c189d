//! The resources served: an immutable table, swapped when a definition is added or removed.

pub use crate::computed::{ComputedCall, ComputedFuture, ComputedResource};
use crate::context::Target;
pub use crate::served::Served;
use arc_swap::ArcSwap;
use ferrokube_resource::{Definition, DefinitionVersion};
use imbl::{HashMap, OrdMap};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

struct ComputedEntry {
    group: String,
    plural: String,
    subresource: String,
    computed: Arc<dyn ComputedResource>,
}

/// An immutable state of the catalog. Successive states share unchanged parts, so adding a
/// definition costs the same next to a thousand others.
#[derive(Clone, Default)]
struct CatalogState {
    changes: u64,
    /// Position of the next definition.
    next: u64,
    order: OrdMap<u64, Arc<Definition>>,
    /// Positions in `order`, by plural name.
    by_plural: HashMap<String, Vec<u64>>,
    /// Position of the first definition of each storage prefix, which computes the selectable
    /// fields.
    owners: HashMap<String, u64>,
    /// By plural name.
    computed: HashMap<String, Vec<Arc<ComputedEntry>>>,
}

impl CatalogState {
    fn position(&self, group: &str, plural: &str) -> Option<u64> {
        self.by_plural.get(plural)?.iter().copied().find(|position| {
            self.order.get(position).is_some_and(|definition| definition.group == group)
        })
    }

    fn definition(&self, group: &str, plural: &str) -> Option<&Arc<Definition>> {
        self.order.get(&self.position(group, plural)?)
    }

    fn put(&mut self, definition: &Arc<Definition>) {
        if !definition.dialect.is_bundled()
            && self
                .definition(&definition.group, &definition.plural)
                .is_some_and(|present| present.dialect.is_bundled())
        {
            tracing::error!(
                group = definition.group,
                plural = definition.plural,
                "a custom resource would have replaced a bundled one"
            );
            return;
        }
        let position = self.position(&definition.group, &definition.plural).unwrap_or_else(|| {
            let position = self.next;
            self.next += 1;
            self.by_plural.entry(definition.plural.clone()).or_default().push(position);
            position
        });
        let replaced = self.order.insert(position, definition.clone());
        if let Some(before) =
            replaced.filter(|before| before.storage_prefix != definition.storage_prefix)
        {
            self.disown(position, &before);
        }
        if let Some(prefix) = &definition.storage_prefix {
            self.owners.entry(prefix.clone()).or_insert(position);
        }
    }

    fn remove(&mut self, group: &str, plural: &str) {
        if let Some(entries) = self.computed.get_mut(plural) {
            entries.retain(|entry| entry.group != group);
            if entries.is_empty() {
                self.computed.remove(plural);
            }
        }
        let Some(position) = self.position(group, plural) else { return };
        if let Some(positions) = self.by_plural.get_mut(plural) {
            positions.retain(|other| *other != position);
            if positions.is_empty() {
                self.by_plural.remove(plural);
            }
        }
        if let Some(before) = self.order.remove(&position) {
            self.disown(position, &before);
        }
    }

    /// Passes the storage prefix of a removed definition on to the next definition with it.
    fn disown(&mut self, position: u64, before: &Definition) {
        let Some(prefix) = before
            .storage_prefix
            .as_ref()
            .filter(|prefix| self.owners.get(*prefix) == Some(&position))
        else {
            return;
        };
        self.owners.remove(prefix);
        // Custom resources do not share prefixes.
        let successor = if !before.dialect.is_bundled() {
            None
        } else {
            self.order
                .iter()
                .find(|(_, definition)| definition.storage_prefix.as_ref() == Some(prefix))
        };
        if let Some(successor) = successor.map(|(position, _)| *position) {
            self.owners.insert(prefix.clone(), successor);
        }
    }

    fn put_computed(&mut self, entry: &Arc<ComputedEntry>) {
        let entries = self.computed.entry(entry.plural.clone()).or_default();
        entries.retain(|known| {
            !(known.group == entry.group && known.subresource == entry.subresource)
        });
        entries.push(entry.clone());
    }
}

/// The resources served now.
pub struct Catalog {
    table: ArcSwap<CatalogState>,
    changes: watch::Sender<u64>,
    /// By group and plural; only those with subscribers.
    followed: Mutex<std::collections::HashMap<(String, String), watch::Sender<()>>>,
}

impl Default for Catalog {
    fn default() -> Self {
        Self {
            table: ArcSwap::default(),
            changes: watch::Sender::new(0),
            followed: Mutex::default(),
        }
    }
}

impl Catalog {
    /// Adds or replaces a definition, by group and plural. A replacement keeps its position. A
    /// custom definition never replaces a bundled one.
    pub fn put(&self, definition: Arc<Definition>) {
        self.change(|table| table.put(&definition));
        let followed = self.followed.lock();
        if let Some(sender) = followed.get(&(definition.group.clone(), definition.plural.clone())) {
            sender.send_replace(());
        }
    }

    /// Adds a computed resource or, if `subresource` is not empty, subresource.
    pub fn put_computed(
        &self,
        group: &str,
        plural: &str,
        subresource: &str,
        computed: Arc<dyn ComputedResource>,
    ) {
        let entry = ComputedEntry {
            group: group.to_owned(),
            plural: plural.to_owned(),
            subresource: subresource.to_owned(),
            computed,
        };
        let entry = Arc::new(entry);
        self.change(|table| table.put_computed(&entry));
    }

    /// Removes a definition and its computed subresources.
    pub fn remove(&self, group: &str, plural: &str) {
        self.change(|table| table.remove(group, plural));
        if let Some(sender) = self.followed.lock().remove(&(group.to_owned(), plural.to_owned())) {
            sender.send_replace(());
        }
    }

    fn change(&self, edit: impl Fn(&mut CatalogState)) {
        self.table.rcu(|table| {
            let mut next = CatalogState::clone(table);
            edit(&mut next);
            next.changes += 1;
            next
        });
        let latest = self.table.load().changes;
        self.changes.send_if_modified(|seen| {
            let newer = latest > *seen;
            *seen = latest.max(*seen);
            newer
        });
    }

    /// Finds a resource, in any version.
    pub fn definition(&self, group: &str, plural: &str) -> Option<Arc<Definition>> {
        self.table.load().definition(group, plural).cloned()
    }

    /// Finds a served version of a resource.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let table = self.table.load();
        let definition = table.definition(group, plural)?.clone();
        let version = definition
            .versions
            .iter()
            .position(|candidate| candidate.served && candidate.name == version)?;
        Some(Served { definition, version })
    }

    /// The other served versions of the same objects, in order: of the resource, and of bundled
    /// resources of its name that share its storage.
    pub fn equivalents(&self, served: &Served) -> Vec<Served> {
        let own = &served.definition;
        let table = self.table.load();
        let named = table.by_plural.get(&own.plural).into_iter().flatten();
        let shares = |other: &&Arc<Definition>| {
            other.group == own.group
                || other.dialect.is_bundled()
                    && own.storage_prefix.is_some()
                    && other.storage_prefix == own.storage_prefix
        };
        let sharing = named.filter_map(|position| table.order.get(position)).filter(shares);
        let versions = |definition: &Arc<Definition>| {
            let served = |(_, version): &(usize, &DefinitionVersion)| version.served;
            let all = definition.versions.iter().enumerate().filter(served);
            all.map(|(version, _)| Served { definition: Arc::clone(definition), version })
                .collect::<Vec<_>>()
        };
        sharing
            .flat_map(versions)
            .filter(|other| other.definition.group != own.group || other.version != served.version)
            .collect()
    }

    /// Finds a computed resource or subresource.
    pub fn computed_resource(
        &self,
        group: &str,
        plural: &str,
        subresource: &str,
    ) -> Option<Arc<dyn ComputedResource>> {
        let table = self.table.load();
        let entry = table
            .computed
            .get(plural)?
            .iter()
            .find(|entry| entry.subresource == subresource && entry.group == group)?;
        Some(entry.computed.clone())
    }

    /// Finds the handler that computes a target.
    pub(crate) fn computed_at(&self, target: &Target) -> Option<Arc<dyn ComputedResource>> {
        let definition = &target.served.definition;
        self.computed_resource(&definition.group, &definition.plural, &target.subresource)
    }

    /// The first definition with the same storage prefix, which computes the selectable fields of
    /// all of them.
    pub(crate) fn owner(&self, definition: &Arc<Definition>) -> Arc<Definition> {
        let table = self.table.load();
        let owner = definition
            .storage_prefix
            .as_ref()
            .and_then(|prefix| table.order.get(table.owners.get(prefix)?));
        owner.unwrap_or(definition).clone()
    }

    /// The owner of a storage prefix (`configmaps`, `example.com/widgets`).
    pub(crate) fn at_prefix(&self, prefix: &str) -> Option<Arc<Definition>> {
        let table = self.table.load();
        table.order.get(table.owners.get(prefix)?).cloned()
    }

    /// Whether the definition is unchanged and still served.
    pub(crate) fn is_current(&self, served: &Served) -> bool {
        let definition = &served.definition;
        let table = self.table.load();
        table.definition(&definition.group, &definition.plural).is_some_and(|now| {
            (now.epoch, now.since) == (definition.epoch, definition.since)
                && now.versions.get(served.version).is_some_and(|version| version.served)
        })
    }

    /// Notifies of changes of one definition. Subscribing to all changes would wake every watch for
    /// every definition.
    pub(crate) fn follow(&self, definition: &Definition) -> watch::Receiver<()> {
        let mut followed = self.followed.lock();
        followed
            .entry((definition.group.clone(), definition.plural.clone()))
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe()
    }

    /// Notifies of every change; the value is the number of [`Self::all`].
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The number of [`Self::all`], without its definitions.
    pub fn change_number(&self) -> u64 {
        self.table.load().changes
    }

    /// All definitions in the order of [`Self::put`] (discovery's), and a number that changes with
    /// them.
    pub fn all(&self) -> (u64, Vec<Arc<Definition>>) {
        let table = self.table.load();
        (table.changes, table.order.values().cloned().collect())
    }
}
