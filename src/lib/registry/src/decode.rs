//! From a body to an object of the endpoint's kind: type names, JSON types, unknown and repeated fields, defaults.

use crate::catalog::{Served, Virtual};
use crate::context::{FieldValidation, RequestContext, Target};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_schema::{Schema, validate};
use std::sync::Arc;

/// What an endpoint takes: its kind and schema.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The kind of the body.
    pub(crate) gvk: GroupVersionKind,
    /// Its schema.
    pub(crate) schema: Arc<Schema>,
    /// Whether it is a custom resource: its kind must be named, its types are validated instead of decoded.
    pub(crate) custom: bool,
}

/// How an object does not fit its shape.
#[derive(Debug)]
pub(crate) enum Misfit {
    /// Answered so at every place.
    Refused(Failure),
    /// A wrong JSON type, as a sentence.
    Types(String),
    /// Unknown or repeated fields in strict validation, as a sentence.
    Strict(String),
}

impl Shape {
    /// The object itself, in a served version.
    pub(crate) fn of(served: &Served) -> Self {
        let definition = &served.definition;
        Self { gvk: definition.gvk(served.version), schema: served.version().schema.clone(), custom: definition.custom }
    }

    /// What a computed subresource takes (of a computed resource it is the resource's own shape).
    pub(crate) fn of_virtual(target: &Target, behaviour: &dyn Virtual) -> Self {
        let served = &target.served;
        let Some(subresource) = served.definition.subresource(served.version, &target.subresource) else {
            return Self::of(served);
        };
        let anything = || Arc::new(Schema { preserve_unknown: true, ..Schema::default() });
        Self { gvk: subresource.kind.clone(), schema: behaviour.schema().unwrap_or_else(anything), custom: false }
    }

    /// 400, as a typed decoder words it.
    pub(crate) fn bad_request(&self, misfit: Misfit) -> Failure {
        let what = match misfit {
            Misfit::Refused(failure) => return failure,
            Misfit::Types(why) => why,
            Misfit::Strict(why) => format!("strict decoding error: {why}"),
        };
        let GroupVersionKind { version, kind, .. } = &self.gvk;
        Failure::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {what}"))
    }

    /// Makes an object fit: type names are checked and filled in, JSON types checked, unknown fields dropped (with what the client is told of them).
    ///
    /// # Errors
    /// [`Misfit`].
    pub(crate) fn fit(&self, object: Document, strictness: &Strictness<'_>) -> Result<Document, Misfit> {
        let mut object = self.check_type(object).map_err(Misfit::Refused)?;
        object = self.check_types(object)?;
        let unknown = validate::prune(&self.schema, &mut object);
        strictness.judge(&unknown)?;
        Ok(object)
    }

    /// The same for the outcome of an apply, which was never decoded: nothing unknown is told, and in a custom object nulls stay for validation.
    ///
    /// # Errors
    /// [`Misfit`].
    pub(crate) fn fit_applied(&self, object: Document) -> Result<Document, Misfit> {
        let mut object = self.check_type(object).map_err(Misfit::Refused)?;
        object = self.check_types(object)?;
        if !self.custom {
            validate::prune(&self.schema, &mut object);
        }
        Ok(object)
    }

    /// JSON types of everything, or of a custom object's metadata only: the rest of it is validated (422) instead of decoded (400).
    pub(crate) fn check_types(&self, mut object: Document) -> Result<Document, Misfit> {
        if self.custom {
            // Metadata is typed, though leniently; other floats without a fraction are doubles until the object is stored.
            object.get_mut(&["metadata"]).into_iter().for_each(json::round_trip_floats);
            if let (Some(property), Some(metadata)) = (self.schema.properties.get("metadata"), object.get(&["metadata"])) {
                validate::check_types(&property.schema, metadata).map_err(Misfit::Types)?;
            }
            validate::check_embedded(&self.schema, &object).map_err(Misfit::Types)?;
            return Ok(object);
        }
        let value = object.into_value();
        validate::check_types(&self.schema, &value).map_err(Misfit::Types)?;
        Ok(Document::from_value(value).expect("it was an object"))
    }

    fn check_type(&self, mut object: Document) -> Result<Document, Failure> {
        let expected = self.gvk.api_version();
        let [kind, version] = [object.kind(), object.api_version()];
        if self.custom && (kind.is_empty() || version.is_empty()) {
            let missing = if kind.is_empty() { "kind" } else { "apiVersion" };
            return Err(Failure::bad_request(format!("the object provided is unrecognized: {missing} is missing")));
        }
        if !version.is_empty() && version != expected {
            let why = format!("the API version in the data ({version}) does not match the expected API version ({expected})");
            return Err(Failure::bad_request(why));
        }
        if !kind.is_empty() && kind != self.gvk.kind {
            return Err(self.wrong_kind(&object));
        }
        if kind.is_empty() {
            object.set(&["kind"], self.gvk.kind.as_str());
        }
        if object.api_version().is_empty() {
            object.set(&["apiVersion"], expected);
        }
        Ok(object)
    }

    /// Upstream validates the kind of a custom object (422), and decodes that of a native one (400).
    fn wrong_kind(&self, object: &Document) -> Failure {
        let [given, expected] = [object.kind(), self.gvk.kind.as_str()];
        if self.custom {
            let error = FieldError::invalid("kind", given, format!("must be {expected}"));
            return Failure::invalid(&self.gvk.group, given, object.name(), &[error]);
        }
        Failure::bad_request(format!("no kind {given:?} is handled here: the endpoint takes {expected}"))
    }
}

/// What is done about unknown and repeated fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strictness<'a> {
    /// What the client asked for.
    pub(crate) validation: FieldValidation,
    /// Paths of repeated fields.
    pub(crate) duplicates: &'a [String],
    /// Takes the warnings.
    pub(crate) context: &'a RequestContext,
}

impl<'a> Strictness<'a> {
    /// Unknown fields are dropped silently.
    pub(crate) fn ignore(context: &'a RequestContext) -> Self {
        Self { validation: FieldValidation::Ignore, duplicates: &[], context }
    }

    pub(crate) fn judge(&self, unknown: &[String]) -> Result<(), Misfit> {
        if self.validation == FieldValidation::Ignore || (unknown.is_empty() && self.duplicates.is_empty()) {
            return Ok(());
        }
        let duplicates = self.duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        let sentences: Vec<String> = duplicates.chain(unknown.iter().map(|path| format!("unknown field {path:?}"))).collect();
        if self.validation == FieldValidation::Strict {
            return Err(Misfit::Strict(sentences.join(", ")));
        }
        sentences.into_iter().for_each(|sentence| self.context.warn(sentence));
        Ok(())
    }
}
