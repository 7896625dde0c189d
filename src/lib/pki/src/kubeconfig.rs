//! Kubeconfig files for clients with a certificate.

use crate::authority::Pair;
use crate::files::{self, FileError, FileMode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// A kubeconfig with one cluster, user and context.
#[derive(Clone, Copy, Debug)]
pub struct Kubeconfig<'a> {
    /// Server URL; must need no quoting in YAML.
    pub server: &'a str,
    /// Name of the cluster and context; must need no quoting.
    pub cluster: &'a str,
    /// Name of the user; must need no quoting.
    pub user: &'a str,
    /// The CA certificate for verifying the server.
    pub ca_pem: &'a str,
    /// Client certificate and key.
    pub client: &'a Pair,
}

impl Kubeconfig<'_> {
    /// The file's content, with the private key.
    pub fn to_yaml(&self) -> String {
        let Self { server, cluster, user, .. } = self;
        let [ca, certificate, key] = [self.ca_pem, &self.client.chain_pem, &self.client.key_pem]
            .map(|pem| STANDARD.encode(pem));
        format!(
            "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {user}
current-context: {cluster}
"
        )
    }

    /// Replaces the file, readable only by its owner. Not synced: servers rewrite theirs at every
    /// start.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write_volatile(path, self.to_yaml().as_bytes(), FileMode::Private)
    }
}
