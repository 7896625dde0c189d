//! The kubeconfig file of a client with a certificate.

use crate::authority::Pair;
use crate::files::{self, Access, FileError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// A kubeconfig of one cluster, one user, one context.
#[derive(Clone, Copy, Debug)]
pub struct Kubeconfig<'a> {
    /// The server's URL; must need no quoting in YAML.
    pub server: &'a str,
    /// The cluster's and the context's name; as above.
    pub cluster: &'a str,
    /// The user's name; as above.
    pub user: &'a str,
    /// The CA that verifies the server.
    pub ca_pem: &'a str,
    /// The user's certificate and key.
    pub client: &'a Pair,
}

impl Kubeconfig<'_> {
    /// The file's text. Holds a private key.
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

    /// Replaces the file, readable by its owner only. Not made durable: servers write theirs at
    /// every start.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        files::write_volatile(path, self.to_yaml().as_bytes(), Access::Private)
    }
}
