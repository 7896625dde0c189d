//! Effect of attacks on another user: create latency, errors and server memory, per attack.
//!
//! ```text
//! cargo bench -p ferrokube-benches --bench hostile                            # every attack, 10 s each, on one server
//! cargo bench -p ferrokube-benches --bench hostile -- --only yaml-bomb --seconds 5
//! cargo bench -p ferrokube-benches --bench hostile -- --check                 # fails if an aim is missed
//! cargo bench -p ferrokube-benches --bench hostile -- --binary target/release/ferrokube --markdown docs/hostile.md
//! cargo bench -p ferrokube-benches --bench hostile -- --share --check         # a greedy tenant instead of attacks
//! ```
//!
//! One server with 10,000 objects takes all attacks in turn, so memory that an attack leaves behind
//! counts against the next. Created objects are deleted in between. Another server takes those on
//! what is not served by default.
//! Attackers run on threads of the lowest priority, so that they do not win by taking CPU from the
//! server.
//! Start at `attacks::BY_SERVER`.

mod attacks;
mod kubelet;
mod share;
mod testbed;
mod victim;
mod wire;

use anyhow::Context;
use attacks::Attack;
use clap::Parser;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use testbed::{TargetServer, Testbed};
use tokio::runtime::Handle;
use victim::{Latencies, Victim};

#[derive(Parser, Debug)]
#[command(name = "hostile", about = "Attacks a server and measures another user's creates", long_about = None)]
struct HostileOptions {
    /// Executable [default: the one cargo built]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Run only these attacks (comma-separated names)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Duration of each attack in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// ConfigMaps of 1 KiB stored before the first attack
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Also write the table to this file
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Exit with 1 if an attack misses the aims: p99 of at most 10 times the quiet one, 256 MiB, no
    /// failed create; or if it did not take place
    #[arg(long)]
    check: bool,
    /// Instead: what one greedy tenant of eight leaves to the others; fails with --check if one
    /// keeps less than 95 % of its throughput
    #[arg(long)]
    share: bool,
    /// List the attacks
    #[arg(long)]
    list: bool,
    /// Passed by cargo bench; ignored
    #[arg(long, hide = true)]
    bench: bool,
}

/// Pause between attacks: connections close, and pending work ends.
const SETTLE: Duration = Duration::from_secs(2);

/// Largest p99 of creates, as a multiple of the quiet one.
const MAX_SLOWDOWN: f64 = 10.0;
/// Largest resident memory of the server.
const MAX_PEAK_MIB: u64 = 256;

/// Measurements of one attack.
struct AttackOutcome {
    name: &'static str,
    latencies: Latencies,
    manifests: Latencies,
    /// p99 of small creates and of manifests without an attack.
    quiet_p99: [f64; 2],
    /// Peak resident memory of the server, in MiB.
    peak_mib: u64,
    /// Responses and errors that the attacker counted.
    seen: String,
    /// Those that it did not count, though the attack consists of them.
    lacks: Vec<&'static str>,
}

fn main() -> anyhow::Result<()> {
    let options = HostileOptions::parse();
    if options.list {
        for attack in all_attacks() {
            println!("{:<20} {}", attack.name, attack.what);
        }
        return Ok(());
    }
    for name in &options.only {
        anyhow::ensure!(
            all_attacks().any(|attack| attack.name == name),
            "unknown attack {name}; see --list"
        );
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let attackers = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(lower_priority)
        .enable_all()
        .build()?;
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(run(&options, attackers.handle()));
    attackers.shutdown_background();
    outcome
}

/// Affects the calling thread only: on Linux priorities are per thread.
fn lower_priority() {
    let _ = rustix::process::nice(19);
}

fn all_attacks() -> impl Iterator<Item = &'static Attack> {
    attacks::BY_SERVER.iter().flat_map(|(_, attacks)| *attacks)
}

