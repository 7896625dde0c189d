//! Cells of printer tables, from the sources in `columns.tsv`:
//!
//! | source | cell |
//! |---|---|
//! | `name`, `age` | of the object |
//! | `.spec.replicas` | the value, or the zero value of the column's type |
//! | `.spec.volumeMode\|<unset>` | the value as text, or this text |
//! | `=.spec.maxReplicas` | the number, in a column of texts |
//! | `.spec.drivers#` | the number of items |
//! | `~.status.time\|<none>` | time since then |
//! | `@ready` | computed by the kind's file |

use crate::hooks::KindCode;
use crate::rows::ColumnRows;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::json;
use ferrokube_resource::{Printable, TableRow};

/// A computed cell.
#[derive(Debug)]
pub(crate) enum CellValue {
    /// JSON.
    Value(Value),
    /// Time since then.
    Since(String),
}

impl CellValue {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Value(Value::from(text.into()))
    }
}

/// Sources of the cells of one kind.
#[derive(Debug)]
pub(crate) struct CellSources(Vec<CellOrigin>);

#[derive(Debug)]
enum CellOrigin {
    Name,
    Age,
    Field { path: Vec<&'static str>, unset: Value },
    Text { path: Vec<&'static str>, unset: &'static str },
    Count(Vec<&'static str>),
    Since { path: Vec<&'static str>, unset: &'static str },
    Code(&'static str),
}

impl CellSources {
    pub(crate) fn new(rows: Option<&'static ColumnRows>) -> Self {
        let Some(rows) = rows else { return Self(vec![CellOrigin::Name, CellOrigin::Age]) };
        let typed = rows.cells.iter().zip(&rows.columns);
        Self(typed.map(|(cell, column)| CellOrigin::parse(cell, column.kind)).collect())
    }

    /// Appends the cells of an object. It is parsed only if the kind's code computes one.
    pub(crate) fn print(&self, code: &dyn KindCode, object: &Printable<'_>, row: &mut TableRow) {
        let parsed = self.0.iter().any(|source| matches!(source, CellOrigin::Code(_)));
        let (parsed, now) = match parsed {
            true => (object.document().into_value(), row.dated()),
            false => (Value::Null, std::time::UNIX_EPOCH),
        };
        row.complete(code.completion(&parsed));
        for source in &self.0 {
            match source {
                CellOrigin::Name => row.text(&object.name()),
                CellOrigin::Age => row.age(object),
                CellOrigin::Field { path, unset } => {
                    let value = object.find(path).and_then(|bytes| json::read_value(bytes).ok());
                    row.value(
                        &value.filter(|value| !is_empty(value)).unwrap_or_else(|| unset.clone()),
                    );
                }
                CellOrigin::Text { path, unset } => {
                    let value = object.find(path).and_then(|bytes| json::read_value(bytes).ok());
                    let text = plain_text(value.as_ref());
                    row.text(if text.is_empty() { unset } else { &text });
                }
                CellOrigin::Count(path) => {
                    let value = object.find(path).and_then(|bytes| json::read_value(bytes).ok());
                    row.value(&Value::from(value.as_ref().map_or(0, count)));
                }
                CellOrigin::Since { path, unset } => match object.str(path) {
                    time if time.is_empty() => row.text(unset),
                    time => row.since(&time),
                },
                CellOrigin::Code(word) => match code.cell(word, &parsed, now) {
                    CellValue::Value(value) => row.value(&value),
                    CellValue::Since(time) => row.since(&time),
                },
            }
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.as_slice().len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

impl CellOrigin {
    fn parse(text: &'static str, kind: &str) -> Self {
        let path = |text: &'static str| text.split('.').skip(1).collect();
        match text {
            "name" => return Self::Name,
            "age" => return Self::Age,
            _ => {}
        }
        if let Some(word) = text.strip_prefix('@') {
            return Self::Code(word);
        }
        if let Some(field) = text.strip_suffix('#') {
            return Self::Count(path(field));
        }
        let (field, unset) = text.split_once('|').unwrap_or((text, ""));
        if let Some(field) = field.strip_prefix('~') {
            return Self::Since { path: path(field), unset };
        }
        if let Some(field) = field.strip_prefix('=') {
            return Self::Field { path: path(field), unset: Value::from(0) };
        }
        match kind {
            "integer" => Self::Field { path: path(field), unset: Value::from(0) },
            "boolean" => Self::Field { path: path(field), unset: Value::Bool(false) },
            _ => Self::Text { path: path(field), unset },
        }
    }
}

/// A scalar as text; empty if absent.
pub(crate) fn plain_text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Labels as `a=b,c=d`; `<none>` if empty.
pub(crate) fn labels(map: Option<&Value>) -> String {
    let pairs = |map: &Map| {
        let mut pairs: Vec<String> = map
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        pairs.sort_unstable();
        pairs.join(",")
    };
    match map.and_then(Value::as_object).filter(|map| !map.is_empty()) {
        Some(map) => pairs(map),
        None => "<none>".to_owned(),
    }
}

/// A label selector in its text form; `<none>` if it selects everything or is absent.
pub(crate) fn selector(selector: Option<&Value>) -> String {
    match selector.filter(|value| !value.is_null()).map(selector_text) {
        Some(text) if !text.is_empty() => text,
        _ => "<none>".to_owned(),
    }
}

/// A label selector in its text form: `a=b,c in (d,e)`; empty if it selects everything.
pub fn selector_text(selector: &Value) -> String {
    let mut terms: Vec<(String, String)> = Vec::new();
    for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten()
    {
        terms.push((key.to_string(), format!("{key}={}", value.as_str().unwrap_or_default())));
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for one in expressions.into_iter().flat_map(|list| list.iter()) {
        let key = one.get("key").and_then(Value::as_str).unwrap_or_default();
        let list = one.get("values").and_then(Value::as_array);
        let mut values: Vec<&str> =
            list.into_iter().flat_map(|list| list.iter()).filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let term = match one.get("operator").and_then(Value::as_str).unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        terms.push((key.to_owned(), term));
    }
    terms.sort();
    let texts: Vec<String> = terms.into_iter().map(|(_, term)| term).collect();
    texts.join(",")
}

/// Names or images of the containers of a pod spec.
pub(crate) fn containers(spec: Option<&Value>, field: &str) -> String {
    let list = spec.and_then(|spec| spec.get("containers")).and_then(Value::as_array);
    let texts: Vec<&str> = list
        .into_iter()
        .flat_map(|list| list.iter())
        .filter_map(|container| container.get(field)?.as_str())
        .collect();
    texts.join(",")
}

/// The value at a path of fields.
pub(crate) fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, field| value.get(*field))
}

/// The string at a path of fields; empty if absent.
pub(crate) fn str_at<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// The integer at a path of fields; 0 if absent.
pub(crate) fn int_at(object: &Value, path: &[&str]) -> i64 {
    at(object, path).and_then(Value::as_i64).unwrap_or_default()
}

/// The list at a path of fields; empty if absent.
pub(crate) fn list_at<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map_or(&[], |list| list.as_slice())
}
