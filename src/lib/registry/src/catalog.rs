//! Which resources are served: an immutable table that is swapped when a definition comes or goes.

use crate::context::{RequestContext, Target};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_resource::{Definition, Version};
use ferrokube_schema::Schema;
use ferrokube_storage::Entry;
use std::collections::HashMap;
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
    pub fn version(&self) -> &Version {
        &self.definition.versions[self.version]
    }

    /// Whether an entry's bytes are an object in this version as they stand: no conversion, and for custom resources the same epoch.
    pub fn is_direct(&self, entry: &Entry) -> bool {
        if self.definition.custom && entry.sidecar.schema_epoch != self.definition.epoch {
            return false;
        }
        self.has_head(&entry.bytes)
    }

    /// [`Self::is_direct`] for many entries: what it compares is made once.
    pub fn direct(&self) -> impl Fn(&Entry) -> bool + use<> {
        let epoch = self.definition.custom.then_some(self.definition.epoch);
        let head = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", self.definition.kind, self.definition.gvk(self.version).api_version());
        move |entry| epoch.is_none_or(|epoch| entry.sidecar.schema_epoch == epoch) && entry.bytes.starts_with(head.as_bytes())
    }

    /// Whether canonical bytes begin with this kind and apiVersion; nothing is allocated.
    pub(crate) fn has_head(&self, bytes: &[u8]) -> bool {
        let group = self.definition.group.as_str();
        let slash = if group.is_empty() { "" } else { "/" };
        let parts = ["{\"kind\":\"", &self.definition.kind, "\",\"apiVersion\":\"", group, slash, &self.version().name, "\","];
        let rest = parts.iter().try_fold(bytes, |rest, part| rest.strip_prefix(part.as_bytes()));
        rest.is_some()
    }
}

/// What a virtual resource answers with.
pub type VirtualFuture<'a> = Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send + 'a>>;

/// Behaviour of a resource or subresource that computes its answer instead of storing (reviews, `serviceaccounts/token`).
pub trait Virtual: Send + Sync {
    /// Answers a create. The object is decoded, defaulted and type-checked.
    fn create<'a>(&'a self, context: &'a RequestContext, target: &'a Target, object: Document) -> VirtualFuture<'a>;

    /// The schema of what a subresource takes; `None`: anything. Not asked for a resource, which has its own.
    fn schema(&self) -> Option<Arc<Schema>> {
        None
    }

    /// Whether it shows a part of the stored object as another kind (`scale`). Then GET, PUT and PATCH of it work on [`Self::project`]ed
    /// documents, [`Self::inject`] writes them back, and `create` is never called.
    fn is_projection(&self) -> bool {
        false
    }

    /// The part of a stored object that a projection shows, without its resourceVersion.
    ///
    /// # Errors
    /// The object cannot be shown so. The default: 405.
    fn project(&self, target: &Target, _object: &Document) -> Result<Document, Failure> {
        Err(Failure::new(Reason::MethodNotAllowed, format!("{} cannot be read", target.subresource)))
    }

    /// Writes a changed projection back into the stored object.
    ///
    /// # Errors
    /// The projection is invalid. The default: 405.
    fn inject(&self, target: &Target, _projection: &Document, _object: &mut Document) -> Result<(), Failure> {
        Err(Failure::new(Reason::MethodNotAllowed, format!("{} cannot be written", target.subresource)))
    }
}

/// A computed resource or subresource.
struct VirtualRow {
    group: String,
    plural: String,
    subresource: String,
    behaviour: Arc<dyn Virtual>,
}

/// One immutable state of the catalog.
#[derive(Default)]
struct Table {
    changes: u64,
    order: Vec<Arc<Definition>>,
    /// Indexes into `order`, by plural name.
    by_plural: HashMap<String, Vec<usize>>,
    /// The first definition of each storage prefix: it computes the selectable fields.
    owners: HashMap<String, Arc<Definition>>,
    virtuals: Vec<Arc<VirtualRow>>,
}

impl Table {
    fn position(&self, group: &str, plural: &str) -> Option<usize> {
        self.by_plural.get(plural)?.iter().copied().find(|&index| self.order[index].group == group)
    }

    /// The same definitions, without indexes.
    fn without_indexes(&self) -> Self {
        Self { changes: self.changes, order: self.order.clone(), virtuals: self.virtuals.clone(), ..Self::default() }
    }

