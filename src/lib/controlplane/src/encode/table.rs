//! Tables, as kubectl prints them. A row has its cells and either null, the metadata or the whole
//! object.

use super::chunk_cache::{self, ChunkCache, ChunkEncoding, ChunkScope, ChunkedListing};
use super::rendered::{self, BATCH_BYTES, ItemText, ListJson, Rendered, Style};
use super::rows::{Ages, FutureAge, RowDraft, RowFiller, Rows};
use super::slices::ItemSlice;
use super::stream::{Fill, PREFETCHED_ITEMS, prefetch};
use super::vectored::SliceFrame;
use super::{CanonicalBytes, canonical, entry_document, json_document, partial_document, slices};
use crate::action::Include;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::jsonpath::MAX_NODES;
use ferrokube_apimachinery::{json as json_codec, time};
use ferrokube_registry::{Object, Served};
use ferrokube_resource::print::Completion;
use ferrokube_resource::{Cell, CellSource, Columns, Printable, TableRow};
use ferrokube_serve::{Chunk, WRITE_BYTES};
use ferrokube_storage::Entry;
use std::sync::Arc;
use std::time::SystemTime;
use std::vec::IntoIter;

const TAIL: &[u8] = b"]}\n";

/// A frame fills one write, with room for an age and HTTP framing.
const FRAME_BYTES: usize = WRITE_BYTES - 64;

/// Tables with no more rows are encoded without the cache and sent whole,
pub(crate) const FEW_ROWS: usize = 32;
/// if their objects together are no longer than this.
const SHORT_BYTES: usize = 32 * 1024;
/// Longer objects or metadata are referenced instead of copied.
const REFERENCED_BYTES: usize = 16 * 1024;
/// Max bytes of a row's JSONPath cells; longer cells are truncated.
const ROW_BYTES: usize = 64 * 1024;
/// Shown instead of a list or map that exceeds the row's budget.
const TOO_LONG: &str = "<too long>";
/// If looking up a row's fields would scan more bytes, the object is parsed instead.
const MAX_SCANNED_BYTES: usize = 256 * 1024;
/// Initial capacity for a short Table.
const FEW_ROWS_BYTES: usize = 8 * 1024;

/// The columns of a subresource, or of the objects.
pub(crate) fn columns_of<'a>(served: &'a Served, subresource: &str) -> &'a Columns {
    let version = served.version();
    let own = version.subresources.iter().find(|own| own.name == subresource);
    own.and_then(|own| own.columns.as_ref()).unwrap_or(&version.columns)
}

/// Whether such a Table is sent whole and not cached.
pub(super) fn is_short(entries: &[Arc<Entry>]) -> bool {
    entries.len() <= FEW_ROWS
        && entries.iter().map(|entry| entry.bytes.len()).sum::<usize>() <= SHORT_BYTES
}

/// A Table up to its rows, in three parts.
struct TableHead {
    opening: Vec<u8>,
    /// Shared by all Tables of the version.
    definitions: Bytes,
    rest: Vec<u8>,
}

/// How a resource's objects become rows of one Table.
pub(crate) struct Table {
    served: Served,
    version: &'static str,
    include: Include,
    now: SystemTime,
    columns: Columns,
    /// The current row as written by the hooks.
    row: TableRow,
    /// The current rows.
    draft: RowDraft,
}

impl Table {
    /// `version` is the Table's own (`v1`).
    pub(crate) fn new(
        served: &Served,
        version: &'static str,
        include: Include,
        now: SystemTime,
    ) -> Self {
        Self::with(served, &served.version().columns, version, include, now)
    }

    /// The Table of a subresource.
    pub(crate) fn of_subresource(
        served: &Served,
        subresource: &str,
        version: &'static str,
        include: Include,
        now: SystemTime,
    ) -> Self {
        Self::with(served, columns_of(served, subresource), version, include, now)
    }

    fn with(
        served: &Served,
        columns: &Columns,
        version: &'static str,
        include: Include,
        now: SystemTime,
    ) -> Self {
        Self {
            served: served.clone(),
            version,
            include,
            now,
            columns: columns.clone(),
            row: TableRow::at(now),
            draft: RowDraft::default(),
        }
    }

