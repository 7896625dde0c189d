//! Which resources are served: an immutable table that is swapped when a definition comes or goes.

use crate::context::{RequestContext, Target};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_resource::{Definition, DefinitionVersion};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::Replicas;
use ferrokube_storage::Entry;
use imbl::{HashMap, OrdMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// A definition in one of its versions.
#[derive(Clone, Debug)]
pub struct Served {
    /// The definition.
    pub definition: Arc<Definition>,
    /// Index into its versions.
    pub version: usize,
}

impl Served {
    /// The version.
    pub fn version(&self) -> &DefinitionVersion {
        &self.definition.versions[self.version]
    }

    /// Whether an entry's bytes are an object in this version as they stand: no conversion, and for
    /// custom resources the same epoch.
    pub fn is_direct(&self, entry: &Entry) -> bool {
        if self.definition.dialect.has_epochs()
            && entry.sidecar.schema_epoch != self.definition.epoch
        {
            return false;
        }
        self.has_head(&entry.bytes)
    }

    /// [`Self::is_direct`] for many entries: what it compares is made once.
    pub fn direct(&self) -> impl Fn(&Entry) -> bool + use<> {
        let epoch = self.definition.dialect.has_epochs().then_some(self.definition.epoch);
        let head = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
            self.definition.kind,
            self.definition.gvk(self.version).api_version()
        );
        move |entry| {
            epoch.is_none_or(|epoch| entry.sidecar.schema_epoch == epoch)
                && entry.bytes.starts_with(head.as_bytes())
        }
    }

    /// Whether canonical bytes begin with this kind and apiVersion; nothing is allocated.
    pub(crate) fn has_head(&self, bytes: &[u8]) -> bool {
        let group = self.definition.group.as_str();
        let slash = if group.is_empty() { "" } else { "/" };
        let parts = [
            "{\"kind\":\"",
            &self.definition.kind,
            "\",\"apiVersion\":\"",
            group,
            slash,
            &self.version().name,
            "\",",
        ];
        let rest = parts.iter().try_fold(bytes, |rest, part| rest.strip_prefix(part.as_bytes()));
        rest.is_some()
    }
}

/// What a virtual resource answers with.
pub type VirtualFuture<'a> = Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>>;

/// Behaviour of a resource or subresource that computes its answer instead of storing (reviews,
/// `serviceaccounts/token`).
pub trait ComputedResource: Send + Sync {
    /// Answers a create. The object is decoded, defaulted and type-checked.
    fn create<'a>(
        &'a self,
        context: &'a RequestContext,
        target: &'a Target,
        object: Document,
    ) -> VirtualFuture<'a>;

    /// The schema of what a subresource takes; `None`: anything. Not asked for a resource, which
    /// has its own.
    fn schema(&self) -> Option<Arc<Schema>> {
        None
    }

    /// Fills in what a client left out of what a subresource takes.
    fn fill_in(&self, _object: &mut Document) {}

    /// Whether it shows a part of the stored object as another kind (`scale`). Then GET, PUT and
    /// PATCH of it work on [`Self::project`]ed documents, [`Self::inject`] writes them back, and
    /// `create` is never called.
    fn is_projection(&self) -> bool {
        false
    }

    /// The part of a stored object that a projection shows, without its resourceVersion.
    ///
    /// # Errors
    /// The object cannot be shown so. The default: 405.
    fn project(&self, target: &Target, _object: &Document) -> Result<Document, Failure> {
        Err(Failure::new(
            Reason::MethodNotAllowed,
            format!("{} cannot be read", target.subresource),
        ))
    }

    /// The same for a write, which may be what puts a missing part there. The default:
    /// [`Self::project`].
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_for_update(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        self.project(target, object)
    }

    /// The same for what was written, of which a part may not have been kept. The default:
    /// [`Self::project`].
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_written(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        self.project(target, object)
    }

    /// Where the objects have what a projection shows as replicas, for managedFields; `None`: those
    /// of the object stay as they are.
    fn replicas(&self) -> Option<&Replicas> {
        None
    }

    /// Writes a changed projection back into the stored object.
    ///
    /// # Errors
    /// The projection is invalid. The default: 405.
    fn inject(
        &self,
        target: &Target,
        _projection: &Document,
        _object: &mut Document,
    ) -> Result<(), Failure> {
        Err(Failure::new(
            Reason::MethodNotAllowed,
            format!("{} cannot be written", target.subresource),
        ))
    }
}

