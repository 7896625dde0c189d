//! Computes the requested object from a body or patch and the stored object.

use super::write_op::WriteOp;
use super::{Body, Patch};
use crate::codec;
use crate::decode::{ObjectError, Strictness};
use crate::ids::keep_ids;
use crate::meta;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::patch::{PatchError, json_patch, merge_patch};
use ferrokube_apimachinery::status::{Cause, Details, Failure, Reason};
use ferrokube_apimachinery::{go, json};
use ferrokube_schema::apply::{self, ApplyError};
use ferrokube_schema::strategic::strategic_merge;
use ferrokube_trace::annotation;

pub(super) enum UpdateInput {
    /// PUT: the whole object, decoded and defaulted.
    Put(Document),
    Patch(Patch),
}

impl UpdateInput {
    pub(super) fn is_apply(&self) -> bool {
        matches!(self, Self::Patch(Patch::Apply(_)))
    }
}

impl WriteOp<'_> {
    /// Decodes the body of a POST or PUT: 400 if it does not fit the kind or the target.
    pub(super) fn read_body(&self, mut body: Body) -> Result<Document, Failure> {
        let document = std::mem::take(&mut body.document);
        let strictness = Strictness { source: body.ordered(), ..self.strictness(&body) };
        let decoded = self.body_decoder().decode(document, &strictness);
        let mut object = decoded.map_err(|error| {
            self.body_decoder().bad_request(error, &body, self.registry.catalog())
        })?;
        meta::ensure_namespace(self.target, &mut object)?;
        meta::normalize(&mut object);
        codec::refuse_expensive(&object)?;
        Ok(object)
    }

    /// The requested object. `live` is required for every patch but apply.
    pub(super) fn revise(
        &self,
        live: Option<&Document>,
        input: &UpdateInput,
    ) -> Result<Document, Failure> {
        let mut object = match input {
            UpdateInput::Put(object) => object.clone(),
            UpdateInput::Patch(patch) => self.patched(live, patch)?,
        };
        if let UpdateInput::Patch(_) = input {
            if live.is_none() && !object.uid().is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    object.uid()
                );
                return Err(Failure::conflict(
                    &self.definition().group_resource(),
                    self.target.name.as_deref().unwrap_or_default(),
                    &why,
                ));
            }
            meta::ensure_namespace(self.target, &mut object)?;
            meta::check_name(self.target, &object)?;
            meta::normalize(&mut object);
            codec::refuse_expensive(&object)?;
        }
        Ok(object)
    }

    fn check_names(&self, mut object: Document) -> Result<(), Failure> {
        meta::ensure_namespace(self.target, &mut object)?;
        meta::check_name(self.target, &object)
    }

    fn patched(&self, live: Option<&Document>, patch: &Patch) -> Result<Document, Failure> {
        if let Patch::Apply(body) = patch {
            return self.applied(live, body);
        }
        let live = live.ok_or_else(|| {
            Failure::not_found(
                &self.definition().group_resource(),
                self.target.name.as_deref().unwrap_or_default(),
            )
        })?;
        let (value, strictness) = self.changed(live, patch)?;
        let mut object = match Document::from_value(value) {
            Ok(object) => object,
            Err(value) => return Err(no_object(&value)),
        };
        if !self.body_decoder().dialect.is_typed() && self.target.subresource == "status" {
            self.keep_type(&mut object);
        }
        self.check_version_of_result(live, &object)?;
        let unversioned = object.api_version().is_empty().then(|| object.clone());
        let decoded = match patch {
            Patch::Json(..) | Patch::Merge(_)
                if self.body_decoder().dialect.is_typed()
                    && is_versionless(&object, &self.body_decoder().gvk) =>
            {
                let unknown: Vec<String> = object
                    .fields()
                    .keys()
                    .filter(|field| !matches!(field.as_str(), "kind" | "apiVersion"))
                    .map(|field| field.to_string())
                    .collect();
                strictness
                    .enforce(&unknown, None)
                    .and_then(|()| Err(ObjectError::Refused(meta::nameless(self.target))))
            }
            Patch::Strategic(_) => self.body_decoder().decode_merged(object, &strictness),
            _ if self.body_decoder().dialect.is_typed() && object.api_version().is_empty() => self
                .body_decoder()
                .decode(object, &strictness)
                .map_err(ObjectError::without_version),
            _ => self.body_decoder().decode(object, &strictness),
        };
        decoded.map_err(|error| match error {
            ObjectError::Refused(failure) => failure,
            ObjectError::NoVersion => {
                // kube-apiserver checks the names first.
                let why = error.sentence(self.body_decoder(), self.registry.catalog(), "");
                let misnamed = unversioned.and_then(|object| self.check_names(object).err());
                misnamed.unwrap_or_else(|| Failure::internal(why))
            }
            error => self.result_refused(error, live, patch),
        })
    }

    /// Applies a patch other than apply; the result need not be an object of the kind. Patches see
    /// the trace ids among the annotations, as in the GET that clients compute patches from.
    /// [`keep_ids`] restores them afterwards.
    fn changed<'b>(
        &'b self,
        live: &Document,
        patch: &'b Patch,
    ) -> Result<(Value, Strictness<'b>), Failure> {
        let mut object = live.clone();
        Ok(match patch {
            Patch::Json(operations, noted) => {
                let mut value = object.into_value();
                let warnings = json_patch(&mut value, operations).map_err(refused)?;
                warnings.into_iter().for_each(|warning| self.context.warn(warning));
                (value, self.strictness_of_result(noted))
            }
            Patch::Merge(body) => {
                let mut value = object.into_value();
                // Converted to a value only for the merge, which clones the fields that it inserts.
                merge_patch(&mut value, &body.document.clone().into_value());
                (value, self.strictness(body))
            }
            Patch::Strategic(body) => {
                // `$retainKeys` applies to the user's annotations.
                if self.registry.admission().owns_ids()
                    && body.document.get(&["metadata", "annotations", "$retainKeys"]).is_some()
                {
                    keep_ids(None, &mut object);
                }
                strategic_merge(&self.body_decoder().schema, &mut object, &body.document)
                    .map_err(refused)?;
                (object.into_value(), self.strictness(body))
            }
            Patch::Unreadable(failure) => return Err(failure.clone()),
            Patch::Apply(_) => unreachable!("answered before"),
        })
    }

    /// A patch of a custom object's status may set kind and apiVersion, without effect.
    fn keep_type(&self, object: &mut Document) {
        let own = [
            ("kind", self.body_decoder().gvk.kind.clone()),
            ("apiVersion", self.body_decoder().gvk.api_version()),
        ];
        for (field, own) in own {
            if object
                .get(&[field])
                .and_then(Value::as_str)
                .is_some_and(|given| !given.is_empty() && given != own)
            {
                object.set(&[field], own);
            }
        }
    }

    /// A patch must not change the version of a custom object.
    fn check_version_of_result(&self, live: &Document, object: &Document) -> Result<(), Failure> {
        let decoder = self.body_decoder();
        let (given, is_read) = (
            object.api_version(),
            !object.kind().is_empty() && object.api_version().matches('/').count() < 2,
        );
        if !decoder.dialect.is_typed()
            && is_read
            && given != decoder.gvk.api_version()
            && !given.is_empty()
        {
            let mut kept = object.clone();
            meta::keep_system_fields(live, &mut kept);
            let mut errors = meta::check_change(live, &kept);
            errors.push(FieldError::invalid(
                "apiVersion",
                object.api_version(),
                format!("must be {}", decoder.gvk.api_version()),
            ));
            // kube-apiserver names the given group.
            let group = object.api_version().rsplit_once('/').map_or("", |(group, _)| group);
            return Err(Failure::invalid(group, &decoder.gvk.kind, object.name(), &errors));
        }
        Ok(())
    }

    /// 422 on the patch if its result is not of the kind. Quotes the result; for a strategic patch,
    /// the patch.
    fn result_refused(&self, error: ObjectError, live: &Document, patch: &Patch) -> Failure {
        let shown = match patch {
            Patch::Strategic(body) => {
                let mut patch = body.document.clone();
                strip_new(patch.fields_mut(), live.fields());
                go::dump(&patch.into_value())
            }
            _ => {
                let value = self.changed(live, patch).map(|(value, _)| value).unwrap_or_default();
                let object = Document::from_value(value).unwrap_or_default();
                String::from_utf8_lossy(&json::to_vec(&object.into_value())).into_owned()
            }
        };
        let why = error.sentence(self.body_decoder(), self.registry.catalog(), &shown);
        patch_refused(&shown, &why)
    }

    /// The live object as apply errors name it.
    fn shown_live(&self, body: &Body) -> String {
        let (namespace, name) = (
            self.target.namespace.as_deref().unwrap_or_default(),
            self.target.name.as_deref().unwrap_or_default(),
        );
        format!(
            "{namespace}/{name}; {}",
            shown_gvk(body.document.api_version(), body.document.kind())
        )
    }

    fn applied(&self, live: Option<&Document>, body: &Body) -> Result<Document, Failure> {
        let (kind, given) = (body.document.kind(), body.document.api_version());
        if given != self.body_decoder().gvk.api_version() || kind != self.body_decoder().gvk.kind {
            return Err(Failure::bad_request(format!(
                "invalid object type: {}",
                shown_gvk(given, kind)
            )));
        }
        codec::refuse_expensive(&body.document)?;
        let applied = if self.registry.admission().owns_ids() {
            without_server_annotations(&body.document)
        } else {
            None
        };
        let manager = self.manager(apply::ManagerOperation::Apply);
        let merged = apply::apply(
            &self.body_decoder().schema,
            self.reset,
            live,
            applied.as_ref().unwrap_or(&body.document),
            &manager,
            self.options.force,
        );
        let object = merged.map_err(|error| match error {
            ApplyError::ManagedFieldsGiven => Failure::bad_request("metadata.managedFields must be nil"),
            // kube-apiserver answers 500 for both.
            ApplyError::Malformed(why) => Failure::bare(500, format!("failed to create typed patch object ({}): {why}", shown_applied(body))),
            ApplyError::Untracked(why) => Failure::bare(
                500,
                format!("failed to create manager for existing fields: failed to convert new object ({}) to smd typed: {why}", self.shown_live(body)),
            ),
            ApplyError::Conflicts(conflicts, count) => conflicting(&conflicts, count),
        })?;
        let mut object = object;
        if !self.body_decoder().dialect.is_typed() {
            // Owned by the server: apply ignores the given value.
            match live.and_then(|live| live.get(&["metadata", "creationTimestamp"])) {
                Some(stored) => object.set(&["metadata", "creationTimestamp"], stored.clone()),
                None => _ = object.remove(&["metadata", "creationTimestamp"]),
            }
            meta::drop_unreadable(&mut object);
        }
        let object = self.body_decoder().decode_applied(object).map_err(|error| match error {
            ObjectError::Refused(failure) => failure,
            error => inconvertible(
                body,
                &error.sentence(self.body_decoder(), self.registry.catalog(), ""),
            ),
        })?;
        // Errors of the apply take precedence over strict field validation.
        self.strictness(body).enforce(&[], None).map_err(|error| match error {
            ObjectError::Strict(why) if !body.noted.is_empty() => Failure::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {why}"
            )),
            error => self.body_decoder().bad_request(error, body, self.registry.catalog()),
        })?;
        Ok(object)
    }
}

