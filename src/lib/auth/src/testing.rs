//! Test support: a store with objects, a settable clock.

use crate::authenticate::WallClock;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::RequestContext;
use ferrokube_storage::{Config, Put, Sidecar, Store, Txn, Write};
use ferrokube_storage::{Key, Prefix};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the fake clock starts, in Unix seconds.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A clock that only [`Self::forward`] moves.
#[derive(Clone)]
pub(crate) struct FakeClock(Arc<AtomicU64>);

impl FakeClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NOW)))
    }

    pub(crate) fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    pub(crate) fn forward(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    pub(crate) fn clock(&self) -> WallClock {
        let this = self.clone();
        Arc::new(move || this.now())
    }
}

pub(crate) fn store() -> Store {
    Store::open(Config::memory()).expect("a memory store")
}

pub(crate) fn key(resource: &str, namespace: &str, name: &str) -> Key {
    Prefix::new(resource)
        .expect("prefix")
        .key((!namespace.is_empty()).then_some(namespace), name)
        .expect("key")
}

/// Stores an object under its metadata's namespace and name.
pub(crate) async fn put(store: &Store, resource: &str, object: Value) {
    let document = Document::from_value(object).expect("an object");
    let key = key(resource, document.namespace(), document.name());
    let (value, layout) = json::write(&document);
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        ..Sidecar::default()
    };
    commit(store, Write::Put(Put { key, value: value.into(), sidecar, ttl: None })).await;
}

pub(crate) async fn delete(store: &Store, resource: &str, namespace: &str, name: &str) {
    commit(store, Write::Delete { key: key(resource, namespace, name), last: None }).await;
}

async fn commit(store: &Store, write: Write) {
    let ticket = store.submit(Txn { writes: vec![write], ..Txn::default() }).expect("accepted");
    ticket.committed().await.expect("committed");
}

pub(crate) fn context(clock: &FakeClock) -> RequestContext {
    RequestContext::new(
        UserInfo::default(),
        ferrokube_trace::TraceContext::root(),
        "test".into(),
        clock.now(),
    )
}

pub(crate) fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    }
}
