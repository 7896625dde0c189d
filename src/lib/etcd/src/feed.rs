//! The feed: a state, then a watch over all keys. It resumes after its last revision; if that is
//! compacted, it starts over with a state.

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

/// Keys per page of a state.
const PAGE: i64 = 1000;
/// A first state is this many revisions old, if etcd still has it: the events since then let
/// watches resume that began at other servers, or before a restart.
const HISTORY: u64 = 10_000;
/// Requests for progress on their way.
const MAX_REQUESTS: usize = 8;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(200);
/// Interval of looking for a stream that hangs, and how long one may say nothing when asked.
const LOOK: Duration = Duration::from_millis(250);
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// Compactions that may interrupt reading the state; then it is read in one piece.
const MAX_COMPACTED: u32 = 3;
/// Oldest version that has what is needed.
const OLDEST: EtcdVersion = EtcdVersion { major: 3, minor: 4, patch: 0 };

/// A release of etcd, without its suffix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EtcdVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

/// One store's feed.
pub(crate) struct EtcdFeed {
    shared: Arc<EtcdShared>,
    /// Everything up to here was given.
    position: Option<Revision>,
    /// Member whose version is known.
    member: u64,
    stream: Option<MemberWatch>,
    /// The first state may be an old one. Not later: revisions do not go back.
    may_be_old: bool,
    is_failing: bool,
    /// The state was read just now: each further call gives a compaction time to come between.
    is_checked: bool,
    /// Compactions while the state was read.
    compacted: u32,
}

/// Why the feed has no stream.
enum Broken {
    /// Try again.
    Lost(String),
    /// The requested position is compacted.
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

    /// The stream broke: another member may do better. A failed call has moved on already.
    fn left(&self, why: String) -> Broken {
        if let Some(stream) = &self.stream {
            self.shared.connection.leave_member(stream);
        }
        Broken::Lost(why)
    }

    /// Checks what the feed is about to follow. Returns its revision.
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
            // There to be deleted once etcd is full.
            self.shared.start_mark();
        }
        self.member = status.header.unwrap_or_default().member_id;
        self.shared.probe().await.map_err(|error| self.lost(&error))
    }

    /// The whole state, in pages of one revision, unless that is compacted again and again.
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
            tracing::error!("a key in etcd is not of this store: it is not served");
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

    /// The next item, from the watch if there is one.
    async fn step(&mut self) -> Result<Option<FeedItem>, Broken> {
        let Some(after) = self.position else {
            return self.state().await.map(Some);
        };
        let Some(stream) = &mut self.stream else {
            self.connect(after).await?;
            return Ok(None);
        };
        let message = match tokio::time::timeout(LOOK, stream.responses.message()).await {
            Ok(message) => message,
            Err(_) => return self.look().map(|()| None),
        };
        *self.shared.asked.lock() = None;
        match message {
            Ok(Some(response)) => self.read(response),
            Ok(None) => Err(self.left("etcd ended the watch".to_owned())),
            Err(status) => Err(self.left(self.shared.reason(&status))),
        }
    }

    /// Leaves a member that hangs, or lags behind the others. Reads the state if only that helps.
    fn look(&self) -> Result<(), Broken> {
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
            // Behind a load balancer; its version is not known.
            self.shared.has_progress.store(false, Ordering::Release);
        }
        let position = self.position.unwrap_or_default();
        let mut previous = Revision(position.0 + 1);
        for kv in response.events.iter().filter_map(|event| event.kv.as_ref()) {
            if revision(kv.mod_revision) < previous {
                // An event after a progress notification that promised there was none.
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
            // The watch is back, which is all that this says.
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

/// Zeros for what is missing.
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
