//! Printer columns, and their encoded forms in Tables.

use bytes::Bytes;
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::jsonpath::JsonPath;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Bytes of a column in a row or head, besides its texts.
const COLUMN_BYTES: usize = 64;
/// Columns that cost no more are as good as none.
const FEW_BYTES: usize = 8 * 1024;

/// A printer column.
#[derive(Clone, Debug)]
pub struct Column {
    /// Column heading.
    pub name: Arc<str>,
    /// OpenAPI type: `string`, `integer`, `date`, ...
    pub kind: Arc<str>,
    /// OpenAPI format: `name` for the name column, usually empty otherwise.
    pub format: Arc<str>,
    /// Description for users.
    pub description: Arc<str>,
    /// 0: always shown; higher: wide output only.
    pub priority: i32,
    /// JSONPath of the cell for custom resources; empty: computed by the hooks.
    pub json_path: Arc<str>,
}

/// Source of a column's cells.
#[derive(Debug)]
pub enum CellSource {
    /// The hooks compute them.
    Computed,
    /// Fields all the way down: found without parsing.
    Fields(Vec<String>),
    /// Another JSONPath.
    Path(JsonPath),
    /// No JSONPath that we know.
    Nothing,
}

/// Printer columns of a version or subresource. Clones share the encoded forms.
#[derive(Clone, Debug, Default)]
pub struct Columns(Arc<SharedColumns>);

#[derive(Debug, Default)]
struct SharedColumns {
    columns: Box<[Column]>,
    cost: usize,
    definitions: OnceLock<Bytes>,
    sources: OnceLock<Box<[CellSource]>>,
}

impl Columns {
    /// `columnDefinitions` of a Table, as JSON. Made at first use.
    pub fn definitions(&self) -> &Bytes {
        self.0.definitions.get_or_init(|| {
            let definition = |column: &Column| {
                json!({
                    "name": &*column.name,
                    "type": &*column.kind,
                    "format": &*column.format,
                    "description": &*column.description,
                    "priority": column.priority,
                })
            };
            json::to_vec(&Value::Array(self.iter().map(definition).collect())).into()
        })
    }

    /// Where each column's cells come from. Made at first use.
    pub fn sources(&self) -> &[CellSource] {
        self.0.sources.get_or_init(|| self.iter().map(CellSource::of).collect())
    }

    /// Approximate bytes that they add to a Table; 0 for few columns.
    pub fn cost(&self) -> usize {
        self.0.cost
    }
}

impl Deref for Columns {
    type Target = [Column];

    fn deref(&self) -> &[Column] {
        &self.0.columns
    }
}

impl FromIterator<Column> for Columns {
    fn from_iter<I: IntoIterator<Item = Column>>(columns: I) -> Self {
        let columns: Box<[Column]> = columns.into_iter().collect();
        let cost = |column: &Column| {
            COLUMN_BYTES + column.name.len() + column.description.len() + column.json_path.len()
        };
        let cost = Some(columns.iter().map(cost).sum()).filter(|cost| *cost > FEW_BYTES);
        Self(Arc::new(SharedColumns {
            columns,
            cost: cost.unwrap_or(0),
            ..SharedColumns::default()
        }))
    }
}

impl CellSource {
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
