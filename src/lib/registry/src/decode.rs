//! Decodes bodies into objects of the endpoint's kind: type names, JSON types, unknown and
//! duplicate fields.

use crate::catalog::{Catalog, ComputedResource, Served};
use crate::context::{FieldValidation, RequestContext, Target};
use crate::pipeline::Body;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_resource::{Definition, Dialect};
use ferrokube_schema::{Schema, validate};
use std::sync::Arc;

/// Decoder of the kind that an endpoint accepts.
#[derive(Clone, Debug)]
pub(crate) struct ObjectDecoder {
    pub(crate) gvk: GroupVersionKind,
    pub(crate) schema: Arc<Schema>,
    pub(crate) dialect: Dialect,
    /// [`Policy::conversion_error`](ferrokube_resource::Policy::conversion_error) of the kind.
    pub(crate) conversion_error: Option<fn(&Document) -> Option<String>>,
}

/// Why an object cannot be decoded.
#[derive(Debug)]
pub(crate) enum ObjectError {
    /// Fails with this error wherever it occurs.
    Refused(Failure),
    /// Kind and apiVersion cannot be read.
    Untyped(String),
    /// A custom object without a kind; if field validation is `Ignore`, with the kind and version
    /// it was taken for.
    NoKind(Option<(String, String)>),
    /// A custom object without an apiVersion.
    NoVersion,
    /// An object of another kind.
    Foreign(GroupVersionKind),
    /// A wrong JSON type, as a sentence.
    Types(String),
    /// Unknown or duplicate fields in strict validation, as a sentence.
    Strict(String),
    /// The inner error, in an object that claims this kind and version.
    Claimed(String, String, Box<ObjectError>),
}

/// Locations of kube-apiserver's schemes, which its errors contain.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";
const AGGREGATOR_SCHEME: &str = "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28";
const EXTENSIONS_SCHEME: &str = "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55";

/// The version behind all versions of a native kind; no client names it.
const INTERNAL: &str = "__internal";

/// kube-apiserver consists of three servers, each of which knows its own kinds.
fn scheme_of(group: &str) -> &'static str {
    match group {
        "apiextensions.k8s.io" => EXTENSIONS_SCHEME,
        "apiregistration.k8s.io" => AGGREGATOR_SCHEME,
        _ => SCHEME,
    }
}

impl ObjectError {
    /// For a patched object without a version: it is decoded as one of the internal version.
    pub(crate) fn without_version(self) -> Self {
        match self {
            Self::Foreign(given) => {
                Self::Foreign(GroupVersionKind { version: INTERNAL.to_owned(), ..given })
            }
            other => other,
        }
    }

    /// Message of the error; `object` is quoted JSON.
    pub(crate) fn sentence(
        self,
        decoder: &ObjectDecoder,
        catalog: &Catalog,
        object: &str,
    ) -> String {
        match self {
            Self::Refused(failure) => failure.message,
            Self::Untyped(why) | Self::Types(why) => why,
            Self::Claimed(_, _, error) => error.sentence(decoder, catalog, object),
            Self::NoKind(_) => format!("Object 'Kind' is missing in '{object}'"),
            Self::NoVersion => {
                "Object 'apiVersion' is missing in 'object has no apiVersion field'".to_owned()
            }
            Self::Strict(why) => format!("strict decoding error: {why}"),
            Self::Foreign(given) if given.version.is_empty() => {
                format!("Object 'apiVersion' is missing in '{object}'")
            }
            Self::Foreign(given) => decoder.foreign(&given, catalog),
        }
    }
}

impl ObjectDecoder {
    /// Decoder of a resource's own kind.
    pub(crate) fn of(served: &Served) -> Self {
        let definition = &served.definition;
        Self {
            gvk: definition.gvk(served.version),
            schema: served.version().schema.clone(),
            dialect: definition.dialect,
            conversion_error: definition.policy.conversion_error,
        }
    }

