//! The feed: the full state, then a watch over all keys. It resumes after its last revision, or
//! starts over with the state if that is compacted.

use crate::connection::{CALL_TIMEOUT, MemberWatch, is_of_etcd};
use crate::proto::{
    EtcdWatchRequest, EventType, KeyValue, RangeRequest, WatchCreateRequest, WatchEvent,
    WatchRequestUnion, WatchResponse,
};
use crate::shared::{EtcdShared, revision};
use crate::version::{EtcdVersion, OLDEST, has_fixes, has_progress, parse_version};
use bytes::Bytes;
use ferrokube_storage::Revision;
use ferrokube_storage::remote::{BoxFuture, FeedItem, LineBudget, RemoteChange, RemoteFeed};
use futures::stream::{self, StreamExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Keys per page of the state: of the first page, at least after failures, and at most. etcd counts
/// all remaining keys for every page, so pages of small objects are large.
const PAGE: i64 = 1000;
const MIN_PAGE: i64 = 10;
const MAX_PAGE: i64 = 4000;
/// Bytes that pages grow to.
const PAGE_BYTES: usize = 8 << 20;
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
    /// Where the stream began. Events of this revision were returned before it.
    began: Revision,
    /// Whether the next state is the initial one, which may be older. Later ones must not go back.
    may_be_old: bool,
    is_failing: bool,
    /// Failures since the last item of the state or the watch.
    failures: u32,
    /// Whether the state was just read: further calls would give a compaction time to intervene.
    is_checked: bool,
    /// Compactions while reading the state.
    compacted: u32,
    /// Keys of the next page of the state.
    page: i64,
    /// Most keys of a page: fewer after one that was too large.
    largest_page: i64,
    /// The rest of a state that is being read.
    rest: Option<StateRest>,
    /// Requests of a stream that was opened before the state was complete.
    requests: Option<mpsc::Sender<EtcdWatchRequest>>,
    /// The revision that the member had not reached when it was first asked.
    behind: Option<LaggingMember>,
    /// For lines about keys of others.
    lines: LineBudget,
}

/// The rest of a state that is being read.
struct StateRest {
    /// Revision of the whole; 0: the current one.
    at: i64,
    key: Bytes,
    range_end: Bytes,
    is_first: bool,
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
            began: Revision::default(),
            may_be_old: true,
            is_failing: false,
            failures: 0,
            is_checked: false,
            compacted: 0,
            page: PAGE,
            largest_page: MAX_PAGE,
            rest: None,
            requests: None,
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

    /// The next page of the state.
    async fn state(&mut self) -> Result<FeedItem, Broken> {
        let page = match self.rest.take() {
            Some(rest) if self.checked == self.shared.connection.member() => self.page(rest).await,
            // Another member continues, at the same revision.
            Some(rest) => match self.check().await {
                Ok(_) => self.page(rest).await,
                Err(broken) => {
                    self.rest = Some(rest);
                    return Err(broken);
                }
            },
            None => self.first_page().await,
        };
        match &page {
            Ok(FeedItem::State { is_last: true, is_first, .. }) => {
                let is_same = self.checked == self.shared.connection.member();
                self.is_checked = *is_first && is_same;
                (self.compacted, self.may_be_old) = (0, false);
                (self.page, self.largest_page) = (PAGE, MAX_PAGE);
                self.publish_requests();
            }
            Err(Broken::Compacted) => self.compacted += 1,
            _ => {}
        }
        page
    }

    /// Begins to read the state: the initial one as far back as the history is wanted and kept.
    async fn first_page(&mut self) -> Result<FeedItem, Broken> {
        self.forget_stream();
        let now = self.check().await?;
        let (key, range_end) = self.shared.bounds();
        let state_at = |at: i64| StateRest {
            at,
            key: key.clone(),
            range_end: range_end.clone(),
            is_first: true,
        };
        if !self.may_be_old || self.compacted > MAX_COMPACTED {
            return self.page(state_at(0)).await;
        }
        let wanted = i64::try_from(now.0.saturating_sub(HISTORY).max(1)).unwrap_or(0);
        match self.page(state_at(wanted)).await {
            Err(Broken::Compacted) => {
                let kept = self.kept_from(wanted).await;
                self.page(state_at(kept.unwrap_or(0))).await
            }
            page => page,
        }
    }

