//! `ferrokube envtest-etcd`: the stand-in for etcd.

use crate::cmd::process::{self, Signals};
use crate::cmd::server::report;
use clap::{ArgAction, Args};
use ferrokube_envtest::stand_in::StandIn;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// etcd's flags. A flag of etcd that changes what its clients get (TLS, authentication) is refused.
#[derive(Debug, Args)]
pub(crate) struct EnvtestEtcdFlags {
    /// Directory in which the API server keeps its state
    #[arg(long, value_name = "DIR", default_value = "default.etcd")]
    data_dir: PathBuf,
    /// URLs to listen on: http, loopback addresses only, which 0.0.0.0 means, too
    #[arg(
        long,
        value_name = "URL,...",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    listen_client_urls: Vec<String>,
    #[allow(dead_code, reason = "accepted only")]
    #[command(flatten)]
    unused: UnusedEtcdFlags,
}

/// Flags that mean nothing here: there is one member, and nothing is synced.
#[derive(Debug, Args)]
#[command(next_help_heading = "Accepted, without effect")]
#[allow(dead_code, reason = "accepted only")]
struct UnusedEtcdFlags {
    /// URLs of this member
    #[arg(long, value_name = "URL,...")]
    advertise_client_urls: Option<String>,
    /// URLs for other members; not listened on
    #[arg(long, value_name = "URL,...")]
    listen_peer_urls: Option<String>,
    /// URLs for other members
    #[arg(long, value_name = "URL,...")]
    initial_advertise_peer_urls: Option<String>,
    /// Members
    #[arg(long, value_name = "NAME=URL,...")]
    initial_cluster: Option<String>,
    /// new or existing
    #[arg(long, value_name = "STATE")]
    initial_cluster_state: Option<String>,
    /// Token of the cluster
    #[arg(long, value_name = "TEXT")]
    initial_cluster_token: Option<String>,
    /// URLs for metrics; not listened on
    #[arg(long, value_name = "URL,...")]
    listen_metrics_urls: Option<String>,
    /// Name of this member
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Do not sync; never done anyway
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    unsafe_no_fsync: Option<bool>,
    /// Directory of the log; there is none
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// Files to keep
    #[arg(long, value_name = "N")]
    max_wals: Option<String>,
    /// Files to keep
    #[arg(long, value_name = "N")]
    max_snapshots: Option<String>,
    /// Milliseconds between heartbeats
    #[arg(long, value_name = "N")]
    heartbeat_interval: Option<String>,
    /// Milliseconds until an election
    #[arg(long, value_name = "N")]
    election_timeout: Option<String>,
    /// Limit of the state
    #[arg(long, value_name = "N")]
    quota_backend_bytes: Option<String>,
    /// Max bytes of a request
    #[arg(long, value_name = "N")]
    max_request_bytes: Option<String>,
    /// Changes between snapshots
    #[arg(long, value_name = "N")]
    snapshot_count: Option<String>,
    /// periodic or revision
    #[arg(long, value_name = "MODE")]
    auto_compaction_mode: Option<String>,
    /// History to keep
    #[arg(long, value_name = "TEXT")]
    auto_compaction_retention: Option<String>,
    /// Logger
    #[arg(long, value_name = "NAME")]
    logger: Option<String>,
    /// Level
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Outputs
    #[arg(long, value_name = "NAME,...")]
    log_outputs: Option<String>,
}

/// As Go's flags, which etcd has: `-data-dir` is `--data-dir`.
pub(crate) fn with_two_dashes(arguments: &mut [OsString]) {
    if arguments.get(1).is_none_or(|role| role != "envtest-etcd") {
        return;
    }
    for argument in &mut arguments[2..] {
        let name = argument.as_encoded_bytes().strip_prefix(b"-").unwrap_or_default();
        if name.len() > 1 && name[0].is_ascii_alphabetic() {
            let mut long = OsString::from("-");
            long.push(&argument);
            *argument = long;
        }
    }
}

/// Runs until a signal.
pub(crate) fn run(flags: &EnvtestEtcdFlags) -> anyhow::Result<ExitCode> {
    process::block_on(serve(flags))
}

async fn serve(flags: &EnvtestEtcdFlags) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let stand_in = StandIn::bind(&flags.data_dir, &flags.listen_client_urls).await?;
    let addresses: Vec<String> =
        stand_in.addresses()?.iter().map(|address| format!("http://{address}")).collect();
    report(&format!(
        "ready: {} stand-in for etcd, not etcd; state in {}",
        addresses.join(","),
        stand_in.directory().display()
    ));
    stand_in
        .serve(async {
            signals.next().await;
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn long_flags_may_have_one_dash() {
        let read = |words: &str| {
            let mut arguments: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            with_two_dashes(&mut arguments);
            arguments.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            read("ferrokube envtest-etcd -data-dir /a --name b -wal-dir=/c -h - -1"),
            "ferrokube envtest-etcd --data-dir /a --name b --wal-dir=/c -h - -1"
        );
        for other in ["ferrokube", "ferrokube envtest-etcd", "ferrokube features -n x -output=y"] {
            assert_eq!(read(other), other);
        }
    }
}
