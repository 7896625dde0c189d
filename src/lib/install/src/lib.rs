//! Puts the executable on a machine: names of components, systemd units, samples of configuration.
//! Uninstalls it, and rolls back to the previous executable.
//!
//! Must never know what the executable does, and never touches state (`/var/lib/ferrokube`). Start
//! at [`Installation::install`]; [`contents`] has the installed files.

pub mod contents;

use contents::{Content, LINKS};
use rustix::fs::Mode;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Name of the executable.
const BINARY: &str = "ferrokube";

/// Target paths of an installation.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Root of the file system: `/`, or a directory that becomes one (an image, a package).
    pub root: PathBuf,
    /// Absolute path of `bin` and `lib`, such as `/usr/local`.
    pub prefix: PathBuf,
}

/// Why a step failed. Earlier steps are done; all may be repeated.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A system call failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file not installed by ferrokube has the name.
    #[error("{} is not a link to ferrokube: remove it, or choose another --prefix", .0.display())]
    Foreign(PathBuf),
    /// The prefix is relative, or has letters that units could not have in a path.
    #[error("--prefix {} is not an absolute path of letters, digits and /._-", .0.display())]
    Prefix(PathBuf),
    /// No previous executable to roll back to.
    #[error("there is no earlier executable in {}", .0.display())]
    NoPrevious(PathBuf),
    /// Nothing to uninstall.
    #[error("nothing is installed in {}: name the --prefix and --root of the installation", .0.display())]
    Nothing(PathBuf),
}

impl Installation {
    /// Installs, or upgrades: running processes keep the executable that they started with.
    /// Existing settings are not changed.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn install(&self, binary: &Path) -> Result<(), InstallError> {
        self.check()?;
        let target = self.path("bin").join(BINARY);
        self.put_binary(binary, &target)?;
        for name in LINKS {
            let path = self.path("bin").join(name);
            // Replaced in one step, as a unit may start.
            let new = self.path("bin").join(format!(".{name}.new"));
            let _ = fs::remove_file(&new);
            symlink(BINARY, &new).map_err(failed("make the link", &new))?;
            fs::rename(&new, &path).map_err(failed("make the link", &path))?;
        }
        for content in contents::ALL {
            let path = self.of(content);
            if content.is_configuration && path.exists() {
                continue;
            }
            self.directory(path.parent().unwrap_or(&self.root))?;
            write(&path, contents::text(content, &self.prefix).as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// Removes the files created by [`Self::install`], except for configuration, and directories
    /// that are empty then.
    ///
    /// # Errors
    /// [`InstallError`]; [`InstallError::Nothing`] if there is none of them.
    pub fn uninstall(&self) -> Result<(), InstallError> {
        self.check()?;
        let links = LINKS.iter().map(|name| self.path("bin").join(name));
        let written = contents::ALL.iter().filter(|content| !content.is_configuration);
        let binaries = [self.path("bin").join(BINARY), self.previous()];
        let mut is_installed = false;
        for path in links.chain(written.map(|content| self.of(content))).chain(binaries) {
            match fs::remove_file(&path) {
                Ok(()) => {
                    is_installed = true;
                    self.remove_empty(&path);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("remove", &path)(error)),
            }
        }
        if is_installed { Ok(()) } else { Err(InstallError::Nothing(self.in_root(&self.prefix))) }
    }

    /// Removes the directories of a removed file that are empty, but not the root, nor on a machine
    /// those that it has anyway, such as `/usr/local/bin`, nor what is above the prefix.
    fn remove_empty(&self, removed: &Path) {
        let prefix = self.in_root(&self.prefix);
        let is_machine = self.root == Path::new("/");
        let is_system_wide = contents::is_system_wide(&self.prefix);
        let is_kept = |directory: &Path| match is_machine {
            true if is_system_wide => directory.parent() == Some(prefix.as_path()),
            true => !directory.starts_with(&prefix),
            false => directory == self.root || !directory.starts_with(&self.root),
        };
        for directory in removed.ancestors().skip(1).take_while(|directory| !is_kept(directory)) {
            // One that contains others' files stays.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }

    /// Names of files that are not as this version would write them; `None` if it was never
    /// installed. The executable may be any.
    pub fn differences(&self) -> Option<Vec<String>> {
        if !self.path("bin").join(BINARY).exists() {
            return None;
        }
        let links = LINKS.iter().filter(|name| {
            let target = fs::read_link(self.path("bin").join(name));
            target.map_or(true, |target| target != Path::new(BINARY))
        });
        let is_as_written = |content: &Content| {
            let path = self.of(content);
            // Nothing else is opened: a pipe would block.
            let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
            let text = contents::text(content, &self.prefix);
            is_file && fs::read(&path).is_ok_and(|found| found == text.as_bytes())
        };
        let written = contents::ALL
            .iter()
            .filter(|content| !content.is_configuration && !is_as_written(content));
        let name =
            |content: &Content| content.path.rsplit('/').next().unwrap_or(content.path).to_owned();
        Some(links.map(|link| (*link).to_owned()).chain(written.map(name)).collect())
    }

    /// Swaps the executable with the one before the last upgrade; a second call swaps them back.
    ///
    /// # Errors
    /// [`InstallError::NoPrevious`], [`InstallError::Io`].
    pub fn roll_back(&self) -> Result<(), InstallError> {
        self.check()?;
        let (current, previous) = (self.path("bin").join(BINARY), self.previous());
        if !previous.exists() {
            return Err(InstallError::NoPrevious(self.path("lib/ferrokube")));
        }
        let between = previous.with_extension("current");
        copy(&current, &between)?;
        fs::rename(&previous, &current).map_err(failed("write", &current))?;
        fs::rename(&between, &previous).map_err(failed("write", &previous))
    }

    /// Refuses a prefix that units cannot name, and names that belong to others, before anything is
    /// written.
    fn check(&self) -> Result<(), InstallError> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
        if !self.prefix.is_absolute()
            || !self.prefix.as_os_str().as_encoded_bytes().iter().all(is_plain)
        {
            return Err(InstallError::Prefix(self.prefix.clone()));
        }
        for name in LINKS {
            let path = self.path("bin").join(name);
            let is_ours = match fs::read_link(&path) {
                Ok(target) => target == Path::new(BINARY),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if !is_ours {
                return Err(InstallError::Foreign(path));
            }
        }
        Ok(())
    }

    /// Copies the executable unless it is unchanged, and keeps the previous one.
    fn put_binary(&self, binary: &Path, target: &Path) -> Result<(), InstallError> {
        self.directory(&self.path("bin"))?;
        if target.exists() {
            if is_same(binary, target).map_err(failed("compare", target))? {
                return Ok(());
            }
            self.directory(&self.path("lib/ferrokube"))?;
            copy(target, &self.previous())?;
        }
        copy(binary, target)
    }

    /// Directory of the settings of the units.
    pub fn settings(&self) -> PathBuf {
        self.in_root(&contents::settings(&self.prefix))
    }

    fn previous(&self) -> PathBuf {
        self.path("lib/ferrokube/ferrokube.previous")
    }

    /// Below the prefix.
    fn path(&self, name: &str) -> PathBuf {
        self.in_root(&self.prefix.join(name))
    }

    fn of(&self, content: &Content) -> PathBuf {
        if content.is_configuration {
            self.settings().join(content.path)
        } else {
            self.path(content.path)
        }
    }

    fn in_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Makes a directory with the usual mode, regardless of the umask.
    fn directory(&self, path: &Path) -> Result<(), InstallError> {
        if path.is_dir() {
            return Ok(());
        }
        // That of a relative path is empty in the end.
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            self.directory(parent)?;
        }
        fs::create_dir(path)
            .and_then(|()| Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o755))?))
            .map_err(failed("make the directory", path))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Io { what, path, source }
}

fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    if fs::metadata(one)?.len() != fs::metadata(other)?.len() {
        return Ok(false);
    }
    Ok(fs::read(one)? == fs::read(other)?)
}

