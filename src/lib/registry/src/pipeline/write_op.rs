//! A create or update: the steps that both share. Local steps are synchronous and short.

use super::order::WriteSteps;
use super::turn::Proposal;
use super::{Object, Registry, Written};
use crate::admission::{AdmissionOptions, Attributes, Effects, Operation};
use crate::catalog::{ComputedResource, Served};
use crate::codec;
use crate::context::{FieldValidation, RequestContext, Target};
use crate::conversion::StoredForm;
use crate::decode::{ObjectDecoder, Strictness};
use crate::failure::{invalid_object, modified};
use crate::ids::show_ids;
use crate::meta;
use crate::noop;
use crate::offload::give_way;
use crate::options::WriteOptions;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::{FieldError, FieldReason, MAX_MANAGER_BYTES};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time::rfc3339_seconds;
use ferrokube_apimachinery::{go, json};
use ferrokube_resource::{Change, Definition, MetadataRules};
use ferrokube_schema::apply::{self, Manager, ResetFields};
use ferrokube_schema::validate;
use ferrokube_storage::{Entry, Guard, Key, Need, Txn, Write};
use ferrokube_trace::annotation::Ids;
use std::sync::Arc;

/// Selects the options that webhooks see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteVerb {
    Create,
    Update,
    Patch,
}

/// A create, update or patch without its body.
pub(super) struct WriteOp<'a> {
    pub(super) registry: &'a Registry,
    pub(super) context: &'a RequestContext,
    pub(super) target: &'a Target,
    pub(super) options: &'a WriteOptions,
    pub(super) verb: WriteVerb,
    /// Decoder of the stored object, in the version of the target.
    pub(super) decoder: ObjectDecoder,
    /// Decoder of bodies, if it is another one: that of a projection.
    projected_decoder: Option<ObjectDecoder>,
    /// Fields that this endpoint neither changes nor owns.
    pub(super) reset: &'a ResetFields,
    /// Set if the subresource shows part of the object as another kind.
    pub(super) projection: Option<Arc<dyn ComputedResource>>,
}

/// An object between decoding and storing.
pub(super) struct Draft {
    /// With a name, unless it is yet to be generated.
    pub(super) target: Target,
    /// The stored object, in the version of the target; `None` for a create.
    pub(super) old: Option<Document>,
    /// The requested object.
    pub(super) object: Document,
    /// In the storage version, if the conversion webhook made it.
    pub(super) stored: Option<StoredForm>,
    /// Ids of this write that are not in `object` yet.
    pub(super) ids: Option<Ids>,
    /// Result of an apply, which was never decoded.
    pub(super) applied: bool,
    /// Result of mutating webhooks or policies. Nulls of a custom object are not pruned yet.
    pub(super) mutated: bool,
}

impl Draft {
    /// Sets the ids in the object, for readers that precede encoding.
    pub(super) fn show_ids(&mut self) {
        if let Some(ids) = self.ids.take() {
            show_ids(&ids, &mut self.object);
        }
    }

    pub(super) fn operation(&self) -> Operation {
        if self.old.is_some() { Operation::Update } else { Operation::Create }
    }
}

impl<'a> WriteOp<'a> {
    /// Looks up decoders and the subresource.
    ///
    /// # Errors
    /// 404 for an unknown subresource.
    pub(super) fn new(
        registry: &'a Registry,
        context: &'a RequestContext,
        target: &'a Target,
        verb: WriteVerb,
        options: &'a WriteOptions,
    ) -> Result<Self, Failure> {
        let served = &target.served;
        let definition = &served.definition;
        let reset = definition.reset(served.version, &target.subresource).ok_or_else(|| {
            Failure::not_found(
                &definition.group_resource(),
                target.name.as_deref().unwrap_or_default(),
            )
        })?;
        let decoder = ObjectDecoder::of(served);
        let projection = registry.projection(target);
        let projected_decoder =
            projection.as_ref().map(|computed| ObjectDecoder::for_computed(target, &**computed));
        Ok(Self {
            registry,
            context,
            target,
            options,
            verb,
            decoder,
            projected_decoder,
            reset,
            projection,
        })
    }

