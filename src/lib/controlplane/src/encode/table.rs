//! Tables: what kubectl prints. Rows carry cells and, as asked, nothing, the metadata or the whole object.

use super::stream::Items;
use super::{canonical, entry_document, json_document, partial_document, slices};
use crate::negotiate::{Accepted, Form};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::jsonpath::JsonPath;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::{json as json_codec, time, yaml};
use ferrokube_registry::{Object, Served};
use ferrokube_resource::{Column, Printable, Row};
use ferrokube_storage::Entry;
use std::sync::Arc;
use std::time::SystemTime;

const TAIL: &[u8] = b"]}\n";

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

/// Where a column's cells come from.
enum Cells {
    /// The hooks compute them.
    Computed,
    /// Fields all the way down: found without parsing.
    Fields(Vec<String>),
    /// Another JSONPath.
    Path(JsonPath),
    /// No JSONPath that we know.
    Nothing,
}

impl Cells {
    fn of(column: &Column) -> Self {
        if column.json_path.is_empty() {
            return Self::Computed;
        }
        let Some(path) = JsonPath::parse(&column.json_path) else { return Self::Nothing };
        match path.names() {
            Some(names) => Self::Fields(names.into_iter().map(str::to_owned).collect()),
            None => Self::Path(path),
        }
    }
}

/// How a resource's objects become rows of one Table.
pub(crate) struct Table {
    served: Served,
    version: &'static str,
    include: Include,
    now: SystemTime,
    /// One for each column.
    cells: Vec<Cells>,
    /// What the hooks wrote for the present row.
    row: Row,
}

impl Table {
    /// For objects of a resource; `version` is the Table's own (`v1`).
    pub(crate) fn new(served: &Served, version: &'static str, include: Include, now: SystemTime) -> Self {
        let cells = served.version().columns.iter().map(Cells::of).collect();
        Self { served: served.clone(), version, include, now, cells, row: Row::default() }
    }

    /// The whole Table as JSON, with a newline. `list_meta` is JSON; without columns their definitions are null (later events of a watch).
    pub(crate) fn write(&mut self, list_meta: &str, with_columns: bool, object: &Object) -> Vec<u8> {
        let mut out = self.head(list_meta, with_columns);
        match object {
            Object::Stored(entry) => self.write_entry(entry, &mut out),
            Object::Computed(document) => self.write_document(document, &mut out),
        }
        out.extend_from_slice(TAIL);
        out
    }

    /// A list's whole Table, to be written while it is sent.
    pub(crate) fn stream(mut self, list_meta: &str, entries: Vec<Arc<Entry>>) -> Items<Arc<Entry>, impl FnMut(&Arc<Entry>, &mut Vec<u8>) + use<>> {
        let head = self.head(list_meta, true);
        Items::new(head, entries, TAIL, None, move |entry: &Arc<Entry>, out: &mut Vec<u8>| self.write_entry(entry, out))
    }

    fn head(&self, list_meta: &str, with_columns: bool) -> Vec<u8> {
        let head = format!("{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{}\",\"metadata\":{list_meta},\"columnDefinitions\":", self.version);
        let mut out = head.into_bytes();
        if with_columns {
            out.extend_from_slice(&json_codec::to_vec(&self.columns()));
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"rows\":[");
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

    fn write_entry(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        if !self.served.is_direct(entry) {
            return self.write_document(&entry_document(&self.served, entry), out);
        }
        self.write_cells(&slices::printable(entry), out);
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Metadata => slices::write_partial(entry, self.version, out),
            Include::Object => out.extend_from_slice(&entry.bytes),
        }
        out.push(b'}');
    }

    fn write_document(&mut self, document: &Document, out: &mut Vec<u8>) {
        let (bytes, layout, spliced) = canonical(document);
        self.write_cells(&Printable::new(&bytes, &layout, spliced), out);
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Metadata => push_document(&partial_document(document, self.version), out),
            Include::Object => push_document(document, out),
        }
        out.push(b'}');
    }

    /// The row up to its object.
    fn write_cells(&mut self, object: &Printable<'_>, out: &mut Vec<u8>) {
        self.row.clear();
        self.served.definition.hooks.print(object, self.now, &mut self.row);
        let mut computed = self.row.cells();
        let parsed = self.cells.iter().any(|cells| matches!(cells, Cells::Path(_))).then(|| object.document().into_value());
        out.extend_from_slice(b"{\"cells\":");
        let mut before = b'[';
        for (column, cells) in self.served.version().columns.iter().zip(&self.cells) {
            out.push(std::mem::replace(&mut before, b','));
            match cells {
                Cells::Computed => out.extend_from_slice(computed.next().unwrap_or(b"null")),
                Cells::Fields(names) => {
                    let value = object.find(names).and_then(|bytes| json_codec::read_value(bytes).ok());
                    push_cell(&column.kind, value.as_ref(), self.now, out);
                }
                Cells::Path(path) => push_cell(&column.kind, parsed.as_ref().and_then(|root| path.first(root)), self.now, out),
                Cells::Nothing => out.extend_from_slice(b"null"),
            }
        }
        if before == b'[' {
            out.push(b'[');
        }
        out.extend_from_slice(b"],\"object\":");
    }
}

fn push_cell(kind: &str, value: Option<&Value>, now: SystemTime, out: &mut Vec<u8>) {
    let cell = value.map(|value| cell(kind, value, now)).unwrap_or_default();
    out.extend_from_slice(&json_codec::to_vec(&cell));
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
