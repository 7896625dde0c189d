//! Results of conversions, and conversions in progress.

use crate::served::Served;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::Entry;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tokio::sync::watch;

/// Cached bytes, of results and their sources, over all resources. The cache is cleared when full.
const MAX_CACHED_BYTES: usize = 32 << 20;

/// Entries by the bytes that they were converted from.
#[derive(Default)]
pub(crate) struct ConvertedEntries(Mutex<EntryCache>);

/// Cache key: the exact bytes that were converted. A revision is not enough, since a watch shows an
/// object that leaves its selection in an earlier state at the revision of the change.
#[derive(Clone)]
pub(super) struct CacheKey {
    source: Arc<Entry>,
    /// Epoch of the definition.
    epoch: u32,
    /// Index of the version.
    version: usize,
}

impl CacheKey {
    /// Key of an entry's conversion to a served version.
    pub(super) fn of(served: &Served, entry: &Arc<Entry>) -> Self {
        let epoch = served.definition.epoch;
        Self { source: Arc::clone(entry), epoch, version: served.version }
    }
}

impl PartialEq for CacheKey {
    fn eq(&self, other: &Self) -> bool {
        let (one, same) = (&self.source, &other.source);
        self.epoch == other.epoch
            && self.version == other.version
            && (Arc::ptr_eq(one, same)
                || (one.revision == same.revision
                    && one.key == same.key
                    && one.bytes == same.bytes))
    }
}

impl Eq for CacheKey {}

impl Hash for CacheKey {
    /// Without the bytes: two states at one revision are rare.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.source.key, self.source.revision, self.epoch, self.version).hash(hasher);
    }
}

#[derive(Default)]
struct EntryCache {
    entries: HashMap<CacheKey, Arc<Entry>>,
    bytes: usize,
    /// Conversions in progress. Other requests for the same entry wait for them.
    in_progress: HashMap<CacheKey, watch::Sender<Option<Failure>>>,
}

/// Result of a cache lookup.
pub(super) enum CacheLookup {
    Hit(Arc<Entry>),
    /// Another request converts it.
    InProgress(watch::Receiver<Option<Failure>>),
    /// To be converted by this request.
    Claimed,
}

/// Ends the in-progress conversions of a call, also if it is dropped.
pub(super) struct ConversionClaims<'a> {
    of: &'a ConvertedEntries,
    pub(super) names: Vec<CacheKey>,
}

impl<'a> ConversionClaims<'a> {
    /// No claims yet.
    pub(super) fn new(of: &'a ConvertedEntries) -> Self {
        Self { of, names: Vec::new() }
    }

    /// Passes the error on to waiting requests.
    pub(super) fn fail(&self, failure: &Failure) {
        let cache = self.of.lock();
        for sender in self.names.iter().filter_map(|name| cache.in_progress.get(name)) {
            sender.send_replace(Some(failure.clone()));
        }
    }
}

impl Drop for ConversionClaims<'_> {
    fn drop(&mut self) {
        let mut cache = self.of.lock();
        for name in &self.names {
            // Waiting requests look again.
            cache.in_progress.remove(name);
        }
    }
}

impl ConvertedEntries {
    fn lock(&self) -> MutexGuard<'_, EntryCache> {
        self.0.lock()
    }

    /// Looks an entry up; a missing one is claimed for the calling request.
    pub(super) fn state(&self, key: &CacheKey) -> CacheLookup {
        let mut cache = self.lock();
        if let Some(entry) = cache.entries.get(key) {
            return CacheLookup::Hit(Arc::clone(entry));
        }
        if let Some(conversion) = cache.in_progress.get(key) {
            return CacheLookup::InProgress(conversion.subscribe());
        }
        cache.in_progress.insert(key.clone(), watch::Sender::new(None));
        CacheLookup::Claimed
    }

    pub(super) fn put(&self, name: CacheKey, entry: &Arc<Entry>) {
        let mut cache = self.lock();
        let bytes = entry.bytes.len() + name.source.bytes.len();
        if cache.bytes + bytes > MAX_CACHED_BYTES {
            cache.entries = HashMap::new();
            cache.bytes = 0;
        }
        cache.bytes += bytes;
        cache.entries.insert(name, Arc::clone(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use ferrokube_storage::{CheckedEpoch, Revision, Sidecar};

    fn entry(number: u64, size: usize) -> (CacheKey, Arc<Entry>) {
        let key = ferrokube_storage::Prefix::new("things")
            .and_then(|prefix| prefix.key(Some("ns"), "a"))
            .expect("a key");
        let revision = Revision(number);
        let entry = Arc::new(Entry {
            key,
            revision,
            create_revision: revision,
            bytes: Bytes::from(vec![0; size]),
            sidecar: Sidecar::default(),
            checked: CheckedEpoch::default(),
        });
        (CacheKey { source: Arc::clone(&entry), epoch: 1, version: 1 }, entry)
    }

    #[test]
    fn a_cache_key_is_the_exact_bytes() {
        let ((one, entry), (same, _), (other, _)) =
            (super::tests::entry(7, 10), super::tests::entry(7, 10), super::tests::entry(7, 11));
        let converted = ConvertedEntries::default();
        converted.put(one, &entry);
        assert!(matches!(converted.state(&same), CacheLookup::Hit(_)), "the same bytes read again");
        assert!(
            matches!(converted.state(&other), CacheLookup::Claimed),
            "another state at the same revision"
        );
        let changed = CacheKey { epoch: 2, ..same.clone() };
        assert!(
            matches!(converted.state(&changed), CacheLookup::Claimed),
            "another definition of the same name"
        );
        let elsewhere = CacheKey { version: 2, ..same };
        assert!(matches!(converted.state(&elsewhere), CacheLookup::Claimed), "another version");
    }

    #[test]
    fn the_conversion_cache_is_bounded() {
        const SIZE: usize = 3 << 19;
        let converted = ConvertedEntries::default();
        let mut evictions = 0;
        for number in 0..100 {
            let (name, entry) = entry(number, SIZE);
            let before = converted.lock().entries.len();
            converted.put(name.clone(), &entry);
            assert!(
                matches!(converted.state(&name), CacheLookup::Hit(_)),
                "the last one is cached"
            );
            let cache = converted.lock();
            let bytes: usize = cache
                .entries
                .iter()
                .map(|(name, entry)| name.source.bytes.len() + entry.bytes.len())
                .sum();
            assert_eq!(bytes, cache.bytes);
            assert!(bytes <= MAX_CACHED_BYTES, "{bytes}");
            evictions += usize::from(cache.entries.len() <= before);
        }
        assert_eq!(evictions, 9, "ten of them fit");
        let (gone, _) = entry(0, 0);
        assert!(matches!(converted.state(&gone), CacheLookup::Claimed));
    }

    #[test]
    fn a_dropped_claim_releases_its_entries() {
        let converted = ConvertedEntries::default();
        let (name, _) = entry(1, 0);
        assert!(matches!(converted.state(&name), CacheLookup::Claimed));
        let claims = ConversionClaims { of: &converted, names: vec![name.clone()] };
        assert!(matches!(converted.state(&name), CacheLookup::InProgress(_)));
        drop(claims);
        assert!(converted.lock().in_progress.is_empty());
        assert!(matches!(converted.state(&name), CacheLookup::Claimed));
    }
}
