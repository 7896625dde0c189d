//! A registry in memory, and the helpers of the tests.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::admission::RemoteFuture;
use ferrokube_registry::{
    Admission, Attributes, Body, Catalog, DeleteOptions, Deleted, Effects, ListOptions, ListPage,
    Object, Operation, Patch, Registry, RequestContext, Target, WriteOptions, Written,
};
use ferrokube_storage::{Config, Guard, Store};
use ferrokube_trace::annotation::Ids;
use ferrokube_trace::{TraceContext, TraceId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Runs during a webhook call.
pub(crate) type During = Box<dyn FnOnce() -> RemoteFuture<'static, ()> + Send>;

/// Admission that records its calls, refuses objects with the label `refuse`, and simulates
/// webhooks.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) seen: Mutex<Vec<(Operation, String)>>,
    pub(crate) remote: AtomicBool,
    /// Whether writes get ids.
    pub(crate) stamps: AtomicBool,
    pub(crate) stamped: AtomicUsize,
    pub(crate) remote_calls: AtomicUsize,
    /// Runs once, during a webhook call.
    pub(crate) during_remote: Mutex<Option<During>>,
    /// Runs once, during local validation: a long computation.
    pub(crate) during_validate: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Name that a webhook sets.
    pub(crate) renames: Mutex<Option<&'static str>>,
    /// Guard added to every write.
    pub(crate) guard: Mutex<Option<Guard>>,
}

impl Recorder {
    fn check(object: &Document) -> Result<(), Failure> {
        match object.label("refuse") {
            Some(why) => Err(Failure::new(ferrokube_apimachinery::status::Reason::Forbidden, why)),
            None => Ok(()),
        }
    }
}

impl Admission for Recorder {
    fn is_remote(&self, _attributes: &Attributes<'_>) -> bool {
        self.remote.load(Ordering::SeqCst)
    }

    fn mutate(&self, _attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        Self::check(object)
    }

    fn mutate_remote<'a>(
        &'a self,
        _attributes: Attributes<'a>,
        mut object: Document,
    ) -> RemoteFuture<'a, Document> {
        Box::pin(async move {
            self.remote_calls.fetch_add(1, Ordering::SeqCst);
            let during = self.during_remote.lock().unwrap().take();
            if let Some(during) = during {
                during().await?;
            }
            object.set(&["metadata", "annotations", "example.com/seen"], "yes");
            if let Some(name) = *self.renames.lock().unwrap() {
                object.set(&["metadata", "name"], name);
            }
            Ok(object)
        })
    }

    /// Trace ids count from 1.
    fn stamp(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Option<Ids> {
        self.stamps.load(Ordering::SeqCst).then(|| {
            let number = self.stamped.fetch_add(1, Ordering::SeqCst) as u128 + 1;
            let trace_id = TraceId::from_bytes(number.to_be_bytes()).unwrap();
            Ids::new(&TraceContext { trace_id, ..TraceContext::root() }, None)
        })
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        effects.guards.extend(self.guard.lock().unwrap().clone());
        let during = self.during_validate.lock().unwrap().take();
        if let Some(during) = during {
            during();
        }
        self.seen
            .lock()
            .unwrap()
            .push((attributes.operation, attributes.target.name.clone().unwrap_or_default()));
        object.map_or(Ok(()), Self::check)
    }

    fn validate_remote<'a>(
        &'a self,
        attributes: Attributes<'a>,
        _object: Option<&'a Document>,
    ) -> RemoteFuture<'a, ()> {
        let during = if attributes.operation == Operation::Delete {
            self.during_remote.lock().unwrap().take()
        } else {
            None
        };
        Box::pin(async {
            match during {
                Some(during) => during().await,
                None => Ok(()),
            }
        })
    }
}

/// A server without HTTP.
#[derive(Clone)]
pub(crate) struct TestRegistry {
    pub(crate) registry: Registry,
    pub(crate) admission: Arc<Recorder>,
}

pub(crate) const CONFIGMAPS: (&str, &str) = ("", "configmaps");
pub(crate) const NAMESPACES: (&str, &str) = ("", "namespaces");
pub(crate) const SECRETS: (&str, &str) = ("", "secrets");
pub(crate) const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");

impl TestRegistry {
    pub(crate) fn new() -> Self {
        Self::on(Config::memory())
    }

    pub(crate) fn on(config: Config) -> Self {
        Self::over(Store::open(config).unwrap())
    }

    /// Another server on the same store.
    pub(crate) fn restarted(&self) -> Self {
        Self::over(self.registry.store().clone())
    }

