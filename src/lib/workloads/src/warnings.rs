//! Warnings: rows of `rules.tsv` whose rule starts with `warn`. They apply to accepted objects,
//! too.
//!
//! | rule | warns of the field |
//! |---|---|
//! | `warn` | whenever the conditions hold: its path, then the row's message |
//! | `warn-plain` | likewise, with the message only |
//! | `warn-ip`, `warn-cidr` | if it is an address or CIDR in a non-canonical form |
//! | `warn-label` | if it is a deprecated label of nodes |
//! | `warn-values` | values in its expressions that no label has |
//! | `warn-fraction` | if it is an amount of bytes that is not whole |
//! | `warn-negative` | if it is such a number |

use crate::checks;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::quantity::Quantity;
use std::net::IpAddr;

/// Most warnings of one object.
const MOST: usize = 64;

/// Labels of nodes that have other names now.
const LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Warnings, until there are as many as a response may have.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Vec<String>);

impl Warnings {
    pub(crate) fn push(&mut self, text: impl Into<String>) {
        if self.0.len() < MOST {
            self.0.push(text.into());
        }
    }

    pub(crate) fn at(&mut self, path: FieldPath<'_>, text: &str) {
        if self.0.len() < MOST {
            self.0.push(format!("{path}: {text}"));
        }
    }

    pub(crate) fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Appends the warnings of a row.
pub(crate) type WarnFn = fn(Option<&Value>, FieldPath<'_>, &str, &mut Warnings);

pub(crate) fn function(word: &str) -> Option<WarnFn> {
    Some(match word {
        "warn" => |_, path, text, out| out.at(path, text),
        "warn-plain" => |_, _, text, out| out.push(text),
        "warn-ip" => |value, path, _, out| {
            if let Some(text) = value.and_then(Value::as_str) {
                ip(text, path, out);
            }
        },
        "warn-cidr" => |value, path, _, out| {
            if let Some(text) = value.and_then(Value::as_str) {
                cidr(text, path, out);
            }
        },
        "warn-label" => |value, path, _, out| {
            let key = value.and_then(Value::as_str).unwrap_or_default();
            if let Some(why) = label(key) {
                out.at(path, &format!("{key} is {why}"));
            }
        },
        "warn-label-key" => |value, path, _, out| {
            let key = value.and_then(Value::as_str).unwrap_or_default();
            if let Some(why) = label(key) {
                out.at(path, why);
            }
        },
        "warn-values" => |value, path, _, out| values(value.unwrap_or(&Value::Null), path, out),
        "warn-fraction" => |value, path, _, out| {
            if let Some(amount) = value.and_then(|value| Quantity::from_value(value).ok()) {
                fraction(&amount, path, out);
            }
        },
        "warn-negative" => |value, path, text, out| {
            if value.and_then(Value::as_i64).is_some_and(|number| number < 0) {
                out.at(path, text);
            }
        },
        _ => return None,
    })
}

/// Why a label of nodes should not be used.
pub(crate) fn label(key: &str) -> Option<&'static str> {
    LABELS.iter().find(|(known, _)| *known == key).map(|(_, why)| *why)
}

/// Warns of values of a term of a node selector that no label can have.
fn values(term: &Value, path: FieldPath<'_>, out: &mut Warnings) {
    let of_expressions = path.field("matchExpressions");
    for (at, expression) in checks::items(term, "matchExpressions").iter().enumerate() {
        let of_expression = of_expressions.index(at);
        let of_values = of_expression.field("values");
        for (at, value) in checks::items(expression, "values").iter().enumerate() {
            let text = value.as_str().unwrap_or_default();
            for why in name::label_value(text) {
                out.at(of_values.index(at), &format!("{text} is invalid, {why}"));
            }
        }
    }
}

/// Warns of an amount that is not whole.
pub(crate) fn fraction(amount: &Quantity, path: FieldPath<'_>, out: &mut Warnings) {
    if amount.milli_value() % 1000 != 0 {
        let text = format!(
            "fractional byte value {:?} is invalid, must be an integer",
            amount.canonical()
        );
        out.at(path, &text);
    }
}

fn ip(text: &str, path: FieldPath<'_>, out: &mut Warnings) {
    let Ok(address) = text.parse::<IpAddr>() else {
        if let Some(plain) = checks::without_zeros(text) {
            let why = format!("non-standard IP address {text:?} is invalid: use \"{plain}\"");
            out.at(path, &why);
        }
        return;
    };
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => {
            let plain = six.to_ipv4_mapped().map(|four| four.to_string()).unwrap_or_default();
            let why = format!("non-standard IP address {text:?} is invalid: use {plain:?}");
            out.at(path, &why);
        }
        IpAddr::V6(six) if six.to_string() != text => {
            let canonical = six.to_string();
            let why = format!(
                "IPv6 address {text:?} should be in RFC 5952 canonical format ({canonical:?})"
            );
            out.at(path, &why);
        }
        _ => {}
    }
}

fn cidr(text: &str, path: FieldPath<'_>, out: &mut Warnings) {
    let Some((address, length)) = checks::parse_cidr(text) else { return };
    let first = checks::masked(address, length);
    if first != address {
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let why = format!(
            "CIDR value {text:?} is ambiguous in this context (should be \"{first}/{length}\" or \"{address}/{whole}\"?)"
        );
        out.at(path, &why);
    } else if !address.is_ipv4() && format!("{address}/{length}") != text {
        let why = format!(
            "IPv6 CIDR value {text:?} should be in RFC 5952 canonical format (\"{address}/{length}\")"
        );
        out.at(path, &why);
    }
}