    pub(super) fn definition(&self) -> &'a Definition {
        &self.target.served.definition
    }

    /// Decoder of bodies.
    pub(super) fn body_decoder(&self) -> &ObjectDecoder {
        self.projected_decoder.as_ref().unwrap_or(&self.decoder)
    }

    /// Attributes of the write for admission.
    pub(super) fn attributes<'b>(
        &'b self,
        target: &'b Target,
        operation: Operation,
        old: Option<&'b Document>,
    ) -> Attributes<'b> {
        let options = match self.verb {
            WriteVerb::Create => AdmissionOptions::Create(self.options),
            WriteVerb::Update => AdmissionOptions::Update(self.options),
            WriteVerb::Patch => AdmissionOptions::Patch(self.options),
        };
        Attributes {
            context: self.context,
            target,
            operation,
            old,
            options,
            dry_run: self.options.dry_run,
        }
    }

    /// Whether webhooks of admission match one of the operations.
    pub(super) fn is_remote(&self, operations: &[Operation]) -> bool {
        operations.iter().any(|operation| {
            self.registry.admission().is_remote(&self.attributes(self.target, *operation, None))
        })
    }

    /// Field validation of a body.
    pub(super) fn strictness<'b>(&'b self, body: &'b super::Body) -> Strictness<'b> {
        if body.lenient {
            return Strictness::ignore(self.context);
        }
        Strictness {
            validation: self.options.field_validation.unwrap_or_default(),
            duplicates: &body.duplicates,
            source: &[],
            noted: &body.noted,
            context: self.context,
        }
    }

    /// Field validation of the result of a JSON patch.
    pub(super) fn strictness_of_result<'b>(&'b self, noted: &'b [String]) -> Strictness<'b> {
        let validation: FieldValidation = self.options.field_validation.unwrap_or_default();
        Strictness { validation, duplicates: &[], source: &[], noted, context: self.context }
    }

    /// Field manager of this write.
    pub(super) fn manager(&self, operation: apply::ManagerOperation) -> Manager {
        let given = self.options.field_manager.as_str();
        Manager {
            name: if given.is_empty() {
                from_user_agent(&self.context.user_agent)
            } else {
                given.to_owned()
            },
            operation,
            api_version: self.body_decoder().gvk.api_version(),
            subresource: self.target.subresource.clone(),
            time: rfc3339_seconds(self.context.now),
            ids_are_servers: self.registry.admission().owns_ids(),
            other_versions: (!self.body_decoder().dialect.is_typed())
                .then(|| self.other_versions()),
        }
    }

    fn other_versions(&self) -> Vec<String> {
        let definition = self.definition();
        (0..definition.versions.len())
            .filter(|version| *version != self.target.served.version)
            .map(|version| definition.gvk(version).api_version())
            .collect()
    }

    /// Updates managedFields. An apply has done so.
    pub(super) fn track(&self, old: Option<&Document>, object: &mut Document) {
        apply::track_update(
            &self.body_decoder().schema,
            self.reset,
            old,
            object,
            &self.manager(apply::ManagerOperation::Update),
        );
    }

    /// Brings a custom object into its stored form: no redundant fractions; nulls that passed
    /// validation are pruned from one that was not decoded.
    fn settle(&self, object: &mut Document, is_undecoded: bool) {
        if self.definition().dialect.is_typed() {
            return;
        }
        object.fields_mut().values_mut().for_each(json::round_trip_floats);
        if is_undecoded {
            validate::prune(&self.decoder.schema, object);
        }
    }

    /// Precedes all admission.
    fn check_creatable(&self, target: &Target) -> Result<(), Failure> {
        let why = self.definition().hooks.forbids_create();
        why.map_or(Ok(()), |why| {
            let name = target.name.as_deref().unwrap_or_default();
            Err(Failure::forbidden(&self.definition().group_resource(), name, &why))
        })
    }

    fn change<'b>(&'b self, old: Option<&'b Document>) -> Change<'b> {
        let user = &self.context.user;
        Change {
            old,
            subresource: &self.target.subresource,
            version: &self.decoder.gvk.version,
            user: &user.name,
            user_uid: &user.uid,
            groups: &user.groups,
            user_extra: &user.extra,
            now: self.context.now,
        }
    }

    /// [`Definition::keep_reset`], before managedFields are computed.
    pub(super) fn keep_reset(&self, old: Option<&Document>, object: &mut Document) {
        self.definition().keep_reset(self.target.served.version, &self.change(old), object);
    }

    /// Sets 1 on create; +1 if anything but metadata and status changed, or annotations of a kind
    /// that counts them.
    fn count_generation(&self, old: Option<&Document>, object: &mut Document) {
        if !self.definition().policy.counts_generation {
            return;
        }
        let Some(old) = old else {
            object.set(&["metadata", "generation"], 1);
            return;
        };
        let status_apart = self.target.served.version().reset.has("status");
        let counts = |field: &str| match field {
            "metadata" | "kind" | "apiVersion" => false,
            "status" => !status_apart,
            _ => true,
        };
        let changed = |one: &Document, other: &Document| {
            one.fields()
                .iter()
                .any(|(field, value)| counts(field) && other.fields().get(field) != Some(value))
        };
        if changed(old, object) || changed(object, old) || self.counts_annotations(old, object) {
            let next = meta::generation(old).unwrap_or(0).saturating_add(1);
            object.set(&["metadata", "generation"], next);
        }
    }

    fn counts_annotations(&self, old: &Document, object: &Document) -> bool {
        let path = ["metadata", "annotations"];
        let (before, after) = (old.get(&path), object.get(&path));
        self.definition().policy.counts_annotations
            && self.target.subresource.is_empty()
            && !match self.registry.admission().owns_ids() {
                true => noop::same_annotations(before, after),
                false => before == after,
            }
    }

    fn metadata_rules(&self) -> MetadataRules {
        let policy = &self.definition().policy;
        if self.target.subresource.is_empty() {
            policy.metadata_rules
        } else {
            policy.subresource_metadata_rules
        }
    }

    /// Errors that kube-apiserver reports again for the metadata of an update: labels, annotations
    /// and owners once more, and all of them another time if the kind's own validation includes
    /// metadata.
    fn repeated(&self, found: &[FieldError]) -> Vec<FieldError> {
        let is_changeable = |error: &&FieldError| {
            ["metadata.labels", "metadata.annotations", "metadata.ownerReferences"]
                .iter()
                .any(|field| error.field.starts_with(field))
        };
        let is_change = |error: &&FieldError| is_immutable(error);
        // Domains of finalizers are a rule of the kind, whose first check has found them.
        let of_object = |found: &[FieldError], is_second: bool| -> Vec<FieldError> {
            let is_repeated = |error: &&FieldError| {
                let is_domain = error.field.starts_with("metadata.finalizers[");
                !is_immutable(error) && (is_second || !is_domain)
            };
            found.iter().filter(is_repeated).cloned().collect()
        };
        let twice: Vec<FieldError> = found.iter().filter(is_changeable).cloned().collect();
        let of_kind: Vec<FieldError> = match self.metadata_rules() {
            MetadataRules::Nothing => Vec::new(),
            MetadataRules::Changes => found
                .iter()
                .filter(|error| is_changeable(error) || is_change(error))
                .cloned()
                .collect(),
            MetadataRules::Object => of_object(found, false),
            MetadataRules::ObjectTwice => {
                [of_object(found, false), of_object(found, true)].concat()
            }
            MetadataRules::All => found.iter().chain(&twice).cloned().collect(),
        };
        twice.into_iter().chain(of_kind).collect()
    }

    fn check(&self, change: &Change<'_>, object: &Document) -> Result<(), Failure> {
        let definition = self.definition();
        // Of an object of another kind hardly anything is validated.
        let is_typed = definition.dialect.is_typed();
        let is_kind = is_typed || object.kind() == self.decoder.gvk.kind;
        let mut errors = Vec::new();
        if is_kind || change.old.is_some() {
            errors = meta::check_object(definition, object, self.registry.admission().owns_ids());
        }
        let of_metadata = errors.len();
        if let Some(old) = change.old {
            // Any path segment may be the prefix of a name by the rules of all kinds.
            let prefix = errors.extract_if(.., |error| error.field == "metadata.generateName");
            let mut prefix: Vec<FieldError> = prefix.collect();
            errors.append(&mut meta::check_change(old, object));
            errors.append(&mut if is_kind { self.repeated(&errors) } else { Vec::new() });
            errors.append(&mut meta::check_prefix(object));
            match self.metadata_rules() {
                MetadataRules::Object | MetadataRules::All if is_kind => errors.append(&mut prefix),
                MetadataRules::ObjectTwice if is_kind => {
                    errors.extend(prefix.iter().chain(&prefix).cloned());
                }
                _ => {}
            }
        }
        errors.extend(meta::check_owner_count(change.old, object));
        if !is_kind {
            errors.push(FieldError::invalid(
                "kind",
                object.kind(),
                format!("must be {}", self.decoder.gvk.kind),
            ));
            errors.extend(validate::validate_members(&self.decoder.schema, change.old, object));
        } else if !is_typed {
            let found = match change.old {
                Some(old) if change.subresource == "status" => {
                    validate::validate_status(&self.decoder.schema, old, object)
                }
                old => validate::validate_update(&self.decoder.schema, old, object),
            };
            errors.extend(found);
        }
        match !is_typed && errors.iter().any(|error| blocks_rules(error.reason)) {
            true => {
                errors.append(&mut definition.hooks.validate(change, object));
                errors.extend(definition.hooks.unchecked(change));
            }
            false => errors.append(
                &mut definition
                    .hooks
                    .check(change, object, &mut |warning| self.context.warn(warning)),
            ),
        }
        errors.append(&mut definition.refused(change, object));
        if change.old.is_none() && definition.policy.metadata_last && errors.len() > of_metadata {
            errors.drain(..of_metadata);
        }
        if !errors.is_empty() {
            return Err(invalid_object(&self.target.served, object, &errors));
        }
        meta::warnings(definition, change.old, object)
            .into_iter()
            .for_each(|warning| self.context.warn(warning));
        definition
            .hooks
            .warnings(change, object)
            .into_iter()
            .for_each(|warning| self.context.warn(warning));
        Ok(())
    }

    /// Precondition of an update: 409 for another revision, 500 for a version that is not a number
    /// (as kube-apiserver), 422 if the kind requires one.
    fn check_version(&self, object: &mut Document, head: &Entry) -> Result<(), Failure> {
        let given = match object.meta("resourceVersion") {
            "" => 0,
            text => version_number(text)?,
        };
        let name = self.target.name.as_deref().unwrap_or_default();
        match given {
            0 if self.definition().policy.unconditional_update => {
                object.set(&["metadata", "resourceVersion"], head.revision.0.to_string());
                Ok(())
            }
            0 => {
                let error = FieldError::invalid(
                    "metadata.resourceVersion",
                    0_u64,
                    "must be specified for an update",
                );
                let definition = self.definition();
                Err(Failure::invalid(&definition.group, &definition.plural, name, &[error]))
            }
            given if given == head.revision.0 => Ok(()),
            _ => Err(modified(&self.target.served, name)),
        }
    }

    /// The transaction of a complete draft, or the result if nothing changes.
    pub(super) fn proposal(
        &self,
        key: &Key,
        head: Option<&Arc<Entry>>,
        draft: &Draft,
        effects: Effects,
    ) -> Result<Proposal<Written>, Failure> {
        let created = draft.old.is_none();
        let guard = head.map_or_else(
            || Guard::Absent(key.clone()),
            |head| Guard::At(key.clone(), head.revision),
        );
        let transaction = |write: Write| {
            let mut txn = Txn { guards: vec![guard], writes: vec![write] };
            txn.guards.extend(effects.guards);
            txn.writes.extend(effects.writes);
            txn
        };
        if let Some(old) = &draft.old
            && self.completes_deletion(old, &draft.object)
        {
            let mut last = draft.object.clone();
            if let Some(ids) = &draft.ids {
                show_ids(ids, &mut last);
            }
            let reply = Written { object: Object::Computed(last), created };
            return Ok(match self.options.dry_run {
                true => Proposal::Done(reply),
                false => Proposal::CommitThen {
                    txn: transaction(Write::Delete { key: key.clone(), last: None }),
                    reply,
                },
            });
        }
        let of_storage = draft.stored.as_ref().map(|_| self.target.served.stored());
        let served = of_storage.as_ref().unwrap_or(&self.target.served);
        let stored = draft.stored.as_ref().map_or(&draft.object, |stored| &stored.object);
        if let (Some(old), Some(head)) = (&draft.old, head)
            && self.is_same(old, &draft.object)
            && (draft.applied || self.is_same_stored(head, &draft.object))
            && (self.options.dry_run
                || codec::is_fresh(
                    self.registry.catalog(),
                    served,
                    head,
                    draft.stored.as_ref().map_or(old, |stored| &stored.object),
                ) && self.registry.store().is_fresh(head))
        {
            return Ok(Proposal::Done(Written {
                object: Registry::object(head.clone(), &self.target.served),
                created,
            }));
        }
        let put =
            codec::put(self.registry.catalog(), served, key.clone(), stored, draft.ids.as_ref())?;
        if self.options.dry_run {
            return Ok(Proposal::Done(Written {
                object: Object::Computed(draft.object.clone()),
                created,
            }));
        }
        let reply = if created { written_new } else { written_update };
        Ok(Proposal::Commit { txn: transaction(Write::Put(put)), need: self.need(draft), reply })
    }

    /// Progress of a deletion may use reserved disk space: fewer finalizers, or the status of a
    /// terminating namespace or definition. Nothing else, whatever its writer claims: it could fill
    /// the disk.
    fn need(&self, draft: &Draft) -> Need {
        let Some(old) = draft.old.as_ref().filter(|old| old.is_terminating()) else {
            return Need::Ordinary;
        };
        let definition = self.definition();
        let has_content = match definition.group.as_str() {
            "" => definition.plural == "namespaces",
            group => {
                group == "apiextensions.k8s.io" && definition.plural == "customresourcedefinitions"
            }
        };
        let is_progress =
            has_content && matches!(self.target.subresource.as_str(), "status" | "finalize");
        let is_less_held = meta::finalizers(&draft.object).count() < meta::finalizers(old).count();
        if is_progress || is_less_held { Need::Essential } else { Need::Ordinary }
    }

    fn is_same(&self, old: &Document, object: &Document) -> bool {
        if self.registry.admission().owns_ids() {
            noop::is_same_but_ids(old, object)
        } else {
            noop::is_same(old, object)
        }
    }

    /// Whether a native object in another version also equals the stored one after conversion: that
    /// version may lose information, such as an order. An apply without changes never writes.
    fn is_same_stored(&self, head: &Entry, object: &Document) -> bool {
        let Served { definition, version } = &self.target.served;
        if *version == definition.storage_version || definition.dialect.has_epochs() {
            return true;
        }
        // Another group's definition may own the storage.
        let owner = self.registry.catalog().owner(definition);
        let stored = Served { version: owner.storage_version, definition: owner };
        self.is_same(&codec::view(head, &stored), &codec::to_stored(&self.target.served, object))
    }

    /// Whether an update removes the last finalizer of a terminating object, which deletes it.
    fn completes_deletion(&self, old: &Document, object: &Document) -> bool {
        old.is_terminating()
            && meta::finalizers(object).next().is_none()
            && meta::grace_seconds(old).unwrap_or(0) == 0
            && !self.definition().hooks.has_pending_finalizers(object)
    }
}

