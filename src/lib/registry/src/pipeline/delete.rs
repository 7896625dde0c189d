//! DELETE: removes an object, or marks it while finalizers, a grace period or a namespace's content
//! remain.

use super::order::WriteSteps;
use super::turn::Proposal;
use super::{Deleted, Object, Registry, view};
use crate::admission::{AdmissionOptions, Attributes, Effects, Operation};
use crate::codec;
use crate::context::{RequestContext, Target};
use crate::ids::show_ids;
use crate::meta;
use crate::noop;
use crate::options::{DeleteOptions, check_delete};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time::parse_rfc3339;
use ferrokube_resource::Definition;
use ferrokube_storage::{Entry, Guard, Key, Need, Put, Revision, Txn, Write};
use ferrokube_trace::annotation::{INITIAL_TRACE_ID, Ids};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// Effect of a delete on the stored object.
#[derive(Debug)]
enum DeleteEffect {
    /// Removed; with the last state to show, if it differs from the stored one.
    Remove(Option<Document>),
    /// Stored in this form until finalizers or the grace period end.
    Mark(Document),
    /// The grace period runs.
    AlreadyPending,
    /// Marked earlier; the kind's own finalizers remain.
    Held,
}

/// Makes the result once the entry is durable.
type MakeReply = fn(&Target, Arc<Entry>) -> Deleted;

/// State of a graceful deletion.
enum GraceState {
    /// The kind has no grace period, or it is over.
    None,
    /// Runs, and the request does not shorten it.
    Runs,
    /// Starts, or is shortened to, this many seconds.
    Set(i64),
}

/// The object to delete.
struct DeletionDraft {
    head: Arc<Entry>,
    object: Document,
}

/// A delete request.
struct Deletion<'a> {
    registry: &'a Registry,
    context: &'a RequestContext,
    target: &'a Target,
    options: &'a DeleteOptions,
    /// Create revision of the object to delete; `None`: whichever has the name.
    created: Option<Revision>,
    /// Whether the request that causes it was admitted instead.
    is_admitted: bool,
}

impl Registry {
    /// DELETE of one object.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn delete(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        warn_of_orphans(context, target, options);
        self.delete_created(context, target, options, None).await
    }

    /// [`Self::delete`] without admission, for the handler of a subresource (`pods/eviction`) whose
    /// own request was admitted. Not for kinds with a conversion webhook.
    ///
    /// # Errors
    /// Every error is a Status for the client.
    pub async fn delete_admitted(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        check_delete(options)?;
        let deletion =
            Deletion { registry: self, context, target, options, created: None, is_admitted: true };
        self.delete_stored(deletion).await
    }

    /// [`Self::delete`] of the object with this create revision only: one recreated under its name
    /// is not deleted.
    pub(super) async fn delete_created(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
        created: Option<Revision>,
    ) -> Result<Deleted, Failure> {
        check_delete(options)?;
        if self.converts(target) {
            // A deletion changes only metadata: it works on the stored version, even if conversion
            // fails.
            let stored = Target { served: target.served.stored(), ..target.clone() };
            let deleted = self
                .delete_stored(Deletion {
                    registry: self,
                    context,
                    target: &stored,
                    options,
                    created,
                    is_admitted: false,
                })
                .await?;
            return self.deleted_in_version(&target.served, deleted).await;
        }
        let deletion =
            Deletion { registry: self, context, target, options, created, is_admitted: false };
        self.delete_stored(deletion).await
    }

    async fn delete_stored(&self, deletion: Deletion<'_>) -> Result<Deleted, Failure> {
        let draft = |head: Option<&Arc<Entry>>| deletion.draft(head);
        if !deletion.is_admitted && self.admission().is_remote(&deletion.attributes(None)) {
            return self.write_outside_turn(&deletion, true, draft).await;
        }
        self.write_in_turn(&deletion, 0, draft).await
    }
}

