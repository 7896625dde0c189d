//! The feed: the full state, then a watch over all keys. It resumes after its last revision, or
//! starts over with the state if that is compacted.

use crate::connection::MemberWatch;

use crate::proto::{
    EtcdWatchRequest, EventType, KeyValue, RangeRequest, WatchCreateRequest, WatchEvent,
    WatchRequestUnion, WatchResponse,
};
use crate::shared::{EtcdShared, revision};
use ferrokube_storage::Revision;
use ferrokube_storage::remote::{BoxFuture, FeedItem, RemoteChange, RemoteFeed};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// Keys per page of the state.
const PAGE: i64 = 1000;
/// The initial state is read this many revisions back, if etcd still has them: the events since
/// then let watches resume that began at other servers or before a restart.
const HISTORY: u64 = 10_000;
/// Max outstanding progress requests.
const MAX_REQUESTS: usize = 8;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of liveness checks of the stream, and timeout of their replies.
const PROGRESS_CHECK: Duration = Duration::from_millis(250);
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// Max compactions that may interrupt reading the state; after that it is read in one request.
const MAX_COMPACTED: u32 = 3;
/// Oldest supported version.
const OLDEST: EtcdVersion = EtcdVersion { major: 3, minor: 4, patch: 0 };

/// An etcd release, without suffix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EtcdVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

/// One store's feed.
pub(crate) struct EtcdFeed {
    shared: Arc<EtcdShared>,
    /// All events up to here were returned.
    position: Option<Revision>,
    /// The member whose version was checked.
    member: u64,
    stream: Option<MemberWatch>,
    /// Whether the next state is the initial one, which may be older. Later ones must not go back.
    may_be_old: bool,
    is_failing: bool,
    /// Whether the state was just read: further calls would give a compaction time to intervene.
    is_checked: bool,
    /// Compactions while reading the state.
    compacted: u32,
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
            member: 0,
            stream: None,
            may_be_old: true,
            is_failing: false,
            is_checked: false,
            compacted: 0,
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
        let status = self.shared.connection.status().await.map_err(|error| self.lost(&error))?;
        let version = parse_version(&status.version);
        if version < OLDEST {
            let why = format!("etcd {} is not supported: 3.4 is the oldest", status.version);
            return Err(Broken::Failed(why));
        }
        let has_progress = has_progress(version);
        self.shared.has_progress.store(has_progress, Ordering::Release);
        if !has_progress && self.position.is_none() {
            tracing::warn!(
                version = status.version,
                "this etcd has no reliable progress notifications: reads may cost it a write"
            );
            // Reserves a key that can be deleted when etcd is full.
            self.shared.start_mark();
        }
        self.member = status.header.unwrap_or_default().member_id;
        self.shared.probe().await.map_err(|error| self.lost(&error))
    }

    /// Reads the whole state, in pages at one revision unless compactions keep interrupting.
    async fn state(&mut self) -> Result<FeedItem, Broken> {
        let now = self.check().await?;
        let (mut key, range_end) = self.shared.bounds();
        let old = if std::mem::take(&mut self.may_be_old) {
            now.0.saturating_sub(HISTORY).max(1)
        } else {
            0
        };
        let (mut at, mut values) = (i64::try_from(old).unwrap_or(0), Vec::new());
        loop {
            let request = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: if self.compacted > MAX_COMPACTED { 0 } else { PAGE },
                revision: at,
                keys_only: false,
            };
            let page = match self.shared.connection.range(request).await {
                Ok(page) => page,
                Err(status) if status.code() == Code::OutOfRange => {
                    self.compacted += 1;
                    return Err(Broken::Compacted);
                }
                Err(status) => return Err(self.lost(&status)),
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
        (self.compacted, self.is_checked) = (0, true);
        self.position = Some(revision(at));
        Ok(FeedItem::State { revision: revision(at), values })
    }

    fn change(&self, kv: KeyValue, is_delete: bool) -> Option<RemoteChange> {
        let key = self.shared.store_key(&kv.key);
        if key.is_none() {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            tracing::error!(key, "a key in etcd is not of this store: it is not served");
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
        let stream = self.shared.connection.watch(waiting).await;
        self.stream = Some(stream.map_err(|error| self.lost(&error))?);
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
        let reached = match response.events.last().and_then(|event| event.kv.as_ref()) {
            Some(kv) => revision(kv.mod_revision),
            None if is_progress && self.shared.has_progress.load(Ordering::Acquire) => {
                revision(header.revision)
            }
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

    /// Prepares the next attempt.
    fn broken(&mut self, broken: Broken) -> Option<FeedItem> {
        self.stream = None;
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
                    tokio::time::sleep(PAUSE).await;
                }
                let item = match self.step().await {
                    Ok(item) => item,
                    Err(broken) => {
                        self.is_failing = true;
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

/// Missing parts are zero.
fn parse_version(text: &str) -> EtcdVersion {
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    EtcdVersion { major: next(), minor: next(), patch: next() }
}

/// Whether progress notifications follow the events that they cover (etcd#15220).
fn has_progress(version: EtcdVersion) -> bool {
    match version {
        EtcdVersion { major: 3, minor: 4, patch } => patch >= 31,
        EtcdVersion { major: 3, minor: 5, patch } => patch >= 13,
        EtcdVersion { major, minor, .. } => (major, minor) > (3, 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, is_new_enough, progresses) in [
            ("3.3.25", false, false),
            ("3.4.23", true, false),
            ("3.4.31", true, true),
            ("3.5.12", true, false),
            ("3.5.13", true, true),
            ("3.6.0-rc.1", true, true),
            ("4.0.0", true, true),
            ("", false, false),
        ] {
            let version = parse_version(text);
            assert_eq!(version >= OLDEST, is_new_enough, "{text}");
            assert_eq!(is_new_enough && has_progress(version), progresses, "{text}");
        }
    }
}
