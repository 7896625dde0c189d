//! `ferrokube all-in-one`: everything in one process.

use super::controllers::Controllers;
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
    /// Controllers to run: names, * for all, -name for all but that one
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
}

/// Runs until a signal.
pub(crate) fn run(flags: Flags, started: Instant) -> anyhow::Result<ExitCode> {
    server::run(&flags.server, &namesake_defaults(), Some(&Controllers { chosen: &flags.controllers }), started)
}
