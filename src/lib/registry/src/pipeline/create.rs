//! POST: stores a new object, or calls a computed resource.

use super::order::WriteSteps;
use super::turn::{ATTEMPTS, NewEntry, Proposal};
use super::write_op::{Draft, WriteOp, WriteVerb, version_number};
use super::{Body, Object, Registry, Written, key};
use crate::admission::{AdmissionOptions, Attributes, Effects, Operation};
use crate::catalog::{ComputedCall, ComputedResource};
use crate::context::{RequestContext, Target};
use crate::decode::{ObjectDecoder, Strictness};
use crate::ids::keep_ids;
use crate::meta;
use crate::name;
use crate::offload::give_way;
use crate::options::{WriteOptions, check_write};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_schema::apply::{self, Manager};
use ferrokube_storage::{Entry, Key, Rejected};
use std::sync::Arc;

impl Registry {
    /// POST. The target has a name only if it is a subresource.
    ///
    /// # Errors
    /// Every error is a Status for the client. So are those of all methods below.
    pub async fn create(
        &self,
        context: &RequestContext,
        target: &Target,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        check_write("CreateOptions", options)?;
        if let Some(computed) = self.computed(target) {
            return self.compute(context, target, &*computed, body, options).await;
        }
        self.leave_if_long(target, None).await;
        let op = WriteOp::new(self, context, target, WriteVerb::Create, options)?;
        let mut object = op.read_body(body)?;
        give_way();
        meta::drop_deletion(&mut object);
        meta::dedup_owners(&mut object, meta::DedupPhase::Body, context);
        // The name is generated later: no manager owns fields derived from it, and mutating steps
        // see an object without a name.
        op.definition().set_defaults(target.served.version, &mut object);
        if op.definition().policy.names_itself && target.subresource.is_empty() {
            name::fill(&mut object);
        }
        if name::is_missing(&object) && op.definition().policy.prefix_becomes_name {
            let prefix = object.meta("generateName").to_owned();
            object.set(&["metadata", "name"], prefix);
        }
        if !name::is_missing(&object) {
            return op.create(object).await;
        }
        for _ in 0..name::ATTEMPTS {
            match op.create(object.clone()).await {
                Err(failure) if failure.reason == Some(Reason::AlreadyExists) => {}
                answer => return answer,
            }
        }
        Err(no_name_left(target, object.meta("generateName")))
    }

    /// Implementation of a target that is computed, not stored.
    fn computed(&self, target: &Target) -> Option<Arc<dyn ComputedResource>> {
        let computed = self.catalog().computed_at(target)?;
        (!computed.is_projection()).then_some(computed)
    }

    /// Implementation of a subresource that projects the stored object (`scale`).
    pub(crate) fn projection(&self, target: &Target) -> Option<Arc<dyn ComputedResource>> {
        if target.subresource.is_empty() {
            return None;
        }
        let computed = self.catalog().computed_at(target)?;
        computed.is_projection().then_some(computed)
    }

    async fn compute(
        &self,
        context: &RequestContext,
        target: &Target,
        computed: &dyn ComputedResource,
        mut body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        let decoder = if target.subresource.is_empty() {
            ObjectDecoder::of(&target.served)
        } else {
            ObjectDecoder::for_computed(target, computed)
        };
        let mut document = std::mem::take(&mut body.document);
        let given = document.api_version().to_owned();
        let is_other = computed.other_versions().contains(&given.as_str());
        if is_other {
            document.set(&["apiVersion"], decoder.gvk.api_version());
        }
        let strictness = if body.lenient {
            Strictness::ignore(context)
        } else {
            Strictness {
                validation: options.field_validation.unwrap_or_default(),
                duplicates: &body.duplicates,
                source: body.ordered(),
                noted: &body.noted,
                context,
            }
        };
        let decoded = decoder.decode(document, &strictness);
        let mut object = decoded.map_err(|error| {
            // It names the version of the body.
            let mut named = decoder.clone();
            if let Some((_, version)) = given.rsplit_once('/').filter(|_| is_other) {
                version.clone_into(&mut named.gvk.version);
            }
            named.bad_request(error, &body, self.catalog())
        })?;
        meta::ensure_namespace(target, &mut object)?;
        meta::normalize(&mut object);
        meta::drop_deletion(&mut object);
        meta::dedup_owners(&mut object, meta::DedupPhase::Body, context);
        if target.subresource.is_empty() {
            target.served.definition.set_defaults(target.served.version, &mut object);
        } else {
            computed.fill_in(&mut object);
        }
        meta::complete_owners(&mut object);
        let attributes = Attributes {
            context,
            target,
            operation: Operation::Create,
            old: None,
            options: AdmissionOptions::Create(options),
            dry_run: options.dry_run,
        };
        let decode = |mutated| self.decode_mutated(&decoder, context, mutated);
        let mut object = self.admit_unstored(attributes, object, decode).await?;
        let op = WriteOp::new(self, context, target, WriteVerb::Create, options)?;
        let manager = Manager {
            api_version: decoder.gvk.api_version(),
            ..op.manager(apply::ManagerOperation::Update)
        };
        apply::track_update(&decoder.schema, op.reset, None, &mut object, &manager);
        context.admit(computed.need(target))?;
        let answer = computed
            .create(ComputedCall { registry: self, context, target, options }, object)
            .await?;
        Ok(Written { object: Object::Computed(answer), created: true })
    }
}