    /// The whole Table as JSON, with a newline; in frames, as long definitions of columns are
    /// shared. `list_meta` is JSON; without columns their definitions are null (later events of a
    /// watch).
    pub(crate) fn frames(
        &mut self,
        list_meta: &str,
        with_columns: bool,
        object: &Object,
    ) -> [Bytes; 3] {
        let TableHead { opening, definitions, rest: mut out } = self.head(list_meta, with_columns);
        self.draft.clear();
        match object {
            Object::Stored(entry) => self.write_entry(entry, self.served.is_direct(entry)),
            Object::Computed(document) => self.write_document(document),
        }
        RowFiller::new(self.draft.take()).fill(&mut Ages::new(self.now), &mut out, usize::MAX);
        out.extend_from_slice(TAIL);
        [opening.into(), definitions, out.into()]
    }

    /// A Table without rows, as JSON.
    pub(super) fn empty(&self, list_meta: &str) -> [Bytes; 3] {
        let TableHead { opening, definitions, rest: mut out } = self.head(list_meta, true);
        if self.is_default() {
            out.pop();
            out.extend_from_slice(b"null}\n");
        } else {
            out.extend_from_slice(TAIL);
        }
        [opening.into(), definitions, out.into()]
    }

    /// Whether its columns make each row long.
    pub(super) fn is_wide(&self) -> bool {
        self.columns.cost() > 0
    }

    /// A list's Table, indented or as YAML.
    pub(super) fn rendered(
        self,
        list_meta: &str,
        entries: Vec<Arc<Entry>>,
        style: Style,
    ) -> Rendered<impl rendered::ItemSource + use<>> {
        let TableHead { opening, definitions, rest } = self.head(list_meta, true);
        let list = ListJson {
            opening: opening.into(),
            definitions,
            rest: rest.into(),
            tail: TAIL,
            items: "rows",
        };
        let ages = Ages::new(self.now);
        let source = EncodedRows { table: self, ages, entries: entries.into_iter() };
        Rendered::new(list, source, style)
    }

    /// A list's Table, encoded while it is sent; rows come from the cache if there are many.
    pub(crate) fn stream(
        self,
        list_meta: &str,
        chunks: &ChunkCache,
        entries: Vec<Arc<Entry>>,
    ) -> TableStream {
        let (definition, version) = (Arc::clone(&self.served.definition), self.served.version);
        let encoding = ChunkEncoding::Rows(self.version, self.include);
        let cached = (entries.len() > FEW_ROWS)
            .then(|| (chunks.clone(), chunks.begin(ChunkScope { definition, version, encoding })));
        let direct = Box::new(self.served.direct());
        TableStream {
            head: self.head(list_meta, true),
            ages: Ages::new(self.now),
            table: self,
            cached,
            direct,
            entries,
            written: 0,
            filling: None,
            done: false,
        }
    }

    /// Rows of entries, separated by commas.
    fn rows(&mut self, entries: &[Arc<Entry>]) -> &mut RowDraft {
        self.draft.clear();
        let is_direct = self.served.direct();
        for (at, entry) in entries.iter().enumerate() {
            if at % PREFETCHED_ITEMS == 0 {
                prefetch(entries[at..].iter().take(PREFETCHED_ITEMS).map(|entry| &entry.bytes[..]));
            }
            if at > 0 {
                self.draft.bytes.push(b',');
            }
            self.write_entry(entry, is_direct(entry));
        }
        &mut self.draft
    }

    /// Whether the kind has only the default columns: kube-apiserver encodes the rows of such an
    /// empty Table as null.
    fn is_default(&self) -> bool {
        self.served.definition.dialect.is_typed()
            && self.columns.iter().map(|column| &*column.name).eq(["Name", "Created At"])
    }

    /// The text before the rows. Short column definitions are copied into the last part.
    fn head(&self, list_meta: &str, with_columns: bool) -> TableHead {
        let opening = format!(
            "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{}\",\"metadata\":{list_meta},\"columnDefinitions\":",
            self.version
        )
        .into_bytes();
        let rows = b",\"rows\":[";
        let definitions = match self.columns.definitions() {
            _ if !with_columns => b"null",
            definitions if definitions.len() >= REFERENCED_BYTES => {
                return TableHead {
                    opening,
                    definitions: definitions.clone(),
                    rest: rows.to_vec(),
                };
            }
            definitions => &definitions[..],
        };
        let rest = [&opening, definitions, rows].concat();
        TableHead { opening: Vec::new(), definitions: Bytes::new(), rest }
    }

