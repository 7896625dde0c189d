//! Table rows from an object's bytes, without parsing them.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json::{self, Layout, forms, scan};
use ferrokube_apimachinery::time;
use std::borrow::Cow;
use std::time::SystemTime;

/// Printed for unset times.
pub const UNKNOWN: &str = "<unknown>";

/// An object to print: its canonical bytes, and the position of its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a> {
    bytes: &'a [u8],
    metadata: &'a [u8],
    /// The bytes after the metadata.
    rest: &'a [u8],
}

impl<'a> Printable<'a> {
    /// From canonical bytes with `splice_length` bytes of resourceVersion spliced in at the
    /// position in `layout`.
    pub fn new(bytes: &'a [u8], layout: &Layout, splice_length: usize) -> Self {
        let metadata = forms::metadata(bytes, layout, splice_length);
        let rest = bytes.get(layout.metadata as usize + metadata.len()..).unwrap_or_default();
        Self { bytes, metadata, rest }
    }

    /// Bytes of the object.
    #[allow(clippy::len_without_is_empty, reason = "an object is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The value at a path of field names, as bytes.
    pub fn find(&self, path: &[impl AsRef<str>]) -> Option<&'a [u8]> {
        let (first, below) = path.split_first()?;
        match first.as_ref() {
            "metadata" => scan::field(self.metadata, below),
            // Precede the metadata, where the scan ends.
            "kind" | "apiVersion" => scan::field(self.bytes, path),
            first => scan::field(scan::named(scan::following(self.rest), first)?, below),
        }
    }

    /// The string at a path; empty if absent.
    pub fn str(&self, path: &[&str]) -> Cow<'a, str> {
        self.find(path).and_then(scan::string).unwrap_or_default()
    }

    /// `metadata.name`
    pub fn name(&self) -> Cow<'a, str> {
        self.str(&["metadata", "name"])
    }

    /// Total number of entries of maps outside of the metadata.
    pub fn count(&self, maps: &[&str]) -> usize {
        let all = scan::following(self.rest)
            .filter(|(name, _)| maps.iter().any(|map| map.as_bytes() == *name));
        all.map(|(_, map)| scan::fields(map).count()).sum()
    }

    /// The object, parsed.
    pub fn document(&self) -> Document {
        // Canonical bytes always parse.
        json::read(self.bytes).map(|decoded| decoded.document).unwrap_or_default()
    }
}

/// Cells of one row: concatenated JSON texts, and times to be shown as ages.
#[derive(Debug)]
pub struct TableRow {
    now: SystemTime,
    texts: Vec<u8>,
    cells: Vec<CellEnd>,
    is_dated: bool,
    completion: Option<Completion>,
}

/// Why an object no longer needs attention: the condition `Completed` of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// In CamelCase.
    pub reason: &'static str,
    /// A sentence.
    pub message: &'static str,
}

/// End of a cell's text, and its time if it is an age.
#[derive(Debug)]
struct CellEnd {
    end: usize,
    since: Option<SystemTime>,
}

/// A table cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// JSON text.
    Json(&'a [u8]),
    /// Time to be shown as an age, relative to the time of display.
    Since(SystemTime),
}

impl TableRow {
    /// An empty row, computed at `now`.
    pub fn at(now: SystemTime) -> Self {
        Self { now, texts: Vec::new(), cells: Vec::new(), is_dated: false, completion: None }
    }

    /// Removes all cells, and the completion.
    pub fn clear(&mut self) {
        self.texts.clear();
        self.cells.clear();
        self.is_dated = false;
        self.completion = None;
    }

    /// Sets whether the object needs attention; it does unless this is called.
    pub fn complete(&mut self, completion: Option<Completion>) {
        self.completion = completion;
    }

    /// As set by [`Self::complete`].
    pub fn completion(&self) -> Option<Completion> {
        self.completion
    }

    /// Appends a string.
    pub fn text(&mut self, text: &str) {
        json::write_string(&mut self.texts, text);
        self.end(None);
    }

    /// Appends a value.
    pub fn value(&mut self, value: &Value) {
        self.texts.extend_from_slice(&json::to_vec(value));
        self.end(None);
    }

