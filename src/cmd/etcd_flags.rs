//! Flags of etcd as the storage, with kube-apiserver's names.

use super::flags;
use anyhow::{Context, anyhow};
use clap::Args;
use ferrokube_etcd::{EtcdConfig, EtcdTls, MigratedEtcd};
use ferrokube_pki::files;
use ferrokube_server::DataDir;
use std::path::PathBuf;
use std::time::Duration;

/// Bundled resources that kube-apiserver keeps below their group.
pub(crate) const PLACES: &[(&str, &str)] =
    &[("/customresourcedefinitions/", "/apiextensions.k8s.io/customresourcedefinitions/")];

/// File of the data directory with what was seen of etcd.
const REMEMBERED: &str = "etcd-revision";

/// etcd flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "etcd")]
pub(crate) struct EtcdFlags {
    /// Keep the state in this etcd (3.4 or newer) instead of the data directory; several servers
    /// may share it
    #[arg(long, value_name = "URL,...", value_delimiter = ',', conflicts_with = "storage")]
    etcd_servers: Vec<String>,
    /// CAs of etcd's certificates; required by https URLs
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd_servers", "etcd_keyfile"])]
    etcd_certfile: Option<PathBuf>,
    /// Key of --etcd-certfile
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Prefix of the keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    /// Time between compactions of etcd's history, by one of its servers; 0: none
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

    /// Takes the URLs for those of something that is not etcd.
    pub(crate) fn forget(&mut self) {
        self.etcd_servers.clear();
    }

    /// Checks the flags and reads the files.
    pub(crate) fn config(&self, remembered: PathBuf) -> anyhow::Result<EtcdConfig> {
        let (ca, certificate) = (self.etcd_cafile.as_ref(), self.etcd_certfile.as_ref());
        Ok(EtcdConfig {
            servers: self.etcd_servers.clone(),
            prefix: self.etcd_prefix.trim_end_matches('/').to_owned(),
            places: PLACES,
            tls: read_tls(ca, certificate, self.etcd_keyfile.as_ref())?,
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
