//! The order of a write, once its body is decoded:
//!
//! 1. draft: patch or apply onto the stored object, defaults
//! 2. mutate: local admission, then webhooks
//! 3. complete: generated name, precondition, defaults again, ids, system fields, validation
//! 4. validate: webhooks, then local admission
//! 5. propose: the transaction, or nothing to write
//! 6. commit
//!
//! Without webhooks all of it runs within the turn on the key; else outside, on a durable head, and
//! again if that head changes. What the steps do is in `write_op.rs` for creates, updates and
//! patches, and in `delete.rs`. Only a create has its own commit (`create.rs`): its key has no
//! head.

use super::turn::Proposal;
use super::{Registry, key};
use crate::admission::{Attributes, Effects};
use crate::context::{RequestContext, Target};
use crate::failure::modified;
use crate::offload::give_way;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Key};
use std::sync::Arc;

/// Attempts of a write with webhooks on an object that keeps changing.
const REMOTE_ATTEMPTS: usize = 5;

/// The steps of a write after its draft. Those that are not async are short.
pub(super) trait WriteSteps: Sync {
    type Draft: Send;
    type Reply: Send;

    /// Admits the commit.
    fn context(&self) -> &RequestContext;

    /// The object that is written.
    fn target(&self) -> &Target;

    /// The head in the version that the draft is made from.
    fn shown(&self, head: &Arc<Entry>) -> impl Future<Output = Result<Arc<Entry>, Failure>> + Send;

    /// Local mutating admission.
    fn mutate(&self, draft: &mut Self::Draft) -> Result<(), Failure>;

    /// Mutating webhooks.
    fn mutate_remote(
        &self,
        draft: &mut Self::Draft,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Everything between mutating and validating admission.
    fn complete(&self, draft: &mut Self::Draft, head: Option<&Arc<Entry>>) -> Result<(), Failure>;

    /// Validating webhooks.
    fn validate_remote(
        &self,
        draft: &mut Self::Draft,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The conversion webhook, if the request's version is not the stored one. `shown`: as
    /// [`Self::shown`] returned it.
    fn convert(
        &self,
        draft: &mut Self::Draft,
        shown: Option<&Arc<Entry>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Local validating admission, with effects for the same transaction.
    fn validate(&self, draft: &Self::Draft) -> Result<Effects, Failure>;

    /// The transaction, or the result if nothing changes.
    fn propose(
        &self,
        key: &Key,
        head: Option<&Arc<Entry>>,
        draft: Self::Draft,
        effects: Effects,
    ) -> Result<Proposal<Self::Reply>, Failure>;
}

impl Registry {
    /// A write without webhooks. `added`: bytes by which it may exceed the head.
    pub(super) async fn write_in_turn<S: WriteSteps>(
        &self,
        steps: &S,
        added: usize,
        draft: impl Fn(Option<&Arc<Entry>>) -> Result<S::Draft, Failure> + Send + Sync,
    ) -> Result<S::Reply, Failure> {
        self.in_turn(steps.context(), steps.target(), added, |key, head| {
            let mut draft = draft(head)?;
            give_way();
            steps.mutate(&mut draft)?;
            give_way();
            steps.complete(&mut draft, head)?;
            give_way();
            // Not later: other writers may change objects guarded by the effects.
            let effects = steps.validate(&draft)?;
            steps.propose(key, head, draft, effects)
        })
        .await
    }

    /// A write with webhooks. `remote`: of admission; else only the conversion webhook is called.
    pub(super) async fn write_outside_turn<S: WriteSteps>(
        &self,
        steps: &S,
        remote: bool,
        draft: impl Fn(Option<&Arc<Entry>>) -> Result<S::Draft, Failure> + Send + Sync,
    ) -> Result<S::Reply, Failure> {
        let target = steps.target();
        let name = target.name.as_deref().unwrap_or_default();
        let key = key(target, name)?;
        for _ in 0..REMOTE_ATTEMPTS {
            let head = self.settled_head(&key).await?;
            self.leave_if_long(target, head.as_ref()).await;
            let shown = match &head {
                Some(head) => Some(steps.shown(head).await?),
                None => None,
            };
            // Conversion may have made it larger.
            self.leave_if_long(target, shown.as_ref()).await;
            let mut draft =
                self.admit(steps, || draft(shown.as_ref()), head.as_ref(), remote).await?;
            steps.convert(&mut draft, shown.as_ref()).await?;
            let effects = steps.validate(&draft)?;
            let proposal = steps.propose(&key, head.as_ref(), draft, effects)?;
            if let Some(reply) = self.commit(steps.context(), target, proposal).await? {
                return Ok(reply);
            }
        }
        Err(modified(&target.served, name))
    }

    /// The steps outside the turn, up to validating webhooks.
    pub(super) async fn admit<S: WriteSteps>(
        &self,
        steps: &S,
        draft: impl FnOnce() -> Result<S::Draft, Failure> + Send,
        head: Option<&Arc<Entry>>,
        remote: bool,
    ) -> Result<S::Draft, Failure> {
        let target = steps.target();
        let mut draft = self.timed(target, || {
            let mut draft = draft()?;
            steps.mutate(&mut draft)?;
            Ok::<_, Failure>(draft)
        })?;
        if remote {
            steps.mutate_remote(&mut draft).await?;
        }
        self.timed(target, || steps.complete(&mut draft, head))?;
        if remote {
            steps.validate_remote(&mut draft).await?;
        }
        Ok(draft)
    }

    /// Admission of an object that is not stored: of a computed resource, or the options of a
    /// connection. `decode` decodes objects changed by webhooks.
    pub(super) async fn admit_unstored(
        &self,
        attributes: Attributes<'_>,
        mut object: Document,
        decode: impl FnOnce(Document) -> Result<Document, Failure> + Send,
    ) -> Result<Document, Failure> {
        let admission = self.admission();
        admission.mutate(&attributes, &mut object)?;
        let remote = admission.is_remote(&attributes);
        if remote {
            object = decode(admission.mutate_remote(attributes, object).await?)?;
        }
        admission.validate(&attributes, Some(&object), &mut Effects::default())?;
        if remote {
            admission.validate_remote(attributes, Some(&object)).await?;
        }
        Ok(object)
    }
}
