//! In-process client of the server's own loops (bootstrap, CRDs, quota). Its requests take the
//! usual path from admission on.

use crate::catalog::Served;
use crate::context::{RequestContext, Target};
use crate::offload::{is_costly, leave_worker, pause};
use crate::options::{DeleteOptions, WriteOptions};
use crate::pipeline::{Patch, Registry, Written, view};
use crate::read::ListOptions;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_storage::Key;
use ferrokube_trace::TraceContext;
use std::time::SystemTime;

/// User name of the server.
const NAME: &str = "system:apiserver";

/// A client of one resource with the server's identity (`system:apiserver` in `system:masters`).
/// Cheap to clone.
///
/// Documents are in the version passed to [`Self::new`]: `Local::new(&registry, "", "v1",
/// "namespaces")`.
#[derive(Clone)]
pub struct Local {
    registry: Registry,
    served: Served,
}

impl Local {
    /// `None` if the resource is not served.
    pub fn new(registry: &Registry, group: &str, version: &str, plural: &str) -> Option<Self> {
        let served = registry.catalog().find(group, version, plural)?;
        Some(Self { registry: registry.clone(), served })
    }

    /// For a resource that need not be in the catalog.
    pub fn of(registry: &Registry, served: Served) -> Self {
        Self { registry: registry.clone(), served }
    }

    /// Definition and version.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// A context with the server's identity and a new trace.
    pub fn context() -> RequestContext {
        RequestContext::new(
            Self::user(),
            TraceContext::root(),
            "kube-apiserver".to_owned(),
            SystemTime::now(),
        )
        .own()
    }

    /// The server's identity.
    pub fn user() -> UserInfo {
        let groups = ["system:masters", "system:authenticated"].map(str::to_owned).into();
        UserInfo { name: NAME.to_owned(), groups, ..UserInfo::default() }
    }

    fn target(&self, namespace: &str, name: &str, subresource: &str) -> Target {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Target {
            served: self.served.clone(),
            namespace: some(namespace),
            name: some(name),
            subresource: subresource.to_owned(),
        }
    }

    /// GET; `None` if the object does not exist. `namespace` is empty for cluster scope.
    ///
    /// # Errors
    /// Every error is a Status for a client. So are those of all methods below.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<Document>, Failure> {
        match self.registry.get_document(&self.target(namespace, name, "")).await {
            Ok(document) => Ok(Some(document)),
            Err(failure) if failure.reason == Some(Reason::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Reads an object from the store, without waiting.
    pub fn stored(&self, key: &Key) -> Option<Document> {
        self.registry.store().get(key).map(|entry| view(&entry, &self.served))
    }

    /// LIST, across namespaces if `namespace` is empty. All objects are in memory together: not
    /// for kinds that tenants write.
    pub async fn list(&self, namespace: &str) -> Result<Vec<Document>, Failure> {
        let page =
            self.registry.list(&self.target(namespace, "", ""), &ListOptions::default()).await?;
        Ok(page.items.iter().map(|entry| view(entry, &self.served)).collect())
    }

    /// The first objects of a namespace that are wanted, at most `most`. Parses one at a time and
    /// keeps no other, however many and large they are: tenants make them.
    pub async fn find(
        &self,
        namespace: &str,
        most: usize,
        mut is_wanted: impl FnMut(&Document) -> bool + Send,
    ) -> Result<Vec<Document>, Failure> {
        let page =
            self.registry.list(&self.target(namespace, "", ""), &ListOptions::default()).await?;
        let mut found = Vec::new();
        for entry in &page.items {
            if found.len() == most {
                break;
            }
            pause().await;
            if is_costly(&entry.bytes) {
                leave_worker().await;
            }
            found.extend(Some(view(entry, &self.served)).filter(&mut is_wanted));
        }
        Ok(found)
    }

    /// POST.
    pub async fn create(&self, namespace: &str, object: Document) -> Result<Document, Failure> {
        let written = self.created(namespace, object).await?;
        Ok(written.object.into_document(&self.served))
    }

    /// [`Self::create`] for callers that need not know what was stored: it is not read.
    ///
    /// # Errors
    /// Those of [`Self::create`].
    pub async fn add(&self, namespace: &str, object: Document) -> Result<(), Failure> {
        self.created(namespace, object).await.map(drop)
    }

    async fn created(&self, namespace: &str, object: Document) -> Result<Written, Failure> {
        let target = self.target(namespace, "", "");
        let options = WriteOptions::default();
        self.registry.create(&Self::context(), &target, object.into(), &options).await
    }

    /// PUT of the object or, if not empty, `subresource`. A resourceVersion is a precondition.
    pub async fn update(&self, object: Document, subresource: &str) -> Result<Document, Failure> {
        let target = self.target(object.namespace(), object.name(), subresource);
        let written = self
            .registry
            .update(&Self::context(), &target, object.into(), &WriteOptions::default())
            .await?;
        Ok(written.object.into_document(&self.served))
    }

    /// PATCH of the object or, if not empty, `subresource`.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Document, Failure> {
        let target = self.target(namespace, name, subresource);
        let options = WriteOptions { field_manager: NAME.to_owned(), ..WriteOptions::default() };
        let written = self.registry.patch(&Self::context(), &target, patch, &options).await?;
        Ok(written.object.into_document(&self.served))
    }

    /// Server-side apply of a cluster-scoped object or its subresource, with force.
    pub async fn apply(
        &self,
        name: &str,
        subresource: &str,
        manager: &str,
        configuration: Document,
    ) -> Result<Document, Failure> {
        let target = self.target("", name, subresource);
        let options = WriteOptions {
            field_manager: manager.to_owned(),
            force: true,
            ..WriteOptions::default()
        };
        let patch = Patch::Apply(configuration.into());
        let written = self.registry.patch(&Self::context(), &target, patch, &options).await?;
        Ok(written.object.into_document(&self.served))
    }

    /// DELETE; `Ok` if the object does not exist.
    pub async fn delete(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Failure> {
        match self
            .registry
            .delete(&Self::context(), &self.target(namespace, name, ""), options)
            .await
        {
            Err(failure) if failure.reason != Some(Reason::NotFound) => Err(failure),
            _ => Ok(()),
        }
    }
}
