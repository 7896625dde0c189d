//! Native schemas from a table with one row per field (definition, field, type, required, emit,
//! list type, keys, map type, patch strategy, merge key, default, enum).
//!
//! A row with an empty definition continues the one above. A definition is built from its own rows
//! on first use; its references stay lazy [`Node`]s, so that the first request of a kind builds
//! only the nodes it walks, and recursion needs no special case.

use crate::schema::{Emit, Kind, ListType, MapType, Node, Property, Schema};
use ferrokube_apimachinery::document::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

const COLUMNS: usize = 12;
/// Column of a field's type.
const KIND: usize = 2;

/// Definitions by name, each built once, on first use. Lives as long as the process: built nodes
/// refer back to it.
#[derive(Clone)]
pub struct Tables {
    index: Arc<TableIndex>,
}

/// The rows of each definition, sorted by name.
struct TableIndex {
    definitions: Vec<DefinitionRows>,
    words: &'static str,
    descriptions: OnceLock<Descriptions>,
    /// Has the definitions that this one lacks.
    base: Option<Arc<TableIndex>>,
}

/// Descriptions by definition (`*` for any) and field (empty for the definition itself).
type Descriptions = HashMap<(&'static str, &'static str), &'static str>;

struct DefinitionRows {
    name: &'static str,
    rows: &'static str,
    schema: OnceLock<Arc<Schema>>,
}

impl Tables {
    /// Indexes the table without building nodes. The first line is the heading.
    ///
    /// # Errors
    /// The first malformed line.
    pub fn parse(text: &'static str) -> Result<Self, String> {
        let mut definitions: Vec<DefinitionRows> = Vec::with_capacity(256);
        let mut at = text.find('\n').map_or(text.len(), |end| end + 1);
        let mut started = at;
        while at < text.len() {
            let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
            let line = &text[at..end];
            let Some((name, rest)) = line.split_once('\t') else {
                return Err(format!("no field in the line {line:?}"));
            };
            if !name.is_empty() {
                close(&mut definitions, &text[started..at]);
                started = at;
                definitions.push(DefinitionRows { name, rows: "", schema: OnceLock::new() });
            } else if definitions.is_empty() || rest.is_empty() {
                return Err(format!("a field of no definition: {line:?}"));
            }
            at = (end + 1).min(text.len());
        }
        close(&mut definitions, &text[started..]);
        definitions.sort_unstable_by_key(|definition| definition.name);
        Ok(Self {
            index: Arc::new(TableIndex {
                definitions,
                words: "",
                descriptions: OnceLock::new(),
                base: None,
            }),
        })
    }

    /// Adds field descriptions, one per line: a name (`Lease` or `LeaseSpec.renewTime` by the last
    /// segment of the definition's name, or `*.kind` for a field of any definition) and a text.
    ///
    /// # Panics
    /// If a definition was built already.
    #[must_use]
    pub fn described(mut self, words: &'static str) -> Self {
        Arc::get_mut(&mut self.index).expect("no definition was built yet").words = words;
        self
    }

    /// Adds the definitions of a base, on which those of this table may build. Their own come
    /// first.
    ///
    /// # Panics
    /// If a definition was built already.
    #[must_use]
    pub fn over(mut self, base: &Self) -> Self {
        Arc::get_mut(&mut self.index).expect("no definition was built yet").base =
            Some(Arc::clone(&base.index));
        self
    }

    /// The schema of a definition such as `io.k8s.api.core.v1.ConfigMap`.
    pub fn get(&self, definition: &str) -> Option<Arc<Schema>> {
        let (index, at) = TableIndex::find(&self.index, definition)?;
        Some(TableIndex::schema(index, at).clone())
    }

    /// The first name that a definition refers to and that neither the table nor its base has.
    pub fn dangling(&self) -> Option<&'static str> {
        let of_line = |line: &'static str| {
            let (_, inner) = line.split('\t').nth(KIND)?.split_once("ref:")?;
            Some(inner.trim_end_matches('>'))
        };
        let mut known: HashSet<&str> = HashSet::new();
        let mut index = Some(&self.index);
        while let Some(own) = index {
            known.extend(own.definitions.iter().map(|definition| definition.name));
            index = own.base.as_ref();
        }
        let rows = self.index.definitions.iter().flat_map(|definition| definition.rows.lines());
        rows.filter_map(of_line).find(|name| !known.contains(name))
    }

    /// All definition names, sorted; without those of a base.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.index.definitions.iter().map(|definition| definition.name)
    }
}

