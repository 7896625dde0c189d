//! The message tables: an index over the text; descriptors are made on first use.

use super::ProtobufError;
use super::special::Special;
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// List metadata.
pub(super) const LIST_META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The first line of a table.
const HEADING: &str = "package\tmessage\tfield\tnumber\tlabel\ttype\tjson\n";

/// Message tables: fields of each message, by number and by JSON name.
#[derive(Default)]
pub struct Messages {
    text: Cow<'static, str>,
    /// Sorted by package and name.
    entries: Vec<MessageRows>,
}

/// Rows of a message in the text.
struct MessageRows {
    start: usize,
    end: usize,
    /// Lengths of its package and its name, which the first row begins with.
    package: usize,
    name: usize,
    message: OnceLock<MessageDescriptor>,
}

impl MessageRows {
    /// Package and name.
    fn name<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        let (package, rest) = text[self.start..].split_at(self.package);
        (package, &rest[1..=self.name])
    }
}

#[derive(Debug)]
pub(super) struct MessageDescriptor {
    pub(super) special: Special,
    /// Sorted by number.
    pub(super) fields: Vec<MessageField>,
}

#[derive(Debug)]
pub(super) struct MessageField {
    /// JSON name.
    pub(super) name: Box<str>,
    pub(super) number: u32,
    /// Place of its name among those of the message's fields.
    pub(super) rank: usize,
    pub(super) shape: Cardinality,
    /// Written though it is zero: no pointer in Go.
    pub(super) is_always: bool,
    pub(super) kind: FieldType,
}

/// Cardinality of a field, and its place in JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cardinality {
    One,
    List,
    /// With string keys.
    Map,
    /// A message whose fields are inlined into the outer JSON object.
    Inline,
}

/// Type of a single value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FieldType {
    Bool,
    Int32,
    Int64,
    Double,
    String,
    Bytes,
    /// Index of a message.
    Message(usize),
    /// A message missing from the tables: neither decoded nor encoded.
    Absent,
}

impl Messages {
    /// Parses the format of `resources/data/protobuf.tsv`: package, message, field, number, label
    /// (`always` for a field that is written though it is zero), type and, if it differs from the
    /// field name, the JSON name (`.` for a message that is inlined in JSON). The first line is a
    /// header. The rows of a message are contiguous.
    ///
    /// # Errors
    /// The first malformed line, with its number.
    pub fn parse(tables: impl Into<Cow<'static, str>>) -> Result<Self, String> {
        Self::parse_after(0, Vec::new(), tables.into())
    }

    /// Parses what follows `start`, where a line begins; `entries` are those before it.
    fn parse_after(
        mut start: usize,
        mut entries: Vec<MessageRows>,
        text: Cow<'static, str>,
    ) -> Result<Self, String> {
        let before = text[..start].matches('\n').count();
        let mut last = None;
        for (index, line) in text[start..].split_inclusive('\n').enumerate() {
            let (index, end) = (before + index, start + line.len());
            if index > 0 && !line.trim_end().is_empty() {
                let row = TableLine::parse(line)
                    .ok_or_else(|| format!("line {}: malformed", index + 1))?;
                let name = (row.package, row.message);
                match entries.last_mut() {
                    Some(entry) if last == Some(name) => entry.end = end,
                    _ => entries.push(MessageRows {
                        start,
                        end,
                        package: row.package.len(),
                        name: row.message.len(),
                        message: OnceLock::new(),
                    }),
                }
                last = Some(name);
            }
            start = end;
        }
        entries.sort_by_cached_key(|entry| entry.name(&text));
        if let Some(pair) =
            entries.windows(2).find(|pair| pair[0].name(&text) == pair[1].name(&text))
        {
            let (package, message) = pair[0].name(&text);
            return Err(format!("the rows of {package}.{message} do not stand together"));
        }
        Ok(Self { text, entries })
    }

