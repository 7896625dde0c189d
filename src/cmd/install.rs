//! `ferrokube install`.

use super::server::report;
use anyhow::Context;
use clap::Args;
use ferrokube_install::{Installation, contents};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct InstallFlags {
    /// Directory of bin, lib and, unless it is /usr/local or /usr, the settings
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Root directory to install below, for packages and images
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Remove the installed files, but not configuration and state
    #[arg(long, conflicts_with = "rollback")]
    uninstall: bool,
    /// Restore the executable from before the last upgrade; repeat to undo
    #[arg(long)]
    rollback: bool,
}

/// Installs, removes or rolls back.
pub(crate) fn run(flags: InstallFlags) -> anyhow::Result<ExitCode> {
    let layout = Installation { root: flags.root, prefix: flags.prefix };
    let settings = layout.settings();
    if flags.uninstall {
        layout.uninstall()?;
        let settings = settings.display();
        report(&format!("removed; {settings}, /var/lib/ferrokube and the user ferrokube are left"));
    } else if flags.rollback {
        layout.roll_back()?;
        report(
            "the earlier executable is back; next: `ferrokube install` for the units of its version, \
             then systemctl daemon-reload, and restart them",
        );
    } else {
        layout.install(&std::env::current_exe().context("cannot find this executable")?)?;
        report(&next(&layout));
    }
    Ok(ExitCode::SUCCESS)
}

/// The commands that follow an installation.
fn next(layout: &Installation) -> String {
    let prefix = layout.prefix.display();
    if layout.root != Path::new("/") {
        return format!("installed {prefix} in {}", layout.root.display());
    }
    let (users, units) = if contents::is_system_wide(&layout.prefix) {
        ("systemd-sysusers".to_owned(), "systemctl daemon-reload".to_owned())
    } else {
        (
            format!("systemd-sysusers {prefix}/lib/sysusers.d/ferrokube.conf"),
            format!("systemctl link {prefix}/lib/systemd/system/ferrokube*"),
        )
    };
    format!(
        "next: {users} && {units} && systemctl enable --now ferrokube.service
or, in separate processes: ... && systemctl enable --now ferrokube-control-plane.target ferrokube-apiserver ferrokube-controller-manager"
    )
}
