//! Calls over a plug-in's socket.

use crate::messages::*;
use ferrokube_cri::{CriError, Runtime, RuntimeEndpointError, RuntimeSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Largest response, gRPC's default.
const MAX_RESPONSE: usize = 4 << 20;

/// A plug-in behind a unix socket. Cheap to clone.
#[derive(Clone)]
pub struct CsiClient {
    calls: Runtime,
}

impl CsiClient {
    /// A client of an absolute path, each of whose calls is limited in time. Dropping a call
    /// cancels it.
    ///
    /// # Errors
    /// [`RuntimeEndpointError`]. Only the first call shows whether anything listens.
    pub fn new(socket: &Path, deadline: Duration) -> Result<Self, RuntimeEndpointError> {
        let socket = RuntimeSocket::new(&socket.display().to_string())?.max_response(MAX_RESPONSE);
        Ok(Self { calls: Runtime::new(Arc::new(socket)).within(Some(deadline)) })
    }
}

/// Makes a function of [`CsiClient`] and a constant in `path` for each method.
macro_rules! methods {
    ($($name:ident: $path:literal, $request:ty => $response:ty;)*) => {
        impl CsiClient {
            $(
                #[doc = concat!("Calls `", $path, "`.\n\n# Errors\nThe plug-in's.")]
                pub async fn $name(&self, request: $request) -> Result<$response, CriError> {
                    self.calls.call($path, request).await
                }
            )*
        }

        /// Paths of the methods.
        #[allow(non_upper_case_globals)]
        pub mod path {
            $(
                #[doc = concat!("Of `CsiClient::", stringify!($name), "`.")]
                pub const $name: &str = $path;
            )*
        }
    };
}

methods! {
    get_info: "/pluginregistration.Registration/GetInfo", InfoRequest => PluginInfo;
    notify_registration_status: "/pluginregistration.Registration/NotifyRegistrationStatus",
        RegistrationStatus => RegistrationStatusResponse;
    node_get_info: "/csi.v1.Node/NodeGetInfo", NodeGetInfoRequest => NodeGetInfoResponse;
    node_get_capabilities: "/csi.v1.Node/NodeGetCapabilities",
        NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse;
    node_stage_volume: "/csi.v1.Node/NodeStageVolume",
        NodeStageVolumeRequest => NodeStageVolumeResponse;
    node_unstage_volume: "/csi.v1.Node/NodeUnstageVolume",
        NodeUnstageVolumeRequest => NodeUnstageVolumeResponse;
    node_publish_volume: "/csi.v1.Node/NodePublishVolume",
        NodePublishVolumeRequest => NodePublishVolumeResponse;
    node_unpublish_volume: "/csi.v1.Node/NodeUnpublishVolume",
        NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse;
    node_get_volume_stats: "/csi.v1.Node/NodeGetVolumeStats",
        NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse;
    node_expand_volume: "/csi.v1.Node/NodeExpandVolume",
        NodeExpandVolumeRequest => NodeExpandVolumeResponse;
}