impl Deletion<'_> {
    fn definition(&self) -> &Definition {
        &self.target.served.definition
    }

    fn attributes<'b>(&'b self, old: Option<&'b Document>) -> Attributes<'b> {
        let options = AdmissionOptions::Delete(self.options);
        Attributes {
            context: self.context,
            target: self.target,
            operation: Operation::Delete,
            old,
            options,
            dry_run: self.options.dry_run,
        }
    }

    /// The stored object, if it exists and meets the preconditions.
    fn draft(&self, head: Option<&Arc<Entry>>) -> Result<DeletionDraft, Failure> {
        let resource = self.definition().group_resource();
        let name = self.target.name.as_deref().unwrap_or_default();
        let is_meant =
            |head: &&Arc<Entry>| self.created.is_none_or(|created| created == head.create_revision);
        let head = head.filter(is_meant).ok_or_else(|| Failure::not_found(&resource, name))?;
        let object = view(head, &self.target.served);
        let differs = |what: &str, asked: &Option<String>, stored: &str| match asked {
            Some(asked) if asked != stored && self.definition().policy.begins_own_deletion => {
                let why = format!(
                    "Precondition failed: {what} in precondition: {asked}, {what} in object meta: {stored}"
                );
                Err(Failure::conflict(&resource, name, &why))
            }
            Some(asked) if asked != stored => {
                // kube-apiserver names the kind here, in the group of its internal type.
                let group =
                    self.definition().policy.invalid_group.unwrap_or(resource.group.as_str());
                let named = GroupResource::new(group, self.definition().kind.as_str());
                let perhaps = if what == "UID" { "deleted and then recreated" } else { "modified" };
                let why = format!(
                    "the {what} in the precondition ({asked}) does not match the {what} in record ({stored}). The object might have been {perhaps}"
                );
                Err(Failure::conflict(&named, name, &why))
            }
            _ => Ok(()),
        };
        differs("UID", &self.options.uid, object.uid())?;
        differs("ResourceVersion", &self.options.resource_version, object.meta("resourceVersion"))?;
        if let Some(why) = self.definition().hooks.forbids_delete(&object) {
            return Err(Failure::forbidden(&resource, name, &why));
        }
        Ok(DeletionDraft { head: Arc::clone(head), object })
    }

    /// The transaction, or the result if nothing changes.
    fn proposal(
        &self,
        key: &Key,
        found: DeletionDraft,
        effects: Effects,
    ) -> Result<Proposal<Deleted>, Failure> {
        let DeletionDraft { head, object } = found;
        let served = &self.target.served;
        let stored = || Registry::object(head.clone(), served);
        let (write, reply): (Write, MakeReply) = match self.effect(&object) {
            DeleteEffect::AlreadyPending => {
                return Ok(Proposal::Done(Deleted::AlreadyPending(stored())));
            }
            DeleteEffect::Held => return Ok(Proposal::Done(Deleted::Pending(stored()))),
            DeleteEffect::Mark(mut marked) => {
                let ids = self.stamp(&mut marked);
                if noop::is_same_but_ids(&object, &marked) {
                    return Ok(Proposal::Done(Deleted::Pending(stored())));
                }
                if self.options.dry_run {
                    return Ok(Proposal::Done(Deleted::Pending(shown(marked, ids))));
                }
                (Write::Put(self.put(key, &marked, ids.as_ref())?), pending)
            }
            DeleteEffect::Remove(changed) => {
                let is_plain = changed.is_none();
                let mut last = changed.unwrap_or(object);
                let initial = last.annotation(INITIAL_TRACE_ID).is_some();
                let ids = self.stamp(&mut last);
                if self.options.dry_run {
                    return Ok(Proposal::Done(Deleted::Gone(shown(last, ids))));
                }
                // The last state of an unchanged object is the stored one with the ids of this
                // request, unless a malformed stored id was dropped.
                let last = match &ids {
                    None if is_plain => None,
                    Some(ids)
                        if is_plain && last.annotation(INITIAL_TRACE_ID).is_some() == initial =>
                    {
                        match codec::with_ids(served, &head, ids) {
                            Some(put) => Some(put),
                            None => Some(self.put(key, &last, Some(ids))?),
                        }
                    }
                    ids => Some(self.put(key, &last, ids.as_ref())?),
                };
                (Write::Delete { key: key.clone(), last }, gone)
            }
        };
        let mut txn =
            Txn { guards: vec![Guard::At(key.clone(), head.revision)], writes: vec![write] };
        txn.guards.extend(effects.guards);
        txn.writes.extend(effects.writes);
        Ok(Proposal::Commit { txn, need: Need::Essential, reply })
    }

    fn stamp(&self, object: &mut Document) -> Option<Ids> {
        self.registry.admission().stamp(&self.attributes(None), object)
    }

    fn put(&self, key: &Key, object: &Document, ids: Option<&Ids>) -> Result<Put, Failure> {
        codec::put(self.registry.catalog(), &self.target.served, key.clone(), object, ids)
    }

    fn effect(&self, object: &Document) -> DeleteEffect {
        let hooks = &self.definition().hooks;
        if hooks.has_pending_finalizers(object) {
            return self.begin_or_hold(object);
        }
        let grace = self.grace(object);
        if matches!(grace, GraceState::Runs) {
            return DeleteEffect::AlreadyPending;
        }
        let mut changed = object.clone();
        let wanted = self.propagation(object);
        set_finalizers(&mut changed, wanted);
        let held = meta::finalizers(&changed).next().is_some();
        match grace {
            GraceState::Set(seconds) => {
                self.begin_grace(object, &mut changed, seconds);
                if held || seconds > 0 {
                    DeleteEffect::Mark(changed)
                } else {
                    DeleteEffect::Remove(Some(changed))
                }
            }
            _ if held => {
                self.mark(object, &mut changed);
                DeleteEffect::Mark(changed)
            }
            _ => DeleteEffect::Remove(None),
        }
    }

    /// Objects with finalizers of their own (namespaces) are marked once, without a grace period,
    /// then wait.
    fn begin_or_hold(&self, object: &Document) -> DeleteEffect {
        if object.is_terminating() {
            return DeleteEffect::Held;
        }
        let mut changed = object.clone();
        if !self.definition().policy.mark_keeps_finalizers {
            let kept = |finalizer: &str| meta::finalizers(object).any(|own| own == finalizer);
            // Unlike for other kinds, `orphanDependents: false` means foreground.
            let wanted = match (self.options.orphan_dependents, self.options.propagation.as_deref())
            {
                (Some(orphan), _) => [orphan, !orphan],
                (None, Some(policy)) => [policy == "Orphan", policy == "Foreground"],
                (None, None) => [kept(ORPHAN), kept(FOREGROUND)],
            };
            if set_finalizers(&mut changed, wanted) {
                drop_repeated_finalizers(&mut changed);
            }
        }
        meta::mark_deleted(&mut changed, self.context.now, None);
        self.definition().hooks.deletion_begins(&mut changed);
        DeleteEffect::Mark(changed)
    }

    fn grace(&self, object: &Document) -> GraceState {
        let asked = self.options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
        let Some(seconds) = self.definition().hooks.grace_seconds(object, asked) else {
            return GraceState::None;
        };
        if !object.is_terminating() {
            return GraceState::Set(seconds);
        }
        match (meta::grace_seconds(object), asked) {
            // Marked without a period: nothing to wait for.
            (None, _) => GraceState::None,
            (Some(running), Some(asked)) if asked < running => GraceState::Set(asked),
            (Some(_), _) => GraceState::Runs,
        }
    }

    fn begin_grace(&self, object: &Document, changed: &mut Document, seconds: i64) {
        let first = !object.is_terminating();
        // A shortened period starts when the deletion was requested.
        let asked_at = parse_rfc3339(object.meta("deletionTimestamp"))
            .and_then(|at| {
                at.checked_sub(Duration::from_secs(
                    meta::grace_seconds(object).unwrap_or(0).unsigned_abs(),
                ))
            })
            .filter(|_| !first)
            .unwrap_or(self.context.now);
        let ends =
            asked_at.checked_add(Duration::from_secs(seconds.unsigned_abs())).unwrap_or(asked_at);
        // What is over by now ends now, but who stops the object still has the shortest period.
        let (ends, seconds) = match !first && ends < self.context.now {
            true => (self.context.now, seconds.min(1)),
            false => (ends, seconds),
        };
        meta::mark_deleted(changed, ends, Some(seconds));
        if first {
            meta::bump_generation(changed);
            self.definition().hooks.deletion_begins(changed);
        }
    }

    /// Marks an object without a grace period that has finalizers.
    fn mark(&self, object: &Document, changed: &mut Document) {
        let marked_at = parse_rfc3339(object.meta("deletionTimestamp"));
        if marked_at.is_none() {
            meta::bump_generation(changed);
            self.definition().hooks.deletion_begins(changed);
        }
        let at = marked_at.filter(|at| *at <= self.context.now).unwrap_or(self.context.now);
        meta::mark_deleted(changed, at, Some(0));
    }

    /// Whether to set the finalizers [`ORPHAN`] and [`FOREGROUND`].
    fn propagation(&self, object: &Document) -> [bool; 2] {
        if !self.definition().policy.garbage_collected {
            return [false, false];
        }
        match (self.options.orphan_dependents, self.options.propagation.as_deref()) {
            (Some(orphan), _) => [orphan, false],
            (None, Some(policy)) => [policy == "Orphan", policy == "Foreground"],
            (None, None) => {
                let first = meta::finalizers(object)
                    .find(|finalizer| [ORPHAN, FOREGROUND].contains(finalizer));
                let orphans = first.is_none() && self.definition().policy.orphans_by_default;
                [first == Some(ORPHAN) || orphans, first == Some(FOREGROUND)]
            }
        }
    }
}

