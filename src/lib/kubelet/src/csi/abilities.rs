//! Capabilities of a driver on a node.

use ferrokube_csi::{CriError, CsiClient, NodeGetCapabilitiesRequest, NodeServiceRpcType};

/// Capabilities that decide how a driver is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverAbilities {
    /// Volumes are staged before they are published.
    pub(super) stages: bool,
    /// Knows access modes that distinguish one writer from several on a node.
    pub(super) counts_writers: bool,
    /// Gives files to `fsGroup` itself.
    pub(super) mounts_for_group: bool,
    /// Knows how much of a volume is used.
    pub(super) measures: bool,
    /// Knows whether a volume is damaged.
    pub(super) examines: bool,
    /// Expands mounted volumes.
    pub(super) expands: bool,
}

impl DriverAbilities {
    /// # Errors
    /// The driver's.
    pub(super) async fn of(client: &CsiClient) -> Result<Self, CriError> {
        let response = client.node_get_capabilities(NodeGetCapabilitiesRequest {}).await?;
        let known: Vec<NodeServiceRpcType> =
            response.capabilities.iter().filter_map(|it| Some(it.rpc.as_ref()?.r#type())).collect();
        let has = |kind| known.contains(&kind);
        Ok(Self {
            stages: has(NodeServiceRpcType::StageUnstageVolume),
            counts_writers: has(NodeServiceRpcType::SingleNodeMultiWriter),
            mounts_for_group: has(NodeServiceRpcType::VolumeMountGroup),
            measures: has(NodeServiceRpcType::GetVolumeStats),
            examines: has(NodeServiceRpcType::VolumeCondition),
            expands: has(NodeServiceRpcType::ExpandVolume),
        })
    }
}
