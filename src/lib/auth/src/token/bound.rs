//! Checks at every use of a token that the objects it is bound to still exist.

use super::claims::{Claims, Reference};
use crate::clock_cache::ClockCache;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::{json, time, work};
use ferrokube_registry::offload::{INLINE_BYTES, block_in_place};
use ferrokube_storage::{Entry, Key, Prefix, Revision, Store};
use parking_lot::{Mutex, RwLock};
use ring::digest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a token stays valid after its object's deletion timestamp.
const DELETION_LEEWAY: Duration = Duration::from_secs(60);

/// Label of secrets whose token was disabled for lack of use.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Locks for objects being parsed.
const READING: usize = 64;

/// Max cached objects.
const MAX_FACTS: usize = 10_000;

/// The store's accounts, pods, secrets and nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Objects {
    store: Store,
    accounts: Prefix,
    pods: Prefix,
    nodes: Prefix,
    secrets: Prefix,
    /// Shared by all tokens of an object, valid or not: each revision is parsed once, not at every
    /// use.
    facts: Arc<RwLock<ClockCache<Key, Arc<Facts>>>>,
    /// Locked while an object is parsed, by the hash of its key: requests with tokens of one object
    /// wait for the one that parses it.
    reading: Arc<[Mutex<()>; READING]>,
    /// Number of objects parsed.
    #[cfg(test)]
    reads: Arc<AtomicU64>,
}

/// The facts about an object that its tokens depend on, at one revision.
pub(super) struct Facts {
    revision: Revision,
    pub(super) uid: Box<str>,
    /// The deletion timestamp; the epoch if malformed.
    deleted: Option<SystemTime>,
    /// Hash of the token in a secret.
    token: Option<Hash>,
}

/// SHA-256.
type Hash = [u8; 32];

/// Kinds that tokens can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundKind {
    ServiceAccount,
    Pod,
    Node,
    Secret,
}

/// The revision at which each of a token's objects was last found valid; an object is checked again
/// only after it changed.
#[derive(Debug, Default)]
pub(super) struct CheckedRevisions([AtomicU64; 4]);

impl Objects {
    pub(super) fn new(store: Store) -> Self {
        let prefix = |resource| Prefix::new(resource).expect("a constant without bad segments");
        let facts = Arc::new(RwLock::new(ClockCache::new(MAX_FACTS)));
        Self {
            store,
            accounts: prefix("serviceaccounts"),
            pods: prefix("pods"),
            nodes: prefix("minions"),
            secrets: prefix("secrets"),
            facts,
            reading: Arc::new([const { Mutex::new(()) }; READING]),
            #[cfg(test)]
            reads: Arc::default(),
        }
    }

    fn entry(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        let (prefix, namespace) = match kind {
            BoundKind::ServiceAccount => (&self.accounts, Some(namespace)),
            BoundKind::Pod => (&self.pods, Some(namespace)),
            BoundKind::Secret => (&self.secrets, Some(namespace)),
            BoundKind::Node => (&self.nodes, None),
        };
        self.store.get(&prefix.key(namespace, name).ok()?)
    }

    /// Length of the published object; 0 if there is none.
    pub(super) fn bytes(&self, kind: BoundKind, namespace: &str, name: &str) -> usize {
        self.entry(kind, namespace, name).map_or(0, |entry| entry.bytes.len())
    }

