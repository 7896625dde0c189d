//! Decodes objects changed by mutating webhooks.

use super::write_op::{Draft, WriteOp, WriteVerb};
use crate::catalog::{Catalog, ComputedResource};
use crate::context::{FieldValidation, RequestContext, Target};
use crate::decode::{ObjectDecoder, Strictness};
use crate::meta;
use crate::pipeline::Registry;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_schema::{Schema, validate};
use std::sync::Arc;

/// Metadata of a new object that the server sets after these webhooks.
const OF_SERVER: [&str; 2] = ["uid", "creationTimestamp"];
const OF_DELETION: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

impl WriteOp<'_> {
    /// Mutating webhooks. Only a create takes another name from them.
    pub(super) async fn call_mutating_webhooks(&self, draft: &mut Draft) -> Result<(), Failure> {
        if let Some(computed) = &self.projection {
            return self.mutate_projected(&**computed, draft).await;
        }
        let attributes = self.attributes(&draft.target, draft.operation(), draft.old.as_ref());
        let mut object = std::mem::take(&mut draft.object);
        if !self.definition().dialect.is_typed() {
            // Webhooks see numbers in their stored form.
            object.fields_mut().values_mut().for_each(json::round_trip_floats);
        }
        let field = |object: &Document, name: &str| object.get(&["metadata", name]).cloned();
        let managed = field(&object, "managedFields");
        let system = OF_SERVER.map(|name| (name, field(&object, name)));
        // An apply or a PUT may create an object that is being deleted: only webhooks may not.
        let deletion = OF_DELETION.map(|name| (name, field(&object, name)));
        if draft.old.is_none() {
            OF_SERVER.iter().for_each(|name| drop(object.remove(&["metadata", name])));
        }
        let changed = self.registry.admission().mutate_remote(attributes, object).await?;
        draft.object = self.read_mutated(changed)?;
        draft.mutated = true;
        let object = &mut draft.object;
        if field(object, "managedFields") != managed
            && let Some(wrong) = invalid_managed_fields(object)
        {
            restore(object, "managedFields", managed);
            self.context.warn(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {wrong}"
            ));
        }
        if draft.old.is_some() {
            // Validation refuses another name.
            return Ok(());
        }
        let own = system.into_iter().chain(deletion);
        own.for_each(|(name, value)| restore(object, name, value));
        if self.verb != WriteVerb::Create {
            return meta::check_name(self.target, object);
        }
        if object.name() != draft.target.name.as_deref().unwrap_or_default() {
            draft.target = Target { name: Some(object.name().to_owned()), ..draft.target.clone() };
        }
        Ok(())
    }

    /// The object that mutating steps left, without unknown fields.
    fn read_mutated(&self, object: Document) -> Result<Document, Failure> {
        if self.definition().dialect.is_typed() {
            return self.registry.decode_mutated(&self.decoder, self.context, object);
        }
        let mut object = self.in_own_version(object)?;
        validate::prune_unknown(&self.decoder.schema, &mut object);
        Ok(object)
    }

    /// Converts a custom object that claims another version, if there is that version, as
    /// kube-apiserver does without a conversion webhook.
    fn in_own_version(&self, mut object: Document) -> Result<Document, Failure> {
        let (own, given) = (self.decoder.gvk.api_version(), object.api_version());
        if given == own {
            return Ok(object);
        }
        let (group, version) = given.split_once('/').unwrap_or(("", given));
        let definition = self.definition();
        if group != definition.group {
            return Err(Failure::bare(
                500,
                format!(
                    "{group}/{version}, Kind={} is unstructured and is not suitable for converting to {own:?}",
                    object.kind()
                ),
            ));
        }
        if definition.versions.iter().all(|known| known.name != version) {
            let why = format!("request to convert CR from an invalid group/version: {given}");
            return Err(Failure::bare(500, why));
        }
        object.set(&["apiVersion"], own);
        Ok(object)
    }

    /// Mutating webhooks of a projection, which is all that they see.
    async fn mutate_projected(
        &self,
        computed: &dyn ComputedResource,
        draft: &mut Draft,
    ) -> Result<(), Failure> {
        let shown = |object: &Document| -> Result<Document, Failure> {
            let mut shown = computed.project_for_update(self.target, object)?;
            shown.set(&["metadata", "resourceVersion"], object.meta("resourceVersion"));
            Ok(shown)
        };
        let old = draft.old.as_ref().map(shown).transpose()?;
        let before = shown(&draft.object)?;
        let attributes = self.attributes(&draft.target, draft.operation(), old.as_ref());
        let changed = self.registry.admission().mutate_remote(attributes, before.clone()).await?;
        if changed == before {
            return Ok(());
        }
        let changed = self.registry.decode_mutated(self.body_decoder(), self.context, changed)?;
        meta::check_name(self.target, &changed)?;
        self.inject(computed, &changed, &mut draft.object)
    }

    /// Writes a projection into an object.
    pub(super) fn inject(
        &self,
        computed: &dyn ComputedResource,
        projection: &Document,
        object: &mut Document,
    ) -> Result<(), Failure> {
        computed.inject(self.target, projection, object)?;
        if !self.definition().dialect.is_typed() {
            // The path may lead to an undeclared field.
            validate::prune(&self.decoder.schema, object);
        }
        Ok(())
    }
}

