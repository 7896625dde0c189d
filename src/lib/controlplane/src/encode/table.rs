//! Tables: what kubectl prints. Rows carry cells and, as asked, nothing, the metadata or the whole object.

use super::{document_of, json_document, partial_document, slices};
use crate::negotiate::{Accepted, Form};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::jsonpath::JsonPath;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::{json as json_codec, time, yaml};
use ferrokube_registry::{Object, Served};
use ferrokube_resource::Column;
use std::time::SystemTime;

/// What a row carries besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Include {
    /// `null`
    None,
    /// `PartialObjectMetadata`
    Metadata,
    /// The object.
    Object,
}

impl Include {
    /// Reads `includeObject`.
    ///
    /// # Errors
    /// 400 for another word.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(Failure::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// How a resource's objects become rows of one Table.
pub(crate) struct Table<'a> {
    served: &'a Served,
    version: &'static str,
    include: Include,
    now: SystemTime,
    /// One for each column; `None` where the hooks compute the cell.
    paths: Vec<Option<JsonPath>>,
}

impl<'a> Table<'a> {
    /// For objects of a resource; `version` is the Table's own (`v1`).
    pub(crate) fn new(served: &'a Served, version: &'static str, include: Include, now: SystemTime) -> Self {
        let parse = |column: &Column| (!column.json_path.is_empty()).then(|| JsonPath::parse(&column.json_path)).flatten();
        let paths = served.version().columns.iter().map(parse).collect();
        Self { served, version, include, now, paths }
    }

    /// The whole Table as JSON, with a newline. `list_meta` is JSON; without columns their definitions are null (later events of a watch).
    pub(crate) fn write<'o>(&self, list_meta: &str, with_columns: bool, rows: impl Iterator<Item = &'o Object>) -> Vec<u8> {
        let head = format!("{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{}\",\"metadata\":{list_meta},\"columnDefinitions\":", self.version);
        let mut out = head.into_bytes();
        if with_columns {
            out.extend_from_slice(&json_codec::to_vec(&self.columns()));
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"rows\":[");
        for (at, object) in rows.enumerate() {
            if at > 0 {
                out.push(b',');
            }
            self.write_row(object, &mut out);
        }
        out.extend_from_slice(b"]}\n");
        out
    }

    fn columns(&self) -> Value {
        let column = |column: &Column| {
            json!({
                "name": &*column.name,
                "type": &*column.kind,
                "format": &*column.format,
                "description": &*column.description,
                "priority": column.priority,
            })
        };
        Value::Array(self.served.version().columns.iter().map(column).collect())
    }

    fn write_row(&self, object: &Object, out: &mut Vec<u8>) {
        let document = document_of(self.served, object);
        out.extend_from_slice(b"{\"cells\":");
        let document = self.write_cells(document, out);
        out.extend_from_slice(b",\"object\":");
        match (self.include, object) {
            (Include::None, _) => out.extend_from_slice(b"null"),
            (Include::Metadata, Object::Stored(entry)) => out.extend_from_slice(&slices::partial(entry, self.version)),
            (Include::Metadata, Object::Computed(_)) => push_document(&partial_document(&document, self.version), out),
            (Include::Object, _) => push_document(&document, out),
        }
        out.push(b'}');
    }

    fn write_cells(&self, document: Document, out: &mut Vec<u8>) -> Document {
        let mut computed = self.served.definition.hooks.cells(&document, self.now).into_iter();
        let root = document.into_value();
        let columns = self.served.version().columns.iter().zip(&self.paths);
        let cells = columns.map(|(column, path)| {
            if column.json_path.is_empty() {
                return computed.next().unwrap_or_default();
            }
            path.as_ref().and_then(|path| path.first(&root)).map(|value| cell(&column.kind, value, self.now)).unwrap_or_default()
        });
        let cells = Value::Array(cells.collect());
        out.extend_from_slice(&json_codec::to_vec(&cells));
        Document::from_value(root).unwrap_or_default()
    }
}

fn push_document(document: &Document, out: &mut Vec<u8>) {
    let mut bytes = json_document(document, false);
    bytes.pop();
    out.extend_from_slice(&bytes);
}

/// A custom column's value as its type shows it; another type of value is null.
fn cell(kind: &str, value: &Value, now: SystemTime) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(number)) => {
            let whole = number.as_i64().or_else(|| number.as_f64().map(|number| number as i64));
            whole.map(Value::from).unwrap_or_default()
        }
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => value.clone(),
        ("string", other) => Value::from(String::from_utf8_lossy(&json_codec::to_vec(other)).into_owned()),
        ("date", Value::String(text)) => Value::from(age(text, now)),
        _ => Value::Null,
    }
}

fn age(text: &str, now: SystemTime) -> String {
    let Some(then) = time::parse_rfc3339(text) else { return "<invalid>".to_owned() };
    now.duration_since(then).map_or_else(|_| "<invalid>".to_owned(), |age| time::human_age(age.as_secs()))
}

/// A Table in the accepted form (never protobuf: negotiation refuses that).
pub(crate) fn finish(table: Vec<u8>, accepted: Accepted) -> (Vec<u8>, Form) {
    match accepted.form {
        Form::Yaml => (yaml::to_vec(&json_codec::read_value(&table).unwrap_or_default()), Form::Yaml),
        _ if accepted.pretty => (super::pretty::indent(&table), Form::Json),
        _ => (table, Form::Json),
    }
}
