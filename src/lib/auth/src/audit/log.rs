//! The audit log: callers encode events into one bounded buffer, a thread writes them in groups.
//!
//! An event that has the log to itself is written by its caller, if that takes one write to a file:
//! waking the thread, and its caller again, takes five times as long. After a slow write, the
//! thread writes all events for a while.

use super::event::AuditEvent;
use super::line;
use super::missing::MissingEvents;
use super::output::{AuditOutput, NoOutput, Stdout, is_full};
use super::policy::{AuditPlan, AuditPolicy, AuditRequest};
use super::refusals::Refusals;
use super::reserve::Reserved;
use ferrokube_trace::log::{Rotating, Rotation};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a caller waits for its event before its write is refused.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a failed write is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Events that follow each other closer are gathered by the thread: one write for several.
const GATHERED_GAP: Duration = Duration::from_micros(100);

/// A write that takes longer shows a slow disk.
const QUICK_WRITE: Duration = Duration::from_millis(20);
/// How long callers leave a slow disk to the thread.
const SLOW_FOR: Duration = Duration::from_secs(10);

/// How often an idle log checks the ages of its files.
const TIDY_INTERVAL: Duration = Duration::from_secs(3600);

/// Treatment of writes while events cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Refuse API writes.
    #[default]
    Refuse,
    /// Drop events, counted.
    Drop,
}

/// Audit log configuration.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Levels by request.
    pub policy: AuditPolicy,
    /// Conditions for a new file.
    pub rotation: Rotation,
    /// Treatment of writes while events cannot be written.
    pub on_failure: OnFailure,
    /// Bytes of queued events; beyond it `on_failure` applies.
    pub queue_bytes: usize,
    /// A longer event is recorded without its objects.
    pub max_event_bytes: usize,
    /// Sync the file after each group of events, before the API writes are acknowledged: events
    /// then survive power loss, too.
    pub sync: bool,
    /// Disk space reserved next to the file for when the disk is full; 0 reserves none.
    pub reserve_bytes: u64,
}

impl AuditConfig {
    /// The defaults, for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            policy: AuditPolicy::default(),
            rotation: Rotation::default(),
            on_failure: OnFailure::default(),
            queue_bytes: 16 * 1024 * 1024,
            max_event_bytes: 512 * 1024,
            sync: false,
            reserve_bytes: 0,
        }
    }
}

/// Why an event was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file cannot be opened.
    #[error("cannot open the audit log {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file or the queue takes nothing; temporary.
    #[error("the audit log cannot be written")]
    Unavailable,
    /// No space for the file; temporary. The event is queued, or dropped and counted: a write that
    /// frees space is still allowed.
    #[error("the disk of the audit log is full")]
    Full,
    /// [`AuditLog::close`] was called.
    #[error("the audit log is closed")]
    Closed,
}

/// Counters for metrics; all but `queued_bytes` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditStats {
    /// Events written.
    pub written: u64,
    /// Events dropped by [`OnFailure::Drop`], or for lack of room in the queue.
    pub dropped: u64,
    /// Failed attempts to write.
    pub errors: u64,
    /// Bytes in the queue.
    pub queued_bytes: u64,
    /// Whether the last write succeeded.
    pub healthy: bool,
}

/// The audit log. Cheap to clone; [`AuditLog::close`] or dropping the last clone ends it after
/// writing what is queued.
#[derive(Clone)]
pub struct AuditLog {
    shared: Arc<Shared>,
    thread: Arc<ThreadHandle>,
}

struct Shared {
    policy: AuditPolicy,
    on_failure: OnFailure,
    queue_bytes: usize,
    max_event_bytes: usize,
    refusals: Refusals,
    /// Where both are locked, this one is first.
    output: Mutex<Output>,
    queue: Mutex<EventQueue>,
    wake: Condvar,
    healthy: AtomicBool,
    /// Why it is not healthy: no space.
    full: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    missing: MissingEvents,
    errors: AtomicU64,
}

type AuditWaiter = oneshot::Sender<Result<(), AuditError>>;
type WrittenEvent = oneshot::Receiver<Result<(), AuditError>>;

/// Notifies and removes all waiters.
fn answer(waiters: &mut Vec<AuditWaiter>, result: impl Fn() -> Result<(), AuditError>) {
    for waiter in waiters.drain(..) {
        // A waiter may have given up.
        let _ = waiter.send(result());
    }
}

