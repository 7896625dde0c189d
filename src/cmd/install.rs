//! `ferrokube install`.

use super::server::report;
use anyhow::Context;
use clap::Args;
use ferrokube_install::Installation;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct InstallFlags {
    /// Directory of bin and lib
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

const NEXT: &str = "next: systemd-sysusers && systemctl daemon-reload && systemctl enable --now ferrokube.service
or, in separate processes: ... && systemctl enable --now ferrokube-control-plane.target ferrokube-apiserver ferrokube-controller-manager";

/// Installs, removes or goes back.
pub(crate) fn run(flags: InstallFlags) -> anyhow::Result<ExitCode> {
    let layout = Installation { root: flags.root, prefix: flags.prefix };
    if flags.uninstall {
        layout.uninstall()?;
        report("removed; /etc/ferrokube, /var/lib/ferrokube and the user ferrokube are left");
    } else if flags.rollback {
        layout.roll_back()?;
        report("the earlier executable is back: restart its units");
    } else {
        layout.install(&std::env::current_exe().context("cannot find this executable")?)?;
        report(NEXT);
    }
    Ok(ExitCode::SUCCESS)
}
