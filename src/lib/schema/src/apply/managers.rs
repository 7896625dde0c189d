//! Entries of `metadata.managedFields`.

use super::element;
use super::set::{self, Fields, unite};
use crate::schema::Schema;
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::{time, work};
use std::collections::HashMap;

/// Beyond this many updating managers, the oldest are merged into [`ANCIENT`].
const MAX_UPDATE_MANAGERS: usize = 10;
const ANCIENT: &str = "ancient-changes";
const PATH: [&str; 2] = ["metadata", "managedFields"];

/// The key of a managedFields entry, and facts about the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// `fieldManager`, or the first word of the User-Agent.
    pub name: String,
    /// `Apply` or `Update`.
    pub operation: ManagerOperation,
    /// `apiVersion` of the written object.
    pub api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// RFC 3339 seconds; the entry's time, if it changes.
    pub time: String,
    /// Whether the server sets the trace annotations, which then have no owner.
    pub ids_are_servers: bool,
    /// The other versions of a custom resource, as `apiVersion`; `None` accepts entries of any
    /// version.
    pub other_versions: Option<Vec<String>>,
}

impl Manager {
    /// Whether the entry's version exists.
    pub(super) fn knows(&self, entry: &ManagerEntry) -> bool {
        entry.api_version == self.api_version
            || match &self.other_versions {
                Some(others) => others.contains(&entry.api_version),
                None => is_version(entry.api_version.rsplit('/').next().unwrap_or_default()),
            }
    }
}

/// Whether a native kind could have this version: `v1`, `v2beta3`.
fn is_version(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = text.strip_prefix('v') else { return false };
    let (major, minor) =
        rest.split_once("alpha").or_else(|| rest.split_once("beta")).unwrap_or((rest, "1"));
    is_number(major) && is_number(minor)
}

/// The operation of a managedFields entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerOperation {
    /// Server-side apply.
    Apply,
    /// Every other write.
    Update,
}

/// A managedFields entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ManagerEntry {
    pub(super) manager: String,
    pub(super) operation: ManagerOperation,
    pub(super) api_version: String,
    pub(super) subresource: String,
    /// RFC 3339; may be empty.
    pub(super) time: String,
    pub(super) fields: Fields,
}

impl ManagerEntry {
    pub(super) fn new(manager: &Manager, fields: Fields, time: String) -> Self {
        Self {
            manager: manager.name.clone(),
            operation: manager.operation,
            api_version: manager.api_version.clone(),
            subresource: manager.subresource.clone(),
            time,
            fields,
        }
    }

    /// Whether the entry belongs to this manager. An applying manager has one entry for all
    /// versions.
    pub(super) fn is_of(&self, manager: &Manager) -> bool {
        self.manager == manager.name
            && self.operation == manager.operation
            && self.subresource == manager.subresource
            && (self.operation == ManagerOperation::Apply
                || self.api_version == manager.api_version)
    }

    fn same_key(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == ManagerOperation::Apply || self.api_version == other.api_version)
    }

    /// Whether it is the merged entry of old updaters of its version.
    fn is_ancient(&self) -> bool {
        self.manager == ANCIENT
            && self.operation == ManagerOperation::Update
            && self.subresource.is_empty()
            && !self.fields.is_empty()
    }

    /// The sort key among entries of one operation.
    fn age(&self) -> (&str, &str, &str, &str) {
        (&self.time, &self.manager, &self.api_version, &self.subresource)
    }

    /// The manager as conflicts print it.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == ManagerOperation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }

    /// Parses an entry; a trusted one was written by [`write`].
    fn read(value: Value, trusted: bool) -> Option<Self> {
        let Value::Object(mut map) = value else {
            return None;
        };
        let mut text = |field: &str| match map.remove(field) {
            Some(Value::String(text)) => text.into(),
            _ => String::new(),
        };
        let operation = match text("operation").as_str() {
            "Apply" => ManagerOperation::Apply,
            "Update" => ManagerOperation::Update,
            _ => return None,
        };
        let (manager, api_version, subresource) =
            (text("manager"), text("apiVersion"), text("subresource"));
        let (time, fields_type) = (text("time"), text("fieldsType"));
        if api_version.is_empty() || fields_type != "FieldsV1" {
            return None;
        }
        let fields = match map.remove("fieldsV1") {
            None | Some(Value::Null) => Fields::new(),
            Some(Value::Object(fields)) if trusted => fields,
            Some(Value::Object(fields)) => normalize(fields)?,
            Some(_) => return None,
        };
        let time = if trusted || time.is_empty() {
            time
        } else {
            time::parse_readable(&time).map(time::rfc3339_seconds).unwrap_or_default()
        };
        Some(Self { manager, operation, api_version, subresource, time, fields })
    }

    fn into_value(self) -> Value {
        let operation = if self.operation == ManagerOperation::Apply { "Apply" } else { "Update" };
        // In the order of a map, which then has nothing to sort.
        let fields = [
            ("apiVersion", Value::from(self.api_version)),
            ("fieldsType", Value::from("FieldsV1")),
            ("fieldsV1", Value::Object(self.fields)),
            ("manager", Value::from(self.manager)),
            ("operation", Value::from(operation)),
            ("subresource", Value::from(self.subresource)),
            ("time", Value::from(self.time)),
        ];
        fields.into_iter().filter(|(_, value)| value.as_str() != Some("")).collect()
    }
}

