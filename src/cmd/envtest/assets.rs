//! `ferrokube envtest-assets`: makes a directory for `KUBEBUILDER_ASSETS`.

use crate::cmd::flags::Profile;
use crate::cmd::server::report;
use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use ferrokube_envtest::assets::{self, Assets};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct EnvtestAssetsFlags {
    /// Directory to create or update, with kube-apiserver, etcd and, if found, kubectl
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Copy this executable instead of linking to it, so that the directory can be moved to another
    /// machine
    #[arg(long)]
    copy: bool,
    /// kubectl to link [default: the one in $PATH, if any]
    #[arg(long, value_name = "FILE")]
    kubectl: Option<PathBuf>,
    /// Resources to serve
    #[arg(long, value_enum, default_value_t = Profile::Kubernetes)]
    profile: Profile,
    /// Controllers to run: names, * for all, -name to exclude one, -* to exclude all, as with the
    /// real assets
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    controllers: Vec<String>,
}

/// Makes the directory.
pub(crate) fn run(flags: &EnvtestAssetsFlags) -> anyhow::Result<ExitCode> {
    ferrokube_controllers::check_names(&flags.controllers)?;
    let profile = flags.profile.to_possible_value().context("a profile without a name")?;
    if let Some(kubectl) = &flags.kubectl {
        ensure!(kubectl.is_file(), "cannot link --kubectl {}: no such file", kubectl.display());
    }
    let kubectl = flags.kubectl.clone().or_else(|| assets::in_path("kubectl"));
    let assets = Assets {
        binary: std::env::current_exe().context("cannot find this executable")?,
        copies: flags.copy,
        kubectl: kubectl.map(std::path::absolute).transpose().context("no current directory")?,
        apiserver_flags: vec![
            format!("--profile={}", profile.get_name()),
            format!("--controllers={}", flags.controllers.join(",")),
        ],
    };
    assets.lay_out(&flags.directory)?;
    let directory = std::path::absolute(&flags.directory).context("no current directory")?;
    if assets.kubectl.is_none() {
        eprintln!("ferrokube: no kubectl in $PATH: the directory has none");
    }
    report(&format!("export KUBEBUILDER_ASSETS='{}'", directory.display()));
    Ok(ExitCode::SUCCESS)
}
