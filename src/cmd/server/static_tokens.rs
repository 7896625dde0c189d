//! `--token-auth-file`: read again when it changes, so that a token can be taken back without a restart. kube-apiserver reads its file once.

use anyhow::{Context, anyhow};
use ferrokube_auth::authenticate::TokenFile;
use ferrokube_pki::files;
use ferrokube_serve::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often the file is looked at.
const RELOAD: Duration = Duration::from_secs(5);

/// The file, and the tokens that were in it.
#[derive(Clone)]
pub(super) struct StaticTokens {
    path: PathBuf,
    pub(super) tokens: Arc<TokenFile>,
}

impl StaticTokens {
    /// Reads the file.
    pub(super) fn read(path: PathBuf) -> anyhow::Result<Self> {
        let bytes = read(&path)?;
        let tokens = TokenFile::parse(&bytes).with_context(|| format!("cannot use {}", path.display()))?;
        Ok(Self { path, tokens: Arc::new(tokens) })
    }

    /// Looks at the file until the shutdown; one that cannot be used is logged and changes nothing.
    pub(super) async fn watch(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(RELOAD) => {}
            }
            match self.reload() {
                Ok(true) => tracing::info!(path = %self.path.display(), "token file reloaded"),
                Ok(false) => {}
                Err(error) => tracing::error!(error = format!("{error:#}"), "cannot reload the token file"),
            }
        }
    }

    fn reload(&self) -> anyhow::Result<bool> {
        self.tokens.replace(&read(&self.path)?).with_context(|| format!("cannot use {}", self.path.display()))
    }
}

/// It holds credentials: nobody else may read it.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    files::read_private(path)?.ok_or_else(|| anyhow!("{} does not exist", path.display()))
}
