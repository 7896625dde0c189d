//! `ferrokube envtest-apiserver`: API server and controllers, started as test suites start
//! kube-apiserver.

use crate::cmd::controllers::{Controllers, ControllersFlag};
use crate::cmd::flags::{KubeApiserverFlags, ServerFlags};
use crate::cmd::server;
use anyhow::Context;
use clap::{ArgAction, Args};
use ferrokube_envtest::keys;
use ferrokube_envtest::probe::{self, StateLocation};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct EnvtestApiserverFlags {
    /// Directory with apiserver.crt and apiserver.key, the serving certificate; made if missing
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    #[command(flatten)]
    controllers: ControllersFlag,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kube_apiserver: KubeApiserverFlags,
    #[allow(dead_code, reason = "accepted only")]
    #[command(flatten)]
    unused: UnusedApiserverFlags,
}

/// kube-apiserver's flags that starters pass, and that change nothing that this server has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Accepted, without effect")]
#[allow(dead_code, reason = "accepted only")]
struct UnusedApiserverFlags {
    /// Ports of services; none are allocated
    #[arg(long, value_name = "FROM-TO")]
    service_node_port_range: Option<String>,
    /// Privileged containers; none are run
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    allow_privileged: Option<bool>,
    /// Type of etcd's data
    #[arg(long, value_name = "TYPE")]
    storage_backend: Option<String>,
    /// Cache reads
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    watch_cache: Option<bool>,
    /// Profiles at /debug/pprof; there are none
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    profiling: Option<bool>,
    /// Log to standard error
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    logtostderr: Option<bool>,
    /// Time before a shutdown
    #[arg(long, value_name = "DURATION")]
    shutdown_delay_duration: Option<String>,
    /// Profiles of contention; there are none
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    contention_profiling: Option<bool>,
    /// Objects in a cache; all are
    #[arg(long, value_name = "N")]
    default_watch_cache_size: Option<String>,
    /// Objects in caches; all are
    #[arg(long, value_name = "RESOURCE#N,...")]
    watch_cache_sizes: Option<String>,
    /// Workers of a deletion of a collection
    #[arg(long, value_name = "N")]
    delete_collection_workers: Option<String>,
    /// Shortest time of a watch
    #[arg(long, value_name = "N")]
    min_request_timeout: Option<String>,
    /// Probability of a GOAWAY
    #[arg(long, value_name = "N")]
    goaway_chance: Option<String>,
    /// Interval of counts of objects
    #[arg(long, value_name = "DURATION")]
    etcd_count_metric_poll_period: Option<String>,
    /// Verbosity by file
    #[arg(long, value_name = "PATTERN=N,...")]
    vmodule: Option<String>,
}

/// Folder of the state in the stand-in's.
const STATE: &str = "apiserver";
/// Folder of keys in the data directory.
const KEYS: &str = "envtest-keys";

/// Runs until a signal.
pub(crate) fn run(mut flags: EnvtestApiserverFlags, started: Instant) -> anyhow::Result<ExitCode> {
    // First: nothing is written before the flags are checked.
    ferrokube_controllers::check_names(&flags.controllers.chosen)?;
    let location = probe::locate(flags.server.etcd.servers())?;
    let scratch = flags.cert_dir.clone().unwrap_or_else(|| PathBuf::from("/var/run/kubernetes"));
    let data_dir = match location {
        StateLocation::StandIn(directory) => {
            flags.server.etcd.forget();
            flags.server.is_for_tests = true;
            directory.join(STATE)
        }
        StateLocation::Etcd => scratch.join("ferrokube"),
    };
    let data_dir = flags.server.data_dir.get_or_insert(data_dir).clone();
    take_keys(&mut flags, &scratch, &data_dir).context("cannot use the keys")?;
    let controllers = Controllers { chosen: &flags.controllers.chosen };
    server::run(&flags.server, &flags.kube_apiserver, Some(&controllers), started)
}

/// Replaces key files by private copies, and completes the serving certificate.
fn take_keys(
    flags: &mut EnvtestApiserverFlags,
    cert_dir: &Path,
    data_dir: &Path,
) -> anyhow::Result<()> {
    let kube_apiserver = &mut flags.kube_apiserver;
    if kube_apiserver.tls_cert_file.is_none() && flags.cert_dir.is_some() {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        if !flags.server.bind_address.is_unspecified() {
            names.push(flags.server.bind_address.to_string());
        }
        let (chain, key) = keys::serving_pair(cert_dir, &names)?;
        kube_apiserver.tls_cert_file = Some(chain);
        kube_apiserver.tls_private_key_file = Some(key);
    }
    let directory = data_dir.join(KEYS);
    let own = [
        &mut kube_apiserver.tls_private_key_file,
        &mut kube_apiserver.service_account_signing_key_file,
        &mut kube_apiserver.proxy_client_key_file,
        &mut flags.server.auth.token_auth_file,
    ];
    for key in own.into_iter().flatten() {
        *key = keys::copy(key, &directory)?;
    }
    Ok(())
}
