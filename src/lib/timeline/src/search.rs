//! Finds everything that belongs to an id.

use crate::files;
use crate::finder;
use crate::line::LogLine;
use crate::scan::{self, ScanResult};
use crate::story::{Story, StoryEntry};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

/// Query and scope of a search.
#[derive(Clone, Debug)]
pub struct SearchQuery {
    /// Trace ids or initial trace ids (32 hexadecimal digits), or span ids (16).
    pub ids: Vec<String>,
    /// Log and audit files, or directories of them; `journald` is the systemd journal.
    pub logs: Vec<PathBuf>,
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// Not of the form of an id.
    #[error("{0:?} is not an id: a trace id has 32 hexadecimal digits, a span id 16")]
    NotAnId(String),
    /// A given file or directory cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// As given, or below a given directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Traces followed per search; further ones are counted.
const MAX_TRACES: usize = 1000;

/// Finds every line with one of the ids, and then every line of the traces that those lines belong
/// to.
///
/// # Errors
/// [`SearchError`]. Files that fail halfway are reported in the story.
pub fn search(query: &SearchQuery) -> Result<Story, SearchError> {
    let ids: Vec<String> = query.ids.iter().map(|id| checked(id)).collect::<Result<_, _>>()?;
    let files = all_files(&query.logs)?;
    let first = scan::scan(&files, &ids);
    let traces: BTreeSet<String> = first
        .found
        .iter()
        .map(|found| found.line.trace_id.clone())
        .filter(|trace| trace.len() == 32 && finder::is_id(trace) && !ids.contains(trace))
        .collect();
    if traces.is_empty() {
        return Ok(story(ids, &files, first));
    }
    // Found again below; release it now.
    drop(first);
    let needles: Vec<String> =
        ids.iter().cloned().chain(traces.into_iter().take(MAX_TRACES)).collect();
    let second = scan::scan(&files, &needles);
    Ok(story(ids, &files, second))
}

/// A possibly deleted object, as named by audit events.
#[derive(Clone, Debug)]
pub struct ObjectName {
    /// Plural name.
    pub resource: String,
    /// Namespace; empty for cluster scope.
    pub namespace: String,
    /// Object name.
    pub name: String,
}

impl ObjectName {
    /// Prefix of its object references, as every API server writes them.
    fn reference(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let namespace = if self.namespace.is_empty() {
            String::new()
        } else {
            format!("\"namespace\":{},", quoted(&self.namespace))
        };
        format!(
            "\"objectRef\":{{\"resource\":{},{namespace}\"name\":{}",
            quoted(&self.resource),
            quoted(&self.name)
        )
    }
}

/// Ids of the last object with this name according to the audit logs: its initial trace id, or else
/// the trace id of the last request on it.
///
/// # Errors
/// [`SearchError::Unreadable`].
pub fn last_life(object: &ObjectName, logs: &[PathBuf]) -> Result<Vec<String>, SearchError> {
    let found = scan::scan_text(&all_files(logs)?, &object.reference())
        .found
        .into_iter()
        .map(|found| found.line);
    let written = found.filter(|line| {
        line.request.as_ref().is_some_and(|request| (200..300).contains(&request.code))
    });
    let last = written.filter(|line| finder::is_id(&line.trace_id)).max_by_key(|line| line.time);
    let ids = last.map(|line| {
        if finder::is_id(&line.initial_trace_id) { line.initial_trace_id } else { line.trace_id }
    });
    Ok(ids.into_iter().collect())
}

fn all_files(logs: &[PathBuf]) -> Result<Vec<PathBuf>, SearchError> {
    let mut files = BTreeSet::new();
    for path in logs {
        files.extend(
            files::files(path)
                .map_err(|source| SearchError::Unreadable { path: path.clone(), source })?,
        );
    }
    Ok(files.into_iter().collect())
}

/// Components by log target, since an all-in-one has a single log.
const OWN: [(&str, &str); 8] = [
    ("ferrokube_controllers", "controller-manager"),
    ("ferrokube_controlplane", "apiserver"),
    ("ferrokube_registry", "apiserver"),
    ("ferrokube_admission", "apiserver"),
    ("ferrokube_auth", "apiserver"),
    ("ferrokube_storage", "apiserver"),
    ("ferrokube_etcd", "apiserver"),
    ("ferrokube_kubelet", "kubelet"),
];

fn checked(id: &str) -> Result<String, SearchError> {
    let lower = id.to_ascii_lowercase();
    if finder::is_id(&lower) { Ok(lower) } else { Err(SearchError::NotAnId(id.to_owned())) }
}

fn story(ids: Vec<String>, files: &[PathBuf], scanned: ScanResult) -> Story {
    let entries = scanned
        .found
        .into_iter()
        .map(|found| StoryEntry {
            component: component(&files[found.file], &found.line),
            line: found.line,
        })
        .collect();
    let failed =
        scanned.failed.into_iter().map(|(path, error)| (path, error.to_string())).collect();
    Story::new(ids, entries, scanned.dropped, failed, scanned.bytes)
}

/// The component that wrote a line: its field `component` or `controller`, one of our own targets,
/// or else the file name up to the first dot. Audit events belong to the API server.
pub(crate) fn component(path: &std::path::Path, line: &LogLine) -> String {
    let named = ["component", "controller"]
        .map(|name| line.field(name))
        .into_iter()
        .find(|value| !value.is_empty())
        .map(str::to_owned);
    let target = line.field("target");
    let own = OWN
        .iter()
        .find(|(begins, _)| target.starts_with(begins))
        .map(|(_, component)| (*component).to_owned());
    let stem = || {
        path.file_name()
            .map(|name| name.to_string_lossy().split('.').next().unwrap_or_default().to_owned())
            .unwrap_or_default()
    };
    if line.request.is_some() { "apiserver".to_owned() } else { named.or(own).unwrap_or_else(stem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_id_leads_to_the_whole_trace_in_other_files() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "kubelet.log",
            format!(
                "2026-11-21T03:00:01Z ERROR kubelet: mount failed trace_id={trace} span_id={span}\nnoise\n"
            ),
        );
        write(
            "audit.log",
            format!(
                r#"{{"kind":"Event","auditID":"a","verb":"create","requestURI":"/api/v1/pods","user":{{"username":"alice"}},"responseStatus":{{"code":201}},"requestReceivedTimestamp":"2026-11-21T03:00:00Z","stageTimestamp":"2026-11-21T03:00:00Z","annotations":{{"trace.kubernetes.io/trace-id":"{trace}","trace.kubernetes.io/span-id":"1111111111111111"}}}}"#
            ) + "\n",
        );
        let story = search(&SearchQuery {
            ids: vec![span.to_owned()],
            logs: vec![directory.path().to_owned()],
        })
        .unwrap();
        assert_eq!(story.traces.len(), 1);
        assert_eq!(story.traces[0].actions.len(), 2);
        assert!(
            story.traces[0].actions[0]
                .request
                .as_ref()
                .is_some_and(|request| request.user == "alice"),
            "the request comes first: {story:?}"
        );
    }

    #[test]
    fn deleted_objects_are_found_by_audit_events() {
        let [first, last] = ["1", "2"].map(|digit| digit.repeat(32));
        let event = |time: &str, name: &str, code: u16, family: &str| {
            format!(
                r#"{{"kind":"Event","auditID":"a","verb":"delete","requestURI":"/x","user":{{"username":"alice"}},"objectRef":{{"resource":"fleets","namespace":"default","name":"{name}","apiGroup":"example.com"}},"responseStatus":{{"code":{code}}},"stageTimestamp":"2026-11-21T03:00:0{time}Z","annotations":{{"trace.kubernetes.io/trace-id":"{first}","trace.kubernetes.io/initial-trace-id":"{family}"}}}}"#
            ) + "\n"
        };
        let directory = tempfile::tempdir().unwrap();
        let text = event("2", "alpha", 200, &last)
            + &event("1", "alpha", 200, &first)
            + &event("3", "alpha", 404, &first)
            + &event("4", "alpha-2", 200, &first);
        std::fs::write(directory.path().join("audit.log"), text).unwrap();
        let object = |name: &str| ObjectName {
            resource: "fleets".into(),
            namespace: "default".into(),
            name: name.into(),
        };
        let logs = [directory.path().to_owned()];
        assert_eq!(last_life(&object("alpha"), &logs).unwrap(), [last]);
        assert!(last_life(&object("al"), &logs).unwrap().is_empty());
    }

    #[test]
    fn malformed_ids_are_refused() {
        for id in ["", "xyz", "0af7651916cd43dd8448eb211c80319", "g".repeat(32).as_str()] {
            assert!(matches!(
                search(&SearchQuery { ids: vec![id.to_owned()], logs: Vec::new() }),
                Err(SearchError::NotAnId(_))
            ));
        }
    }
}