fn close(definitions: &mut [DefinitionRows], rows: &'static str) {
    if let Some(last) = definitions.last_mut() {
        last.rows = rows;
    }
}

impl TableIndex {
    /// The index that has the definition, and its position there.
    fn find<'a>(index: &'a Arc<Self>, name: &str) -> Option<(&'a Arc<Self>, usize)> {
        match index.definitions.binary_search_by(|definition| definition.name.cmp(name)) {
            Ok(at) => Some((index, at)),
            Err(_) => Self::find(index.base.as_ref()?, name),
        }
    }

    /// A lazy node of the definition, if there is one.
    fn node(index: &Arc<Self>, name: &str, overrides: Option<FieldRow<'static>>) -> Option<Node> {
        let (index, at) = Self::find(index, name)?;
        Some(Node::lazy(NodeRef { index: Arc::clone(index), at, overrides }))
    }

    /// The description of a field, or (empty field) of a definition.
    fn describe(&self, definition: &str, field: &str) -> Option<&'static str> {
        let parse = |line: &'static str| {
            let (name, text) = line.split_once('\t')?;
            Some((name.split_once('.').unwrap_or((name, "")), text))
        };
        let all = self.descriptions.get_or_init(|| self.words.lines().filter_map(parse).collect());
        let own = all.get(&(definition, field)).or_else(|| all.get(&("*", field))).copied();
        own.or_else(|| self.base.as_ref()?.describe("*", field))
    }

    fn schema(index: &Arc<Self>, at: usize) -> &Arc<Schema> {
        let definition = &index.definitions[at];
        definition.schema.get_or_init(|| Arc::new(build(index, definition)))
    }
}

/// A field's reference to a definition, with the field's own attributes.
#[derive(Clone)]
pub(crate) struct NodeRef {
    index: Arc<TableIndex>,
    at: usize,
    overrides: Option<FieldRow<'static>>,
}

impl NodeRef {
    pub(crate) fn name(&self) -> &'static str {
        self.index.definitions[self.at].name
    }

    pub(crate) fn resolve(&self) -> Arc<Schema> {
        let schema = TableIndex::schema(&self.index, self.at);
        match &self.overrides {
            None => schema.clone(),
            Some(row) => {
                let mut own = Schema::clone(schema);
                row.annotate(&mut own);
                Arc::new(own)
            }
        }
    }
}

/// The columns of a line.
#[derive(Clone, Copy)]
struct FieldRow<'a> {
    columns: [&'a str; COLUMNS],
}

impl<'a> FieldRow<'a> {
    fn of(line: &'a str) -> Self {
        let mut columns = [""; COLUMNS];
        for (slot, column) in columns.iter_mut().zip(line.split('\t')) {
            *slot = column;
        }
        Self { columns }
    }

    fn field(&self) -> &'a str {
        self.columns[1]
    }

    fn kind(&self) -> &'a str {
        self.columns[KIND]
    }

    fn required(&self) -> bool {
        !self.columns[3].is_empty()
    }

    fn emit(&self) -> Emit {
        match self.columns[4] {
            "a" => Emit::Always,
            "o" => Emit::OmitEmpty,
            "p" => Emit::OmitNull,
            "n" => Emit::AlwaysNull,
            _ => Emit::AsIs,
        }
    }

    /// Whether the row has no attributes for merging, defaults or values.
    fn is_plain(&self) -> bool {
        self.columns[5..].iter().all(|column| column.is_empty())
    }

    fn annotate(&self, schema: &mut Schema) {
        let [_, _, _, _, _, list_type, list_keys, map_type, strategy, merge_key, default, values] =
            self.columns;
        match list_type {
            "set" => schema.list_type = ListType::Set,
            "map" => {
                schema.list_type = ListType::Map(list_keys.split(',').map(str::to_owned).collect())
            }
            _ => {}
        }
        match map_type {
            "atomic" => schema.map_type = MapType::Atomic,
            "granular" => schema.map_type = MapType::Granular,
            _ => {}
        }
        if !strategy.is_empty() {
            schema.patch_strategy = Some(strategy.into());
        }
        if !merge_key.is_empty() {
            schema.patch_merge_key = Some(merge_key.into());
        }
        if !default.is_empty() {
            schema.default = scalar(default);
        }
        schema.enumeration =
            values.split(',').filter(|value| !value.is_empty()).map(enumerated).collect();
    }
}

