//! Changes of stored objects by handlers of subresources, whose own request was admitted.

use super::turn::Proposal;
use super::write_op::{Draft, WriteOp, WriteVerb};
use super::{Registry, Written, view};
use crate::admission::{Effects, Operation};
use crate::context::{RequestContext, Target};
use crate::options::WriteOptions;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_storage::{Entry, Key};
use std::sync::Arc;

impl Registry {
    /// Changes a stored object in its turn, for the handler of a subresource (`pods/binding`). As
    /// in kube-apiserver, which writes such a change straight to its storage, there is no
    /// admission, validation, generation or field manager. `change` runs again if the object
    /// changed meanwhile.
    ///
    /// # Errors
    /// 404, and those of `change`.
    pub async fn amend(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &WriteOptions,
        change: impl Fn(&mut Document) -> Result<(), Failure> + Send + Sync,
    ) -> Result<Written, Failure> {
        let op = WriteOp::new(self, context, target, WriteVerb::Update, options)?;
        self.in_turn(context, target, 0, |key, head| op.amended(key, head, &change)).await
    }
}

impl WriteOp<'_> {
    fn amended(
        &self,
        key: &Key,
        head: Option<&Arc<Entry>>,
        change: impl Fn(&mut Document) -> Result<(), Failure>,
    ) -> Result<Proposal<Written>, Failure> {
        let name = self.target.name.as_deref().unwrap_or_default();
        let head =
            head.ok_or_else(|| Failure::not_found(&self.definition().group_resource(), name))?;
        let old = view(head, &self.target.served);
        let mut object = old.clone();
        change(&mut object)?;
        let attributes = self.attributes(self.target, Operation::Update, Some(&old));
        let ids = self.registry.admission().stamp(&attributes, &mut object);
        let target = self.target.clone();
        let draft = Draft {
            target,
            old: Some(old),
            object,
            stored: None,
            ids,
            applied: false,
            mutated: false,
        };
        self.proposal(key, Some(head), &draft, Effects::default())
    }
}
