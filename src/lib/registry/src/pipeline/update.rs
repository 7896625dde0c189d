//! PUT and PATCH of an object or subresource. Both may create the object if the kind or an apply
//! allows it.

use super::patching::UpdateInput;
use super::write_op::{Draft, WriteOp, WriteVerb};
use super::{Body, Object, Patch, Registry, Written, key, view};
use crate::admission::Operation;
use crate::catalog::ComputedResource;
use crate::context::{RequestContext, Target};
use crate::failure::modified;
use crate::ids::keep_ids;
use crate::meta;
use crate::offload::{give_way, leave_worker};
use crate::options::{WriteOptions, check_patch, check_write};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::status::Failure;
use ferrokube_schema::apply::Replicas;
use ferrokube_storage::Entry;
use std::sync::Arc;

impl Registry {
    /// PUT.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn update(
        &self,
        context: &RequestContext,
        target: &Target,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        check_write("UpdateOptions", options)?;
        self.leave_if_long(target, None).await;
        let op = WriteOp::new(self, context, target, WriteVerb::Update, options)?;
        let bytes = body.source.len();
        let mut object = op.read_body(body)?;
        meta::check_name(target, &object)?;
        meta::dedup_owners(&mut object, meta::DedupPhase::Body, context);
        if op.projection.is_none() {
            op.definition().set_defaults(target.served.version, &mut object);
        }
        // Rejections by mutating webhooks take precedence.
        if !op.is_remote(&[Operation::Update]) {
            op.refuse_outdated(&object).await?;
        }
        op.run(UpdateInput::Put(object), bytes).await
    }

    /// PATCH.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn patch(
        &self,
        context: &RequestContext,
        target: &Target,
        patch: Patch,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        // What patch an unreadable one would be is not known here.
        if !matches!(patch, Patch::Unreadable(_)) {
            check_patch(options, matches!(patch, Patch::Apply(_)))?;
        }
        let op = WriteOp::new(self, context, target, WriteVerb::Patch, options)?;
        if is_long(&patch) {
            leave_worker().await;
        }
        let bytes = patch.source_bytes();
        op.run(UpdateInput::Patch(patch), bytes).await
    }
}

