//! `ferrokube certs`: shows, renews and makes certificates, and kubeconfigs with them.

use super::flags::duration;
use super::server::report;
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use ferrokube_pki::files::{self, FileMode};
use ferrokube_pki::inventory::{self, FoundCertificate};
use ferrokube_pki::kubeconfig::Kubeconfig;
use ferrokube_pki::{
    ADMIN, CONTROLLER_MANAGER, Ca, LEAF_LIFETIME, NODES, Pair, Pki, SCHEDULER, Subject, Validity,
    node_name,
};
use ferrokube_server::DataDir;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[derive(Debug, Args)]
pub(crate) struct CertsFlags {
    /// Data directory with the CAs [default: that of all-in-one]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Show certificates and when they expire; the exit code is 1 if one has, or cannot be read
    List {
        /// Certificates or kubeconfigs [default: those of the data directory]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Create missing CAs
    Init,
    /// Renew CAs; their keys, and all that they have issued, stay valid
    Renew {
        /// The CAs [default: all]
        #[arg(value_enum, value_name = "CA")]
        cas: Vec<CaName>,
    },
    /// Import a CA
    Import {
        /// The CA to create or replace
        #[arg(value_enum, value_name = "CA")]
        ca: CaName,
        /// Its certificate, PEM
        #[arg(long, value_name = "FILE")]
        certificate: PathBuf,
        /// Its key, PKCS#8, readable by its owner only
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Replace an existing CA; clients then need the new one
        #[arg(long)]
        replace: bool,
    },
    /// Make a kubeconfig with a client certificate
    Kubeconfig(KubeconfigFlags),
    /// Make a serving certificate and its key
    Serving {
        /// Host names and addresses
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Output file of the chain
        #[arg(long, value_name = "FILE")]
        certificate: PathBuf,
        /// Output file of the key
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
}

#[derive(Debug, Args)]
struct KubeconfigFlags {
    /// Component that presents it
    #[arg(value_enum, value_name = "COMPONENT", required_unless_present = "user")]
    component: Option<Component>,
    /// Name of the node of a kubelet
    #[arg(long, value_name = "NAME", required_if_eq("component", "kubelet"))]
    node: Option<String>,
    /// A user instead of a component; RBAC grants its rights
    #[arg(long, value_name = "NAME", conflicts_with = "component")]
    user: Option<String>,
    /// A group of the user; repeatable
    #[arg(long = "group", value_name = "NAME", requires = "user")]
    groups: Vec<String>,
    /// URL of the API server, with a name in its certificate
    #[arg(long, value_name = "URL", value_parser = server_url)]
    server: String,
    /// Lifetime of the certificate: it cannot be revoked
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = duration)]
    lifetime: Duration,
    /// Output file, readable by its owner only; -: standard output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// A CA of the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CaName {
    /// Clients verify the server with it
    Ca,
    /// The server verifies clients with it
    ClientCa,
    /// Aggregated servers verify this server with it
    FrontProxyCa,
}

impl From<CaName> for Ca {
    fn from(name: CaName) -> Self {
        match name {
            CaName::Ca => Self::Serving,
            CaName::ClientCa => Self::Clients,
            CaName::FrontProxyCa => Self::FrontProxy,
        }
    }
}

/// A component that gets a kubeconfig with the rights that it has by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Component {
    /// May do everything
    Admin,
    /// kube-controller-manager
    ControllerManager,
    /// kube-scheduler
    Scheduler,
    /// A node's kubelet
    Kubelet,
}

/// An HTTPS URL that YAML needs not quote.
fn server_url(text: &str) -> Result<String, String> {
    let url: http::Uri = text.parse().map_err(|_| "not a URL".to_owned())?;
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:/[]_%".contains(&byte));
    if url.scheme_str() == Some("https") && url.host().is_some() && is_plain {
        Ok(text.to_owned())
    } else {
        Err("must be like https://api.example.com:6443".to_owned())
    }
}