/// A value of an enumeration; `""` is the empty text.
fn enumerated(text: &str) -> Value {
    Value::from(if text == "\"\"" { "" } else { text })
}

/// A default as JSON; the tables only have scalars.
fn scalar(text: &str) -> Option<Value> {
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ => match text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(inner) => Some(Value::from(inner)),
            None => text.parse::<i64>().ok().map(Value::from),
        },
    }
}

fn build(index: &Arc<TableIndex>, definition: &DefinitionRows) -> Schema {
    let mut schema = Schema {
        name: Some(definition.name.into()),
        native: true,
        kind: Kind::Object,
        ..Schema::default()
    };
    let short = definition.name.rsplit('.').next().unwrap_or(definition.name);
    schema.description = index.describe(short, "").map(Arc::from);
    let inside = ["OrArray", "OrBool", "OrStringArray"]
        .iter()
        .find_map(|form| definition.name.strip_suffix(form));
    schema.inside = inside
        .filter(|_| short.starts_with("JSONSchemaPropsOr"))
        .and_then(|name| TableIndex::node(index, name, None));
    for line in definition.rows.lines() {
        let row = FieldRow::of(line);
        match row.field() {
            "" => leaf(&mut schema, row.kind()),
            "(self)" => row.annotate(&mut schema),
            field => {
                let property = Property {
                    schema: node(index, row.kind(), Some(row)),
                    required: row.required(),
                    emit: row.emit(),
                    description: index.describe(short, field),
                };
                schema.properties.insert(field.into(), property);
            }
        }
    }
    schema.properties.shrink_to_fit();
    schema
}

/// A definition without fields: a scalar or free-form.
fn leaf(schema: &mut Schema, kind: &str) {
    match schema.short_name() {
        "Quantity" => (schema.kind, schema.format) = (Kind::IntOrString, Some("quantity".into())),
        "IntOrString" => {
            (schema.kind, schema.format) = (Kind::IntOrString, Some("int-or-string".into()))
        }
        "FieldsV1" | "RawExtension" | "Patch" => {
            (schema.kind, schema.preserve_unknown) = (Kind::Any, true);
            schema.map_type = MapType::Atomic;
        }
        _ => primitive(schema, kind),
    }
}

fn primitive(schema: &mut Schema, text: &str) {
    let (kind, format) =
        text.split_once('/').map_or((text, None), |(kind, format)| (kind, Some(format)));
    schema.kind = match kind {
        "string" => Kind::String,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        "object" => Kind::Object,
        _ => Kind::Any,
    };
    schema.preserve_unknown = schema.kind == Kind::Any;
    schema.format = format.map(Arc::from);
}

/// The node of a type: `ref:NAME`, `list<T>`, `map<T>`, `string`, `integer/int32`, ...
fn node(index: &Arc<TableIndex>, text: &'static str, row: Option<FieldRow<'static>>) -> Node {
    let row = row.filter(|row| !row.is_plain());
    if let Some(name) = text.strip_prefix("ref:") {
        return TableIndex::node(index, name, row).unwrap_or_else(|| {
            Schema { native: true, preserve_unknown: true, ..Schema::default() }.into()
        });
    }
    if row.is_none()
        && let Some(shared) = shared(text)
    {
        return shared.clone().into();
    }
    let mut schema = Schema { native: true, ..Schema::default() };
    if let Some(inner) = text.strip_prefix("list<").and_then(|rest| rest.strip_suffix('>')) {
        schema.kind = Kind::Array;
        schema.items = Some(node(index, inner, None));
    } else if let Some(inner) = text.strip_prefix("map<").and_then(|rest| rest.strip_suffix('>')) {
        schema.kind = Kind::Object;
        schema.additional = Some(node(index, inner, None));
    } else {
        primitive(&mut schema, text);
    }
    if let Some(row) = row {
        row.annotate(&mut schema);
        allow_elements(&mut schema);
    }
    schema.into()
}

