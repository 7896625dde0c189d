//! `ferrokube apiserver`: the API server as a process of its own.

use super::flags::{NamesakeFlags, ServerFlags};
use super::server;
use clap::Args;
use std::process::ExitCode;
use std::time::Instant;

/// The role's flags.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    namesake: NamesakeFlags,
}

/// Runs until a signal.
pub(crate) fn run(flags: Flags, started: Instant) -> anyhow::Result<ExitCode> {
    server::run(&flags.server, &flags.namesake, None, started)
}
