//! Request policies of device capacities.

use crate::checks::{FieldErrors, given, items};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::quantity::Quantity;
use std::collections::HashSet;

/// Max valid values of a policy.
const MAX_VALUES: usize = 10;

/// Checks the policy of a capacity.
pub(super) fn check_policy(
    policy: &Value,
    capacity: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let values = items(policy, "validValues");
    let range = given(policy, "validRange");
    let of = match (values.is_empty(), range) {
        (false, Some(_)) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
            return errors.forbidden(path, why);
        }
        (false, None) => "validValues",
        (true, Some(_)) => "validRange",
        (true, None) => return,
    };
    let Some(default) = amount(policy, "default") else {
        let why = format!("required when {of} is defined");
        return errors.required(path.field("default"), &why);
    };
    let most = amount(capacity, "value").unwrap_or_default();
    match range {
        Some(range) => check_range(range, &default, &most, path.field(of), errors),
        None => check_values(values, &default, &most, path.field(of), errors),
    }
}

fn amount(value: &Value, field: &str) -> Option<Quantity> {
    Quantity::from_value(given(value, field)?).ok()
}

fn check_values(
    values: &[Value],
    default: &Quantity,
    most: &Quantity,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let amounts: Vec<Quantity> =
        values.iter().map(|value| Quantity::from_value(value).unwrap_or_default()).collect();
    for (index, pair) in amounts.windows(2).enumerate().take(MAX_VALUES) {
        if pair[0] > pair[1] {
            let why = "values must be sorted in ascending order";
            errors.invalid(path.index(index + 1), pair[1].canonical(), why);
        }
    }
    if amounts.len() > MAX_VALUES {
        errors.push(|| FieldError::too_many(path, amounts.len(), MAX_VALUES));
    } else {
        let mut seen = HashSet::new();
        for (index, value) in amounts.iter().enumerate() {
            if value > most {
                let why = format!("option is larger than capacity value: {}", most.canonical());
                errors.invalid(path.index(index), value.canonical(), &why);
            }
            if !seen.insert(value.value()) {
                errors.duplicate(path.index(index), value.value().to_string());
            }
        }
    }
    if amounts.len() > MAX_VALUES || !amounts.contains(default) {
        let why = "default value is not valid according to the requestPolicy";
        errors.invalid(path, default.canonical(), why);
    }
}

fn check_range(
    range: &Value,
    default: &Quantity,
    most: &Quantity,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(min) = amount(range, "min") else {
        return errors.required(path.field("min"), "required when validRange is defined");
    };
    let mut refuse = |field: &str, value: &Quantity, why: &str, bound: &Quantity| {
        let why = format!("{why}: {}", bound.canonical());
        errors.invalid(path.field(field), value.canonical(), &why);
    };
    if &min > most {
        refuse("min", &min, "min is larger than capacity value", most);
    }
    if &min > default {
        refuse("min", default, "default is less than min", &min);
    }
    let max = amount(range, "max");
    if let Some(max) = &max {
        if &min > max {
            refuse("max", &min, "min is larger than max", max);
        }
        if max > most {
            refuse("max", max, "max is larger than capacity value", most);
        }
        if default > max {
            refuse("max", default, "default is more than max", max);
        }
    }
    let Some(step) = amount(range, "step") else { return };
    let first = min.add(&step);
    let below = path.field("step");
    if &first > most {
        let (first, most) = (first.canonical(), most.canonical());
        let why = format!("one step {first} is larger than capacity value: {most}");
        errors.invalid(below, step.canonical(), &why);
    }
    for value in [Some(default), max.as_ref()].into_iter().flatten() {
        let beyond = value.value().wrapping_sub(min.value());
        // A step of nothing, on which kube-apiserver panics, has no multiples.
        if beyond.checked_rem(step.value()).unwrap_or(1) != 0 {
            let (step, min) = (step.canonical(), min.canonical());
            let why = format!("value is not a multiple of a given step ({step}) from ({min})");
            errors.invalid(below, value.canonical(), &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn errors(policy: Value, most: &str) -> Vec<String> {
        let (mut errors, root) = (FieldErrors::default(), FieldPath::Root);
        check_policy(&policy, &json!({"value": most}), root.field("p"), &mut errors);
        let shown = |error: FieldError| format!("{}: {}", error.field, error.message);
        errors.into_vec().into_iter().map(shown).collect()
    }

    #[test]
    fn a_policy_has_one_form_and_a_default() {
        let both = json!({"validValues": ["1"], "validRange": {"min": "1"}, "default": "1"});
        assert_eq!(errors(both, "1").len(), 1);
        assert_eq!(
            errors(json!({"validValues": ["1"]}), "1"),
            ["p.default: Required value: required when validValues is defined"]
        );
        assert!(errors(json!({"default": "5"}), "1").is_empty());
    }

    #[test]
    fn values_are_sorted_and_the_default_is_one_of_them() {
        let policy = json!({"validValues": ["1", "2", "2", "11", "3"], "default": "4"});
        assert_eq!(
            errors(policy, "10"),
            [
                r#"p.validValues[4]: Invalid value: "3": values must be sorted in ascending order"#,
                r#"p.validValues[2]: Duplicate value: "2""#,
                r#"p.validValues[3]: Invalid value: "11": option is larger than capacity value: 10"#,
                r#"p.validValues: Invalid value: "4": default value is not valid according to the requestPolicy"#,
            ]
        );
        assert!(errors(json!({"validValues": ["1", "2"], "default": "2000m"}), "2").is_empty());
    }

    #[test]
    fn ranges_hold_their_default_and_go_by_steps() {
        let range = json!({"min": "2", "max": "11", "step": "4"});
        assert_eq!(
            errors(json!({"validRange": range, "default": "1"}), "10"),
            [
                r#"p.validRange.min: Invalid value: "1": default is less than min: 2"#,
                r#"p.validRange.max: Invalid value: "11": max is larger than capacity value: 10"#,
                r#"p.validRange.step: Invalid value: "1": value is not a multiple of a given step (4) from (2)"#,
                r#"p.validRange.step: Invalid value: "11": value is not a multiple of a given step (4) from (2)"#,
            ]
        );
        let range = json!({"min": "1Gi", "max": "4Gi", "step": "1Gi"});
        assert!(errors(json!({"validRange": range, "default": "2Gi"}), "4Gi").is_empty());
        let nothing = json!({"min": "1", "step": "0"});
        assert_eq!(errors(json!({"validRange": nothing, "default": "1"}), "4").len(), 1);
    }
}
