//! `ferrokube backup`, `ferrokube backup verify` and `ferrokube restore`.

use super::progress::{self, ProgressBar};
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use ferrokube_backup::{
    BackupLocation, BackupSource, CheckedBackup, KeyFile, PointInfo, Progress, RestoreTarget,
};
use ferrokube_pki::files;
use ferrokube_server::DataDir;
use ferrokube_storage::journal::io::{Io, SystemDisk};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Folder of keys and certificates in a data directory.
const KEYS: &str = "pki";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct BackupFlags {
    /// Target: a directory for several incremental backups, or a file for a single one; a new name
    /// that ends in .backup is a file
    #[arg(value_name = "DIR|FILE", required = true)]
    location: Option<PathBuf>,
    /// Data directory of the server [default: that of all-in-one]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Backups to keep in the directory, including the new one
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    keep: u16,
    /// Omit keys and certificates
    #[arg(long)]
    without_keys: bool,
    #[command(subcommand)]
    command: Option<BackupCommand>,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Read all of the last backup and check it
    Verify {
        /// The backup
        #[arg(value_name = "DIR|FILE")]
        location: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RestoreFlags {
    /// Backup to restore; of a directory the last one
    #[arg(value_name = "DIR|FILE")]
    location: PathBuf,
    /// Data directory to restore into, which must have no state [default: that of all-in-one]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not restore keys and certificates; the server creates new ones
    #[arg(long)]
    without_keys: bool,
}

fn disk() -> Arc<dyn Io> {
    Arc::new(SystemDisk)
}

fn shown(what: &'static str) -> Progress {
    let bar = ProgressBar::new(what);
    Progress::new(move |done, total| bar.report(done, total, progress::bytes))
}

/// Takes a backup, or checks one.
pub(crate) fn run(flags: &BackupFlags) -> anyhow::Result<ExitCode> {
    if let Some(BackupCommand::Verify { location }) = &flags.command {
        let info =
            ferrokube_backup::verify(&disk(), &BackupLocation::of(location), &shown("checking"))?;
        return super::print(format!("{}: whole\n", describe(&info)).as_bytes());
    }
    let location = flags.location.as_deref().unwrap_or(Path::new("."));
    let data = DataDir::locate(flags.data_dir.as_deref())?;
    let journal = journal(&data, "--data-dir")?;
    let keys = if flags.without_keys { Vec::new() } else { keys(&data)? };
    let source = BackupSource { journal, keys };
    let location = BackupLocation::of(location);
    let info =
        ferrokube_backup::take(&disk(), &source, &location, flags.keep.into(), &shown("copying"))?;
    let text = format!("{}, {} of it new\n", describe(&info), progress::bytes(info.written));
    super::print(text.as_bytes())
}

/// Restores a backup.
pub(crate) fn restore(flags: &RestoreFlags) -> anyhow::Result<ExitCode> {
    let directory = DataDir::locate(flags.data_dir.as_deref())?;
    let target = RestoreTarget { directory, has_keys: !flags.without_keys };
    let location = BackupLocation::of(&flags.location);
    let backup = CheckedBackup::open(&disk(), &location, &shown("checking"))?;
    backup.check_target(&target)?;
    // Held until the end. A server that starts after an interrupted restore refuses.
    let held = DataDir::open(Some(&target.directory))?;
    held.note_state()?;
    let info = backup.restore(&target, &shown("restoring"))?;
    super::print(format!("{}: restored\n", describe(&info)).as_bytes())
}

/// The journal of the data directory that a flag names, which must be there.
pub(super) fn journal(data: &Path, flag: &str) -> anyhow::Result<PathBuf> {
    let journal = data.join("store");
    let path = journal.display();
    let is_there = journal
        .try_exists()
        .with_context(|| format!("cannot inspect {path}, run as the server's user"))?;
    ensure!(
        is_there,
        "{path} does not exist: choose the data directory of a server with {flag}; with --etcd-servers the state is in etcd"
    );
    Ok(journal)
}

/// Everything in the folder of keys. Files are replaced at once, never changed.
fn keys(data: &Path) -> anyhow::Result<Vec<KeyFile>> {
    let folder = data.join(KEYS);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot list {}", folder.display()));
        }
    };
    let mut keys = Vec::new();
    for entry in entries {
        let name = entry.context("cannot list the keys")?.file_name();
        let name = name.to_string_lossy();
        let path = folder.join(&*name);
        if name.starts_with('.') || name.ends_with(".tmp") || !path.is_file() {
            continue;
        }
        if let Some(bytes) = files::read(&path)? {
            keys.push(KeyFile { name: format!("{KEYS}/{name}"), bytes });
        }
    }
    keys.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(keys)
}

fn describe(info: &PointInfo) -> String {
    let taken = jiff::Timestamp::try_from(info.taken)
        .map(|taken| taken.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        .unwrap_or_default();
    let PointInfo { revision, files, bytes, .. } = info;
    format!("backup of {taken}, revision {revision}, {files} files, {}", progress::bytes(*bytes))
}
