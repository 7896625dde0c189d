//! The Container Storage Interface, v1: typed calls to the node service of a driver, and to the
//! socket by which a plug-in registers with a kubelet.
//!
//! Must never know pods or the API. Start at [`CsiClient`].
//!
//! - `messages.rs` has the published messages of the calls below, written by hand with the field
//!   numbers of `csi.proto` and of kubelet's `pluginregistration` (both Apache-2.0), so that
//!   building needs no protoc. Fields that are not used are left out.
//! - Sockets, deadlines, errors and the three ids (KEP-1668) are those of `cri`, whose conventions
//!   of gRPC are the same.

mod client;
mod messages;

pub use client::{CsiClient, path};
pub use ferrokube_cri::{CallCode, CriError, RuntimeEndpointError};
pub use messages::*;
