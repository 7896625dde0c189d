//! POST: a new object, or a computed answer.

use super::options::check_write;
use super::turn::{ATTEMPTS, Plan};
use super::write_op::{Draft, Request, WriteOp};
use super::{Body, Object, Registry, WriteOptions, Written, key};
use crate::admission::{Attributes, Effects, Operation, RequestOptions};
use crate::catalog::ComputedResource;
use crate::context::{RequestContext, Target};
use crate::decode::{Shape, Strictness};
use crate::ids::keep_ids;
use crate::meta;
use crate::name;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_schema::apply::{self, Manager};
use ferrokube_storage::{Entry, Key, Rejected};
use std::sync::Arc;

impl Registry {
    /// POST. The target has no name unless it is a subresource.
    ///
    /// # Errors
    /// As the client sees it; also for all below.
    pub async fn create(
        &self,
        context: &RequestContext,
        target: &Target,
        body: Body,
        options: &WriteOptions,
    ) -> Result<Written, Failure> {
        check_write("CreateOptions", options)?;
        if let Some(behaviour) = self.computed(target) {
            return self.compute(context, target, &*behaviour, (body, options)).await;
        }
        self.leave_if_long(target, None).await;
        let job = WriteOp::new(self, context, target, (Request::Create, options))?;
        let mut object = job.read_body(body)?;
        meta::drop_deletion(&mut object);
        meta::dedup_owners(&mut object, meta::Found::InBody, context);
        // Before a name is made: what follows from that is nobody's.
        job.definition().set_defaults(target.served.version, &mut object);
        if !name::is_wanted(&object) {
            return job.create(object).await;
        }
        for _ in 0..name::ATTEMPTS {
            let mut named = object.clone();
            name::generate(&mut named);
            match job.create(named).await {
                Err(failure) if failure.reason == Some(Reason::AlreadyExists) => {}
                answer => return answer,
            }
        }
        Err(no_name_left(target, object.meta("generateName")))
    }

    /// The behaviour of a target that computes its answer.
    fn computed(&self, target: &Target) -> Option<Arc<dyn ComputedResource>> {
        let definition = &target.served.definition;
        let behaviour = self.catalog().find_computed(
            &definition.group,
            &definition.plural,
            &target.subresource,
        )?;
        (!behaviour.is_projection()).then_some(behaviour)
    }

    /// The behaviour of a subresource that shows a part of the stored object.
    pub(crate) fn projection(&self, target: &Target) -> Option<Arc<dyn ComputedResource>> {
        if target.subresource.is_empty() {
            return None;
        }
        let definition = &target.served.definition;
        let behaviour = self.catalog().find_computed(
            &definition.group,
            &definition.plural,
            &target.subresource,
        )?;
        behaviour.is_projection().then_some(behaviour)
    }

    async fn compute(
        &self,
        context: &RequestContext,
        target: &Target,
        behaviour: &dyn ComputedResource,
        (mut body, options): (Body, &WriteOptions),
    ) -> Result<Written, Failure> {
        let shape = if target.subresource.is_empty() {
            Shape::of(&target.served)
        } else {
            Shape::of_computed(target, behaviour)
        };
        let document = std::mem::take(&mut body.document);
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
        let mut object = shape
            .fit(document, &strictness)
            .map_err(|misfit| shape.bad_request(misfit, &body, self.catalog()))?;
        meta::ensure_namespace(target, &mut object)?;
        meta::normalize(&mut object);
        meta::drop_deletion(&mut object);
        meta::dedup_owners(&mut object, meta::Found::InBody, context);
        if target.subresource.is_empty() {
            target.served.definition.set_defaults(target.served.version, &mut object);
        } else {
            behaviour.fill_in(&mut object);
        }
        meta::complete_owners(&mut object);
        let attributes = Attributes {
            context,
            target,
            operation: Operation::Create,
            old: None,
            options: RequestOptions::Create(options),
            dry_run: options.dry_run,
        };
        let admission = self.admission();
        admission.mutate(&attributes, &mut object)?;
        let remote = admission.is_remote(&attributes);
        if remote {
            object = admission.mutate_remote(attributes, object).await?;
        }
        admission.validate(&attributes, Some(&object), &mut Effects::default())?;
        if remote {
            admission.validate_remote(attributes, Some(&object)).await?;
        }
        let job = WriteOp::new(self, context, target, (Request::Create, options))?;
        let manager = Manager {
            api_version: shape.gvk.api_version(),
            ..job.manager(apply::Operation::Update)
        };
        apply::track_update(&shape.schema, job.reset, None, &mut object, &manager);
        let answer = behaviour.create(context, target, object).await?;
        Ok(Written { object: Object::Computed(answer), created: true })
    }
}

impl WriteOp<'_> {
    /// Creates one object that has its name.
    async fn create(&self, object: Document) -> Result<Written, Failure> {
        let draft = self.draft_new(object);
        let remote = self.registry.admission().is_remote(&self.attributes(
            &draft.target,
            Operation::Create,
            None,
        ));
        let draft = self.admitted(|| Ok(draft), None, remote).await?;
        self.commit_new(draft).await
    }

    /// A new object with its defaults up to mutating admission.
    pub(super) fn draft_new(&self, object: Document) -> Draft {
        let mut draft = self.draft_untracked(object);
        self.track(None, &mut draft.object);
        draft
    }

    /// The same for an apply, which has its own managedFields.
    pub(super) fn draft_untracked(&self, mut object: Document) -> Draft {
        meta::fill_new(&mut object, self.context.now);
        if self.registry.admission().owns_ids() {
            keep_ids(None, &mut object);
        }
        self.keep_reset(None, &mut object);
        let target = Target { name: Some(object.name().to_owned()), ..self.target.clone() };
        Draft { target, old: None, object, stored: None, ids: None, applied: false }
    }

    /// Commits a new object unless its name is taken. Another key's guard is computed again.
    async fn commit_new(&self, mut draft: Draft) -> Result<Written, Failure> {
        let key = key(&draft.target, draft.object.name())?;
        let mut effects = self.validate(&draft)?;
        // A dry run shows what was given.
        if !self.options.dry_run {
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
        for attempt in 0.. {
            let plan = self.plan(&key, None, &draft, effects)?;
            if let Some(written) = self.registry.commit(&draft.target, plan).await? {
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
        match self.plan(key, None, draft, effects)? {
            Plan::Done(written) => Ok(written),
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
            // Upstream takes any name for one that it made.
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

/// An object that is to be created has no resourceVersion. Upstream answers 500 without a reason,
/// and clients see it; what is no number it ignores.
fn refuse_version(object: &Document) -> Result<(), Failure> {
    match object.meta("resourceVersion").parse::<u64>() {
        Err(_) | Ok(0) => Ok(()),
        Ok(_) => {
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