/// Allowed values of a list or a map are those of its elements.
fn allow_elements(schema: &mut Schema) {
    if schema.enumeration.is_empty() {
        return;
    }
    let elements = match schema.kind {
        Kind::Array => &mut schema.items,
        Kind::Object => &mut schema.additional,
        _ => return,
    };
    if let Some(node) = elements.take() {
        let mut element = Schema::clone(&node);
        element.enumeration = std::mem::take(&mut schema.enumeration);
        *elements = Some(element.into());
    }
}

/// Primitive types, one shared node each.
fn shared(text: &str) -> Option<&'static Arc<Schema>> {
    static SHARED: OnceLock<BTreeMap<&'static str, Arc<Schema>>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let texts = [
            "string",
            "boolean",
            "integer/int32",
            "integer/int64",
            "number/double",
            "string/byte",
            "string/date-time",
            "object",
            "any",
        ];
        let plain = |text| {
            let mut schema = Schema { native: true, ..Schema::default() };
            primitive(&mut schema, text);
            (text, Arc::new(schema))
        };
        let mut shared: BTreeMap<&'static str, Arc<Schema>> =
            texts.into_iter().map(plain).collect();
        for (text, item) in [("map<string>", "string"), ("map<string/byte>", "string/byte")] {
            let additional = Some(shared[item].clone().into());
            shared.insert(
                text,
                Arc::new(Schema {
                    native: true,
                    kind: Kind::Object,
                    additional,
                    ..Schema::default()
                }),
            );
        }
        shared
    });
    shared.get(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{schema, tables};

    #[test]
    fn every_definition_builds_and_refers_only_to_definitions() {
        let tables = tables();
        assert!(tables.names().count() > 200);
        for name in tables.names() {
            let schema = tables.get(name).unwrap();
            for property in schema.properties.values() {
                let _ = property.schema.shared();
                if let Some(items) = &property.schema.items {
                    assert!(items.name.is_some() || items.kind != Kind::Any, "{name}");
                }
            }
        }
    }

    #[test]
    fn rows_say_how_fields_merge() {
        let meta = schema("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        assert_eq!(meta.properties["finalizers"].schema.list_type, ListType::Set);
        assert_eq!(
            meta.properties["ownerReferences"].schema.list_type,
            ListType::Map(vec!["uid".to_owned()])
        );
        assert_eq!(
            meta.properties["ownerReferences"].schema.patch_merge_key.as_deref(),
            Some("uid")
        );
        assert_eq!(
            meta.properties["ownerReferences"].schema.items.as_ref().unwrap().map_type,
            MapType::Atomic
        );
        assert_eq!(
            schema("io.k8s.api.core.v1.Event").properties["firstTimestamp"].emit,
            Emit::Always
        );
    }

    #[test]
    fn allowed_values_are_those_of_elements() {
        let rows = "heading\nA\tlist\tlist<string>\t\to\t\t\t\t\t\t\tx,y\n\
                    \tmap\tmap<string>\t\to\t\t\tgranular\t\t\t\tx,y\n";
        let schema = Tables::parse(rows).unwrap().get("A").unwrap();
        let (list, map) = (&schema.properties["list"].schema, &schema.properties["map"].schema);
        for (whole, elements) in [(list, &list.items), (map, &map.additional)] {
            assert!(whole.enumeration.is_empty(), "{whole:?}");
            assert_eq!(elements.as_ref().unwrap().enumeration, ["x", "y"]);
        }
    }

    #[test]
    fn recursion_is_lazy_and_shared() {
        let props =
            schema("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
        let inner = &props.properties["not"].schema;
        assert!(Arc::ptr_eq(inner.shared(), &props));
        assert!(format!("{props:?}").len() < 100_000);
    }

    #[test]
    fn malformed_tables_are_refused() {
        assert!(Tables::parse("heading\n\tfield\tstring\n").is_err());
        assert!(Tables::parse("heading\nlonely\n").is_err());
        assert!(Tables::parse("").is_ok_and(|tables| tables.get("x").is_none()));
    }
}
