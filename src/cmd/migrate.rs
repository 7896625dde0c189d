//! `ferrokube migrate`: the state from a data directory into etcd, or back.

use super::backup;
use super::etcd_flags::{MediaType, RENAMED, read_tls};
use super::flags::Profile;
use super::progress::ProgressBar;
use anyhow::{Context, bail};
use clap::Args;
use ferrokube_etcd::{EtcdConfig, check_url};
use ferrokube_migrate::{DirectoryTarget, MigrationSummary};
use ferrokube_server::DataDir;
use ferrokube_storage::journal::io::{Io, SystemDisk};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;

/// An idle API server renews its Lease every 10 s.
const OBSERVED: Duration = Duration::from_secs(12);

#[derive(Debug, Args)]
pub(crate) struct MigrateFlags {
    /// Source: a data directory, or etcd://HOST:PORT,HOST:PORT
    #[arg(long, value_name = "DIR|etcd://HOST:PORT,...", value_parser = end)]
    from: MigrationEnd,
    /// Target, of the other kind: empty, or with an unfinished migration from the source
    #[arg(long, value_name = "DIR|etcd://HOST:PORT,...", value_parser = end)]
    to: MigrationEnd,
    /// CAs of etcd's certificates; with them its members are reached by https
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    etcd_certfile: Option<PathBuf>,
    /// Key of --etcd-certfile
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Prefix of the keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    /// Form of the values in etcd; JSON for custom resources
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = MediaType::Protobuf)]
    storage_media_type: MediaType,
    /// Resources that are copied from etcd, with all custom ones
    #[arg(long, value_enum, default_value_t = Profile::Kubernetes)]
    profile: Profile,
}

#[derive(Clone, Debug)]
enum MigrationEnd {
    Directory(PathBuf),
    /// Addresses of the members.
    Etcd(Vec<String>),
}

fn end(text: &str) -> Result<MigrationEnd, String> {
    let Some(members) = text.strip_prefix("etcd://") else {
        return match text.contains("://") {
            true => Err("neither a directory nor etcd://HOST:PORT,...".to_owned()),
            false => Ok(MigrationEnd::Directory(text.into())),
        };
    };
    // A repeated scheme does not harm.
    let members = members.split(',').map(|one| {
        let member = one.trim_start_matches("etcd://");
        check_url(&format!("http://{member}"))
            .map(|()| member.to_owned())
            .map_err(|_| format!("{member:?} is not HOST:PORT"))
    });
    members.collect::<Result<Vec<_>, _>>().map(MigrationEnd::Etcd)
}

/// Migrates, and prints a summary.
pub(crate) fn run(flags: &MigrateFlags) -> anyhow::Result<ExitCode> {
    let media_type = flags.storage_media_type.into();
    let codec = ferrokube_server::value_codec(&flags.profile.bundles(), media_type)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let bar = ProgressBar::new("copying");
    let report = |done, total| bar.report(done, total, |keys| format!("{keys} keys"));
    let summary = match (&flags.from, &flags.to) {
        (MigrationEnd::Directory(from), MigrationEnd::Etcd(members)) => {
            let etcd = etcd(flags, members)?;
            let journal = backup::journal(&DataDir::locate(Some(from))?, "--from")?;
            let disk: Arc<dyn Io> = Arc::new(SystemDisk);
            let copy = ferrokube_migrate::to_etcd(&disk, &journal, &etcd, &*codec, &report);
            runtime.block_on(copy)?
        }
        (MigrationEnd::Etcd(members), MigrationEnd::Directory(to)) => {
            let etcd = etcd(flags, members)?;
            // Held until the end.
            let held = DataDir::open(Some(to))?;
            let target = DirectoryTarget {
                journal: held.join("store"),
                unfinished: held.unfinished_store(),
                observed: OBSERVED,
            };
            let copy = ferrokube_migrate::to_directory(&etcd, &codec, &target, &report);
            let summary = runtime.block_on(copy)?;
            held.note_state()?;
            summary
        }
        _ => bail!("one of --from and --to is a directory, the other one etcd://HOST:PORT"),
    };
    drop(bar);
    super::print(describe(&summary).as_bytes())
}

fn etcd(flags: &MigrateFlags, members: &[String]) -> anyhow::Result<EtcdConfig> {
    let scheme = if flags.etcd_cafile.is_some() { "https" } else { "http" };
    let (ca, certificate) = (flags.etcd_cafile.as_ref(), flags.etcd_certfile.as_ref());
    let tls = read_tls(ca, certificate, flags.etcd_keyfile.as_ref());
    Ok(EtcdConfig {
        servers: members.iter().map(|member| format!("{scheme}://{member}")).collect(),
        prefix: flags.etcd_prefix.trim_end_matches('/').to_owned(),
        renamed: RENAMED,
        tls: tls.context("cannot use the certificates for etcd")?,
        tls_source: None,
        compaction_interval: Duration::ZERO,
        remembered: None,
    })
}

fn describe(summary: &MigrationSummary) -> String {
    let MigrationSummary { keys, present, started_over, hash, revision, unserved } = summary;
    let mut text = format!("{keys} keys moved and compared, hash {hash}, revision {revision}");
    if *present > 0 {
        let _ = write!(text, "; {present} of them had been copied before");
    }
    if *started_over {
        text.push_str("; an unfinished copy was removed before");
    }
    text.push('\n');
    for (resource, count) in unserved {
        let _ = writeln!(text, "not served, left in etcd: {resource}, {count} keys");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_directories_or_etcds() {
        let members = |text: &str| match end(text) {
            Ok(MigrationEnd::Etcd(members)) => members.join(" "),
            Ok(MigrationEnd::Directory(path)) => format!("in {}", path.display()),
            Err(why) => why,
        };
        assert_eq!(members("etcd://a:1,b:2"), "a:1 b:2");
        assert_eq!(members("etcd://a:1,etcd://b:2"), "a:1 b:2");
        assert_eq!(members("/var/lib/x"), "in /var/lib/x");
        assert!(members("http://a:1").starts_with("neither"));
        assert_eq!(members("etcd://a:1,b:2x"), "\"b:2x\" is not HOST:PORT");
        assert_eq!(members("etcd://"), "\"\" is not HOST:PORT");
    }
}
