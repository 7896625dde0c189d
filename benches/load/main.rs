//! A load generator for any Kubernetes-style API server: CPU per operation, rates and latencies.
//!
//! ```text
//! cargo bench -p ferrokube-benches --bench load                                            # our own server, started in a temporary directory
//! cargo bench -p ferrokube-benches --bench load -- --binary old=/tmp/old --binary new=/tmp/new --only create,get
//! cargo bench -p ferrokube-benches --bench load -- --binary ferrokube=target/release/ferrokube --target PEER=KUBECONFIG,PID,PID --json out.json --page out.html
//! cargo bench -p ferrokube-benches --bench load -- --server PEER=https://127.0.0.1:6443 --kubeconfig KUBECONFIG
//! cargo bench -p ferrokube-benches --bench load -- --etcd target/etcd/3.5/etcd --only create,patch-hot,restart,memory
//! cargo bench -p ferrokube-benches --bench load -- --curve objects=1000,10000,100000,1000000 --only none
//! ```
//!
//! With several servers the rounds are interleaved (A B, B A, A B, ...), so that noise affects all
//! alike. CPU is that of the given processes, from `/proc/PID/task/*/schedstat`; on a small shared
//! machine it is the reliable figure, and rates are informative.
//! Start at `scenarios` (a file per family) and `curves`; docs/benchmarks.md explains how to read
//! the figures.

mod connection;
mod curves;
mod measure;
mod namespace;
mod noise;
mod page;
mod plot;
mod process;
mod results;
mod reviewer;
mod scenarios;
mod stats;
mod table;
mod target;

use anyhow::{Context, bail};
use clap::Parser;
use curves::CurveSpec;
use namespace::BenchNamespace;
use noise::{Machine, Noise};
use process::{Binary, OwnServer};
use results::{Results, Round};
use scenarios::{LoadPlan, Scenario};
use std::path::PathBuf;
use std::sync::Arc;
use target::LoadTarget;

#[derive(Parser, Debug)]
#[command(name = "load", about = "Measures API servers", long_about = None)]
struct LoadOptions {
    /// [NAME=]PATH [ROLE] [FLAG...]: a ferrokube to start in a temporary directory, all-in-one or
    /// in another role; without any server, the one cargo built
    #[arg(long)]
    binary: Vec<String>,
    /// Executable of etcd: start each binary a second time, as NAME-etcd, with its state in an etcd
    /// of its own, whose CPU and memory do not count
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// NAME=KUBECONFIG[,PID...]: a running server, and the processes whose CPU and memory count
    /// (default: those listening on its port)
    #[arg(long)]
    target: Vec<String>,
    /// NAME=URL[,PID...]: a running server by URL, with the credentials of --kubeconfig
    #[arg(long, requires = "kubeconfig")]
    server: Vec<String>,
    /// For --server; one for all, or one for each in the same order
    #[arg(long)]
    kubeconfig: Vec<PathBuf>,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Run only these scenarios (comma-separated names or prefixes; "none" for curves alone)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// NAME[=SIZE,SIZE...]: costs by size, see --list; on separate servers where possible
    #[arg(long)]
    curve: Vec<String>,
    /// Requests per scenario and round
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Connections (one request at a time on each)
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Objects in the list scenarios
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Objects in the memory and restart scenarios
    #[arg(long, default_value_t = 100_000)]
    stored: usize,
    /// Watchers in the watch scenarios
    #[arg(long, default_value_t = 1000)]
    watchers: usize,
    /// Events per round of the watch scenarios
    #[arg(long, default_value_t = scenarios::watch::EVENTS)]
    events: usize,
    /// Write all results to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write a page with tables and plots to this file
    #[arg(long)]
    page: Option<PathBuf>,
    /// Start with the results of an earlier run (--json); with "--only none", joins several into a
    /// page
    #[arg(long)]
    from: Vec<PathBuf>,
    /// List the scenarios and curves
    #[arg(long)]
    list: bool,
    /// Passed by cargo bench; ignored
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let options = LoadOptions::parse();
    if options.list {
        for scenario in scenarios::all() {
            println!("{:<16} {}", scenario.name, scenario.what);
        }
        for (name, what, sizes) in curves::ALL {
            println!("--curve {name:<12} {what}; {sizes:?} unless given");
        }
        return Ok(());
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(options))
}

