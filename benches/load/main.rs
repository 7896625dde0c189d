//! A load generator for any Kubernetes-style API server: CPU per operation beside rates and latencies.
//!
//! ```text
//! cargo bench --bench load                                  # starts our own server in a temporary directory
//! cargo bench --bench load -- --target NAME=KUBECONFIG,PID[,PID...] --target PEER=KUBECONFIG,PID --rounds 5 --only create,get --json out.json
//! ```
//!
//! With several targets the rounds are interleaved (A B A B ...), so that the machine's noise falls on both alike. CPU is what the named
//! processes used, from `/proc/PID/task/*/schedstat`; on a small shared machine it binds, while rates only inform.

mod connection;
mod measure;
mod report;
mod scenarios;
mod target;

use anyhow::{Context, bail};
use clap::Parser;
use scenarios::Plan;
use target::Target;

#[derive(Parser, Debug)]
#[command(about = "Measures an API server", long_about = None)]
struct Options {
    /// NAME=KUBECONFIG,PID[,PID...]: a running server, and the processes whose CPU and memory count. Without one, our own is started.
    #[arg(long)]
    target: Vec<String>,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these scenarios (comma-separated names or prefixes).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Requests per scenario and round.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Connections (one request at a time on each).
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Objects in the list scenarios.
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Watchers in the watch scenarios.
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// Write everything that was measured here.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Given by cargo bench; ignored.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.list {
        for (name, what) in scenarios::NAMES {
            println!("{name:<18} {what}");
        }
        return Ok(());
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(options))
}

async fn run(options: Options) -> anyhow::Result<()> {
    let mut targets = Vec::new();
    for text in &options.target {
        targets.push(Target::parse(text).with_context(|| format!("--target {text}"))?);
    }
    let own = if targets.is_empty() {
        let own = target::Own::start().await?;
        targets.push(own.target()?);
        println!(
            "start              ferrokube    ready in {} ms from an empty directory, {} KiB resident",
            own.ready_ms,
            measure::resident_kib(&targets[0].pids)
        );
        Some(own)
    } else {
        None
    };
    let plan = Plan { requests: options.requests, connections: options.connections, objects: options.objects, watchers: options.watchers };
    let chosen: Vec<&str> = scenarios::NAMES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| options.only.is_empty() || options.only.iter().any(|word| name.starts_with(word.as_str())))
        .collect();
    if chosen.is_empty() {
        bail!("no scenario is called {:?}; see --list", options.only);
    }
    let mut results = report::Results::default();
    for name in chosen {
        for round in 0..options.rounds {
            for target in &targets {
                eprint!("\r\x1b[K{name} round {} of {} on {}", round + 1, options.rounds, target.name);
                let sample = scenarios::run(name, target, &plan).await.with_context(|| format!("{name} on {}", target.name))?;
                results.add(name, &target.name, sample);
            }
        }
        eprint!("\r\x1b[K");
        results.print(name);
    }
    if let Some(path) = options.json {
        std::fs::write(&path, results.to_json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(own) = own {
        own.stop().await?;
    }
    Ok(())
}
