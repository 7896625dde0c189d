//! `ferrokube all-in-one`: everything in one process.

use super::flags::{ServerFlags, namesake_defaults};
use super::server;
use clap::Args;
use std::process::ExitCode;
use std::time::Instant;

/// The role's flags.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    #[command(flatten)]
    server: ServerFlags,
}

/// Runs until a signal.
pub(crate) fn run(flags: Flags, started: Instant) -> anyhow::Result<ExitCode> {
    server::run(&flags.server, &namesake_defaults(), None, started)
}