    /// The same definitions under the next number, with fresh indexes.
    fn rebuilt(mut self) -> Self {
        self.changes += 1;
        self.by_plural = HashMap::with_capacity(self.order.len());
        self.owners = HashMap::with_capacity(self.order.len());
        for (index, definition) in self.order.iter().enumerate() {
            self.by_plural.entry(definition.plural.clone()).or_default().push(index);
            if let Some(prefix) = &definition.storage_prefix {
                self.owners.entry(prefix.clone()).or_insert_with(|| definition.clone());
            }
        }
        self
    }
}

/// The resources that are served now.
pub struct Catalog {
    table: ArcSwap<Table>,
    changes: watch::Sender<u64>,
    /// By group and plural, for those that anybody follows.
    followed: Mutex<HashMap<(String, String), watch::Sender<()>>>,
}

impl Default for Catalog {
    fn default() -> Self {
        Self { table: ArcSwap::default(), changes: watch::Sender::new(0), followed: Mutex::default() }
    }
}

impl Catalog {
    /// Adds or replaces a definition (by group and plural); a replaced one keeps its place in the order.
    pub fn put(&self, definition: Arc<Definition>) {
        let is_it = |known: &Arc<Definition>| known.plural == definition.plural && known.group == definition.group;
        self.change(|table| match table.order.iter().position(is_it) {
            Some(index) => table.order[index] = definition.clone(),
            None => table.order.push(definition.clone()),
        });
        let followed = self.followed.lock().expect("no panic while held");
        if let Some(sender) = followed.get(&(definition.group.clone(), definition.plural.clone())) {
            sender.send_replace(());
        }
    }

    /// Adds a computed resource or subresource (`subresource` empty: the resource itself).
    pub fn put_virtual(&self, group: &str, plural: &str, subresource: &str, behaviour: Arc<dyn Virtual>) {
        self.change(|table| {
            table.virtuals.retain(|row| !(row.group == group && row.plural == plural && row.subresource == subresource));
            table.virtuals.push(Arc::new(VirtualRow {
                group: group.to_owned(),
                plural: plural.to_owned(),
                subresource: subresource.to_owned(),
                behaviour: behaviour.clone(),
            }));
        });
    }

    /// Removes a definition and its computed parts.
    pub fn remove(&self, group: &str, plural: &str) {
        self.change(|table| {
            table.order.retain(|definition| !(definition.group == group && definition.plural == plural));
            table.virtuals.retain(|row| !(row.group == group && row.plural == plural));
        });
        if let Some(sender) = self.followed.lock().expect("no panic while held").remove(&(group.to_owned(), plural.to_owned())) {
            sender.send_replace(());
        }
    }

    fn change(&self, edit: impl Fn(&mut Table)) {
        self.table.rcu(|table| {
            let mut next = table.without_indexes();
            edit(&mut next);
            next.rebuilt()
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
        let definition = table.order[table.position(group, plural)?].clone();
        let version = definition.versions.iter().position(|candidate| candidate.served && candidate.name == version)?;
        Some(Served { definition, version })
    }

    /// The computed behaviour, if there is one.
    pub fn find_virtual(&self, group: &str, plural: &str, subresource: &str) -> Option<Arc<dyn Virtual>> {
        let table = self.table.load();
        let row = table.virtuals.iter().find(|row| row.plural == plural && row.subresource == subresource && row.group == group)?;
        Some(row.behaviour.clone())
    }

    /// The definition that computes the selectable fields of everything under its storage prefix: the first one that was put.
    pub(crate) fn owner(&self, definition: &Arc<Definition>) -> Arc<Definition> {
        let table = self.table.load();
        definition.storage_prefix.as_ref().and_then(|prefix| table.owners.get(prefix)).unwrap_or(definition).clone()
    }

    /// Whether a definition is still served as it was.
    pub(crate) fn is_current(&self, served: &Served) -> bool {
        let definition = &served.definition;
        let table = self.table.load();
        table.position(&definition.group, &definition.plural).is_some_and(|index| {
            let now = &table.order[index];
            now.epoch == definition.epoch && now.versions.get(served.version).is_some_and(|version| version.served)
        })
    }

    /// Changes when the definition does: a watch that followed all would wake for every definition that comes, a thousand of them a thousand times.
    pub(crate) fn follow(&self, definition: &Definition) -> watch::Receiver<()> {
        let mut followed = self.followed.lock().expect("no panic while held");
        followed.entry((definition.group.clone(), definition.plural.clone())).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// The number of [`Self::all`] changed: for loops that follow the catalog (discovery).
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// All definitions in the order in which they were put (discovery's), and a number that changes with every change.
    pub fn all(&self) -> (u64, Vec<Arc<Definition>>) {
        let table = self.table.load();
        (table.changes, table.order.clone())
    }
}
