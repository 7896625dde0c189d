//! A file of static tokens, reloaded on change, so that tokens can be revoked without a restart.
//! (kube-apiserver reads its file once.)

use crate::error::{Because, InputError};
use ferrokube_auth::authenticate::TokenFile;
use ferrokube_pki::files;
use ferrokube_serve::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Interval of file checks.
const RELOAD: Duration = Duration::from_secs(5);

/// The file and its current tokens.
#[derive(Clone)]
pub struct StaticTokens {
    path: PathBuf,
    pub(crate) tokens: Arc<TokenFile>,
}

impl StaticTokens {
    /// Reads the file, which only its owner may read: lines of token,user,uid,"group,...".
    ///
    /// # Errors
    /// [`InputError`].
    pub fn read(path: PathBuf) -> Result<Self, InputError> {
        let bytes = read(&path)?;
        let tokens =
            TokenFile::parse(&bytes).because(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path, tokens: Arc::new(tokens) })
    }

    /// Watches the file until shutdown. An invalid file is logged and leaves the tokens unchanged.
    pub(crate) async fn watch(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(RELOAD) => {}
            }
            match self.reload() {
                Ok(true) => tracing::info!(path = %self.path.display(), "token file reloaded"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "cannot reload the token file"
                    )
                }
            }
        }
    }

    fn reload(&self) -> Result<bool, InputError> {
        self.tokens
            .replace(&read(&self.path)?)
            .because(|| format!("cannot use {}", self.path.display()))
    }
}

/// Refuses files that others may read, as they contain credentials.
fn read(path: &Path) -> Result<Vec<u8>, InputError> {
    files::read_private(path)?.ok_or_else(|| InputError::missing(path))
}