    pub(crate) fn over(store: Store) -> Self {
        let catalog = Arc::new(Catalog::default());
        for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
            catalog.put(definition);
        }
        let admission = Arc::new(Recorder::default());
        Self {
            registry: Registry::new(store, catalog, admission.clone()).with_token_key(&[1; 32]),
            admission,
        }
    }

    /// A resource in namespace `ns` (or cluster scope), or one of its objects: `name` or
    /// `name/subresource`.
    pub(crate) fn target(&self, (group, plural): (&str, &str), name: &str) -> Target {
        let served = self.registry.catalog().find(group, "v1", plural).unwrap();
        let namespaced = served.definition.scope == ferrokube_resource::Scope::Namespaced;
        let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Target {
            served,
            namespace: namespaced.then(|| "ns".to_owned()),
            name: some(name),
            subresource: subresource.to_owned(),
        }
    }

    pub(crate) async fn post(
        &self,
        kind: (&str, &str),
        object: Value,
    ) -> Result<Document, Failure> {
        self.post_with(kind, object, &WriteOptions::default()).await
    }

    pub(crate) async fn post_with(
        &self,
        kind: (&str, &str),
        object: Value,
        options: &WriteOptions,
    ) -> Result<Document, Failure> {
        let target = self.target(kind, "");
        let written = self.registry.create(&context(), &target, body(object), options).await?;
        assert!(written.created);
        Ok(written.object.into_document(&target.served))
    }

    pub(crate) async fn put(
        &self,
        kind: (&str, &str),
        name: &str,
        object: Value,
    ) -> Result<Document, Failure> {
        let target = self.target(kind, name);
        let written = self
            .registry
            .update(&context(), &target, body(object), &WriteOptions::default())
            .await?;
        Ok(written.object.into_document(&target.served))
    }

    pub(crate) async fn patch(
        &self,
        kind: (&str, &str),
        name: &str,
        patch: Patch,
    ) -> Result<Document, Failure> {
        let written = self.patch_with(kind, name, patch, &WriteOptions::default()).await?;
        Ok(written.object.into_document(&self.target(kind, name).served))
    }

    pub(crate) async fn patch_with(
        &self,
        kind: (&str, &str),
        name: &str,
        patch: Patch,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        self.registry.patch(&context(), &self.target(kind, name), patch, options).await
    }

    pub(crate) async fn get(&self, kind: (&str, &str), name: &str) -> Result<Document, Failure> {
        let target = self.target(kind, name);
        Ok(self.registry.get(&target, "").await?.into_document(&target.served))
    }

    pub(crate) async fn delete(&self, kind: (&str, &str), name: &str) -> Result<Deleted, Failure> {
        self.delete_with(kind, name, &DeleteOptions::default()).await
    }

    pub(crate) async fn delete_with(
        &self,
        kind: (&str, &str),
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        self.registry.delete(&context(), &self.target(kind, name), options).await
    }

    pub(crate) async fn list(
        &self,
        kind: (&str, &str),
        options: &ListOptions,
    ) -> Result<ListPage, Failure> {
        self.registry.list(&self.target(kind, ""), options).await
    }
}

pub(crate) fn context() -> RequestContext {
    let user = UserInfo { name: "admin".to_owned(), ..UserInfo::default() };
    RequestContext::new(user, TraceContext::root(), "test/1.0".to_owned(), SystemTime::now())
}

pub(crate) fn body(value: Value) -> Body {
    Body { lenient: false, ..Document::from_value(value).unwrap().into() }
}

pub(crate) fn merge(value: Value) -> Patch {
    Patch::Merge(body(value))
}

/// A ConfigMap with one value.
pub(crate) fn configmap(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
}

/// A ConfigMap with a label.
pub(crate) fn labeled(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"s": label}}, "data": {"k": "v"}})
}

pub(crate) fn selecting(labels: &str, fields: &str) -> ListOptions {
    ListOptions {
        labels: LabelSelector::parse(labels).unwrap(),
        fields: FieldSelector::parse(fields).unwrap(),
        ..ListOptions::default()
    }
}

pub(crate) fn names(page: &ListPage) -> Vec<&str> {
    page.items.iter().map(|entry| entry.key.name()).collect()
}

pub(crate) fn version(object: &Document) -> u64 {
    object.meta("resourceVersion").parse().unwrap()
}

/// Reason or bare code, and causes as `reason field`.
pub(crate) fn outcome<T>(result: &Result<T, Failure>) -> (String, Vec<String>) {
    let Err(failure) = result else {
        return ("ok".to_owned(), Vec::new());
    };
    let word = failure
        .reason
        .map_or_else(|| failure.code.to_string(), |reason| reason.as_str().to_owned());
    let causes = failure.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
    let mut causes: Vec<String> = causes
        .iter()
        .map(|cause| format!("{} {}", cause.reason.trim_start_matches("FieldValue"), cause.field))
        .collect();
    causes.sort();
    causes.dedup();
    (word, causes)
}

/// Asserts a failure with this reason and causes.
#[track_caller]
pub(crate) fn refused<T>(result: &Result<T, Failure>, reason: &str, causes: &[&str]) {
    let (word, found) = outcome(result);
    assert_eq!(
        (word.as_str(), found.iter().map(String::as_str).collect::<Vec<_>>()),
        (reason, causes.to_vec()),
        "{:?}",
        result.as_ref().err()
    );
}

pub(crate) fn document(object: Object, target: &Target) -> Document {
    object.into_document(&target.served)
}

/// Far beyond what anything takes on the slowest machine.
pub(crate) const BOUND: Duration = Duration::from_secs(180);

/// Bounds a wait that should be short.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("it happens in time")
}
