//! `ferrokube doctor`: checks an installation, given its server's flags, and suggests fixes.

use super::certs::{print, table};
use super::flags::{KubeApiserverFlags, ServerFlags};
use super::{Cli, server};
use clap::{Args, CommandFactory};
use ferrokube_client::Connection;
use ferrokube_doctor::{CheckOutcome, Finding, directory, machine, store};
use ferrokube_etcd::EtcdKeys;
use ferrokube_install::Installation;
use ferrokube_pki::inventory::{self, FoundCertificate};
use ferrokube_pki::{Validity, files};
use ferrokube_server::DataDir;
use ferrokube_server::data_dir::FORMAT;
use ferrokube_trace::with_causes;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use tokio::runtime::Builder;

/// Time limit of each check that waits for others.
const PATIENCE: Duration = Duration::from_secs(5);
/// Data directory of the units.
const INSTALLED: &str = "/var/lib/ferrokube";
/// The units' settings, and the commands whose flags are in them.
const SETTINGS: [(&str, &[&str]); 5] = [
    ("all-in-one.env", &["all-in-one"]),
    ("apiserver.env", &["kube-apiserver"]),
    ("controller-manager.env", &["controller-manager", "--kubeconfig=x"]),
    ("kubelet.env", &["kubelet"]),
    ("check-upgrade.env", &["feature-admin", "check-upgrade", "--to=1.37"]),
];

#[derive(Debug, Args)]
pub(crate) struct DoctorFlags {
    /// Prefix of an installation to check
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Root of that installation
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Skip reading the whole journal, which is slow if it is large
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kube_apiserver: KubeApiserverFlags,
}

