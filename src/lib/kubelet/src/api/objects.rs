//! Config maps, secrets and tokens, read when a pod needs them.

use super::tokens::PodTokens;
use super::{ApiServices, claims};
use crate::objects::{ObjectFuture, PodObjectError, PodObjects};
use crate::pod::NodePod;
use ferrokube_client::traced;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service, ServiceAccount,
    ServiceAccountTokenProjection,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

/// Reads from the API server, with the ids of the current trace.
pub(crate) struct ApiObjects {
    client: Client,
    services: Arc<ApiServices>,
    tokens: PodTokens,
}

impl ApiObjects {
    pub(crate) fn new(client: Client, services: Arc<ApiServices>) -> Self {
        Self { client, services, tokens: PodTokens::default() }
    }

    fn traced(&self) -> Client {
        match ferrokube_trace::current() {
            Some(context) => traced(&self.client, &context),
            None => self.client.clone(),
        }
    }

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
        read(&Api::<K>::namespaced(self.traced(), namespace), kind, name).await
    }
}

async fn read<K>(
    objects: &Api<K>,
    kind: &'static str,
    name: &str,
) -> Result<Option<K>, PodObjectError>
where
    K: Clone + DeserializeOwned + Debug,
{
    objects.get_opt(name).await.map_err(|error| PodObjectError::Unread {
        kind,
        name: name.to_owned(),
        why: error.to_string(),
    })
}

impl PodObjects for ApiObjects {
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ConfigMap> {
        Box::pin(self.get("configmap", namespace, name))
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Secret> {
        Box::pin(self.get("secret", namespace, name))
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, ServiceAccount> {
        Box::pin(self.get("serviceaccount", namespace, name))
    }

    fn token<'a>(
        &'a self,
        pod: &'a NodePod,
        wanted: &'a ServiceAccountTokenProjection,
    ) -> ObjectFuture<'a, TokenRequestStatus> {
        Box::pin(self.tokens.get(self.traced(), pod, wanted))
    }

    fn claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> ObjectFuture<'a, PersistentVolumeClaim> {
        Box::pin(self.get("persistentvolumeclaim", namespace, name))
    }

    fn expanded<'a>(
        &'a self,
        claim: &'a PersistentVolumeClaim,
        capacity: &'a Quantity,
    ) -> ObjectFuture<'a, ()> {
        Box::pin(async move {
            claims::record_capacity(self.traced(), claim, capacity).await.map(|()| None)
        })
    }

    fn volume<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, PersistentVolume> {
        Box::pin(async move { read(&Api::all(self.traced()), "persistentvolume", name).await })
    }

    fn node<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, Node> {
        Box::pin(async move { read(&Api::all(self.traced()), "node", name).await })
    }

    fn runtime_class<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, RuntimeClass> {
        Box::pin(async move { read(&Api::all(self.traced()), "runtimeclass", name).await })
    }

    fn csi_driver<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, CSIDriver> {
        Box::pin(async move { read(&Api::all(self.traced()), "csidriver", name).await })
    }

    fn volume_attachment<'a>(&'a self, name: &'a str) -> ObjectFuture<'a, VolumeAttachment> {
        Box::pin(async move { read(&Api::all(self.traced()), "volumeattachment", name).await })
    }

    fn services(&self) -> ObjectFuture<'_, Vec<Arc<Service>>> {
        Box::pin(async { self.services.known().await.map(Some) })
    }
}
