//! What a node's walks look up for each value: found once, so that a value costs what it holds and
//! not what its schema could hold.

use crate::schema::{Emit, Schema};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Enumerations with more values are looked up by a hash.
const FEW: usize = 16;

/// Parts of a schema's node, found on first use. A node that changes afterwards takes a new one.
#[derive(Clone, Debug, Default)]
pub struct Index {
    fields: OnceLock<Fields>,
    defaulted: OnceLock<Box<[Defaulted]>>,
    allowed: OnceLock<HashSet<String>>,
}

#[derive(Clone, Debug, Default)]
struct Fields {
    required: Box<[Arc<str>]>,
    always: Box<[Arc<str>]>,
}

/// A property with a default.
#[derive(Clone, Debug)]
pub(crate) struct Defaulted {
    pub(crate) name: Arc<str>,
    /// Of the property with its default, as JSON.
    pub(crate) bytes: usize,
}

impl Schema {
    fn fields(&self) -> &Fields {
        self.index.fields.get_or_init(|| {
            let named = |with: fn(&crate::schema::Property) -> bool| {
                self.properties
                    .iter()
                    .filter(|(_, one)| with(one))
                    .map(|(name, _)| Arc::clone(name))
                    .collect()
            };
            Fields {
                required: named(|one| one.required),
                always: named(|one| matches!(one.emit, Emit::Always | Emit::AlwaysNull)),
            }
        })
    }

    /// The properties that must be there.
    pub(crate) fn required(&self) -> &[Arc<str>] {
        &self.fields().required
    }

    /// The properties that are written even where they are absent.
    pub(crate) fn always(&self) -> &[Arc<str>] {
        &self.fields().always
    }

    /// The properties with a default.
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

    /// Whether a value is one of the enumeration, if there is any.
    pub(crate) fn allows(&self, value: &Value) -> bool {
        work::count(if self.enumeration.len() > FEW { 1 } else { self.enumeration.len() });
        match self.enumeration.len() {
            0 => true,
            1..=FEW => self.enumeration.iter().any(|allowed| equal(allowed, value)),
            _ => self
                .index
                .allowed
                .get_or_init(|| self.enumeration.iter().map(canonical).collect())
                .contains(&canonical(value)),
        }
    }
}

/// The same text for values that are [`equal`].
fn canonical(value: &Value) -> String {
    match value {
        // As equality has it: by exact value, and by the nearest float.
        Value::Number(number) => number.as_f64().map_or_else(
            || number.to_string(),
            |float| format!("{:?}", if float == 0.0 { 0.0 } else { float }),
        ),
        other => other.to_string(),
    }
}

/// Equal as JSON values: `1` is `1.0`.
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
