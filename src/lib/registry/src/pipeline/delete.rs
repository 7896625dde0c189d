//! DELETE: at once, or marked while finalizers, grace or a namespace's content hold the object.

use super::options::check_delete;
use super::turn::Plan;
use super::{DeleteOptions, Deleted, Object, Registry, key, view};
use crate::admission::{Attributes, Effects, Operation, RequestOptions};
use crate::codec;
use crate::context::{RequestContext, Target};
use crate::failure::modified;
use crate::ids::show_ids;
use crate::meta;
use crate::noop;
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
/// A delete with webhooks starts over so often when the object changed meanwhile.
const REMOTE_ATTEMPTS: usize = 5;

/// What a delete comes to.
#[derive(Debug)]
enum Verdict {
    /// Gone; this last state is shown if it is not the stored one.
    Remove(Option<Document>),
    /// Stored so, and pending.
    Mark(Document),
    /// Its grace period runs already.
    AlreadyPending,
    /// Its own finalizers hold it already.
    Held,
}

/// What is answered when it is written.
type Answer = fn(&Target, Arc<Entry>) -> Deleted;

/// How a graceful deletion goes on.
enum Grace {
    /// The kind knows no grace, or it is over.
    None,
    /// Runs, and is not to be shortened.
    Runs,
    /// Begins now, or is shortened to so many seconds.
    Set(i64),
}

/// One delete on its way.
struct Deletion<'a> {
    registry: &'a Registry,
    context: &'a RequestContext,
    target: &'a Target,
    options: &'a DeleteOptions,
    /// The revision that created the very object that is meant; `None`: whichever has the name.
    created: Option<Revision>,
}

impl Registry {
    /// DELETE of one object.
    ///
    /// # Errors
    /// As the client sees it.
    pub async fn delete(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Deleted, Failure> {
        self.delete_created(context, target, options, None).await
    }

    /// The same of an object that was seen before: one that was made anew under its name since then
    /// is another, and stays.
    pub(super) async fn delete_created(
        &self,
        context: &RequestContext,
        target: &Target,
        options: &DeleteOptions,
        created: Option<Revision>,
    ) -> Result<Deleted, Failure> {
        check_delete(options)?;
        if self.converts(target) {
            // A deletion changes metadata only: it works on the object as it is stored, whether or
            // not anybody can convert it.
            let stored = Target { served: target.served.stored(), ..target.clone() };
            let deleted = self
                .delete_stored(Deletion {
                    registry: self,
                    context,
                    target: &stored,
                    options,
                    created,
                })
                .await?;
            return self.deleted_in_version(&target.served, deleted).await;
        }
        self.delete_stored(Deletion { registry: self, context, target, options, created }).await
    }

    async fn delete_stored(&self, deletion: Deletion<'_>) -> Result<Deleted, Failure> {
        if self.admission().is_remote(&deletion.attributes(None)) {
            return deletion.run_remote().await;
        }
        self.in_turn(deletion.target, None, |key, head| {
            let (head, object) = deletion.before_remote(head)?;
            deletion.after_remote(key, head, object)
        })
        .await
    }
}

impl Deletion<'_> {
    fn definition(&self) -> &Definition {
        &self.target.served.definition
    }

    fn attributes<'b>(&'b self, old: Option<&'b Document>) -> Attributes<'b> {
        let options = RequestOptions::Delete(self.options);
        Attributes {
            context: self.context,
            target: self.target,
            operation: Operation::Delete,
            old,
            options,
            dry_run: self.options.dry_run,
        }
    }

    async fn run_remote(&self) -> Result<Deleted, Failure> {
        let name = self.target.name.as_deref().unwrap_or_default();
        let key = key(self.target, name)?;
        for _ in 0..REMOTE_ATTEMPTS {
            let head = self.registry.settled_head(&key).await?;
            self.registry.leave_if_long(self.target, head.as_ref()).await;
            let (head, object) = self.before_remote(head.as_ref())?;
            self.registry.admission().validate_remote(self.attributes(Some(&object)), None).await?;
            let plan = self.after_remote(&key, head, object)?;
            if let Some(deleted) = self.registry.commit(self.target, plan).await? {
                return Ok(deleted);
            }
        }
        Err(modified(&self.target.served, name))
    }