    /// Decoder of a computed subresource's body; for a computed resource, of the resource's own
    /// kind.
    pub(crate) fn for_computed(target: &Target, computed: &dyn ComputedResource) -> Self {
        let served = &target.served;
        let Some(subresource) = served.definition.subresource(served.version, &target.subresource)
        else {
            return Self::of(served);
        };
        let anything = || Arc::new(Schema { preserve_unknown: true, ..Schema::default() });
        Self {
            gvk: subresource.kind.clone(),
            schema: computed.schema().unwrap_or_else(anything),
            dialect: Dialect::Native,
            conversion_error: None,
        }
    }

    /// 400 with the message of kube-apiserver's decoder.
    pub(crate) fn bad_request(
        &self,
        error: ObjectError,
        body: &Body,
        catalog: &Catalog,
    ) -> Failure {
        let source = &body.source;
        let error = match error {
            // The first error in the order of the body.
            ObjectError::Types(why) if self.dialect.is_typed() => ObjectError::Types(
                validate::first_mismatch(&self.schema, body.ordered()).unwrap_or(why),
            ),
            other => other,
        };
        let GroupVersionKind { version, kind, .. } = &self.gvk;
        let named = match &error {
            ObjectError::Refused(failure) => return failure.clone(),
            ObjectError::NoVersion => return self.wrong_version(""),
            ObjectError::Untyped(_) => None,
            ObjectError::NoKind(taken_for) => taken_for.clone(),
            ObjectError::Claimed(kind, version, _) => Some((kind.clone(), version.clone())),
            ObjectError::Foreign(given) => Some((given.kind.clone(), given.version.clone())),
            ObjectError::Types(_) | ObjectError::Strict(_) => Some((kind.clone(), version.clone())),
        };
        let object = String::from_utf8_lossy(&source[..source.len().min(MAX_QUOTED)]);
        let why = error.sentence(self, catalog, &object);
        Failure::bad_request(match named {
            Some((given, version)) => format!(
                "{given} in version {} cannot be handled as a {kind}: {why}",
                quote(&version)
            ),
            None => unrecognized(kind, &why, source),
        })
    }

    /// Message about an object of another kind: not convertible to this kind, or not known.
    fn foreign(&self, given: &GroupVersionKind, catalog: &Catalog) -> String {
        let scheme = scheme_of(&self.gvk.group);
        let is_internal = given.version == INTERNAL;
        let is_known = |definition: &Arc<Definition>| {
            let is_given = |gvk: GroupVersionKind| match is_internal {
                true => gvk.group == given.group && gvk.kind == given.kind,
                false => gvk == *given,
            };
            definition.dialect.is_bundled()
                && scheme == scheme_of(&definition.group)
                && (0..definition.versions.len()).any(|version| is_given(definition.gvk(version)))
        };
        if catalog.all().1.iter().any(is_known) {
            let [from, to] = [given, &self.gvk].map(|gvk| &gvk.kind);
            let package = if is_internal { internal_package(&given.group) } else { &given.version };
            return format!(
                "converting ({package}.{from}) to ({}.{to}): unknown conversion",
                internal_package(&self.gvk.group)
            );
        }
        let version = match is_internal {
            true => format!("the internal version of group {}", quote(&given.group)),
            false => format!("version {}", quote(&given.api_version())),
        };
        format!(
            "no kind {} is registered for {version} in scheme {}",
            quote(&given.kind),
            quote(scheme)
        )
    }

