//! LIST: selects a snapshot of the store and a page of it.

use super::pages::{PagePosition, SWEEP_INTERVAL};
use super::select::{MatchCost, Selection};
use super::token::{self, ContinueToken};
use super::{
    ListOptions, ListPage, VersionMatch, check_list, check_watch, invalid_version, parse_version,
};
use crate::context::Target;
use crate::pipeline::{Registry, prefix};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_storage::{Entry, Prefix, Revision, Snapshot};
use std::sync::Arc;

const TOO_OLD_PAGE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the \
     continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token \
     results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may \
     show up in the list.";

/// A list whose snapshot is available: making a page waits for nothing.
pub struct Listing<'a> {
    registry: &'a Registry,
    prefix: Prefix,
    selection: Selection,
    scope: String,
    caller: u64,
    start: ListStart,
}

/// Start of a page.
struct ListStart {
    /// `None`: the current state when the page is made.
    snapshot: Option<Snapshot>,
    /// Last key of the previous page.
    after: Option<String>,
    /// Number of remaining items, if the previous page knew it.
    left: Option<u64>,
    /// Maximum number of items; 0: all.
    limit: usize,
}

impl Registry {
    /// Periodically drops snapshots of paged lists, and reports the bytes that responses being sent
    /// keep from being freed. Never resolves.
    pub async fn evict_pages(&self, pinned: impl Fn(u64)) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            pinned(self.pinned_bytes());
            self.state.pages.sweep(self.store());
        }
    }

    /// LIST.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn list(&self, target: &Target, options: &ListOptions) -> Result<ListPage, Failure> {
        Ok(self.listing(target, options).await?.page().await)
    }

    /// Starts a LIST: validates it and waits for its resourceVersion. Holds nothing of a page yet,
    /// see [`Listing::bytes`].
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn listing(
        &self,
        target: &Target,
        options: &ListOptions,
    ) -> Result<Listing<'_>, Failure> {
        if !options.watch {
            check_list(options)?;
        }
        let prefix = prefix(&target.served)?;
        let selection = Selection::new(self.catalog(), target, options)?;
        let scope = scope(&prefix, &selection);
        let start = self.start(&prefix, &scope, options).await?;
        Ok(Listing { registry: self, prefix, selection, scope, caller: options.caller, start })
    }

    /// Validates the selection of a `deletecollection`.
    ///
    /// # Errors
    /// 400 for a field that is not selectable, 422 for options that exclude each other.
    pub fn check_selection(&self, target: &Target, options: &ListOptions) -> Result<(), Failure> {
        let check = if options.watch { check_watch } else { check_list };
        check(options)?;
        Selection::new(self.catalog(), target, options).map(drop)
    }

    async fn start(
        &self,
        prefix: &Prefix,
        scope: &str,
        options: &ListOptions,
    ) -> Result<ListStart, Failure> {
        let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
        if !options.continue_token.is_empty() {
            let start = self.resume(prefix, scope, options)?;
            if start.snapshot.is_none() {
                self.catch_up().await?;
            }
            return Ok(start);
        }
        let asked =
            parse_version(&options.resource_version).map_err(|why| invalid_version(&why))?;
        let store = self.store();
        let asked = match asked {
            None => {
                self.catch_up().await?;
                return Ok(ListStart { snapshot: None, after: None, left: None, limit });
            }
            // kube-apiserver ignores the limit for resourceVersion 0.
            Some(0) => return Ok(ListStart { snapshot: None, after: None, left: None, limit: 0 }),
            Some(asked) => asked,
        };
        self.wait_for(asked).await?;
        let is_exact = options.version_match == VersionMatch::Exact
            || (options.version_match == VersionMatch::Unset && limit > 0);
        if !is_exact {
            return Ok(ListStart { snapshot: None, after: None, left: None, limit });
        }
        let too_old = |_| {
            Failure::new(Reason::Expired, "The resourceVersion for the provided list is too old.")
        };
        let snapshot = store.snapshot_at(prefix, Revision(asked)).map_err(too_old)?;
        Ok(ListStart { snapshot: Some(snapshot), after: None, left: None, limit })
    }

    /// Continues from a token.
    fn resume(
        &self,
        prefix: &Prefix,
        scope: &str,
        options: &ListOptions,
    ) -> Result<ListStart, Failure> {
        let key = &self.state.token_key;
        let text = options.continue_token.as_str();
        let refused = || {
            Failure::bad_request(format!(
                "invalid continue token: continue key is not valid: {}",
                token::refusal(text)
            ))
        };
        let token = ContinueToken::open(text, key, scope).ok_or_else(refused)?;
        let asked = options.resource_version.as_str();
        if !matches!(asked, "" | "0") {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let limit = if !asked.is_empty() {
            0
        } else {
            usize::try_from(options.limit).unwrap_or(usize::MAX)
        };
        let Some(revision) = token.revision else {
            return Ok(ListStart { snapshot: None, after: Some(token.after), left: None, limit });
        };
        match self.state_of_page(prefix, Revision(revision)) {
            Some(snapshot) => Ok(ListStart {
                snapshot: Some(snapshot),
                after: Some(token.after),
                left: token.left,
                limit,
            }),
            None => {
                let inconsistent = ContinueToken { revision: None, after: token.after, left: None }
                    .seal(key, scope);
                Err(Failure {
                    continue_token: Some(inconsistent),
                    ..Failure::new(Reason::Expired, TOO_OLD_PAGE)
                })
            }
        }
    }

    /// Snapshot held for the list, else from the history.
    fn state_of_page(&self, prefix: &Prefix, revision: Revision) -> Option<Snapshot> {
        if self.state.pages.is_expired(revision) {
            return None;
        }
        let held = self.state.pages.find(prefix, revision);
        // A page was made of it: a revision that is not reached was lost and will not come.
        let is_there = || revision <= self.store().revision();
        held.or_else(|| {
            is_there().then(|| self.store().snapshot_at(prefix, revision).ok()).flatten()
        })
    }
}

