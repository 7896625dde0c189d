//! Sizes of declared values, from their schemas.

use crate::types::{DeclaredField, ObjectRole};
use crate::value::is_reserved;
use ferrokube_schema::{Kind, Node, Schema};
use std::collections::HashMap;
use std::sync::Arc;

/// Max bytes of a request, and so of any value in it.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;
/// Max bytes of a string without its quotes, of a list or map without its brackets.
const MAX_CONTENT: u64 = MAX_REQUEST - 2;
/// Max schema depth.
const MAX_DEPTH: usize = 250;

/// A node of the declared types.
#[derive(Clone, Debug)]
pub(crate) enum Spot {
    Node(Arc<Schema>, ObjectRole),
    /// A string without a schema and its max bytes.
    Text(u64),
}

/// Where an expression leads from the root of the declared types. cel-go's estimator looks up sizes
/// by such paths, and ignores their first part: a part of a computed value has the root's size.
#[derive(Clone, Debug, Default)]
pub(crate) enum SchemaPosition {
    /// A computed value.
    #[default]
    Computed,
    /// Nothing is declared there.
    Nowhere,
    Declared(Spot),
}

#[derive(Clone, Copy)]
pub(crate) enum ValuePart<'n> {
    /// A field, by its name in the expression.
    Field(&'n str),
    /// A list's items or a map's values.
    Items,
    /// A map's keys.
    Keys,
    /// A list's indices.
    Indices,
}

/// Looks up sizes below a root.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    root: SchemaPosition,
    /// The min bytes of nodes in JSON, by address; `None` for nodes that rules cannot see.
    smallest: HashMap<usize, Option<u64>>,
}

impl Sizes {
    /// Sets the root.
    pub(crate) fn start_at(&mut self, schema: &Arc<Schema>, role: ObjectRole) {
        self.root = SchemaPosition::Declared(Spot::Node(Arc::clone(schema), role));
    }

    pub(crate) fn root(&self) -> SchemaPosition {
        self.root.clone()
    }

    pub(crate) fn below(&self, place: &SchemaPosition, part: ValuePart<'_>) -> SchemaPosition {
        match place {
            SchemaPosition::Computed => self.root(),
            SchemaPosition::Nowhere => SchemaPosition::Nowhere,
            SchemaPosition::Declared(spot) => {
                spot.part(part).map_or(SchemaPosition::Nowhere, SchemaPosition::Declared)
            }
        }
    }

    /// Max bytes, items or entries; 0 for scalars and objects, whose sizes do not vary.
    pub(crate) fn most(&mut self, place: &SchemaPosition) -> Option<u64> {
        let (schema, role) = match place {
            SchemaPosition::Computed | SchemaPosition::Nowhere => return None,
            SchemaPosition::Declared(Spot::Text(most)) => return Some(*most),
            SchemaPosition::Declared(Spot::Node(schema, role)) => (schema, role),
        };
        if *role == ObjectRole::Metadata {
            return Some(0);
        }
        let checks = schema.checks.as_deref();
        Some(match schema.kind {
            Kind::Any | Kind::Boolean | Kind::Integer | Kind::Number => 0,
            Kind::IntOrString | Kind::String => longest(schema),
            Kind::Array => checks.and_then(|checks| checks.max_items).unwrap_or_else(|| {
                let item = schema.items.as_ref().and_then(|items| self.smallest(items.shared(), 0));
                MAX_CONTENT / (item.unwrap_or(1) + 1)
            }),
            Kind::Object => {
                let Some(values) = values(schema) else { return Some(0) };
                checks.and_then(|checks| checks.max_properties).unwrap_or_else(|| {
                    MAX_CONTENT / (self.smallest(values.shared(), 0).unwrap_or(1) + 6)
                })
            }
        })
    }

    /// Max values of a schema in one request.
    pub(crate) fn occurrences(&mut self, schema: &Arc<Schema>) -> u64 {
        MAX_REQUEST / (self.smallest(schema, 0).unwrap_or(1) + 1)
    }