/// Replaces an executable that may be running.
fn copy(from: &Path, to: &Path) -> Result<(), InstallError> {
    let bytes = fs::read(from).map_err(failed("read", from))?;
    write(to, &bytes, 0o755)
}

/// Atomically and durably. What has the temporary name is replaced, not opened: it may be another
/// user's, or a link.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), InstallError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let new = path.with_file_name(format!(".{name}.new"));
    let written = || -> io::Result<()> {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    written().map_err(failed("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    fn files(directory: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                let below = files(&path);
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                found.extend(below.iter().map(|file| format!("{name}/{file}")));
            } else {
                found.insert(path.file_name().unwrap().to_str().unwrap().to_owned());
            }
        }
        found
    }

    fn layout(directory: &Path) -> (Installation, PathBuf) {
        let binary = directory.join("new");
        fs::write(&binary, "version 1").unwrap();
        (Installation { root: directory.join("root"), prefix: "/usr/local".into() }, binary)
    }

    #[test]
    fn it_may_be_repeated_and_undone() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        layout.install(&binary).unwrap();
        let first = files(&layout.root);
        assert!(first.contains("usr/local/lib/systemd/system/ferrokube.service"), "{first:?}");
        let bin = layout.root.join("usr/local/bin");
        assert_eq!(fs::read_link(bin.join("kube-apiserver")).unwrap(), Path::new("ferrokube"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&bin), mode(&bin.join("ferrokube"))), (0o755, 0o755));
        // Configuration is the administrator's.
        let settings = layout.root.join("etc/ferrokube/apiserver.env");
        fs::write(&settings, "FLAGS=--secure-port=7443\n").unwrap();
        layout.install(&binary).unwrap();
        assert_eq!(files(&layout.root), first);
        assert_eq!(fs::read_to_string(&settings).unwrap(), "FLAGS=--secure-port=7443\n");
        layout.uninstall().unwrap();
        let left = files(&layout.root);
        assert!(left.iter().all(|file| file.starts_with("etc/ferrokube/")), "{left:?}");
        assert!(!layout.root.join("usr").exists(), "an empty directory is left");
        assert!(matches!(layout.uninstall(), Err(InstallError::Nothing(_))));
        layout.install(&binary).unwrap();
        assert_eq!(fs::read_to_string(&settings).unwrap(), "FLAGS=--secure-port=7443\n");
    }

    #[test]
    fn links_under_temporary_names_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        let (bin, others) = (layout.root.join("usr/local/bin"), directory.path().join("others"));
        fs::create_dir_all(&bin).unwrap();
        fs::write(&others, "theirs").unwrap();
        symlink(&others, bin.join(".ferrokube.new")).unwrap();
        layout.install(&binary).unwrap();
        assert_eq!(fs::read_to_string(&others).unwrap(), "theirs");
        assert!(!bin.join("ferrokube").is_symlink());
    }

    #[test]
    fn an_upgrade_can_be_rolled_back() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        let installed = || fs::read_to_string(layout.root.join("usr/local/bin/ferrokube")).unwrap();
        layout.install(&binary).unwrap();
        assert!(matches!(layout.roll_back(), Err(InstallError::NoPrevious(_))));
        fs::write(&binary, "version 2").unwrap();
        layout.install(&binary).unwrap();
        // Again: version 1 stays the earlier one.
        layout.install(&binary).unwrap();
        assert_eq!(installed(), "version 2");
        layout.roll_back().unwrap();
        assert_eq!(installed(), "version 1");
        layout.roll_back().unwrap();
        assert_eq!(installed(), "version 2");
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        let bin = layout.root.join("usr/local/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(bin.join("kube-apiserver"), "the real one").unwrap();
        assert!(matches!(layout.install(&binary), Err(InstallError::Foreign(_))));
        assert!(matches!(layout.uninstall(), Err(InstallError::Foreign(_))));
        assert_eq!(files(&layout.root).len(), 1);
        for prefix in ["usr", "/opt/my tools", "/opt/100%", "/opt/$HOME"] {
            let unusable = Installation { prefix: prefix.into(), ..layout.clone() };
            let refused = unusable.install(&binary);
            assert!(matches!(refused, Err(InstallError::Prefix(_))), "{prefix}: {refused:?}");
        }
    }

    #[test]
    fn directories_with_files_of_others_are_left() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        layout.install(&binary).unwrap();
        fs::write(layout.path("lib/ferrokube.txt"), "theirs").unwrap();
        layout.uninstall().unwrap();
        assert_eq!(fs::read_dir(layout.path("")).unwrap().count(), 1, "lib");
        assert_eq!(fs::read_dir(layout.path("lib")).unwrap().count(), 1, "their file");
    }

    #[test]
    fn below_the_machines_root_a_prefix_is_removed_and_nothing_above_it() {
        let directory = tempfile::tempdir().unwrap();
        let (_, binary) = layout(directory.path());
        let prefix = directory.path().join("above/prefix");
        let layout = Installation { root: "/".into(), prefix: prefix.clone() };
        layout.install(&binary).unwrap();
        layout.uninstall().unwrap();
        let left: Vec<_> = fs::read_dir(&prefix).unwrap().map(|one| one.unwrap().path()).collect();
        assert_eq!(left, [prefix.join("etc")]);
        layout.install(&binary).unwrap();
        fs::remove_dir_all(prefix.join("etc")).unwrap();
        layout.uninstall().unwrap();
        assert!(!prefix.exists() && directory.path().join("above").exists());
    }

    #[test]
    fn installed_pages_have_no_links_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        layout.install(&binary).unwrap();
        let page = layout.path("share/doc/ferrokube/install.md");
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("see roles.md.") && page.contains("(certificates.md)"), "{page}");
        assert!(!page.contains("]("), "{page}");
    }

    #[test]
    fn units_name_the_prefix() {
        let directory = tempfile::tempdir().unwrap();
        let (layout, binary) = layout(directory.path());
        // Below the usual one, too.
        for prefix in ["/opt/ferrokube", "/usr/local/ferrokube", "/opt/etc/ferrokube"] {
            let root = layout.root.join(prefix.replace('/', "-"));
            let other = Installation { root, prefix: prefix.into() };
            other.install(&binary).unwrap();
            let (below, here) = (files(&other.root), format!("{}/", &prefix[1..]));
            assert!(below.iter().all(|file| file.starts_with(&here)), "{below:?}");
            let unit = other.path("lib/systemd/system/ferrokube.service");
            let text = fs::read_to_string(unit).unwrap();
            for line in [
                format!("ExecStart={prefix}/bin/ferrokube all-in-one "),
                format!("EnvironmentFile=-{prefix}/etc/ferrokube/all-in-one.env\n"),
                format!("Documentation=file:{prefix}/share/doc/ferrokube/install.md\n"),
            ] {
                assert!(text.contains(&line), "{line}: {text}");
            }
            other.uninstall().unwrap();
            let left = files(&other.root);
            assert!(left.iter().all(|file| file.contains("/etc/ferrokube/")), "{left:?}");
        }
    }
}
