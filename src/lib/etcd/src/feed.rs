//! The feed: the full state, then a watch over all keys. It resumes after its last revision, or
//! starts over with the state if that is compacted.

use crate::connection::{CALL_TIMEOUT, MemberWatch};
use crate::proto::{
    EtcdWatchRequest, EventType, KeyValue, RangeRequest, WatchCreateRequest, WatchEvent,
    WatchRequestUnion, WatchResponse,
};
use crate::shared::{EtcdShared, revision};
use crate::version::{EtcdVersion, OLDEST, has_fixes, has_progress, parse_version};
use ferrokube_storage::Revision;
use ferrokube_storage::remote::{BoxFuture, FeedItem, LineBudget, RemoteChange, RemoteFeed};
use futures::stream::{self, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Keys per page of the state: at first, and at least after pages that took too long.
const PAGE: i64 = 1000;
const MIN_PAGE: i64 = 10;
/// Limit of reading the state in one request.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The initial state is read this many revisions back, if etcd still has them: the events since
/// then let watches resume that began at other servers or before a restart.
const HISTORY: u64 = 10_000;
/// Max outstanding progress requests.
const MAX_REQUESTS: usize = 8;
/// Pause after a failure. After as many failures as an election takes it doubles.
const PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(3);
const QUICK_FAILURES: u32 = 10;
/// Interval of liveness checks of the stream, and timeout of their replies.
const PROGRESS_CHECK: Duration = Duration::from_millis(250);
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// Max compactions that may interrupt reading the state; after that it is read in one request.
const MAX_COMPACTED: u32 = 3;

/// One store's feed.
pub(crate) struct EtcdFeed {
    shared: Arc<EtcdShared>,
    /// All events up to here were returned.
    position: Option<Revision>,
    /// The member whose version was checked: its number and its id.
    checked: usize,
    member: u64,
    /// Version that was warned of, if it needed that.
    warned: String,
    stream: Option<MemberWatch>,
    /// Whether the next state is the initial one, which may be older. Later ones must not go back.
    may_be_old: bool,
    is_failing: bool,
    /// Failures since the last item of the state or the watch.
    failures: u32,
    /// Whether the state was just read: further calls would give a compaction time to intervene.
    is_checked: bool,
    /// Compactions while reading the state.
    compacted: u32,
    /// Keys per page of the state.
    page: i64,
    /// The revision that the member had not reached when it was first asked.
    behind: Option<LaggingMember>,
    /// For lines about keys of others.
    lines: LineBudget,
}

/// A member that told less progress than others had already confirmed.
struct LaggingMember {
    since: Instant,
    /// Revision that was confirmed by then.
    revision: i64,
}

/// Why the feed has no stream.
enum Broken {
    /// Retry.
    Lost(String),
    /// The requested revision is compacted.
    Compacted,
    Failed(String),
}

impl EtcdFeed {
    pub(crate) fn new(shared: Arc<EtcdShared>) -> Self {
        Self {
            shared,
            position: None,
            checked: 0,
            member: 0,
            warned: String::new(),
            stream: None,
            may_be_old: true,
            is_failing: false,
            failures: 0,
            is_checked: false,
            compacted: 0,
            page: PAGE,
            behind: None,
            lines: LineBudget::default(),
        }
    }

    fn lost(&self, status: &Status) -> Broken {
        match self.shared.connection.refused() {
            Some(why) => Broken::Failed(why.to_owned()),
            None => Broken::Lost(self.shared.reason(status)),
        }
    }

    /// The stream broke: try another member. A failed call has switched already.
    fn left(&self, why: String) -> Broken {
        if let Some(stream) = &self.stream {
            self.shared.connection.leave_member(stream);
        }
        Broken::Lost(why)
    }

    /// Checks the cluster before following it. Returns its revision.
    async fn check(&mut self) -> Result<Revision, Broken> {
        let connection = &self.shared.connection;
        self.checked = connection.member();
        let status = connection.status(self.checked).await.map_err(|error| self.lost(&error))?;
        let version = parse_version(&status.version);
        if version < OLDEST {
            let why = format!("etcd {} is not supported: 3.4 is the oldest", status.version);
            return Err(Broken::Failed(why));
        }
        let has_progress = has_progress(version);
        self.shared.has_progress.store(has_progress, Ordering::Release);
        if self.position.is_none() {
            self.warn(&status.version, version);
            if !has_progress {
                // Reserves a key that can be deleted when etcd is full.
                self.shared.start_mark();
            }
        }
        self.member = status.header.unwrap_or_default().member_id;
        self.shared.probe().await.map_err(|error| self.lost(&error))
    }

    /// Logs what is wrong with a version, once for all attempts to read the state.
    fn warn(&mut self, text: &str, version: EtcdVersion) {
        if self.warned == text {
            return;
        }
        text.clone_into(&mut self.warned);
        if !has_progress(version) {
            tracing::warn!(
                version = text,
                "this etcd has no reliable progress notifications: reads may cost it a write"
            );
        }
        if !has_fixes(version) {
            tracing::warn!(
                version = text,
                "this etcd may lack security fixes, which 3.5.33, 3.6.14 and 3.7.1 have"
            );
        }
    }

    /// Reads the whole state: the initial one as far back as the history is wanted and kept.
    async fn state(&mut self) -> Result<FeedItem, Broken> {
        let now = self.check().await?;
        let read = if self.may_be_old && self.compacted <= MAX_COMPACTED {
            let wanted = i64::try_from(now.0.saturating_sub(HISTORY).max(1)).unwrap_or(0);
            match self.state_at(wanted).await {
                Err(Broken::Compacted) => {
                    let kept = self.kept_from(wanted).await;
                    self.state_at(kept.unwrap_or(0)).await
                }
                read => read,
            }
        } else {
            self.state_at(0).await
        };
        match &read {
            Ok(_) => (self.compacted, self.is_checked, self.may_be_old) = (0, true, false),
            Err(Broken::Compacted) => self.compacted += 1,
            Err(_) => {}
        }
        read
    }

    /// The state at a revision (0: the current one), in pages unless compactions keep interrupting.
    async fn state_at(&mut self, mut at: i64) -> Result<FeedItem, Broken> {
        let (mut key, range_end) = self.shared.bounds();
        let mut values = Vec::new();
        let is_whole = self.compacted > MAX_COMPACTED;
        loop {
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: if is_whole { 0 } else { self.page },
                revision: at,
                keys_only: false,
            };
            let limit = if is_whole { WHOLE_TIMEOUT } else { CALL_TIMEOUT };
            let page = match self.shared.connection.range_within(limit, request).await {
                Ok(page) => page,
                Err(status) if status.code() == Code::OutOfRange => return Err(Broken::Compacted),
                Err(status) => {
                    self.page = next_page(self.page, status.code());
                    return Err(self.lost(&status));
                }
            };
            if at == 0 {
                at = page.header.unwrap_or_default().revision;
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            values.extend(page.kvs.into_iter().filter_map(|kv| self.change(kv, false)));
            match last.filter(|_| page.more) {
                Some(last) => key = [&last[..], b"\0"].concat().into(),
                None => break,
            }
        }
        self.position = Some(revision(at));
        self.page = PAGE;
        Ok(FeedItem::State { revision: revision(at), values })
    }

    /// The revision up to which the history is compacted: etcd tells it to a watch that begins
    /// before that. `None`: unknown.
    async fn kept_from(&self, compacted: i64) -> Option<i64> {
        let (key, range_end) = self.shared.bounds();
        let create = WatchCreateRequest { key, range_end, start_revision: compacted };
        let create = EtcdWatchRequest { request: Some(WatchRequestUnion::Create(create)) };
        let requests = stream::iter([create]).chain(stream::pending());
        let mut watch = self.shared.connection.watch(self.checked, requests).await.ok()?;
        let told = async {
            loop {
                let response = watch.responses.message().await.ok()??;
                if response.compact_revision > 0 {
                    return Some(response.compact_revision);
                }
                if response.canceled {
                    return None;
                }
            }
        };
        tokio::time::timeout(MAX_SILENCE, told).await.ok().flatten()
    }

    fn change(&self, kv: KeyValue, is_delete: bool) -> Option<RemoteChange> {
        let key = self.shared.store_key(&kv.key);
        if key.is_none()
            && let Some(left_out) = self.lines.take()
        {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            tracing::error!(key, left_out, "a key in etcd is not of this store: it is not served");
        }
        Some(RemoteChange {
            key: key?,
            revision: revision(kv.mod_revision),
            create_revision: revision(kv.create_revision),
            value: (!is_delete).then_some(kv.value),
        })
    }

    async fn connect(&mut self, after: Revision) -> Result<(), Broken> {
        if !std::mem::take(&mut self.is_checked) {
            self.check().await?;
        }
        let (key, range_end) = self.shared.bounds();
        let start_revision = i64::try_from(after.0).unwrap_or(i64::MAX).saturating_add(1);
        let create = WatchCreateRequest { key, range_end, start_revision };
        let (requests, waiting) = mpsc::channel(MAX_REQUESTS);
        let create = EtcdWatchRequest { request: Some(WatchRequestUnion::Create(create)) };
        requests.try_send(create).expect("the channel is new");
        let waiting = futures::stream::unfold(waiting, |mut waiting| async move {
            waiting.recv().await.map(|request| (request, waiting))
        });
        // Others may have moved on to a member whose version is unknown.
        let stream = self.shared.connection.watch(self.checked, waiting).await;
        self.stream = Some(stream.map_err(|error| self.lost(&error))?);
        // Readers that waited for the stream have not been kept waiting by it.
        *self.shared.asked.lock() = None;
        *self.shared.requests.lock() = Some(requests);
        Ok(())
    }

    /// The next item, from the watch if one is open.
    async fn step(&mut self) -> Result<Option<FeedItem>, Broken> {
        let Some(after) = self.position else {
            return self.state().await.map(Some);
        };
        let Some(stream) = &mut self.stream else {
            self.connect(after).await?;
            return Ok(None);
        };
        let message = match tokio::time::timeout(PROGRESS_CHECK, stream.responses.message()).await {
            Ok(message) => message,
            Err(_) => return self.check_progress().map(|()| None),
        };
        *self.shared.asked.lock() = None;
        match message {
            Ok(Some(response)) => self.read(response),
            Ok(None) => Err(self.left("etcd ended the watch".to_owned())),
            Err(status) => Err(self.left(self.shared.reason(&status))),
        }
    }

    /// Switches from a member that hangs or lags. Reads the state if nothing else helps.
    fn check_progress(&self) -> Result<(), Broken> {
        if let Some(why) = self.shared.connection.refused() {
            return Err(Broken::Failed(why.to_owned()));
        }
        let asked = *self.shared.asked.lock();
        if self.shared.is_blind.swap(false, Ordering::AcqRel) && asked.is_some() {
            tracing::warn!(
                "etcd is full and too old to tell its progress: the state is read again"
            );
            return Err(Broken::Compacted);
        }
        if asked.is_some_and(|asked| asked.elapsed() > MAX_SILENCE) {
            let url = self.shared.connection.url();
            return Err(self.left(format!("{url}: the watch hangs")));
        }
        Ok(())
    }

    fn read(&mut self, response: WatchResponse) -> Result<Option<FeedItem>, Broken> {
        if response.compact_revision > 0 {
            return Err(Broken::Compacted);
        }
        if response.canceled {
            return Err(self.left(format!("etcd ended the watch: {}", response.cancel_reason)));
        }
        let header = response.header.clone().unwrap_or_default();
        self.shared.connection.check_cluster(&header).map_err(|error| self.lost(&error))?;
        if header.member_id != self.member {
            // A member behind a load balancer, whose version is unknown.
            self.shared.has_progress.store(false, Ordering::Release);
        }
        let position = self.position.unwrap_or_default();
        let mut previous = Revision(position.0 + 1);
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            if revision(kv.mod_revision) < previous {
                // An event at or before a revision already confirmed by a progress notification.
                tracing::error!(%position, "etcd's watch is out of order: the state is read again");
                return Err(Broken::Compacted);
            }
            previous = revision(kv.mod_revision);
        }
        let is_progress = !response.created && response.events.is_empty();
        let is_told = is_progress && self.shared.has_progress.load(Ordering::Acquire);
        if is_told && self.lags(header.revision) {
            let url = self.shared.connection.url();
            return Err(self.left(format!("{url}: the member lags behind the others")));
        }
        let reached = match response.events.last().and_then(|event| event.kv.as_ref()) {
            Some(kv) => revision(kv.mod_revision),
            None if is_told => revision(header.revision),
            // The watch is back; carries no event.
            None => position,
        };
        let is_delete = |event: &WatchEvent| event.r#type == i32::from(EventType::Delete);
        let events = response.events.into_iter();
        let changes = events.filter_map(|event| {
            let is_delete = is_delete(&event);
            self.change(event.kv?, is_delete)
        });
        let changes = changes.collect();
        let revision = reached.max(position);
        self.shared.connection.saw(i64::try_from(revision.0).unwrap_or(i64::MAX));
        self.position = Some(revision);
        Ok(Some(FeedItem::Changes { revision, changes }))
    }

    /// Whether a member has not reached for [`MAX_SILENCE`] what others have confirmed. It may
    /// answer all the time, and read nothing from a disk that hangs.
    fn lags(&mut self, reached: i64) -> bool {
        match &self.behind {
            Some(behind) if reached < behind.revision => behind.since.elapsed() > MAX_SILENCE,
            _ => {
                let revision = self.shared.connection.seen();
                let is_behind = reached < revision;
                self.behind = is_behind.then(|| LaggingMember { since: Instant::now(), revision });
                false
            }
        }
    }

    /// Prepares the next attempt.
    fn broken(&mut self, broken: Broken) -> Option<FeedItem> {
        (self.stream, self.behind) = (None, None);
        *self.shared.requests.lock() = None;
        *self.shared.asked.lock() = None;
        match broken {
            Broken::Compacted => {
                self.position = None;
                None
            }
            Broken::Lost(why) => Some(FeedItem::Lost(why)),
            Broken::Failed(why) => Some(FeedItem::Failed(why)),
        }
    }
}

