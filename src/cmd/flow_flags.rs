//! Flags of flow control.

use clap::Args;
use ferrokube_controlplane::Limits;

/// Flow control flags.
#[derive(Debug, Args)]
#[command(next_help_heading = "Flow control")]
pub(crate) struct FlowFlags {
    /// Limit concurrency by priority level, as configured by FlowSchemas and
    /// PriorityLevelConfigurations
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_priority_and_fairness: bool,
    /// Max concurrent requests, together with --max-mutating-requests-inflight; without priority
    /// levels max concurrent reads; by default 30 for each core, at most 400
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_requests_inflight: Option<u32>,
    /// Max concurrent requests, together with --max-requests-inflight; without priority levels max
    /// concurrent writes; by default 15 for each core, at most 200
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_mutating_requests_inflight: Option<u32>,
}

impl FlowFlags {
    /// With the defaults of all that has no flag.
    pub(crate) fn limits(&self) -> Limits {
        let default = Limits::default();
        let given = |flag: Option<u32>, default: usize| flag.map_or(default, |n| n as usize);
        Limits {
            readonly_inflight: given(self.max_requests_inflight, default.readonly_inflight),
            mutating_inflight: given(
                self.max_mutating_requests_inflight,
                default.mutating_inflight,
            ),
            priority_and_fairness: self.enable_priority_and_fairness,
            ..default
        }
    }
}
