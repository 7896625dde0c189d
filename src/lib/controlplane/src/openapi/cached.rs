//! Documents that were made, in the forms that clients get.

use crate::compress;
use crate::discovery::hash;
use bytes::Bytes;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::work::SharedOnce;
use ferrokube_resource::{Definition, FieldGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The last documents.
#[derive(Default)]
pub(super) struct DocumentCache {
    /// By `api/v1`, `apis/<group>/<version>`, `apis/<group>`, `version`.
    pub(super) v3: BTreeMap<String, Arc<CachedDocument>>,
    pub(super) v2: Option<Arc<CachedDocument>>,
}

pub(super) struct CachedDocument {
    /// Compared by address, like `others`: other ones outdate the document.
    pub(super) definitions: Vec<Arc<Definition>>,
    /// Documents of aggregated servers.
    pub(super) others: Vec<Bytes>,
    /// [`hidden_fields`] of the definitions.
    pub(super) hidden: Vec<bool>,
    pub(super) json: DocumentForm,
    pub(super) protobuf: DocumentForm,
    pub(super) hash: String,
    /// Requested since the last sweep.
    pub(super) requested: AtomicBool,
}

/// An encoded document.
pub(super) struct DocumentForm {
    pub(super) plain: Bytes,
    /// Made once: readers that compressed the document for themselves would each keep it alive,
    /// after others have replaced it too.
    pub(super) gzip: SharedOnce<Bytes>,
}

impl DocumentForm {
    pub(super) fn new(plain: impl Into<Bytes>) -> Self {
        Self { plain: plain.into(), gzip: SharedOnce::new() }
    }

    /// Whether it is large enough to be compressed.
    pub(super) fn is_large(&self) -> bool {
        self.plain.len() >= compress::MIN_BYTES
    }

    pub(super) fn compressed(&self) -> Bytes {
        self.gzip.get_or_init(|| compress::whole(self.plain.clone())).clone()
    }
}

impl CachedDocument {
    pub(super) fn new(definitions: &[Arc<Definition>], value: &Value, protobuf: Vec<u8>) -> Self {
        let json = codec::to_vec(value);
        Self {
            definitions: definitions.to_vec(),
            others: Vec::new(),
            hidden: Vec::new(),
            hash: hash(&json),
            json: DocumentForm::new(json),
            protobuf: DocumentForm::new(protobuf),
            requested: AtomicBool::new(true),
        }
    }

    pub(super) fn is_from(&self, definitions: &[Arc<Definition>]) -> bool {
        self.requested.store(true, Ordering::Relaxed);
        self.hidden == hidden_fields(definitions)
            && self.definitions.len() == definitions.len()
            && self.definitions.iter().zip(definitions).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    pub(super) fn is_merged_from(&self, others: &[Bytes]) -> bool {
        let address = |bytes: &Bytes| bytes.as_ptr();
        self.others.iter().map(address).eq(others.iter().map(address))
    }
}

/// Whether each of the guarded fields is left out, as features that are off hide theirs.
pub(super) fn hidden_fields(definitions: &[Arc<Definition>]) -> Vec<bool> {
    let guards = definitions.iter().flat_map(|definition| &definition.guards);
    guards.map(FieldGuard::is_hidden).collect()
}