impl RemoteFeed for EtcdFeed {
    fn next(&mut self) -> BoxFuture<'_, FeedItem> {
        Box::pin(async move {
            loop {
                if std::mem::take(&mut self.is_failing) {
                    tokio::time::sleep(pause(self.failures)).await;
                }
                let item = match self.step().await {
                    Ok(Some(item)) => {
                        self.failures = 0;
                        Some(item)
                    }
                    Ok(None) => None,
                    Err(broken) => {
                        self.is_failing = true;
                        self.failures += 1;
                        self.broken(broken)
                    }
                };
                if let Some(item) = item {
                    return item;
                }
            }
        })
    }
}

/// Before the next attempt. After an outage it may be late by that.
fn pause(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(QUICK_FAILURES).min(8);
    (PAUSE * 2_u32.pow(doubled)).min(MAX_PAUSE)
}

/// Keys of the next page after one that failed: fewer if it took too long.
fn next_page(page: i64, code: Code) -> i64 {
    if code == Code::DeadlineExceeded { (page / 4).max(MIN_PAGE) } else { page }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{EtcdConfig, EtcdTls};
    use crate::proto::ResponseHeader;

    /// The feed of an etcd that is never called, at a revision.
    fn feed_at(position: u64) -> EtcdFeed {
        let config = EtcdConfig {
            servers: vec!["http://127.0.0.1:1".to_owned()],
            prefix: "/registry".to_owned(),
            renamed: &[],
            tls: EtcdTls::default(),
            tls_source: None,
            compaction_interval: Duration::ZERO,
            remembered: None,
        };
        let shared = EtcdShared::new(&config).expect("a configuration");
        shared.has_progress.store(true, Ordering::Release);
        let mut feed = EtcdFeed::new(Arc::new(shared));
        feed.position = Some(Revision(position));
        feed
    }

    fn progress(revision: i64) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..Default::default() });
        WatchResponse { header, ..Default::default() }
    }

    /// The member's reads are refused for as long as it is followed.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_answers_and_lags_is_left() {
        let mut feed = feed_at(5);
        feed.shared.connection.saw(9);
        assert!(feed.read(progress(5)).is_ok(), "it may be late");
        tokio::time::advance(MAX_SILENCE).await;
        assert!(feed.read(progress(9)).is_ok(), "it has caught up");
        for seen in 10..50 {
            // Never at the last revision, and never late.
            feed.shared.connection.saw(seen);
            assert!(feed.read(progress(seen - 1)).is_ok());
            tokio::time::advance(MAX_SILENCE / 2).await;
        }
        let last = loop {
            let outcome = feed.read(progress(48));
            tokio::time::advance(MAX_SILENCE / 8).await;
            if let Err(broken) = outcome {
                break broken;
            }
        };
        assert!(matches!(&last, Broken::Lost(why) if why.contains("lags")));
    }

    #[test]
    fn failures_slow_it_down() {
        assert_eq!(
            [1, 10, 11, 12, 1000].map(|failures| pause(failures).as_millis()),
            [200, 200, 400, 800, 3000]
        );
        assert_eq!(next_page(PAGE, Code::Unavailable), PAGE);
        let late = std::iter::successors(Some(PAGE), |page| {
            Some(next_page(*page, Code::DeadlineExceeded))
        });
        assert_eq!(late.take(6).collect::<Vec<_>>(), [1000, 250, 62, 15, 10, 10]);
    }
}
