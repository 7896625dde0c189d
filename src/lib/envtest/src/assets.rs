//! The directory for `KUBEBUILDER_ASSETS`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Line by which an asset is recognized as ours, so that it may be replaced.
const MARK: &str = "# Made by ferrokube envtest-assets.";

/// Contents of the directory.
#[derive(Clone, Debug)]
pub struct Assets {
    /// The executable of this product.
    pub binary: PathBuf,
    /// Copy it, so that the directory can be moved; else a symbolic link.
    pub copies: bool,
    /// kubectl, if there is one.
    pub kubectl: Option<PathBuf>,
    /// Flags that `kube-apiserver` gets before those of its starter.
    pub apiserver_flags: Vec<String>,
}

/// Why the directory cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
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
    /// A file is there that this command has not made.
    #[error("{} is not made by this command: choose another directory, or remove it", .0.display())]
    Foreign(PathBuf),
}

impl Assets {
    /// Makes the directory and its files, or replaces those that this command made.
    ///
    /// # Errors
    /// [`AssetsError`]; files of others are left alone.
    pub fn lay_out(&self, directory: &Path) -> Result<(), AssetsError> {
        fs::create_dir_all(directory).map_err(failed("make the directory", directory))?;
        let path = |name: &str| directory.join(name);
        for name in ["kube-apiserver", "etcd"] {
            check_ours(&path(name))?;
        }
        let binary = path("ferrokube");
        if self.copies {
            // Renamed over the old one, which may be running.
            let new = path(".ferrokube.new");
            make_way(&new).map_err(failed("replace", &new))?;
            fs::copy(&self.binary, &new).map_err(failed("copy the executable to", &new))?;
            fs::rename(&new, &binary).map_err(failed("write", &binary))?;
        } else {
            link(&self.binary, &binary)?;
        }
        let flags: String =
            self.apiserver_flags.iter().map(|flag| format!(" {}", quoted(flag))).collect();
        write_script(&path("kube-apiserver"), &format!("envtest-apiserver{flags}"))?;
        write_script(&path("etcd"), "envtest-etcd")?;
        if let Some(kubectl) = &self.kubectl {
            let asset = path("kubectl");
            if fs::symlink_metadata(&asset).is_ok_and(|metadata| !metadata.is_symlink()) {
                return Err(AssetsError::Foreign(asset));
            }
            link(kubectl, &asset)?;
        }
        Ok(())
    }
}

/// The first executable file of this name in `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| {
        rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
    })
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AssetsError {
    let path = path.to_owned();
    move |source| AssetsError::Io { what, path, source }
}

fn check_ours(path: &Path) -> Result<(), AssetsError> {
    match fs::read(path) {
        Ok(bytes) if !String::from_utf8_lossy(&bytes).contains(MARK) => {
            Err(AssetsError::Foreign(path.to_owned()))
        }
        _ => Ok(()),
    }
}

fn link(target: &Path, path: &Path) -> Result<(), AssetsError> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    symlink(target, &new).and_then(|()| fs::rename(&new, path)).map_err(failed("link", path))
}

/// Removes an existing file with a temporary name: it may be another user's, or a link.
fn make_way(new: &Path) -> io::Result<()> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A script that becomes the executable next to it, so that signals reach it.
fn write_script(path: &Path, role: &str) -> Result<(), AssetsError> {
    let text = format!("#!/bin/sh\n{MARK}\nexec \"${{0%/*}}/ferrokube\" {role} \"$@\"\n");
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    make_way(&new)
        .and_then(|()| options.write(true).create_new(true).mode(0o755).open(&new))
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&new, path))
        .map_err(failed("write", path))
}

/// For the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn assets(binary: &Path, flags: &[&str]) -> Assets {
        Assets {
            binary: binary.to_owned(),
            copies: true,
            kubectl: None,
            apiserver_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }

    #[test]
    fn the_scripts_pass_flags_on_from_any_directory() {
        let directory = tempfile::tempdir().unwrap();
        // Prints its arguments, a line each.
        let binary = directory.path().join("binary");
        write_script(&binary, "").unwrap();
        fs::write(&binary, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
        let made = directory.path().join("made here");
        assets(&binary, &["--controllers=*", "--x=it's"]).lay_out(&made).unwrap();
        let moved = directory.path().join("moved");
        fs::rename(&made, &moved).unwrap();
        let run = |name: &str| {
            let output = Command::new(moved.join(name)).args(["--a=b c", "*"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(
            run("kube-apiserver"),
            "envtest-apiserver\n--controllers=*\n--x=it's\n--a=b c\n*\n"
        );
        assert_eq!(run("etcd"), "envtest-etcd\n--a=b c\n*\n");
    }

    #[test]
    fn links_under_temporary_names_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("binary"), "1").unwrap();
        fs::write(path("others"), "theirs").unwrap();
        fs::create_dir(path("assets")).unwrap();
        for name in [".ferrokube.new", "etcd.new", "kube-apiserver.new"] {
            symlink(path("others"), path("assets").join(name)).unwrap();
        }
        assets(&path("binary"), &[]).lay_out(&path("assets")).unwrap();
        assert_eq!(fs::read_to_string(path("others")).unwrap(), "theirs");
        for name in ["ferrokube", "etcd", "kube-apiserver"] {
            assert!(!path("assets").join(name).is_symlink(), "{name}");
        }
    }

    #[test]
    fn only_own_files_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("binary");
        fs::write(&binary, "1").unwrap();
        let made = directory.path().join("assets");
        assets(&binary, &[]).lay_out(&made).unwrap();
        fs::write(&binary, "2").unwrap();
        assets(&binary, &[]).lay_out(&made).unwrap();
        assert_eq!(fs::read_to_string(made.join("ferrokube")).unwrap(), "2");
        fs::write(made.join("etcd"), "the real one").unwrap();
        let refused = assets(&binary, &[]).lay_out(&made);
        assert!(matches!(refused, Err(AssetsError::Foreign(_))), "{refused:?}");
        assert_eq!(fs::read_to_string(made.join("etcd")).unwrap(), "the real one");
    }
}
