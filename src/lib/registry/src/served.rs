//! A definition in one of its versions, and whether stored bytes are in it.

use ferrokube_resource::{Definition, DefinitionVersion};
use ferrokube_storage::Entry;
use std::sync::Arc;

/// A definition in one of its versions.
#[derive(Clone, Debug)]
pub struct Served {
    /// Shared with the catalog.
    pub definition: Arc<Definition>,
    /// Index into the definition's versions.
    pub version: usize,
}

/// Whether the schema of this epoch leaves the entry as it is.
fn is_of_epoch(entry: &Entry, epoch: u32) -> bool {
    entry.sidecar.schema_epoch == epoch || entry.checked.is(epoch)
}

impl Served {
    /// The version at [`Self::version`].
    pub fn version(&self) -> &DefinitionVersion {
        &self.definition.versions[self.version]
    }

    /// Whether the entry's bytes are an object in this version: no conversion and, for custom
    /// resources, the same epoch, or one that a reader compared.
    pub fn is_direct(&self, entry: &Entry) -> bool {
        if self.definition.dialect.has_epochs() && !is_of_epoch(entry, self.definition.epoch) {
            return false;
        }
        self.has_head(&entry.bytes)
    }

    /// Whether metadata on its own is that of the stored bytes.
    pub fn has_stored_metadata(&self) -> bool {
        self.definition.policy.internal_annotations.is_empty()
    }

    /// [`Self::is_direct`] for many entries.
    pub fn direct(&self) -> impl Fn(&Entry) -> bool + use<> {
        let epoch = self.definition.dialect.has_epochs().then_some(self.definition.epoch);
        let head = format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
            self.definition.kind,
            self.definition.gvk(self.version).api_version()
        );
        move |entry| {
            epoch.is_none_or(|epoch| is_of_epoch(entry, epoch))
                && entry.bytes.starts_with(head.as_bytes())
        }
    }

    /// Whether canonical bytes start with this kind and apiVersion. Allocates nothing.
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
