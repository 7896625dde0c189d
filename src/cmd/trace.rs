//! `ferrokube trace`: the request behind a log line, and the log lines behind a request or an object.

use super::data_dir::DataDir;
use anyhow::{Context, bail};
use clap::Args;
use ferrokube_client::{Connection, Discovered, DiscoveredResource};
use ferrokube_timeline::{Query, Story, render, search};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Nothing was found.
const NOTHING: u8 = 1;

/// The command's flags.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 something was found, 1 nothing was, 2 the command line cannot be followed or nothing could be searched.")]
pub(crate) struct Flags {
    /// A trace id, initial trace id or span id from a log line; or an object as KIND/NAME
    #[arg(value_name = "ID | KIND/NAME")]
    what: String,
    /// Log and audit files, or directories of them (rotated and gzip files too), or journald [default: the audit log and logs in the data directory]
    #[arg(long, value_name = "FILE|DIR|journald", num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Namespace of KIND/NAME
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// How KIND/NAME is read [default: admin.kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The data directory of an all-in-one [default: as all-in-one's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Searches and prints.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let directory = DataDir::locate(flags.data_dir.as_deref())?;
    let logs = if flags.logs.is_empty() { default_logs(&directory)? } else { flags.logs.clone() };
    let ids = match flags.what.split_once('/') {
        Some((kind, name)) => {
            let kubeconfig = flags.kubeconfig.clone().unwrap_or_else(|| directory.join("admin.kubeconfig"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
            runtime.block_on(ids_of(kind, name, &flags.namespace, kubeconfig))?
        }
        None => vec![flags.what.clone()],
    };
    let story = search(&Query { ids, logs })?;
    show(&mut std::io::stdout().lock(), &story, flags.json);
    Ok(ExitCode::from(if story.is_empty() { NOTHING } else { 0 }))
}

/// That nobody reads the output to its end is no failure.
fn show(output: &mut impl Write, story: &Story, json: bool) {
    let text = if json { format!("{}\n", render::json(story)) } else { render::text(story) };
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// What an all-in-one leaves behind in its directory.
fn default_logs(directory: &std::path::Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot read {} (name the files with --logs)", directory.display()))?;
    let is_log = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().contains(".log") || name == "logs" || name.to_string_lossy().starts_with("audit"))
    };
    let logs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_log).collect();
    if logs.is_empty() {
        bail!("{} holds no logs; name the files with --logs", directory.display());
    }
    Ok(logs)
}

/// The ids that an object carries: its family's first, since it finds the object's whole life.
async fn ids_of(kind: &str, name: &str, namespace: &str, kubeconfig: PathBuf) -> anyhow::Result<Vec<String>> {
    let client = Connection::from_kubeconfig(&kubeconfig).await?.client()?;
    let discovered = Discovered::query(&client).await.context("cannot ask the API server what it serves")?;
    let word = kind.to_ascii_lowercase();
    let is_asked = |found: &&DiscoveredResource| found.resource.plural == word || found.resource.kind.to_ascii_lowercase() == word;
    let Some(found) = discovered.resources.iter().find(is_asked) else { bail!("the API server serves no kind {kind:?}") };
    let annotations = found.annotations(&client, namespace, name).await.with_context(|| format!("cannot read {kind}/{name}"))?;
    let of = |key: &str| annotations.get(key).cloned();
    let mut ids: Vec<String> = [of(ferrokube_trace::annotation::INITIAL_TRACE_ID), of(ferrokube_trace::annotation::TRACE_ID)].into_iter().flatten().collect();
    ids.dedup();
    if ids.is_empty() {
        bail!("{kind}/{name} carries no ids: it was written with the gate LogTracking off, or by another server");
    }
    Ok(ids)
}
