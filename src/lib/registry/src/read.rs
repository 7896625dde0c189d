//! Reads: get, list with every resourceVersion rule, watch with bookmarks and selector transitions.

mod exits;
mod list;
mod pages;
mod readers;
mod select;
mod token;
mod watch;

use crate::context::{RequestContext, Target};
use crate::failure::{invalid_options, too_large};
use crate::offload::{is_costly, leave_worker};
use crate::pipeline::{Object, Registry, key};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::{FieldError, quote};
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Revision};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use exits::Exits;
pub use list::Listing;
pub(crate) use pages::Pages;
pub(crate) use readers::Readers;
pub use readers::Reading;
pub use watch::Watch;

/// A read of a version that this server has not seen waits this long for it, then is answered 504.
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// Not given.
    #[default]
    Unset,
    /// `Exact`
    Exact,
    /// `NotOlderThan`
    NotOlderThan,
    /// Anything else (422).
    Unsupported,
}

impl VersionMatch {
    /// From the query's value; absent and empty are the same.
    pub fn parse(text: &str) -> Self {
        match text {
            "" => Self::Unset,
            "Exact" => Self::Exact,
            "NotOlderThan" => Self::NotOlderThan,
            _ => Self::Unsupported,
        }
    }
}

/// What a list asks for.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Labels.
    pub labels: LabelSelector,
    /// Fields.
    pub fields: FieldSelector,
    /// At most so many items; 0: all.
    pub limit: u64,
    /// From an earlier page; opaque and authenticated.
    pub continue_token: String,
    /// Whose list it is: how many states are held for its pages is bounded for each caller.
    pub caller: u64,
    /// `resourceVersion`, as given.
    pub resource_version: String,
    /// How it is meant.
    pub version_match: VersionMatch,
    /// The same as given.
    pub given_match: String,
    /// `sendInitialEvents`; `None`: not given (for watches; a list refuses it).
    pub initial_events: Option<bool>,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The list's resource version.
    pub revision: Revision,
    /// The items, in key order; shared with the store. See
    /// [`Served::is_direct`](crate::Served::is_direct) for how to write them.
    pub items: Vec<Arc<Entry>>,
    /// Where the next page begins; empty at the end.
    pub continue_token: String,
    /// How many are left, where that is exact (no selectors).
    pub remaining: Option<u64>,
    /// Kept by whoever sends the items, until they are sent.
    pub reading: Option<Arc<Reading>>,
}

/// What a watch asks for.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// Selectors, resourceVersion, `sendInitialEvents`; limit is ignored.
    pub list: ListOptions,
    /// `allowWatchBookmarks`
    pub bookmarks: bool,
    /// When the server ends it.
    pub timeout: Duration,
    /// Only the path asks for a watch (`/watch/`): its options may be combined as those of a list.
    pub by_path: bool,
}

/// One frame of a watch.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// New, or new to the selector.
    Added(Arc<Entry>),
    /// Changed.
    Modified(Arc<Entry>),
    /// Gone, or gone from the selector: the last matching state. Its `revision` and bytes show the
    /// revision of this event.
    Deleted(Arc<Entry>),
    /// Everything up to here was sent.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// The `k8s.io/initial-events-end` one.
        initial_events_end: bool,
    },
    /// The watch cannot go on: sent as an ERROR event, then closed. Boxed, so that an item is as
    /// small as an event of the store and takes its place.
    Error(Box<Failure>),
}

/// What makes items of events relies on it.
const _: () = assert!(size_of::<WatchItem>() <= size_of::<ferrokube_storage::Event>());

impl Registry {
    /// GET of one object or subresource. An object that somebody else must convert is given as it
    /// is stored: see [`Self::in_version`]. `resource_version` as given (may wait, or answer 504).
    ///
    /// # Errors
    /// As the client sees it; also for all below. Options are validated here (422, 400), selectors
    /// are parsed before.
    pub async fn get(
        &self,
        _context: &RequestContext,
        target: &Target,
        resource_version: &str,
    ) -> Result<Object, Failure> {
        let name = target.name.as_deref().unwrap_or_default();
        let key = key(target, name)?;
        // Upstream answers a version that is no number with 500 where it has a cache of the kind,
        // and with 400 elsewhere and on lists.
        let asked = parse_version(resource_version).map_err(|why| {
            match target.served.definition.hooks.ttl(&Document::new()) {
                Some(_) => invalid_version(&why),
                None => Failure::bare(500, why),
            }
        })?;
        self.wait_for(asked.unwrap_or(0)).await?;
        let entry = self
            .store()
            .get(&key)
            .ok_or_else(|| Failure::not_found(&target.served.definition.group_resource(), name))?;
        let projection = self.projection(target);
        if (projection.is_some() || !target.served.is_direct(&entry)) && is_costly(&entry.bytes) {
            leave_worker().await;
        }
        match projection {
            Some(behaviour) => {
                let object = self
                    .shown(&target.served, Object::Stored(entry))
                    .await?
                    .into_document(&target.served);
                crate::pipeline::project(&*behaviour, target, &object).map(Object::Computed)
            }
            None => Ok(Self::object(entry, &target.served)),
        }
    }

    /// Waits until this server has seen a revision, for at most 3 s; then 504.
    async fn wait_for(&self, revision: u64) -> Result<(), Failure> {
        let store = self.store();
        if revision <= store.revision().0 {
            return Ok(());
        }
        let seen = tokio::time::timeout(FUTURE_WAIT, store.wait_for(Revision(revision))).await;
        seen.map_err(|_| too_large(revision, store.revision()))
    }
}

/// `None` when it is not given.
fn parse_version(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    // `+5` parses in Rust, and is no version.
    let number = Some(text)
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| {
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

/// Which options may not be combined in a list.
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

/// Which options may not be combined in a watch.
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
    // A watch without a version, or from 0, has the match by default; any other without a match
    // ignores the token.
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