/// Whether a patch removed the version of a native object. kube-apiserver then decodes it into the
/// internal type, which has none of its fields, not even a name.
fn is_versionless(object: &Document, own: &GroupVersionKind) -> bool {
    let text = |field: &str| match object.get(&[field]) {
        None | Some(Value::Null) => Some(""),
        Some(value) => value.as_str(),
    };
    let group_is_own = |version: &str| {
        version.is_empty() || version.strip_suffix('/').is_some_and(|group| group == own.group)
    };
    text("apiVersion").is_some_and(group_is_own)
        && text("kind").is_some_and(|kind| kind.is_empty() || kind == own.kind)
}

/// kube-apiserver's strategic merge modifies the patch, which its error quotes: removed are nulls
/// and maps with a directive below added fields, `replace` directives, `$setElementOrder` with its
/// list, and `$retainKeys`.
fn strip_new(patch: &mut Map, live: &Map) {
    const ORDER: &str = "$setElementOrder/";
    if patch.get("$patch").and_then(Value::as_str) == Some("replace") {
        patch.remove("$patch");
        return;
    }
    patch.remove("$retainKeys");
    let ordered: Vec<String> =
        patch.keys().filter_map(|name| name.strip_prefix(ORDER).map(str::to_owned)).collect();
    for name in ordered {
        patch.remove(&format!("{ORDER}{name}"));
        patch.remove(&name);
    }
    for (name, value) in patch.iter_mut() {
        match (value, live.get(name)) {
            (Value::Object(patch), Some(Value::Object(live))) => strip_new(patch, live),
            (Value::Array(_), Some(Value::Array(_))) => {}
            (value, _) => strip_added(value),
        }
    }
}

