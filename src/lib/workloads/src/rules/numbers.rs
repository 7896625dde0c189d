//! Rules about numbers and amounts.

use super::field::{CheckFn, RuledField};
use crate::checks::{FieldErrors, PORT, is_port};
use crate::conditions::find;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::quantity::Quantity;

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(crate) const NO_AMOUNT: &str = "must be a valid resource quantity";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "min" => |it, errors| {
            let least = it.bound();
            if let Some(number) = it.number().filter(|number| *number < least) {
                let usual = format!("must be greater than or equal to {least}");
                errors.invalid(it.path, number, it.detail(&usual));
            }
        },
        "most" => |it, errors| {
            if let Some(number) = it.number().filter(|number| *number > it.bound()) {
                errors.invalid(it.path, number, it.detail(""));
            }
        },
        "range" => |it, errors| {
            let Some((first, last)) = it.rule.argument.split_once('-') else { return };
            let bound = |text: &str| text.parse::<i64>().unwrap_or_default();
            let (first, last) = (bound(first), bound(last));
            if let Some(number) = it.number().filter(|number| !(first..=last).contains(number)) {
                let usual = format!("must be between {first} and {last}, inclusive");
                errors.invalid(it.path, number, it.detail(&usual));
            }
        },
        "positive" => |it, errors| {
            if let Some(number) = it.number().filter(|number| *number <= 0) {
                errors.invalid(it.path, number, it.detail("must be greater than zero"));
            }
        },
        "positive0" => |it, errors| {
            let number = it.number().unwrap_or_default();
            if number <= 0 {
                errors.invalid(it.path, number, it.detail("must be greater than zero"));
            }
        },
        "nonzero" => |it, errors| {
            if it.number() == Some(0) {
                errors.invalid(it.path, 0, it.detail(""));
            }
        },
        "port" => |it, errors| {
            if let Some(number) = it.number().filter(|number| !is_port(*number)) {
                errors.invalid(it.path, number, PORT);
            }
        },
        "port!" => |it, errors| {
            let number = it.number().unwrap_or_default();
            if !is_port(number) {
                errors.invalid(it.path, number, PORT);
            }
        },
        "atmost" => |it, errors| {
            let number = it.number().unwrap_or_default();
            if number > it.other() {
                errors.invalid(it.path, number, it.detail(""));
            }
        },
        "atleast" => |it, errors| {
            let number = it.number().unwrap_or_default();
            if number < it.other() {
                errors.invalid(it.path, number, it.detail(""));
            }
        },
        "above" => |it, errors| {
            if let Some(number) = it.number().filter(|number| *number <= it.other()) {
                errors.invalid(it.path, number, it.detail(""));
            }
        },
        "grows" => |it, errors| {
            let before = it.old.and_then(|old| find(old, &it.rule.path)).and_then(Value::as_i64);
            let number = it.number().unwrap_or_default();
            if before.is_some_and(|before| number < before) {
                errors.invalid(it.path, number, it.detail(""));
            }
        },
        word => return amounts(word),
    })
}

/// Rules about quantities and percentages.
fn amounts(word: &str) -> Option<CheckFn> {
    Some(match word {
        "exitcodes" => exit_codes,
        "quantity" => |it, errors| amount(it, errors, |amount| !amount.is_negative(), NOT_NEGATIVE),
        "quantity-positive" => |it, errors| {
            let fits = |amount: &Quantity| !amount.is_negative() && !amount.is_zero();
            amount(it, errors, fits, "must be positive");
        },
        "mindomains" => |it, errors| {
            let when = it.object.get("whenUnsatisfiable").and_then(Value::as_str);
            let when = when.unwrap_or_default();
            if let Some(number) = it.number().filter(|_| when != "DoNotSchedule") {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
                );
                errors.invalid(it.path, number, &why);
            }
        },
        // Metrics of which there are some without pods.
        "scaletozero" => |it, errors| {
            let counts = |metric: &Value| {
                let kind = metric.get("type").and_then(Value::as_str);
                matches!(kind, Some("Object" | "External"))
            };
            if !it.items().iter().any(counts) {
                errors.forbidden(it.path, it.detail(""));
            }
        },
        "storagecapacity" => storage_capacity,
        "quantity-forbidden" => |it, errors| {
            if quantity(it).is_some_and(|amount| amount.is_negative()) {
                errors.forbidden(it.path, it.detail(""));
            }
        },
        "quantities" => |it, errors| {
            for (name, value) in it.value.and_then(Value::as_object).into_iter().flatten() {
                if errors.is_full() {
                    return;
                }
                let amount = Quantity::from_value(value).unwrap_or_default().value();
                if amount < 0 {
                    errors.invalid(it.path.key(name), amount, NO_AMOUNT);
                }
            }
        },
        "claimstorage" => claim_storage,
        "percent" => percent,
        "percent100" => |it, errors| {
            if percent_of(it.text()).is_some_and(|percent| percent > 100) {
                errors.invalid(it.path, it.text(), "must not be greater than 100%");
            }
        },
        _ => return None,
    })
}