/// The file, and when it was written.
struct Output {
    lines: Box<dyn AuditOutput>,
    /// [`GATHERED_GAP`].
    gap: Duration,
    /// When the last write ended.
    last: Option<Instant>,
    /// When a write that took long ended.
    slow_since: Option<Instant>,
}

impl Output {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.timed(|lines| lines.append(bytes))
    }

    /// The write of a caller. False: nothing was written.
    fn append_quickly(&mut self, line: &[u8]) -> bool {
        let is_within =
            |since: Option<Instant>, limit| since.is_some_and(|it| it.elapsed() < limit);
        !is_within(self.last, self.gap)
            && !is_within(self.slow_since, SLOW_FOR)
            && self.timed(|lines| lines.append_quickly(line))
    }

    fn timed<T>(&mut self, write: impl FnOnce(&mut dyn AuditOutput) -> T) -> T {
        let begun = Instant::now();
        let written = write(&mut *self.lines);
        let now = Instant::now();
        self.last = Some(now);
        if now - begun > QUICK_WRITE {
            self.slow_since = Some(now);
        }
        written
    }
}

#[derive(Default)]
struct EventQueue {
    lines: Vec<u8>,
    /// Number of lines in the buffer.
    count: u64,
    /// Callers that wait for these lines; none while the log is failing.
    waiters: Vec<AuditWaiter>,
    /// Bytes that the thread has taken but not written, and those that callers write.
    in_flight: usize,
    closed: bool,
}

struct ThreadHandle {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Opens the file and starts the writer thread.
    ///
    /// # Errors
    /// [`AuditError::Open`].
    pub fn open(config: AuditConfig) -> Result<Self, AuditError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| AuditError::Open { path, source }
        };
        let output: Box<dyn AuditOutput> = if config.path == Path::new("-") {
            Box::new(Stdout)
        } else {
            let lines = Rotating::open(&config.path, config.rotation, config.sync)
                .map_err(failed(&config.path))?;
            if config.reserve_bytes > 0 {
                Box::new(Reserved::new(lines, &config.path, config.reserve_bytes))
            } else {
                Box::new(lines)
            }
        };
        let path = config.path.clone();
        Self::start(config, output).map_err(failed(&path))
    }

    /// A log that records nothing.
    pub fn disabled() -> Self {
        let shared = Arc::new(Shared::new(
            AuditConfig { policy: AuditPolicy::nothing(), ..AuditConfig::new("-") },
            Box::new(NoOutput),
        ));
        Self {
            thread: Arc::new(ThreadHandle {
                shared: Arc::clone(&shared),
                handle: Mutex::new(None),
            }),
            shared,
        }
    }

    pub(super) fn start(config: AuditConfig, output: Box<dyn AuditOutput>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config, output));
        let writer = WriterThread { shared: Arc::clone(&shared) };
        let handle =
            std::thread::Builder::new().name("audit".into()).spawn(move || writer.run())?;
        Ok(Self {
            thread: Arc::new(ThreadHandle {
                shared: Arc::clone(&shared),
                handle: Mutex::new(Some(handle)),
            }),
            shared,
        })
    }

    /// Decides what a request's events contain; one plan serves all its stages.
    pub fn plan(&self, subject: &AuditRequest<'_>) -> AuditPlan {
        self.shared.policy.plan(subject)
    }

    /// The final plan of a request that ended with this status code, and the number of similar ones
    /// left out before. The built-in policy records every refusal (401, 403, 429 of a write, 507
    /// for a full disk), but a flood of refusals must not rotate everything else out of the log:
    /// they are limited per caller (a user, or an address if unauthenticated) and in total. So are
    /// self reviews, which every account may make. A policy file is followed to the letter.
    pub fn conclude(
        &self,
        plan: AuditPlan,
        code: u16,
        caller: impl FnOnce() -> String,
    ) -> (AuditPlan, u64) {
        // Flow control refuses before the authorizer decides.
        let is_refusal = matches!(code, 401 | 403 | 507)
            || (code == 429 && plan.level > super::AuditLevel::None);
        if !(plan.rationed || plan.refusals && is_refusal) {
            return (plan, 0);
        }
        match self.shared.refusals.admit(&caller(), Instant::now()) {
            Some(left_out) => {
                (AuditPlan { level: plan.level.max(super::AuditLevel::Metadata), ..plan }, left_out)
            }
            None => (AuditPlan::default(), 0),
        }
    }

    /// Max bytes of an event with its objects; 0 if nothing is recorded.
    pub fn max_event_bytes(&self) -> usize {
        self.shared.max_event_bytes
    }

    /// Whether a write with this plan may be executed now.
    ///
    /// # Errors
    /// [`AuditError::Unavailable`] while events cannot be written under [`OnFailure::Refuse`]:
    /// answer 500 without executing. [`AuditError::Full`]: likewise, unless it frees space.
    pub fn admit(&self, plan: &AuditPlan) -> Result<(), AuditError> {
        if plan.level == super::AuditLevel::None
            || self.shared.on_failure == OnFailure::Drop
            || self.shared.healthy.load(Ordering::Acquire)
        {
            return Ok(());
        }
        Err(self.shared.unavailable())
    }

    /// Encodes the event, and writes or queues it; may block for one write to a file. The future
    /// resolves when the event is in the file, or at once for an omitted stage. Dropping the future
    /// does not withdraw the event.
    ///
    /// # Errors
    /// [`AuditError::Unavailable`] or [`AuditError::Closed`]: do not acknowledge the write;
    /// [`AuditError::Full`]: only if it frees space. Never under [`OnFailure::Drop`].
    pub fn record(
        &self,
        event: &AuditEvent<'_>,
        plan: &AuditPlan,
    ) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
        let queued =
            if plan.records(event.stage) { self.shared.record(event, plan) } else { Ok(None) };
        let drops = self.shared.on_failure == OnFailure::Drop;
        async move {
            match queued {
                Ok(None) => Ok(()),
                Err(AuditError::Unavailable | AuditError::Full) if drops => Ok(()),
                Err(error) => Err(error),
                Ok(Some(written)) => written.await.unwrap_or(Err(AuditError::Closed)),
            }
        }
    }

    /// Counters for metrics.
    pub fn stats(&self) -> AuditStats {
        let queue = self.shared.lock();
        AuditStats {
            written: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            errors: self.shared.errors.load(Ordering::Relaxed),
            queued_bytes: (queue.lines.len() + queue.in_flight) as u64,
            healthy: self.shared.healthy.load(Ordering::Relaxed),
        }
    }

    /// Writes what is queued and stops the thread. Blocks; later events are refused.
    pub fn close(&self) {
        self.shared.close();
        let handle = self.thread.handle.lock().take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
        // The write of a caller.
        drop(self.shared.output.lock());
    }
}

