//! Whether an applied object fits its schema. Apply is strict whatever the field validation is:
//! what cannot be owned cannot be applied.

use super::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::cut;
use ferrokube_apimachinery::go::{dump, dump_typed};
use ferrokube_apimachinery::json::type_name;
use std::collections::HashSet;
use std::fmt;

/// Checks an object.
///
/// # Errors
/// The fields that do not fit, and why.
pub(super) fn check(schema: &Schema, object: &Map) -> Result<(), String> {
    let found = misfits(schema, object);
    match found.as_slice() {
        [] => Ok(()),
        [only] => Err(only.why.clone()),
        many => {
            Err(many.iter().fold("errors:".to_owned(), |text, misfit| text + "\n  " + &misfit.why))
        }
    }
}

/// Checks only that items of lists can be named. They may be there twice.
///
/// # Errors
/// The first list with an item that cannot be named, and why.
pub(super) fn check_items(schema: &Schema, object: &Map) -> Result<(), String> {
    misfits(schema, object)
        .into_iter()
        .find(|misfit| misfit.is_nameless)
        .map_or(Ok(()), |misfit| Err(misfit.why))
}

fn misfits(schema: &Schema, object: &Map) -> Vec<Misfit> {
    let mut found = Vec::new();
    fields(
        schema,
        object,
        &Place { type_meta: true, open: false, depth: 0, way: None },
        &mut found,
    );
    found
}

struct Misfit {
    why: String,
    /// It is an item that cannot be named.
    is_nameless: bool,
}

/// So many fields are named at most.
const MAX_FOUND: usize = 20;

/// Where a value is.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Its own kind, version and metadata need no declaration.
    type_meta: bool,
    /// Something above it keeps unknown fields: these may be applied everywhere below it, though
    /// they are not kept there.
    open: bool,
    depth: usize,
    way: Option<&'a Way<'a>>,
}

/// The last step to a value, and those before it.
struct Way<'a> {
    before: Option<&'a Way<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Field(&'a str),
    Element(&'a str),
    Index(usize),
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(before) = self.before {
            before.fmt(f)?;
        }
        match self.step {
            Step::Field(name) => write!(f, ".{name}"),
            Step::Element(element) => f.write_str(&element::display(&[element])),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl<'a> Place<'a> {
    fn below<'b>(self, schema: &Schema, way: &'b Way<'b>) -> Place<'b>
    where
        'a: 'b,
    {
        Place {
            type_meta: false,
            open: self.open || schema.preserve_unknown,
            depth: self.depth + 1,
            way: Some(way),
        }
    }

    #[cold]
    fn note(&self, found: &mut Vec<Misfit>, why: &str) {
        self.note_as(found, why, false);
    }

    fn note_as(&self, found: &mut Vec<Misfit>, why: &str, is_nameless: bool) {
        if found.len() < MAX_FOUND {
            let why = cut(
                format!("{}: {why}", self.way.map(Way::to_string).unwrap_or_default()),
                MAX_WHY,
            );
            found.push(Misfit { why, is_nameless });
        }
    }
}

/// Bytes of one reason, which may show a value.
const MAX_WHY: usize = 1024;

/// An object of which nothing is declared is one of which anything can be owned.
fn is_undeclared(schema: &Schema) -> bool {
    !schema.native
        && schema.kind == Kind::Object
        && schema.properties.is_empty()
        && schema.additional.is_none()
}

/// Whether an object says that it has no other fields than its declared ones.
fn is_closed(schema: &Schema, name: &str) -> bool {
    schema.checks.as_deref().is_some_and(|checks| checks.closed)
        && !schema.properties.contains_key(name)
}

/// Whether a text has a format that makes it any scalar for upstream's apply.
fn is_untyped(schema: &Schema) -> bool {
    schema.kind == Kind::String
        && schema.format.as_deref().is_some_and(|format| !matches!(format, "" | "byte"))
}

fn fields(schema: &Schema, object: &Map, place: &Place<'_>, found: &mut Vec<Misfit>) {
    for (name, child) in object {
        let way = Way { before: place.way, step: Step::Field(name) };
        match schema.child(name) {
            Some(_) if is_closed(schema, name) => {
                place.below(schema, &way).note(found, "field not declared in schema")
            }
            // Of what is native all is declared.
            Some(node) => {
                let below = place.below(schema, &way);
                value(node, child, Place { open: !node.native && below.open, ..below }, found);
            }
            None if place.open
                || schema.preserve_unknown
                || schema.kind == Kind::Any
                || is_undeclared(schema) => {}
            None if place.type_meta
                && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") => {}
            None => place.below(schema, &way).note(found, "field not declared in schema"),
        }
    }
}

fn value(schema: &Schema, value: &Value, place: Place<'_>, found: &mut Vec<Misfit>) {
    if place.depth > MAX_WALK {
        return place.note(found, "nested too deep");
    }
    match (schema.kind, value) {
        (_, Value::Null) => {}
        (Kind::Object | Kind::Any, Value::Object(map)) => {
            fields(schema, map, &Place { type_meta: schema.embedded, ..place }, found)
        }
        (Kind::Array, Value::Array(items)) => list(schema, items, place, found),
        (Kind::Any, _)
        | (Kind::String, Value::String(_))
        | (Kind::Integer | Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_))
        | (Kind::IntOrString, Value::String(_) | Value::Number(_) | Value::Bool(_)) => {}
        // Of a custom object it has no type at all there.
        (Kind::IntOrString, _) if !schema.native => {}
        (Kind::String, Value::Number(_) | Value::Bool(_)) if is_untyped(schema) => {}
        (Kind::String, value) if is_untyped(schema) => {
            place.note(found, &unexpected(Kind::IntOrString, value))
        }
        (kind, value) => place.note(found, &unexpected(kind, value)),
    }
}

/// As Go's libraries show what they did not expect.
#[cold]
fn unexpected(kind: Kind, value: &Value) -> String {
    match kind {
        Kind::String => {
            format!("expected string, got &value.valueUnstructured{{Value:{}}}", dump_typed(value))
        }
        Kind::Integer | Kind::Number => {
            let given = match value {
                Value::Array(_) => "[]interface {}",
                Value::Object(_) => "map[string]interface {}",
                other => type_name(other),
            };
            format!("expected numeric (int or float), got {given}")
        }
        other => {
            let wanted = match other {
                Kind::Object => "map",
                Kind::Array => "list",
                Kind::Boolean => "boolean",
                _ => "any scalar",
            };
            format!("expected {wanted}, got &{{{}}}", dump(value))
        }
    }
}

fn list(schema: &Schema, items: &[Value], place: Place<'_>, found: &mut Vec<Misfit>) {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let mut element = None;
        if schema.list_type != ListType::Atomic {
            match element::item(schema, item) {
                Err(why) => return place.note_as(found, &format!("element {index}: {why}"), true),
                Ok(new) => {
                    if !seen.insert(new.clone()) {
                        place.note(
                            found,
                            &format!("duplicate entries for key {}", element::display(&[&new])),
                        );
                    }
                    element = Some(new);
                }
            }
        }
        if let Some(node) = schema.items.as_deref() {
            let step = element.as_deref().map_or(Step::Index(index), Step::Element);
            let way = Way { before: place.way, step };
            value(node, item, place.below(schema, &way), found);
        }
    }
}
