//! Reloads certificate files when they change.

use crate::shutdown::Shutdown;
use crate::tls::{Tls, TlsError};
use ferrokube_pki::files::{self, FileError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The files of a listener's TLS configuration; `None` where it is not from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Serving chain and key.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// CAs that verify clients.
    pub client_ca: Option<PathBuf>,
    /// Further CAs that verify clients, not from a file.
    pub client_ca_pem: Vec<u8>,
    /// CAs that verify front proxies.
    pub proxy_ca: Option<PathBuf>,
}

/// Chain and key.
pub type PemPair = (Vec<u8>, Vec<u8>);

/// Why files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Reading a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not exist.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// The content is invalid.
    #[error("cannot use {files}")]
    Tls {
        /// Names of the files.
        files: String,
        /// Says which part is invalid.
        source: TlsError,
    },
}

/// Contents of the files when they were last applied.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoadedFiles {
    serving: Option<PemPair>,
    client_ca: Option<Vec<u8>>,
    proxy_ca: Option<Vec<u8>>,
}

impl TlsFiles {
    /// Reads the serving pair; `None` if it is not from files.
    ///
    /// # Errors
    /// [`ReloadError::File`], [`ReloadError::Missing`].
    pub fn read_serving(&self) -> Result<Option<PemPair>, ReloadError> {
        let Some((chain, key)) = &self.serving else { return Ok(None) };
        let key_bytes =
            files::read_private(key)?.ok_or_else(|| ReloadError::Missing(key.clone()))?;
        Ok(Some((read(chain)?, key_bytes)))
    }

    /// Applies the changes since `before`.
    ///
    /// # Errors
    /// [`ReloadError`]; values that could not be applied are unchanged.
    pub fn apply(&self, tls: &Tls, before: &LoadedFiles) -> Result<LoadedFiles, ReloadError> {
        let loaded = LoadedFiles {
            serving: self.read_serving()?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
            proxy_ca: self.proxy_ca.as_deref().map(read).transpose()?,
        };
        let refused = |path: &Path| {
            let files = path.display().to_string();
            move |source| ReloadError::Tls { files, source }
        };
        if let (Some((chain, key)), Some((path, _))) = (&loaded.serving, &self.serving)
            && loaded.serving != before.serving
        {
            tls.replace_serving(chain, key).map_err(refused(path))?;
        }
        self.apply_cas(tls, before, &loaded)?;
        Ok(loaded)
    }

    /// In one step, as they must not share keys.
    fn apply_cas(
        &self,
        tls: &Tls,
        before: &LoadedFiles,
        loaded: &LoadedFiles,
    ) -> Result<(), ReloadError> {
        let is_first = *before == LoadedFiles::default();
        let mut clients = loaded.client_ca.clone().unwrap_or_default();
        clients.push(b'\n');
        clients.extend_from_slice(&self.client_ca_pem);
        let is_empty = clients.trim_ascii().is_empty();
        let client = (!is_empty && (is_first || loaded.client_ca != before.client_ca))
            .then_some(clients.as_slice());
        let proxy = loaded.proxy_ca.as_deref().filter(|_| loaded.proxy_ca != before.proxy_ca);
        if client.is_none() && proxy.is_none() {
            return Ok(());
        }
        tls.replace_cas(client, proxy).map_err(|source| {
            let changed = [(&self.client_ca, client.is_some()), (&self.proxy_ca, proxy.is_some())];
            let files: Vec<String> = changed
                .into_iter()
                .filter(|(_, is_new)| *is_new)
                .filter_map(|(path, _)| Some(path.as_ref()?.display().to_string()))
                .collect();
            ReloadError::Tls {
                files: if files.is_empty() { "the CA".to_owned() } else { files.join(", ") },
                source,
            }
        })
    }

    /// Checks the files every `period` until shutdown. Failures are logged and change nothing.
    pub async fn watch(
        self,
        tls: Tls,
        mut loaded: LoadedFiles,
        period: Duration,
        shutdown: Shutdown,
    ) {
        loop {
            tokio::select! {
                () = shutdown.begun() => return,
                () = tokio::time::sleep(period) => {}
            }
            match self.apply(&tls, &loaded) {
                Ok(now) => {
                    if now != loaded {
                        tracing::info!("certificate files reloaded");
                    }
                    loaded = now;
                }
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot reload certificate files"
                ),
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ReloadError> {
    files::read(path)?.ok_or_else(|| ReloadError::Missing(path.to_owned()))
}
