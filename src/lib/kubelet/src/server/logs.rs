//! `/containerLogs`: what the runtime has written of a container, from a point on, as lines.

use super::KubeletHandler;
use super::pods::statuses;
use super::routes::{ServerFailure, text};
use crate::kubelet::PodNode;
use crate::worker::in_background;
use bytes::Bytes;
use ferrokube_cri::{ContainerPhase, ContainerStatusRequest};
use ferrokube_serve::Response;
use futures::stream;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::Timestamp;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Bytes of a read, and of a piece of the response.
const CHUNK: usize = 64 << 10;
/// Longest line that is kept together; containerd's are 16 KiB.
const LINE: usize = 256 << 10;
/// Interval of looks at a file that is followed.
const POLL: Duration = Duration::from_millis(100);
/// Interval of looks at its container.
const LOOK: Duration = Duration::from_secs(1);

/// Which part of a log is wanted.
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

/// The id of the container whose log is wanted, without its scheme. Errors are kubelet's.
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
        (namespace, name, container): (&str, &str, &str),
        options: LogOptions,
    ) -> Result<Response, ServerFailure> {
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_| ServerFailure::Full)?;
        let pod = self.served.find(namespace, name, None);
        let pod =
            pod.ok_or_else(|| ServerFailure::NotFound(format!("pod {name:?} does not exist\n")))?;
        let spec = pod.spec.unwrap_or_default();
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        if !all.any(|one| one.name == container) {
            let why = format!("container {container:?} not found in pod {name:?}\n");
            return Err(ServerFailure::NotFound(why));
        }
        let status = pod.status.unwrap_or_default();
        let id = container_id(&status, name, container, options.previous);
        let id = id.map_err(ServerFailure::BadRequest)?;
        let node = Arc::clone(&self.served.node);
        let (path, _) = looked_at(&node, &id).await.ok_or_else(|| {
            ServerFailure::BadRequest(format!(
                "unable to retrieve container logs for {}://{id}",
                node.runtime_name()
            ))
        })?;
        let mut response = text(String::new());
        let tail = LogTail {
            node,
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

/// Path of a container's log, and whether it runs; `None` if it is gone.
async fn looked_at(node: &PodNode, id: &str) -> Option<(String, bool)> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let report = node.runtime.container_status(request).await.ok()?.status?;
    let is_running = report.state() == ContainerPhase::Running;
    Some((report.log_path, is_running))
}

/// A log that is being read.
struct LogTail {
    node: Arc<PodNode>,
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
        let options = tail.options.clone();
        let is_new = open.is_none();
        let read = in_background(move || {
            let mut open = match open {
                Some(open) => open,
                None => match OpenLog::open(&logs, Path::new(&path), &options) {
                    // Nothing was written yet.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    other => other?,
                },
            };
            let out = open.read(&options)?;
            let is_replaced = out.is_empty() && open.is_replaced(&logs, Path::new(&path));
            Ok(Some((open, out, is_replaced)))
        });
        match read.await {
            Err(error) => return Some((Err(error), None)),
            Ok(Some((open, out, _))) if !out.is_empty() => {
                let is_full = open.left == Some(0);
                tail.open = Some(open);
                return Some((Ok(out.into()), (!is_full).then_some(tail)));
            }
            Ok(Some((open, _, _))) if open.left == Some(0) => return None,
            // The log was rotated: the rest is in the new file, from its start.
            Ok(Some((_, _, true))) if tail.options.follow && !is_new => {
                tail.options.tail = None;
                continue;
            }
            Ok(opened) => tail.open = opened.map(|(open, _, _)| open),
        }
        if !tail.is_running {
            return None;
        }
        if tail.looked_at.elapsed() >= LOOK {
            // What it wrote last is read once more.
            tail.is_running = looked_at(&tail.node, &tail.id).await.is_some_and(|(_, runs)| runs);
            tail.looked_at = Instant::now();
        } else {
            tokio::time::sleep(POLL).await;
        }
        let _ = &tail.place;
    }
}

/// An open log file.
struct OpenLog {
    file: File,
    at: u64,
    /// Of an unfinished line.
    rest: Vec<u8>,
    /// Whether the next line begins a message.
    is_start: bool,
    /// Bytes that may still be sent.
    left: Option<u64>,
    /// Whether all further lines are new enough.
    is_since: bool,
}

impl OpenLog {
    fn open(logs: &Path, path: &Path, options: &LogOptions) -> io::Result<Self> {
        let file = open_below(logs, path)?;
        let at = match options.tail {
            Some(lines) => start_of_tail(&file, lines)?,
            None => 0,
        };
        let is_since = options.since.is_none();
        Ok(Self { file, at, rest: Vec::new(), is_start: true, left: options.limit, is_since })
    }

    fn is_replaced(&self, logs: &Path, path: &Path) -> bool {
        let id = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        open_below(logs, path).is_ok_and(|now| id(&now) != id(&self.file))
    }

    /// Messages of the next piece of the file that has some; empty at its end.
    fn read(&mut self, options: &LogOptions) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut chunk = vec![0; CHUNK];
        while out.is_empty() && self.left != Some(0) {
            let count = self.file.read_at(&mut chunk, self.at)?;
            if count == 0 {
                break;
            }
            self.at += count as u64;
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

    /// One line: time, stream, tag, and the message. Others are not the runtime's.
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

/// Opens a file below the directory of logs. No part of the path is a symbolic link: a container
/// with a volume there could make one to any file of the machine.
fn open_below(logs: &Path, path: &Path) -> io::Result<File> {
    let outside = || io::Error::new(io::ErrorKind::InvalidInput, "the log is not below podLogsDir");
    let below = path.strip_prefix(logs).map_err(|_| outside())?;
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(outside());
    }
    let directory = File::open(logs)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(&directory, below, flags, Mode::empty(), resolve)?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is no regular file"));
    }
    Ok(file)
}

/// Where the last lines of a file begin.
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
            // The newline that ends the file ends its last line.
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

    #[test]
    fn a_log_that_is_a_link_or_no_file_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        fs::write(&secret, "2026-01-01T00:00:00Z stdout F secret\n").unwrap();
        let logs = directory.path().join("logs");
        fs::create_dir_all(logs.join("p/real")).unwrap();
        std::os::unix::fs::symlink(&secret, logs.join("p/real/0.log")).unwrap();
        std::os::unix::fs::symlink(directory.path(), logs.join("p/linked")).unwrap();
        fs::create_dir(logs.join("p/real/1.log")).unwrap();
        for path in ["p/real/0.log", "p/linked/secret", "p/real/1.log", "p/../../secret"] {
            assert!(open_below(&logs, &logs.join(path)).is_err(), "{path}");
        }
        assert!(open_below(&logs, &secret).is_err());
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
