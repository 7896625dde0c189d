//! Objects that pods refer to: config maps, secrets and claims of their namespace, and tokens of
//! their service account.

use crate::pod::NodePod;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service, ServiceAccount,
    ServiceAccountTokenProjection,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::pin::Pin;
use std::sync::Arc;

/// The object, `None` if it does not exist, or why it cannot be read.
pub(crate) type ObjectFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<Option<T>, PodObjectError>> + Send + 'a>>;

fn no_source<T: Send + 'static>(kind: &'static str) -> ObjectFuture<'static, T> {
    Box::pin(std::future::ready(Err(PodObjectError::NoSource(kind))))
}

/// Source of objects: the API server, or a test. By default there are none.
pub(crate) trait PodObjects: Send + Sync {
    fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ConfigMap> {
        no_source("configmaps")
    }
    fn secret<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, Secret> {
        no_source("secrets")
    }
    fn service_account<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ServiceAccount> {
        no_source("service accounts")
    }
    /// A token of the pod's service account, bound to the pod, and not about to expire.
    fn token<'a>(
        &'a self,
        _: &'a NodePod,
        _: &'a ServiceAccountTokenProjection,
    ) -> ObjectFuture<'a, TokenRequestStatus> {
        no_source("service account tokens")
    }
    /// A PersistentVolumeClaim in the pod's namespace.
    fn claim<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, PersistentVolumeClaim> {
        no_source("persistentvolumeclaims")
    }
    /// Records the capacity of a claim whose volume was expanded. Returns nothing.
    fn expanded<'a>(
        &'a self,
        _: &'a PersistentVolumeClaim,
        _: &'a Quantity,
    ) -> ObjectFuture<'a, ()> {
        no_source("persistentvolumeclaims")
    }
    fn volume<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, PersistentVolume> {
        no_source("persistentvolumes")
    }
    fn node<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, Node> {
        no_source("nodes")
    }
    fn runtime_class<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, RuntimeClass> {
        no_source("runtimeclasses")
    }
    fn csi_driver<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, CSIDriver> {
        no_source("csidrivers")
    }
    fn volume_attachment<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, VolumeAttachment> {
        no_source("volumeattachments")
    }
    /// Services for variables of pods; none without an API server.
    fn services(&self) -> ObjectFuture<'_, Vec<Arc<Service>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// A referenced object cannot be used. Retried after a pause; messages are kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodObjectError {
    #[error("{kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error("references non-existent {kind} key: {key}")]
    MissingItem { kind: &'static str, key: String },
    #[error("a static pod cannot refer to {0}")]
    NoSource(&'static str),
    #[error("cannot read {kind} {name:?}: {why}")]
    Unread { kind: &'static str, name: String, why: String },
    #[error("{0}")]
    Invalid(String),
}

/// For a kubelet without an API server.
pub(crate) struct NoObjects;

impl PodObjects for NoObjects {}
