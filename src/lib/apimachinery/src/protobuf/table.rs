//! The tables: an index over the text, and descriptors that are made when a message is first used.

use super::ProtobufError;
use super::special::Special;
use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

/// The metadata of lists.
pub(super) const LIST_META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta";

/// Message tables: which fields a message has, by number and by JSON name.
#[derive(Default)]
pub struct Messages {
    text: Cow<'static, str>,
    /// Sorted by package and name.
    entries: Vec<Entry>,
}

/// A message's rows in the text.
struct Entry {
    start: usize,
    end: usize,
    message: OnceLock<Message>,
}

/// A descriptor.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) special: Special,
    /// Sorted by number.
    pub(super) fields: Vec<Field>,
}

#[derive(Debug)]
pub(super) struct Field {
    /// The JSON name.
    pub(super) name: Box<str>,
    pub(super) number: u32,
    pub(super) shape: Shape,
    pub(super) kind: Kind,
}

/// How often a field's value occurs, and where in JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    One,
    List,
    /// With string keys.
    Map,
    /// A message whose fields are the outer object's in JSON.
    Inline,
}

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Bool,
    Int32,
    Int64,
    Double,
    String,
    Bytes,
    /// The index of a message.
    Message(usize),
    /// A message that the tables do not have: neither read nor written.
    Absent,
}

impl Messages {
    /// Parses the table format of `resources/data/protobuf.tsv`: package, message, field, number,
    /// label, type, and optionally the JSON name where it is another than the field's (`.` for a
    /// message whose fields are inlined in JSON). The first line holds titles. A message's rows
    /// stand together.
    ///
    /// # Errors
    /// The first line that is malformed, with its number.
    pub fn parse(tables: impl Into<Cow<'static, str>>) -> Result<Self, String> {
        let text = tables.into();
        let mut entries: Vec<Entry> = Vec::new();
        let mut last = None;
        let mut start = 0;
        for (index, line) in text.split_inclusive('\n').enumerate() {
            let end = start + line.len();
            if index > 0 && !line.trim_end().is_empty() {
                let row =
                    Row::parse(line).ok_or_else(|| format!("line {}: malformed", index + 1))?;
                let name = (row.package, row.message);
                match entries.last_mut() {
                    Some(entry) if last == Some(name) => entry.end = end,
                    _ => entries.push(Entry { start, end, message: OnceLock::new() }),
                }
                last = Some(name);
            }
            start = end;
        }
        entries.sort_by(|one, other| name_at(&text, one.start).cmp(&name_at(&text, other.start)));
        if let Some(pair) = entries
            .windows(2)
            .find(|pair| name_at(&text, pair[0].start) == name_at(&text, pair[1].start))
        {
            let (package, message) = name_at(&text, pair[0].start);
            return Err(format!("the rows of {package}.{message} do not stand together"));
        }
        Ok(Self { text, entries })
    }

    /// Whether the tables have a message (`package.Message`).
    pub fn contains(&self, message: &str) -> bool {
        self.find(message).is_some()
    }

    /// The names of all messages (`package.Message`).
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.entries.iter().map(|entry| {
            let (package, message) = name_at(&self.text, entry.start);
            format!("{package}.{message}")
        })
    }

    pub(super) fn index_of(&self, message: &str) -> Result<usize, ProtobufError> {
        self.find(message).ok_or_else(|| ProtobufError::UnknownMessage(message.to_owned()))
    }

    pub(super) fn message(&self, index: usize) -> &Message {
        let entry = &self.entries[index];
        entry.message.get_or_init(|| self.describe(entry))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let name = name.rsplit_once('.')?;
        self.entries.binary_search_by(|entry| name_at(&self.text, entry.start).cmp(&name)).ok()
    }

    fn describe(&self, entry: &Entry) -> Message {
        let rows = self.text[entry.start..entry.end].lines().filter_map(Row::parse);
        let mut fields: Vec<Field> = rows.map(|row| self.field(&row)).collect();
        fields.sort_by_key(|field| field.number);
        let (package, name) = name_at(&self.text, entry.start);
        Message { special: Special::of(package, name), fields }
    }

    fn field(&self, row: &Row<'_>) -> Field {
        let map_value =
            row.kind.strip_prefix("map<string, ").and_then(|rest| rest.strip_suffix('>'));
        let shape = match row.label {
            _ if map_value.is_some() => Shape::Map,
            "repeated" => Shape::List,
            _ if row.json == "." => Shape::Inline,
            _ => Shape::One,
        };
        let kind = match map_value.unwrap_or(row.kind) {
            "bool" => Kind::Bool,
            "int32" => Kind::Int32,
            "int64" => Kind::Int64,
            "double" => Kind::Double,
            "string" => Kind::String,
            "bytes" => Kind::Bytes,
            message => {
                self.find(message.trim_start_matches('.')).map_or(Kind::Absent, Kind::Message)
            }
        };
        let name = if row.json.is_empty() || row.json == "." { row.field } else { row.json };
        Field { name: name.into(), number: row.number, shape, kind }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("messages", &self.entries.len()).finish_non_exhaustive()
    }
}

impl Message {
    /// The field with a number.
    pub(super) fn field(&self, number: u32) -> Option<&Field> {
        let at = self.fields.binary_search_by_key(&number, |field| field.number).ok()?;
        self.fields.get(at)
    }

    /// The number of the field with a JSON name.
    pub(super) fn number_of(&self, name: &str) -> Option<u32> {
        self.fields.iter().find(|field| &*field.name == name).map(|field| field.number)
    }
}

struct Row<'a> {
    package: &'a str,
    message: &'a str,
    field: &'a str,
    number: u32,
    label: &'a str,
    kind: &'a str,
    json: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line.trim_end_matches(['\n', '\r']).split('\t');
        let (package, message, field) = (cells.next()?, cells.next()?, cells.next()?);
        let number = cells.next()?.parse().ok().filter(|number| (1..1 << 29).contains(number))?;
        let (label, kind, json) = (cells.next()?, cells.next()?, cells.next().unwrap_or_default());
        let label_ok = matches!(label, "optional" | "repeated" | "required" | "");
        let filled = [package, message, field, kind].iter().all(|cell| !cell.is_empty());
        (label_ok && filled && cells.next().is_none()).then_some(Self {
            package,
            message,
            field,
            number,
            label,
            kind,
            json,
        })
    }
}

/// Package and message of the row that begins at `start`.
fn name_at(text: &str, start: usize) -> (&str, &str) {
    let mut cells = text[start..].splitn(3, '\t');
    (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
}