    /// Appends the age of a time; [`UNKNOWN`] if unset, zero if in the future.
    pub fn since(&mut self, time: &str) {
        let Some(then) = time::parse_rfc3339(time) else { return self.text(UNKNOWN) };
        self.end(Some(then));
    }

    /// Appends the object's age.
    pub fn age(&mut self, object: &Printable<'_>) {
        self.since(&object.str(&["metadata", "creationTimestamp"]));
    }

    /// The current time, for cells that depend on it other than by [`Self::since`]. Such a row
    /// cannot be cached.
    pub fn dated(&mut self) -> SystemTime {
        self.is_dated = true;
        self.now
    }

    /// Whether the row cannot be cached.
    pub fn is_dated(&self) -> bool {
        self.is_dated
    }

    /// The cells, in order.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let mut start = 0;
        self.cells.iter().map(move |place| {
            let text = &self.texts[std::mem::replace(&mut start, place.end)..place.end];
            place.since.map_or(Cell::Json(text), Cell::Since)
        })
    }

    fn end(&mut self, since: Option<SystemTime>) {
        self.cells.push(CellEnd { end: self.texts.len(), since });
    }
}

/// Age of a time; zero if in the future.
pub fn age(then: SystemTime, now: SystemTime) -> String {
    time::human_age(now.duration_since(then).unwrap_or_default().as_secs())
}

/// Age of a time; [`UNKNOWN`] if unset, zero if in the future.
pub fn since(text: &str, now: SystemTime) -> String {
    match time::parse_rfc3339(text) {
        Some(then) => age(then, now),
        None => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn check(object: Value, look: impl Fn(&Printable<'_>)) {
        let (bytes, layout) = json::write(&Document::from_value(object.clone()).unwrap());
        look(&Printable::new(&bytes, &layout, 0));
        let spliced = forms::splice_revision(&bytes, &layout, 77);
        look(&Printable::new(&spliced, &layout, forms::revision_length(layout.comma(), 77)));
    }

    #[test]
    fn values_are_found_without_parsing() {
        let object = json!({
            "kind": "K", "apiVersion": "g/v1",
            "metadata": {"name": "a\"b", "labels": {"data": "no"}, "creationTimestamp": "2024-01-02T02:59:05Z"},
            "binaryData": {"z": ""}, "data": {"a": "{\\\"}", "b": ",", "c": ""}, "spec": {"data": {"x": "y"}, "n": 3},
        });
        check(object.clone(), |printable| {
            assert_eq!(printable.name(), "a\"b");
            assert_eq!(printable.str(&["kind"]), "K");
            assert_eq!(printable.str(&["spec", "data", "x"]), "y");
            assert_eq!(printable.find(&["spec", "n"]), Some(&b"3"[..]));
            assert_eq!(printable.count(&["data", "binaryData"]), 4);
            assert_eq!(printable.str(&["metadata", "labels", "data"]), "no");
            assert_eq!(printable.str(&["nothing"]), "");
            let mut document = printable.document();
            document.remove(&["metadata", "resourceVersion"]);
            assert_eq!(document.into_value(), object);
        });
    }

    #[test]
    fn an_empty_object_prints_nothing() {
        check(json!({}), |printable| {
            assert_eq!(printable.name(), "");
            assert_eq!(printable.count(&["data"]), 0);
            assert_eq!(printable.str(&["spec", "a"]), "");
        });
    }

    #[test]
    fn cells_are_json_texts() {
        let (then, later) =
            ("2024-01-02T02:59:05Z", time::parse_rfc3339("2024-01-02T03:04:05Z").unwrap());
        let mut row = TableRow::at(later);
        row.text("old");
        row.dated();
        row.clear();
        row.text("a\"");
        row.value(&json!(3));
        row.since(then);
        row.since("");
        let cells: Vec<Cell<'_>> = row.cells().collect();
        let since = Cell::Since(time::parse_rfc3339(then).unwrap());
        assert_eq!(
            cells,
            [Cell::Json(b"\"a\\\"\""), Cell::Json(b"3"), since, Cell::Json(b"\"<unknown>\"")]
        );
        assert!(!row.is_dated());
        assert_eq!(row.dated(), later);
        assert!(row.is_dated());
    }
}
