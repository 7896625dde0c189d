//! Reads: get, list with all resourceVersion rules, watch with bookmarks and selectors.

mod exits;
mod list;
mod pages;
mod readers;
mod select;
mod token;
mod watch;

use crate::context::Target;
use crate::failure::{invalid_options, too_large, unavailable};
use crate::offload::{is_costly, leave_worker};
use crate::pipeline::{Object, Registry, key};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::{FieldError, quote};
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::remote::{BoxFuture, Reliance, reliance};
use ferrokube_storage::{Entry, Revision};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use exits::Exits;
pub use list::Listing;
pub(crate) use pages::Pages;
pub(crate) use readers::Readers;
pub use readers::Reading;
pub use watch::Watch;

/// Wait for a revision that this server has not reached, before 504.
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// Empty or absent.
    #[default]
    Unset,
    /// `Exact`
    Exact,
    /// `NotOlderThan`
    NotOlderThan,
    /// Anything else: 422.
    Unsupported,
}

impl VersionMatch {
    /// Parses the query parameter; absent is empty.
    pub fn parse(text: &str) -> Self {
        match text {
            "" => Self::Unset,
            "Exact" => Self::Exact,
            "NotOlderThan" => Self::NotOlderThan,
            _ => Self::Unsupported,
        }
    }
}

/// Parsed query of a list, `deletecollection` or watch.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Parsed `labelSelector`; empty: all.
    pub labels: LabelSelector,
    /// Parsed `fieldSelector`; empty: all.
    pub fields: FieldSelector,
    /// Maximum number of items; 0: all.
    pub limit: u64,
    /// From an earlier page; opaque and authenticated.
    pub continue_token: String,
    /// Caller number. Snapshots of paged lists are bounded per caller.
    pub caller: u64,
    /// As given.
    pub resource_version: String,
    /// Parsed `resourceVersionMatch`.
    pub version_match: VersionMatch,
    /// `resourceVersionMatch` as given.
    pub given_match: String,
    /// `sendInitialEvents`; `None` if absent. An error for a list.
    pub initial_events: Option<bool>,
    /// `watch`, which a `deletecollection` may say, too: it is validated like a watch then.
    pub watch: bool,
}

/// Items as stored, all of one snapshot.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// resourceVersion of the list.
    pub revision: Revision,
    /// In key order, shared with the store. [`Served::is_direct`](crate::Served::is_direct) tells
    /// how to encode them.
    pub items: Vec<Arc<Entry>>,
    /// Token of the next page; empty at the end.
    pub continue_token: String,
    /// Number of remaining items; only without selectors.
    pub remaining: Option<u64>,
    /// Hold until the items are sent.
    pub reading: Option<Arc<Reading>>,
}

/// Parsed query of a watch.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// Selectors, resourceVersion, `sendInitialEvents`; `limit` is ignored.
    pub list: ListOptions,
    /// `allowWatchBookmarks`
    pub bookmarks: bool,
    /// Duration of the watch.
    pub timeout: Duration,
    /// The path requests the watch (`/watch/`): its options are validated like those of a list.
    pub by_path: bool,
}

/// A watch event.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// Created, or matches the selector now.
    Added(Arc<Entry>),
    /// Changed.
    Modified(Arc<Entry>),
    /// Deleted, or no longer matches: the last matching state, with the revision of this event in
    /// `revision` and the bytes.
    Deleted(Arc<Entry>),
    /// All events up to this revision were sent.
    Bookmark {
        /// Sent up to here.
        revision: Revision,
        /// Whether it is the `k8s.io/initial-events-end` bookmark.
        initial_events_end: bool,
    },
    /// The watch failed: an ERROR event, then the end. Boxed so that an item is not larger than a
    /// store event, whose allocation it reuses.
    Error(Box<Failure>),
}

/// Collecting events into items in place relies on it.
const _: () = assert!(size_of::<WatchItem>() <= size_of::<ferrokube_storage::Event>());

tokio::task_local! {
    /// The request waited for the state when it arrived: its reads need not.
    static CAUGHT_UP: ();
}

/// Runs the rest of a request that has waited for [`Registry::reached`].
pub async fn caught_up<T>(request: impl Future<Output = T>) -> T {
    CAUGHT_UP.scope((), request).await
}

/// Whether the running request has waited, or relies on having missed nothing.
fn is_current() -> bool {
    CAUGHT_UP.try_with(|()| ()).is_ok() || reliance().is_some()
}

impl Registry {
    /// Lets a request that writes rely on there being no other server, instead of
    /// [`Self::reached`]. Run it within [`ferrokube_storage::remote::relying`], then call
    /// [`Self::uphold`].
    pub fn rely(&self) -> Option<Arc<Reliance>> {
        self.store().rely()
    }

    /// Confirms what a request ended with. Free if it ended with a write.
    ///
    /// # Errors
    /// It may be outdated: another server has begun to write, or the storage does not answer.
    pub async fn uphold(&self, reliance: Arc<Reliance>) -> Result<(), Failure> {
        if reliance.is_proven() {
            return Ok(());
        }
        match self.store().uphold(reliance) {
            Some(upheld) => upheld.await.map_err(|error| unavailable(&error)),
            None => Ok(()),
        }
    }

