//! Type errors of the native kinds' decoder.

use super::path::Path;
use super::{formats, go_types};
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Number, Value};
use ferrokube_apimachinery::field::{FieldError, quote};
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::json::type_name;
use ferrokube_apimachinery::quantity::{FORMAT_WRONG, Quantity};

/// Decodes as kube-apiserver's typed decoder: wrong JSON types are errors (400), numbers must be in
/// range, times and base64 must parse. Nulls pass: they are absent fields, or empty values of maps
/// and lists. Unknown fields pass, too (see [`prune`](super::prune())).
///
/// # Errors
/// The decoder's message, as the body of a 400. Quotes only times and numbers, never possible
/// secrets.
pub fn check_types(schema: &Schema, value: &Value) -> Result<(), String> {
    check(schema, value, &Path::ROOT).map_err(|fault| fault.sentence(schema))
}

/// Checks the types of embedded resources' `kind`, `apiVersion` and `metadata` in a custom
/// resource.
///
/// # Errors
/// As [`check_types`].
pub fn check_embedded(schema: &Schema, object: &Document) -> Result<(), String> {
    if !schema.has_embedded() {
        return Ok(());
    }
    object.fields().iter().try_for_each(|(name, value)| match schema.child(name) {
        Some(node) => embedded(node, value, &Path::ROOT.field(name)),
        None => Ok(()),
    })
}

fn embedded(schema: &Schema, value: &Value, path: &Path<'_>) -> Result<(), String> {
    if schema.native || path.depth() > MAX_WALK {
        return Ok(());
    }
    match value {
        Value::Object(map) => map.iter().try_for_each(|(name, child)| {
            let path = if schema.properties.contains_key(name) {
                path.field(name)
            } else {
                path.key(name)
            };
            let invalid = |why: &str| {
                format!("{}: {}", path.bracketed(), FieldError::invalid("", child, why).message)
            };
            match (schema.embedded, name.as_str(), schema.child(name)) {
                (true, "kind" | "apiVersion", _) if !child.is_string() => {
                    Err(invalid("must be a string"))
                }
                (true, "metadata", Some(node)) => {
                    check(node, child, &Path::ROOT).map_err(|fault| invalid(&fault.sentence(node)))
                }
                (_, _, Some(node)) => embedded(node, child, &path),
                (_, _, None) => Ok(()),
            }
        }),
        Value::Array(items) => {
            let Some(node) = schema.items.as_deref() else { return Ok(()) };
            items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| embedded(node, item, &path.index(index)))
        }
        _ => Ok(()),
    }
}

/// As [`check_types`], for a value with its own decoder, whose errors name no field above it.
pub(super) fn check_at(schema: &Schema, value: &Value) -> Result<(), String> {
    check(schema, value, &Path::ROOT).map_err(|fault| fault.sentence(schema))
}

/// A type error. Boxed, so that results fit into registers.
pub(super) enum TypeFault {
    Type {
        /// Field names and map keys from the root; `None` for a list item.
        way: Vec<Option<String>>,
        /// The JSON type or value found.
        given: String,
        /// The type whose decoder failed, if not the field's own.
        read_as: Option<&'static str>,
    },
    Base64(String),
    Said(String),
}

pub(super) type CheckResult = Result<(), Box<TypeFault>>;

impl TypeFault {
    /// Whether decoding stops here. Of errors after which it continues, the first is reported.
    pub(super) fn is_last(&self) -> bool {
        match self {
            Self::Said(_) => true,
            Self::Base64(_) => false,
            // A type with its own decoder.
            Self::Type { read_as, .. } => read_as.is_some(),
        }
    }

    pub(super) fn sentence(self, root: &Schema) -> String {
        let (way, given, read_as) = match self {
            Self::Base64(why) | Self::Said(why) => return why,
            Self::Type { way, given, read_as } => (way, given, read_as),
        };
        let (mut node, mut kind) = (root, go_types::of(root));
        let (mut owner, mut fields) = (String::new(), Vec::new());
        for step in &way {
            // A schema where a list or a bool may stand, too, has a decoder of its own, whose
            // errors name the fields in it anyway.
            node = node.inside.as_deref().unwrap_or(node);
            let property = step
                .as_deref()
                .and_then(|name| node.properties.get(name).map(|property| (name, property)));
            let next: &Schema = match (step, property) {
                (_, Some((name, property))) => {
                    node.short_name().clone_into(&mut owner);
                    fields.extend(go_types::embedded(node, name));
                    fields.push(name);
                    kind = go_types::of_field(node, name, &property.schema);
                    node = &property.schema;
                    continue;
                }
                (Some(_), None) => node.additional.as_deref(),
                (None, _) => node.items.as_deref(),
            }
            .unwrap_or(node);
            kind = go_types::of_element(&kind, next);
            node = next;
        }
        let kind = read_as.unwrap_or(&kind);
        let target = if fields.is_empty() {
            "value".to_owned()
        } else {
            format!("struct field {owner}.{}", fields.join("."))
        };
        format!("json: cannot unmarshal {given} into Go {target} of type {kind}")
    }
}