async fn run(options: &HostileOptions, attackers: &Handle) -> anyhow::Result<()> {
    let binary = options.binary.clone().map_or_else(ferrokube_benches::built_binary, Ok)?;
    let seconds = Duration::from_secs(options.seconds);
    let server = async |served| {
        let set = Testbed::set(&binary, options.objects, served, attackers);
        set.await.context("cannot prepare the server").map(Arc::new)
    };
    if options.share {
        let kept = share::run(&server(TargetServer::Default).await?, attackers, seconds).await?;
        let is_met = share::is_enough(kept);
        anyhow::ensure!(!options.check || is_met, "missed: {:.0} % kept", kept * 100.0);
        return Ok(());
    }
    let mut outcomes: Vec<AttackOutcome> = Vec::new();
    for (served, attacks) in attacks::BY_SERVER {
        let is_chosen = |attack: &&Attack| {
            options.only.is_empty() || options.only.iter().any(|name| name == attack.name)
        };
        let chosen: Vec<&Attack> = attacks.iter().filter(is_chosen).collect();
        if chosen.is_empty() {
            continue;
        }
        let measured = attack_all(&server(served).await?, attackers, &chosen, seconds).await?;
        // Of the other server only the attacks, which are compared with its own quiet time.
        outcomes.extend(measured.into_iter().skip(usize::from(!outcomes.is_empty())));
    }
    let table = table(&outcomes);
    println!("{table}");
    if let Some(path) = &options.markdown {
        std::fs::write(path, table).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let missed: Vec<String> = outcomes.iter().filter_map(AttackOutcome::missed).collect();
    anyhow::ensure!(!options.check || missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

/// The quiet outcome, then those of the attacks in turn.
async fn attack_all(
    stage: &Arc<Testbed>,
    attackers: &Handle,
    attacks: &[&Attack],
    seconds: Duration,
) -> anyhow::Result<Vec<AttackOutcome>> {
    let victim = Victim::new(stage);
    victim.measure(Duration::from_secs(2)).await;
    let mut quiet = measured("quiet", stage, &victim, seconds).await;
    quiet.quiet_p99 =
        [&quiet.latencies, &quiet.manifests].map(|latencies| latencies.percentile(0.99));
    let quiet_p99 = quiet.quiet_p99;
    eprintln!("  {}", row(&quiet));
    let mut outcomes = vec![quiet];
    for attack in attacks {
        eprintln!("{}: {}", attack.name, attack.what);
        let tally = Arc::new(attacks::AttackTally::default());
        let running = attackers.spawn((attack.run)(Arc::clone(stage), Arc::clone(&tally)));
        let mut outcome = measured(attack.name, stage, &victim, seconds).await;
        running.abort();
        if let Err(error) = running.await
            && error.is_panic()
        {
            anyhow::bail!("the attack {} failed in the bench itself", attack.name);
        }
        outcome.quiet_p99 = quiet_p99;
        outcome.seen = tally.to_string();
        outcome.lacks = tally.lacks(attack.proof);
        eprintln!("  {}", row(&outcome));
        outcomes.push(outcome);
        tokio::time::sleep(SETTLE).await;
        anyhow::ensure!(stage.is_alive().await, "the server does not answer after {}", attack.name);
        stage.clear().await?;
        attacks::wait_for_room(stage).await?;
    }
    Ok(outcomes)
}

impl AttackOutcome {
    /// p99 of small creates and of manifests, as multiples of the quiet ones.
    fn slowdowns(&self) -> [f64; 2] {
        [
            self.latencies.percentile(0.99) / self.quiet_p99[0],
            self.manifests.percentile(0.99) / self.quiet_p99[1],
        ]
    }

    /// Which aims it misses.
    fn missed(&self) -> Option<String> {
        let slowdowns = self.slowdowns();
        let errors = self.latencies.errors + self.manifests.errors;
        let mut missed = Vec::new();
        for (what, slowdown) in ["creates", "manifests"].into_iter().zip(slowdowns) {
            // No number is a miss, too.
            if slowdown.is_nan() || slowdown > MAX_SLOWDOWN {
                missed.push(format!("{what} {slowdown:.1} times as slow"));
            }
        }
        if !self.lacks.is_empty() {
            missed.push(format!("did not take place: no {}", self.lacks.join(", no ")));
        }
        if self.peak_mib > MAX_PEAK_MIB {
            missed.push(format!("{} MiB", self.peak_mib));
        }
        if errors > 0 {
            missed.push(format!("{errors} failed creates"));
        }
        (!missed.is_empty()).then(|| format!("{} ({})", self.name, missed.join(", ")))
    }
}

async fn measured(
    name: &'static str,
    stage: &Testbed,
    victim: &Victim,
    seconds: Duration,
) -> AttackOutcome {
    let watch = stage.watch_memory();
    let (latencies, manifests) = victim.measure(seconds).await;
    let peak_mib = watch.peak_mib();
    AttackOutcome {
        name,
        latencies,
        manifests,
        quiet_p99: [f64::NAN; 2],
        peak_mib,
        seen: String::new(),
        lacks: Vec::new(),
    }
}

fn row(outcome: &AttackOutcome) -> String {
    let AttackOutcome { name, latencies, manifests, peak_mib, seen, .. } = outcome;
    let slowdowns = outcome.slowdowns();
    let [small, large] =
        [(latencies, slowdowns[0]), (manifests, slowdowns[1])].map(|(latencies, slowdown)| {
            let (p50, p99) = (latencies.percentile(0.5), latencies.percentile(0.99));
            format!(
                "{p50:.1} | {p99:.1} | {slowdown:.1} | {} of {}",
                latencies.errors,
                latencies.count()
            )
        });
    format!("| {name} | {small} | {large} | {peak_mib} | {seen} |")
}

fn table(outcomes: &[AttackOutcome]) -> String {
    let measured = "p50 ms | p99 ms | p99 / quiet | errors";
    let mut text = format!(
        "| attack | {measured} | manifests: {measured} | peak RSS MiB | attacker saw |\n{}|\n",
        "|---".repeat(11)
    );
    for outcome in outcomes {
        text.push_str(&row(outcome));
        text.push('\n');
    }
    text
}