impl WriteSteps for Deletion<'_> {
    type Draft = DeletionDraft;
    type Reply = Deleted;

    fn context(&self) -> &RequestContext {
        self.context
    }

    fn target(&self) -> &Target {
        self.target
    }

    /// A deletion changes only metadata: it works on the stored version.
    async fn shown(&self, head: &Arc<Entry>) -> Result<Arc<Entry>, Failure> {
        Ok(Arc::clone(head))
    }

    /// A deletion has no body to mutate.
    fn mutate(&self, _draft: &mut DeletionDraft) -> Result<(), Failure> {
        Ok(())
    }

    async fn mutate_remote(&self, _draft: &mut DeletionDraft) -> Result<(), Failure> {
        Ok(())
    }

    fn complete(
        &self,
        _draft: &mut DeletionDraft,
        _head: Option<&Arc<Entry>>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    async fn validate_remote(&self, draft: &mut DeletionDraft) -> Result<(), Failure> {
        let attributes = self.attributes(Some(&draft.object));
        self.registry.admission().validate_remote(attributes, None).await
    }

    async fn convert(
        &self,
        _draft: &mut DeletionDraft,
        _shown: Option<&Arc<Entry>>,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn validate(&self, draft: &DeletionDraft) -> Result<Effects, Failure> {
        let mut effects = Effects::default();
        if !self.is_admitted {
            let attributes = self.attributes(Some(&draft.object));
            self.registry.admission().validate(&attributes, None, &mut effects)?;
        }
        Ok(effects)
    }

    fn propose(
        &self,
        key: &Key,
        _head: Option<&Arc<Entry>>,
        draft: DeletionDraft,
        effects: Effects,
    ) -> Result<Proposal<Deleted>, Failure> {
        self.proposal(key, draft, effects)
    }
}

/// Warns of a delete whose dependents become orphans only because it does not say otherwise.
pub(super) fn warn_of_orphans(context: &RequestContext, target: &Target, options: &DeleteOptions) {
    let warning = target.served.definition.policy.orphan_warning;
    if !warning.is_empty() && options.propagation.is_none() && options.orphan_dependents.is_none() {
        context.warn(warning);
    }
}

/// Sets or removes the finalizers [`ORPHAN`] and [`FOREGROUND`]; returns whether that is a change.
fn set_finalizers(object: &mut Document, wanted: [bool; 2]) -> bool {
    let of_collection = [ORPHAN, FOREGROUND];
    let before: Vec<&str> = meta::finalizers(object).collect();
    let added = of_collection.into_iter().zip(wanted).filter(|(_, wanted)| *wanted);
    let after: Vec<&str> = before
        .iter()
        .copied()
        .filter(|finalizer| !of_collection.contains(finalizer))
        .chain(added.map(|(finalizer, _)| finalizer))
        .collect();
    let is_same = BTreeSet::from_iter(&after) == BTreeSet::from_iter(&before);
    if is_same {
        return false;
    }
    let list: Vec<Value> = after.into_iter().map(Value::from).collect();
    if list.is_empty() {
        object.remove(&["metadata", "finalizers"]);
    } else {
        object.set(&["metadata", "finalizers"], list);
    }
    true
}

/// The delete of a namespace that changes its finalizers makes them a set.
fn drop_repeated_finalizers(object: &mut Document) {
    let mut seen = BTreeSet::new();
    let kept: Vec<Value> =
        meta::finalizers(object).filter(|own| seen.insert(*own)).map(Value::from).collect();
    if !kept.is_empty() {
        object.set(&["metadata", "finalizers"], kept);
    }
}

/// Object of a dry run, with its ids.
fn shown(mut object: Document, ids: Option<Ids>) -> Object {
    if let Some(ids) = ids {
        show_ids(&ids, &mut object);
    }
    Object::Computed(object)
}

fn pending(target: &Target, entry: Arc<Entry>) -> Deleted {
    Deleted::Pending(Registry::object(entry, &target.served))
}

fn gone(target: &Target, entry: Arc<Entry>) -> Deleted {
    Deleted::Gone(Registry::object(entry, &target.served))
}
