//! `ferrokube all-in-one`: API server, storage and controllers in one process.

use super::controllers::{Controllers, ControllersFlag};
use super::flags::{KubeApiserverFlags, Profile, ServerFlags, kube_apiserver_defaults};
use super::node::{NodeFlags, NodeSetup};
use super::server::{self, Companion, ServerSetup};
use clap::Args;
use ferrokube_server::RunningControlPlane;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct AllInOneFlags {
    #[command(flatten)]
    controllers: ControllersFlag,
    /// Treat requests without credentials as system:anonymous, which has almost no rights; false:
    /// reject them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    anonymous_auth: bool,
    // Last, as clap applies the headings of its groups to everything after it.
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    node: NodeFlags,
}

/// Components next to the API server.
struct Companions<'a> {
    controllers: Controllers<'a>,
    node: Option<NodeSetup>,
}

impl Companion for Companions<'_> {
    fn check(&self) -> anyhow::Result<()> {
        self.controllers.check()
    }

    fn start(&self, setup: &ServerSetup<'_>, server: &mut RunningControlPlane) {
        self.controllers.start(setup, server);
        if let Some(node) = &self.node {
            node.start(server);
        }
    }
}

/// Runs until a signal.
pub(crate) fn run(flags: AllInOneFlags, started: Instant) -> anyhow::Result<ExitCode> {
    let kube_apiserver =
        KubeApiserverFlags { anonymous_auth: flags.anonymous_auth, ..kube_apiserver_defaults() };
    let (gates, _) = flags.server.features.gates()?;
    let companions = Companions {
        controllers: Controllers { chosen: &flags.controllers.chosen },
        node: flags.node.setup(flags.server.profile == Profile::Kubernetes, gates)?,
    };
    server::run(&flags.server, &kube_apiserver, Some(&companions), started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct AllInOneCli {
        #[command(flatten)]
        flags: AllInOneFlags,
    }

    #[test]
    fn all_controllers_can_be_left_out() {
        for arguments in [&["all-in-one", "--controllers=-*"][..], &["x", "--controllers", "-*"]] {
            let cli = AllInOneCli::try_parse_from(arguments).expect("flags");
            assert!(Controllers { chosen: &cli.flags.controllers.chosen }.check().is_ok());
        }
    }

    #[test]
    fn anonymous_requests_can_be_refused() {
        for (arguments, want) in [
            (&["all-in-one"][..], true),
            (&["all-in-one", "--anonymous-auth=false"], false),
            (&["all-in-one", "--anonymous-auth"], true),
        ] {
            assert_eq!(
                AllInOneCli::try_parse_from(arguments).expect("flags").flags.anonymous_auth,
                want
            );
        }
    }
}
