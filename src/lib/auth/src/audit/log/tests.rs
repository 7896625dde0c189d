//! Tests of the log with an output that fails, takes long, or is written by callers.

use super::*;
use crate::audit::{AuditLevel, AuditStage, MISSING, StageSet};
use ferrokube_apimachinery::user::UserInfo;
use futures::FutureExt;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// An output that can be made to fail.
#[derive(Clone, Default)]
struct Disk {
    full: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
    /// Whether callers may write, and number of their writes.
    quick: Arc<AtomicBool>,
    quick_writes: Arc<AtomicU64>,
    /// How long a write takes, in microseconds.
    delay: Arc<AtomicU64>,
    lines: Arc<Mutex<Vec<u8>>>,
}

impl AuditOutput for Disk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("broken"));
        }
        std::thread::sleep(Duration::from_micros(self.delay.load(Ordering::SeqCst)));
        self.lines.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn append_quickly(&mut self, bytes: &[u8]) -> bool {
        let is_done = self.quick.load(Ordering::SeqCst) && self.append(bytes).is_ok();
        self.quick_writes.fetch_add(u64::from(is_done), Ordering::SeqCst);
        is_done
    }
}

const METADATA_PLAN: AuditPlan = AuditPlan {
    level: AuditLevel::Metadata,
    omit: StageSet::NONE,
    omit_managed_fields: false,
    refusals: false,
    rationed: false,
};

fn record(log: &AuditLog, id: &str) -> impl Future<Output = Result<(), AuditError>> + Send + use<> {
    let event = AuditEvent {
        id,
        stage: AuditStage::ResponseComplete,
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
    log.record(&event, &METADATA_PLAN)
}

fn log(disk: &Disk, change: impl FnOnce(&mut AuditConfig)) -> AuditLog {
    let mut config = AuditConfig::new("-");
    change(&mut config);
    AuditLog::start(config, Box::new(disk.clone())).expect("start")
}

#[tokio::test]
async fn fault_55_an_acknowledged_event_is_in_the_file() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    for number in 0..100 {
        record(&log, &format!("id-{number}-")).await.expect("written");
        let text = String::from_utf8(disk.lines.lock().clone()).expect("text");
        assert!(text.contains(&format!("id-{number}-")));
    }
    assert_eq!(log.stats().written, 100);
}

#[tokio::test]
async fn an_event_that_has_the_log_to_itself_is_written_by_its_caller() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    log.shared.output.lock().gap = Duration::ZERO;
    disk.quick.store(true, Ordering::SeqCst);
    log.shared.lock().in_flight += 1;
    record(&log, "behind others").await.expect("written by the thread");
    assert_eq!(disk.quick_writes.load(Ordering::SeqCst), 0);
    log.shared.lock().in_flight -= 1;
    drained(&log).await;
    record(&log, "quick").now_or_never().expect("at once").expect("written");
    assert_eq!(disk.lines.lock().iter().filter(|&&byte| byte == b'\n').count(), 2);
    disk.full.store(true, Ordering::SeqCst);
    assert!(matches!(record(&log, "kept").await, Err(AuditError::Full)), "by the thread");
    disk.full.store(false, Ordering::SeqCst);
    recovers(&log).await;
    drained(&log).await;
    assert_eq!(disk.quick_writes.load(Ordering::SeqCst), 1, "what is kept goes first");
    disk.delay.store(30_000, Ordering::SeqCst);
    record(&log, "slow").now_or_never().expect("at once").expect("written");
    record(&log, "later").await.expect("written by the thread");
    assert_eq!(disk.quick_writes.load(Ordering::SeqCst), 2, "the disk is slow");
    drained(&log).await;
    assert_eq!(log.stats().written, 5);
    log.close();
    assert!(matches!(record(&log, "late").await, Err(AuditError::Closed)));
}