/// A computed resource or subresource.
struct VirtualRow {
    group: String,
    plural: String,
    subresource: String,
    behaviour: Arc<dyn ComputedResource>,
}

/// One immutable state of the catalog. The next one shares all but what changed with it: a
/// definition costs the same beside a thousand others.
#[derive(Clone, Default)]
struct Table {
    changes: u64,
    /// The place of the next definition.
    next: u64,
    order: OrdMap<u64, Arc<Definition>>,
    /// Places in `order`, by plural name.
    by_plural: HashMap<String, Vec<u64>>,
    /// The place of the first definition of each storage prefix: it computes the selectable fields.
    owners: HashMap<String, u64>,
    /// By plural name.
    virtuals: HashMap<String, Vec<Arc<VirtualRow>>>,
}

impl Table {
    fn place(&self, group: &str, plural: &str) -> Option<u64> {
        self.by_plural
            .get(plural)?
            .iter()
            .copied()
            .find(|place| self.order.get(place).is_some_and(|definition| definition.group == group))
    }

    fn definition(&self, group: &str, plural: &str) -> Option<&Arc<Definition>> {
        self.order.get(&self.place(group, plural)?)
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
        let place = self.place(&definition.group, &definition.plural).unwrap_or_else(|| {
            let place = self.next;
            self.next += 1;
            self.by_plural.entry(definition.plural.clone()).or_default().push(place);
            place
        });
        let replaced = self.order.insert(place, definition.clone());
        if let Some(before) =
            replaced.filter(|before| before.storage_prefix != definition.storage_prefix)
        {
            self.disown(place, &before);
        }
        if let Some(prefix) = &definition.storage_prefix {
            self.owners.entry(prefix.clone()).or_insert(place);
        }
    }

    fn remove(&mut self, group: &str, plural: &str) {
        if let Some(rows) = self.virtuals.get_mut(plural) {
            rows.retain(|row| row.group != group);
            if rows.is_empty() {
                self.virtuals.remove(plural);
            }
        }
        let Some(place) = self.place(group, plural) else { return };
        if let Some(places) = self.by_plural.get_mut(plural) {
            places.retain(|other| *other != place);
            if places.is_empty() {
                self.by_plural.remove(plural);
            }
        }
        if let Some(before) = self.order.remove(&place) {
            self.disown(place, &before);
        }
    }

    /// Gives what a definition owned to the next one with its storage prefix.
    fn disown(&mut self, place: u64, before: &Definition) {
        let Some(prefix) = before
            .storage_prefix
            .as_ref()
            .filter(|prefix| self.owners.get(*prefix) == Some(&place))
        else {
            return;
        };
        self.owners.remove(prefix);
        // Custom resources have their prefix for themselves.
        let heir = if !before.dialect.is_bundled() {
            None
        } else {
            self.order
                .iter()
                .find(|(_, definition)| definition.storage_prefix.as_ref() == Some(prefix))
        };
        if let Some(heir) = heir.map(|(place, _)| *place) {
            self.owners.insert(prefix.clone(), heir);
        }
    }

    fn put_computed(&mut self, row: &Arc<VirtualRow>) {
        let rows = self.virtuals.entry(row.plural.clone()).or_default();
        rows.retain(|known| !(known.group == row.group && known.subresource == row.subresource));
        rows.push(row.clone());
    }
}

