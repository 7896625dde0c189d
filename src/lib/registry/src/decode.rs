//! From a body to an object of the endpoint's kind: type names, JSON types, unknown and repeated
//! fields, defaults.

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

/// What an endpoint takes: its kind and schema.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The kind of the body.
    pub(crate) gvk: GroupVersionKind,
    /// Its schema.
    pub(crate) schema: Arc<Schema>,
    /// Whether its fields are decoded or validated.
    pub(crate) dialect: Dialect,
}

/// How an object does not fit its shape.
#[derive(Debug)]
pub(crate) enum DecodeError {
    /// Answered so at every place.
    Refused(Failure),
    /// What it is cannot be read from it.
    Untyped(String),
    /// A custom object does not say its kind; with the kind and version that it was taken for where
    /// nobody asked for strictness.
    NoKind(Option<(String, String)>),
    /// A custom object does not say its version.
    NoVersion,
    /// It says that it is another kind.
    Foreign(GroupVersionKind),
    /// A wrong JSON type, as a sentence.
    Types(String),
    /// Unknown or repeated fields in strict validation, as a sentence.
    Strict(String),
    /// The same of an object that says to be of this kind and version.
    Of(String, String, Box<DecodeError>),
}

/// Where kube-apiserver makes the scheme that its messages name.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";
const EXTENSIONS_SCHEME: &str = "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55";

impl DecodeError {
    /// The sentence about an object, which is given as JSON.
    pub(crate) fn sentence(self, shape: &Shape, catalog: &Catalog, object: &str) -> String {
        match self {
            Self::Refused(failure) => failure.message,
            Self::Untyped(why) | Self::Types(why) => why,
            Self::Of(_, _, misfit) => misfit.sentence(shape, catalog, object),
            Self::NoKind(_) => format!("Object 'Kind' is missing in '{object}'"),
            Self::NoVersion => {
                "Object 'apiVersion' is missing in 'object has no apiVersion field'".to_owned()
            }
            Self::Strict(why) => format!("strict decoding error: {why}"),
            Self::Foreign(given) if given.version.is_empty() => {
                format!("Object 'apiVersion' is missing in '{object}'")
            }
            Self::Foreign(given) => shape.foreign(&given, catalog),
        }
    }
}

impl Shape {
    /// The object itself, in a served version.
    pub(crate) fn of(served: &Served) -> Self {
        let definition = &served.definition;
        Self {
            gvk: definition.gvk(served.version),
            schema: served.version().schema.clone(),
            dialect: definition.dialect,
        }
    }

    /// What a computed subresource takes (of a computed resource it is the resource's own shape).
    pub(crate) fn of_computed(target: &Target, behaviour: &dyn ComputedResource) -> Self {
        let served = &target.served;
        let Some(subresource) = served.definition.subresource(served.version, &target.subresource)
        else {
            return Self::of(served);
        };
        let anything = || Arc::new(Schema { preserve_unknown: true, ..Schema::default() });
        Self {
            gvk: subresource.kind.clone(),
            schema: behaviour.schema().unwrap_or_else(anything),
            dialect: Dialect::Native,
        }
    }

    /// 400, as a typed decoder words it.
    pub(crate) fn bad_request(
        &self,
        misfit: DecodeError,
        body: &Body,
        catalog: &Catalog,
    ) -> Failure {
        let source = &body.source;
        let misfit = match misfit {
            // The decoder goes through the body.
            DecodeError::Types(why) if self.dialect.is_typed() => DecodeError::Types(
                validate::first_misfit(&self.schema, body.ordered()).unwrap_or(why),
            ),
            other => other,
        };
        let GroupVersionKind { version, kind, .. } = &self.gvk;
        let named = match &misfit {
            DecodeError::Refused(failure) => return failure.clone(),
            DecodeError::NoVersion => return self.wrong_version(""),
            DecodeError::Untyped(_) => None,
            DecodeError::NoKind(taken_for) => taken_for.clone(),
            DecodeError::Of(kind, version, _) => Some((kind.clone(), version.clone())),
            DecodeError::Foreign(given) => Some((given.kind.clone(), given.version.clone())),
            DecodeError::Types(_) | DecodeError::Strict(_) => Some((kind.clone(), version.clone())),
        };
        let object = String::from_utf8_lossy(&source[..source.len().min(MAX_QUOTED)]);
        let why = misfit.sentence(self, catalog, &object);
        Failure::bad_request(match named {
            Some((given, version)) => format!(
                "{given} in version {} cannot be handled as a {kind}: {why}",
                quote(&version)
            ),
            None => unrecognized(kind, &why, source),
        })
    }

