//! The files of a data directory: modes, owners, format.

use crate::Finding;
use ferrokube_pki::files;
use ferrokube_trace::with_causes;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const FILES: &str = "files";
const FORMAT: &str = "format";

/// Max entries checked.
const MAX_ENTRIES: usize = 10_000;
/// Entries named in a finding.
const SHOWN: usize = 3;

/// Whether there is a directory to check, and faults of the directory itself.
pub fn access(directory: &Path) -> (bool, Finding) {
    let shown = directory.display();
    let metadata = match fs::metadata(directory) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!("{shown} does not exist; a server makes it when it starts");
            return (false, Finding::skipped("directory", what));
        }
        Err(error) => {
            let advice = "run this as root, or as the user of the server";
            return (false, Finding::failed("directory", format!("{shown}: {error}"), advice));
        }
    };
    if !metadata.is_dir() {
        let what = format!("{shown} is not a directory");
        return (false, Finding::failed("directory", what, "choose another with --data-dir"));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let what = format!("{shown} is open to others (mode {mode:04o})");
        return (true, Finding::failed("directory", what, format!("run `chmod go= {shown}`")));
    }
    let own = rustix::process::geteuid().as_raw();
    if own != 0 && metadata.uid() != own {
        let what = format!("{shown} belongs to user {}", metadata.uid());
        return (false, Finding::failed("directory", what, "run this as root, or as that user"));
    }
    let what = format!("{shown}, of user {}, mode {mode:04o}", metadata.uid());
    (true, Finding::ok("directory", what))
}

/// Faults of a directory's entries, by kind.
#[derive(Default)]
struct Faults {
    count: usize,
    open: Vec<PathBuf>,
    foreign: Vec<PathBuf>,
    special: Vec<PathBuf>,
    unreadable: Vec<String>,
}

/// Checks modes, owners and types of all files: keys are the owner's only, and all belong to the
/// owner of the directory.
pub fn entries(directory: &Path) -> Vec<Finding> {
    let Ok(top) = fs::metadata(directory) else { return Vec::new() };
    let mut faults = Faults::default();
    for folder in ["", "pki", "store"] {
        look_at(&directory.join(folder), &top, &mut faults);
    }
    let mut findings = Vec::new();
    let mut add = |paths: &[PathBuf], what: &str, advice: &str| {
        if !paths.is_empty() {
            findings.push(Finding::failed(FILES, format!("{}: {what}", some(paths)), advice));
        }
    };
    let shown = directory.display();
    add(
        &faults.open,
        "open to others",
        &format!(
            "run `chmod -R go= {shown}`; if other users can log in here, replace the keys: they may have been read"
        ),
    );
    let owner = top.uid();
    let advice =
        format!("run `chown -R --reference={shown} {shown}`: commands were run as another user");
    add(&faults.foreign, &format!("not of user {owner}"), &advice);
    add(
        &faults.special,
        "neither file nor directory",
        "remove it: servers create only files and directories",
    );
    for error in &faults.unreadable {
        findings.push(Finding::failed(
            FILES,
            error,
            "run this as root, or as the user of the server",
        ));
    }
    if faults.count >= MAX_ENTRIES {
        let what = format!("{shown} has more than {MAX_ENTRIES} entries; the rest was not checked");
        findings.push(Finding::warning(FILES, what, "remove files that no server created"));
    }
    if findings.is_empty() {
        let what = format!("{} files: types, owners and modes are correct", faults.count);
        findings.push(Finding::ok(FILES, what));
    }
    findings
}

fn look_at(folder: &Path, top: &Metadata, faults: &mut Faults) {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return;
        }
        Err(error) => return faults.unreadable.push(format!("{}: {error}", folder.display())),
    };
    for entry in entries {
        if faults.count >= MAX_ENTRIES {
            return;
        }
        faults.count += 1;
        let Ok(entry) = entry else { continue };
        let path = entry.path();
        // The link itself, not its target.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let kind = metadata.file_type();
        if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
            faults.special.push(path);
            continue;
        }
        if metadata.uid() != top.uid() {
            faults.foreign.push(path.clone());
        }
        if !kind.is_symlink() && metadata.mode() & 0o077 != 0 && is_secret(&path) {
            faults.open.push(path);
        }
    }
}

/// Whether other users must not read it. Public files such as certificates have their own mode.
fn is_secret(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = path.extension().unwrap_or_default();
    ending == "key"
        || ending == "kubeconfig"
        || name.starts_with("audit.log")
        || name.ends_with(".log")
}