fn strip_added(value: &mut Value) {
    let has_directive = |value: &Value| value.get("$patch").is_some();
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip_added);
            if !map.contains_key("$patch") {
                map.retain(|_, value| !has_directive(value));
                for list in map.values_mut().filter_map(Value::as_array_mut) {
                    list.as_vec().retain(|item| !has_directive(item));
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(strip_added),
        _ => {}
    }
}

/// A copy without the server's trace annotations; `None` if it has none.
fn without_server_annotations(applied: &Document) -> Option<Document> {
    annotation::ALL.iter().any(|key| applied.annotation(key).is_some()).then(|| {
        let mut clean = applied.clone();
        keep_ids(None, &mut clean);
        clean
    })
}

/// 422 on a patch whose result is not a JSON object.
pub fn no_object(value: &Value) -> Failure {
    let why = format!(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type {}",
        json::type_name(value),
        go::TYPE_META
    );
    patch_refused(&String::from_utf8_lossy(&json::to_vec(value)), &why)
}

/// 422 on a patch; names no object.
fn patch_refused(shown: &str, why: &str) -> Failure {
    let error = FieldError::invalid("patch", shown, why);
    let cause = Cause {
        reason: FieldReason::Invalid.as_str().to_owned(),
        message: error.message.clone(),
        field: error.field,
    };
    let details = Details { causes: vec![cause], ..Details::default() };
    Failure::new(Reason::Invalid, format!(" \"\" is invalid: patch: {}", error.message))
        .with_details(details)
}