/// Decodes an object of this target that a mutating step changed. A custom object may still have
/// unknown fields, nulls and another kind.
///
/// # Errors
/// Why it is malformed, or has unknown fields if they are validated strictly.
pub fn decode_mutated(
    catalog: &Catalog,
    context: &RequestContext,
    target: &Target,
    object: Document,
    validation: FieldValidation,
) -> Result<Document, String> {
    let decoder = decoder_at(catalog, target);
    let is_typed = !object.kind().is_empty() && !object.api_version().is_empty();
    let shown = if is_typed { Vec::new() } else { json::document_to_vec(&object) };
    let strictness = Strictness { validation, ..Strictness::ignore(context) };
    decoder
        .decode_mutated(object, &strictness)
        .map_err(|error| error.sentence(&decoder, catalog, &String::from_utf8_lossy(&shown)))
}

/// The schema of the objects of a target: a subresource may have a kind of its own.
pub fn schema_at(catalog: &Catalog, target: &Target) -> Arc<Schema> {
    decoder_at(catalog, target).schema
}

fn decoder_at(catalog: &Catalog, target: &Target) -> ObjectDecoder {
    match catalog.computed_at(target) {
        Some(computed) => ObjectDecoder::for_computed(target, &*computed),
        None => ObjectDecoder::of(&target.served),
    }
}

impl Registry {
    /// Decodes an object changed by webhooks.
    pub(super) fn decode_mutated(
        &self,
        decoder: &ObjectDecoder,
        context: &RequestContext,
        object: Document,
    ) -> Result<Document, Failure> {
        decoder.decode(object, &Strictness::ignore(context)).map_err(|error| {
            let why = error.sentence(decoder, self.catalog(), "the response");
            Failure::internal(format!("a webhook made a malformed object: {why}"))
        })
    }
}

/// Why managedFields are invalid, with kube-apiserver's message.
fn invalid_managed_fields(object: &Document) -> Option<String> {
    object.list(&["metadata", "managedFields"]).iter().find_map(|entry| {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let (operation, form) = (text("operation"), text("fieldsType"));
        let why = match (operation, form) {
            ("Apply" | "Update", "FieldsV1") => {
                let fields = entry.get("fieldsV1").filter(|fields| !fields.is_null());
                return fields.filter(|fields| !fields.is_object()).map(|_| {
                    "failed to convert managed fields from API: fieldsV1 is no object".to_owned()
                });
            }
            ("Apply" | "Update", form) => format!("unsupported `fieldsType` value: {form}"),
            (operation, _) => format!("unsupported operation type: {operation}"),
        };
        Some(format!("failed to convert managed fields from API: {why}"))
    })
}

fn restore(object: &mut Document, field: &str, value: Option<Value>) {
    match value {
        Some(value) if object.get(&["metadata", field]) != Some(&value) => {
            object.set(&["metadata", field], value);
        }
        Some(_) => {}
        None => drop(object.remove(&["metadata", field])),
    }
}
