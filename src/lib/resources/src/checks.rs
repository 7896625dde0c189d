//! Validation shared by several kinds.

pub(crate) mod client_config;

use ferrokube_apimachinery::document::{Array, Document, Text, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Word};
use ferrokube_apimachinery::{name, work};

/// Data limit of a ConfigMap or Secret.
pub(crate) const MAX_DATA_BYTES: usize = 1024 * 1024;
/// Message about a field of an immutable object.
pub(crate) const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// Validation errors, up to the number that a Status shows. Every loop over user input goes through
/// here.
#[derive(Debug, Default)]
pub(crate) struct ErrorList(Vec<FieldError>);

impl ErrorList {
    /// Checks one item after the other.
    pub(crate) fn check_each<I, E>(&mut self, items: I, check: impl Fn(I::Item) -> E)
    where
        I: IntoIterator,
        E: IntoIterator<Item = FieldError>,
    {
        for item in items {
            if self.0.len() >= MAX_ERRORS {
                return;
            }
            work::count(1);
            self.0.extend(check(item));
        }
    }

    /// Appends errors that were made already.
    pub(crate) fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.0.extend(errors);
    }

    pub(crate) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}

/// Whether there are as many errors as a Status shows: further ones are not made.
pub(crate) fn is_full(errors: &[FieldError]) -> bool {
    errors.len() >= MAX_ERRORS
}

/// An error per message.
pub(crate) fn all_invalid(
    field: &str,
    value: &str,
    sentences: Vec<String>,
) -> impl Iterator<Item = FieldError> {
    sentences.into_iter().map(move |sentence| FieldError::invalid(field, value, sentence))
}

/// A string field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// An array field; empty if absent.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

/// Entries of a map; empty if absent.
pub(crate) fn entries<'a>(
    object: &'a Document,
    path: &[&str],
) -> impl Iterator<Item = (&'a Text, &'a Value)> + use<'a> {
    object.get(path).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a field is true.
pub(crate) fn is_true(object: &Document, path: &[&str]) -> bool {
    object.get(path).and_then(Value::as_bool).unwrap_or(false)
}

/// Restores a field, also if it is absent.
pub(crate) fn keep_stored(old: &Document, object: &mut Document, field: &str) {
    match old.get(&[field]) {
        Some(value) => object.set(&[field], value.clone()),
        None => {
            object.remove(&[field]);
        }
    }
}

/// Errors in a namespace finalizer: a qualified name with a domain, or a standard one.
pub(crate) fn finalizer(name: &str) -> Vec<String> {
    let mut sentences = name::qualified_name(name);
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        sentences
            .push("name is neither a standard finalizer name nor is it fully qualified".to_owned());
    }
    sentences
}

/// Errors in a label selector (`matchLabels`, `matchExpressions`).
pub(crate) fn label_selector(selector: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = ErrorList::default();
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    errors.check_each(labels, |(key, value)| {
        let field = format!("{path}.matchLabels");
        let value = value.as_str().unwrap_or_default();
        let of_key = all_invalid(&field, key, name::qualified_name(key));
        of_key.chain(all_invalid(&field, value, name::label_value(value))).collect::<Vec<_>>()
    });
    errors.check_each(items(selector, "matchExpressions").iter().enumerate(), |(index, one)| {
        label_requirement(one, &format!("{path}.matchExpressions[{index}]"))
    });
    errors.into_vec()
}

