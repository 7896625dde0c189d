//! The installed files.

use std::path::{Path, PathBuf};

/// Names of components in `bin`, which select the role of the executable.
pub const LINKS: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kubelet", "feature-admin", "kubectl-features"];

/// The prefix in the files of this repository, and the settings there.
const WRITTEN_PREFIX: &str = "/usr/local";
const WRITTEN_SETTINGS: &str = "/etc/ferrokube";

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Below the prefix; of settings, below [`settings`].
    pub path: &'static str,
    /// As in this repository, for the prefix `/usr/local`.
    pub text: &'static str,
    /// Never overwritten: the administrator may have changed it.
    pub is_configuration: bool,
}

macro_rules! unit {
    ($name:literal) => {
        Content {
            path: concat!("lib/systemd/system/", $name),
            text: include_str!(concat!("../../../../deploy/systemd/", $name)),
            is_configuration: false,
        }
    };
}

macro_rules! settings {
    ($name:literal) => {
        Content {
            path: $name,
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
        path: "lib/sysusers.d/ferrokube.conf",
        text: include_str!("../../../../deploy/systemd/sysusers.conf"),
        is_configuration: false,
    },
    Content {
        path: "share/doc/ferrokube/install.md",
        text: include_str!("../../../../docs/install.md"),
        is_configuration: false,
    },
];

/// Whether systemd looks below a prefix by itself; others are self-contained.
pub fn is_system_wide(prefix: &Path) -> bool {
    prefix == Path::new(WRITTEN_PREFIX) || prefix == Path::new("/usr")
}

/// Directory of the settings: the machine's, or the prefix's own.
pub fn settings(prefix: &Path) -> PathBuf {
    if is_system_wide(prefix) {
        WRITTEN_SETTINGS.into()
    } else {
        prefix.join(WRITTEN_SETTINGS.trim_start_matches('/'))
    }
}

/// Replaces the prefix and the settings directory that the file was written for, and in a page the
/// links to pages that are not installed.
pub fn text(content: &Content, prefix: &Path) -> String {
    if content.path.ends_with(".md") {
        return placed(&without_links(content.text), prefix);
    }
    placed(content.text, prefix)
}

/// Leaves the texts of links to other pages.
fn without_links(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("](")
        && let Some((target, tail)) = after.split_once(')')
    {
        match before.rsplit_once('[') {
            Some((start, label)) if !target.contains("://") => text.extend([start, label]),
            _ => text.extend([before, "](", target, ")"]),
        }
        rest = tail;
    }
    text + rest
}

fn placed(text: &str, prefix: &Path) -> String {
    let settings = settings(prefix).display().to_string();
    // In one pass: the settings may be below the prefix, and it below the written one.
    let parts = text.split(WRITTEN_PREFIX);
    let parts: Vec<String> = parts.map(|part| part.replace(WRITTEN_SETTINGS, &settings)).collect();
    parts.join(&prefix.display().to_string())
}
