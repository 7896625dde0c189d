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

/// A state to list from.
struct Start {
    snapshot: Snapshot,
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
        check_list(options)?;
        let prefix = prefix(&target.served)?;
        let selection = Selection::new(self.catalog(), target, options)?;
        let scope = scope(&prefix, &selection);
        let start = self.start(&prefix, &scope, options).await?;
        let snapshot = start.snapshot.clone();
        let mut page = self.page(start, (&prefix, &selection), (&scope, options.caller)).await;
        page.reading = self.parts.readers.begin(&snapshot, page.items.len());
        Ok(page)
    }

    /// What a page holds at most to know what it is of, in bytes.
    ///
    /// # Errors
    /// As the client sees it.
    pub fn list_bytes(&self, target: &Target, options: &ListOptions) -> Result<usize, Failure> {
        let count = self.store().snapshot(&prefix(&target.served)?).count(target.namespace.as_deref(), None);
        let limit = usize::try_from(options.limit).ok().filter(|limit| *limit > 0);
        Ok(count.min(limit.unwrap_or(usize::MAX)).saturating_mul(size_of::<Arc<Entry>>()))
    }

    async fn start(&self, prefix: &Prefix, scope: &str, options: &ListOptions) -> Result<Start, Failure> {
        let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
        if !options.continue_token.is_empty() {
            return self.resume(prefix, scope, options);
        }
        let asked = parse_version(&options.resource_version).map_err(|why| invalid_version(&why))?;
        let store = self.store();
        let asked = match asked {
            None => return Ok(Start { snapshot: store.snapshot(prefix), after: None, left: None, limit }),
            // Any state will do; upstream ignores the limit then.
            Some(0) => return Ok(Start { snapshot: store.snapshot(prefix), after: None, left: None, limit: 0 }),
            Some(asked) => asked,
        };
        self.wait_for(asked).await?;
        let is_exact = options.version_match == VersionMatch::Exact || (options.version_match == VersionMatch::Unset && limit > 0);
        if !is_exact {
            return Ok(Start { snapshot: store.snapshot(prefix), after: None, left: None, limit });
        }
        let too_old = |_| Failure::new(Reason::Expired, "The resourceVersion for the provided list is too old.");
        let snapshot = store.snapshot_at(prefix, Revision(asked)).map_err(too_old)?;
        Ok(Start { snapshot, after: None, left: None, limit })
    }

    /// The state of an earlier page.
    fn resume(&self, prefix: &Prefix, scope: &str, options: &ListOptions) -> Result<Start, Failure> {
        let key = &self.parts.token_key;
        let text = options.continue_token.as_str();
        let refused = || Failure::bad_request(format!("invalid continue token: continue key is not valid: {}", token::refusal(text)));
        let token = Token::open(text, key, scope).ok_or_else(refused)?;
        let asked = options.resource_version.as_str();
        if !matches!(asked, "" | "0") {
            return Err(Failure::bad_request("specifying resource version is not allowed when using continue"));
        }
        let limit = if !asked.is_empty() { 0 } else { usize::try_from(options.limit).unwrap_or(usize::MAX) };
        let Some(revision) = token.revision else {
            return Ok(Start { snapshot: self.store().snapshot(prefix), after: Some(token.after), left: None, limit });
        };
        match self.state_of_page(prefix, Revision(revision)) {
            Some(snapshot) => Ok(Start { snapshot, after: Some(token.after), left: token.left, limit }),
            None => {
                let inconsistent = Token { revision: None, after: token.after, left: None }.seal(key, scope);
                Err(Failure { continue_token: Some(inconsistent), ..Failure::new(Reason::Expired, TOO_OLD_PAGE) })
            }
        }
    }

    /// The state that was held for a list, else one from the history.
    fn state_of_page(&self, prefix: &Prefix, revision: Revision) -> Option<Snapshot> {
        let held = self.parts.pages.find(prefix, revision);
        // A page has shown it: if it is not there it was lost, and will not come.
        let is_there = || revision <= self.store().revision();
        held.or_else(|| is_there().then(|| self.store().snapshot_at(prefix, revision).ok()).flatten())
    }

    async fn page(&self, start: Start, (prefix, selection): (&Prefix, &Selection), (scope, caller): (&str, u64)) -> ListPage {
        let Start { snapshot, after, left, limit } = start;
        let mut page = ListPage { revision: snapshot.revision, items: Vec::new(), continue_token: String::new(), remaining: None, reading: None };
        let mut work = Work::default();
        if let Some(only) = selection.only_key().filter(|_| after.is_none()) {
            page.items.extend(snapshot.get(&only).filter(|entry| selection.matches(entry, &mut work)).cloned());
            return page;
        }
        let mut entries = snapshot.range(selection.namespace(), after.as_deref());
        if selection.is_everything() && limit == 0 {
            if after.is_none() {
                page.items.reserve_exact(snapshot.count(selection.namespace(), None));
            }
            page.items.extend(entries.cloned());
            return page;
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
        if let Some(last) = page.items.last().filter(|_| more) {
            let last: &Arc<Entry> = last;
            if selection.is_everything() {
                // Carried from page to page: counting what follows each would make a long list cost its square.
                let left = left.unwrap_or_else(|| snapshot.count(selection.namespace(), after.as_deref()) as u64);
                page.remaining = Some(left.saturating_sub(page.items.len() as u64));
            }
            let place = if after.is_some() { Place::Later } else { Place::First };
            self.parts.pages.hold(caller, (prefix, &snapshot), place);
            let after = last.key.rest().to_owned();
            page.continue_token = Token { revision: Some(snapshot.revision.0), after, left: page.remaining }.seal(&self.parts.token_key, scope);
        } else if after.is_some() {
            self.parts.pages.release(prefix, snapshot.revision);
        }
        page
    }
}

/// What a token is good for.
fn scope(prefix: &Prefix, selection: &Selection) -> String {
    format!("{} {}", prefix.as_str(), selection.namespace().unwrap_or_default())
}