fn quantity(it: &RuledField<'_>) -> Option<Quantity> {
    Quantity::from_value(it.set()?).ok()
}

fn amount(it: &RuledField<'_>, errors: &mut FieldErrors, fits: fn(&Quantity) -> bool, why: &str) {
    if let Some(amount) = it.value.filter(|value| !value.is_null())
        && Quantity::from_value(amount).is_ok_and(|amount| !fits(&amount))
    {
        errors.invalid(it.path, amount, it.detail(why));
    }
}

/// The storage that a claim requests.
fn claim_storage(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let requested = it.value.and_then(|requests| requests.get("storage"));
    // kube-apiserver's path skips the requests.
    let path = it.path;
    let crate::paths::FieldPath::Field(parent, _) = path else { return };
    let resources = parent.field("resources");
    let path = resources.key("storage");
    match requested.and_then(|amount| Quantity::from_value(amount).ok()) {
        None => errors.required(path, ""),
        Some(amount) if amount.is_negative() || amount.is_zero() => {
            errors.invalid(path, requested, "must be greater than zero");
        }
        Some(_) => {}
    }
}

/// The number of a percentage such as `25%`.
fn percent_of(text: &str) -> Option<u64> {
    let digits = text.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// A number or a percentage.
fn percent(it: &RuledField<'_>, errors: &mut FieldErrors) {
    match it.value {
        Some(Value::String(text)) if percent_of(text).is_none() => {
            errors.invalid(it.path, text.as_str(), PERCENT);
        }
        Some(Value::Number(number)) if number.as_i64().is_some_and(|number| number < 0) => {
            errors.invalid(it.path, number.as_i64().unwrap_or_default(), NOT_NEGATIVE);
        }
        _ => {}
    }
}

/// Ordered and unique.
fn exit_codes(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const MOST: usize = 255;
    let codes: Vec<i64> = it.items().iter().filter_map(Value::as_i64).collect();
    if codes.is_empty() {
        return errors.invalid(it.path, it.value, "at least one value is required");
    }
    if codes.len() > MOST {
        errors.push(|| {
            ferrokube_apimachinery::field::FieldError::too_many(it.path, codes.len(), MOST)
        });
    }
    let mut seen = std::collections::HashSet::new();
    for (at, code) in codes.iter().enumerate() {
        if !seen.insert(*code) {
            errors.duplicate(it.path.index(at), *code);
        }
    }
    if !codes.is_sorted() {
        errors.invalid(it.path, it.value, "must be ordered");
    }
}

/// An amount of storage, the only allowed resource.
fn storage_capacity(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let none = Map::new();
    let amounts = it.value.and_then(Value::as_object).unwrap_or(&none);
    if amounts.len() != 1 || !amounts.contains_key("storage") {
        let shown = it.value.cloned().unwrap_or_default();
        errors.not_supported(it.path, &shown, &["storage"]);
    }
    for (name, value) in amounts {
        if errors.is_full() {
            return;
        }
        let amount = Quantity::from_value(value).unwrap_or_default();
        if amount.value() < 0 {
            errors.invalid(it.path.key(name), amount.value(), NO_AMOUNT);
        }
        if amount.is_zero() || amount.is_negative() {
            errors.invalid(it.path.key(name), amount.canonical(), "must be greater than zero");
        }
    }
}