impl WriteOp<'_> {
    /// Fails a PUT with a stale resourceVersion without waiting for its turn.
    async fn refuse_outdated(&self, object: &Document) -> Result<(), Failure> {
        let Some(given) = go::unsigned(object.meta("resourceVersion")).filter(|given| *given > 0)
        else {
            return Ok(());
        };
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = key(self.target, name)?;
        match self.registry.store().pending(&key) {
            Some(head)
                if head.revision.0 != given && self.registry.confirm(&key, Some(&head)).await? =>
            {
                // A uid mismatch takes precedence.
                let stored = if object.uid().is_empty() {
                    None
                } else {
                    Some(view(&head, &self.target.served))
                };
                match stored.filter(|stored| stored.uid() != object.uid()) {
                    Some(stored) => Err(self.uid_differs(object.uid(), stored.uid())),
                    None => Err(modified(&self.target.served, name)),
                }
            }
            _ => Ok(()),
        }
    }

    /// `bytes`: length of the body.
    async fn run(&self, input: UpdateInput, bytes: usize) -> Result<Written, Failure> {
        let operations: &[Operation] = if self.may_create(&input) {
            &[Operation::Update, Operation::Create]
        } else {
            &[Operation::Update]
        };
        let remote = self.is_remote(operations);
        let draft = |shown: Option<&Arc<Entry>>| self.draft(shown, &input);
        let written = if remote || self.registry.converts(self.target) {
            let written = self.registry.write_outside_turn(self, remote, draft).await?;
            self.registry.written_in_version(&self.target.served, written).await?
        } else {
            self.registry.write_in_turn(self, bytes, draft).await?
        };
        self.show(written)
    }

    fn may_create(&self, input: &UpdateInput) -> bool {
        self.target.subresource.is_empty()
            && (input.is_apply()
                || matches!(input, UpdateInput::Put(_))
                    && self.definition().policy.create_on_update)
    }

    /// The requested object, with managedFields.
    fn draft(&self, head: Option<&Arc<Entry>>, input: &UpdateInput) -> Result<Draft, Failure> {
        let Some(head) = head else {
            return self.draft_absent(input);
        };
        let old = view(head, &self.target.served);
        give_way();
        if let UpdateInput::Put(object) = input
            && !object.uid().is_empty()
            && object.uid() != old.uid()
        {
            return Err(self.uid_differs(object.uid(), old.uid()));
        }
        let mut object = match &self.projection {
            Some(computed) => self.draft_projected(&**computed, &old, input)?,
            None => self.revise(Some(&old), input)?,
        };
        give_way();
        if self.registry.admission().owns_ids() {
            keep_ids(Some(&old), &mut object);
        }
        if matches!(input, UpdateInput::Patch(_)) {
            self.definition().set_defaults(self.target.served.version, &mut object);
            give_way();
        }
        meta::dedup_owners(&mut object, meta::DedupPhase::Admitted, self.context);
        self.keep_reset(Some(&old), &mut object);
        give_way();
        if !input.is_apply() && self.projection.is_none() {
            self.track(Some(&old), &mut object);
        }
        Ok(Draft {
            target: self.target.clone(),
            old: Some(old),
            object,
            stored: None,
            ids: None,
            applied: input.is_apply(),
            mutated: false,
        })
    }

    /// The stored object with a changed projection, which has managedFields of its own.
    fn draft_projected(
        &self,
        computed: &dyn ComputedResource,
        old: &Document,
        input: &UpdateInput,
    ) -> Result<Document, Failure> {
        let mut shown = computed.project_for_update(self.target, old)?;
        shown.set(&["metadata", "resourceVersion"], old.meta("resourceVersion"));
        let replicas = computed.replicas();
        replicas.inspect(|replicas| replicas.show(old, &mut shown));
        let mut revised = self.revise(Some(&shown), input)?;
        if !input.is_apply() {
            replicas.inspect(|_| Replicas::normalize(&mut revised));
            self.track(Some(&shown), &mut revised);
        }
        let mut object = old.clone();
        // A projection without a resourceVersion updates unconditionally.
        if !revised.meta("resourceVersion").is_empty() {
            object.set(&["metadata", "resourceVersion"], revised.meta("resourceVersion"));
        }
        self.inject(computed, &revised, &mut object)?;
        replicas.inspect(|replicas| {
            replicas.inject(&revised, &mut object, &self.decoder.gvk.api_version())
        });
        Ok(object)
    }

    /// Draft of an update that creates.
    fn draft_absent(&self, input: &UpdateInput) -> Result<Draft, Failure> {
        if !self.may_create(input) {
            return Err(Failure::not_found(
                &self.definition().group_resource(),
                self.target.name.as_deref().unwrap_or_default(),
            ));
        }
        let mut object = self.revise(None, input)?;
        if !object.uid().is_empty() {
            return Err(self.uid_differs(object.uid(), ""));
        }
        if !input.is_apply() {
            return Ok(self.draft_new(object));
        }
        self.definition().set_defaults(self.target.served.version, &mut object);
        meta::dedup_owners(&mut object, meta::DedupPhase::Admitted, self.context);
        Ok(Draft { applied: true, ..self.draft_untracked(object) })
    }

    fn uid_differs(&self, given: &str, stored: &str) -> Failure {
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = key(self.target, name).map(|key| key.as_str().to_owned()).unwrap_or_default();
        // kube-apiserver's dry run has no storage prefix.
        let key = if self.options.fails_as_stored() {
            &key
        } else {
            key.strip_prefix("/registry").unwrap_or(&key)
        };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {given}, UID in object meta: {stored}"
        );
        Failure::conflict(&self.definition().group_resource(), name, &why)
    }

    /// The response: the written object, or its projection.
    fn show(&self, written: Written) -> Result<Written, Failure> {
        let Some(computed) = &self.projection else {
            return Ok(written);
        };
        let object = written.object.into_document(&self.target.served);
        let mut shown = computed.project_written(self.target, &object)?;
        shown.set(&["metadata", "resourceVersion"], object.meta("resourceVersion"));
        Ok(Written { object: Object::Computed(shown), created: written.created })
    }
}

/// Longer JSON patches are computed off the workers: each operation may move the whole object.
const INLINE_OPERATIONS: usize = 16;

/// Whether a small patch may take long on a small object, by copying or by many operations.
fn is_long(patch: &Patch) -> bool {
    let copies = |one: &Value| one.get("op").and_then(Value::as_str) == Some("copy");
    match patch {
        Patch::Json(operations, _) => operations
            .as_array()
            .is_some_and(|all| all.len() > INLINE_OPERATIONS || all.iter().any(copies)),
        Patch::Apply(_) | Patch::Merge(_) | Patch::Strategic(_) | Patch::Unreadable(_) => false,
    }
}

/// A projection of a stored object, with its resourceVersion.
pub(crate) fn project(
    computed: &dyn crate::catalog::ComputedResource,
    target: &Target,
    object: &Document,
) -> Result<Document, Failure> {
    let mut shown = computed.project(target, object)?;
    shown.set(&["metadata", "resourceVersion"], object.meta("resourceVersion"));
    Ok(shown)
}
