//! The audit log: events are encoded by whoever records them, queued in one bounded buffer and
//! written in groups by a thread of their own.

use super::event::Event;
use super::line;
use super::policy::{Plan, Policy, Subject};
use super::refusals::Refusals;
use super::reserve::Reserved;
use super::sink::{Sink, Stdout};
use ferrokube_trace::log::{Rotating, Rotation};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a write that cannot be recorded is held before it is refused.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// How often an idle log looks at the ages of its files.
const TIDY: Duration = Duration::from_secs(3600);

/// What happens while events cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Writes are refused until it works again.
    #[default]
    Refuse,
    /// Events are dropped and counted.
    Drop,
}

/// How the audit log is kept.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Which requests are recorded how.
    pub policy: Policy,
    /// When a new file is begun.
    pub rotation: Rotation,
    /// What happens while events cannot be written.
    pub on_failure: OnFailure,
    /// Bytes of events that may wait; beyond it as on failure.
    pub queue_bytes: usize,
    /// A longer event loses its objects.
    pub max_event_bytes: usize,
    /// Sync the file after each group of events and before its writes are acknowledged: they then
    /// survive power cuts, too.
    pub sync: bool,
    /// So much space is held back next to the file for when the disk is full; 0: none.
    pub reserve_bytes: u64,
}

impl Config {
    /// The defaults, into this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            policy: Policy::default(),
            rotation: Rotation::default(),
            on_failure: OnFailure::default(),
            queue_bytes: 16 * 1024 * 1024,
            max_event_bytes: 512 * 1024,
            sync: false,
            reserve_bytes: 0,
        }
    }
}

/// Why an event is not in the file.
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
    /// Events cannot be written now (full disk, or more than the queue holds).
    #[error("the audit log cannot be written")]
    Unavailable,
    /// The log was closed.
    #[error("the audit log is closed")]
    Closed,
}

/// Counters for metrics; all only grow but `queued_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events written.
    pub written: u64,
    /// Events dropped by policy.
    pub dropped: u64,
    /// Failed attempts to write.
    pub errors: u64,
    /// Bytes that wait.
    pub queued_bytes: u64,
    /// Whether the last attempt worked.
    pub healthy: bool,
}

/// The audit log. Cheap to clone; [`AuditLog::close`] (or the last clone's drop) ends it after
/// everything queued is written.
#[derive(Clone)]
pub struct AuditLog {
    shared: Arc<Shared>,
    thread: Arc<Thread>,
}

struct Shared {
    policy: Policy,
    on_failure: OnFailure,
    queue_bytes: usize,
    max_event_bytes: usize,
    refusals: Refusals,
    queue: Mutex<Queue>,
    wake: Condvar,
    healthy: AtomicBool,
    written: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
}

type Waiter = oneshot::Sender<Result<(), AuditError>>;

/// Tells all of them.
fn answer(waiters: &mut Vec<Waiter>, is_written: bool) {
    for waiter in waiters.drain(..) {
        // Whoever stopped waiting does not want to know.
        let _ = waiter.send(if is_written { Ok(()) } else { Err(AuditError::Unavailable) });
    }
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// How many lines these are.
    count: u64,
    /// Who waits for them; while the log is failing nobody does.
    waiters: Vec<Waiter>,
    /// Bytes taken by the thread and not yet written.
    in_flight: usize,
    closed: bool,
}

struct Thread {
    shared: Arc<Shared>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Thread {
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
    /// Opens the file and starts the writer.
    ///
    /// # Errors
    /// [`AuditError::Open`].
    pub fn open(config: Config) -> Result<Self, AuditError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| AuditError::Open { path, source }
        };
        let sink: Box<dyn Sink> = if config.path == Path::new("-") {
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
        Self::start(config, sink).map_err(failed(&path))
    }

    /// A log that records nothing.
    pub fn disabled() -> Self {
        let shared =
            Arc::new(Shared::new(Config { policy: Policy::nothing(), ..Config::new("-") }));
        Self {
            thread: Arc::new(Thread { shared: Arc::clone(&shared), handle: Mutex::new(None) }),
            shared,
        }
    }