    fn write_entry(&mut self, entry: &Entry, is_direct: bool) {
        if !is_direct && !self.is_printed_as_stored(entry) {
            return self.write_document(&entry_document(&self.served, entry));
        }
        self.write_cells(&slices::printable(entry));
        let out = &mut self.draft.bytes;
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Metadata if self.served.has_stored_metadata() => {
                ItemSlice::partial(entry, self.version).write(entry, out);
            }
            Include::Metadata => {
                let document = entry_document(&self.served, entry);
                push_document(&partial_document(&self.served, &document, self.version), out);
            }
            Include::Object if is_direct => out.extend_from_slice(&entry.bytes),
            Include::Object => push_document(&entry_document(&self.served, entry), out),
        }
        out.push(b'}');
    }

    /// Whether the cells and the metadata are those of the stored version, whatever version was
    /// requested: kube-apiserver makes those of a native object from its internal version.
    fn is_printed_as_stored(&self, entry: &Entry) -> bool {
        let definition = &self.served.definition;
        let stored =
            Served { definition: Arc::clone(definition), version: definition.storage_version };
        definition.dialect.is_typed() && stored.is_direct(entry)
    }

    fn write_document(&mut self, document: &Document) {
        let CanonicalBytes { bytes, layout, spliced } = canonical(document);
        self.write_cells(&Printable::new(&bytes, &layout, spliced));
        let out = &mut self.draft.bytes;
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Metadata => {
                push_document(&partial_document(&self.served, document, self.version), out)
            }
            Include::Object => push_document(document, out),
        }
        out.push(b'}');
    }

    /// An entry's row up to its object.
    fn cells(&mut self, entry: &Entry) -> Rows {
        self.draft.clear();
        self.write_cells(&slices::printable(entry));
        self.draft.take()
    }

    /// The parsed object, if its cells need that.
    fn parse(&self, object: &Printable<'_>) -> Option<Value> {
        let sources = self.columns.sources();
        let fields = sources.iter().filter(|cells| matches!(cells, CellSource::Fields(_))).count();
        let is_needed = sources.iter().any(|cells| matches!(cells, CellSource::Path(_)));
        (is_needed || (fields > 1 && fields.saturating_mul(object.len()) > MAX_SCANNED_BYTES))
            .then(|| object.document().into_value())
    }

    /// A row up to its object.
    fn write_cells(&mut self, object: &Printable<'_>) {
        self.row.clear();
        self.served.definition.hooks.print(object, &mut self.row);
        self.draft.is_dated |= self.row.is_dated();
        let mut computed = self.row.cells();
        let (parsed, mut budget) = (self.parse(object), RowBudget::default());
        self.draft.bytes.extend_from_slice(b"{\"cells\":");
        let mut before = b'[';
        for (column, cells) in self.columns.iter().zip(self.columns.sources()) {
            self.draft.bytes.push(std::mem::replace(&mut before, b','));
            match (cells, &parsed) {
                (CellSource::Computed, _) => push_computed(computed.next(), &mut self.draft),
                (CellSource::Fields(names), None) => {
                    let value =
                        object.find(names).and_then(|bytes| json_codec::read_value(bytes).ok());
                    push_cell(&column.kind, value.as_ref(), &mut budget, &mut self.draft);
                }
                (CellSource::Fields(names), Some(root)) => {
                    push_cell(
                        &column.kind,
                        names.iter().try_fold(root, |value, name| value.get(name)),
                        &mut budget,
                        &mut self.draft,
                    );
                }
                (CellSource::Path(path), root) => {
                    let value = root.as_ref().and_then(|root| path.first(root, &mut budget.nodes));
                    push_cell(&column.kind, value, &mut budget, &mut self.draft);
                }
                (CellSource::Nothing, _) => self.draft.bytes.extend_from_slice(b"null"),
            }
        }
        if before == b'[' {
            self.draft.bytes.push(b'[');
        }
        self.draft.bytes.push(b']');
        if let Some(Completion { reason, message }) = self.row.completion() {
            let condition = format!(
                ",\"conditions\":[{{\"type\":\"Completed\",\"status\":\"True\",\"reason\":\"{reason}\",\"message\":\"{message}\"}}]"
            );
            self.draft.bytes.extend_from_slice(condition.as_bytes());
        }
        self.draft.bytes.extend_from_slice(b",\"object\":");
    }
}