/// Checks all, prints a table, then the advice. The exit code is 1 if anything is wrong.
pub(crate) fn run(flags: &DoctorFlags) -> anyhow::Result<ExitCode> {
    let chosen = flags.server.data_dir.clone().or_else(|| {
        let installed = PathBuf::from(INSTALLED);
        installed.is_dir().then_some(installed)
    });
    let data_dir = DataDir::locate(chosen.as_deref())?;
    let findings = examine(flags, &data_dir);
    print(&shown(&findings));
    let is_wrong = findings.iter().any(|finding| finding.outcome == CheckOutcome::Failed);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn shown(findings: &[Finding]) -> String {
    let mut rows = vec![["CHECK", "STATE", "FOUND"].map(str::to_owned)];
    rows.extend(findings.iter().map(|finding| {
        [finding.check.to_owned(), finding.outcome.to_string(), finding.what.clone()]
    }));
    let mut text = table(&rows);
    let mut advised = findings.iter().filter(|finding| !finding.advice.is_empty()).peekable();
    if advised.peek().is_some() {
        text.push_str("\nWhat to do:\n");
    }
    for finding in advised {
        text.push_str(&format!("* {}: {}\n", finding.check, finding.advice));
    }
    text
}

fn examine(flags: &DoctorFlags, data_dir: &Path) -> Vec<Finding> {
    let mut findings = vec![machine::descriptors(), settings_of_command(flags)];
    findings.extend(installation(flags));
    findings.push(machine::disk(data_dir));
    findings.push(machine::clock(data_dir, SystemTime::now()));
    let (is_there, itself) = directory::access(data_dir);
    findings.push(itself);
    let holder = store::holder(data_dir);
    if is_there {
        findings.extend(directory::entries(data_dir));
        findings.push(directory::format(data_dir, FORMAT));
        findings.push(match (flags.server.etcd.is_used(), flags.quick) {
            (true, _) => Finding::skipped("store", "the state is in etcd"),
            (_, true) => Finding::skipped("store", "left out by --quick"),
            _ => store::journal(data_dir),
        });
        findings.extend(certificates(&flags.kube_apiserver, data_dir, SystemTime::now()));
    }
    let address = SocketAddr::new(flags.server.bind_address, flags.server.secure_port);
    match holder {
        Some(pid) => findings.push(Finding::ok("server", format!("process {pid} runs"))),
        None => findings.push(machine::port(address)),
    }
    findings.extend(others(flags, data_dir, holder.is_some()));
    findings
}

/// The flags given here, as a server checks them.
fn settings_of_command(flags: &DoctorFlags) -> Finding {
    match server::check(&flags.server, &flags.kube_apiserver) {
        Ok(()) => Finding::ok("flags", "a server would take them"),
        Err(error) => Finding::failed("flags", with_causes(&*error), "correct the flag"),
    }
}

/// Executables, units and settings, if `ferrokube install` was run.
fn installation(flags: &DoctorFlags) -> Vec<Finding> {
    let layout = Installation { root: flags.root.clone(), prefix: flags.prefix.clone() };
    let mut findings = Vec::new();
    match layout.differences() {
        None => return vec![Finding::skipped("installation", "none")],
        Some(different) if different.is_empty() => {
            findings.push(Finding::ok("installation", "is of this version"));
        }
        Some(different) => findings.push(Finding::warning(
            "installation",
            format!("of another version, or changed: {}", different.join(", ")),
            "run `ferrokube install` with the version that is to run, then `systemctl daemon-reload`",
        )),
    }
    for (name, command) in SETTINGS {
        let path = layout.settings().join(name);
        match files::read_regular(&path) {
            Ok(None) => {}
            Ok(Some(text)) => {
                findings.push(settings(name, command, &String::from_utf8_lossy(&text)))
            }
            Err(error) => {
                findings.push(Finding::failed("settings", with_causes(&error), "restore the file"));
            }
        }
    }
    findings
}

/// The flags of a settings file, parsed as by its unit's command.
fn settings(name: &str, command: &[&str], text: &str) -> Finding {
    let flags = text.lines().rev().find_map(|line| line.trim().strip_prefix("FLAGS="));
    let flags = flags.unwrap_or_default().trim_matches(['"', '\'']);
    let words = ["ferrokube"].into_iter().chain(command.iter().copied());
    let line = words.chain(flags.split_whitespace());
    match Cli::command().try_get_matches_from(line) {
        Err(error) if error.use_stderr() => {
            let first = error.to_string();
            let first = first.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Finding::failed("settings", format!("{name}: {first}"), "correct FLAGS in the file")
        }
        _ => Finding::ok(
            "settings",
            format!("{name}: {}", if flags.is_empty() { "no flags" } else { "right" }),
        ),
    }
}

/// The certificates of the directory and of the flags.
fn certificates(
    kube_apiserver: &KubeApiserverFlags,
    data_dir: &Path,
    now: SystemTime,
) -> Vec<Finding> {
    let of_flags = [
        &kube_apiserver.tls_cert_file,
        &kube_apiserver.client_ca_file,
        &kube_apiserver.requestheader_client_ca_file,
        &kube_apiserver.proxy_client_cert_file,
    ];
    let files = of_flags.into_iter().flatten().flat_map(|path| inventory::in_file(path));
    let all: Vec<_> = inventory::in_data_dir(data_dir).into_iter().chain(files).collect();
    let bad: Vec<Finding> =
        all.iter().filter_map(|certificate| expiring(certificate, data_dir, now)).collect();
    match (all.len(), bad.is_empty()) {
        (0, _) => vec![Finding::skipped("certificates", "none yet")],
        (count, true) => vec![Finding::ok("certificates", format!("{count} valid"))],
        _ => bad,
    }
}

fn expiring(certificate: &FoundCertificate, data_dir: &Path, now: SystemTime) -> Option<Finding> {
    const CERTIFICATES: &str = "certificates";
    let path = certificate.path.display();
    let is_own_ca = certificate.path.starts_with(data_dir.join("pki"));
    let is_kubeconfig = certificate.path.extension().is_some_and(|ending| ending == "kubeconfig");
    let advice = if is_own_ca {
        "run `ferrokube certs renew`, then restart the servers"
    } else if is_kubeconfig {
        "start the server, which writes it, or make it with `ferrokube certs kubeconfig`"
    } else {
        "renew it where it was made; servers reload the file"
    };
    let facts = match &certificate.facts {
        Ok(facts) => facts,
        Err(why) => {
            return Some(Finding::failed(
                CERTIFICATES,
                format!("{path}: {why}"),
                "restore the file",
            ));
        }
    };
    let what = format!("{path}: {}", facts.validity(now));
    match facts.validity(now) {
        Validity::Valid => None,
        Validity::ExpiresSoon => {
            let what = format!("{what}, in {} days", facts.days_left(now));
            Some(Finding::warning(CERTIFICATES, what, advice))
        }
        Validity::NotYetValid => Some(Finding::failed(CERTIFICATES, what, "set the clock")),
        // A server that does not run has not renewed it, and does so at its start.
        Validity::Expired if is_kubeconfig && !is_own_ca => {
            Some(Finding::warning(CERTIFICATES, what, advice))
        }
        Validity::Expired => Some(Finding::failed(CERTIFICATES, what, advice)),
    }
}

/// Checks that query other processes: the server, and etcd.
fn others(flags: &DoctorFlags, data_dir: &Path, is_running: bool) -> Vec<Finding> {
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return vec![Finding::failed("server", error.to_string(), "")],
    };
    runtime.block_on(async {
        let mut findings = Vec::new();
        if is_running {
            let admin = data_dir.join("admin.kubeconfig");
            findings.push(patient("server", ask_server(&admin)).await);
        }
        if flags.server.etcd.is_used() {
            findings.push(patient("etcd", ask_etcd(flags)).await);
        }
        findings
    })
}

