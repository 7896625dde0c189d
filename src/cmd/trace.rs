//! `ferrokube trace`: the request behind a log line, and the log lines behind a request or an
//! object.

use anyhow::{Context, bail};
use clap::Args;
use ferrokube_client::{Connection, Discovered};
use ferrokube_server::DataDir;
use ferrokube_timeline::{ObjectName, SearchQuery, Story, is_hidden, last_life, render, search};
use ferrokube_trace::TraceId;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code: nothing found.
const NOTHING: u8 = 1;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 something was found, 1 nothing was, 2 nothing could be searched: the command line is invalid, a file or the API server cannot be read, or the object has no ids."
)]
pub(crate) struct TraceFlags {
    /// A trace id, initial trace id or span id from a log line; or an object as KIND/NAME
    #[arg(value_name = "ID | KIND/NAME")]
    what: String,
    /// Log and audit files, or directories of them (including rotated and gzip files), or journald
    /// [default: the audit log and logs in the data directory]
    #[arg(long, value_name = "FILE|DIR|journald", num_args = 1..)]
    logs: Vec<PathBuf>,
    /// Namespace of KIND/NAME
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// Kubeconfig to read KIND/NAME with [default: admin.kubeconfig in the data directory]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Data directory of an all-in-one [default: that of all-in-one]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct RequestedObject<'a> {
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
}

/// Neither the API server nor the files know the object.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NothingFound(String);

/// Exit code: usage error, or nothing searched.
const FAILED: u8 = 2;

/// Searches and prints.
pub(crate) fn run(flags: &TraceFlags) -> ExitCode {
    run_or_fail(flags).unwrap_or_else(|error| {
        eprintln!("ferrokube: {}", super::one_line(&error));
        ExitCode::from(if error.is::<NothingFound>() { NOTHING } else { FAILED })
    })
}

fn run_or_fail(flags: &TraceFlags) -> anyhow::Result<ExitCode> {
    let directory = DataDir::locate(flags.data_dir.as_deref())?;
    let logs = if flags.logs.is_empty() { default_logs(&directory)? } else { flags.logs.clone() };
    let ids = match flags.what.split_once('/') {
        Some((kind, name)) if kind.is_empty() || name.is_empty() || name.contains('/') => {
            bail!("{:?} is neither an id nor KIND/NAME", flags.what)
        }
        Some((kind, name)) => {
            let asked = RequestedObject { kind, name, namespace: &flags.namespace };
            let kubeconfig =
                flags.kubeconfig.clone().unwrap_or_else(|| directory.join("admin.kubeconfig"));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start the runtime")?;
            runtime.block_on(ids_of(&asked, kubeconfig, &logs))?
        }
        None => vec![flags.what.clone()],
    };
    let story = search(&SearchQuery { ids, logs })?;
    show(&mut std::io::stdout().lock(), &story, flags.json);
    Ok(ExitCode::from(if story.is_empty() { NOTHING } else { 0 }))
}

/// Ignores a closed standard output.
fn show(output: &mut impl Write, story: &Story, json: bool) {
    let text = if json { format!("{}\n", render::json(story)) } else { render::text(story) };
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Files in an all-in-one's data directory.
fn default_logs(directory: &std::path::Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| {
        format!("cannot read {} (name the files with --logs)", directory.display())
    })?;
    let is_log = |path: &PathBuf| {
        !is_hidden(path)
            && path.file_name().is_some_and(|name| {
                name.to_string_lossy().contains(".log")
                    || name == "logs"
                    || name.to_string_lossy().starts_with("audit")
            })
    };
    let logs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_log).collect();
    if logs.is_empty() {
        let why = "a server with memory storage keeps none unless --log-file and --audit-log-path are set";
        bail!("{} contains no logs ({why}): name the files with --logs", directory.display());
    }
    Ok(logs)
}

/// The ids on an object, its initial trace id first, as it leads to the object's whole life. For a
/// deleted object, from the audit log.
async fn ids_of(
    asked: &RequestedObject<'_>,
    kubeconfig: PathBuf,
    logs: &[PathBuf],
) -> anyhow::Result<Vec<String>> {
    let RequestedObject { kind, name, namespace } = asked;
    let client = Connection::from_kubeconfig(&kubeconfig).await?.client()?;
    let discovered = Discovered::query(&client).await.context(
        "cannot discover the API server's resources (searching for an id needs no server)",
    )?;
    let Some(found) = discovered.named(kind) else {
        bail!("the API server serves no kind {kind:?}")
    };
    let annotations = found
        .annotations(&client, namespace, name)
        .await
        .with_context(|| format!("cannot read {kind}/{name}"))?;
    let Some(annotations) = annotations else {
        let resource = found.resource.plural.clone();
        // Requests on a namespace have it as their namespace.
        let namespace = if found.namespaced {
            *namespace
        } else if resource == "namespaces" {
            *name
        } else {
            ""
        };
        let ids = last_life(
            &ObjectName { resource, namespace: namespace.to_owned(), name: (*name).to_owned() },
            logs,
        )?;
        if ids.is_empty() {
            let place =
                if found.namespaced { format!(" in namespace {namespace}") } else { String::new() };
            return Err(NothingFound(format!(
                "there is no {kind}/{name}{place}, and no audit log among the searched files names one"
            ))
            .into());
        }
        eprintln!("ferrokube: {kind}/{name} was deleted; showing the last object of that name");
        return Ok(ids);
    };
    let of = |key: &str| annotations.get(key).cloned();
    let mut ids: Vec<String> = [
        of(ferrokube_trace::annotation::INITIAL_TRACE_ID),
        of(ferrokube_trace::annotation::TRACE_ID),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Another API server may let anyone edit them.
    ids.retain(|id| id.parse::<TraceId>().is_ok());
    ids.dedup();
    if ids.is_empty() {
        bail!(
            "{kind}/{name} has no ids: it was written with the gate LogTracking off, or by another server"
        );
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_of_the_audit_log_is_not_searched() {
        let directory = tempfile::tempdir().unwrap();
        for name in [".audit.log.reserve", "audit.log", "audit-2026.log.gz", "store.made"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let logs = default_logs(directory.path()).unwrap();
        let mut names: Vec<_> = logs.iter().filter_map(|path| path.file_name()).collect();
        names.sort();
        assert_eq!(names, ["audit-2026.log.gz", "audit.log"]);
    }
}