/// A list's Table on its way out.
pub(crate) struct TableStream {
    head: TableHead,
    table: Table,
    ages: Ages,
    /// The row cache, for long lists.
    cached: Option<(ChunkCache, ChunkedListing)>,
    entries: Vec<Arc<Entry>>,
    /// Number of entries encoded.
    written: usize,
    filling: Option<RowFiller>,
    done: bool,
    /// Whether an entry's stored bytes are in the requested version.
    direct: Box<dyn Fn(&Entry) -> bool + Send>,
}

impl TableStream {
    /// The slice of an entry to reference, if it is long.
    fn long_slice(&self, entry: &Entry) -> Option<ItemSlice> {
        let slice = match self.table.include {
            Include::None => return None,
            Include::Metadata if !self.table.served.has_stored_metadata() => return None,
            Include::Metadata => ItemSlice::partial(entry, self.table.version),
            Include::Object => ItemSlice::whole(entry),
        };
        (slice.part.len() >= REFERENCED_BYTES && (self.direct)(entry)).then_some(slice)
    }

    /// The next row as a frame of its own, if its object is referenced.
    fn next_referenced(&mut self, out: Vec<u8>) -> Result<Chunk, Vec<u8>> {
        let Some(entry) = self.entries.get(self.written) else { return Err(out) };
        let Some(slice) =
            (entry.bytes.len() >= REFERENCED_BYTES).then(|| self.long_slice(entry)).flatten()
        else {
            return Err(out);
        };
        let entry = Arc::clone(entry);
        let mut cells = Vec::new();
        RowFiller::new(self.table.cells(&entry)).fill(&mut self.ages, &mut cells, usize::MAX);
        let mut frame = SliceFrame::new(out.len() + cells.len() + 64, WRITE_BYTES);
        frame.copy(&out);
        if self.written > 0 {
            frame.copy(b",");
        }
        frame.copy(&cells);
        frame.reference(entry, slice.head, slice.part, slice.tail);
        frame.copy(b"}");
        self.written += 1;
        Ok(Chunk::lent(frame))
    }

    /// The next rows, up to one whose object is referenced.
    fn next(&mut self) -> Option<RowFiller> {
        let rest = &self.entries[self.written..];
        let most = self.cached.as_ref().map_or(PREFETCHED_ITEMS, |(_, listing)| listing.max_rows());
        let long = rest.iter().take(most).position(|entry| {
            entry.bytes.len() >= REFERENCED_BYTES && self.long_slice(entry).is_some()
        });
        let rest = &rest[..long.unwrap_or(rest.len())];
        if rest.is_empty() {
            return None;
        }
        let table = &mut self.table;
        let (count, rows) = match &self.cached {
            Some((chunks, listing)) => chunks.rows(listing, rest, |entries| table.rows(entries)),
            None => chunk_cache::uncached_rows(rest, |entries| table.rows(entries)),
        };
        self.written += count;
        Some(RowFiller::new(rows))
    }
}

/// Encodes rows for one list, in another style.
struct EncodedRows {
    table: Table,
    ages: Ages,
    entries: IntoIter<Arc<Entry>>,
}

impl rendered::ItemSource for EncodedRows {
    fn next(&mut self) -> Option<ItemText> {
        let (mut run, mut bytes, mut out) = (Vec::new(), 0, Vec::new());
        while bytes < BATCH_BYTES
            && let Some(entry) = self.entries.next()
        {
            bytes += entry.bytes.len();
            run.push(entry);
        }
        let rows = self.table.rows(&run).take();
        RowFiller::new(rows).fill(&mut self.ages, &mut out, usize::MAX);
        (!run.is_empty()).then_some(ItemText::Batch(out))
    }
}

impl Fill for TableStream {
    /// A row costs several times as much per byte as a sliced item.
    const TURN_BYTES: usize = 256 * 1024;

