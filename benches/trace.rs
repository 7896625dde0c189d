//! `ferrokube trace` over a gigabyte of plain logs in the page cache:
//! `cargo bench -p ferrokube-benches --bench trace -- [--megabytes N]`.
//!
//! Generates logs of three components in three forms (text, JSON, audit events), and removes them
//! at the end. Limits: 5 s on two cores, 100 MB. Prints wall-clock time, but limits CPU time, which
//! does not depend on other load. `FERROKUBE_BINARY` selects another executable.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on should say so")]

use ferrokube_benches::built_binary;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// 5 s on two cores.
const MAX_CPU_SECONDS: f64 = 10.0;
const MAX_KIB: u64 = 100 << 10;
/// Unit of CPU times in `/proc/PID/stat`, the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Initial trace id that every 64th trace belongs to.
const FAMILY: &str = "0af7651916cd43dd8448eb211c80319c";
const TRACES_PER_FAMILY: u64 = 5000;
const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = arguments
        .iter()
        .position(|word| word == "--megabytes")
        .and_then(|at| arguments.get(at + 1)?.parse().ok());
    let megabytes: u64 = given.unwrap_or(1024);
    let directory = tempfile::tempdir().unwrap();
    let traces = generate(directory.path(), megabytes << 20);
    let bytes: u64 = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    println!("{} MB of logs in 3 files, {traces} traces", bytes >> 20);
    let span = format!("{:016x}", 0x5000_0000_0000_0000_u64 + traces / 2);
    for (what, id) in [
        ("a span of one trace", span.as_str()),
        ("a family of many traces", FAMILY),
        ("an id that is nowhere", "ffffffffffffffffffffffffffffffff"),
    ] {
        let (mut most, mut peak) = (0.0_f64, 0);
        let mut all = String::new();
        for _ in 0..ROUNDS {
            let cost = run(directory.path(), id);
            let _ = write!(all, " {:.2} ({:.2} CPU)", cost.took.as_secs_f64(), cost.cpu_seconds);
            most = most.max(cost.cpu_seconds);
            peak = peak.max(cost.peak_kib);
        }
        println!("{what}:{all} s, {} MB", peak >> 10);
        assert!(
            megabytes > 1024 || (most < MAX_CPU_SECONDS && peak < MAX_KIB),
            "more than 5 s on two cores, or more than 100 MB"
        );
    }
}

#[derive(Default)]
struct SearchCost {
    took: Duration,
    cpu_seconds: f64,
    peak_kib: u64,
}

fn run(logs: &Path, id: &str) -> SearchCost {
    let binary = built_binary().unwrap();
    let started = Instant::now();
    let mut child = Command::new(binary)
        .args(["trace", id, "--logs"])
        .arg(logs)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut cost = SearchCost::default();
    let process = Path::new("/proc").join(child.id().to_string());
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        cost.peak_kib =
            cost.peak_kib.max(line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0));
        let text = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        let ticks: u64 = text
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|word| word.parse::<u64>().ok())
            .sum();
        cost.cpu_seconds = cost.cpu_seconds.max(ticks as f64 / TICKS_PER_SECOND);
        std::thread::sleep(Duration::from_millis(2));
    }
    cost.took = started.elapsed();
    cost
}

/// Writes lines until there are enough bytes. Returns the number of traces.
fn generate(directory: &Path, bytes: u64) -> u64 {
    let [mut server, mut manager, mut audit] = ["apiserver.log", "controllers.json", "audit.log"]
        .map(|name| BufWriter::new(File::create(directory.join(name)).unwrap()));
    let (mut written, mut number) = (0, 0_u64);
    let mut text = String::new();
    while written < bytes {
        let trace = format!(
            "{:016x}{:016x}",
            0x1000_0000_0000_0000_u64 + number,
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
        );
        let span = format!("{:016x}", 0x5000_0000_0000_0000_u64 + number);
        let family = if number.is_multiple_of(TRACES_PER_FAMILY) {
            FAMILY.to_owned()
        } else {
            trace.clone()
        };
        let time = format!(
            "2026-11-21T{:02}:{:02}:{:02}.{:06}Z",
            number / 3600 % 24,
            number / 60 % 60,
            number % 60,
            number % 1_000_000
        );
        for file in [&mut server, &mut manager, &mut audit] {
            text.clear();
            line(&mut text, number % 3, &[&time, &trace, &span, &family]);
            number += 1;
            written += text.len() as u64;
            file.write_all(text.as_bytes()).unwrap();
        }
    }
    number
}

fn line(text: &mut String, form: u64, [time, trace, span, family]: &[&str; 4]) {
    let _ = match form {
        0 => writeln!(
            text,
            "{time} DEBUG ferrokube_controlplane::filters::info: request verb=get k8s.resource=configmaps k8s.namespace=default k8s.name=page path=/api/v1/namespaces/default/configmaps/page user=alice http.response.status_code=200 took_us=31 trace_id={trace} span_id={span} initial_trace_id={family}"
        ),
        1 => writeln!(
            text,
            r#"{{"time":"{time}","level":"INFO","target":"ferrokube_controllers::queue","message":"reconciled","controller":"namespace","key":"default","took_us":812,"trace_id":"{trace}","span_id":"{span}","initial_trace_id":"{family}"}}"#
        ),
        _ => writeln!(
            text,
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"3236e78a-5220-4821-aa1d-45460b297f68","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/default/configmaps","verb":"create","user":{{"username":"alice","groups":["system:authenticated"]}},"sourceIPs":["127.0.0.1"],"userAgent":"kubectl","objectRef":{{"resource":"configmaps","namespace":"default","name":"page","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":201}},"requestReceivedTimestamp":"{time}","stageTimestamp":"{time}","annotations":{{"trace.kubernetes.io/initial-trace-id":"{family}","trace.kubernetes.io/span-id":"{span}","trace.kubernetes.io/trace-id":"{trace}"}}}}"#
        ),
    };
}