/// Normalizes a client's field set; elements of unknown types are dropped.
fn normalize(fields: Fields) -> Option<Fields> {
    let mut out = Fields::new();
    let member = fields.is_empty() || fields.contains_key(".");
    for (element, value) in fields {
        if element == "." {
            continue;
        }
        let child = match value {
            Value::Object(child) => child,
            Value::Null => Fields::new(),
            _ => return None,
        };
        if let Some(element) = element::normalize(&element).ok()? {
            set::insert(&mut out, element, normalize(child));
        }
    }
    Some(set::assemble(member, out).unwrap_or_default())
}

/// Parses all entries, empty ones included; `None` if any is malformed. Of entries with the same
/// key the last one counts.
/// Whether a value has the types of an entry.
pub(super) fn is_entry(value: &Value) -> bool {
    let Some(map) = value.as_object() else { return false };
    let is_text =
        |field: &&str| map.get(field).is_none_or(|text| text.is_null() || text.is_string());
    ["manager", "operation", "apiVersion", "fieldsType", "subresource", "time"].iter().all(is_text)
        && map
            .get("time")
            .and_then(Value::as_str)
            .is_none_or(|time| time::parse_readable(time).is_some())
}

fn read_all(list: Array, trusted: bool) -> Option<Vec<ManagerEntry>> {
    let mut entries: Vec<ManagerEntry> = Vec::with_capacity(list.len());
    let mut places: HashMap<String, usize> = HashMap::new();
    for value in list {
        let entry = ManagerEntry::read(value, trusted)?;
        if trusted {
            entries.push(entry);
            continue;
        }
        let key = format!("{}\u{0}{}\u{0}{}", entry.manager, entry.subresource, entry.describe());
        match places.get(&key).filter(|place| entries[**place].same_key(&entry)) {
            Some(place) => entries[*place] = entry,
            None => {
                places.insert(key, entries.len());
                entries.push(entry);
            }
        }
    }
    Some(entries)
}

pub(super) fn stored(object: &Document) -> Vec<ManagerEntry> {
    stored_entries(object.get(&PATH))
}

/// Removes the entries from a stored object and returns them.
pub(super) fn take(object: &mut Document) -> Vec<ManagerEntry> {
    match object.remove(&PATH) {
        Some(Value::Array(list)) => read_all(list, true).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The entries that an update starts from: the client's if they are valid, else the stored ones. A
/// single empty entry resets them, as does an empty list, except in a custom object, where
/// kube-apiserver treats it as absent.
pub(super) fn given_or_stored(
    schema: &Schema,
    old: Option<&Document>,
    new: &mut Document,
    is_subresource: bool,
) -> Vec<ManagerEntry> {
    let given = new.remove(&PATH);
    let stored = old.and_then(|old| old.get(&PATH));
    match given {
        Some(given) if Some(&given) == stored => match given {
            Value::Array(list) => read_all(list, true).unwrap_or_default(),
            _ => Vec::new(),
        },
        Some(Value::Array(list)) if !is_subresource => {
            // A null is read as an empty entry.
            let is_one_empty = match &list[..] {
                [Value::Object(only)] => only.is_empty(),
                [only] => only.is_null(),
                _ => false,
            };
            if is_one_empty || (list.is_empty() && schema.native) {
                return Vec::new();
            }
            if list.is_empty() {
                return stored_entries(stored);
            }
            read_all(list, false).unwrap_or_else(|| stored_entries(stored))
        }
        _ => stored_entries(stored),
    }
}

fn stored_entries(stored: Option<&Value>) -> Vec<ManagerEntry> {
    match stored {
        Some(Value::Array(list)) => read_all(list.clone(), true).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Writes the entries in the API's order, or no field if there are none.
pub(super) fn write(object: &mut Document, mut entries: Vec<ManagerEntry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    if entries.is_empty() {
        return;
    }
    entries.sort_by(|one, other| {
        (one.operation == ManagerOperation::Update)
            .cmp(&(other.operation == ManagerOperation::Update))
            .then_with(|| one.age().cmp(&other.age()))
    });
    object.set(&PATH, Value::Array(entries.into_iter().map(ManagerEntry::into_value).collect()));
}

/// Merges the oldest updaters of each version until at most [`MAX_UPDATE_MANAGERS`] are left.
pub(super) fn cap(entries: &mut Vec<ManagerEntry>) {
    let mut updaters: Vec<usize> = (0..entries.len())
        .filter(|place| entries[*place].operation == ManagerOperation::Update)
        .collect();
    let mut left = updaters.len();
    if left <= MAX_UPDATE_MANAGERS {
        return;
    }
    updaters.sort_by(|one, other| entries[*one].age().cmp(&entries[*other].age()));
    // By version: the index of its first updater, then of its merged entry.
    let mut buckets: HashMap<String, usize> = HashMap::new();
    let mut ancient: HashMap<String, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.is_ancient()) {
        ancient.entry(entry.api_version.clone()).or_insert(place);
    }
    for place in updaters {
        if left <= MAX_UPDATE_MANAGERS {
            break;
        }
        work::count(1);
        let version = entries[place].api_version.clone();
        let Some(first) = buckets.get(&version).copied() else {
            buckets.insert(version, place);
            continue;
        };
        let bucket = *ancient.entry(version).or_insert(first);
        if bucket == place {
            continue;
        }
        let fields = std::mem::take(&mut entries[place].fields);
        let time = std::mem::take(&mut entries[place].time);
        let into = &mut entries[bucket];
        unite(&mut into.fields, &fields);
        (into.manager, into.subresource, into.time) = (ANCIENT.to_owned(), String::new(), time);
        left -= 1;
    }
    entries.retain(|entry| !entry.fields.is_empty());
}