fn object(schema: &Schema, fields: &Map, path: &Path<'_>) -> CheckResult {
    let mut worst = FirstFault::default();
    for (name, child) in fields {
        if let Some(node) = schema.child(name) {
            worst.take(check(node, child, &path.field(name)))?;
        }
    }
    worst.end()
}

/// The error at which decoding stops, else the first.
#[derive(Default)]
pub(super) struct FirstFault(Option<Box<TypeFault>>);

impl FirstFault {
    /// # Errors
    /// The error at which decoding stops.
    pub(super) fn take(&mut self, checked: CheckResult) -> CheckResult {
        match checked {
            Err(fault) if fault.is_last() => Err(fault),
            Err(fault) => {
                self.0.get_or_insert(fault);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// # Errors
    /// The first error.
    pub(super) fn end(self) -> CheckResult {
        self.0.map_or(Ok(()), Err)
    }
}

pub(super) fn check(schema: &Schema, value: &Value, path: &Path<'_>) -> CheckResult {
    if path.depth() > MAX_WALK {
        return said("exceeded max depth".to_owned());
    }
    match (schema.kind, value) {
        (_, Value::Null) => Ok(()),
        (Kind::Any, _) => {
            schema.inside.as_deref().map_or(Ok(()), |node| inside(schema, node, value, path))
        }
        (Kind::Object, Value::Object(map)) => object(schema, map, path),
        (Kind::Array, Value::Array(items)) => {
            let Some(node) = schema.items.as_deref() else {
                return Ok(());
            };
            let mut worst = FirstFault::default();
            items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| worst.take(check(node, item, &path.index(index))))?;
            worst.end()
        }
        (Kind::String, Value::String(text)) => string(schema, text),
        (Kind::Boolean, Value::Bool(_)) | (Kind::Number, Value::Number(_)) => Ok(()),
        (Kind::Integer, Value::Number(number)) => integer(schema, number, path),
        (Kind::IntOrString, Value::Number(number)) if is_quantity(schema) => {
            quantity(&number.as_written())
        }
        (Kind::IntOrString, Value::String(text)) if is_quantity(schema) => quantity(text.trim()),
        (Kind::IntOrString, _) if is_quantity(schema) => said(FORMAT_WRONG.to_owned()),
        (Kind::IntOrString, Value::Number(number)) => integer(schema, number, path),
        (Kind::IntOrString, Value::String(_)) => Ok(()),
        (Kind::IntOrString, value) => wrong(path, type_name(value).to_owned(), Some("int32")),
        (Kind::String, value) if schema.format.as_deref() == Some("date-time") => {
            wrong(path, type_name(value).to_owned(), Some("string"))
        }
        (_, value) => wrong(path, type_name(value).to_owned(), None),
    }
}

/// Checks a JSON schema, a list of them or of strings, or a bool: the only native values without a
/// type.
fn inside(schema: &Schema, node: &Schema, value: &Value, path: &Path<'_>) -> CheckResult {
    let is_flag = schema.short_name().ends_with("OrBool");
    match value {
        Value::Object(_) => check(node, value, path),
        Value::Array(items) if schema.short_name().ends_with("OrStringArray") => {
            let wrong_item =
                items.iter().enumerate().find(|(_, item)| !item.is_null() && !item.is_string());
            wrong_item.map_or(Ok(()), |(index, item)| {
                wrong(&path.index(index), type_name(item).to_owned(), Some("string"))
            })
        }
        Value::Array(items) if !is_flag => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check(node, item, &path.index(index))),
        Value::Bool(_) => Ok(()),
        _ if is_flag => said("boolean or JSON schema expected".to_owned()),
        _ => Ok(()),
    }
}

#[cold]
fn wrong(path: &Path<'_>, given: String, read_as: Option<&'static str>) -> CheckResult {
    Err(Box::new(TypeFault::Type { way: path.way(), given, read_as }))
}

#[cold]
fn said(why: String) -> CheckResult {
    Err(Box::new(TypeFault::Said(why)))
}

pub(super) fn is_quantity(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("quantity")
}

fn quantity(text: &str) -> CheckResult {
    // Fast path: small plain integers need no decimal arithmetic.
    let plain =
        !text.is_empty() && text.len() < 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain || Quantity::parse(text).is_ok() { Ok(()) } else { said(FORMAT_WRONG.to_owned()) }
}

/// Integers must be written as such: like kube-apiserver, refuses `1.0` and `1e3`.
fn integer(schema: &Schema, number: &Number, path: &Path<'_>) -> CheckResult {
    let is_text = schema.kind == Kind::IntOrString;
    let narrow = is_text || schema.format.as_deref() == Some("int32");
    match number.as_i64() {
        Some(integer) if !narrow || i32::try_from(integer).is_ok() => Ok(()),
        _ => wrong(path, format!("number {number}"), is_text.then_some("int32")),
    }
}

fn string(schema: &Schema, text: &str) -> CheckResult {
    let Some(format) = schema.format.as_deref() else {
        return Ok(());
    };
    let time = |micro| {
        said(go::time_fault(text, micro).unwrap_or_else(|| format!("parsing time {}", quote(text))))
    };
    match format {
        "byte" if !formats::is_base64(text) => {
            Err(Box::new(TypeFault::Base64(go::base64_fault(text))))
        }
        "date-time" if schema.short_name() == "MicroTime" && !formats::is_micro_time(text) => {
            time(true)
        }
        "date-time" if !formats::is_rfc3339(text) => time(false),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{core, schema};
    use ferrokube_apimachinery::document::json;

    fn refused(kind: &str, value: Value) -> String {
        check_types(&core(kind), &value).unwrap_err()
    }

    #[test]
    fn wrong_json_types_are_named() {
        assert_eq!(
            refused("ConfigMap", json!({"metadata": {"labels": {"k": 1}}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
        );
        assert_eq!(
            refused("ConfigMap", json!({"data": ["x"]})),
            "json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string"
        );
        assert_eq!(
            refused("ConfigMap", json!({"metadata": "a"})),
            "json: cannot unmarshal string into Go struct field ConfigMap.metadata of type v1.ObjectMeta"
        );
        assert_eq!(
            refused("ConfigMap", json!({"metadata": {"managedFields": "x"}})),
            "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.managedFields of type []v1.ManagedFieldsEntry"
        );
        assert_eq!(
            refused("ServiceAccount", json!({"secrets": [{"name": true}]})),
            "json: cannot unmarshal bool into Go struct field ObjectReference.secrets.name of type string"
        );
        assert_eq!(
            refused("ConfigMap", json!([])),
            "json: cannot unmarshal array into Go value of type v1.ConfigMap"
        );
    }

    #[test]
    fn fields_below_a_decoder_of_its_own_are_named() {
        let crd = schema(
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceValidation",
        );
        let refused = |root: Value| {
            check_types(&crd, &json!({ "openAPIV3Schema": root })).err().unwrap_or_default()
        };
        let wrong = |given: &str, field: &str, kind: &str| {
            format!(
                "json: cannot unmarshal {given} into Go struct field JSONSchemaProps.openAPIV3Schema.{field} of type {kind}"
            )
        };
        for at in ["items", "additionalProperties", "not"] {
            let root = json!({ at: {"description": 1} });
            assert_eq!(refused(root), wrong("number", &format!("{at}.description"), "string"));
        }
        let root = json!({"items": [{"items": {"type": true}}]});
        assert_eq!(refused(root), wrong("bool", "items.items.type", "string"));
        let root = json!({"items": [1]});
        assert_eq!(refused(root), wrong("number", "items", "v1.JSONSchemaProps"));
        let root = json!({"dependencies": {"a": {"type": 1}}});
        assert_eq!(refused(root), wrong("number", "dependencies.type", "string"));
        let root = json!({"dependencies": {"a": ["b", 1]}});
        assert_eq!(refused(root), wrong("number", "dependencies", "string"));
        assert_eq!(refused(json!({"items": "x", "dependencies": {"a": ["b"]}})), "");
    }

    #[test]
    fn embedded_structs_are_named() {
        let hook = schema("io.k8s.api.admissionregistration.v1.ValidatingWebhook");
        let refused = |value: Value| check_types(&hook, &value).unwrap_err();
        assert_eq!(
            refused(json!({"rules": [{"apiGroups": [1]}]})),
            "json: cannot unmarshal number into Go struct field RuleWithOperations.rules.Rule.apiGroups of type string"
        );
        assert_eq!(
            refused(json!({"rules": [{"operations": 1}]})),
            "json: cannot unmarshal number into Go struct field RuleWithOperations.rules.operations of type []v1.OperationType"
        );
        let policy = schema("io.k8s.api.admissionregistration.v1.MatchResources");
        assert_eq!(
            check_types(&policy, &json!({"resourceRules": [{"scope": 1}]})).unwrap_err(),
            "json: cannot unmarshal number into Go struct field NamedRuleWithOperations.resourceRules.RuleWithOperations.Rule.scope of type v1.ScopeType"
        );
    }

    #[test]
    fn types_have_go_names() {
        let quota = |spec: Value| refused("ResourceQuota", json!({"spec": spec}));
        let field = |given: &str, field: &str, kind: &str| {
            format!("json: cannot unmarshal {given} into Go struct field {field} of type {kind}")
        };
        assert_eq!(
            quota(json!({"hard": 1})),
            field("number", "ResourceQuotaSpec.spec.hard", "v1.ResourceList")
        );
        assert_eq!(quota(json!({"hard": {"a": {}}})), FORMAT_WRONG);
        assert_eq!(
            quota(json!({"scopes": [1]})),
            field("number", "ResourceQuotaSpec.spec.scopes", "v1.ResourceQuotaScope")
        );
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        let lease = |spec: Value| check_types(&lease, &json!({"spec": spec})).unwrap_err();
        assert_eq!(lease(json!(1)), field("number", "Lease.spec", "v1.LeaseSpec"));
        assert_eq!(
            lease(json!({"leaseTransitions": 2147483648_i64})),
            field("number 2147483648", "LeaseSpec.spec.leaseTransitions", "int32")
        );
        assert_eq!(
            lease(json!({"renewTime": [1]})),
            field("array", "LeaseSpec.spec.renewTime", "string")
        );
        assert_eq!(
            refused("Secret", json!({"data": {"k": 1}})),
            field("number", "Secret.data", "[]uint8")
        );
        assert_eq!(
            refused("Secret", json!({"type": 1})),
            field("number", "Secret.type", "v1.SecretType")
        );
        assert_eq!(
            refused("Secret", json!({"metadata": {"uid": 1}})),
            field("number", "ObjectMeta.metadata.uid", "types.UID")
        );
    }

    #[test]
    fn nulls_and_unknown_fields_pass() {
        check_types(
            &core("Secret"),
            &json!({"data": {"k": null}, "metadata": null, "immutable": null, "nope": [1]}),
        )
        .unwrap();
    }

    #[test]
    fn base64_is_checked_without_quoting_it() {
        for bad in ["***", "dg", "dgo", "d===", "a b="] {
            let error = refused("Secret", json!({"data": {"k": bad}}));
            assert!(error.starts_with("illegal base64 data at input byte "), "{error}");
        }
        for good in ["", "dg==", "dgo=", "dg==\n", "Zm9v\r\nYmFy"] {
            check_types(&core("Secret"), &json!({"data": {"k": good}})).unwrap();
        }
    }

    #[test]
    fn integers_fit_and_are_written_as_integers() {
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        let check =
            |value: Value| check_types(&lease, &json!({"spec": {"leaseTransitions": value}}));
        check(json!(2147483647)).unwrap();
        for bad in [json!(2147483648_i64), json!(1000.0), json!(1.5), json!("15"), json!(true)] {
            check(bad).unwrap_err();
        }
    }

    #[test]
    fn lease_times_have_exactly_microseconds() {
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        let check = |text: &str| check_types(&lease, &json!({"spec": {"renewTime": text}}));
        check("2024-01-02T03:04:05.000000Z").unwrap();
        check("2024-01-02T03:04:05.123456+02:00").unwrap();
        for bad in [
            "2024-01-02T03:04:05Z",
            "2024-01-02T03:04:05.123Z",
            "2024-01-02T03:04:05.1234567Z",
            "junk",
            "",
        ] {
            check(bad).unwrap_err();
        }
        let event = |text: &str| check_types(&core("Event"), &json!({"firstTimestamp": text}));
        event("2024-01-02T03:04:05Z").unwrap();
        event("2024-01-02T03:04:05.5+01:30").unwrap();
        // One later time would hide all objects of a list from clients that cannot read it.
        event("9999-12-30T22:00:00Z").unwrap();
        event("9999-12-31T23:59:59Z").unwrap_err();
        event("9999-12-30T21:59:59-00:01").unwrap_err();
        event("2024-02-30T03:04:05Z").unwrap_err();
        event("2024-01-02 03:04:05Z").unwrap_err();
    }
}