impl WriteSteps for WriteOp<'_> {
    type Draft = Draft;
    type Reply = Written;

    fn context(&self) -> &RequestContext {
        self.context
    }

    fn target(&self) -> &Target {
        self.target
    }

    async fn shown(&self, head: &Arc<Entry>) -> Result<Arc<Entry>, Failure> {
        self.registry.entry_in_version(&self.target.served, Arc::clone(head)).await
    }

    fn mutate(&self, draft: &mut Draft) -> Result<(), Failure> {
        if draft.old.is_none() {
            self.check_creatable(&draft.target)?;
        }
        let attributes = self.attributes(&draft.target, draft.operation(), draft.old.as_ref());
        self.registry.admission().mutate(&attributes, &mut draft.object)
    }

    async fn mutate_remote(&self, draft: &mut Draft) -> Result<(), Failure> {
        self.call_mutating_webhooks(draft).await
    }

    /// The name of a create, the precondition of an update, defaults again, ids, system fields,
    /// validation, warnings, the right to create.
    fn complete(&self, draft: &mut Draft, head: Option<&Arc<Entry>>) -> Result<(), Failure> {
        if draft.old.is_none() {
            self.complete_new(draft)?;
        }
        if let Some(head) = head {
            self.check_version(&mut draft.object, head)?;
        }
        let version = self.target.served.version;
        // A custom object that is written through its scale is not decoded.
        if self.projection.is_none() {
            self.definition().set_defaults(version, &mut draft.object);
        }
        meta::dedup_owners(&mut draft.object, meta::DedupPhase::Admitted, self.context);
        meta::ensure_namespace(self.target, &mut draft.object)?;
        let Draft { old, object, .. } = draft;
        if let Some(old) = old {
            meta::keep_system_fields(old, object);
        }
        let change = self.change(old.as_ref());
        give_way();
        self.definition().prepare(version, &change, object);
        meta::normalize(object);
        meta::drop_empty_managed_fields(object);
        self.count_generation(old.as_ref(), object);
        // Only now is it known whether anything changes.
        let attributes = self.attributes(
            &draft.target,
            if old.is_some() { Operation::Update } else { Operation::Create },
            old.as_ref(),
        );
        let ids = self.registry.admission().stamp(&attributes, object);
        give_way();
        self.check(&change, object)?;
        if let (None, Some(forbidden)) = (&old, &self.options.forbid_create) {
            return Err(forbidden.clone());
        }
        self.settle(object, draft.applied || draft.mutated);
        draft.ids = ids;
        if self.options.dry_run {
            draft.show_ids();
        }
        Ok(())
    }

    async fn validate_remote(&self, draft: &mut Draft) -> Result<(), Failure> {
        draft.show_ids();
        let (old, object) = (draft.old.as_ref(), &draft.object);
        let Some(computed) = &self.projection else {
            let attributes = self.attributes(&draft.target, draft.operation(), old);
            return self.registry.admission().validate_remote(attributes, Some(object)).await;
        };
        let shown = |object: &Document| -> Result<Document, Failure> {
            let mut shown = computed.project_written(self.target, object)?;
            shown.set(&["metadata", "resourceVersion"], object.meta("resourceVersion"));
            Ok(shown)
        };
        let (old, object) = (old.map(shown).transpose()?, shown(object)?);
        let attributes = self.attributes(&draft.target, draft.operation(), old.as_ref());
        self.registry.admission().validate_remote(attributes, Some(&object)).await
    }

    /// While the webhook runs, only the object's bytes are in memory of the draft; `old` is parsed
    /// again from `shown`.
    async fn convert(&self, draft: &mut Draft, shown: Option<&Arc<Entry>>) -> Result<(), Failure> {
        let served = &self.target.served;
        let Some(converter) = served.converter() else { return Ok(()) };
        draft.show_ids();
        if served.version == served.definition.storage_version {
            return Ok(());
        }
        let bytes = Bytes::from(json::to_vec(&std::mem::take(&mut draft.object).into_value()));
        draft.old = None;
        draft.stored = Some(self.registry.stored_form(served, converter, bytes.clone()).await?);
        let read = json::read(&bytes).map_err(|error| {
            Failure::internal(format!("an object cannot be read again: {error}"))
        })?;
        draft.object = read.document;
        draft.old = shown.map(|shown| codec::view(shown, served));
        Ok(())
    }

    fn validate(&self, draft: &Draft) -> Result<Effects, Failure> {
        let attributes = self.attributes(&draft.target, draft.operation(), draft.old.as_ref());
        let mut effects = Effects::default();
        self.registry.admission().validate(&attributes, Some(&draft.object), &mut effects)?;
        Ok(effects)
    }

    fn propose(
        &self,
        key: &Key,
        head: Option<&Arc<Entry>>,
        draft: Draft,
        effects: Effects,
    ) -> Result<Proposal<Written>, Failure> {
        self.proposal(key, head, &draft, effects)
    }
}

