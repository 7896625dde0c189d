//! Forwarding of requests to another HTTP server: filtered requests and responses, and upgraded
//! connections (websockets, SPDY).
//!
//! Used by the aggregator, by the API server for kubelets and pods, and by the kubelet for its
//! runtime. Must never know who the other server is or how it is found: callers connect. Start
//! reading at [`tunnel`].

mod address;
mod headers;
mod query;
mod response;
pub mod tls;
pub mod tunnel;

pub use address::{is_allowed, is_global};
pub use headers::{client_headers, remove_hop_by_hop, upgrade_protocol};
pub use hyper::upgrade::OnUpgrade;
pub use query::{encoded_query, query_pairs};
pub use response::{DelegationError, LocationBase, Relay, broken_by, relayed};
pub use tunnel::{
    NetworkStream, Tunnels, UpgradeCall, Upgrading, exchanged, opened, switch, take_upgrade,
    upgraded,
};

use http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Max bytes of a response head.
pub const HEAD_BYTES: usize = 64 << 10;
/// Max fields of a response head.
pub const HEAD_FIELDS: usize = 256;

/// Characters that Go escapes in paths.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// The URI of a decoded path and a raw query; `None` if it would be invalid.
pub fn target_uri(scheme: &str, authority: &str, path: &str, query: &str) -> Option<Uri> {
    let path = utf8_percent_encode(path, PATH).to_string();
    let target = if query.is_empty() { path } else { format!("{path}?{query}") };
    Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build().ok()
}