    /// What precedes webhooks: the stored object, if it exists and meets the preconditions.
    fn before_remote<'b>(
        &self,
        head: Option<&'b Arc<Entry>>,
    ) -> Result<(&'b Arc<Entry>, Document), Failure> {
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
                // Upstream names the kind in this conflict, in the group of its internal type.
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
        Ok((head, object))
    }

    /// What follows webhooks: local validating admission and the transaction.
    fn after_remote(
        &self,
        key: &Key,
        head: &Arc<Entry>,
        object: Document,
    ) -> Result<Plan<Deleted>, Failure> {
        let mut effects = Effects::default();
        self.registry.admission().validate(&self.attributes(Some(&object)), None, &mut effects)?;
        let served = &self.target.served;
        let stored = || Registry::object(head.clone(), served);
        let (write, answer): (Write, Answer) = match self.verdict(&object) {
            Verdict::AlreadyPending => return Ok(Plan::Done(Deleted::AlreadyPending(stored()))),
            Verdict::Held => return Ok(Plan::Done(Deleted::Pending(stored()))),
            Verdict::Mark(mut marked) => {
                let ids = self.stamp(&mut marked);
                if noop::is_same_but_ids(&object, &marked) {
                    return Ok(Plan::Done(Deleted::Pending(stored())));
                }
                if self.options.dry_run {
                    return Ok(Plan::Done(Deleted::Pending(shown(marked, ids))));
                }
                (Write::Put(self.put(key, (&marked, ids.as_ref()))?), pending)
            }
            Verdict::Remove(changed) => {
                let is_plain = changed.is_none();
                let mut last = changed.unwrap_or(object);
                let initial = last.annotation(INITIAL_TRACE_ID).is_some();
                let ids = self.stamp(&mut last);
                if self.options.dry_run {
                    return Ok(Plan::Done(Deleted::Gone(shown(last, ids))));
                }
                // The last state of a plain removal is the stored one with the ids of this request
                // (unless a stored one was dropped as garbage).
                let last = match &ids {
                    None if is_plain => None,
                    Some(ids)
                        if is_plain && last.annotation(INITIAL_TRACE_ID).is_some() == initial =>
                    {
                        match codec::with_ids(served, head, ids) {
                            Some(put) => Some(put),
                            None => Some(self.put(key, (&last, Some(ids)))?),
                        }
                    }
                    ids => Some(self.put(key, (&last, ids.as_ref()))?),
                };
                (Write::Delete { key: key.clone(), last }, gone)
            }
        };
        let mut txn =
            Txn { guards: vec![Guard::At(key.clone(), head.revision)], writes: vec![write] };
        txn.guards.extend(effects.guards);
        txn.writes.extend(effects.writes);
        Ok(Plan::Commit { txn, need: Need::Essential, answer })
    }

    fn stamp(&self, object: &mut Document) -> Option<Ids> {
        self.registry.admission().stamp(&self.attributes(None), object)
    }

    fn put(&self, key: &Key, object: (&Document, Option<&Ids>)) -> Result<Put, Failure> {
        codec::put(self.registry.catalog(), &self.target.served, key.clone(), object)
    }

    fn verdict(&self, object: &Document) -> Verdict {
        let hooks = &self.definition().hooks;
        if hooks.has_pending_finalizers(object) {
            return self.begin_or_hold(object);
        }
        let grace = self.grace(object);
        if matches!(grace, Grace::Runs) {
            return Verdict::AlreadyPending;
        }
        let mut changed = object.clone();
        let wanted = self.propagation(object);
        set_finalizers(&mut changed, wanted);
        let held = meta::finalizers(&changed).next().is_some();
        match grace {
            Grace::Set(seconds) => {
                self.begin_grace(object, &mut changed, seconds);
                if held || seconds > 0 {
                    Verdict::Mark(changed)
                } else {
                    Verdict::Remove(Some(changed))
                }
            }
            _ if held => {
                self.mark(object, &mut changed);
                Verdict::Mark(changed)
            }
            _ => Verdict::Remove(None),
        }
    }

    /// Objects with finalizers of their own (namespaces) are marked once, without a grace period,
    /// and then wait.
    fn begin_or_hold(&self, object: &Document) -> Verdict {
        if object.is_terminating() {
            return Verdict::Held;
        }
        let mut changed = object.clone();
        if !self.definition().policy.mark_keeps_finalizers {
            let kept = |finalizer: &str| meta::finalizers(object).any(|own| own == finalizer);
            // Unlike elsewhere dependents that are not orphaned go first.
            let wanted = match (self.options.orphan_dependents, self.options.propagation.as_deref())
            {
                (Some(orphan), _) => [orphan, !orphan],
                (None, Some(policy)) => [policy == "Orphan", policy == "Foreground"],
                (None, None) => [kept(ORPHAN), kept(FOREGROUND)],
            };
            set_finalizers(&mut changed, wanted);
        }
        meta::mark_deleted(&mut changed, self.context.now, None);
        self.definition().hooks.deletion_begins(&mut changed);
        Verdict::Mark(changed)
    }

    fn grace(&self, object: &Document) -> Grace {
        let asked = self.options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
        let Some(seconds) = self.definition().hooks.grace_seconds(object, asked) else {
            return Grace::None;
        };
        if !object.is_terminating() {
            return Grace::Set(seconds);
        }
        match (meta::grace_seconds(object), asked) {
            // It was marked without a period: nothing is waited for.
            (None, _) => Grace::None,
            (Some(running), Some(asked)) if asked < running => Grace::Set(asked),
            (Some(_), _) => Grace::Runs,
        }
    }

    fn begin_grace(&self, object: &Document, changed: &mut Document, seconds: i64) {
        let first = !object.is_terminating();
        // A shortened period counts from when the deletion was asked.
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
        meta::mark_deleted(changed, ends, Some(seconds));
        if first {
            meta::bump_generation(changed);
            self.definition().hooks.deletion_begins(changed);
        }
    }

    /// Marks an object of a kind without grace that finalizers hold.
    fn mark(&self, object: &Document, changed: &mut Document) {
        let marked_at = parse_rfc3339(object.meta("deletionTimestamp"));
        if marked_at.is_none() {
            meta::bump_generation(changed);
            self.definition().hooks.deletion_begins(changed);
        }
        let at = marked_at.filter(|at| *at <= self.context.now).unwrap_or(self.context.now);
        meta::mark_deleted(changed, at, Some(0));
    }

    /// Whether dependents are orphaned, and whether they go first.
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
                [first == Some(ORPHAN), first == Some(FOREGROUND)]
            }
        }
    }
}

/// Adds or removes the two finalizers of garbage collection: that dependents are orphaned, and that
/// they go first.
fn set_finalizers(object: &mut Document, wanted: [bool; 2]) {
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
        return;
    }
    let list: Vec<Value> = after.into_iter().map(Value::from).collect();
    if list.is_empty() {
        object.remove(&["metadata", "finalizers"]);
    } else {
        object.set(&["metadata", "finalizers"], list);
    }
}

/// What a dry run answers.
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
