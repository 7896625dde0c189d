//! `ferrokube apiserver`: the API server as a separate process.

use super::flags::{KubeApiserverFlags, ServerFlags};
use super::server;
use clap::Args;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct ApiserverFlags {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kube_apiserver: KubeApiserverFlags,
}

/// Runs until a signal.
pub(crate) fn run(flags: ApiserverFlags, started: Instant) -> anyhow::Result<ExitCode> {
    server::run(&flags.server, &flags.kube_apiserver, None, started)
}
