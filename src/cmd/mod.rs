//! Roles: their list, how one is chosen, and how its result becomes an exit code.
//!
//! Only parsing, wiring and waiting happens here; the logic is in the crates under `src/lib`.

mod admission_flags;
mod all_in_one;
mod apiserver;
mod auth_flags;
mod backup;
mod certs;
mod controller_manager;
mod controllers;
mod doctor;
mod envtest;
mod etcd_flags;
mod feature_admin;
mod flags;
mod flow_flags;
mod install;
mod kubelet;
mod migrate;
mod node;
mod notify;
mod probe;
mod process;
mod progress;
#[cfg(test)]
mod reference;
mod runtime_config;
mod server;
mod service_flags;
mod tls;
mod trace;
mod trace_webhook;
mod tracing;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ferrokube_trace::with_causes;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// A Kubernetes-style control plane in one binary.
///
/// The role is the first argument, or the name of the executable (`apiserver`, `kube-apiserver`,
/// ...).
// Of a flag that is given twice the last counts, as with kube-apiserver: units and starters append.
#[derive(Debug, Parser)]
#[command(
    name = "ferrokube",
    version,
    propagate_version = true,
    args_override_self = true,
    max_term_width = 120,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

/// Roles and utility commands.
#[derive(Debug, Subcommand)]
enum Role {
    /// API server, storage and controllers in one process: the main role
    AllInOne(Box<all_in_one::AllInOneFlags>),
    /// The API server alone
    #[command(visible_alias = "kube-apiserver")]
    Apiserver(Box<apiserver::ApiserverFlags>),
    /// The controllers alone, against any API server
    #[command(visible_alias = "kube-controller-manager")]
    ControllerManager(Box<controller_manager::ControllerManagerFlags>),
    /// The pods of this machine, on a container runtime
    Kubelet(Box<kubelet::KubeletFlags>),
    /// Find the request behind a log line, and the log lines behind a request
    Trace(Box<trace::TraceFlags>),
    /// Trace ids for another API server, as a mutating admission webhook
    TraceWebhook(Box<trace_webhook::TraceWebhookFlags>),
    /// The features of a cluster: what is on, who uses it, what blocks a transition
    FeatureAdmin(Box<feature_admin::FeatureAdminFlags>),
    /// Back up the state and the keys of a data directory, also while its server runs
    Backup(backup::BackupFlags),
    /// Restore a backup into a data directory without state
    Restore(backup::RestoreFlags),
    /// Move the state from a data directory into etcd, or back; no server runs meanwhile
    Migrate(migrate::MigrateFlags),
    /// Show, renew and make certificates, and kubeconfigs with them
    Certs(certs::CertsFlags),
    /// Check an installation, and suggest fixes
    Doctor(Box<doctor::DoctorFlags>),
    /// Check whether a server on this machine is ready
    Probe(probe::ProbeFlags),
    /// Install this executable, with systemd units and the names of the components
    Install(install::InstallFlags),
    /// Make a directory with the executables that envtest starts: kube-apiserver and etcd
    EnvtestAssets(envtest::assets::EnvtestAssetsFlags),
    /// The kube-apiserver of that directory: API server and controllers for a test suite
    EnvtestApiserver(Box<envtest::apiserver::EnvtestApiserverFlags>),
    /// The etcd of that directory: a stand-in that names the state directory of envtest-apiserver
    EnvtestEtcd(Box<envtest::etcd::EnvtestEtcdFlags>),
    /// Print the version
    Version,
    /// Print a shell completion script
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// Executable names that select a role.
const ROLE_NAMES: [&str; 5] =
    ["all-in-one", "apiserver", "controller-manager", "kubelet", "feature-admin"];
/// Commands that are not roles.
const OTHERS: [&str; 16] = [
    "trace",
    "trace-webhook",
    "feature-admin",
    "backup",
    "restore",
    "migrate",
    "certs",
    "doctor",
    "probe",
    "install",
    "envtest-assets",
    "envtest-apiserver",
    "envtest-etcd",
    "version",
    "completions",
    "help",
];

/// Exit code for usage errors.
const USAGE: u8 = 2;

/// Context of errors in flags that clap cannot find: the exit code is [`USAGE`].
#[derive(Debug)]
struct WrongFlags(&'static str);

impl fmt::Display for WrongFlags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

/// Runs the role chosen by `arguments`, which start with the name of the executable.
pub(crate) fn run(arguments: Vec<OsString>, started: Instant) -> ExitCode {
    let is_kube_apiserver = is_kube_apiserver(&arguments);
    let (mut arguments, by_name) = by_name(arguments);
    envtest::etcd::with_two_dashes(&mut arguments);
    let parsed = command(is_kube_apiserver)
        .multicall(by_name)
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let result = match parsed.map(|cli| cli.role) {
        Ok(Role::AllInOne(flags)) => all_in_one::run(*flags, started),
        Ok(Role::Apiserver(flags)) => apiserver::run(*flags, started),
        Ok(Role::ControllerManager(flags)) => controller_manager::run(*flags),
        Ok(Role::Kubelet(flags)) => kubelet::run(*flags),
        Ok(Role::Trace(flags)) => Ok(trace::run(&flags)),
        Ok(Role::TraceWebhook(flags)) => trace_webhook::run(&flags),
        Ok(Role::FeatureAdmin(flags)) => Ok(feature_admin::run(*flags)),
        Ok(Role::Backup(flags)) => backup::run(&flags),
        Ok(Role::Restore(flags)) => backup::restore(&flags),
        Ok(Role::Migrate(flags)) => migrate::run(&flags),
        Ok(Role::Certs(flags)) => certs::run(flags),
        Ok(Role::Doctor(flags)) => doctor::run(&flags),
        Ok(Role::Probe(flags)) => probe::run(flags),
        Ok(Role::Install(flags)) => install::run(flags),
        Ok(Role::EnvtestAssets(flags)) => envtest::assets::run(&flags),
        Ok(Role::EnvtestApiserver(flags)) => envtest::apiserver::run(*flags, started),
        Ok(Role::EnvtestEtcd(flags)) => envtest::etcd::run(&flags),
        Ok(Role::Version) => print(
            format!(
                "ferrokube {} (Kubernetes {})\n",
                env!("CARGO_PKG_VERSION"),
                ferrokube_features::KubernetesVersion::CURRENT
            )
            .as_bytes(),
        ),
        Ok(Role::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ferrokube", &mut script);
            print(&script)
        }
        Err(error) if error.kind() == ErrorKind::InvalidSubcommand => {
            // `help kubelet` has it in second place.
            let word = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => word.clone(),
                _ => arguments
                    .get(1)
                    .map(|word| word.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            };
            let roles = roles().join(", ");
            let similar = similar(&error);
            eprintln!(
                "ferrokube: unknown role {word:?}{similar}; the roles are {roles}; `ferrokube --help` lists the other commands"
            );
            return ExitCode::from(USAGE);
        }
        Err(error) => {
            // Help and version are reported as errors, too, but go to standard output.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ferrokube: {}", one_line(&error));
            if error.is::<WrongFlags>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// The command line. As `kube-apiserver` and with `--node`, the profile is `kubernetes` by default.
fn command(is_kube_apiserver: bool) -> clap::Command {
    let command = Cli::command().mut_subcommand("all-in-one", |role| {
        role.mut_arg("profile", |profile| profile.default_value_if("node", "true", "kubernetes"))
    });
    if !is_kube_apiserver {
        return command;
    }
    command.mut_subcommand("apiserver", |role| {
        role.mut_arg("profile", |profile| profile.default_value("kubernetes"))
    })
}

/// Whether the name of the executable or of the subcommand is kube-apiserver.
fn is_kube_apiserver(arguments: &[OsString]) -> bool {
    let is = |name: &OsString| Path::new(name).file_name() == Some("kube-apiserver".as_ref());
    arguments.first().is_some_and(is)
        || arguments.get(1).is_some_and(|role| role == "kube-apiserver")
}

/// If the executable's name denotes a role, makes it the first argument. Returns whether it does.
fn by_name(mut arguments: Vec<OsString>) -> (Vec<OsString>, bool) {
    let called = arguments
        .first()
        .and_then(|path| Path::new(path).file_name()?.to_str().map(str::to_owned))
        .unwrap_or_default();
    let role = match called.as_str() {
        // A plugin of kubectl.
        "kubectl-features" => "feature-admin",
        other => other.strip_prefix("kube-").unwrap_or(other),
    };
    let is_role = ROLE_NAMES.contains(&role);
    if is_role {
        arguments[0] = role.into();
    }
    (arguments, is_role)
}

/// The name that resembles an unknown one most, for its message.
fn similar(error: &clap::Error) -> String {
    let names = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.as_slice(),
        _ => &[],
    };
    names.first().map(|name| format!(", similar to {name}")).unwrap_or_default()
}

fn roles() -> Vec<String> {
    Cli::command()
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .filter(|name| !OTHERS.contains(&name.as_str()))
        .collect()
}

/// The error chain on a single line.
fn one_line(error: &anyhow::Error) -> String {
    with_causes(&**error).lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Prints to standard output; ignores a closed one.
fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(bytes).and_then(|()| output.flush());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_repeat_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("ServiceError: {0}")]
        struct Quoting(#[source] std::io::Error);
        let cause = std::io::Error::other("refused\nby the peer");
        let error = anyhow::Error::from(Quoting(cause)).context("cannot list the pods");
        assert_eq!(one_line(&error), "cannot list the pods: ServiceError: refused by the peer");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(roles().iter().all(|role| ROLE_NAMES.contains(&role.as_str())));
    }

    #[test]
    fn the_name_of_the_executable_can_be_the_role() {
        let with = |words: &[&str]| by_name(words.iter().map(OsString::from).collect());
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            with(&["/usr/bin/kube-apiserver", "--secure-port=0"]),
            (words(&["apiserver", "--secure-port=0"]), true)
        );
        let plugin = with(&["/usr/bin/kubectl-features", "list"]);
        assert_eq!(plugin, (words(&["feature-admin", "list"]), true));
        assert_eq!(with(&["kubelet"]), (words(&["kubelet"]), true));
        assert_eq!(with(&["./ferrokube", "version"]), (words(&["./ferrokube", "version"]), false));
        assert_eq!(with(&["renamed", "version"]), (words(&["renamed", "version"]), false));
        assert_eq!(with(&[]), (Vec::new(), false));
        assert!(is_kube_apiserver(&words(&["/usr/bin/kube-apiserver"])));
        assert!(is_kube_apiserver(&words(&["ferrokube", "kube-apiserver"])));
        assert!(!is_kube_apiserver(&words(&["/usr/bin/apiserver", "kube-apiserver.log"])));
        let usage = |text: &str| {
            let (arguments, by_name) = with(&[text, "--bogus"]);
            Cli::command()
                .multicall(by_name)
                .try_get_matches_from(arguments)
                .expect_err("no such flag")
                .to_string()
        };
        let usage = usage("/usr/bin/kube-controller-manager");
        assert!(usage.contains("Usage: controller-manager [OPTIONS]"), "{usage}");
    }

    /// The profile of a server that is started so.
    fn profile(words: &[&str]) -> String {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        let is_kube_apiserver = is_kube_apiserver(&arguments);
        let (arguments, by_name) = by_name(arguments);
        let parsed = command(is_kube_apiserver).multicall(by_name).try_get_matches_from(arguments);
        let role = Cli::from_arg_matches(&parsed.expect("flags")).expect("flags").role;
        let shown = format!("{role:?}");
        let profile = shown.split("profile: ").nth(1).unwrap_or_default();
        profile.split(',').next().unwrap_or_default().to_owned()
    }

    #[test]
    fn called_kube_apiserver_the_default_profile_is_kubernetes() {
        assert_eq!(profile(&["/usr/bin/kube-apiserver"]), "Kubernetes");
        assert_eq!(profile(&["ferrokube", "kube-apiserver"]), "Kubernetes");
        assert_eq!(profile(&["kube-apiserver", "--profile=generic"]), "Generic");
        assert_eq!(profile(&["/usr/bin/apiserver"]), "Generic");
        assert_eq!(profile(&["ferrokube", "apiserver"]), "Generic");
        assert_eq!(profile(&["apiserver", "--profile=kubernetes"]), "Kubernetes");
    }

    #[test]
    fn a_node_has_the_kinds_of_kubernetes_unless_a_profile_is_given() {
        let role = ["ferrokube", "all-in-one"];
        assert_eq!(profile(&role), "Generic");
        assert_eq!(profile(&[&role[..], &["--profile=kubernetes"]].concat()), "Kubernetes");
        assert_eq!(profile(&[&role[..], &["--node"]].concat()), "Kubernetes");
        assert_eq!(profile(&[&role[..], &["--node", "--profile=generic"]].concat()), "Generic");
        let alone = ["ferrokube", "all-in-one", "--node-name=n"];
        assert!(command(false).try_get_matches_from(alone).is_err(), "it needs --node");
    }

    #[test]
    fn of_a_repeated_flag_the_last_counts_and_lists_add_up() {
        let parsed = |words: &[&str]| {
            let matches = Cli::command().try_get_matches_from([&["ferrokube"], words].concat());
            Cli::from_arg_matches(&matches.expect("flags")).expect("flags").role
        };
        let repeated = ["--secure-port=1", "--secure-port=2", "--tls-san=a", "--tls-san=b,c"];
        for role in ["all-in-one", "kube-apiserver", "envtest-apiserver"] {
            let shown = format!("{:?}", parsed(&[&[role], &repeated[..]].concat()));
            assert!(shown.contains("secure_port: 2"), "{shown}");
            assert!(shown.contains(r#"tls_sans: ["a", "b", "c"]"#), "{shown}");
        }
        let etcd = parsed(&[
            "envtest-etcd",
            "--data-dir=a",
            "--data-dir=b",
            "--unsafe-no-fsync",
            "--unsafe-no-fsync",
        ]);
        assert!(format!("{etcd:?}").contains(r#"data_dir: "b""#), "{etcd:?}");
    }
}
