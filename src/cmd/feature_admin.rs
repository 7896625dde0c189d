//! `ferrokube feature-admin`, also `kubectl features`: see and change the features of a cluster.

use super::flags::duration;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use ferrokube_apimachinery::yaml;
use ferrokube_client::Connection;
use ferrokube_feature_admin::admin::sheet;
use ferrokube_feature_admin::{AdminOptions, FeatureAdmin, FeatureCommand, VersionChange};
use ferrokube_features::KubernetesVersion;
use ferrokube_features::transition::{FeatureState, FeatureStateError};
use ferrokube_server::DataDir;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;

/// Exit code: the check does not hold, or the state was not reached.
const NOT_SAFE: u8 = 1;
/// Exit code: the check could not be performed.
const FAILED: u8 = 2;
/// Width of a terminal that does not report one.
const COLUMNS: usize = 80;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 done, or safe; 1 not safe, or not in time; 2 the command failed."
)]
pub(crate) struct FeatureAdminFlags {
    /// Kubeconfig [default: those in $KUBECONFIG, else admin.kubeconfig in the data directory, else
    /// ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    /// Data directory of an all-in-one [default: that of all-in-one]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Namespace of the features
    #[arg(short, long, value_name = "NAMESPACE", default_value = "kube-system", global = true)]
    namespace: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table, global = true)]
    output: OutputFormat,
    /// Dry run: the server checks writes, but stores none
    #[arg(long, global = true)]
    dry_run: bool,
    /// Print each request with its trace ids to standard error
    #[arg(short, long, global = true)]
    verbose: bool,
    #[command(subcommand)]
    command: AdminSubcommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// For people
    Table,
    /// JSON documents
    Json,
    /// YAML documents
    Yaml,
}

#[derive(Debug, Subcommand)]
enum AdminSubcommand {
    /// List the features
    List,
    /// Show a feature, who uses it, what blocks it, and how to unblock it
    Describe {
        /// Feature
        name: String,
    },
    /// Turn a dynamic feature on; for any other, name the flag and the components
    Enable {
        /// Feature
        name: String,
    },
    /// Turn a dynamic feature off; for any other, name the flag and the components
    Disable {
        /// Feature
        name: String,
    },
    /// Wait until a feature is in a state
    Wait {
        /// Feature
        name: String,
        /// `state=Off`
        #[arg(long = "for", value_name = "CONDITION", value_parser = state)]
        state: FeatureState,
        /// Timeout
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
        timeout: Duration,
    },
    /// Show the values that components have reported
    Uses {
        /// Feature [default: all]
        name: Option<String>,
    },
    /// Show the tasks that remain
    Tasks,
    /// Check that no feature blocks an upgrade
    CheckUpgrade {
        /// Version
        #[arg(long, value_name = "VERSION")]
        to: KubernetesVersion,
    },
    /// Check that no feature blocks a downgrade
    CheckDowngrade {
        /// Version
        #[arg(long, value_name = "VERSION")]
        to: KubernetesVersion,
    },
    /// Print the production readiness sheet of a feature
    Prr {
        /// Feature
        name: String,
    },
    /// Show the progress of transitions until there are none
    Watch,
}

fn state(text: &str) -> Result<FeatureState, String> {
    let state = text.strip_prefix("state=").ok_or("must be of the form state=Off")?;
    state.parse().map_err(|error: FeatureStateError| error.to_string())
}

impl AdminSubcommand {
    /// `Err`: the feature whose sheet is printed, which needs no cluster.
    fn command(self) -> Result<FeatureCommand, String> {
        Ok(match self {
            Self::List => FeatureCommand::List,
            Self::Describe { name } => FeatureCommand::Describe(name),
            Self::Enable { name } => FeatureCommand::Set { name, enabled: true },
            Self::Disable { name } => FeatureCommand::Set { name, enabled: false },
            Self::Wait { name, state, timeout } => FeatureCommand::Wait { name, state, timeout },
            Self::Uses { name } => FeatureCommand::Uses(name),
            Self::Tasks => FeatureCommand::Tasks,
            Self::CheckUpgrade { to } => FeatureCommand::Check(VersionChange::Upgrade(to)),
            Self::CheckDowngrade { to } => FeatureCommand::Check(VersionChange::Downgrade(to)),
            Self::Prr { name } => return Err(name),
            Self::Watch => FeatureCommand::Watch,
        })
    }
}

/// Runs a command.
pub(crate) fn run(flags: FeatureAdminFlags) -> ExitCode {
    match run_or_fail(flags) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_SAFE),
        Err(error) => {
            eprintln!("ferrokube: {}", super::one_line(&error));
            ExitCode::from(FAILED)
        }
    }
}

fn run_or_fail(flags: FeatureAdminFlags) -> anyhow::Result<bool> {
    let (output, machine) = (flags.output, flags.output != OutputFormat::Table);
    let mut documents = 0;
    let mut print = move |text: &str| {
        let text = output.rendered(text, documents);
        documents += 1;
        let mut output = std::io::stdout().lock();
        // A closed standard output is no error.
        let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    };
    let kubeconfigs = kubeconfigs(&flags)?;
    let command = match flags.command.command() {
        Ok(command) => command,
        Err(name) => {
            print(&sheet(&name, machine)?);
            return Ok(true);
        }
    };
    let options = AdminOptions {
        machine,
        dry_run: flags.dry_run,
        live: std::io::stdout().is_terminal().then(columns),
        note: flags.verbose.then(|| Arc::new(|line: &str| eprintln!("{line}")) as Arc<_>),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let connection =
            Connection::from_kubeconfigs(&kubeconfigs, flags.context.as_deref()).await?;
        let admin = FeatureAdmin::new(&connection.client()?, &flags.namespace, options);
        Ok(admin.run(&command, &mut print).await?)
    })
}

impl OutputFormat {
    /// A document that was made as JSON, or a text.
    fn rendered(self, text: &str, before: usize) -> String {
        if self != Self::Yaml {
            return text.to_owned();
        }
        let Ok(document) = yaml::read_any(text.as_bytes()) else { return text.to_owned() };
        let separator = if before > 0 { "---\n" } else { "" };
        format!("{separator}{}", String::from_utf8_lossy(&yaml::to_vec(&document.value)))
    }
}

fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    told.or_else(|| {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
    })
    .unwrap_or(COLUMNS)
}

/// The files that kubectl would read, after that of an all-in-one.
fn kubeconfigs(flags: &FeatureAdminFlags) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = &flags.kubeconfig {
        return Ok(vec![path.clone()]);
    }
    if let Some(paths) = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        let paths = std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty());
        return Ok(paths.collect());
    }
    let own = DataDir::locate(flags.data_dir.as_deref())
        .context("cannot find a kubeconfig (--kubeconfig names one)")?
        .join("admin.kubeconfig");
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    let home = home.filter(|path| !own.exists() && path.exists() && flags.data_dir.is_none());
    Ok(vec![home.unwrap_or(own)])
}
