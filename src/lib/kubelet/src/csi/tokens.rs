//! Tokens of a pod's service account for drivers that act on its behalf (KEP-2047).

use crate::objects::PodObjects;
use crate::pod::NodePod;
use k8s_openapi::api::core::v1::ServiceAccountTokenProjection;
use k8s_openapi::api::storage::v1::TokenRequest;
use std::collections::BTreeMap;

/// Name of the attribute, or of the secret.
pub(super) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The tokens with their expirations, as JSON by audience; `None` if the driver wants none. The API
/// server's audience is the empty one.
///
/// # Errors
/// kubelet's message for a token that is not granted.
pub(super) async fn tokens(
    objects: &dyn PodObjects,
    pod: &NodePod,
    requests: &[TokenRequest],
) -> Result<Option<String>, String> {
    if requests.is_empty() {
        return Ok(None);
    }
    let failed = |why: String| {
        // The spelling is kubelet's.
        format!(
            "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: \
             {why}"
        )
    };
    let mut by_audience = BTreeMap::new();
    for request in requests {
        let wanted = ServiceAccountTokenProjection {
            audience: Some(request.audience.clone()),
            expiration_seconds: request.expiration_seconds,
            path: String::new(),
        };
        let token = objects.token(pod, &wanted).await.map_err(|error| failed(error.to_string()))?;
        let token = token.ok_or_else(|| failed("the server returned no token".to_owned()))?;
        by_audience.insert(request.audience.clone(), token);
    }
    // Maps by text and plain fields always become JSON.
    serde_json::to_string(&by_audience).map(Some).map_err(|error| failed(error.to_string()))
}