/// The resources that are served now.
pub struct Catalog {
    table: ArcSwap<Table>,
    changes: watch::Sender<u64>,
    /// By group and plural, for those that anybody follows.
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
    /// Adds or replaces a definition (by group and plural); a replaced one keeps its place in the
    /// order. A custom one never replaces a bundled one.
    pub fn put(&self, definition: Arc<Definition>) {
        self.change(|table| table.put(&definition));
        let followed = self.followed.lock().expect("no panic while held");
        if let Some(sender) = followed.get(&(definition.group.clone(), definition.plural.clone())) {
            sender.send_replace(());
        }
    }

    /// Adds a computed resource or subresource (`subresource` empty: the resource itself).
    pub fn put_computed(
        &self,
        group: &str,
        plural: &str,
        subresource: &str,
        behaviour: Arc<dyn ComputedResource>,
    ) {
        let row = VirtualRow {
            group: group.to_owned(),
            plural: plural.to_owned(),
            subresource: subresource.to_owned(),
            behaviour,
        };
        let row = Arc::new(row);
        self.change(|table| table.put_computed(&row));
    }

    /// Removes a definition and its computed parts.
    pub fn remove(&self, group: &str, plural: &str) {
        self.change(|table| table.remove(group, plural));
        if let Some(sender) = self
            .followed
            .lock()
            .expect("no panic while held")
            .remove(&(group.to_owned(), plural.to_owned()))
        {
            sender.send_replace(());
        }
    }

    fn change(&self, edit: impl Fn(&mut Table)) {
        self.table.rcu(|table| {
            let mut next = Table::clone(table);
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

    /// Looks a path's resource up; only served versions are found.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Served> {
        let table = self.table.load();
        let definition = table.definition(group, plural)?.clone();
        let version = definition
            .versions
            .iter()
            .position(|candidate| candidate.served && candidate.name == version)?;
        Some(Served { definition, version })
    }

    /// The computed behaviour, if there is one.
    pub fn find_computed(
        &self,
        group: &str,
        plural: &str,
        subresource: &str,
    ) -> Option<Arc<dyn ComputedResource>> {
        let table = self.table.load();
        let row = table
            .virtuals
            .get(plural)?
            .iter()
            .find(|row| row.subresource == subresource && row.group == group)?;
        Some(row.behaviour.clone())
    }

    /// The definition that computes the selectable fields of everything under its storage prefix:
    /// the first one that was put.
    pub(crate) fn owner(&self, definition: &Arc<Definition>) -> Arc<Definition> {
        let table = self.table.load();
        let owner = definition
            .storage_prefix
            .as_ref()
            .and_then(|prefix| table.order.get(table.owners.get(prefix)?));
        owner.unwrap_or(definition).clone()
    }

    /// Whether a definition is still served as it was.
    pub(crate) fn is_current(&self, served: &Served) -> bool {
        let definition = &served.definition;
        let table = self.table.load();
        table.definition(&definition.group, &definition.plural).is_some_and(|now| {
            (now.epoch, now.since) == (definition.epoch, definition.since)
                && now.versions.get(served.version).is_some_and(|version| version.served)
        })
    }

    /// Changes when the definition does: a watch that followed all would wake for every definition
    /// that comes, a thousand of them a thousand times.
    pub(crate) fn follow(&self, definition: &Definition) -> watch::Receiver<()> {
        let mut followed = self.followed.lock().expect("no panic while held");
        followed
            .entry((definition.group.clone(), definition.plural.clone()))
            .or_insert_with(|| watch::Sender::new(()))
            .subscribe()
    }

    /// The number of [`Self::all`] changed: for loops that follow the catalog (discovery).
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The number of [`Self::all`], without its definitions.
    pub fn change_number(&self) -> u64 {
        self.table.load().changes
    }

    /// All definitions in the order in which they were put (discovery's), and a number that changes
    /// with every change.
    pub fn all(&self) -> (u64, Vec<Arc<Definition>>) {
        let table = self.table.load();
        (table.changes, table.order.values().cloned().collect())
    }
}
