//! `/containerLogs`: a container's log lines, from a given time or line.

use super::KubeletHandler;
use super::failure::{ServerFailure, text};
use super::pods::statuses;
use crate::assemble::POD_UID;
use crate::background::in_background;
use crate::log_files::{self, LogDirectory, LogSource};
use crate::node::PodNode;
use bytes::Bytes;
use ferrokube_cri::{ContainerPhase, ContainerStatusRequest};
use ferrokube_serve::Response;
use futures::stream;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::Timestamp;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Bytes per read and per frame of the response.
const CHUNK: usize = 64 << 10;
/// Max bytes of a line that is kept whole; containerd splits at 16 KiB.
const LINE: usize = 256 << 10;
/// Poll interval of a followed file.
const POLL: Duration = Duration::from_millis(100);
/// Poll interval of its container.
const LOOK: Duration = Duration::from_secs(1);
/// How long a rotated log must be unchanged before the next file is read: the runtime may still
/// write to it.
const QUIET: Duration = Duration::from_secs(1);

/// The requested part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogOptions {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<u64>,
    limit: Option<u64>,
    since: Option<Timestamp>,
}

impl LogOptions {
    pub(super) fn read(query: &[(String, String)]) -> Result<Self, ServerFailure> {
        let mut options = Self::default();
        for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
            let wrong = || ServerFailure::BadRequest(format!("invalid value {value:?} of {name}"));
            let number = || value.parse::<u64>().map_err(|_| wrong());
            match name.as_str() {
                "follow" => options.follow = flag(value).ok_or_else(wrong)?,
                "previous" => options.previous = flag(value).ok_or_else(wrong)?,
                "timestamps" => options.timestamps = flag(value).ok_or_else(wrong)?,
                "tailLines" => options.tail = Some(number()?),
                "limitBytes" => options.limit = Some(number()?),
                "sinceTime" => options.since = Some(value.parse().map_err(|_| wrong())?),
                "sinceSeconds" => {
                    let ago = Duration::from_secs(number()?);
                    options.since = Timestamp::now().checked_sub(ago).ok();
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// The id of the requested container, without its scheme. Errors are kubelet's.
fn container_id(
    status: &PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let of = statuses(status).find(|status| status.name == container);
    let of =
        of.ok_or_else(|| format!("container {container:?} in pod {pod:?} is not available"))?;
    let last = of.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let last = last.and_then(|terminated| terminated.container_id.clone());
    let state = of.state.clone().unwrap_or_default();
    let ended = state.terminated.as_ref().and_then(|terminated| terminated.container_id.clone());
    let id = if previous {
        let none =
            || format!("previous terminated container {container:?} in pod {pod:?} not found");
        last.ok_or_else(none)?
    } else if state.running.is_some() {
        of.container_id.clone().unwrap_or_default()
    } else if let Some(id) = ended.or(last) {
        id
    } else {
        let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
        let why = match reason.as_str() {
            "" => {
                return Err(format!(
                    "container {container:?} in pod {pod:?} is waiting to start - no logs yet"
                ));
            }
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            other => other,
        };
        return Err(format!("container {container:?} in pod {pod:?} is waiting to start: {why}"));
    };
    Ok(id.split_once("://").map_or(id.clone(), |(_, id)| id.to_owned()))
}

impl KubeletHandler {
    pub(super) async fn logs(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        options: LogOptions,
    ) -> Result<Response, ServerFailure> {
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_| ServerFailure::Full)?;
        let pod = self.served.find(namespace, name, None);
        let pod =
            pod.ok_or_else(|| ServerFailure::NotFound(format!("pod {name:?} does not exist\n")))?;
        let spec = pod.spec.unwrap_or_default();
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|one| &one.name);
        if !all.map(|one| &one.name).chain(ephemeral).any(|name| name == container) {
            let why = format!("container {container:?} not found in pod {name:?}\n");
            return Err(ServerFailure::NotFound(why));
        }
        let status = pod.status.unwrap_or_default();
        let id = container_id(&status, name, container, options.previous);
        let id = id.map_err(ServerFailure::BadRequest)?;
        let node = Arc::clone(&self.served.node);
        let uid = pod.metadata.uid.unwrap_or_default();
        let (path, _) = looked_at(&node, &uid, &id).await.ok_or_else(|| {
            ServerFailure::BadRequest(format!(
                "unable to retrieve container logs for {}://{id}",
                node.runtime_name()
            ))
        })?;
        let mut response = text(String::new());
        let tail = LogTail {
            node,
            uid,
            id,
            path,
            open: None,
            is_running: options.follow,
            looked_at: Instant::now(),
            options,
            place,
        };
        *response.body_mut() = ferrokube_serve::stream(stream::unfold(Some(tail), next_piece));
        Ok(response)
    }
}

/// Path of the log of a pod's container, and whether it is running; `None` if it is gone, or
/// another pod's: the id may be of a status that another client has written.
async fn looked_at(node: &PodNode, uid: &str, id: &str) -> Option<(String, bool)> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let report = node.runtime.container_status(request).await.ok()?.status?;
    if report.labels.get(POD_UID).map(String::as_str) != Some(uid) {
        return None;
    }
    let is_running = report.state() == ContainerPhase::Running;
    Some((report.log_path, is_running))
}

/// A log that is being read.
struct LogTail {
    node: Arc<PodNode>,
    /// The pod's.
    uid: String,
    /// The container's.
    id: String,
    path: String,
    open: Option<OpenLog>,
    /// Whether more may come.
    is_running: bool,
    looked_at: Instant,
    options: LogOptions,
    place: OwnedSemaphorePermit,
}

async fn next_piece(tail: Option<LogTail>) -> Option<(io::Result<Bytes>, Option<LogTail>)> {
    let mut tail = tail?;
    loop {
        let (open, logs, path) =
            (tail.open.take(), tail.node.paths.logs.clone(), tail.path.clone());
        let (options, is_over) = (tail.options.clone(), !tail.is_running);
        let read = in_background(move || {
            let path = Path::new(&path);
            let mut open = match open {
                Some(open) => open,
                None => match OpenLog::open(&logs, path, &options) {
                    // The log does not exist yet.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    other => other?,
                },
            };
            let out = open.read_on(&logs, path, &options, is_over)?;
            Ok(Some((open, out)))
        });
        match read.await {
            Err(error) => return Some((Err(error), None)),
            Ok(Some((open, out))) if !out.is_empty() => {
                let is_full = open.left == Some(0);
                tail.open = Some(open);
                return Some((Ok(out.into()), (!is_full).then_some(tail)));
            }
            Ok(Some((open, _))) if open.left == Some(0) => return None,
            Ok(opened) => tail.open = opened.map(|(open, _)| open),
        }
        if !tail.is_running {
            return None;
        }
        if tail.looked_at.elapsed() >= LOOK {
            // Read once more for its last output.
            let found = looked_at(&tail.node, &tail.uid, &tail.id).await;
            tail.is_running = found.is_some_and(|(_, runs)| runs);
            tail.looked_at = Instant::now();
        } else {
            tokio::time::sleep(POLL).await;
        }
        let _ = &tail.place;
    }
}

/// An open log file.
struct OpenLog {
    source: LogSource,
    /// Start of an unfinished line.
    rest: Vec<u8>,
    /// Whether the next line begins a message.
    is_start: bool,
    /// Bytes that may still be sent.
    left: Option<u64>,
    /// Whether the start time has been passed, so that all further lines are returned.
    is_since: bool,
    /// Since when the rotated file is unchanged.
    quiet: Option<Instant>,
}

impl OpenLog {
    fn open(logs: &Path, path: &Path, options: &LogOptions) -> io::Result<Self> {
        let mut file = log_files::open(logs, path)?;
        if let Some(lines) = options.tail {
            let start = start_of_tail(&file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        let is_since = options.since.is_none();
        let (source, left) = (LogSource::Plain(file), options.limit);
        Ok(Self { source, rest: Vec::new(), is_start: true, left, is_since, quiet: None })
    }

    /// Like [`Self::read`], but continues with newer files if the log is followed. `is_over`: the
    /// container has terminated.
    fn read_on(
        &mut self,
        logs: &Path,
        path: &Path,
        options: &LogOptions,
        is_over: bool,
    ) -> io::Result<Vec<u8>> {
        loop {
            let out = self.read(options)?;
            if !out.is_empty() || !options.follow || !self.go_on(logs, path, is_over)? {
                return Ok(out);
            }
        }
    }

    /// Switches to the next file. Returns whether there is one.
    fn go_on(&mut self, logs: &Path, path: &Path, is_over: bool) -> io::Result<bool> {
        let own = self.source.file().metadata()?;
        if !log_files::is_replaced(logs, path, &own) {
            return Ok(false);
        }
        let (directory, log) = LogDirectory::of(logs, path)?;
        let Some((next, is_current)) = directory.after(log, &own)? else { return Ok(false) };
        if is_current && !is_over {
            let since = *self.quiet.get_or_insert_with(Instant::now);
            if since.elapsed() < QUIET {
                return Ok(false);
            }
        }
        self.source = next;
        self.rest.clear();
        self.quiet = None;
        Ok(true)
    }

    /// The messages in the next chunk that has any; empty at the end of the file.
    fn read(&mut self, options: &LogOptions) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut chunk = vec![0; CHUNK];
        while out.is_empty() && self.left != Some(0) {
            let count = self.source.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            self.quiet = None;
            self.rest.extend_from_slice(&chunk[..count]);
            let mut lines = std::mem::take(&mut self.rest);
            let end = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in lines[..end].split_inclusive(|byte| *byte == b'\n') {
                self.write(line, options, &mut out);
            }
            lines.drain(..end);
            if lines.len() > LINE {
                lines.clear();
            }
            self.rest = lines;
        }
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        Ok(out)
    }

    /// Parses a line: time, stream, tag, message. Malformed lines are dropped.
    fn write(&mut self, line: &[u8], options: &LogOptions, out: &mut Vec<u8>) {
        let mut words = line.splitn(4, |byte| *byte == b' ');
        let (Some(time), Some(_), Some(tag), Some(message)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return;
        };
        if !self.is_since {
            let parsed = std::str::from_utf8(time).ok().and_then(|time| time.parse().ok());
            let is_old = |time: Timestamp| options.since.is_some_and(|since| time < since);
            if parsed.is_none_or(is_old) {
                return;
            }
            self.is_since = true;
        }
        if options.timestamps && self.is_start {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        let is_partial = tag.split(|byte| *byte == b':').any(|tag| tag == b"P");
        let partial = || message.strip_suffix(b"\n").unwrap_or(message);
        let message = if is_partial { partial() } else { message };
        out.extend_from_slice(message);
        self.is_start = !is_partial;
    }
}

/// Offset of the last `lines` lines of a file.
fn start_of_tail(file: &File, lines: u64) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut left = lines;
    let size = end;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let piece = &mut chunk[..usize::try_from(end - start).unwrap_or(CHUNK)];
        file.read_exact_at(piece, start)?;
        for (at, byte) in piece.iter().enumerate().rev() {
            let after = start + at as u64 + 1;
            // A trailing newline belongs to the last line.
            if *byte == b'\n' && (after < size || lines == 0) {
                if left <= 1 {
                    return Ok(if lines == 0 { size } else { after });
                }
                left -= 1;
            }
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EventSink;
    use crate::eviction::threshold::EvictionPolicy;
    use crate::node::KubeletPaths;
    use ferrokube_cri::testing::FakeRuntime;
    use ferrokube_cri::{ContainerConfig, CreateContainerRequest, RunPodSandboxRequest, Runtime};
    use ferrokube_images::{ImageManager, PullConfig, PullMetrics};
    use std::fs;

    const LOG: &str = "2026-01-01T00:00:00.1Z stdout F one\n2026-01-01T00:00:01.1Z stdout P tw\n\
                       2026-01-01T00:00:01.2Z stdout F o\nnot a line\n\
                       2026-01-01T00:00:02.1Z stderr F three\n2026-01-01T00:00:03Z stdout F unfin";

    fn read(query: &[(&str, &str)], log: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p/c/0.log");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, log).unwrap();
        let query: Vec<_> = query.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
        let options = LogOptions::read(&query).unwrap();
        let mut open = OpenLog::open(directory.path(), &path, &options).unwrap();
        let mut all = Vec::new();
        loop {
            let piece = open.read(&options).unwrap();
            if piece.is_empty() {
                return String::from_utf8(all).unwrap();
            }
            all.extend(piece);
        }
    }

    #[test]
    fn lines_are_messages_of_the_part_that_is_wanted() {
        assert_eq!(read(&[], LOG), "one\ntwo\nthree\n");
        assert_eq!(
            read(&[("timestamps", "true")], LOG),
            "2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:01.1Z two\n\
             2026-01-01T00:00:02.1Z three\n"
        );
        assert_eq!(read(&[("sinceTime", "2026-01-01T00:00:02Z")], LOG), "three\n");
        assert_eq!(read(&[("limitBytes", "5")], LOG), "one\nt");
        let long = (0..50_000).map(|n| format!("2026-01-01T00:00:00Z stdout F {n}\n"));
        let long: String = long.collect();
        assert_eq!(read(&[("tailLines", "2")], &long), "49998\n49999\n");
        assert_eq!(read(&[("tailLines", "0")], &long), "");
        assert_eq!(read(&[("tailLines", "60000")], &long).lines().count(), 50_000);
        assert_eq!(read(&[], &long).lines().count(), 50_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_loses_nothing_when_logs_are_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let (logs, path) = (directory.path(), directory.path().join("p/c/0.log"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let line = |n: u32| format!("2026-01-01T00:00:00Z stdout F {n}\n");
        let append = |path: &Path, n: u32| {
            let mut file = File::options().create(true).append(true).open(path).unwrap();
            std::io::Write::write_all(&mut file, line(n).as_bytes()).unwrap();
        };
        let rotated = |n: u32| logs.join(format!("p/c/0.log.20260101-00000{n}"));
        append(&path, 1);
        let query = [("follow".to_owned(), "true".to_owned())];
        let options = LogOptions::read(&query).unwrap();
        let mut open = OpenLog::open(logs, &path, &options).unwrap();
        let mut next = |is_over| {
            let out = open.read_on(logs, &path, &options, is_over).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(next(false), "1\n");
        // Written after the rename, and after the new file was made.
        fs::rename(&path, rotated(1)).unwrap();
        append(&rotated(1), 2);
        assert_eq!(next(false), "2\n");
        append(&path, 4);
        assert_eq!(next(false), "", "the runtime may still write to the old one");
        append(&rotated(1), 3);
        assert_eq!(next(false), "3\n");
        assert_eq!(next(false), "");
        tokio::time::advance(QUIET).await;
        assert_eq!(next(false), "4\n");
        // Two rotations that a slow client has missed.
        fs::rename(&path, rotated(2)).unwrap();
        append(&path, 5);
        fs::rename(&path, rotated(3)).unwrap();
        append(&path, 6);
        assert_eq!(next(false), "5\n");
        assert_eq!(next(true), "6\n", "at once, when its container has ended");
        assert_eq!(next(true), "");
    }

    /// A user that may write statuses of pods names containers there.
    #[tokio::test]
    async fn fault_59_the_log_of_a_container_is_read_as_that_of_its_pod_only() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = Runtime::new(Arc::<FakeRuntime>::default());
        let metrics = Arc::<PullMetrics>::default();
        let events = EventSink::new().0;
        let pulls = PullConfig::default();
        let images = ImageManager::new(runtime.clone(), pulls, Arc::new(events), metrics);
        let paths = KubeletPaths { root: folder.path().into(), logs: folder.path().into() };
        let policy = EvictionPolicy {
            thresholds: Vec::new(),
            transition: Duration::ZERO,
            max_pod_grace: Duration::ZERO,
        };
        let node = PodNode::new("n", runtime.clone(), images, paths, policy);
        let sandbox = runtime.run_pod_sandbox(RunPodSandboxRequest::default()).await.unwrap();
        let config = ContainerConfig {
            labels: [(POD_UID.to_owned(), "victim".to_owned())].into(),
            log_path: "own.log".to_owned(),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.pod_sandbox_id,
            config: Some(config),
            sandbox_config: None,
        };
        let id = runtime.create_container(request).await.unwrap().container_id;
        let (path, _) = looked_at(&node, "victim", &id).await.unwrap();
        assert!(path.ends_with("own.log"), "{path}");
        assert_eq!(looked_at(&node, "attacker", &id).await, None);
        assert_eq!(looked_at(&node, "", &id).await, None);
    }

    #[test]
    fn which_container_is_meant_is_said_with_kubelets_words() {
        let status = |text: &str| -> PodStatus { serde_json::from_str(text).unwrap() };
        let id = |text: &str, previous| container_id(&status(text), "p", "c", previous);
        let of = |state: &str| {
            format!(
                "{{\"containerStatuses\": [{{\"name\": \"c\", \"ready\": false, \"image\": \"\", \
                 \"imageID\": \"\", \"restartCount\": 0, {state}}}]}}"
            )
        };
        let ended = "{\"terminated\": {\"containerID\": \"x://0\", \"exitCode\": 1}}";
        let running = "\"containerID\": \"x://1\", \"state\": {\"running\": {}}";
        assert_eq!(id(&of(running), false).unwrap(), "1");
        assert_eq!(
            id(&of(running), true).unwrap_err(),
            "previous terminated container \"c\" in pod \"p\" not found"
        );
        let again = of(&format!("{running}, \"lastState\": {ended}"));
        assert_eq!(id(&again, true).unwrap(), "0");
        assert_eq!(id(&of(&format!("\"state\": {ended}")), false).unwrap(), "0");
        let waiting = of("\"state\": {\"waiting\": {\"reason\": \"ContainerCreating\"}}");
        assert_eq!(
            id(&waiting, false).unwrap_err(),
            "container \"c\" in pod \"p\" is waiting to start: ContainerCreating"
        );
        let other = container_id(&status(&of(running)), "p", "d", false);
        assert_eq!(other.unwrap_err(), "container \"d\" in pod \"p\" is not available");
    }
}
