//! Key files of service account tokens, reloaded on change: rotation without a restart.
//!
//! To rotate: add the new public key next to the old one (another block of a
//! key file), then replace the signing key's file, and remove the old public
//! key once its last token has expired. A token is valid while its key is in one of the files.

use crate::config::ServiceAccountConfig;
use crate::error::{Because, InputError};
use ferrokube_auth::token::{ServiceAccountTokens, TokenKeys};
use ferrokube_pki::files;
use ferrokube_serve::Shutdown;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(5);

const CANNOT_USE: &str = "cannot use the service account keys";

/// Key file paths.
#[derive(Clone, Debug)]
pub struct KeyFiles {
    signing: PathBuf,
    verifying: Vec<PathBuf>,
}

/// File contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPem {
    signing: Vec<u8>,
    verifying: Vec<Vec<u8>>,
}

impl KeyFiles {
    /// Those of the configuration. Without a signing key file, the server's own key signs.
    pub fn new(accounts: &ServiceAccountConfig, own: &Path) -> Self {
        let signing = accounts.signing_key_file.clone();
        Self {
            signing: signing.unwrap_or_else(|| own.join("sa.key")),
            verifying: accounts.key_files.clone(),
        }
    }

    /// Checks the configured files; the server's own key is checked elsewhere.
    pub(crate) fn check(accounts: &ServiceAccountConfig) -> Result<(), InputError> {
        let files = Self {
            signing: accounts.signing_key_file.clone().unwrap_or_default(),
            verifying: accounts.key_files.clone(),
        };
        if accounts.signing_key_file.is_some() {
            return files.keys().map(drop);
        }
        let pem = files.read_verifying()?;
        let verifying: Vec<&[u8]> = pem.iter().map(Vec::as_slice).collect();
        TokenKeys::check_verifying(&verifying).because(|| CANNOT_USE.to_owned())
    }

    /// A signing key only.
    pub fn signing(path: PathBuf) -> Self {
        Self { signing: path, verifying: Vec::new() }
    }

    /// The current keys.
    ///
    /// # Errors
    /// [`InputError`]: a file is missing, readable by others or malformed.
    pub fn keys(&self) -> Result<TokenKeys, InputError> {
        self.read()?.keys()
    }

    pub(crate) fn read(&self) -> Result<KeyPem, InputError> {
        let signing = files::read_private(&self.signing)?
            .ok_or_else(|| InputError::missing(&self.signing))?;
        Ok(KeyPem { signing, verifying: self.read_verifying()? })
    }

    fn read_verifying(&self) -> Result<Vec<Vec<u8>>, InputError> {
        self.verifying
            .iter()
            .map(|path| files::read(path)?.ok_or_else(|| InputError::missing(path)))
            .collect()
    }

    /// Watches the files until shutdown. Invalid files are logged and leave the keys unchanged.
    pub(crate) async fn watch(
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
                    error = &error as &dyn std::error::Error,
                    "cannot reload the service account keys"
                ),
            }
        }
    }

    fn reload(
        &self,
        tokens: &ServiceAccountTokens,
        used: &KeyPem,
    ) -> Result<Option<KeyPem>, InputError> {
        let now = self.read()?;
        if now == *used {
            return Ok(None);
        }
        tokens.replace_keys(now.keys()?);
        Ok(Some(now))
    }
}

impl KeyPem {
    /// A secret for one purpose, the same at all servers with this signing key.
    pub(crate) fn derived_key(&self, purpose: &str) -> [u8; 32] {
        ferrokube_pki::derived_key(&self.signing, purpose)
    }

    /// Parses the keys.
    pub(crate) fn keys(&self) -> Result<TokenKeys, InputError> {
        let verifying: Vec<&[u8]> = self.verifying.iter().map(Vec::as_slice).collect();
        TokenKeys::from_pem(&self.signing, &verifying).because(|| CANNOT_USE.to_owned())
    }
}