async fn run(options: LoadOptions) -> anyhow::Result<()> {
    let mut results = Results::default();
    for path in &options.from {
        let text =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        results.merge(
            serde_json::from_slice(&text)
                .with_context(|| format!("{} is not a report", path.display()))?,
        );
    }
    let chosen = chosen(&options.only)?;
    if !(chosen.is_empty() && options.curve.is_empty()) {
        let mut measured = Results { machines: vec![Machine::here()], ..Results::default() };
        measure(&options, &chosen, &mut measured).await?;
        results.merge(measured);
    }
    if let Some(path) = options.json {
        std::fs::write(&path, serde_json::to_string_pretty(&results)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = options.page {
        std::fs::write(&path, page::render(&results))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn chosen(only: &[String]) -> anyhow::Result<Vec<&'static Scenario>> {
    if only == ["none"] {
        return Ok(Vec::new());
    }
    let wanted = |scenario: &&Scenario| {
        only.is_empty() || only.iter().any(|word| scenario.name.starts_with(word.as_str()))
    };
    let chosen: Vec<&Scenario> = scenarios::all().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("unknown scenario {only:?}; see --list");
    }
    Ok(chosen)
}

async fn measure(
    options: &LoadOptions,
    chosen: &[&Scenario],
    results: &mut Results,
) -> anyhow::Result<()> {
    let (targets, started) = targets(options).await?;
    let LoadOptions { requests, connections, objects, stored, watchers, events, .. } = *options;
    let plan = LoadPlan { requests, connections, objects, stored, watchers, events };
    for scenario in chosen {
        for round in 0..options.rounds {
            rounds(scenario, round, &targets, &plan, results).await?;
        }
        eprint!("\r\x1b[K");
        table::print(results, scenario.name);
    }
    for text in &options.curve {
        let wanted = CurveSpec::parse(text)?;
        for target in &targets {
            results.noise.push(Noise::sample());
            let curve = grow(&wanted, target)
                .await
                .with_context(|| format!("{text} on {}", target.name))?;
            eprint!("\r\x1b[K");
            table::print_curve(&curve);
            results.curves.push(curve);
        }
    }
    table::print_noise(results);
    for own in started {
        own.stop().await?;
    }
    Ok(())
}

/// All targets, and those that were started here.
async fn targets(options: &LoadOptions) -> anyhow::Result<(Vec<Arc<LoadTarget>>, Vec<OwnServer>)> {
    let (mut targets, mut started) = (Vec::new(), Vec::new());
    let mut binaries = options
        .binary
        .iter()
        .map(|text| Binary::parse(text).with_context(|| format!("--binary {text}")))
        .collect::<Result<Vec<_>, _>>()?;
    if binaries.is_empty() && options.target.is_empty() && options.server.is_empty() {
        binaries.push(Binary::ours()?);
    }
    let on_etcd = options.etcd.iter().flat_map(|etcd| binaries.iter().map(|one| one.on_etcd(etcd)));
    let on_etcd: Vec<Binary> = on_etcd.collect();
    for binary in binaries.into_iter().chain(on_etcd) {
        let own = OwnServer::start(Arc::new(binary)).await?;
        let target = LoadTarget::of(&own)?;
        if own.has_etcd() {
            target.wait_until_alone().await.with_context(|| target.name.clone())?;
        }
        targets.push(Arc::new(target));
        started.push(own);
    }
    for text in &options.target {
        targets
            .push(Arc::new(LoadTarget::parse(text).with_context(|| format!("--target {text}"))?));
    }
    for (index, text) in options.server.iter().enumerate() {
        let kubeconfig = options
            .kubeconfig
            .get(index)
            .or(options.kubeconfig.last())
            .context("--server needs --kubeconfig")?;
        targets.push(Arc::new(
            LoadTarget::by_url(text, kubeconfig).with_context(|| format!("--server {text}"))?,
        ));
    }
    Ok((targets, started))
}

/// One round on every target, in alternating order, so that drift affects all alike.
async fn rounds(
    scenario: &Scenario,
    round: usize,
    targets: &[Arc<LoadTarget>],
    plan: &LoadPlan,
    results: &mut Results,
) -> anyhow::Result<()> {
    let mut order: Vec<&Arc<LoadTarget>> =
        targets.iter().filter(|target| !scenario.starts || target.binary.is_some()).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    results.noise.push(Noise::sample());
    let mut measured = Vec::new();
    for target in order {
        eprint!("\r\x1b[K{} round {} on {}", scenario.name, round + 1, target.name);
        let sample = one(scenario, target, plan)
            .await
            .with_context(|| format!("{} on {}", scenario.name, target.name))?;
        measured.push((target.name.clone(), Round::from(sample)));
    }
    if round % 2 == 1 {
        measured.reverse();
    }
    for (target, round) in measured {
        results.add(scenario.name, &target, round);
    }
    Ok(())
}

async fn one(
    scenario: &Scenario,
    target: &Arc<LoadTarget>,
    plan: &LoadPlan,
) -> anyhow::Result<measure::Sample> {
    let space = BenchNamespace::make(target.clone()).await?;
    let sample = (scenario.run)(&space, plan).await?;
    space.remove().await?;
    Ok(sample)
}

/// Measures a curve on a separate server if possible.
async fn grow(wanted: &CurveSpec, target: &Arc<LoadTarget>) -> anyhow::Result<results::Curve> {
    let Some(binary) = target.binary.clone() else { return wanted.measure(target.clone()).await };
    let own = OwnServer::start(binary).await?;
    let curve = wanted.measure(Arc::new(LoadTarget::of(&own)?)).await?;
    own.stop().await?;
    Ok(curve)
}