    /// Decodes an object: checks and defaults type names, checks JSON types, drops unknown fields
    /// and reports them.
    ///
    /// # Errors
    /// Every [`ObjectError`].
    pub(crate) fn decode(
        &self,
        object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, ObjectError> {
        let object = self.check_type(object, strictness)?;
        if !self.dialect.is_typed() && !self.is_own(&object) {
            return self.decode_mistyped(object, strictness);
        }
        self.read(object, strictness)
    }

    fn read(&self, object: Document, strictness: &Strictness<'_>) -> Result<Document, ObjectError> {
        let mut object = self.check_types(object)?;
        self.conversion_error(&object).map_err(ObjectError::Types)?;
        let unknown = validate::prune(&self.schema, &mut object);
        let schema = self.dialect.is_typed().then_some(&*self.schema);
        strictness.enforce(&unknown, schema)?;
        Ok(object)
    }

    /// Decodes the result of a strategic patch, which was merged in typed form. Its kind and
    /// apiVersion are ignored, if they are strings.
    ///
    /// # Errors
    /// Every [`ObjectError`].
    pub(crate) fn decode_merged(
        &self,
        mut object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, ObjectError> {
        validate::convert(&self.schema, object.fields_mut()).map_err(ObjectError::Types)?;
        object.set(&["kind"], self.gvk.kind.as_str());
        object.set(&["apiVersion"], self.gvk.api_version());
        // kube-apiserver says nothing of the patch that it merged in typed form.
        let failed = |why| ObjectError::Refused(Failure::bare(500, why));
        self.conversion_error(&object).map_err(failed)?;
        let unknown = validate::prune(&self.schema, &mut object);
        strictness.enforce(&unknown, None)?;
        Ok(object)
    }

    /// Decodes an object that a mutating step changed. A custom object keeps unknown fields and
    /// nulls, and may claim another kind: validation (422) refuses what must not be.
    ///
    /// # Errors
    /// Every [`ObjectError`].
    pub(crate) fn decode_mutated(
        &self,
        object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, ObjectError> {
        if self.dialect.is_typed() {
            return self.decode(object, strictness);
        }
        let object = self.check_type(object, strictness)?;
        self.check_metadata(object)
    }

    /// Decodes an object that was read from its message: its fields have their types.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence.
    pub(crate) fn decode_message(
        definition: &Definition,
        version: usize,
        mut object: Document,
    ) -> Result<Document, String> {
        let check = definition.policy.conversion_error;
        check.and_then(|check| check(&object)).map_or(Ok(()), Err)?;
        validate::prune(&definition.versions[version].schema, &mut object);
        Ok(object)
    }

    fn conversion_error(&self, object: &Document) -> Result<(), String> {
        self.conversion_error.and_then(|check| check(object)).map_or(Ok(()), Err)
    }

    fn is_own(&self, object: &Document) -> bool {
        object.kind() == self.gvk.kind && self.gvk.is_api_version(object.api_version())
    }

    /// Decodes a custom object of another kind or version; of another group or kind only the
    /// metadata. Validation reports the kind (422).
    fn decode_mistyped(
        &self,
        object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, ObjectError> {
        let (kind, api_version) = (object.kind().to_owned(), object.api_version().to_owned());
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let decoded = if matches!(object.get(&["apiVersion"]), Some(Value::Null)) {
            Err(ObjectError::Types(
                ".apiVersion accessor error: <nil> is of the type <nil>, expected string"
                    .to_owned(),
            ))
        } else if kind == self.gvk.kind && group == self.gvk.group {
            self.read(object, strictness)
        } else {
            self.check_metadata(object)
                .and_then(|object| strictness.enforce(&[], None).map(|()| object))
        };
        let object = decoded
            .map_err(|error| ObjectError::Claimed(kind, version.to_owned(), Box::new(error)))?;
        match api_version.as_str() {
            "" => Err(ObjectError::NoVersion),
            given if given != self.gvk.api_version() => {
                Err(ObjectError::Refused(self.wrong_version(given)))
            }
            _ => Ok(object),
        }
    }

    /// Decodes the result of an apply, which is untyped: unknown fields are not reported, and nulls
    /// of a custom object remain for validation.
    ///
    /// # Errors
    /// Every [`ObjectError`].
    pub(crate) fn decode_applied(&self, mut object: Document) -> Result<Document, ObjectError> {
        if !self.dialect.is_typed() {
            // Validation (422) covers embedded objects.
            return self.check_metadata(object);
        }
        validate::convert(&self.schema, object.fields_mut()).map_err(ObjectError::Types)?;
        self.conversion_error(&object).map_err(|why| {
            let (version, kind) = (self.gvk.api_version(), &self.gvk.kind);
            let whole = format!("failed to convert to unversioned (/; {version}, Kind={kind})");
            ObjectError::Refused(Failure::bare(500, format!("{whole}: {why}")))
        })?;
        validate::prune(&self.schema, &mut object);
        Ok(object)
    }

    /// Checks the JSON types of all fields; in a custom object, only of metadata. Validation (422)
    /// covers its other fields.
    pub(crate) fn check_types(&self, mut object: Document) -> Result<Document, ObjectError> {
        if !self.dialect.is_typed() {
            object = self.check_metadata(object)?;
            validate::check_embedded(&self.schema, &object).map_err(ObjectError::Types)?;
            return Ok(object);
        }
        let value = object.into_value();
        validate::check_types(&self.schema, &value).map_err(ObjectError::Types)?;
        Ok(Document::from_value(value).expect("it was an object"))
    }

    /// Checks the metadata of a custom object, which is typed leniently. Integral floats elsewhere
    /// stay floats until stored.
    fn check_metadata(&self, mut object: Document) -> Result<Document, ObjectError> {
        object.get_mut(&["metadata"]).into_iter().for_each(json::round_trip_floats);
        if let (Some(property), Some(metadata)) =
            (self.schema.properties.get("metadata"), object.get(&["metadata"]))
        {
            validate::check_types(&property.schema, metadata).map_err(ObjectError::Types)?;
        }
        Ok(object)
    }

    fn check_type(
        &self,
        mut object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, ObjectError> {
        // kube-apiserver matches these two fields case-insensitively; the last one counts, which is
        // the exact name where fields are sorted: in YAML and in what a patch leaves.
        let source = strictness.source;
        let named = |field: &str| {
            let is_other = |name: &str| {
                name.len() == field.len() && name != field && name.eq_ignore_ascii_case(field)
            };
            let other = || {
                let mut fields = object.fields().iter();
                fields.find(|(name, _)| is_other(name)).map(|(_, value)| value)
            };
            let exact = || object.get(&[field]);
            let last = || validate::last_spelling(source, field);
            // Go's decoder fails at a wrong type in any spelling.
            let spelled =
                object.fields().iter().filter(|(name, _)| name.eq_ignore_ascii_case(field));
            let wrong =
                spelled.into_iter().find(|(_, value)| !value.is_null() && !value.is_string());
            // So it does at one that a later one replaces.
            let replaced = || {
                let is_repeated = strictness.duplicates.iter().any(|path| path == field);
                is_repeated.then(|| validate::mistyped(source, field)).flatten()
            };
            if let Some(kind) = wrong.map(|(_, value)| json::type_name(value)).or_else(replaced) {
                return Err(ObjectError::Untyped(format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into Go struct field .{field} of type string"
                )));
            }
            let found = match other() {
                None => exact(),
                Some(_) if source.is_empty() => exact().or_else(other),
                Some(_) => last().map_or_else(exact, |name| object.get(&[&*name])),
            };
            Ok(found.and_then(Value::as_str).unwrap_or_default())
        };
        let (version, kind) = (named("apiVersion")?, named("kind")?);
        let is_named = self.gvk.is_api_version(version) && kind == self.gvk.kind;
        if is_named && self.is_own(&object) {
            return Ok(object);
        }
        if version.matches('/').count() > 1 {
            return Err(ObjectError::Untyped(format!("unexpected GroupVersion string: {version}")));
        }
        if !self.dialect.is_typed() {
            // From here on only exact field names count.
            if !object.kind().is_empty() {
                return Ok(object);
            }
            let taken_for = self.with_defaults(kind, version);
            return Err(ObjectError::NoKind(
                (strictness.validation == FieldValidation::Ignore)
                    .then_some((taken_for.kind, taken_for.version)),
            ));
        }
        let given = self.with_defaults(kind, version);
        if given != self.gvk {
            return Err(ObjectError::Foreign(given));
        }
        object.set(&["kind"], self.gvk.kind.as_str());
        object.set(&["apiVersion"], self.gvk.api_version());
        Ok(object)
    }

    /// Kind of a typed object, with the endpoint's defaults.
    fn with_defaults(&self, kind: &str, version: &str) -> GroupVersionKind {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let (group, version) = match (group, version) {
            ("", "") => (self.gvk.group.as_str(), self.gvk.version.as_str()),
            (group, "") if group == self.gvk.group => (group, self.gvk.version.as_str()),
            given => given,
        };
        let kind = if kind.is_empty() { self.gvk.kind.as_str() } else { kind };
        GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        }
    }

    fn wrong_version(&self, given: &str) -> Failure {
        let expected = self.gvk.api_version();
        Failure::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({expected})"
        ))
    }
}

/// Bytes of an object quoted in an error.
const MAX_QUOTED: usize = 4096;

/// Message about a body without a readable kind.
pub fn unrecognized(kind: &str, why: &str, body: &[u8]) -> String {
    format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        go::summary(body)
    )
}