/// 422 without causes: kube-apiserver's response to a patch that does not apply.
fn unprocessable() -> Failure {
    Failure::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(Details::default())
}

fn refused(error: PatchError) -> Failure {
    match error {
        PatchError::Malformed(why) => Failure::bad_request(why),
        PatchError::DoesNotApply(_) | PatchError::TestFailed(_) => unprocessable(),
        // kube-apiserver answers 500.
        PatchError::Directive(why) => Failure::bare(500, why),
        PatchError::TooLarge(why) => {
            Failure::new(Reason::RequestEntityTooLarge, format!("Request entity too large: {why}"))
        }
    }
}

/// Group, version and kind as Go formats them. An apiVersion with more than one slash formats as
/// empty.
fn shown_gvk(api_version: &str, kind: &str) -> String {
    match api_version.split_once('/') {
        Some((_, version)) if version.contains('/') => "/, Kind=".to_owned(),
        Some((group, version)) => format!("{group}/{version}, Kind={kind}"),
        None => format!("/{api_version}, Kind={kind}"),
    }
}

/// The applied object as errors name it.
fn shown_applied(body: &Body) -> String {
    let object = &body.document;
    format!(
        "{}/{}; {}",
        object.meta("namespace"),
        object.name(),
        shown_gvk(object.api_version(), object.kind())
    )
}

fn inconvertible(body: &Body, why: &str) -> Failure {
    let (whole, kind) =
        (shown_applied(body), shown_gvk(body.document.api_version(), body.document.kind()));
    Failure::bare(
        500,
        format!(
            "failed to convert new object ({whole}) to proper version: unable to convert unstructured object to {kind}: {why}"
        ),
    )
}

fn conflicting(conflicts: &[(String, String)], count: usize) -> Failure {
    let message = match conflicts {
        [(manager, field)] if count == 1 => {
            format!("Apply failed with 1 conflict: conflict with {manager}: {field}")
        }
        many => {
            let mut managers: Vec<&str> =
                many.iter().map(|(manager, _)| manager.as_str()).collect();
            managers.sort_unstable();
            managers.dedup();
            let mut lines = Vec::new();
            for manager in managers {
                lines.push(format!("conflicts with {manager}:"));
                lines.extend(
                    many.iter()
                        .filter(|(other, _)| other == manager)
                        .map(|(_, field)| format!("- {field}")),
                );
            }
            if count > many.len() {
                lines.push(format!("- and {} more", count - many.len()));
            }
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
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
