//! The selectors of an access review, with which an authorizer may allow part of a collection. RBAC
//! ignores them.

use super::access::strings;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::{name, work};

/// In the order in which kube-apiserver reports their errors.
const FIELDS: [&str; 2] = ["fieldSelector", "labelSelector"];

/// Validates a review's selectors: at least the first [`MAX_ERRORS`] errors, as every user may
/// write a hundred thousand. Unknown operators pass: an older server must answer newer clients.
pub(super) fn validate(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in FIELDS {
        let Some((raw, requirements)) = selector_forms(object, field) else { continue };
        let at = format!("spec.resourceAttributes.{field}");
        match (raw.is_empty(), requirements.is_empty()) {
            (false, false) => {
                errors.push(FieldError::invalid(
                    format!("{at}.rawSelector"),
                    raw,
                    "may not specified at the same time as requirements",
                ));
            }
            (true, true) => {
                errors.push(FieldError::required(
                    format!("{at}.requirements"),
                    format!("when {at} is specified, requirements or rawSelector is required"),
                ));
            }
            _ => {}
        }
        for (index, requirement) in requirements.iter().enumerate() {
            work::breathe();
            if errors.len() >= MAX_ERRORS {
                return errors;
            }
            let at = format!("{at}.requirements[{index}]");
            errors.extend(values(requirement, &at));
            errors.extend(if field == "fieldSelector" {
                field_key(requirement, &at)
            } else {
                label(requirement, &at)
            });
        }
    }
    errors
}

/// The warning for a selector that is ignored, wholly or partly, because it cannot be parsed. The
/// request is then authorized without it, which takes more rights.
pub(super) fn ignored(object: &Document) -> Option<String> {
    let sentences: Vec<String> = FIELDS
        .into_iter()
        .filter_map(|field| {
            let (raw, requirements) = selector_forms(object, field)?;
            let (understood, all) = match (raw, field) {
                ("", _) => (
                    requirements
                        .iter()
                        .filter(|requirement| is_understood(requirement, field))
                        .count(),
                    requirements.len(),
                ),
                (raw, "fieldSelector") => (usize::from(FieldSelector::parse(raw).is_ok()), 1),
                (raw, _) => (usize::from(LabelSelector::parse(raw).is_ok()), 1),
            };
            let partially = if understood > 0 { "partially " } else { "" };
            (understood < all).then(|| {
                format!("spec.resourceAttributes.{field} {partially}ignored due to parse error")
            })
        })
        .collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// The raw and the parsed form of a selector; `None` without one.
fn selector_forms<'a>(object: &'a Document, field: &str) -> Option<(&'a str, &'a [Value])> {
    let path = ["spec", "resourceAttributes", field];
    object.get(&path).filter(|value| !value.is_null())?;
    let raw = object.str(&[path[0], path[1], path[2], "rawSelector"]).unwrap_or_default();
    Some((raw, object.list(&[path[0], path[1], path[2], "requirements"])))
}

fn text<'a>(requirement: &'a Value, field: &str) -> &'a str {
    requirement.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is_understood(requirement: &Value, field: &str) -> bool {
    let values = strings(requirement.get("values")).len();
    match text(requirement, "operator") {
        "In" | "NotIn" => field == "labelSelector" || values == 1,
        "Exists" | "DoesNotExist" => field == "labelSelector",
        _ => false,
    }
}

