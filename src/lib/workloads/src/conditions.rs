//! Conditions of rows on other fields of the same object.

use ferrokube_apimachinery::document::{Map, Value};

/// A conjunction of conditions such as `type=A,B !rollingUpdate spec.paused`: a field has one of
/// several values (`=`) or none of them (`!=`), is unset (`!`), is set (with `?` also if empty), or
/// has at most the given number of items (`<=`). The value `#0` is each number, percentage or text
/// that counts as 0. Fields may be dotted paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(Vec<FieldCondition>);

#[derive(Clone, Debug)]
struct FieldCondition {
    field: Vec<&'static str>,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Set,
    Unset,
    /// Neither absent nor null, but possibly empty.
    Present,
    Missing,
    OneOf(Vec<&'static str>),
    NoneOf(Vec<&'static str>),
    AtMost(usize),
}

impl Conditions {
    pub(crate) fn parse(text: &'static str) -> Self {
        let values = |list: &'static str| list.split(',').collect();
        let condition = |word: &'static str| {
            let (field, test) = if let Some((field, most)) = word.split_once("<=") {
                (field, Test::AtMost(most.parse().unwrap_or_default()))
            } else if let Some((field, list)) = word.split_once("!=") {
                (field, Test::NoneOf(values(list)))
            } else if let Some((field, list)) = word.split_once('=') {
                (field, Test::OneOf(values(list)))
            } else if let Some(field) = word.strip_suffix('?') {
                match field.strip_prefix('!') {
                    Some(field) => (field, Test::Missing),
                    None => (field, Test::Present),
                }
            } else if let Some(field) = word.strip_prefix('!') {
                (field, Test::Unset)
            } else {
                (word, Test::Set)
            };
            FieldCondition { field: field.split('.').collect(), test }
        };
        Self(text.split(' ').filter(|word| !word.is_empty()).map(condition).collect())
    }

    /// Adds the condition that a list or map has at most `most` items.
    pub(crate) fn and_at_most(&mut self, field: &'static str, most: usize) {
        self.0.push(FieldCondition { field: vec![field], test: Test::AtMost(most) });
    }

    pub(crate) fn hold(&self, object: &Map) -> bool {
        self.0.iter().all(|condition| condition.holds(object))
    }
}

impl FieldCondition {
    fn holds(&self, object: &Map) -> bool {
        let found = find(object, &self.field).filter(|value| !value.is_null());
        let value = found.filter(|value| is_given(value));
        match &self.test {
            Test::Set => value.is_some(),
            Test::Unset => value.is_none(),
            Test::Present => found.is_some(),
            Test::Missing => found.is_none(),
            Test::OneOf(list) => list.iter().any(|word| is_word(value, word)),
            Test::NoneOf(list) => !list.iter().any(|word| is_word(value, word)),
            Test::AtMost(most) => match value {
                Some(Value::Array(list)) => list.as_slice().len() <= *most,
                Some(Value::Object(map)) => map.len() <= *most,
                _ => true,
            },
        }
    }
}

const ZERO: &str = "#0";

fn is_word(value: Option<&Value>, word: &str) -> bool {
    match value {
        value if word == ZERO => value.is_none_or(|value| amount(value) == 0),
        None => word.is_empty(),
        Some(Value::String(text)) => text.as_str() == word,
        Some(Value::Bool(flag)) => word == if *flag { "true" } else { "false" },
        Some(Value::Number(number)) => number.to_string() == word,
        Some(_) => false,
    }
}

/// The number of a number, a percentage or a text; 0 if it has none.
fn amount(value: &Value) -> i64 {
    let is_number = |digits: &&str| digits.bytes().all(|byte| byte.is_ascii_digit());
    match value {
        Value::Number(number) => number.as_i64().unwrap_or_default(),
        Value::String(text) => match text.strip_suffix('%') {
            Some(digits) => digits.parse().ok().filter(|_| is_number(&digits)),
            None => text.parse().ok(),
        }
        .unwrap_or_default(),
        _ => 0,
    }
}

/// The value at a path of fields.
pub(crate) fn find<'a>(object: &'a Map, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(first)?, |value, field| value.get(*field))
}

/// Whether a value was given: not null, an empty text or an empty list.
pub(crate) fn is_given(value: &Value) -> bool {
    matches!(value, Value::Bool(_) | Value::Number(_)) || is_set(value)
}

/// Whether a value differs from its type's zero value; structs always do.
pub(crate) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.as_slice().is_empty(),
        Value::Object(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn all_conditions_must_hold() {
        let object = json!({"type": "A", "on": true, "n": 3, "empty": "", "spec": {"x": "y"}, "list": [1, 2], "zero": "00%", "half": "50%"});
        let map = object.as_object().unwrap();
        for holds in [
            "",
            "type=A,B",
            "type!=C on",
            "!empty !absent n=3",
            "spec.x=y spec",
            "absent=",
            "empty? !absent?",
            "list<=2 absent<=0",
            "zero=#0 absent=#0 type=#0 half!=#0 n!=#0",
        ] {
            assert!(Conditions::parse(holds).hold(map), "{holds}");
        }
        for fails in [
            "type=B",
            "type=A !on",
            "empty",
            "spec.y",
            "n!=3",
            "on=false",
            "!empty?",
            "absent?",
            "list<=1",
            "half=#0",
            "zero!=#0",
        ] {
            assert!(!Conditions::parse(fails).hold(map), "{fails}");
        }
    }
}