impl Listing<'_> {
    /// Upper bound of the bytes that the page allocates for references to its items.
    pub fn bytes(&self) -> usize {
        let ListStart { snapshot, after, left, limit } = &self.start;
        let max_items = if self.only_key().is_some() {
            1
        } else if let Some(left) = left {
            usize::try_from(*left).unwrap_or(usize::MAX)
        } else {
            // For selections `after` is ignored: counting from it takes as long as making the page.
            let count = |snapshot: &Snapshot| {
                snapshot.count(
                    self.selection.namespace(),
                    after.as_deref().filter(|_| self.selection.is_everything()),
                )
            };
            snapshot
                .as_ref()
                .map_or_else(|| count(&self.registry.store().snapshot(&self.prefix)), count)
        };
        let limit = Some(*limit).filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        max_items.min(limit).saturating_mul(size_of::<Arc<Entry>>())
    }

    /// Key of the only object that the first page can have.
    fn only_key(&self) -> Option<String> {
        self.selection.only_key().filter(|_| self.start.after.is_none())
    }

    /// Makes the page.
    pub async fn page(mut self) -> ListPage {
        let readers = &self.registry.state.readers;
        let snapshot = self
            .start
            .snapshot
            .take()
            .unwrap_or_else(|| self.registry.store().snapshot(&self.prefix));
        let mut page = ListPage {
            revision: snapshot.revision,
            items: Vec::new(),
            continue_token: String::new(),
            remaining: None,
            reading: None,
        };
        self.fill(&mut page, &snapshot).await;
        page.reading = readers.begin(&snapshot, page.items.len());
        page
    }

    async fn fill(&self, page: &mut ListPage, snapshot: &Snapshot) {
        let (selection, after, limit) =
            (&self.selection, self.start.after.as_deref(), self.start.limit);
        let mut cost = MatchCost::default();
        if let Some(only) = self.only_key() {
            page.items.extend(
                snapshot.get(&only).filter(|entry| selection.matches(entry, &mut cost)).cloned(),
            );
            return;
        }
        let mut entries = snapshot.range(selection.namespace(), after);
        if selection.is_everything() && limit == 0 {
            if after.is_none() {
                page.items.reserve_exact(snapshot.count(selection.namespace(), None));
            }
            page.items.extend(entries.cloned());
            return;
        }
        let mut more = false;
        while let Some(entry) = entries.next() {
            cost.yield_if_due().await;
            if selection.matches(entry, &mut cost) {
                page.items.push(entry.clone());
            }
            if limit > 0 && page.items.len() == limit {
                more = entries.next().is_some();
                break;
            }
        }
        page.items.shrink_to_fit();
        self.end(page, snapshot, more);
    }

    /// Sets the continue token if there are further pages.
    fn end(&self, page: &mut ListPage, snapshot: &Snapshot, more: bool) {
        let (state, after) = (&self.registry.state, self.start.after.as_deref());
        if let Some(last) = page.items.last().filter(|_| more) {
            let last: &Arc<Entry> = last;
            if self.selection.is_everything() {
                // Carried in tokens: counting the rest for each page would take quadratic time.
                let left = self
                    .start
                    .left
                    .unwrap_or_else(|| snapshot.count(self.selection.namespace(), after) as u64);
                page.remaining = Some(left.saturating_sub(page.items.len() as u64));
            }
            let position = if after.is_some() { PagePosition::Later } else { PagePosition::First };
            state.pages.hold(self.caller, &self.prefix, snapshot, position);
            let token = ContinueToken {
                revision: Some(snapshot.revision.0),
                after: last.key.rest().to_owned(),
                left: page.remaining,
            };
            page.continue_token = token.seal(&state.token_key, &self.scope);
        } else if after.is_some() {
            state.pages.release(&self.prefix, snapshot.revision);
        }
    }
}

/// Scope of a token: resource and namespace.
fn scope(prefix: &Prefix, selection: &Selection) -> String {
    format!("{} {}", prefix.as_str(), selection.namespace().unwrap_or_default())
}
