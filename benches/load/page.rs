//! Renders the report as an HTML page: tables with ratios and intervals, plots, and the noise.

use crate::plot::{PlotLine, bars, color, curves, escape, short};
use crate::results::{Curve, Measured, Results};
use crate::stats::{Spread, ratio};
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = "body{font-family:sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#111;background:#fff}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right;font-variant-numeric:tabular-nums}\
th:first-child,td:first-child,td:nth-child(2){text-align:left}small{color:#555}.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}";

/// Renders the page.
pub(crate) fn render(results: &Results) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Benchmarks</title><style>{STYLE}</style></head><body>\n"
    );
    page += "<h1>Benchmarks</h1>\n";
    about(&mut page, results);
    if !results.measured.is_empty() {
        table(&mut page, results);
        plots(&mut page, results);
    }
    for name in results.curves.iter().map(|curve| curve.name.as_str()).collect::<BTreeSet<_>>() {
        growth(
            &mut page,
            &results.curves.iter().filter(|curve| curve.name == name).collect::<Vec<_>>(),
        );
    }
    page + "</body></html>\n"
}

fn about(page: &mut String, results: &Results) {
    for machine in &results.machines {
        let date = date(machine.unix_seconds);
        let (cpu, kernel, command) =
            (escape(&machine.cpu), escape(&machine.kernel), escape(&machine.command));
        let _ = writeln!(
            page,
            "<p><small>{date}, {} cores of {cpu}, Linux {kernel}: <code>cargo bench -p ferrokube-benches --bench load -- {command}</code></small></p>",
            machine.cores
        );
    }
    let of = |figure: fn(&crate::noise::Noise) -> f64| {
        interval(Spread::of(results.noise.iter().map(figure).collect()))
    };
    let (load, cpu, waiting) =
        (of(|noise| noise.load), of(|noise| noise.loop_cpu_ms), of(|noise| noise.waiting));
    let _ = writeln!(
        page,
        "<p>Values are medians over interleaved rounds; brackets hold the true median with at least 93 % (sign test). CPU is that of the server's \
        processes, from <code>/proc</code>. Noise before each round: load average {load}; a fixed loop took {cpu} ms of CPU, and {waiting} times that by the clock \
        (1 on an idle machine): rates and latencies are no better than that, CPU is touched only through caches.</p>"
    );
}

/// Formats seconds since 1970 as a date (days to civil, proleptic Gregorian).
fn date(unix_seconds: u64) -> String {
    let days = i64::try_from(unix_seconds / 86_400).unwrap_or(0) + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

fn interval(spread: Spread) -> String {
    format!("{} [{} .. {}]", short(spread.median), short(spread.low), short(spread.high))
}

fn table(page: &mut String, results: &Results) {
    page.push_str("<h2>Scenarios</h2>\n<table><tr><th>scenario</th><th>server</th><th>CPU ms/op</th><th>1/s</th><th>p50 ms</th><th>p99 ms</th><th>CPU ratio</th><th>rate ratio</th><th>more</th></tr>\n");
    for scenario in results.scenarios() {
        let mut first: Option<&Measured> = None;
        for measured in results.of(scenario) {
            row(page, measured, first);
            first = first.or(Some(measured));
        }
    }
    page.push_str("</table>\n");
}

fn row(page: &mut String, measured: &Measured, first: Option<&Measured>) {
    let median = |figure: fn(&crate::results::Round) -> f64| short(measured.spread(figure).median);
    let against = |figure: fn(&crate::results::Round) -> f64| {
        first.map_or(String::new(), |first| {
            interval(ratio(&measured.values(figure), &first.values(figure)))
        })
    };
    let names: BTreeSet<&String> =
        measured.rounds.iter().flat_map(|round| round.figures.keys()).collect();
    let figure = |name: &str| {
        short(measured.spread(|round| round.figures.get(name).copied().unwrap_or(f64::NAN)).median)
    };
    let more: Vec<String> =
        names.into_iter().map(|name| format!("{} {}", escape(name), figure(name))).collect();
    let cells = [
        escape(&measured.scenario),
        escape(&measured.target),
        interval(measured.spread(|round| round.cpu_ms)),
        median(|round| round.rate),
        median(|round| round.p50_ms),
        median(|round| round.p99_ms),
        against(|round| round.cpu_ms),
        against(|round| round.rate),
        more.join(", "),
    ];
    let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
}

fn targets(results: &Results) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for measured in &results.measured {
        if !names.contains(&measured.target.as_str()) {
            names.push(&measured.target);
        }
    }
    names
}

fn plots(page: &mut String, results: &Results) {
    let names = targets(results);
    page.push_str("<h2>CPU per operation</h2>\n<p>");
    for (index, name) in names.iter().enumerate() {
        let _ = write!(
            page,
            "<span class=\"key\" style=\"background:{}\"></span>{}",
            color(index),
            escape(name)
        );
    }
    page.push_str("</p>\n");
    for scenario in results.scenarios() {
        let index = |target: &str| names.iter().position(|name| *name == target).unwrap_or(0);
        let rows: Vec<(usize, String, Spread)> = results
            .of(scenario)
            .map(|measured| {
                (
                    index(&measured.target),
                    measured.target.clone(),
                    measured.spread(|round| round.cpu_ms),
                )
            })
            .collect();
        let _ = writeln!(page, "<h3>{} <small>ms</small></h3>\n{}", escape(scenario), bars(&rows));
    }
}

/// One plot per figure of a curve, with a line per target.
fn growth(page: &mut String, all: &[&Curve]) {
    let Some(first) = all.first() else { return };
    let _ = writeln!(page, "<h2>By number of {}</h2>", escape(&first.name));
    let names: BTreeSet<&String> = all
        .iter()
        .flat_map(|curve| &curve.points)
        .flat_map(|(_, figures)| figures.keys())
        .collect();
    let lines = |name: &str| {
        let points = |curve: &Curve| {
            curve
                .points
                .iter()
                .filter_map(|(size, figures)| Some((*size, *figures.get(name)?)))
                .collect()
        };
        all.iter()
            .map(|curve| PlotLine { label: curve.target.clone(), points: points(curve) })
            .collect::<Vec<_>>()
    };
    for curve in all {
        let _ = writeln!(
            page,
            "<table><tr><th>{}</th><th>{}</th></tr>",
            escape(&curve.target),
            names.iter().map(|name| escape(name)).collect::<Vec<_>>().join("</th><th>")
        );
        for (size, figures) in &curve.points {
            let cells: Vec<String> = names
                .iter()
                .map(|name| figures.get(*name).map_or(String::new(), |value| short(*value)))
                .collect();
            let _ =
                writeln!(page, "<tr><td>{size:.0}</td><td>{}</td></tr>", cells.join("</td><td>"));
        }
        page.push_str("</table>\n");
    }
    for name in names {
        let lines = lines(name);
        if lines.iter().any(|line| line.points.len() > 1) {
            let _ = writeln!(page, "{}", curves(&lines, name));
        }
    }
}