    /// Why an object of another kind is refused: it cannot become one of this kind, or there is no
    /// such kind.
    fn foreign(&self, given: &GroupVersionKind, catalog: &Catalog) -> String {
        let own_scheme = self.gvk.group == "apiextensions.k8s.io";
        let is_known = |definition: &Arc<Definition>| {
            definition.dialect.is_bundled()
                && own_scheme == (definition.group == "apiextensions.k8s.io")
                && (0..definition.versions.len()).any(|version| definition.gvk(version) == *given)
        };
        if catalog.all().1.iter().any(is_known) {
            let [from, to] = [given, &self.gvk].map(|gvk| &gvk.kind);
            return format!(
                "converting ({}.{from}) to ({}.{to}): unknown conversion",
                given.version,
                internal_package(&self.gvk.group)
            );
        }
        let scheme = if own_scheme { EXTENSIONS_SCHEME } else { SCHEME };
        format!(
            "no kind {} is registered for version {} in scheme {}",
            quote(&given.kind),
            quote(&given.api_version()),
            quote(scheme)
        )
    }

    /// Makes an object fit: type names are checked and filled in, JSON types checked, unknown
    /// fields dropped (with what the client is told of them).
    ///
    /// # Errors
    /// [`DecodeError`].
    pub(crate) fn fit(
        &self,
        object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, DecodeError> {
        let object = self.check_type(object, strictness)?;
        if !self.dialect.is_typed() && !self.is_own(&object) {
            return self.fit_misnamed(object, strictness);
        }
        self.read(object, strictness)
    }

    fn read(&self, object: Document, strictness: &Strictness<'_>) -> Result<Document, DecodeError> {
        let mut object = self.check_types(object)?;
        let unknown = validate::prune(&self.schema, &mut object);
        let schema = self.dialect.is_typed().then_some(&*self.schema);
        strictness.enforce(&unknown, schema)?;
        Ok(object)
    }

    /// The same for the outcome of a strategic patch, which was merged in memory. Its kind and
    /// version change nothing, if only they are texts.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub(crate) fn fit_merged(
        &self,
        mut object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, DecodeError> {
        validate::convert(&self.schema, object.fields_mut()).map_err(DecodeError::Types)?;
        object.set(&["kind"], self.gvk.kind.as_str());
        object.set(&["apiVersion"], self.gvk.api_version());
        let unknown = validate::prune(&self.schema, &mut object);
        strictness.enforce(&unknown, None)?;
        Ok(object)
    }

    fn is_own(&self, object: &Document) -> bool {
        object.kind() == self.gvk.kind && object.api_version() == self.gvk.api_version()
    }

    /// A custom object of another kind or version: it is decoded first, and of another group or
    /// kind nothing but its metadata. The kind is validated (422) with the rest of it.
    fn fit_misnamed(
        &self,
        object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, DecodeError> {
        let (kind, api_version) = (object.kind().to_owned(), object.api_version().to_owned());
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let decoded = if matches!(object.get(&["apiVersion"]), Some(Value::Null)) {
            Err(DecodeError::Types(
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
            .map_err(|misfit| DecodeError::Of(kind, version.to_owned(), Box::new(misfit)))?;
        match api_version.as_str() {
            "" => Err(DecodeError::NoVersion),
            given if given != self.gvk.api_version() => {
                Err(DecodeError::Refused(self.wrong_version(given)))
            }
            _ => Ok(object),
        }
    }

    /// The same for the outcome of an apply, which was never decoded: nothing unknown is told, and
    /// in a custom object nulls stay for validation.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub(crate) fn fit_applied(&self, mut object: Document) -> Result<Document, DecodeError> {
        if !self.dialect.is_typed() {
            return self.check_types(object);
        }
        validate::convert(&self.schema, object.fields_mut()).map_err(DecodeError::Types)?;
        validate::prune(&self.schema, &mut object);
        Ok(object)
    }

    /// JSON types of everything, or of a custom object's metadata only: the rest of it is validated
    /// (422) instead of decoded (400).
    pub(crate) fn check_types(&self, mut object: Document) -> Result<Document, DecodeError> {
        if !self.dialect.is_typed() {
            object = self.check_metadata(object)?;
            validate::check_embedded(&self.schema, &object).map_err(DecodeError::Types)?;
            return Ok(object);
        }
        let value = object.into_value();
        validate::check_types(&self.schema, &value).map_err(DecodeError::Types)?;
        Ok(Document::from_value(value).expect("it was an object"))
    }

    /// The metadata of a custom object is typed, though leniently; other floats without a fraction
    /// are doubles until the object is stored.
    fn check_metadata(&self, mut object: Document) -> Result<Document, DecodeError> {
        object.get_mut(&["metadata"]).into_iter().for_each(json::round_trip_floats);
        if let (Some(property), Some(metadata)) =
            (self.schema.properties.get("metadata"), object.get(&["metadata"]))
        {
            validate::check_types(&property.schema, metadata).map_err(DecodeError::Types)?;
        }
        Ok(object)
    }

    fn check_type(
        &self,
        mut object: Document,
        strictness: &Strictness<'_>,
    ) -> Result<Document, DecodeError> {
        let expected = self.gvk.api_version();
        // Upstream reads these two whatever case they are in.
        let named = |field: &str| {
            let other = |name: &str| {
                name.len() == field.len() && name != field && name.eq_ignore_ascii_case(field)
            };
            match object
                .fields()
                .iter()
                .find(|(name, _)| other(name))
                .map(|(_, value)| value)
                .or_else(|| object.get(&[field]))
            {
                None | Some(Value::Null) => Ok(""),
                Some(value) => value.as_str().ok_or_else(|| {
                    let why = format!(
                        "json: cannot unmarshal {} into Go struct field .{field} of type string",
                        json::type_name(value)
                    );
                    DecodeError::Untyped(format!(
                        "couldn't get version/kind; json parse error: {why}"
                    ))
                }),
            }
        };
        let (version, kind) = (named("apiVersion")?, named("kind")?);
        if version == expected && kind == self.gvk.kind {
            return Ok(object);
        }
        if version.matches('/').count() > 1 {
            return Err(DecodeError::Untyped(format!("unexpected GroupVersion string: {version}")));
        }
        if !self.dialect.is_typed() {
            // From here on only the exact names count.
            if !object.kind().is_empty() {
                return Ok(object);
            }
            let taken_for = self.with_defaults(kind, version);
            return Err(DecodeError::NoKind(
                (strictness.validation == FieldValidation::Ignore)
                    .then_some((taken_for.kind, taken_for.version)),
            ));
        }
        let given = self.with_defaults(kind, version);
        if given != self.gvk {
            return Err(DecodeError::Foreign(given));
        }
        object.set(&["kind"], self.gvk.kind.as_str());
        object.set(&["apiVersion"], expected);
        Ok(object)
    }

    /// What a typed object says that it is, where it is silent what is expected.
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

/// Bytes of an object that a message quotes.
const MAX_QUOTED: usize = 4096;

/// The sentence about a body that does not say what it is.
pub fn unrecognized(kind: &str, why: &str, body: &[u8]) -> String {
    format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        go::summary(body)
    )
}

/// Upstream's package of the types behind all versions of a group.
pub fn internal_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        other => other.split('.').next().unwrap_or_default(),
    }
}

/// Sentences as one error. Those that name a line are the YAML reader's, which tells them together.
fn joined(sentences: &[String]) -> String {
    let (lines, mut others): (Vec<&str>, Vec<&str>) =
        sentences.iter().map(String::as_str).partition(|sentence| sentence.starts_with("line "));
    let lines = format!("yaml: unmarshal errors:\n  {}", lines.join("\n  "));
    if lines.contains("line ") {
        others.insert(0, &lines);
    }
    others.join(", ")
}

/// What is done about unknown and repeated fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strictness<'a> {
    /// What the client asked for.
    pub(crate) validation: FieldValidation,
    /// Paths of repeated fields.
    pub(crate) duplicates: &'a [String],
    /// The body, where it is one object in JSON.
    pub(crate) source: &'a [u8],
    /// What else was found while the body was read, as sentences.
    pub(crate) noted: &'a [String],
    /// Takes the warnings.
    pub(crate) context: &'a RequestContext,
}

impl<'a> Strictness<'a> {
    /// Unknown fields are dropped silently.
    pub(crate) fn ignore(context: &'a RequestContext) -> Self {
        Self {
            validation: FieldValidation::Ignore,
            duplicates: &[],
            source: &[],
            noted: &[],
            context,
        }
    }

    /// What is told of unknown and repeated fields. A typed object's decoder, which has a schema,
    /// finds them in the order of the body.
    pub(crate) fn enforce(
        &self,
        unknown: &[String],
        schema: Option<&Schema>,
    ) -> Result<(), DecodeError> {
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
            return Err(DecodeError::Strict(joined(&sentences)));
        }
        sentences.into_iter().for_each(|sentence| self.context.warn(sentence));
        Ok(())
    }
}
