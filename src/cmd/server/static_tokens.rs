//! `--token-auth-file`, reloaded on change, so that tokens can be revoked without a restart.
//! (kube-apiserver reads its file once.)

use anyhow::{Context, anyhow};
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
pub(super) struct StaticTokens {
    path: PathBuf,
    pub(super) tokens: Arc<TokenFile>,
}

impl StaticTokens {
    /// Reads the file.
    pub(super) fn read(path: PathBuf) -> anyhow::Result<Self> {
        let bytes = read(&path)?;
        let tokens =
            TokenFile::parse(&bytes).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path, tokens: Arc::new(tokens) })
    }

    /// Watches the file until shutdown. An invalid file is logged and leaves the tokens unchanged.
    pub(super) async fn watch(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(RELOAD) => {}
            }
            match self.reload() {
                Ok(true) => tracing::info!(path = %self.path.display(), "token file reloaded"),
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "cannot reload the token file")
                }
            }
        }
    }

    fn reload(&self) -> anyhow::Result<bool> {
        self.tokens
            .replace(&read(&self.path)?)
            .with_context(|| format!("cannot use {}", self.path.display()))
    }
}

/// Refuses files that others may read, as they contain credentials.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    files::read_private(path)?.ok_or_else(|| anyhow!("{} does not exist", path.display()))
}
