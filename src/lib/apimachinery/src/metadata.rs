//! Rules of metadata, in every object and in every embedded resource.

use crate::document::{Map, Value};
use crate::field::{FieldError, FormattedValue, MAX_ERRORS, Word};
use crate::gvk::GroupVersion;
use crate::name::{self, NameErrors};

/// Total of an object's annotations.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// Subresource of a managedFields entry.
const MAX_SUBRESOURCE_BYTES: usize = 256;

/// Adds the errors of metadata at a path, up to [`MAX_ERRORS`]. Names and the namespace are the
/// caller's. Annotations that are the server's do not count towards the limit.
pub fn check(
    metadata: &Map,
    path: &str,
    is_servers: impl Fn(&str) -> bool,
    errors: &mut Vec<FieldError>,
) {
    let mut check = Check { metadata, path, errors };
    check.generation();
    check.labels();
    check.annotations(is_servers);
    check.owners();
    check.finalizers();
    check.managed_fields();
}

/// As kube-apiserver decodes maps and lists of strings: a null in labels, annotations or finalizers
/// is an empty string.
pub fn replace_nulls(metadata: &mut Map) {
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        finalizers
            .iter_mut()
            .filter(|value| value.is_null())
            .for_each(|value| *value = Value::from(""));
    }
    for field in ["labels", "annotations"] {
        if let Some(Value::Object(map)) = metadata.get_mut(field) {
            map.values_mut()
                .filter(|value| value.is_null())
                .for_each(|value| *value = Value::from(""));
        }
    }
}

/// Whether kube-apiserver's encoder omits a field of metadata: null, an empty string, map or list,
/// generation 0.
pub fn is_omitted(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Number(number) => field == "generation" && number.as_i64() == Some(0),
        Value::Bool(_) => false,
    }
}

struct Check<'a> {
    metadata: &'a Map,
    path: &'a str,
    errors: &'a mut Vec<FieldError>,
}

impl<'a> Check<'a> {
    fn at(&self, field: &str) -> String {
        format!("{}.{field}", self.path)
    }

    fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    fn invalid(&mut self, field: &str, value: &str, sentences: NameErrors) {
        for why in sentences {
            self.errors.push(FieldError::invalid(self.at(field), value, why));
        }
    }

    fn pairs(&self, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let map = self.metadata.get(field).and_then(Value::as_object);
        map.into_iter()
            .flat_map(Map::iter)
            .map(|(key, value)| (&**key, value.as_str().unwrap_or_default()))
    }

