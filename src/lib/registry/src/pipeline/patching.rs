//! From a body or patch and the stored object to the object as its client wants it.

use super::job::Job;
use super::{Body, Patch};
use crate::decode::Misfit;
use crate::ids::keep_ids;
use crate::meta;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_apimachinery::patch::{PatchError, json_patch, merge_patch};
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_schema::apply::{self, ApplyError};
use ferrokube_schema::strategic::strategic_merge;
use ferrokube_trace::annotation;

/// What an update brings.
pub(super) enum Input {
    /// The whole object, fitted and defaulted.
    Put(Document),
    /// A change of it.
    Patch(Patch),
}

impl Input {
    pub(super) fn is_apply(&self) -> bool {
        matches!(self, Self::Patch(Patch::Apply(_)))
    }
}

impl Job<'_> {
    /// A whole object from a body: fitted, its name, namespace and metadata in order. 400 when it cannot be.
    pub(super) fn read_body(&self, mut body: Body) -> Result<Document, Failure> {
        let document = std::mem::take(&mut body.document);
        let fitting = self.body_shape.fit(document, &self.strictness(&body));
        let mut object = fitting.map_err(|misfit| self.body_shape.bad_request(misfit))?;
        meta::ensure_namespace(self.target, &mut object)?;
        meta::normalize(&mut object);
        Ok(object)
    }

    /// The object that an update asks for. Without a live one only an apply or a PUT has something to say.
    ///
    /// # Errors
    /// As the client sees it.
    pub(super) fn revise(&self, live: Option<&Document>, input: &Input) -> Result<Document, Failure> {
        let mut object = match input {
            Input::Put(object) => object.clone(),
            Input::Patch(patch) => self.patched(live, patch)?,
        };
        if let Input::Patch(_) = input {
            if live.is_none() && !object.uid().is_empty() {
                let why = format!("uid mismatch: the provided object specified uid {}, and no existing object was found", object.uid());
                return Err(Failure::conflict(&self.definition().group_resource(), object.name(), &why));
            }
            meta::ensure_namespace(self.target, &mut object)?;
            meta::check_name(self.target, &object)?;
            meta::normalize(&mut object);
        }
        Ok(object)
    }

    fn patched(&self, live: Option<&Document>, patch: &Patch) -> Result<Document, Failure> {
        if let Patch::Apply(body) = patch {
            return self.applied(live, body);
        }
        let live = live.ok_or_else(|| Failure::not_found(&self.definition().group_resource(), self.target.name.as_deref().unwrap_or_default()))?;
        let mut object = live.clone();
        let strictness = match patch {
            Patch::Json(operations, duplicates) => {
                let mut value = object.into_value();
                let warnings = json_patch(&mut value, operations).map_err(refused)?;
                warnings.into_iter().for_each(|warning| self.context.warn(warning));
                object = Document::from_value(value).map_err(|_| unprocessable("the patch does not leave an object"))?;
                self.strictness_of_result(duplicates)
            }
            Patch::Merge(body) => {
                let mut value = object.into_value();
                // The patch is borrowed as a value for the while: its fields are cloned only where they are put.
                merge_patch(&mut value, &body.document.clone().into_value());
                object = Document::from_value(value).expect("an object merged with an object is one");
                self.strictness(body)
            }
            Patch::Strategic(body) => {
                // A map that only the server wrote to is taken as absent, which directives tell apart; it is put back afterwards. JSON patches see it:
                // they are computed from what their client read, and adding a key to a map that it saw must not fail.
                if self.registry.admission().owns_ids() && body.document.get(&["metadata", "annotations"]).is_some() {
                    keep_ids(None, &mut object);
                }
                strategic_merge(&self.body_shape.schema, &mut object, &body.document).map_err(refused)?;
                // Upstream merges into a typed object: a kind or version in the patch changes nothing.
                object.set(&["kind"], self.body_shape.gvk.kind.as_str());
                object.set(&["apiVersion"], self.body_shape.gvk.api_version());
                self.strictness(body)
            }
            Patch::Apply(_) => unreachable!("answered above"),
        };
        self.check_version_of_result(&object)?;
        self.body_shape.fit(object, &strictness).map_err(|misfit| self.result_refused(misfit))
    }

    /// A patched custom object is still in its version.
    fn check_version_of_result(&self, object: &Document) -> Result<(), Failure> {
        let shape = &self.body_shape;
        if shape.custom && object.api_version() != shape.gvk.api_version() && !object.api_version().is_empty() {
            let error = FieldError::invalid("apiVersion", object.api_version(), format!("must be {}", shape.gvk.api_version()));
            // Upstream names the group that was given.
            let group = object.api_version().rsplit_once('/').map_or("", |(group, _)| group);
            return Err(Failure::invalid(group, &shape.gvk.kind, object.name(), &[error]));
        }
        Ok(())
    }

    /// A patched object must still be one of the kind: 422 about the patch when not.
    fn result_refused(&self, misfit: Misfit) -> Failure {
        let why = match misfit {
            Misfit::Refused(failure) if self.body_shape.custom => return failure,
            Misfit::Refused(failure) => failure.message,
            Misfit::Types(why) => why,
            Misfit::Strict(why) => format!("strict decoding error: {why}"),
        };
        let error = FieldError::invalid_unshown("patch", why);
        let cause = Cause { reason: FieldReason::Invalid.as_str().to_owned(), message: error.message.clone(), field: error.field };
        let details = Details { causes: vec![cause], ..Details::default() };
        Failure::new(Reason::Invalid, format!(" \"\" is invalid: patch: {}", error.message)).with_details(details)
    }

    fn applied(&self, live: Option<&Document>, body: &Body) -> Result<Document, Failure> {
        let expected = self.body_shape.gvk.api_version();
        let given = body.document.api_version();
        if given != expected {
            let why = format!("incorrect version specified in apply patch. Specified patch version: {given}, expected: {expected}");
            return Err(Failure::bad_request(why));
        }
        if body.document.kind() != self.body_shape.gvk.kind {
            return Err(Failure::bad_request(format!("the applied object is a {:?}, expected: {}", body.document.kind(), self.body_shape.gvk.kind)));
        }
        let applied = if self.registry.admission().owns_ids() { without_server_annotations(&body.document) } else { None };
        let manager = self.manager(apply::Operation::Apply);
        let merged = apply::apply(&self.body_shape.schema, self.reset, live, applied.as_ref().unwrap_or(&body.document), &manager, self.options.force);
        let object = merged.map_err(apply_refused)?;
        // What cannot be applied at all is told first.
        self.strictness(body).judge(&[]).map_err(|misfit| self.body_shape.bad_request(misfit))?;
        self.body_shape.fit_applied(object).map_err(|misfit| self.result_refused(misfit))
    }
}