fn label_requirement(requirement: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut of_values = ErrorList::default();
    let values = items(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
            format!("{path}.values"),
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(FieldError::forbidden(
                format!("{path}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(FieldError::invalid(
            format!("{path}.operator"),
            Word(other),
            "not a valid selector operator",
        )),
    }
    let key = text(requirement, "key");
    errors.extend(all_invalid(&format!("{path}.key"), key, name::qualified_name(key)));
    of_values.check_each(values.iter().enumerate(), |(index, value)| {
        let value = value.as_str().unwrap_or_default();
        all_invalid(&format!("{path}.values[{index}]"), value, name::label_value(value))
            .collect::<Vec<_>>()
    });
    errors.extend(of_values.into_vec());
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_resource::Change;
    use std::collections::BTreeMap;

    /// Each error has a text, and at most a hundred are shown.
    #[test]
    fn fault_34_no_kind_makes_more_errors_than_are_shown() {
        const MANY: usize = 20_000;
        let list = |one: Value| Value::from(vec![one; MANY]);
        let mut keys = ferrokube_apimachinery::document::Map::new();
        for number in 0..MANY {
            keys.insert(format!("{number} !"), Value::from("eA=="));
        }
        let keys = Value::Object(keys);
        let cases = [
            ("configmaps", "", json!({"data": keys.clone(), "binaryData": keys.clone()})),
            ("secrets", "", json!({"data": keys})),
            ("namespaces", "", json!({"spec": {"finalizers": list(json!("a b"))}})),
            ("rolebindings", "", json!({"subjects": list(json!({"kind": "X"}))})),
            ("roles", "", json!({"rules": list(json!({}))})),
            (
                "roles",
                "",
                json!({"rules": list(json!({"verbs": ["a"], "nonResourceURLs": ["/"]}))}),
            ),
            (
                "clusterroles",
                "",
                json!({"aggregationRule": {"clusterRoleSelectors": list(json!({"matchLabels": {"a b": "c"}}))}}),
            ),
            ("validatingwebhookconfigurations", "", json!({"webhooks": list(json!({}))})),
            (
                "validatingwebhookconfigurations",
                "",
                json!({"webhooks": [{"rules": list(json!({})), "admissionReviewVersions": list(json!("A B"))}]}),
            ),
            ("validatingadmissionpolicies", "", json!({"spec": {"validations": list(json!({}))}})),
            (
                "validatingadmissionpolicies",
                "",
                json!({"spec": {"auditAnnotations": list(json!({}))}}),
            ),
            ("mutatingadmissionpolicies", "", json!({"spec": {"mutations": list(json!({}))}})),
            (
                "validatingadmissionpolicybindings",
                "",
                json!({"spec": {"validationActions": list(json!("Never"))}}),
            ),
            ("flowschemas", "", json!({"spec": {"rules": list(json!({}))}})),
            ("flowschemas", "", json!({"spec": {"rules": [{"subjects": list(json!({}))}]}})),
            (
                "customresourcedefinitions",
                "",
                json!({"spec": {"names": {"shortNames": list(json!("A B")), "categories": list(json!("A B"))}}}),
            ),
        ];
        let definitions = crate::definitions(crate::tables());
        for (plural, subresource, object) in cases {
            let definition = definitions.iter().find(|found| found.plural == plural);
            let object = Document::from_value(object).expect("an object");
            let extra = BTreeMap::new();
            let change = Change {
                old: None,
                subresource,
                version: "v1",
                user: "",
                user_uid: "",
                groups: &[],
                user_extra: &extra,
                now: std::time::SystemTime::UNIX_EPOCH,
            };
            let hooks = &definition.expect("bundled").hooks;
            let (errors, steps) = work::counted(|| hooks.validate(&change, &object));
            assert!(
                (MAX_ERRORS..=4 * MAX_ERRORS).contains(&errors.len()),
                "{plural}: {}",
                errors.len()
            );
            // The bytes that are quoted, of a few of the items.
            assert!(steps <= MANY as u64 / 4, "{plural}: {steps} steps");
        }
        let selector = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": list(json!("a b"))}]});
        assert_eq!(label_selector(&selector, "s").len(), MAX_ERRORS);
    }

    #[test]
    fn fault_42_a_definition_has_a_bounded_number_of_versions() {
        let definitions = crate::definitions(crate::tables());
        let kind = "customresourcedefinitions";
        let hooks = &definitions.iter().find(|it| it.plural == kind).expect("bundled").hooks;
        let extra = BTreeMap::new();
        let too_many = |count: usize| {
            let one = |n: usize| json!({"name": format!("v{n}"), "schema": {"openAPIV3Schema": {"type": "object"}}});
            let versions: Vec<Value> = (1..=count).map(one).collect();
            let stored: Vec<Value> = vec![Value::from("v0"); count];
            let object =
                json!({"spec": {"versions": versions}, "status": {"storedVersions": stored}});
            let object = Document::from_value(object).expect("an object");
            let change = Change {
                old: None,
                subresource: "",
                version: "v1",
                user: "",
                user_uid: "",
                groups: &[],
                user_extra: &extra,
                now: std::time::SystemTime::UNIX_EPOCH,
            };
            let errors = hooks.validate(&change, &object);
            assert!(errors.len() < 4 * MAX_ERRORS, "{}", errors.len());
            errors.iter().any(|error| error.message.starts_with("Too many"))
        };
        assert_eq!([100, 101, 10_000].map(too_many), [false, true, true]);
    }

    #[test]
    fn selectors() {
        let errors = label_selector(
            &json!({"matchLabels": {"a b": "c"}, "matchExpressions": [{"key": "k", "operator": "In"}, {"key": "k", "operator": "Exists", "values": ["x"]}, {"key": "k", "operator": "Like"}]}),
            "s",
        );
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "s.matchLabels",
                "s.matchExpressions[0].values",
                "s.matchExpressions[1].values",
                "s.matchExpressions[2].operator"
            ]
        );
    }
}
