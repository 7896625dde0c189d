//! Config maps and secrets, read when a pod needs them.

use crate::objects::{ObjectFuture, PodObjectError, PodObjects};
use ferrokube_client::traced;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Reads from the API server, with the ids of the current trace.
pub(crate) struct ApiObjects(pub(crate) Client);

impl ApiObjects {
    async fn get<K>(
        &self,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<K>, PodObjectError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let client = match ferrokube_trace::current() {
            Some(context) => traced(&self.0, &context),
            None => self.0.clone(),
        };
        Api::<K>::namespaced(client, namespace).get_opt(name).await.map_err(|error| {
            PodObjectError::Unread { kind, name: name.to_owned(), why: error.to_string() }
        })
    }
}

impl PodObjects for ApiObjects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ConfigMap> {
        Box::pin(self.get("configmap", namespace, name))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Secret> {
        Box::pin(self.get("secret", namespace, name))
    }
}
