//! Key files of service account tokens, reloaded on change: rotation without a restart.
//!
//! To rotate: add the new public key next to the old one (another block of a
//! `--service-account-key-file`), then replace the signing key's file, and remove the old public
//! key once its last token has expired. A token is valid while its key is in one of the files.

use super::ServerSetup;
use crate::cmd::flags::KubeApiserverFlags;
use anyhow::{Context, anyhow};
use ferrokube_auth::token::{ServiceAccountTokens, TokenKeys};
use ferrokube_pki::files;
use ferrokube_serve::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(5);

const CANNOT_USE: &str = "cannot use the service account keys";

fn missing(path: &Path) -> anyhow::Error {
    anyhow!("{} does not exist", path.display())
}

/// Key file paths.
#[derive(Clone, Debug)]
pub(crate) struct KeyFiles {
    signing: PathBuf,
    verifying: Vec<PathBuf>,
}

/// File contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPem {
    signing: Vec<u8>,
    verifying: Vec<Vec<u8>>,
}

impl KeyFiles {
    /// From the flags. Without a signing key file, the server's own key signs.
    pub(crate) fn new(setup: &ServerSetup<'_>) -> Self {
        let kube_apiserver = setup.kube_apiserver;
        let own = || setup.directory.join("pki").join("sa.key");
        Self {
            signing: kube_apiserver.service_account_signing_key_file.clone().unwrap_or_else(own),
            verifying: kube_apiserver.service_account_key_file.clone(),
        }
    }

    /// Checks the files named by flags; the server's own key is checked elsewhere.
    pub(super) fn check(kube_apiserver: &KubeApiserverFlags) -> anyhow::Result<()> {
        let files = Self {
            signing: kube_apiserver.service_account_signing_key_file.clone().unwrap_or_default(),
            verifying: kube_apiserver.service_account_key_file.clone(),
        };
        if kube_apiserver.service_account_signing_key_file.is_some() {
            return files.keys().map(drop);
        }
        let pem = files.read_verifying()?;
        let verifying: Vec<&[u8]> = pem.iter().map(Vec::as_slice).collect();
        TokenKeys::check_verifying(&verifying).context(CANNOT_USE)
    }

    /// A signing key only.
    pub(crate) fn signing(path: PathBuf) -> Self {
        Self { signing: path, verifying: Vec::new() }
    }

    /// The current keys.
    pub(crate) fn keys(&self) -> anyhow::Result<TokenKeys> {
        self.read()?.keys()
    }

    pub(super) fn read(&self) -> anyhow::Result<KeyPem> {
        let signing = files::read_private(&self.signing)?.ok_or_else(|| missing(&self.signing))?;
        Ok(KeyPem { signing, verifying: self.read_verifying()? })
    }

    fn read_verifying(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        self.verifying.iter().map(|path| files::read(path)?.ok_or_else(|| missing(path))).collect()
    }

    /// Watches the files until shutdown. Invalid files are logged and leave the keys unchanged.
    pub(super) async fn watch(
        self,
        tokens: ServiceAccountTokens,
        mut used: KeyPem,
        shutdown: Shutdown,
    ) {
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(RELOAD) => {}
            }
            match self.reload(&tokens, &used) {
                Ok(Some(now)) => {
                    tracing::info!(keys = ?tokens, "service account keys reloaded");
                    used = now;
                }
                Ok(None) => {}
                Err(error) => tracing::error!(
                    error = format!("{error:#}"),
                    "cannot reload the service account keys"
                ),
            }
        }
    }

    fn reload(
        &self,
        tokens: &ServiceAccountTokens,
        used: &KeyPem,
    ) -> anyhow::Result<Option<KeyPem>> {
        let now = self.read()?;
        if now == *used {
            return Ok(None);
        }
        tokens.replace_keys(now.keys()?);
        Ok(Some(now))
    }
}

impl KeyPem {
    /// Parses the keys.
    pub(super) fn keys(&self) -> anyhow::Result<TokenKeys> {
        let verifying: Vec<&[u8]> = self.verifying.iter().map(Vec::as_slice).collect();
        TokenKeys::from_pem(&self.signing, &verifying).context(CANNOT_USE)
    }
}