impl Shared {
    fn new(config: AuditConfig, lines: Box<dyn AuditOutput>) -> Self {
        Self {
            output: Mutex::new(Output { lines, gap: GATHERED_GAP, last: None, slow_since: None }),
            policy: config.policy,
            on_failure: config.on_failure,
            queue_bytes: config.queue_bytes,
            max_event_bytes: config.max_event_bytes,
            refusals: Refusals::default(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            healthy: AtomicBool::new(true),
            full: AtomicBool::new(false),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            missing: MissingEvents::default(),
            errors: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock()
    }

    fn unavailable(&self) -> AuditError {
        match self.full.load(Ordering::Acquire) {
            true => AuditError::Full,
            false => AuditError::Unavailable,
        }
    }

    fn drop_events(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        self.missing.add(count);
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// `None`: it is in the file.
    fn record(
        &self,
        event: &AuditEvent<'_>,
        plan: &AuditPlan,
    ) -> Result<Option<WrittenEvent>, AuditError> {
        let mut encoded = Vec::with_capacity(2_048);
        line::write(&mut encoded, event, plan, self.max_event_bytes);
        match self.write_alone(&encoded)? {
            true => Ok(None),
            false => self.queue(&encoded).map(Some),
        }
    }

    /// Writes a line that has the log to itself. False: nothing was written.
    fn write_alone(&self, encoded: &[u8]) -> Result<bool, AuditError> {
        let Some(mut output) = self.output.try_lock() else { return Ok(false) };
        let mut queue = self.lock();
        if queue.closed {
            return Err(AuditError::Closed);
        }
        let is_alone = queue.lines.is_empty() && queue.in_flight == 0;
        if !is_alone || !self.healthy.load(Ordering::Acquire) || !self.missing.is_empty() {
            return Ok(false);
        }
        queue.in_flight += encoded.len();
        drop(queue);
        let is_written = output.append_quickly(encoded);
        self.lock().in_flight -= encoded.len();
        if is_written {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(is_written)
    }

    fn queue(&self, encoded: &[u8]) -> Result<WrittenEvent, AuditError> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(AuditError::Closed);
        }
        if queue.lines.len() + queue.in_flight + encoded.len() > self.queue_bytes {
            self.drop_events(1);
            return Err(self.unavailable());
        }
        let idle = queue.lines.is_empty();
        queue.lines.extend_from_slice(encoded);
        queue.count += 1;
        if self.on_failure == OnFailure::Refuse && !self.healthy.load(Ordering::Acquire) {
            // The event stays queued for the thread to retry; the caller need not wait for that.
            return Err(self.unavailable());
        }
        let (sender, receiver) = oneshot::channel();
        queue.waiters.push(sender);
        drop(queue);
        if idle {
            self.wake.notify_one();
        }
        Ok(receiver)
    }
}

/// State of the writer thread.
struct WriterThread {
    shared: Arc<Shared>,
}

impl WriterThread {
    fn run(self) {
        let mut group = EventQueue::default();
        while self.take(&mut group) {
            self.write(&mut group);
            self.shared.lock().in_flight -= group.lines.len();
            group.lines.clear();
            group.lines.shrink_to(1024 * 1024);
            group.count = 0;
        }
    }

    /// Waits for events; `false` if the log is closed and drained.
    fn take(&self, group: &mut EventQueue) -> bool {
        let mut queue = self.shared.lock();
        while queue.lines.is_empty() {
            if queue.closed {
                return false;
            }
            let waited = self.shared.wake.wait_for(&mut queue, TIDY_INTERVAL);
            if waited.timed_out() && queue.lines.is_empty() {
                drop(queue);
                self.shared.output.lock().lines.tidy();
                queue = self.shared.lock();
            }
        }
        std::mem::swap(&mut queue.lines, &mut group.lines);
        std::mem::swap(&mut queue.waiters, &mut group.waiters);
        std::mem::swap(&mut queue.count, &mut group.count);
        queue.in_flight += group.lines.len();
        true
    }

    /// Writes one group. On failure, drops it at once or keeps retrying, by [`OnFailure`]; after
    /// [`WRITE_TIMEOUT`] the waiters get an error.
    fn write(&self, group: &mut EventQueue) {
        let begun = Instant::now();
        while let Err(error) = self.append(&group.lines) {
            self.failed(&error);
            if self.shared.on_failure == OnFailure::Drop {
                self.shared.drop_events(group.count);
                answer(&mut group.waiters, || Ok(()));
                return;
            }
            if begun.elapsed() >= WRITE_TIMEOUT {
                let failed = || Err(self.shared.unavailable());
                answer(&mut group.waiters, failed);
                answer(&mut self.shared.lock().waiters, failed);
            }
            if !self.pause() && begun.elapsed() >= WRITE_TIMEOUT {
                self.shared.drop_events(group.count);
                return;
            }
        }
        if !self.shared.healthy.swap(true, Ordering::AcqRel) {
            tracing::info!("audit log recovered");
        }
        self.shared.written.fetch_add(group.count, Ordering::Relaxed);
        answer(&mut group.waiters, || Ok(()));
    }

    /// Appends lines, after the count of those that are missing.
    fn append(&self, lines: &[u8]) -> io::Result<()> {
        let mut output = self.shared.output.lock();
        let Some((count, mut bytes)) = self.shared.missing.line() else {
            return output.append(lines);
        };
        bytes.extend_from_slice(lines);
        output.append(&bytes)?;
        self.shared.missing.recorded(count);
        Ok(())
    }

    fn failed(&self, error: &io::Error) {
        self.shared.full.store(is_full(error), Ordering::Release);
        self.shared.errors.fetch_add(1, Ordering::Relaxed);
        if self.shared.healthy.swap(false, Ordering::AcqRel) {
            tracing::error!(%error, policy = ?self.shared.on_failure, "cannot write the audit log");
        }
    }

    /// Waits [`RETRY_INTERVAL`]; `false` if the log is closing.
    fn pause(&self) -> bool {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            std::thread::sleep(RETRY_INTERVAL);
            return false;
        }
        self.shared.wake.wait_for(&mut queue, RETRY_INTERVAL);
        !queue.closed
    }
}

#[cfg(test)]
mod tests;