    /// The published object.
    pub(super) fn get(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<Document> {
        self.entry(kind, namespace, name)
            .and_then(|entry| json::read(&entry.bytes).ok())
            .map(|decoded| decoded.document)
    }

    /// The facts of the published object.
    pub(super) fn facts(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<Arc<Facts>> {
        self.entry(kind, namespace, name).map(|entry| self.facts_of(kind, &entry))
    }

    fn facts_of(&self, kind: BoundKind, entry: &Entry) -> Arc<Facts> {
        if let Some(known) = self.known(entry) {
            return known;
        }
        if entry.bytes.len() > INLINE_BYTES {
            return block_in_place(|| self.read_once(kind, entry));
        }
        self.read_once(kind, entry)
    }

    fn known(&self, entry: &Entry) -> Option<Arc<Facts>> {
        let known = self.facts.read().get(&entry.key).map(Arc::clone);
        known.filter(|known| known.revision == entry.revision)
    }

    fn read_once(&self, kind: BoundKind, entry: &Entry) -> Arc<Facts> {
        let hash = self.facts.read().hash(&entry.key);
        let _reading = self.reading[hash as usize % READING].lock();
        if let Some(known) = self.known(entry) {
            return known;
        }
        #[cfg(test)]
        self.reads.fetch_add(1, Ordering::SeqCst);
        // Threads wait for it, of workers, too.
        let read = Arc::new(work::uninterrupted(|| Facts::read(kind, entry)));
        self.facts.write().insert(entry.key.clone(), Arc::clone(&read));
        read
    }

    /// Whether every object that the token is bound to still exists, with the same uid and not
    /// deleted for longer than the leeway.
    pub(super) fn are_alive(
        &self,
        claims: &Claims,
        seen: &CheckedRevisions,
        now: SystemTime,
    ) -> bool {
        let is_alive = |kind: BoundKind, reference: &Reference| {
            self.is_alive(kind, &claims.namespace, reference, &seen.0[kind as usize], now)
        };
        // A pod's token names its node for information; validity depends on the pod.
        let node = if claims.pod.is_none() { claims.node.as_ref() } else { None };
        is_alive(BoundKind::ServiceAccount, &claims.account)
            && claims.secret.as_ref().is_none_or(|secret| is_alive(BoundKind::Secret, secret))
            && claims.pod.as_ref().is_none_or(|pod| is_alive(BoundKind::Pod, pod))
            && node.is_none_or(|node| is_alive(BoundKind::Node, node))
    }

    /// Whether a token that lives in a secret has its account, and its secret holds this very
    /// token.
    pub(super) fn secret_token_is_alive(
        &self,
        claims: &Claims,
        token: &str,
        seen: &CheckedRevisions,
        now: SystemTime,
    ) -> bool {
        let [account, .., secret] = &seen.0;
        self.is_alive(BoundKind::ServiceAccount, &claims.namespace, &claims.account, account, now)
            && claims.secret.as_ref().is_some_and(|reference| {
                self.secret_holds(&claims.namespace, &reference.name, token, secret)
            })
    }

    fn secret_holds(&self, namespace: &str, name: &str, token: &str, seen: &AtomicU64) -> bool {
        let Some(entry) = self.entry(BoundKind::Secret, namespace, name) else {
            return false;
        };
        if seen.load(Ordering::Relaxed) == entry.revision.0 {
            return true;
        }
        let facts = self.facts_of(BoundKind::Secret, &entry);
        let held = facts.deleted.is_none() && facts.token == Some(sha256(token.as_bytes()));
        if held {
            seen.store(entry.revision.0, Ordering::Relaxed);
        }
        held
    }

    fn is_alive(
        &self,
        kind: BoundKind,
        namespace: &str,
        reference: &Reference,
        seen: &AtomicU64,
        now: SystemTime,
    ) -> bool {
        let Some(entry) = self.entry(kind, namespace, &reference.name) else {
            return false;
        };
        if seen.load(Ordering::Relaxed) == entry.revision.0 {
            return true;
        }
        let facts = self.facts_of(kind, &entry);
        if *facts.uid != *reference.uid {
            return false;
        }
        if let Some(deleted) = facts.deleted {
            return deleted + DELETION_LEEWAY > now;
        }
        seen.store(entry.revision.0, Ordering::Relaxed);
        true
    }
}

impl Facts {
    /// Parses all of a secret, and only the metadata of other kinds.
    fn read(kind: BoundKind, entry: &Entry) -> Self {
        let document = if kind == BoundKind::Secret {
            read(&entry.bytes)
        } else {
            read(metadata(entry)).map(|metadata| json!({ "metadata": metadata }))
        };
        let document = document
            .and_then(|value| Document::from_value(value).ok())
            .unwrap_or_else(Document::new);
        let deleted = document
            .is_terminating()
            .then(|| time::parse_rfc3339(document.meta("deletionTimestamp")).unwrap_or(UNIX_EPOCH));
        let token = || {
            document
                .str(&["data", "token"])
                .and_then(|text| STANDARD.decode(text).ok())
                .map(|token| sha256(&token))
        };
        let token = if document.label(INVALID_SINCE).is_none() { token() } else { None };
        Self { revision: entry.revision, uid: document.uid().into(), deleted, token }
    }
}

/// The bytes of `metadata`.
fn metadata(entry: &Entry) -> &[u8] {
    let layout = Layout::from_marks(entry.sidecar.marks, entry.sidecar.revision_at);
    forms::metadata(&entry.bytes, &layout, entry.spliced().len())
}

fn read(bytes: &[u8]) -> Option<Value> {
    work::count(bytes.len());
    json::read_value(bytes).ok()
}

fn sha256(bytes: &[u8]) -> Hash {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{key, put, store};

    /// Requests that come at once with tokens of one object.
    #[tokio::test]
    async fn fault_51_an_object_is_parsed_by_one_of_its_tokens_requests() {
        let store = store();
        let annotations = json!({"a": "x".repeat(1_000_000)});
        let metadata =
            json!({"name": "fat", "namespace": "n", "uid": "u", "annotations": annotations});
        put(&store, "serviceaccounts", json!({"metadata": metadata})).await;
        let objects = Objects::new(store);
        let at_once = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    at_once.wait();
                    objects.facts(BoundKind::ServiceAccount, "n", "fat").expect("there");
                });
            }
        });
        assert_eq!(objects.reads.load(Ordering::SeqCst), 1);
    }

    /// A caller that uses tokens of many objects makes no other object be read again.
    #[tokio::test]
    async fn fault_51_facts_outlive_a_flood_of_others() {
        let store = store();
        let account = json!({"metadata": {"name": "robot", "namespace": "n", "uid": "u"}});
        put(&store, "serviceaccounts", account).await;
        let objects = Objects::new(store);
        let is_known = || objects.facts(BoundKind::ServiceAccount, "n", "robot").is_some();
        assert!(is_known());
        let ((), read) = work::counted(|| {
            for number in 0..2 * MAX_FACTS {
                let facts = objects.facts(BoundKind::ServiceAccount, "n", "robot").expect("there");
                let other = key("serviceaccounts", "m", &number.to_string());
                objects.facts.write().insert(other, facts);
            }
        });
        assert_eq!(read, 0, "bytes read again");
    }
}
