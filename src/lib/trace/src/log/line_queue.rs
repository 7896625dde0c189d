//! The queue between logging threads and the writer thread.

use super::format::LogFormat;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Max queued lines; more are dropped.
const MAX_LINES: usize = 8 << 10;
/// Max queued bytes; more are dropped.
const MAX_BYTES: usize = 8 << 20;
/// How long [`Flush`] waits for the last lines.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Queues lines; never waits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LineQueue {
    queue: SyncSender<Message>,
    state: Arc<LineQueueState>,
}

#[derive(Default)]
struct LineQueueState {
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

enum Message {
    Line(String),
    /// Acknowledged once all earlier lines are written.
    Flush(SyncSender<()>),
}

/// Writes the queued lines on drop, for at most half a second.
pub(crate) struct Flush(LineQueue);

/// Starts the writer thread, which ends when all queues are dropped.
pub(crate) fn start(
    writer: impl Write + Send + 'static,
    format: LogFormat,
) -> io::Result<(LineQueue, Flush)> {
    let (queue, lines) = sync_channel(MAX_LINES);
    let state = Arc::new(LineQueueState::default());
    let line_queue = LineQueue { queue, state: Arc::clone(&state) };
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write(writer, &lines, &state, format))?;
    Ok((line_queue.clone(), Flush(line_queue)))
}

impl LineQueue {
    pub(crate) fn send(&self, line: String) {
        let bytes = line.len();
        let before = self.state.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= MAX_BYTES;
        if !fits || matches!(self.queue.try_send(Message::Line(line)), Err(TrySendError::Full(_))) {
            self.state.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let (done, wait) = sync_channel(1);
        // If the queue is full its reader is stuck, and waiting is futile.
        if self.0.queue.try_send(Message::Flush(done)).is_ok() {
            let _: Result<(), RecvTimeoutError> = wait.recv_timeout(LAST_LINES);
        }
    }
}

fn write(
    mut writer: impl Write,
    lines: &Receiver<Message>,
    state: &LineQueueState,
    format: LogFormat,
) {
    let mut batch = String::new();
    while let Ok(message) = lines.recv() {
        let mut flushes: Vec<_> = take(message, &mut batch, state).into_iter().collect();
        // One write for all queued lines, up to the size of a pipe.
        while batch.len() < 32 << 10
            && let Ok(message) = lines.try_recv()
        {
            flushes.extend(take(message, &mut batch, state));
        }
        // A failed write to standard error cannot be reported; for a file (a full disk), the next
        // successful line reports it.
        if writer.write_all(batch.as_bytes()).is_err() {
            state.dropped.fetch_add(batch.lines().count() as u64, Ordering::Relaxed);
        }
        while let dropped @ 1.. = state.dropped.swap(0, Ordering::Relaxed) {
            if writer
                .write_all(
                    format
                        .notice(
                            "log lines were dropped because they could not be written",
                            "lines",
                            dropped,
                        )
                        .as_bytes(),
                )
                .is_err()
            {
                state.dropped.fetch_add(dropped, Ordering::Relaxed);
                break;
            }
        }
        let _ = writer.flush();
        batch.clear();
        batch.shrink_to(64 << 10);
        for flush in flushes {
            let _ = flush.send(());
        }
    }
}

fn take(message: Message, batch: &mut String, state: &LineQueueState) -> Option<SyncSender<()>> {
    match message {
        Message::Line(line) => {
            state.bytes.fetch_sub(line.len(), Ordering::Relaxed);
            batch.push_str(&line);
            None
        }
        Message::Flush(done) => Some(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    /// A pipe that blocks until released.
    struct Stuck {
        free: std::sync::mpsc::Receiver<()>,
        written: Arc<Mutex<String>>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.free.recv();
            self.written.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn fault_13_a_stuck_pipe_costs_lines_but_never_waits() {
        let (release, free) = channel();
        let written = Arc::new(Mutex::new(String::new()));
        let (line_queue, flush) =
            start(Stuck { free, written: Arc::clone(&written) }, LogFormat::Text).unwrap();
        let total = 3 * MAX_LINES as u64;
        for _ in 0..total {
            line_queue.send("line\n".into());
        }
        assert!(line_queue.state.bytes.load(Ordering::Relaxed) <= MAX_BYTES);
        drop(release);
        drop(flush);
        let accounted = || {
            let written = written.lock().unwrap();
            let reported: u64 = written
                .lines()
                .filter_map(|line| line.rsplit_once("lines=")?.1.parse::<u64>().ok())
                .sum();
            (reported, written.lines().filter(|line| *line == "line").count() as u64)
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(180);
        while accounted().0 + accounted().1 < total {
            assert!(std::time::Instant::now() < deadline, "{:?} of {total}", accounted());
            std::thread::yield_now();
        }
        assert!(accounted().0 > 0, "a third of the lines fits");
    }

    #[test]
    fn huge_lines_are_bounded_by_bytes() {
        let (_release, free) = channel();
        let (line_queue, flush) =
            start(Stuck { free, written: Arc::default() }, LogFormat::Text).unwrap();
        for _ in 0..40 {
            line_queue.send("x".repeat(1 << 20));
            assert!(line_queue.state.bytes.load(Ordering::Relaxed) <= MAX_BYTES);
        }
        assert!(line_queue.state.dropped.load(Ordering::Relaxed) > 0);
        // Must return although the pipe is blocked.
        drop(flush);
    }
}
