//! LIST: which state of the store, which page of it, and where the next one begins.

use super::pages::Place;
use super::select::{Selection, Work};
use super::token::{self, Token};
use super::{ListOptions, ListPage, VersionMatch, check_list, invalid_version, parse_version};
use crate::context::Target;
use crate::pipeline::{Registry, prefix};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_storage::{Entry, Prefix, Revision, Snapshot};
use std::sync::Arc;

const TOO_OLD_PAGE: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the \
     continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token \
     results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may \
     show up in the list.";

/// A list whose state is there: what is left to do waits for nothing.
pub struct Listing<'a> {
    registry: &'a Registry,
    prefix: Prefix,
    selection: Selection,
    scope: String,
    caller: u64,
    start: Start,
}

/// A state to list from.
struct Start {
    /// `None`: the one when the page is made.
    snapshot: Option<Snapshot>,
    /// The last key of the page before.
    after: Option<String>,
    /// How many items follow it, when the page before knew.
    left: Option<u64>,
    /// At most so many items; 0: all.
    limit: usize,
}

impl Registry {
    /// LIST.
    ///
    /// # Errors
    /// As the client sees it.
    pub async fn list(&self, target: &Target, options: &ListOptions) -> Result<ListPage, Failure> {
        Ok(self.listing(target, options).await?.page().await)
    }

    /// The beginning of a LIST: waits for the version that it asks for. Nothing of a page is held
    /// yet, see [`Listing::bytes`].
    ///
    /// # Errors
    /// As the client sees it.
    pub async fn listing(
        &self,
        target: &Target,
        options: &ListOptions,
    ) -> Result<Listing<'_>, Failure> {
        check_list(options)?;
        let prefix = prefix(&target.served)?;
        let selection = Selection::new(self.catalog(), target, options)?;
        let scope = scope(&prefix, &selection);
        let start = self.start(&prefix, &scope, options).await?;
        Ok(Listing { registry: self, prefix, selection, scope, caller: options.caller, start })
    }

    /// Whether a list can be taken at all.
    ///
    /// # Errors
    /// As the client sees it.
    pub fn check_selection(&self, target: &Target, options: &ListOptions) -> Result<(), Failure> {
        check_list(options)?;
        Selection::new(self.catalog(), target, options).map(drop)
    }

    async fn start(
        &self,
        prefix: &Prefix,
        scope: &str,
        options: &ListOptions,
    ) -> Result<Start, Failure> {
        let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
        if !options.continue_token.is_empty() {
            return self.resume(prefix, scope, options);
        }
        let asked =
            parse_version(&options.resource_version).map_err(|why| invalid_version(&why))?;
        let store = self.store();
        let asked = match asked {
            None => return Ok(Start { snapshot: None, after: None, left: None, limit }),
            // Any state will do; upstream ignores the limit then.
            Some(0) => return Ok(Start { snapshot: None, after: None, left: None, limit: 0 }),
            Some(asked) => asked,
        };
        self.wait_for(asked).await?;
        let is_exact = options.version_match == VersionMatch::Exact
            || (options.version_match == VersionMatch::Unset && limit > 0);
        if !is_exact {
            return Ok(Start { snapshot: None, after: None, left: None, limit });
        }
        let too_old = |_| {
            Failure::new(Reason::Expired, "The resourceVersion for the provided list is too old.")
        };
        let snapshot = store.snapshot_at(prefix, Revision(asked)).map_err(too_old)?;
        Ok(Start { snapshot: Some(snapshot), after: None, left: None, limit })
    }

    /// The state of an earlier page.
    fn resume(
        &self,
        prefix: &Prefix,
        scope: &str,
        options: &ListOptions,
    ) -> Result<Start, Failure> {
        let key = &self.parts.token_key;
        let text = options.continue_token.as_str();
        let refused = || {
            Failure::bad_request(format!(
                "invalid continue token: continue key is not valid: {}",
                token::refusal(text)
            ))
        };
        let token = Token::open(text, key, scope).ok_or_else(refused)?;
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
            return Ok(Start { snapshot: None, after: Some(token.after), left: None, limit });
        };
        match self.state_of_page(prefix, Revision(revision)) {
            Some(snapshot) => Ok(Start {
                snapshot: Some(snapshot),
                after: Some(token.after),
                left: token.left,
                limit,
            }),
            None => {
                let inconsistent =
                    Token { revision: None, after: token.after, left: None }.seal(key, scope);
                Err(Failure {
                    continue_token: Some(inconsistent),
                    ..Failure::new(Reason::Expired, TOO_OLD_PAGE)
                })
            }
        }
    }

    /// The state that was held for a list, else one from the history.
    fn state_of_page(&self, prefix: &Prefix, revision: Revision) -> Option<Snapshot> {
        let held = self.parts.pages.find(prefix, revision);
        // A page has shown it: if it is not there it was lost, and will not come.
        let is_there = || revision <= self.store().revision();
        held.or_else(|| {
            is_there().then(|| self.store().snapshot_at(prefix, revision).ok()).flatten()
        })
    }
}

impl Listing<'_> {
    /// What its page holds at most to know what it is of, in bytes.
    pub fn bytes(&self) -> usize {
        let Start { snapshot, after, left, limit } = &self.start;
        let most = if self.only_key().is_some() {
            1
        } else if let Some(left) = left {
            usize::try_from(*left).unwrap_or(usize::MAX)
        } else {
            // Without what comes before a page of a selection: counting it would take as long as
            // making it.
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
        most.min(limit).saturating_mul(size_of::<Arc<Entry>>())
    }

    /// The only key that the first page can have.
    fn only_key(&self) -> Option<String> {
        self.selection.only_key().filter(|_| self.start.after.is_none())
    }

    /// The page.
    pub async fn page(mut self) -> ListPage {
        let readers = &self.registry.parts.readers;
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
        let mut work = Work::default();
        if let Some(only) = self.only_key() {
            page.items.extend(
                snapshot.get(&only).filter(|entry| selection.matches(entry, &mut work)).cloned(),
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
            work.share().await;
            if selection.matches(entry, &mut work) {
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

    /// Whether there are further pages, and where they begin.
    fn end(&self, page: &mut ListPage, snapshot: &Snapshot, more: bool) {
        let (parts, after) = (&self.registry.parts, self.start.after.as_deref());
        if let Some(last) = page.items.last().filter(|_| more) {
            let last: &Arc<Entry> = last;
            if self.selection.is_everything() {
                // Carried from page to page: counting what follows each would make a long list cost
                // its square.
                let left = self
                    .start
                    .left
                    .unwrap_or_else(|| snapshot.count(self.selection.namespace(), after) as u64);
                page.remaining = Some(left.saturating_sub(page.items.len() as u64));
            }
            let place = if after.is_some() { Place::Later } else { Place::First };
            parts.pages.hold(self.caller, (&self.prefix, snapshot), place);
            let token = Token {
                revision: Some(snapshot.revision.0),
                after: last.key.rest().to_owned(),
                left: page.remaining,
            };
            page.continue_token = token.seal(&parts.token_key, &self.scope);
        } else if after.is_some() {
            parts.pages.release(&self.prefix, snapshot.revision);
        }
    }
}

/// What a token is good for.
fn scope(prefix: &Prefix, selection: &Selection) -> String {
    format!("{} {}", prefix.as_str(), selection.namespace().unwrap_or_default())
}