async fn patient(check: &'static str, finding: impl Future<Output = Finding>) -> Finding {
    let advice = "check its log and the network in between";
    tokio::time::timeout(PATIENCE, finding)
        .await
        .unwrap_or_else(|_| Finding::failed(check, format!("no response in {PATIENCE:?}"), advice))
}

/// Version and readiness by the administrator's kubeconfig: also tests address and certificates.
async fn ask_server(admin: &Path) -> Finding {
    const SERVER: &str = "server";
    const ADVICE: &str = "check its log: `journalctl -u ferrokube -u ferrokube-apiserver`";
    // A pipe in its place would block.
    if let Err(error) = files::read_regular(admin) {
        return Finding::failed(SERVER, with_causes(&error), "restart the server, which writes it");
    }
    let client = match Connection::from_kubeconfig(admin).await.and_then(|found| found.client()) {
        Ok(client) => client,
        Err(error) => return Finding::failed(SERVER, with_causes(&error), "restart the server"),
    };
    let get = async |path: &str| {
        let request =
            http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        client.request_text(request).await.map_err(|error| error.to_string())
    };
    if let Err(error) = get("/readyz").await {
        return Finding::failed(SERVER, format!("not ready: {error}"), ADVICE);
    }
    let ours = format!("ferrokube-{}", env!("CARGO_PKG_VERSION"));
    match get("/version").await {
        Err(error) => Finding::failed(SERVER, format!("no version: {error}"), ADVICE),
        Ok(version) if version.contains(&ours) => Finding::ok(SERVER, "ready, and of this version"),
        Ok(_) => Finding::warning(
            SERVER,
            format!("ready, but not {ours}, the version of this command"),
            "restart it after an upgrade, or check with its own executable",
        ),
    }
}

async fn ask_etcd(flags: &DoctorFlags) -> Finding {
    const ETCD: &str = "etcd";
    let servers = flags.server.etcd.servers().join(", ");
    let advice = "check the URLs, its certificates and `etcdctl endpoint health`";
    let keys = match flags.server.etcd.config(PathBuf::new()).map(|config| EtcdKeys::new(&config)) {
        Ok(Ok(keys)) => keys,
        Ok(Err(error)) => return Finding::failed(ETCD, with_causes(&error), advice),
        Err(error) => return Finding::failed(ETCD, with_causes(&*error), advice),
    };
    match keys.migration().await {
        Ok(_) => Finding::ok(ETCD, format!("{servers} responds")),
        Err(error) => Finding::failed(ETCD, format!("{servers}: {error}"), advice),
    }
}