impl WriteOp<'_> {
    /// Creates an object, under a name that is generated if it has none.
    async fn create(&self, object: Document) -> Result<Written, Failure> {
        let draft = self.draft_new(object);
        let remote = self.registry.admission().is_remote(&self.attributes(
            &draft.target,
            Operation::Create,
            None,
        ));
        let draft = self.registry.admit(self, || Ok(draft), None, remote).await?;
        self.commit_new(draft).await
    }

    /// Draft of a new object, before mutating admission.
    pub(super) fn draft_new(&self, object: Document) -> Draft {
        let mut draft = self.draft_untracked(object);
        self.track(None, &mut draft.object);
        draft
    }

    /// Same without tracking managedFields, which an apply has done.
    pub(super) fn draft_untracked(&self, mut object: Document) -> Draft {
        meta::fill_new(&mut object, self.context.now);
        if self.registry.admission().owns_ids() {
            keep_ids(None, &mut object);
        }
        self.keep_reset(None, &mut object);
        let name = Some(object.name()).filter(|name| !name.is_empty()).map(str::to_owned);
        let target = Target { name, ..self.target.clone() };
        Draft { target, old: None, object, stored: None, ids: None, applied: false, mutated: false }
    }

    /// Generates a missing name. An update that creates may have a resourceVersion, which must be a
    /// number.
    pub(super) fn complete_new(&self, draft: &mut Draft) -> Result<(), Failure> {
        let object = &mut draft.object;
        if name::is_missing(object) {
            name::generate(object);
            draft.target.name = Some(object.name().to_owned());
        }
        if self.verb == WriteVerb::Create {
            return Ok(());
        }
        match object.meta("resourceVersion") {
            "" => {}
            text => _ = version_number(text)?,
        }
        if self.options.fails_as_stored() {
            object.remove(&["metadata", "resourceVersion"]);
        }
        Ok(())
    }

    /// Commits unless the name is taken. Retried if the guard of another key failed.
    async fn commit_new(&self, mut draft: Draft) -> Result<Written, Failure> {
        let key = key(&draft.target, draft.object.name())?;
        let mut effects = self.validate(&draft)?;
        // A dry run returns the given resourceVersion.
        if self.options.fails_as_stored() {
            refuse_version(&draft.object)?;
            draft.object.remove(&["metadata", "resourceVersion"]);
        }
        self.convert(&mut draft, None).await?;
        if self.options.dry_run {
            return match self.registry.settled_head(&key).await? {
                Some(head) => Err(self.taken(&draft, &head).await),
                None => self.finish_dry_run(&key, &draft, effects),
            };
        }
        let proposal = self.proposal(&key, None, &draft, Effects::default())?;
        let Proposal::Commit { txn, need, reply } = proposal else {
            return Err(Failure::internal("a create would not have been written"));
        };
        self.context.admit(need)?;
        let new = NewEntry { txn, need, reply };
        for attempt in 0.. {
            let again = || self.validate(&draft);
            let committed = self.registry.commit_new(&draft.target, &new, effects, again).await?;
            if let Some(written) = committed {
                return self.registry.written_in_version(&self.target.served, written).await;
            }
            if let Some(head) = self.registry.settled_head(&key).await? {
                return Err(self.taken(&draft, &head).await);
            }
            if attempt == ATTEMPTS {
                break;
            }
            tokio::task::yield_now().await;
            effects = self.validate(&draft)?;
        }
        Err(crate::failure::rejected(&Rejected::Guard(key)))
    }

    fn finish_dry_run(
        &self,
        key: &Key,
        draft: &Draft,
        effects: Effects,
    ) -> Result<Written, Failure> {
        match self.proposal(key, None, draft, effects)? {
            Proposal::Done(written) => Ok(written),
            _ => Err(Failure::internal("a dry run would have been written")),
        }
    }

    async fn taken(&self, draft: &Draft, head: &Arc<Entry>) -> Failure {
        self.registry.leave_if_long(self.target, Some(head)).await;
        let mut resource = self.definition().group_resource();
        let is_generated = !draft.object.meta("generateName").is_empty();
        if is_generated && let Some(group) = self.definition().policy.invalid_group {
            group.clone_into(&mut resource.group);
        }
        let mut failure = Failure::already_exists(&resource, draft.object.name());
        if is_generated {
            // kube-apiserver takes any name next to a generateName for a generated one.
            failure
                .message
                .push_str(", the server was not able to generate a unique name for the object");
            failure.details.get_or_insert_default().retry_after_seconds = 1;
        }
        if super::view(head, &self.target.served).is_terminating() {
            failure.message = format!("object is being deleted: {}", failure.message);
        }
        failure
    }
}

/// A new object has no resourceVersion. kube-apiserver answers 500 without a reason, and ignores a
/// version that is not a number.
fn refuse_version(object: &Document) -> Result<(), Failure> {
    match go::unsigned(object.meta("resourceVersion")) {
        None | Some(0) => Ok(()),
        Some(_) => {
            Err(Failure::bare(500, "resourceVersion should not be set on objects to be created"))
        }
    }
}

fn no_name_left(target: &Target, prefix: &str) -> Failure {
    let resource = target.served.definition.group_resource();
    let message = format!(
        "{resource} with generateName {prefix:?}: no free name was found in {} attempts",
        name::ATTEMPTS
    );
    Failure::new(Reason::AlreadyExists, message).with_details(Details::of(&resource, prefix))
}
