//! The installed files.

use std::path::{Path, PathBuf};

/// Names of components in `bin`, which select the role of the executable.
pub const LINKS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kubelet", "feature-admin", "kubectl-features"];

/// The prefix in the files of this repository.
const WRITTEN_PREFIX: &str = "/usr/local";

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// `PREFIX/...`, or an absolute path.
    pub path: &'static str,
    /// As in this repository, for the prefix `/usr/local`.
    pub text: &'static str,
    /// The administrator's once it is there.
    pub is_configuration: bool,
}

macro_rules! unit {
    ($name:literal) => {
        Content {
            path: concat!("PREFIX/lib/systemd/system/", $name),
            text: include_str!(concat!("../../../../deploy/systemd/", $name)),
            is_configuration: false,
        }
    };
}

macro_rules! settings {
    ($name:literal) => {
        Content {
            path: concat!("/etc/ferrokube/", $name),
            text: include_str!(concat!("../../../../deploy/systemd/", $name)),
            is_configuration: true,
        }
    };
}

/// All files.
pub const ALL: &[Content] = &[
    unit!("ferrokube.service"),
    unit!("ferrokube-apiserver.service"),
    unit!("ferrokube-controller-manager.service"),
    unit!("ferrokube-kubelet.service"),
    unit!("ferrokube-control-plane.target"),
    unit!("ferrokube-check-upgrade.service"),
    unit!("ferrokube-check-upgrade.timer"),
    settings!("all-in-one.env"),
    settings!("apiserver.env"),
    settings!("controller-manager.env"),
    settings!("kubelet.env"),
    settings!("check-upgrade.env"),
    Content {
        path: "PREFIX/lib/sysusers.d/ferrokube.conf",
        text: include_str!("../../../../deploy/systemd/sysusers.conf"),
        is_configuration: false,
    },
    Content {
        path: "PREFIX/share/doc/ferrokube/deploy.md",
        text: include_str!("../../../../docs/deploy.md"),
        is_configuration: false,
    },
];

/// With the prefix instead of the one that it was written for.
pub fn text(content: &Content, prefix: &Path) -> String {
    content.text.replace(WRITTEN_PREFIX, &prefix.display().to_string())
}

/// The path of a file. Regardless of the prefix, systemd reads only `/usr/local`, `/usr` and
/// `/etc`.
pub(crate) fn place(prefix: &Path, rest: &str) -> PathBuf {
    let is_read = prefix == Path::new("/usr/local") || prefix == Path::new("/usr");
    match rest.strip_prefix("lib/") {
        Some(below) if !is_read => Path::new("/etc").join(below),
        _ => prefix.join(rest),
    }
}
