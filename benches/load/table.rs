//! Text tables.

use crate::results::{Curve, Measured, Results};
use crate::stats::{Spread, ratio};

/// A line per target of a scenario; with several targets, with ratios to the first.
pub(crate) fn print(results: &Results, scenario: &str) {
    let mut first: Option<&Measured> = None;
    for measured in results.of(scenario) {
        println!("{}", line(measured, first));
        first = first.or(Some(measured));
    }
}

fn line(measured: &Measured, first: Option<&Measured>) -> String {
    let cpu = measured.spread(|round| round.cpu_ms);
    let median = |figure: fn(&crate::results::Round) -> f64| measured.spread(figure).median;
    let mut line = format!(
        "{:<16} {:<12} cpu {} ms/op  {:>8.0}/s",
        measured.scenario,
        measured.target,
        spread(cpu, 4),
        median(|round| round.rate)
    );
    line += &format!(
        "  p50 {:>8.3}  p99 {:>8.3} ms",
        median(|round| round.p50_ms),
        median(|round| round.p99_ms)
    );
    for name in measured
        .rounds
        .iter()
        .flat_map(|round| round.figures.keys())
        .collect::<std::collections::BTreeSet<_>>()
    {
        let figure = measured.spread(|round| round.figures.get(name).copied().unwrap_or(f64::NAN));
        line += &format!("  {name} {}", spread(figure, 2));
    }
    if let Some(first) = first {
        let cpu =
            ratio(&measured.values(|round| round.cpu_ms), &first.values(|round| round.cpu_ms));
        let rate = ratio(&measured.values(|round| round.rate), &first.values(|round| round.rate));
        line +=
            &format!("  | of {}: cpu x{}, rate x{}", first.target, spread(cpu, 2), spread(rate, 2));
    }
    line
}

fn spread(spread: Spread, digits: usize) -> String {
    format!("{:.digits$} [{:.digits$} .. {:.digits$}]", spread.median, spread.low, spread.high)
}

/// A line per size of a curve.
pub(crate) fn print_curve(curve: &Curve) {
    for (size, figures) in &curve.points {
        let text: Vec<String> =
            figures.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
        println!("{:<16} {:<12} {:>9.0}  {}", curve.name, curve.target, size, text.join("  "));
    }
}

/// Noise during the run.
pub(crate) fn print_noise(results: &Results) {
    let of = |figure: fn(&crate::noise::Noise) -> f64| {
        Spread::of(results.noise.iter().map(figure).collect())
    };
    let (load, cpu, waiting) =
        (of(|noise| noise.load), of(|noise| noise.loop_cpu_ms), of(|noise| noise.waiting));
    println!(
        "noise: load {}, a fixed loop takes {} ms of CPU, and {} times that in wall-clock time",
        spread(load, 1),
        spread(cpu, 2),
        spread(waiting, 2)
    );
}
