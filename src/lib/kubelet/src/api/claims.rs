//! Status of claims whose volumes this node has expanded.

use crate::objects::PodObjectError;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Conditions of an expansion, over with it.
const EXPANDING: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// Writes the capacity that a claim's volume has now; fails if the claim has changed since it was
/// read.
pub(super) async fn record_capacity(
    client: Client,
    claim: &PersistentVolumeClaim,
    capacity: &Quantity,
) -> Result<(), PodObjectError> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let name = claim.metadata.name.clone().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, namespace);
    let patch = Patch::Merge(expanded(claim, capacity));
    match claims.patch_status(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let why = format!("cannot write the status of persistentvolumeclaim {name:?}: {error}");
            Err(PodObjectError::Invalid(why))
        }
    }
}

fn expanded(claim: &PersistentVolumeClaim, capacity: &Quantity) -> Value {
    let status = claim.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.unwrap_or_default();
    conditions.retain(|condition| !EXPANDING.contains(&condition.type_.as_str()));
    json!({
        "metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {
            "capacity": {"storage": capacity},
            "allocatedResourceStatuses": {"storage": null},
            "conditions": conditions,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_is_new_and_the_expansion_is_over() {
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let claim = json!({
            "metadata": {"name": "data", "namespace": "default", "resourceVersion": "7"},
            "status": {
                "capacity": {"storage": "1Gi"},
                "allocatedResourceStatuses": {"storage": "NodeResizePending"},
                "conditions": [condition("FileSystemResizePending"), condition("Other")],
            },
        });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let expected = json!({
            "metadata": {"resourceVersion": "7"},
            "status": {
                "capacity": {"storage": "2Gi"},
                "allocatedResourceStatuses": {"storage": null},
                "conditions": [condition("Other")],
            },
        });
        assert_eq!(expanded(&claim, &Quantity("2Gi".to_owned())), expected);
    }
}
