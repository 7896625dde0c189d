//! Decodes objects changed by mutating webhooks.

use super::write_op::{Draft, WriteOp, WriteVerb};
use crate::catalog::{Catalog, ComputedResource};
use crate::context::{RequestContext, Target};
use crate::decode::{ObjectDecoder, Strictness};
use crate::meta;
use crate::pipeline::Registry;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_schema::validate;

/// Metadata of a new object that the server sets after these webhooks.
const OF_SERVER: [&str; 2] = ["uid", "creationTimestamp"];

impl WriteOp<'_> {
    /// Mutating webhooks. The result must still be of this kind, and of this name unless it is a
    /// create.
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
        if draft.old.is_none() {
            OF_SERVER.iter().for_each(|name| drop(object.remove(&["metadata", name])));
        }
        let changed = self.registry.admission().mutate_remote(attributes, object).await?;
        draft.object = self.registry.decode_mutated(&self.decoder, self.context, changed)?;
        let object = &mut draft.object;
        if field(object, "managedFields") != managed
            && let Some(wrong) = invalid_managed_fields(object)
        {
            restore(object, "managedFields", managed);
            self.context.warn(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: {wrong}"
            ));
        }
        if draft.old.is_none() {
            system.into_iter().for_each(|(name, value)| restore(object, name, value));
            meta::drop_deletion(object);
        }
        if self.verb != WriteVerb::Create {
            return meta::check_name(self.target, object);
        }
        if object.name() != draft.target.name.as_deref().unwrap_or_default() {
            draft.target = Target { name: Some(object.name().to_owned()), ..draft.target.clone() };
        }
        Ok(())
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
        let changed = self.registry.decode_mutated(&self.body_decoder, self.context, changed)?;
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

/// Decodes an object of this target that a mutating step changed.
///
/// # Errors
/// Why it is malformed.
pub fn decode_mutated(
    catalog: &Catalog,
    context: &RequestContext,
    target: &Target,
    object: Document,
) -> Result<Document, String> {
    let decoder = match catalog.computed_at(target) {
        Some(computed) => ObjectDecoder::for_computed(target, &*computed),
        None => ObjectDecoder::of(&target.served),
    };
    decoder
        .decode(object, &Strictness::ignore(context))
        .map_err(|error| error.sentence(&decoder, catalog, "the response"))
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