    fn smallest(&mut self, schema: &Arc<Schema>, depth: usize) -> Option<u64> {
        let address = Arc::as_ptr(schema).addr();
        if let Some(known) = self.smallest.get(&address) {
            return *known;
        }
        if depth > MAX_DEPTH {
            return None;
        }
        let found = match schema.kind {
            Kind::Any => None,
            Kind::Integer | Kind::Number | Kind::IntOrString => Some(1),
            Kind::Boolean => Some(4),
            Kind::String => Some(match schema.format.as_deref() {
                Some("duration") => 3,
                Some("date") => 12,
                Some("date-time") => 21,
                _ => 2,
            }),
            Kind::Array => schema
                .items
                .as_ref()
                .and_then(|items| self.smallest(items.shared(), depth + 1))
                .map(|_| 2),
            Kind::Object => match values(schema) {
                Some(values) => self.smallest(values.shared(), depth + 1).map(|_| 2),
                None => Some(self.smallest_object(schema, depth)),
            },
        };
        self.smallest.insert(address, found);
        found
    }

    /// Braces, and the fields that every object has.
    fn smallest_object(&mut self, schema: &Schema, depth: usize) -> u64 {
        let mut total = 2u64;
        for (name, property) in &schema.properties {
            if !property.required || property.schema.default.is_some() {
                continue;
            }
            if let Some(value) = self.smallest(property.schema.shared(), depth + 1) {
                total = total.saturating_add(name.len() as u64 + 4).saturating_add(value);
            }
        }
        total
    }
}

impl Spot {
    fn part(&self, part: ValuePart<'_>) -> Option<Self> {
        let Self::Node(schema, role) = self else { return None };
        match (part, schema.kind) {
            (ValuePart::Field(name), Kind::Object) if values(schema).is_none() => {
                field(schema, *role, name)
            }
            (ValuePart::Items, Kind::Array) => schema.items.as_ref().map(node),
            (ValuePart::Items, Kind::Object) => values(schema).map(node),
            (ValuePart::Keys, Kind::Object) => values(schema).map(|_| Self::Text(0)),
            _ => None,
        }
    }
}

fn node(node: &Node) -> Spot {
    let role = if node.embedded { ObjectRole::Resource } else { ObjectRole::Inner };
    Spot::Node(Arc::clone(node.shared()), role)
}

/// The schema of a map's values; `additionalProperties: true` is an object without declared fields.
fn values(schema: &Schema) -> Option<&Node> {
    schema.additional.as_ref().filter(|values| values.kind != Kind::Any || values.preserve_unknown)
}

fn field(schema: &Arc<Schema>, role: ObjectRole, name: &str) -> Option<Spot> {
    // Fields are found by their escaped names only.
    if is_reserved(name) {
        return None;
    }
    match DeclaredField::of(schema, role, name)? {
        DeclaredField::Metadata => Some(Spot::Node(Arc::clone(schema), ObjectRole::Metadata)),
        DeclaredField::Text => {
            let own = metadata(schema).and_then(|metadata| match role {
                ObjectRole::Metadata => metadata.properties.get(name),
                _ => schema.properties.get(name),
            });
            Some(own.map_or(Spot::Text(MAX_CONTENT), |property| node(&property.schema)))
        }
        DeclaredField::Property(property) => {
            let role = if property.embedded { ObjectRole::Resource } else { ObjectRole::Inner };
            Some(Spot::Node(Arc::clone(property), role))
        }
    }
}

/// The schema of a resource's metadata, if it declares both names; otherwise it is ignored.
fn metadata(schema: &Schema) -> Option<&Schema> {
    let own = schema.checks.as_deref().and_then(|checks| checks.metadata.as_deref());
    let declared = schema.properties.get("metadata").map(|property| &*property.schema);
    own.or(declared).filter(|metadata| {
        ["name", "generateName"].into_iter().all(|name| {
            metadata.properties.get(name).is_some_and(|name| name.schema.kind == Kind::String)
        }) && !metadata.native
    })
}

/// Max bytes of a string.
fn longest(schema: &Schema) -> u64 {
    let most = schema.checks.as_deref().and_then(|checks| checks.max_length);
    match (schema.kind, schema.format.as_deref(), most) {
        (Kind::String, Some("byte"), _) => most.unwrap_or(MAX_CONTENT),
        (Kind::String, Some("duration" | "date-time"), _) => 32,
        (Kind::String, Some("date"), _) => 12,
        // A character has up to four bytes.
        (_, _, Some(most)) => most.saturating_mul(4),
        (Kind::String, ..) if !schema.enumeration.is_empty() => schema
            .enumeration
            .iter()
            .filter_map(|value| value.as_str())
            .map(|text| text.len() as u64)
            .max()
            .unwrap_or(0),
        _ => MAX_CONTENT,
    }
}