/// A resourceVersion; 500 if it is not a number, as kube-apiserver.
pub(super) fn version_number(text: &str) -> Result<u64, Failure> {
    go::unsigned(text).ok_or_else(|| Failure::bare(500, go::integer_fault(text, false)))
}

/// Default field manager: the printable start of the User-Agent, up to a slash, truncated.
fn from_user_agent(agent: &str) -> String {
    let first = agent.split('/').next().unwrap_or_default();
    let mut name = String::with_capacity(first.len().min(MAX_MANAGER_BYTES));
    for letter in first.chars().filter(|letter| ferrokube_apimachinery::name::is_printable(*letter))
    {
        if name.len() + letter.len_utf8() > MAX_MANAGER_BYTES {
            break;
        }
        name.push(letter);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Whether a metadata field changed that must not.
fn is_immutable(error: &FieldError) -> bool {
    ["field is immutable", "must not be decremented", "no new finalizers"]
        .iter()
        .any(|why| error.message.contains(why))
}

/// Errors that CEL rules cannot be evaluated with.
fn blocks_rules(reason: FieldReason) -> bool {
    matches!(
        reason,
        FieldReason::NotSupported
            | FieldReason::Required
            | FieldReason::TooLong
            | FieldReason::TooMany
            | FieldReason::TypeInvalid
    )
}

fn written_new(target: &Target, entry: Arc<Entry>) -> Written {
    Written { object: Registry::object(entry, &target.served), created: true }
}

fn written_update(target: &Target, entry: Arc<Entry>) -> Written {
    Written { object: Registry::object(entry, &target.served), created: false }
}