    pub(super) fn start(config: Config, sink: Box<dyn Sink>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config));
        let writer = Writer { shared: Arc::clone(&shared), sink };
        let handle =
            std::thread::Builder::new().name("audit".into()).spawn(move || writer.run())?;
        Ok(Self {
            thread: Arc::new(Thread {
                shared: Arc::clone(&shared),
                handle: Mutex::new(Some(handle)),
            }),
            shared,
        })
    }

    /// What is recorded of a request; ask once, keep the answer for all its stages.
    pub fn plan(&self, subject: &Subject<'_>) -> Plan {
        self.shared.policy.plan(subject)
    }

    /// The plan of a request that ended with this status code, and how many like it were left out
    /// before. By the built-in policy every refusal (401, 403, 429 of a write, and 507 of a full
    /// disk) is worth a record, but no flood of them may push the rest out of the log: of those of
    /// one caller (a user, or an address without one) and of all together only so many are
    /// recorded; so are self reviews, which every account may make. A policy file is followed to
    /// the letter.
    pub fn conclude(&self, plan: Plan, code: u16, caller: impl FnOnce() -> String) -> (Plan, u64) {
        // Flow control refuses before authorization.
        let is_refusal =
            matches!(code, 401 | 403 | 507) || (code == 429 && plan.level > super::Level::None);
        if !(plan.rationed || plan.refusals && is_refusal) {
            return (plan, 0);
        }
        match self.shared.refusals.admit(&caller(), Instant::now()) {
            Some(left_out) => {
                (Plan { level: plan.level.max(super::Level::Metadata), ..plan }, left_out)
            }
            None => (Plan::default(), 0),
        }
    }

    /// The longest event that keeps its objects, in bytes; 0 when nothing is recorded.
    pub fn max_event_bytes(&self) -> usize {
        self.shared.max_event_bytes
    }

    /// Whether a write with this plan may be executed now.
    ///
    /// # Errors
    /// [`AuditError::Unavailable`] while events cannot be written and the policy is to refuse:
    /// answer 500 without executing.
    pub fn admit(&self, plan: &Plan) -> Result<(), AuditError> {
        if plan.level == super::Level::None
            || self.shared.on_failure == OnFailure::Drop
            || self.shared.healthy.load(Ordering::Acquire)
        {
            return Ok(());
        }
        Err(AuditError::Unavailable)
    }

    /// Queues the event (encoded at once, nothing borrowed stays); the future resolves when it is
    /// in the file. A stage that the plan omits resolves at once. Dropping the future does not take
    /// the event back.
    ///
    /// # Errors
    /// [`AuditError::Unavailable`] or [`AuditError::Closed`]: do not acknowledge the write. Never
    /// when the policy is to drop.
    pub fn record(
        &self,
        event: &Event<'_>,
        plan: &Plan,
    ) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
        let queued = if plan.wants(event.stage) {
            self.shared.queue(event, plan).map(Some)
        } else {
            Ok(None)
        };
        let drops = self.shared.on_failure == OnFailure::Drop;
        async move {
            match queued {
                Ok(None) => Ok(()),
                Err(AuditError::Unavailable) if drops => Ok(()),
                Err(error) => Err(error),
                Ok(Some(written)) => written.await.unwrap_or(Err(AuditError::Closed)),
            }
        }
    }

    /// Counters for metrics.
    pub fn stats(&self) -> Stats {
        let queue = self.shared.lock();
        Stats {
            written: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            errors: self.shared.errors.load(Ordering::Relaxed),
            queued_bytes: (queue.lines.len() + queue.in_flight) as u64,
            healthy: self.shared.healthy.load(Ordering::Relaxed),
        }
    }

    /// Writes what is queued and ends the writer. Blocks; later events are refused.
    pub fn close(&self) {
        self.shared.close();
        let handle = self.thread.handle.lock().expect("no panic while held").take();
        if let Some(handle) = handle {
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn new(config: Config) -> Self {
        Self {
            policy: config.policy,
            on_failure: config.on_failure,
            queue_bytes: config.queue_bytes,
            max_event_bytes: config.max_event_bytes,
            refusals: Refusals::default(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            healthy: AtomicBool::new(true),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic while held")
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    fn queue(
        &self,
        event: &Event<'_>,
        plan: &Plan,
    ) -> Result<oneshot::Receiver<Result<(), AuditError>>, AuditError> {
        let mut encoded = Vec::with_capacity(2_048);
        line::write(&mut encoded, event, plan, self.max_event_bytes);
        let mut queue = self.lock();
        if queue.closed {
            return Err(AuditError::Closed);
        }
        if queue.lines.len() + queue.in_flight + encoded.len() > self.queue_bytes {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Err(AuditError::Unavailable);
        }
        let idle = queue.lines.is_empty();
        queue.lines.extend_from_slice(&encoded);
        queue.count += 1;
        if self.on_failure == OnFailure::Refuse && !self.healthy.load(Ordering::Acquire) {
            // The writer is at it. Kept for when it works again; nobody should wait for that.
            return Err(AuditError::Unavailable);
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

/// The thread's state.
struct Writer {
    shared: Arc<Shared>,
    sink: Box<dyn Sink>,
}

impl Writer {
    fn run(mut self) {
        let mut group = Queue::default();
        while self.take(&mut group) {
            self.write(&mut group);
            group.lines.clear();
            group.lines.shrink_to(1024 * 1024);
            group.count = 0;
            self.shared.lock().in_flight = 0;
        }
    }

    /// Waits for events; `false` when the log is closed and drained.
    fn take(&mut self, group: &mut Queue) -> bool {
        let mut queue = self.shared.lock();
        while queue.lines.is_empty() {
            if queue.closed {
                return false;
            }
            let (next, waited) =
                self.shared.wake.wait_timeout(queue, TIDY).expect("no panic while held");
            queue = next;
            if waited.timed_out() && queue.lines.is_empty() {
                drop(queue);
                self.sink.tidy();
                queue = self.shared.lock();
            }
        }
        std::mem::swap(&mut queue.lines, &mut group.lines);
        std::mem::swap(&mut queue.waiters, &mut group.waiters);
        std::mem::swap(&mut queue.count, &mut group.count);
        queue.in_flight = group.lines.len();
        true
    }

    /// Writes one group. While that fails: by policy it is dropped at once, or kept and tried
    /// again, and after [`PATIENCE`] whoever waits is told.
    fn write(&mut self, group: &mut Queue) {
        let begun = Instant::now();
        while let Err(error) = self.sink.append(&group.lines) {
            self.failed(&error);
            if self.shared.on_failure == OnFailure::Drop {
                self.shared.dropped.fetch_add(group.count, Ordering::Relaxed);
                answer(&mut group.waiters, true);
                return;
            }
            if begun.elapsed() >= PATIENCE {
                answer(&mut group.waiters, false);
                answer(&mut self.shared.lock().waiters, false);
            }
            if !self.pause() && begun.elapsed() >= PATIENCE {
                self.shared.dropped.fetch_add(group.count, Ordering::Relaxed);
                return;
            }
        }
        if !self.shared.healthy.swap(true, Ordering::AcqRel) {
            tracing::info!("the audit log is written again");
        }
        self.shared.written.fetch_add(group.count, Ordering::Relaxed);
        answer(&mut group.waiters, true);
    }

    fn failed(&self, error: &io::Error) {
        self.shared.errors.fetch_add(1, Ordering::Relaxed);
        if self.shared.healthy.swap(false, Ordering::AcqRel) {
            tracing::error!(%error, policy = ?self.shared.on_failure, "the audit log cannot be written");
        }
    }

    /// Waits a little; `false` when the log is closing.
    fn pause(&self) -> bool {
        let queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            std::thread::sleep(RETRY);
            return false;
        }
        let (queue, _) = self.shared.wake.wait_timeout(queue, RETRY).expect("no panic while held");
        !queue.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Level, Stage, Stages};
    use ferrokube_registry::UserInfo;
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    /// A disk that is full while told so.
    #[derive(Clone, Default)]
    struct Disk {
        full: Arc<AtomicBool>,
        lines: Arc<Mutex<Vec<u8>>>,
    }

    impl Sink for Disk {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            if self.full.load(Ordering::SeqCst) {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.lines.lock().expect("lock").extend_from_slice(bytes);
            Ok(())
        }
    }

    const PLAN: Plan = Plan {
        level: Level::Metadata,
        omit: Stages::NONE,
        omit_managed_fields: false,
        refusals: false,
        rationed: false,
    };

    fn record(
        log: &AuditLog,
        id: &str,
    ) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
        let event = Event {
            id,
            stage: Stage::ResponseComplete,
            uri: "/api/v1/namespaces/n/configmaps",
            verb: "create",
            user: &UserInfo::default(),
            impersonated: None,
            constraint: "",
            method: "",
            source_ips: &[],
            user_agent: "",
            object: None,
            outcome: None,
            request: None,
            response: None,
            received: SystemTime::UNIX_EPOCH,
            at: SystemTime::UNIX_EPOCH,
            trace: None,
            decision: ("", ""),
            annotations: &BTreeMap::new(),
        };
        log.record(&event, &PLAN)
    }

    fn log(disk: &Disk, change: impl FnOnce(&mut Config)) -> AuditLog {
        let mut config = Config::new("-");
        change(&mut config);
        AuditLog::start(config, Box::new(disk.clone())).expect("start")
    }

    #[tokio::test]
    async fn fault_55_acknowledged_means_written() {
        let disk = Disk::default();
        let log = log(&disk, |_| ());
        for number in 0..100 {
            record(&log, &format!("id-{number}-")).await.expect("written");
            let text = String::from_utf8(disk.lines.lock().expect("lock").clone()).expect("text");
            assert!(text.contains(&format!("id-{number}-")));
        }
        assert_eq!(log.stats().written, 100);
    }

    #[tokio::test]
    async fn close_writes_what_is_queued() {
        let disk = Disk::default();
        let log = log(&disk, |_| ());
        let waiting: Vec<_> = (0..1_000).map(|number| record(&log, &number.to_string())).collect();
        log.close();
        for written in waiting {
            written.await.expect("written");
        }
        assert_eq!(
            disk.lines.lock().expect("lock").iter().filter(|&&byte| byte == b'\n').count(),
            1_000
        );
        assert!(matches!(record(&log, "late").await, Err(AuditError::Closed)));
    }

    #[tokio::test]
    async fn fault_55_full_disk_refuses_then_recovers() {
        let disk = Disk::default();
        let log = log(&disk, |_| ());
        disk.full.store(true, Ordering::SeqCst);
        assert!(matches!(record(&log, "kept").await, Err(AuditError::Unavailable)));
        assert!(log.admit(&PLAN).is_err());
        assert!(!log.stats().healthy);
        assert!(matches!(record(&log, "also kept").await, Err(AuditError::Unavailable)), "at once");
        disk.full.store(false, Ordering::SeqCst);
        let begun = Instant::now();
        while log.admit(&PLAN).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it recovers");
            tokio::task::yield_now().await;
        }
        record(&log, "after").await.expect("written");
        let text = String::from_utf8(disk.lines.lock().expect("lock").clone()).expect("text");
        assert!(
            text.find("kept").expect("the refused event is kept")
                < text.find("after").expect("after")
        );
    }

    #[tokio::test]
    async fn fault_55_a_dropping_log_goes_on_when_there_is_space() {
        let disk = Disk::default();
        let log = log(&disk, |config| config.on_failure = OnFailure::Drop);
        disk.full.store(true, Ordering::SeqCst);
        record(&log, "lost").await.expect("dropped by policy");
        disk.full.store(false, Ordering::SeqCst);
        record(&log, "written").await.expect("written");
        assert!(log.stats().healthy);
        assert_eq!((log.stats().written, log.stats().dropped), (1, 1));
    }

    #[tokio::test]
    async fn fault_55_full_disk_drops_visibly() {
        let disk = Disk::default();
        let log = log(&disk, |config| config.on_failure = OnFailure::Drop);
        disk.full.store(true, Ordering::SeqCst);
        record(&log, "lost").await.expect("dropped by policy");
        assert!(log.admit(&PLAN).is_ok());
        assert_eq!(log.stats().dropped, 1);
        assert!(log.stats().errors >= 1);
    }

    #[tokio::test]
    async fn fault_55_flood_is_bounded() {
        let disk = Disk::default();
        disk.full.store(true, Ordering::SeqCst);
        let log = log(&disk, |config| config.queue_bytes = 10_000);
        let waiting: Vec<_> = (0..1_000).map(|number| record(&log, &number.to_string())).collect();
        assert!(log.stats().queued_bytes <= 10_000);
        assert!(log.stats().dropped > 900);
        drop(waiting);
    }

    #[tokio::test]
    async fn a_disabled_log_wants_nothing() {
        let log = AuditLog::disabled();
        let user = UserInfo::default();
        assert_eq!(
            log.plan(&Subject { user: &user, verb: "create", resource: None, path: "/" }),
            Plan::default()
        );
        record_nothing(&log).await;
    }

    async fn record_nothing(log: &AuditLog) {
        assert!(log.admit(&Plan::default()).is_ok());
    }
}