    fn fill(&mut self) -> Option<Chunk> {
        if self.done {
            return None;
        }
        let TableHead { opening, definitions, rest } = &mut self.head;
        if !opening.is_empty() {
            return Some(std::mem::take(opening).into());
        }
        if !definitions.is_empty() {
            return Some(std::mem::take(definitions).into());
        }
        let room = if self.entries.len() > FEW_ROWS { WRITE_BYTES } else { FEW_ROWS_BYTES };
        let mut out = Vec::with_capacity(room);
        out.append(rest);
        while out.len() < FRAME_BYTES {
            if let Some(filling) = &mut self.filling
                && !filling.fill(&mut self.ages, &mut out, FRAME_BYTES)
            {
                break;
            }
            self.filling = None;
            out = match self.next_referenced(out) {
                Ok(frame) => return Some(frame),
                Err(out) => out,
            };
            let is_first = self.written == 0;
            self.filling = self.next();
            self.done = self.filling.is_none();
            if self.done {
                out.extend_from_slice(TAIL);
                break;
            }
            if !is_first {
                out.push(b',');
            }
        }
        Some(out.into())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_cheap(&mut self) -> bool {
        !self.table.is_wide()
    }
}

fn push_computed(cell: Option<Cell<'_>>, draft: &mut RowDraft) {
    match cell {
        Some(Cell::Since(since)) => draft.age(since, FutureAge::Now),
        Some(Cell::Json(text)) => draft.bytes.extend_from_slice(text),
        None => draft.bytes.extend_from_slice(b"null"),
    }
}

/// The remaining size budget of a row.
struct RowBudget {
    nodes: usize,
    bytes: usize,
}

impl Default for RowBudget {
    fn default() -> Self {
        Self { nodes: MAX_NODES, bytes: ROW_BYTES }
    }
}

impl RowBudget {
    /// Whether a value fits as JSON. Stops reading where it does not.
    fn fits(&self, value: &Value) -> bool {
        fn take(value: &Value, left: &mut usize) -> bool {
            let own = match value {
                Value::String(text) => text.len() + 2,
                _ => 1,
            };
            let Some(rest) = left.checked_sub(own) else { return false };
            *left = rest;
            value.as_array().is_none_or(|items| items.iter().all(|item| take(item, left)))
                && value.as_object().is_none_or(|fields| {
                    fields.iter().all(|(name, value)| {
                        *left = left.saturating_sub(name.len() + 3);
                        take(value, left)
                    })
                })
        }
        take(value, &mut { self.bytes })
    }
}

/// A cell of a custom column.
fn push_cell(kind: &str, value: Option<&Value>, budget: &mut RowBudget, draft: &mut RowDraft) {
    let before = draft.bytes.len();
    match value {
        Some(Value::String(text)) if kind == "date" && text.is_empty() => {
            draft.bytes.extend_from_slice(b"\"<unknown>\"")
        }
        Some(Value::String(text)) if kind == "date" => match time::parse_rfc3339(text) {
            Some(then) => draft.age(then, FutureAge::Invalid),
            None => draft.bytes.extend_from_slice(b"\"<invalid>\""),
        },
        Some(Value::String(text)) if text.len() > budget.bytes => {
            let end = (0..=budget.bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            json_codec::append_string(&mut draft.bytes, &text[..end]);
        }
        Some(value) if !budget.fits(value) => json_codec::append_string(&mut draft.bytes, TOO_LONG),
        _ => draft.bytes.extend_from_slice(&json_codec::to_vec(
            &value.map(|value| cell(kind, value)).unwrap_or_default(),
        )),
    }
    budget.bytes = budget.bytes.saturating_sub(draft.bytes.len() - before);
}

fn push_document(document: &Document, out: &mut Vec<u8>) {
    let mut bytes = json_document(document, false);
    bytes.pop();
    out.extend_from_slice(&bytes);
}

/// 2^53: above it, a float may skip whole numbers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// A cell of a custom column of any type but date; null if the value has another type.
fn cell(kind: &str, value: &Value) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("integer", Value::Number(number)) => {
            let whole = number.as_i64().or_else(|| number.as_f64().map(|number| number as i64));
            whole.map(Value::from).unwrap_or_default()
        }
        // kube-apiserver parses these as floats.
        ("number", Value::Number(number)) => {
            let float = number.as_f64().filter(|float| float.abs() >= MAX_EXACT);
            float.map_or_else(
                || value.clone(),
                |float| json_codec::float(float).map_or(Value::Null, Value::Number),
            )
        }
        ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => value.clone(),
        // kube-apiserver prints whole numbers without a fraction.
        ("string", Value::Number(number)) if number.as_i64().is_none() => {
            let float = number.as_f64().unwrap_or_default();
            Value::from(if float.fract() == 0.0 && float.abs() < 1e21 {
                format!("{float:.0}")
            } else {
                number.to_string()
            })
        }
        ("string", other) => {
            Value::from(String::from_utf8_lossy(&json_codec::to_vec(other)).into_owned())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests;