fn some(paths: &[PathBuf]) -> String {
    let shown: Vec<String> =
        paths.iter().take(SHOWN).map(|path| path.display().to_string()).collect();
    match paths.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Checks the directory's format number; `known` is this version's.
pub fn format(directory: &Path, known: u32) -> Finding {
    let path = directory.join("version");
    let text = match files::read_regular(&path) {
        Ok(Some(text)) => text,
        Ok(None) => return Finding::skipped(FORMAT, "the directory has none yet"),
        Err(error) => return Finding::failed(FORMAT, with_causes(&error), "restore the file"),
    };
    let found = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u32>().ok());
    match found.filter(|found| *found > 0) {
        None => {
            let what = format!("{} contains no format number", path.display());
            Finding::failed(FORMAT, what, "restore the file from a backup")
        }
        Some(found) if found > known => {
            let what = format!("format {found}; this version knows {known}");
            Finding::failed(
                FORMAT,
                what,
                "use the newer version that wrote it, or restore a backup",
            )
        }
        Some(found) if found < known => {
            let what = format!("format {found}; the next start upgrades it to {known}");
            Finding::warning(FORMAT, what, "back up first: an older version does not open it then")
        }
        Some(found) => Finding::ok(FORMAT, format!("{found}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckOutcome;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::PermissionsExt;

    fn directory() -> tempfile::TempDir {
        let made = tempfile::tempdir().unwrap();
        fs::set_permissions(made.path(), fs::Permissions::from_mode(0o700)).unwrap();
        for folder in ["pki", "store"] {
            fs::create_dir(made.path().join(folder)).unwrap();
        }
        made
    }

    fn texts(findings: &[Finding]) -> String {
        findings
            .iter()
            .map(|finding| format!("{} {} {}\n", finding.outcome, finding.what, finding.advice))
            .collect()
    }

    #[test]
    fn keys_that_others_can_read_are_found() {
        let made = directory();
        let key = made.path().join("pki/ca.key");
        fs::write(&key, "").unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(made.path().join("pki/ca.crt"), "").unwrap();
        let fine = entries(made.path());
        assert_eq!(
            fine.iter().map(|finding| finding.outcome).collect::<Vec<_>>(),
            [CheckOutcome::Ok]
        );
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        let found = texts(&entries(made.path()));
        assert!(
            found.contains("ca.key: open to others") && found.contains("chmod -R go="),
            "{found}"
        );
        assert_eq!(access(made.path()).1.outcome, CheckOutcome::Ok);
        fs::set_permissions(made.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(access(made.path()).1.outcome, CheckOutcome::Failed);
        assert_eq!(access(&key).1.what, format!("{} is not a directory", key.display()));
        assert_eq!(access(&made.path().join("none")).1.outcome, CheckOutcome::Skipped);
    }

    #[test]
    fn whatever_is_in_a_directory_is_reported() {
        let made = directory();
        let path = |name: &str| made.path().join(name);
        mknodat(CWD, path("version"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        mknodat(CWD, path("pki/sa.key"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink("store", path("store/store")).unwrap();
        fs::write(path("a\nb\x1b[2J.key"), "").unwrap();
        let found = texts(&entries(made.path()));
        assert!(found.contains("neither file nor directory"), "{found}");
        assert!(found.contains("a?b?[2J.key: open to others"), "{found}");
        assert!(format(made.path(), 1).what.ends_with("version is not a regular file"));
        fs::remove_file(path("version")).unwrap();
        for (text, outcome) in [
            ("1\n", CheckOutcome::Ok),
            ("2", CheckOutcome::Failed),
            ("x", CheckOutcome::Failed),
            ("0", CheckOutcome::Failed),
        ] {
            fs::write(path("version"), text).unwrap();
            assert_eq!(format(made.path(), 1).outcome, outcome, "{text}");
        }
        fs::remove_dir(path("pki")).unwrap_err();
        assert_eq!(texts(&entries(&path("none"))), "");
    }

    #[test]
    fn too_many_entries_are_not_all_read() {
        let made = directory();
        for number in 0..=MAX_ENTRIES {
            fs::hard_link(file(&made), made.path().join(format!("store/{number}"))).unwrap();
        }
        let found = texts(&entries(made.path()));
        assert!(found.contains("more than 10000 entries"), "{found}");
    }

    fn file(made: &tempfile::TempDir) -> PathBuf {
        let path = made.path().join("file");
        if !path.exists() {
            fs::write(&path, "").unwrap();
        }
        path
    }
}