    fn list(&self, field: &str) -> &'a [Value] {
        self.metadata.get(field).and_then(Value::as_array).map_or(&[], |list| list)
    }

    fn generation(&mut self) {
        let generation = self.metadata.get("generation").and_then(Value::as_i64);
        if let Some(generation) = generation.filter(|generation| *generation < 0) {
            self.errors.push(FieldError::invalid(
                self.at("generation"),
                generation,
                "must be greater than or equal to 0",
            ));
        }
    }

    fn labels(&mut self) {
        for (key, value) in self.pairs("labels") {
            if self.is_full() {
                return;
            }
            self.invalid("labels", key, name::qualified_name(key));
            self.invalid("labels", value, name::label_value(value));
        }
    }

    fn annotations(&mut self, is_servers: impl Fn(&str) -> bool) {
        let mut bytes = 0;
        for (key, value) in self.pairs("annotations").filter(|(key, _)| !is_servers(key)) {
            bytes += key.len() + value.len();
            if self.is_full() {
                continue;
            }
            // kube-apiserver accepts upper case in keys here.
            let wrong = if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
                name::qualified_name(&key.to_ascii_lowercase())
            } else {
                name::qualified_name(key)
            };
            self.invalid("annotations", key, wrong);
        }
        if bytes > MAX_ANNOTATION_BYTES {
            self.errors.push(FieldError::too_long(self.at("annotations"), MAX_ANNOTATION_BYTES));
        }
    }

    fn owners(&mut self) {
        let references = self.list("ownerReferences");
        let mut controller: Option<&Value> = None;
        let mut all = None;
        for reference in references {
            if self.is_full() {
                return;
            }
            self.owner(reference);
            if reference.get("controller").and_then(Value::as_bool) != Some(true) {
                continue;
            }
            let Some(first) = controller else {
                controller = Some(reference);
                continue;
            };
            let all =
                &*all.get_or_insert_with(|| FormattedValue::list(references.iter().map(shown)));
            let [first, second] = [first, reference].map(|reference| {
                format!("{}/{}", text(reference, "kind"), text(reference, "name"))
            });
            let why = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
            );
            self.errors.push(FieldError::invalid(self.at("ownerReferences"), all, why));
        }
    }

    /// Complete, and no event.
    fn owner(&mut self, reference: &Value) {
        let version = GroupVersion::parse(text(reference, "apiVersion"));
        if version.is_none() {
            self.errors.push(FieldError::invalid(
                self.at("ownerReferences.apiVersion"),
                text(reference, "apiVersion"),
                "version must not be empty",
            ));
        }
        for field in ["kind", "name", "uid"] {
            if text(reference, field).is_empty() {
                let place = self.at(&format!("ownerReferences.{field}"));
                self.errors.push(FieldError::invalid(place, "", "must not be empty"));
            }
        }
        if version.is_some_and(|version| version.group.is_empty() && version.version == "v1")
            && text(reference, "kind") == "Event"
        {
            self.errors.push(FieldError::invalid(
                self.at("ownerReferences"),
                shown(reference),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
    }

    fn finalizers(&mut self) {
        let [mut orphan, mut foreground] = [false, false];
        for finalizer in self.list("finalizers").iter().filter_map(Value::as_str) {
            orphan |= finalizer == "orphan";
            foreground |= finalizer == "foregroundDeletion";
            if !self.is_full() {
                self.invalid("finalizers", finalizer, name::qualified_name(finalizer));
            }
        }
        if orphan && foreground {
            let why = "finalizer orphan and foregroundDeletion cannot be both set";
            self.errors.push(FieldError::invalid(
                self.at("finalizers"),
                self.metadata.get("finalizers"),
                why,
            ));
        }
    }

    fn managed_fields(&mut self) {
        for (index, entry) in self.list("managedFields").iter().enumerate() {
            if self.is_full() {
                return;
            }
            let place = |field: &str| format!("{}.managedFields[{index}].{field}", self.path);
            if !matches!(text(entry, "operation"), "Apply" | "Update") {
                let why = "must be `Apply` or `Update`";
                let operation = text(entry, "operation");
                self.errors.push(FieldError::invalid(place("operation"), operation, why));
            }
            if !matches!(text(entry, "fieldsType"), "" | "FieldsV1") {
                let fields_type = text(entry, "fieldsType");
                self.errors.push(FieldError::invalid(
                    place("fieldsType"),
                    fields_type,
                    "must be `FieldsV1`",
                ));
            }
            self.errors.extend(FieldError::manager(&place("manager"), text(entry, "manager")));
            if text(entry, "subresource").len() > MAX_SUBRESOURCE_BYTES {
                self.errors.push(FieldError::too_long(place("subresource"), MAX_SUBRESOURCE_BYTES));
            }
        }
    }
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// With kube-apiserver's order of fields.
fn shown(reference: &Value) -> FormattedValue {
    let always = ["apiVersion", "kind", "name", "uid"]
        .map(|field| (field, FormattedValue::new(Word(text(reference, field)))));
    let set = ["controller", "blockOwnerDeletion"]
        .into_iter()
        .filter_map(|field| Some((field, FormattedValue::new(reference.get(field)?))));
    FormattedValue::object(always.into_iter().chain(set))
}
