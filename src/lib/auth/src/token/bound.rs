//! The objects that a token lives and dies with, looked up in the store at every use.

use super::claims::{Claims, Reference};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::{json, time};
use ferrokube_storage::{Entry, Prefix, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// How long a token outlives the moment at which its object was to be deleted.
const DELETION_LEEWAY: Duration = Duration::from_secs(60);

/// The label of secrets whose token was put out of use for not being used.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Looks objects up. Cheap to clone.
#[derive(Clone)]
pub(super) struct Objects {
    store: Store,
    accounts: Prefix,
    pods: Prefix,
    nodes: Prefix,
    secrets: Prefix,
}

/// The kinds that tokens can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoundKind {
    ServiceAccount,
    Pod,
    Node,
    Secret,
}

/// For each object of a token: the revision at which it was last found good, so that it is read only when it changed.
#[derive(Debug, Default)]
pub(super) struct Seen([AtomicU64; 4]);

impl Objects {
    pub(super) fn new(store: Store) -> Self {
        let prefix = |resource| Prefix::new(resource).expect("a constant without bad segments");
        Self { store, accounts: prefix("serviceaccounts"), pods: prefix("pods"), nodes: prefix("minions"), secrets: prefix("secrets") }
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

    /// The published object.
    pub(super) fn get(&self, kind: BoundKind, namespace: &str, name: &str) -> Option<Document> {
        self.entry(kind, namespace, name).and_then(|entry| parse(&entry))
    }

    /// Whether everything that the token is bound to is still there, with the same uid and not (long) deleted.
    pub(super) fn are_alive(&self, claims: &Claims, seen: &Seen, now: SystemTime) -> bool {
        let is_alive = |kind: BoundKind, reference: &Reference| self.is_alive(kind, &claims.namespace, reference, (&seen.0[kind as usize], now));
        // A pod's token names its node for information; the pod is what counts.
        let node = if claims.pod.is_none() { claims.node.as_ref() } else { None };
        is_alive(BoundKind::ServiceAccount, &claims.account)
            && claims.secret.as_ref().is_none_or(|secret| is_alive(BoundKind::Secret, secret))
            && claims.pod.as_ref().is_none_or(|pod| is_alive(BoundKind::Pod, pod))
            && node.is_none_or(|node| is_alive(BoundKind::Node, node))
    }

    /// Whether the account of a token that lives in a secret is still there, and the secret with this very token.
    pub(super) fn hold(&self, claims: &Claims, token: &str, seen: &Seen, now: SystemTime) -> bool {
        let [account, .., secret] = &seen.0;
        self.is_alive(BoundKind::ServiceAccount, &claims.namespace, &claims.account, (account, now))
            && claims.secret.as_ref().is_some_and(|reference| self.holds(&claims.namespace, &reference.name, token, secret))
    }

    fn holds(&self, namespace: &str, name: &str, token: &str, seen: &AtomicU64) -> bool {
        let Some(entry) = self.entry(BoundKind::Secret, namespace, name) else {
            return false;
        };
        if seen.load(Ordering::Relaxed) == entry.revision.0 {
            return true;
        }
        let held = parse(&entry).is_some_and(|secret| {
            let held = secret.str(&["data", "token"]).and_then(|text| STANDARD.decode(text).ok());
            !secret.is_terminating() && secret.label(INVALID_SINCE).is_none() && held.is_some_and(|held| held == token.as_bytes())
        });
        if held {
            seen.store(entry.revision.0, Ordering::Relaxed);
        }
        held
    }

    fn is_alive(&self, kind: BoundKind, namespace: &str, reference: &Reference, (seen, now): (&AtomicU64, SystemTime)) -> bool {
        let Some(entry) = self.entry(kind, namespace, &reference.name) else {
            return false;
        };
        if seen.load(Ordering::Relaxed) == entry.revision.0 {
            return true;
        }
        let Some(document) = parse(&entry).filter(|document| document.uid() == reference.uid) else {
            return false;
        };
        if document.is_terminating() {
            let deleted = time::parse_rfc3339(document.meta("deletionTimestamp"));
            return deleted.is_some_and(|deleted| deleted + DELETION_LEEWAY > now);
        }
        seen.store(entry.revision.0, Ordering::Relaxed);
        true
    }
}

fn parse(entry: &Entry) -> Option<Document> {
    json::read(&entry.bytes).ok().map(|decoded| decoded.document)
}