/// Runs a command.
pub(crate) fn run(flags: CertsFlags) -> anyhow::Result<ExitCode> {
    let directory = DataDir::locate(flags.data_dir.as_deref())?;
    let keys = directory.join("pki");
    match flags.command {
        CertsCommand::List { files } => {
            let found = if files.is_empty() {
                inventory::in_data_dir(&directory)
            } else {
                files.iter().flat_map(|file| inventory::in_file(file)).collect()
            };
            ensure!(!found.is_empty(), "there are no certificates in {}", directory.display());
            let (table, is_fine) = list(&found, SystemTime::now());
            print(&table);
            return Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        CertsCommand::Init => {
            files::private_directory(&directory)?;
            Pki::open(&keys)?;
            report(&format!("CAs and keys are in {}", keys.display()));
        }
        CertsCommand::Renew { cas } => {
            check_made(&keys, &keys)?;
            let all = || Ca::ALL.to_vec();
            let chosen: Vec<Ca> = cas.into_iter().map(Ca::from).collect();
            for ca in if chosen.is_empty() { all() } else { chosen } {
                let days = ca.renew(&keys)?.days_left(SystemTime::now());
                report(&format!("{}.crt is valid for {days} days", ca.name()));
            }
            report("next: restart the servers, and copy their kubeconfigs again");
        }
        CertsCommand::Import { ca, certificate, key, replace } => {
            files::private_directory(&directory)?;
            let facts = Ca::from(ca).adopt(&keys, &certificate, &key, replace)?;
            report(&format!("{} is {}", Ca::from(ca).name(), facts.subject));
        }
        CertsCommand::Kubeconfig(kubeconfig) => kubeconfig.write(&open(&keys)?)?,
        CertsCommand::Serving { names, certificate, key } => {
            let pair = open(&keys)?.serving(&names)?;
            // The key first: a server that reloads meanwhile finds no new chain without it.
            files::write(&key, pair.key_pem.as_bytes(), FileMode::Private)?;
            files::write(&certificate, pair.chain_pem.as_bytes(), FileMode::Public)?;
            report(&format!("{} is valid for {}", certificate.display(), names.join(", ")));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens CAs that are there.
fn open(keys: &Path) -> anyhow::Result<Pki> {
    check_made(&keys.join("ca.crt"), keys)?;
    Ok(Pki::open(keys)?)
}

/// Checks that a directory of keys has been made: that a path of it exists.
fn check_made(path: &Path, keys: &Path) -> anyhow::Result<()> {
    let is_there = path
        .try_exists()
        .with_context(|| format!("cannot inspect {}, run as the server's user", path.display()))?;
    ensure!(
        is_there,
        "there is no CA in {}: `ferrokube certs init` makes one, and so does a server; or choose another --data-dir",
        keys.display()
    );
    Ok(())
}

impl KubeconfigFlags {
    fn write(&self, pki: &Pki) -> anyhow::Result<()> {
        let (user, pair) = self.client(pki)?;
        let kubeconfig = Kubeconfig {
            server: &self.server,
            cluster: "ferrokube",
            user: &user,
            ca_pem: pki.ca_pem(),
            client: &pair,
        };
        if self.output == Path::new("-") {
            print(&kubeconfig.to_yaml());
            return Ok(());
        }
        files::write(&self.output, kubeconfig.to_yaml().as_bytes(), FileMode::Private)?;
        report(&format!("{} is of {user}", self.output.display()));
        Ok(())
    }

    /// The user's name and certificate.
    fn client(&self, pki: &Pki) -> anyhow::Result<(String, Pair)> {
        let issue = |subject: &Subject<'_>| -> anyhow::Result<(String, Pair)> {
            let pair = pki.client(subject, self.lifetime.min(LEAF_LIFETIME))?;
            Ok((subject.common_name.to_owned(), pair))
        };
        match (self.component, &self.user) {
            (Some(Component::Admin), _) => issue(&ADMIN),
            (Some(Component::ControllerManager), _) => issue(&CONTROLLER_MANAGER),
            (Some(Component::Scheduler), _) => issue(&SCHEDULER),
            (Some(Component::Kubelet), _) => {
                let node = self.node.as_deref().context("--node is missing")?;
                ensure!(
                    ferrokube_apimachinery::name::dns1123_subdomain(node).is_empty(),
                    "cannot use {node:?} as the name of a node: not a DNS name"
                );
                issue(&Subject { common_name: &node_name(node), organizations: &[NODES] })
            }
            (None, Some(user)) => {
                let is_plain = |name: &str| {
                    !name.is_empty()
                        && name
                            .bytes()
                            .all(|byte| byte.is_ascii_alphanumeric() || b"-._:@/".contains(&byte))
                };
                for name in self.groups.iter().chain([user]) {
                    ensure!(is_plain(name), "cannot use {name:?}: letters, digits and -._:@/ only");
                }
                let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
                issue(&Subject { common_name: user, organizations: &groups })
            }
            (None, None) => bail!("no COMPONENT and no --user"),
        }
    }
}

/// A table, and whether nothing has expired or is unreadable.
pub(super) fn list(found: &[FoundCertificate], now: SystemTime) -> (String, bool) {
    let mut is_fine = true;
    let mut rows = vec![["FILE", "SUBJECT", "NAMES", "DAYS", "STATE"].map(str::to_owned)];
    for certificate in found {
        let name = certificate.path.file_name().unwrap_or(certificate.path.as_os_str());
        let file: String = name.to_string_lossy().escape_debug().collect();
        rows.push(match &certificate.facts {
            Ok(facts) => {
                let validity = facts.validity(now);
                is_fine &= matches!(validity, Validity::Valid | Validity::ExpiresSoon);
                let names = if facts.names.is_empty() { "-".into() } else { facts.names.join(",") };
                let days = facts.days_left(now).to_string();
                [file, facts.subject.clone(), names, days, validity.to_string()]
            }
            Err(why) => {
                is_fine = false;
                [file, "-".into(), "-".into(), "-".into(), why.clone()]
            }
        });
    }
    (table(&rows), is_fine)
}

/// Columns as wide as they must be; the last one is not padded.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: Vec<usize> = (0..N)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// To standard output; ignores a closed one.
pub(super) fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