/// The applied object without the annotations that the server owns; `None` when it has none of them.
fn without_server_annotations(applied: &Document) -> Option<Document> {
    annotation::ALL.iter().any(|key| applied.annotation(key).is_some()).then(|| {
        let mut clean = applied.clone();
        keep_ids(None, &mut clean);
        clean
    })
}

/// 422 without a cause: upstream's answer to a patch that does not apply.
fn unprocessable(why: &str) -> Failure {
    let message = format!("the server rejected our request due to an error in our request: {why}");
    Failure::new(Reason::Invalid, message).with_details(Details::default())
}

fn refused(error: PatchError) -> Failure {
    match error {
        PatchError::Malformed(why) => Failure::bad_request(why),
        PatchError::DoesNotApply(why) => unprocessable(&why),
        // Clients know upstream's 500 for it.
        PatchError::Directive(why) => Failure::bare(500, why),
        PatchError::TooLarge(why) => Failure::new(Reason::RequestEntityTooLarge, why),
    }
}

fn apply_refused(error: ApplyError) -> Failure {
    match error {
        ApplyError::ManagedFieldsGiven => Failure::bad_request("metadata.managedFields must be nil"),
        // Clients know upstream's 500 for it.
        ApplyError::Malformed(why) => Failure::bare(500, why),
        ApplyError::Conflicts(conflicts, count) => conflicting(&conflicts, count),
    }
}

fn conflicting(conflicts: &[(String, String)], count: usize) -> Failure {
    let message = match conflicts {
        [(manager, field)] if count == 1 => format!("Apply failed with 1 conflict: conflict with {manager}: {field}"),
        many => {
            let mut lines: Vec<String> = many.iter().map(|(manager, field)| format!("- {field} (with {manager})")).collect();
            if count > many.len() {
                lines.push(format!("- and {} more", count - many.len()));
            }
            format!("Apply failed with {count} conflicts:\n{}", lines.join("\n"))
        }
    };
    let cause = |(manager, field): &(String, String)| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with {manager}"),
        field: field.clone(),
    };
    let details = Details { causes: conflicts.iter().map(cause).collect(), ..Details::default() };
    Failure::new(Reason::Conflict, message).with_details(details)
}