#[tokio::test]
async fn events_that_follow_closely_are_left_to_the_thread() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    log.shared.output.lock().gap = Duration::from_secs(3600);
    disk.quick.store(true, Ordering::SeqCst);
    for number in 0..3 {
        record(&log, &number.to_string()).await.expect("written");
    }
    assert_eq!(disk.quick_writes.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn events_of_a_caller_stay_in_order_whoever_writes_them() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    log.shared.output.lock().gap = Duration::ZERO;
    disk.quick.store(true, Ordering::SeqCst);
    let callers = (0..4).map(|caller| {
        let log = log.clone();
        tokio::spawn(async move {
            for number in 0..500 {
                record(&log, &format!("{caller}-{number}-")).await.expect("written");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("ends");
    }
    drained(&log).await;
    assert_eq!(log.stats().written, 2_000);
    let text = String::from_utf8(disk.lines.lock().clone()).expect("text");
    for caller in 0..4 {
        let places: Vec<_> = (0..500)
            .map(|number| text.find(&format!("\"{caller}-{number}-")).expect("is written"))
            .collect();
        assert!(places.is_sorted(), "caller {caller}");
    }
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
    assert_eq!(disk.lines.lock().iter().filter(|&&byte| byte == b'\n').count(), 1_000);
    assert!(matches!(record(&log, "late").await, Err(AuditError::Closed)));
}

#[tokio::test]
async fn fault_55_full_disk_refuses_then_recovers() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    disk.full.store(true, Ordering::SeqCst);
    assert!(matches!(record(&log, "kept").await, Err(AuditError::Full)));
    assert!(matches!(log.admit(&METADATA_PLAN), Err(AuditError::Full)));
    assert!(!log.stats().healthy);
    assert!(matches!(record(&log, "also kept").await, Err(AuditError::Full)), "at once");
    disk.full.store(false, Ordering::SeqCst);
    recovers(&log).await;
    record(&log, "after").await.expect("written");
    let text = String::from_utf8(disk.lines.lock().clone()).expect("text");
    assert!(
        text.find("kept").expect("the refused event is kept") < text.find("after").expect("after")
    );
}

async fn drained(log: &AuditLog) {
    while log.stats().queued_bytes > 0 {
        tokio::task::yield_now().await;
    }
}

async fn recovers(log: &AuditLog) {
    let begun = Instant::now();
    while log.admit(&METADATA_PLAN).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it recovers");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn fault_55_only_a_full_disk_is_called_full() {
    let disk = Disk::default();
    let log = log(&disk, |_| ());
    disk.broken.store(true, Ordering::SeqCst);
    assert!(matches!(record(&log, "first").await, Err(AuditError::Unavailable)));
    assert!(matches!(record(&log, "second").await, Err(AuditError::Unavailable)));
    assert!(matches!(log.admit(&METADATA_PLAN), Err(AuditError::Unavailable)));
}

#[tokio::test]
async fn fault_55_the_first_line_after_a_full_disk_counts_what_is_missing() {
    for on_failure in [OnFailure::Refuse, OnFailure::Drop] {
        let disk = Disk::default();
        let log = log(&disk, |config| {
            (config.queue_bytes, config.on_failure) = (10_000, on_failure);
        });
        record(&log, "before").await.expect("written");
        disk.full.store(true, Ordering::SeqCst);
        while log.stats().dropped < 3 {
            let _ = record(&log, "lost or late").await;
        }
        disk.full.store(false, Ordering::SeqCst);
        recovers(&log).await;
        record(&log, "after").await.expect("written");
        let dropped = log.stats().dropped;
        log.close();
        let text = String::from_utf8(disk.lines.lock().clone()).expect("text");
        let counts: Vec<_> = text.lines().map(|line| line.contains(MISSING)).collect();
        let count = format!("\"{MISSING}\":\"{dropped}\"");
        let second = text.lines().nth(1).expect("the count");
        assert!(second.contains(&count), "{count}: {second}");
        assert_eq!(counts.iter().filter(|found| **found).count(), 1, "counted once");
        assert!(text.lines().last().expect("a line").contains("after"));
    }
}

#[tokio::test]
async fn fault_55_a_dropping_log_recovers_when_there_is_space() {
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
    assert!(log.admit(&METADATA_PLAN).is_ok());
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
async fn a_disabled_log_records_nothing() {
    let log = AuditLog::disabled();
    let user = UserInfo::default();
    assert_eq!(
        log.plan(&AuditRequest { user: &user, verb: "create", resource: None, path: "/" }),
        AuditPlan::default()
    );
    record_nothing(&log).await;
}

async fn record_nothing(log: &AuditLog) {
    assert!(log.admit(&AuditPlan::default()).is_ok());
}