    /// The wait of a request at its arrival, after which rights, definitions, webhooks, policies
    /// and quotas are as new as anything its client may have seen at other servers. `None` with a
    /// local engine.
    pub fn reached(&self) -> Option<BoxFuture<'static, Result<(), Failure>>> {
        let barrier = self.store().barrier()?;
        Some(Box::pin(async { barrier.await.map_err(|error| unavailable(&error)) }))
    }

    /// GET of an object or subresource. An object that needs the conversion webhook is returned as
    /// stored: see [`Self::in_version`]. A `resource_version` that is not reached yet is waited
    /// for.
    ///
    /// # Errors
    /// Every error is a Status for the client. So are those of all methods below. Options are
    /// validated here (422, 400); selectors are parsed already.
    pub async fn get(&self, target: &Target, resource_version: &str) -> Result<Object, Failure> {
        let name = target.name.as_deref().unwrap_or_default();
        let key = key(target, name)?;
        // kube-apiserver answers 500 for a version that is not a number if it caches the kind, else
        // 400, as for lists.
        let asked = parse_version(resource_version).map_err(|why| {
            match target.served.definition.hooks.ttl(&Document::new()) {
                Some(_) => invalid_version(&why),
                None => Failure::bare(500, why),
            }
        })?;
        self.reach(asked).await?;
        let entry = self.store().get(&key).ok_or_else(|| {
            Failure::not_found(&target.served.definition.missing_resource(), name)
        })?;
        let projection = self.projection(target);
        if (projection.is_some() || !target.served.is_direct(&entry)) && is_costly(&entry.bytes) {
            leave_worker().await;
        }
        match projection {
            Some(computed) => {
                let object = self
                    .object_in_version(&target.served, Object::Stored(entry))
                    .await?
                    .into_document(&target.served);
                crate::pipeline::project(&*computed, target, &object).map(Object::Computed)
            }
            None => Ok(Self::object(entry, &target.served)),
        }
    }

    /// [`Self::get`], parsed: off the worker if that may take long.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn get_document(&self, target: &Target) -> Result<Document, Failure> {
        let object = self.get(target, "").await?;
        if let Object::Stored(entry) = &object
            && is_costly(&entry.bytes)
        {
            leave_worker().await;
        }
        Ok(object.into_document(&target.served))
    }

    /// Waits for the revision that a read requires, or without one for every write acknowledged
    /// before it.
    async fn reach(&self, asked: Option<u64>) -> Result<(), Failure> {
        match asked {
            Some(asked) => self.wait_for(asked).await,
            None => self.catch_up().await,
        }
    }

    /// Waits until the published state has every acknowledged write: no wait with a local engine.
    async fn catch_up(&self) -> Result<(), Failure> {
        match self.reached() {
            Some(reached) if !is_current() => reached.await,
            _ => Ok(()),
        }
    }

    /// Waits up to 3 s for a revision, then fails with 504.
    async fn wait_for(&self, revision: u64) -> Result<(), Failure> {
        let store = self.store();
        if revision <= store.revision().0 {
            return Ok(());
        }
        let seen = tokio::time::timeout(FUTURE_WAIT, store.wait_for(Revision(revision))).await;
        seen.map_err(|_| too_large(revision, store.revision()))
    }
}

/// `None` if absent.
fn parse_version(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    go::unsigned(text).map(Some).ok_or_else(|| {
        format!(
            "resourceVersion: Invalid value: {}: {}",
            quote(text),
            go::integer_fault(text, false)
        )
    })
}

fn invalid_version(why: &str) -> Failure {
    Failure::bad_request(format!("invalid resource version: {why}"))
}

/// Validates the combination of list options.
fn check_list(options: &ListOptions) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let matches = options.version_match;
    let mut forbid = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
    if matches != VersionMatch::Unset {
        if options.resource_version.is_empty() {
            forbid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if !options.continue_token.is_empty() {
            forbid(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if matches == VersionMatch::Exact && options.resource_version == "0" {
            forbid(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
    }
    if options.initial_events.is_some() {
        forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    if matches == VersionMatch::Unsupported {
        errors.push(FieldError::not_supported(
            "resourceVersionMatch",
            options.given_match.as_str(),
            ["Exact", "NotOlderThan", ""],
        ));
    }
    refuse(errors)
}

/// Validates the combination of watch options.
fn check_watch(options: &ListOptions) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let matches = options.version_match;
    if options.initial_events.is_some() && matches != VersionMatch::NotOlderThan {
        errors.push(FieldError::forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ));
    }
    if matches != VersionMatch::Unset {
        if options.initial_events.is_none() {
            errors.push(FieldError::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ));
        }
        if matches != VersionMatch::NotOlderThan {
            errors.push(FieldError::not_supported(
                "resourceVersionMatch",
                options.given_match.as_str(),
                ["NotOlderThan"],
            ));
        }
    }
    // Without a version, or from 0, a watch has the match by default; otherwise, without a match,
    // it ignores the token.
    let by_default =
        options.initial_events.is_none() && matches!(options.resource_version.as_str(), "" | "0");
    if !options.continue_token.is_empty() && (matches != VersionMatch::Unset || by_default) {
        errors.push(FieldError::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    refuse(errors)
}

fn refuse(errors: Vec<FieldError>) -> Result<(), Failure> {
    if errors.is_empty() { Ok(()) } else { Err(invalid_options("ListOptions", &errors)) }
}
