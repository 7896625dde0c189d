//! Settings of name resolution.

use std::path::PathBuf;

/// The machine's file, which runtimes give to a pod that has no other.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// DNS settings of pods that use the cluster's DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterDns {
    /// Name servers of the cluster; empty: pods use those of the node.
    pub(crate) servers: Vec<String>,
    /// Domain of Services, such as `cluster.local`.
    pub(crate) domain: String,
    /// The node's own.
    pub(crate) resolv_conf: PathBuf,
}

impl Default for ClusterDns {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            domain: "cluster.local".to_owned(),
            resolv_conf: RESOLV_CONF.into(),
        }
    }
}
