//! Reads: get, list with every resourceVersion rule, watch with bookmarks and selector transitions.

use crate::context::{RequestContext, Target};
use crate::pipeline::{Object, Registry};
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Revision};
use std::sync::Arc;
use std::time::Duration;

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
    /// `resourceVersion`, as given.
    pub resource_version: String,
    /// How it is meant.
    pub version_match: VersionMatch,
    /// `sendInitialEvents`; `None`: not given (for watches; a list refuses it).
    pub initial_events: Option<bool>,
}

/// One page of a list.
pub struct ListPage {
    /// The list's resource version.
    pub revision: Revision,
    /// The items, in key order; shared with the store.
    pub items: Vec<Arc<Entry>>,
    /// Where the next page begins; empty at the end.
    pub continue_token: String,
    /// How many are left, where that is exact (no selectors).
    pub remaining: Option<u64>,
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
}

/// One frame of a watch.
#[derive(Clone, Debug)]
pub enum WatchItem {
    /// New, or new to the selector.
    Added(Arc<Entry>),
    /// Changed.
    Modified(Arc<Entry>),
    /// Gone, or gone from the selector: the last matching state. Its `revision` and bytes show the revision of this event.
    Deleted(Arc<Entry>),
    /// Everything up to here was sent.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// The `k8s.io/initial-events-end` one.
        initial_events_end: bool,
    },
    /// The watch cannot go on: sent as an ERROR event, then closed.
    Error(Failure),
}

/// A running watch.
pub struct Watch {}

impl Watch {
    /// The next frames (at least one), `None` when it ends. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<WatchItem>> {
        unimplemented!("registry owner")
    }
}

impl Registry {
    /// GET of one object or subresource. `resource_version` as given (may wait, or answer 504).
    /// Options are validated here (422, 400), selectors must be parsed before.
    ///
    /// # Errors
    /// As the client sees it; also for all below.
    pub async fn get(&self, _context: &RequestContext, _target: &Target, _resource_version: &str) -> Result<Object, Failure> {
        unimplemented!("registry owner")
    }

    /// LIST.
    pub async fn list(&self, _target: &Target, _options: &ListOptions) -> Result<ListPage, Failure> {
        unimplemented!("registry owner")
    }

    /// WATCH of a collection, or of one object when the target has a name.
    pub async fn watch(&self, _target: &Target, _options: WatchOptions) -> Result<Watch, Failure> {
        unimplemented!("registry owner")
    }
}