    /// A page of the state: all of it if compactions keep interrupting. After the first one, one
    /// that fails is read again at the same revision, unless that is compacted.
    async fn page(&mut self, rest: StateRest) -> Result<FeedItem, Broken> {
        let is_whole = self.compacted > MAX_COMPACTED;
        let request = RangeRequest {
            key: rest.key.clone(),
            range_end: rest.range_end.clone(),
            limit: if is_whole { 0 } else { self.page },
            revision: rest.at,
            keys_only: false,
        };
        let limit = if is_whole { WHOLE_TIMEOUT } else { CALL_TIMEOUT };
        let page = match self.shared.connection.range_within(limit, request).await {
            Ok(page) => page,
            Err(status) if is_compacted(&status) => return Err(Broken::Compacted),
            Err(status) => {
                let smaller = next_page(self.page, status.code());
                if smaller < self.page {
                    (self.page, self.largest_page) = (smaller, smaller);
                }
                self.rest = (!rest.is_first).then_some(rest);
                return Err(self.lost(&status));
            }
        };
        let at = match rest.at {
            0 => page.header.unwrap_or_default().revision,
            at => at,
        };
        let bytes = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
        self.page = grown_page(self.page, page.kvs.len(), bytes).min(self.largest_page);
        let last = page.kvs.last().filter(|_| page.more).map(|kv| kv.key.clone());
        let values = page.kvs.into_iter().filter_map(|kv| self.change(kv, false)).collect();
        let is_last = last.is_none();
        match last {
            Some(last) => {
                let key = [&last[..], b"\0"].concat().into();
                if rest.is_first {
                    self.watch_early(revision(at)).await;
                }
                self.rest = Some(StateRest { at, key, is_first: false, ..rest });
            }
            None => self.position = Some(revision(at)),
        }
        Ok(FeedItem::State { revision: revision(at), values, is_first: rest.is_first, is_last })
    }

    /// Starts the watch while the state is being read: etcd sends the history in steps of 1,000
    /// revisions with pauses in between, and the connection buffers them.
    async fn watch_early(&mut self, after: Revision) {
        // The member was checked before the first page. A watch that fails is started once the
        // state is complete.
        self.is_checked = true;
        let _ = self.connect(after).await;
        self.is_checked = false;
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
        self.shared.sole.saw(&kv);
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
        // Not at the next one: etcd before 3.4.36 and 3.5.18 may leave out a delete at the
        // revision where a watch begins, if the history is compacted up to it (etcd#18089, #19179).
        // The cost: etcd serves a watch that begins in the past within 100 ms. 0 would mean now.
        let start_revision = i64::try_from(after.0).unwrap_or(i64::MAX).max(1);
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
        (self.requests, self.began) = (Some(requests), after);
        if self.position.is_some() {
            self.publish_requests();
        }
        Ok(())
    }

    /// Lets readers ask for progress: not before the state is complete, as nothing is read before.
    fn publish_requests(&mut self) {
        if let Some(requests) = self.requests.take() {
            // Readers that waited for the stream have not been kept waiting by it.
            *self.shared.asked.lock() = None;
            *self.shared.requests.lock() = Some(requests);
        }
    }

    fn forget_stream(&mut self) {
        (self.stream, self.requests, self.behind) = (None, None, None);
        *self.shared.requests.lock() = None;
        *self.shared.asked.lock() = None;
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

    fn read(&mut self, mut response: WatchResponse) -> Result<Option<FeedItem>, Broken> {
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
        let is_progress = !response.created && response.events.is_empty();
        let is_new = |kv: &KeyValue| revision(kv.mod_revision) != self.began;
        response.events.retain(|event| event.kv.as_ref().is_some_and(is_new));
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
        self.forget_stream();
        match broken {
            Broken::Compacted => {
                (self.position, self.rest) = (None, None);
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

/// Keys of the next page after one that failed: fewer if it took too long or was too large, for
/// etcd or for this client.
fn next_page(page: i64, code: Code) -> i64 {
    match code {
        Code::DeadlineExceeded | Code::ResourceExhausted | Code::OutOfRange => {
            (page / 4).max(MIN_PAGE)
        }
        _ => page,
    }
}

fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && is_of_etcd(status)
}

/// Keys of the next page after one of this size.
fn grown_page(page: i64, keys: usize, bytes: usize) -> i64 {
    let fitting = PAGE_BYTES / (bytes / keys.max(1)).max(1);
    let fitting = i64::try_from(fitting).unwrap_or(MAX_PAGE);
    fitting.min(2 * page).clamp(MIN_PAGE, MAX_PAGE)
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
        assert_eq!(next_page(PAGE, Code::ResourceExhausted), 250);
        let large = Status::out_of_range("Error, decoded message length too large");
        assert!(!is_compacted(&large), "this client refuses it");
        let old = "etcdserver: mvcc: required revision has been compacted";
        assert!(is_compacted(&Status::out_of_range(old)));
        let late = std::iter::successors(Some(PAGE), |page| {
            Some(next_page(*page, Code::DeadlineExceeded))
        });
        assert_eq!(late.take(6).collect::<Vec<_>>(), [1000, 250, 62, 15, 10, 10]);
    }

    /// Larger ones would take too much memory, in etcd too.
    #[test]
    fn pages_have_bounded_bytes() {
        assert_eq!(grown_page(PAGE, 1000, 1000 << 10), 2000);
        assert_eq!(grown_page(2000, 2000, 4000 << 10), MAX_PAGE);
        assert_eq!(grown_page(MAX_PAGE, 4000, 16 << 20), 2000);
        assert_eq!(grown_page(PAGE, 1000, 1000 << 20), MIN_PAGE);
        assert_eq!(grown_page(MIN_PAGE, 0, 0), 20);
    }
}
