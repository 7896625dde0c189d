//! Flags of etcd as the storage, with kube-apiserver's names.

use super::{WrongFlags, flags};
use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use ferrokube_etcd::{ConfigError, EtcdConfig, EtcdTls, EtcdTlsSource, MigratedEtcd, check_url};
use ferrokube_pki::files;
use ferrokube_server::DataDir;
use ferrokube_server::registry::StorageMediaType;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Bundled resources that kube-apiserver keeps below their group.
pub(crate) const RENAMED: &[(&str, &str)] =
    &[("/customresourcedefinitions/", "/apiextensions.k8s.io/customresourcedefinitions/")];

/// File in the data directory that records etcd's cluster id and revision.
const REMEMBERED: &str = "etcd-revision";

/// Form of the values in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MediaType {
    /// For all kinds
    #[value(name = "application/json")]
    Json,
    /// For the kinds that kube-apiserver stores so
    #[value(name = "application/vnd.kubernetes.protobuf")]
    Protobuf,
}

impl From<MediaType> for StorageMediaType {
    fn from(media_type: MediaType) -> Self {
        match media_type {
            MediaType::Json => Self::Json,
            MediaType::Protobuf => Self::Protobuf,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "etcd")]
pub(crate) struct EtcdFlags {
    /// Keep the state in this etcd (3.4 or newer) instead of the data directory; several servers
    /// may share it
    #[arg(long, value_name = "URL,...", value_delimiter = ',', value_parser = server_url, conflicts_with = "storage")]
    etcd_servers: Vec<String>,
    /// CAs of etcd's certificates; required by https URLs
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd; reloaded on change, as its key and --etcd-cafile
    #[arg(long, value_name = "FILE", requires_all = ["etcd_servers", "etcd_keyfile"])]
    etcd_certfile: Option<PathBuf>,
    /// Key of --etcd-certfile
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Prefix of the keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    /// Encoding of objects written to etcd; custom resources are always JSON. Both are read
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = MediaType::Protobuf)]
    storage_media_type: MediaType,
    /// Interval of compactions of etcd's history, by one of the servers that share it; 0: none
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = flags::duration)]
    etcd_compaction_interval: Duration,
}

impl EtcdFlags {
    /// Whether the state is in etcd.
    pub(crate) fn is_used(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// The URLs.
    pub(crate) fn servers(&self) -> &[String] {
        &self.etcd_servers
    }

    /// How values are written.
    pub(crate) fn media_type(&self) -> StorageMediaType {
        self.storage_media_type.into()
    }

    /// Takes the URLs for those of something that is not etcd.
    pub(crate) fn forget(&mut self) {
        self.etcd_servers.clear();
    }

    /// Checks the flags and the files that they name, without connecting.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.is_used() {
            let checked = self.config(PathBuf::new())?.check();
            checked.context(WrongFlags("cannot use etcd"))?;
        }
        Ok(())
    }

    /// Reads the files.
    pub(crate) fn config(&self, remembered: PathBuf) -> anyhow::Result<EtcdConfig> {
        let files = [&self.etcd_cafile, &self.etcd_certfile, &self.etcd_keyfile].map(Option::clone);
        let has_files = files.iter().any(Option::is_some);
        let read = move || {
            let [ca, certificate, key] = files.each_ref().map(Option::as_ref);
            read_tls(ca, certificate, key)
        };
        Ok(EtcdConfig {
            servers: self.etcd_servers.clone(),
            prefix: self.etcd_prefix.trim_end_matches('/').to_owned(),
            renamed: RENAMED,
            tls: read()?,
            tls_source: has_files.then(|| {
                Arc::new(move || read().map_err(|error| format!("{error:#}"))) as EtcdTlsSource
            }),
            compaction_interval: self.etcd_compaction_interval,
            remembered: Some(remembered),
        })
    }

    /// Connects later. To be called within a runtime.
    pub(crate) fn engine(&self, directory: &DataDir) -> anyhow::Result<MigratedEtcd> {
        let remembered = directory.join(REMEMBERED);
        MigratedEtcd::new(&self.config(remembered)?).context("cannot use etcd")
    }
}

fn server_url(text: &str) -> Result<String, ConfigError> {
    check_url(text).map(|()| text.to_owned())
}

/// Reads the files.
pub(crate) fn read_tls(
    ca: Option<&PathBuf>,
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> anyhow::Result<EtcdTls> {
    let missing = |path: &PathBuf| anyhow!("{} does not exist", path.display());
    let read = |path: &PathBuf| files::read(path)?.ok_or_else(|| missing(path));
    let read_key = |path: &PathBuf| files::read_private(path)?.ok_or_else(|| missing(path));
    let identity = match (certificate, key) {
        (Some(certificate), Some(path)) => Some((read(certificate)?, read_key(path)?)),
        _ => None,
    };
    Ok(EtcdTls { ca: ca.map(read).transpose()?, identity })
}