fn values(requirement: &Value, at: &str) -> Option<FieldError> {
    match (text(requirement, "operator"), strings(requirement.get("values")).is_empty()) {
        ("In" | "NotIn", true) => Some(FieldError::required(
            format!("{at}.values"),
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        ("Exists" | "DoesNotExist", false) => Some(FieldError::forbidden(
            format!("{at}.values"),
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        _ => None,
    }
}

fn field_key(requirement: &Value, at: &str) -> Vec<FieldError> {
    if text(requirement, "key").is_empty() {
        vec![FieldError::required(format!("{at}.key"), "must be specified")]
    } else {
        Vec::new()
    }
}

fn label(requirement: &Value, at: &str) -> Vec<FieldError> {
    let key = text(requirement, "key");
    let mut errors: Vec<FieldError> = name::qualified_name(key)
        .into_iter()
        .map(|sentence| FieldError::invalid(format!("{at}.key"), key, sentence))
        .collect();
    for (index, value) in strings(requirement.get("values")).iter().enumerate() {
        work::breathe();
        if errors.len() >= MAX_ERRORS {
            break;
        }
        errors.extend(
            name::label_value(value).into_iter().map(|sentence| {
                FieldError::invalid(format!("{at}.values[{index}]"), value, sentence)
            }),
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_apimachinery::field::FieldReason;

    fn review(field: &str, selector: Value) -> Document {
        let mut object = Document::new();
        object.set(&["spec", "resourceAttributes", field], selector);
        object
    }

    fn wrong(field: &str, requirement: Value) -> Vec<(FieldReason, String)> {
        let errors = validate(&review(field, json!({ "requirements": [requirement] })));
        errors
            .into_iter()
            .map(|error| {
                (error.reason, error.field.rsplit('.').next().unwrap_or_default().to_owned())
            })
            .collect()
    }

    /// Every user may review its own rights.
    #[test]
    fn fault_34_no_review_makes_more_errors_than_are_shown() {
        const MANY: usize = 20_000;
        let list = |one: Value| Value::from(vec![one; MANY]);
        let values = json!({"key": "a", "operator": "In", "values": list(json!("-"))});
        let requirements = json!({ "requirements": list(json!({})) });
        for selector in [json!({ "requirements": [values] }), requirements] {
            let errors = validate(&review("labelSelector", selector)).len();
            assert!((MAX_ERRORS..2 * MAX_ERRORS).contains(&errors), "{errors}");
        }
    }

    #[test]
    fn requirements_are_validated() {
        for field in FIELDS {
            assert_eq!(
                wrong(field, json!({"key": "a", "operator": "In"})),
                [(FieldReason::Required, "values".to_owned())]
            );
            assert_eq!(
                wrong(field, json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                [(FieldReason::Forbidden, "values".to_owned())]
            );
            assert!(
                wrong(field, json!({"key": "a", "operator": "Newer"})).is_empty(),
                "left to newer servers"
            );
            let empty = validate(&review(field, json!({})));
            assert_eq!(
                (empty[0].reason, empty[0].field.as_str()),
                (FieldReason::Required, &*format!("spec.resourceAttributes.{field}.requirements"))
            );
        }
        assert_eq!(
            wrong("fieldSelector", json!({"operator": "Newer"})),
            [(FieldReason::Required, "key".to_owned())]
        );
        assert_eq!(
            wrong("labelSelector", json!({"key": "a b", "operator": "Exists"})),
            [(FieldReason::Invalid, "key".to_owned())]
        );
        assert_eq!(
            wrong("labelSelector", json!({"key": "a", "operator": "In", "values": ["b c"]})),
            [(FieldReason::Invalid, "values[0]".to_owned())]
        );
        assert!(
            wrong("fieldSelector", json!({"key": "a b", "operator": "In", "values": ["b c"]}))
                .is_empty()
        );
    }

    #[test]
    fn unparsable_selectors_are_reported() {
        let warning = |field: &str, selector: Value| ignored(&review(field, selector));
        assert_eq!(warning("labelSelector", json!({"rawSelector": "a in (b)"})), None);
        assert_eq!(
            warning(
                "fieldSelector",
                json!({"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]})
            ),
            None
        );
        let raw = warning("labelSelector", json!({"rawSelector": "a in"}));
        assert_eq!(
            raw.as_deref(),
            Some("spec.resourceAttributes.labelSelector ignored due to parse error")
        );
        let some = json!({"requirements": [{"key": "a", "operator": "In", "values": ["b"]}, {"key": "a", "operator": "Exists"}]});
        assert_eq!(
            warning("fieldSelector", some.clone()).as_deref(),
            Some("spec.resourceAttributes.fieldSelector partially ignored due to parse error")
        );
        assert_eq!(warning("labelSelector", some), None);
    }
}