    /// The same messages and those of further tables; without any, itself.
    ///
    /// # Errors
    /// As [`Self::parse`]; also for a message in several tables.
    pub fn extended(self: &Arc<Self>, tables: &[&str]) -> Result<Arc<Self>, String> {
        if tables.is_empty() {
            return Ok(Arc::clone(self));
        }
        let mut all = String::from(if self.text.is_empty() { HEADING } else { &self.text });
        if !all.ends_with('\n') {
            all.push('\n');
        }
        let own = all.len();
        for table in tables {
            let heading = table.find('\n').map_or(table.len(), |end| end + 1);
            all.push_str(&table[heading..]);
            if !all.ends_with('\n') {
                all.push('\n');
            }
        }
        let copy = |entry: &MessageRows| MessageRows { message: OnceLock::new(), ..*entry };
        let entries = self.entries.iter().map(copy).collect();
        Self::parse_after(own, entries, all.into()).map(Arc::new)
    }

    /// Whether the tables contain a message (`package.MessageDescriptor`).
    pub fn contains(&self, message: &str) -> bool {
        self.find(message).is_some()
    }

    /// Names of all messages (`package.MessageDescriptor`).
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.entries.iter().map(|entry| {
            let (package, message) = entry.name(&self.text);
            format!("{package}.{message}")
        })
    }

    pub(super) fn index_of(&self, message: &str) -> Result<usize, ProtobufError> {
        self.find(message).ok_or_else(|| ProtobufError::UnknownMessage(message.to_owned()))
    }

    pub(super) fn message(&self, index: usize) -> &MessageDescriptor {
        let entry = &self.entries[index];
        entry.message.get_or_init(|| self.describe(entry))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let name = name.rsplit_once('.')?;
        self.entries.binary_search_by(|entry| entry.name(&self.text).cmp(&name)).ok()
    }

    fn describe(&self, entry: &MessageRows) -> MessageDescriptor {
        let rows = self.text[entry.start..entry.end].lines().filter_map(TableLine::parse);
        let mut fields: Vec<MessageField> = rows.map(|row| self.field(&row)).collect();
        fields.sort_by(|one, other| one.name.cmp(&other.name));
        for at in 1..fields.len() {
            fields[at].rank =
                fields[at - 1].rank + usize::from(fields[at].name != fields[at - 1].name);
        }
        fields.sort_by_key(|field| field.number);
        let (package, name) = entry.name(&self.text);
        MessageDescriptor { special: Special::of(package, name), fields }
    }

    fn field(&self, row: &TableLine<'_>) -> MessageField {
        let map_value =
            row.kind.strip_prefix("map<string, ").and_then(|rest| rest.strip_suffix('>'));
        let shape = match row.label {
            _ if map_value.is_some() => Cardinality::Map,
            "repeated" => Cardinality::List,
            _ if row.json == "." => Cardinality::Inline,
            _ => Cardinality::One,
        };
        let kind = match map_value.unwrap_or(row.kind) {
            "bool" => FieldType::Bool,
            "int32" => FieldType::Int32,
            "int64" => FieldType::Int64,
            "double" => FieldType::Double,
            "string" => FieldType::String,
            "bytes" => FieldType::Bytes,
            message => self
                .find(message.trim_start_matches('.'))
                .map_or(FieldType::Absent, FieldType::Message),
        };
        let name = if row.json.is_empty() || row.json == "." { row.field } else { row.json };
        let is_always = row.label == "always";
        MessageField { name: name.into(), number: row.number, rank: 0, shape, is_always, kind }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("messages", &self.entries.len()).finish_non_exhaustive()
    }
}

impl MessageDescriptor {
    pub(super) fn field(&self, number: u32) -> Option<&MessageField> {
        let at = self.fields.binary_search_by_key(&number, |field| field.number).ok()?;
        self.fields.get(at)
    }

    /// Number of the field with a JSON name.
    pub(super) fn number_of(&self, name: &str) -> Option<u32> {
        self.fields.iter().find(|field| &*field.name == name).map(|field| field.number)
    }
}

struct TableLine<'a> {
    package: &'a str,
    message: &'a str,
    field: &'a str,
    number: u32,
    label: &'a str,
    kind: &'a str,
    json: &'a str,
}

impl<'a> TableLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut cells = line.trim_end_matches(['\n', '\r']).split('\t');
        let (package, message, field) = (cells.next()?, cells.next()?, cells.next()?);
        let number = cells.next()?.parse().ok().filter(|number| (1..1 << 29).contains(number))?;
        let (label, kind, json) = (cells.next()?, cells.next()?, cells.next().unwrap_or_default());
        let label_ok = matches!(label, "optional" | "always" | "repeated" | "required" | "");
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
