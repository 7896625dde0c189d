//! Waiting for a webhook: what a request holds meanwhile is counted for the webhook, and for nobody
//! who works.

use super::share::{Caller, Grant, Loan};
use super::{Flow, PATIENCE, REQUEST, holds, stand_up};
use ferrokube_apimachinery::heap;
use std::sync::Arc;

/// A request that waits for a webhook.
#[derive(Debug)]
pub struct Away {
    webhook: Caller,
    /// `None` outside of requests.
    held: Option<(Arc<Flow>, Loan)>,
    /// What of it is the request's own.
    carried: usize,
}

/// Why a wait ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwayError {
    /// There is no room, or others need it more.
    Full,
    /// There is never so much room.
    TooLarge,
}

impl Away {
    /// Leaves for a webhook (a number that stands for it) with so many bytes, and with what the
    /// request of this task holds: its seat is free from now on, and its body, tree and list count
    /// for the webhook.
    ///
    /// # Errors
    /// Both.
    pub async fn begin(webhook: u64, bytes: usize) -> Result<Self, AwayError> {
        stand_up();
        let webhook = Caller { id: webhook, is_anonymous: false };
        let Ok(flow) = REQUEST.try_with(|request| Arc::clone(&request.flow)) else {
            return Ok(Self { webhook, held: None, carried: 0 });
        };
        let amount = |grant: &Option<Grant>| grant.as_ref().map_or(0, Grant::amount);
        let carried =
            holds(|holds| amount(&holds.body) + amount(&holds.tree) + amount(&holds.list))
                .unwrap_or(0);
        if bytes + carried > flow.away.limit() {
            return Err(AwayError::TooLarge);
        }
        let loan = flow
            .away
            .lend(webhook, (bytes + carried).max(1), PATIENCE)
            .await
            .ok_or(AwayError::Full)?;
        holds(|holds| (holds.body, holds.tree, holds.list) = (None, None, None));
        Ok(Self { webhook, held: Some((flow, loan)), carried })
    }

    /// Takes more: the answer arrives.
    ///
    /// # Errors
    /// [`AwayError::Full`].
    pub async fn grow(&mut self, bytes: usize) -> Result<(), AwayError> {
        match &mut self.held {
            Some((_, loan)) => loan.grow(bytes, PATIENCE).await.map_err(|_| AwayError::Full),
            None => Ok(()),
        }
    }

    /// Waits until others need its room more. Cancel safe.
    pub async fn called_back(&mut self) {
        match &mut self.held {
            Some((_, loan)) => loan.called_back().await,
            None => std::future::pending().await,
        }
    }

    /// Nobody is waited for any more: the request goes on with what was its own, and with room for
    /// a tree of so many bytes.
    ///
    /// # Errors
    /// Both.
    pub async fn end(self, tree: usize) -> Result<Option<Grant>, AwayError> {
        if tree > heap::LARGEST {
            return Err(AwayError::TooLarge);
        }
        let Some((flow, loan)) = self.held else { return Ok(None) };
        let mut own = loan.keep();
        let tree = match tree {
            0 => None,
            bytes => Some(
                flow.trees[0].take(self.webhook, bytes, PATIENCE).await.ok_or(AwayError::Full)?,
            ),
        };
        own.shrink(self.carried);
        holds(|holds| holds.away.push(own));
        Ok(tree)
    }
}