/// kube-apiserver's package of a group's internal types.
pub fn internal_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        other => other.split('.').next().unwrap_or_default(),
    }
}

/// Joins findings into one message. Those with a line number come from the YAML reader, which
/// reports them together.
fn joined(sentences: &[String]) -> String {
    let (lines, mut others): (Vec<&str>, Vec<&str>) =
        sentences.iter().map(String::as_str).partition(|sentence| sentence.starts_with("line "));
    let lines = format!("yaml: unmarshal errors:\n  {}", lines.join("\n  "));
    if lines.contains("line ") {
        others.insert(0, &lines);
    }
    others.join(", ")
}

/// Field validation of a body, with the findings of its parser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strictness<'a> {
    /// As requested.
    pub(crate) validation: FieldValidation,
    /// Paths of duplicate fields.
    pub(crate) duplicates: &'a [String],
    /// The body, if it is a single JSON object; else empty.
    pub(crate) source: &'a [u8],
    /// Further findings of the parser, as sentences.
    pub(crate) noted: &'a [String],
    /// Receives warnings.
    pub(crate) context: &'a RequestContext,
}

impl<'a> Strictness<'a> {
    /// Drops unknown fields silently.
    pub(crate) fn ignore(context: &'a RequestContext) -> Self {
        Self {
            validation: FieldValidation::Ignore,
            duplicates: &[],
            source: &[],
            noted: &[],
            context,
        }
    }

    /// Reports unknown and duplicate fields. With a schema they are reported in the order of the
    /// body, as by kube-apiserver's typed decoder.
    pub(crate) fn enforce(
        &self,
        unknown: &[String],
        schema: Option<&Schema>,
    ) -> Result<(), ObjectError> {
        if self.validation == FieldValidation::Ignore
            || (unknown.is_empty() && self.duplicates.is_empty() && self.noted.is_empty())
        {
            return Ok(());
        }
        let duplicates = self.duplicates.iter().map(|path| format!("duplicate field {path:?}"));
        let ordered = schema
            .filter(|_| !self.source.is_empty())
            .and_then(|schema| validate::strict_findings(schema, self.source));
        let merged = || {
            self.noted
                .iter()
                .cloned()
                .chain(duplicates)
                .chain(unknown.iter().map(|path| format!("unknown field {path:?}")))
                .collect()
        };
        let sentences: Vec<String> = ordered.unwrap_or_else(merged);
        if sentences.is_empty() {
            return Ok(());
        }
        if self.validation == FieldValidation::Strict {
            return Err(ObjectError::Strict(joined(&sentences)));
        }
        sentences.into_iter().for_each(|sentence| self.context.warn(sentence));
        Ok(())
    }
}
