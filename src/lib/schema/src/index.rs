//! Per-node lookup tables for walks, built once, so that the cost of a value follows the value and
//! not the schema.

use crate::schema::{Emit, Schema};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Longer enumerations are looked up by hash.
const MAX_SCANNED: usize = 16;

/// Lookup tables of a schema node, built on first use. A changed node needs a new one.
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    fields: OnceLock<FieldNames>,
    defaulted: OnceLock<Box<[Defaulted]>>,
    allowed: OnceLock<HashSet<String>>,
}

#[derive(Clone, Debug, Default)]
struct FieldNames {
    required: Box<[Arc<str>]>,
    always: Box<[Arc<str>]>,
}

/// A property with a default.
#[derive(Clone, Debug)]
pub(crate) struct Defaulted {
    pub(crate) name: Arc<str>,
    /// JSON bytes of the property with its default.
    pub(crate) bytes: usize,
}

impl Schema {
    fn fields(&self) -> &FieldNames {
        self.index.fields.get_or_init(|| {
            let named = |with: fn(&crate::schema::Property) -> bool| {
                self.properties
                    .iter()
                    .filter(|(_, one)| with(one))
                    .map(|(name, _)| Arc::clone(name))
                    .collect()
            };
            FieldNames {
                required: named(|one| one.required),
                always: named(|one| matches!(one.emit, Emit::Always | Emit::AlwaysNull)),
            }
        })
    }

    /// Required properties.
    pub(crate) fn required(&self) -> &[Arc<str>] {
        &self.fields().required
    }

    /// Properties that are written even if absent.
    pub fn always(&self) -> &[Arc<str>] {
        &self.fields().always
    }

    /// Properties with a default.
    pub(crate) fn defaulted(&self) -> &[Defaulted] {
        self.index.defaulted.get_or_init(|| {
            let sized = |(name, property): (&Arc<str>, &crate::schema::Property)| {
                let default = property.schema.default.as_ref()?;
                Some(Defaulted {
                    name: Arc::clone(name),
                    bytes: name.len() + 4 + json::to_vec(default).len(),
                })
            };
            self.properties.iter().filter_map(sized).collect()
        })
    }

    /// Whether a value is in the enumeration, if there is one.
    pub(crate) fn allows(&self, value: &Value) -> bool {
        work::count(if self.enumeration.len() > MAX_SCANNED { 1 } else { self.enumeration.len() });
        match self.enumeration.len() {
            0 => true,
            1..=MAX_SCANNED => self.enumeration.iter().any(|allowed| equal(allowed, value)),
            _ => self
                .index
                .allowed
                .get_or_init(|| self.enumeration.iter().map(canonical).collect())
                .contains(&canonical(value)),
        }
    }
}

/// Equal for values that are [`equal`].
fn canonical(value: &Value) -> String {
    match value {
        // As equality: by exact value, or by the nearest float.
        Value::Number(number) => number.as_f64().map_or_else(
            || number.to_string(),
            |float| format!("{:?}", if float == 0.0 { 0.0 } else { float }),
        ),
        other => other.to_string(),
    }
}

/// JSON equality: `1` equals `1.0`.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn a_long_enumeration_allows_what_a_short_one_does() {
        let few = vec![
            json!(1),
            json!("1"),
            json!(2.5),
            json!(0),
            json!(null),
            json!({"a": 1}),
            json!(true),
        ];
        let many =
            few.iter().cloned().chain((0..100).map(|number| json!(format!("x{number}")))).collect();
        let (short, long) = (
            Schema { enumeration: few, ..Schema::default() },
            Schema { enumeration: many, ..Schema::default() },
        );
        for value in [
            json!(1),
            json!(1.0),
            json!("1"),
            json!(2.5),
            json!(-0.0),
            json!(null),
            json!({"a": 1}),
            json!({}),
            json!(2),
            json!("true"),
            json!(true),
        ] {
            assert_eq!(short.allows(&value), long.allows(&value), "{value}");
        }
    }
}
