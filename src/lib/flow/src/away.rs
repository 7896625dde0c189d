//! A request waiting for a webhook: memory held meanwhile is charged to the webhook, not to the
//! caller.

use super::share::{BudgetCaller, BudgetGrant, Loan};
use super::{Flow, MAX_WAIT, REQUEST, leave_seat, with_grants};
use ferrokube_apimachinery::heap;
use std::sync::Arc;

/// A pending webhook call, and the memory that its request holds meanwhile.
#[derive(Debug)]
pub struct Away {
    webhook: BudgetCaller,
    /// `None` outside of requests.
    held: Option<(Arc<Flow>, Loan)>,
    /// How much of the loan came with the request.
    carried: usize,
}

/// Why a wait ends without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwayError {
    /// The budget is exhausted, or was revoked for other callers.
    Full,
    /// More than the whole budget.
    TooLarge,
}

impl Away {
    /// Begins a wait for a webhook (identified by the hash `webhook`) with `bytes` in addition to
    /// those held by this task's request. Its seat is released, and its body, tree and list are
    /// charged to the webhook, as are leftovers of earlier waits.
    ///
    /// # Errors
    /// [`AwayError`].
    pub async fn begin(webhook: u64, bytes: usize) -> Result<Self, AwayError> {
        leave_seat();
        let webhook = BudgetCaller::numbered(webhook);
        let Ok(flow) = REQUEST.try_with(|request| Arc::clone(&request.flow)) else {
            return Ok(Self { webhook, held: None, carried: 0 });
        };
        let amount = |grant: &Option<BudgetGrant>| grant.as_ref().map_or(0, BudgetGrant::amount);
        let carried = with_grants(|grants| {
            amount(&grants.body) + amount(&grants.tree) + amount(&grants.list)
        })
        .unwrap_or(0);
        if bytes + carried > flow.away.limit() {
            return Err(AwayError::TooLarge);
        }
        let exchanged = with_grants(|grants| {
            let kept: usize = grants.away.iter().map(BudgetGrant::amount).sum();
            let all = (bytes + carried + kept).max(1);
            let grant = flow.away.try_exchange(&mut grants.away, webhook, all)?;
            Some((grant.into_loan(), carried + kept))
        });
        let (loan, carried) = match exchanged.flatten() {
            Some(exchanged) => exchanged,
            None => {
                let amount = (bytes + carried).max(1);
                let loan = flow.away.lend(webhook, amount, MAX_WAIT).await;
                (loan.ok_or(AwayError::Full)?, carried)
            }
        };
        with_grants(|grants| (grants.body, grants.tree, grants.list) = (None, None, None));
        Ok(Self { webhook, held: Some((flow, loan)), carried })
    }

    /// Grows while the response arrives.
    ///
    /// # Errors
    /// [`AwayError::Full`].
    pub async fn grow(&mut self, bytes: usize) -> Result<(), AwayError> {
        match &mut self.held {
            Some((_, loan)) => loan.grow(bytes, MAX_WAIT).await.map_err(|_| AwayError::Full),
            None => Ok(()),
        }
    }

    /// Waits until callers that hold less need the room. Cancel safe.
    pub async fn revoked(&mut self) {
        match &mut self.held {
            Some((_, loan)) => loan.revoked().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the wait: the request continues with its own grants, and `tree` bytes for the decoded
    /// response.
    ///
    /// # Errors
    /// [`AwayError`].
    pub async fn end(mut self, tree: usize) -> Result<Option<BudgetGrant>, AwayError> {
        if tree > heap::LARGEST {
            return Err(AwayError::TooLarge);
        }
        let Some((flow, _)) = &self.held else { return Ok(None) };
        let tree = take_tree(flow, self.webhook, tree).await?;
        self.hand_back();
        Ok(tree)
    }

    /// Returns the request's own grants, also after a failed call.
    fn hand_back(&mut self) {
        let Some((_, loan)) = self.held.take() else { return };
        let mut own = loan.into_grant();
        own.shrink(self.carried);
        with_grants(|grants| grants.away.push(own));
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.hand_back();
    }
}

/// Bytes that the request of this task holds, and takes along when it waits for a webhook.
pub fn carried_bytes() -> usize {
    let amount = |grant: &Option<BudgetGrant>| grant.as_ref().map_or(0, BudgetGrant::amount);
    with_grants(|grants| {
        let kept: usize = grants.away.iter().map(BudgetGrant::amount).sum();
        amount(&grants.body) + amount(&grants.tree) + amount(&grants.list) + kept
    })
    .unwrap_or(0)
}

/// Takes `bytes` for values decoded from a part of a webhook's response: a patch in base64 is not
/// seen by [`Away::end`].
///
/// # Errors
/// [`AwayError`].
pub async fn response_part(webhook: u64, bytes: usize) -> Result<Option<BudgetGrant>, AwayError> {
    if bytes > heap::LARGEST {
        return Err(AwayError::TooLarge);
    }
    let Ok(flow) = REQUEST.try_with(|request| Arc::clone(&request.flow)) else { return Ok(None) };
    take_tree(&flow, BudgetCaller::numbered(webhook), bytes).await
}

async fn take_tree(
    flow: &Flow,
    webhook: BudgetCaller,
    bytes: usize,
) -> Result<Option<BudgetGrant>, AwayError> {
    match bytes {
        0 => Ok(None),
        bytes => {
            let tree = flow.trees[0].take(webhook, bytes, MAX_WAIT).await;
            tree.ok_or(AwayError::Full).map(Some)
        }
    }
}
