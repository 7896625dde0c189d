//! Checks that an applied object matches its schema. Apply is strict whatever the field validation
//! level: fields that cannot be owned cannot be applied.

use super::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::cut;
use ferrokube_apimachinery::go::{dump, dump_typed};
use ferrokube_apimachinery::json::type_name;
use std::collections::HashSet;
use std::fmt;

/// Checks an applied object.
///
/// # Errors
/// The fields that do not match, and why.
pub(super) fn check(schema: &Schema, object: &Map) -> Result<(), String> {
    joined(&conform_errors(schema, object))
}

/// Checks an object that a configuration is merged into: duplicate items pass. A native object
/// was decoded, so that only its items may have no names.
///
/// # Errors
/// The fields that do not match, and why.
pub(super) fn check_live(schema: &Schema, object: &Map) -> Result<(), String> {
    let mut found = conform_errors(schema, object);
    found.retain(|error| match error.kind {
        ConformErrorKind::Nameless => true,
        ConformErrorKind::Duplicate => false,
        ConformErrorKind::Other => !schema.native,
    });
    joined(&found)
}

fn joined(found: &[ConformError]) -> Result<(), String> {
    match found {
        [] => Ok(()),
        [only] => Err(only.why.clone()),
        many => {
            Err(many.iter().fold("errors:".to_owned(), |text, error| text + "\n  " + &error.why))
        }
    }
}

/// Checks only that list items can be named; duplicates pass.
///
/// # Errors
/// The first list with an item that cannot be named, and why.
pub(super) fn check_items(schema: &Schema, object: &Map) -> Result<(), String> {
    conform_errors(schema, object)
        .into_iter()
        .find(|error| error.kind == ConformErrorKind::Nameless)
        .map_or(Ok(()), |error| Err(error.why))
}

fn conform_errors(schema: &Schema, object: &Map) -> Vec<ConformError> {
    let mut found = Vec::new();
    fields(
        schema,
        object,
        &ValuePlace { type_meta: true, open: false, depth: 0, path: None },
        &mut found,
    );
    found
}

struct ConformError {
    why: String,
    kind: ConformErrorKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConformErrorKind {
    /// A list item without a name.
    Nameless,
    /// A list item whose name another one has.
    Duplicate,
    Other,
}

/// Max reported fields.
const MAX_ERRORS: usize = 20;

/// Location of a value in the object.
#[derive(Clone, Copy)]
struct ValuePlace<'a> {
    /// `kind`, `apiVersion` and `metadata` need no declaration here.
    type_meta: bool,
    /// An ancestor preserves unknown fields: they may be applied anywhere below it, although they
    /// are not kept there.
    open: bool,
    depth: usize,
    path: Option<&'a ParentPath<'a>>,
}

/// The path to a value, as a linked list on the stack.
struct ParentPath<'a> {
    before: Option<&'a ParentPath<'a>>,
    step: PathElement<'a>,
}

enum PathElement<'a> {
    Field(&'a str),
    Element(&'a str),
    Index(usize),
}

impl fmt::Display for ParentPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(before) = self.before {
            before.fmt(f)?;
        }
        match self.step {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Element(element) => f.write_str(&element::display(&[element])),
            PathElement::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl<'a> ValuePlace<'a> {
    fn below<'b>(self, schema: &Schema, path: &'b ParentPath<'b>) -> ValuePlace<'b>
    where
        'a: 'b,
    {
        ValuePlace {
            type_meta: false,
            open: self.open || schema.preserve_unknown,
            depth: self.depth + 1,
            path: Some(path),
        }
    }

    #[cold]
    fn note(&self, found: &mut Vec<ConformError>, why: &str) {
        self.note_as(found, why, ConformErrorKind::Other);
    }

    fn note_as(&self, found: &mut Vec<ConformError>, why: &str, kind: ConformErrorKind) {
        if found.len() < MAX_ERRORS {
            let why = cut(
                format!("{}: {why}", self.path.map(ParentPath::to_string).unwrap_or_default()),
                MAX_REASON_BYTES,
            );
            found.push(ConformError { why, kind });
        }
    }
}

/// Max bytes of one reason, which may quote a value.
const MAX_REASON_BYTES: usize = 1024;

/// Anything can be owned in an object without declared fields.
fn is_undeclared(schema: &Schema) -> bool {
    !schema.native
        && schema.kind == Kind::Object
        && schema.properties.is_empty()
        && schema.additional.is_none()
}

/// Whether an object refuses undeclared fields.
fn is_closed(schema: &Schema, name: &str) -> bool {
    schema.checks.as_deref().is_some_and(|checks| checks.closed)
        && !schema.properties.contains_key(name)
}

/// Whether a string's format makes it any scalar for kube-apiserver's apply.
fn is_untyped(schema: &Schema) -> bool {
    schema.kind == Kind::String
        && schema.format.as_deref().is_some_and(|format| !matches!(format, "" | "byte"))
}

fn fields(schema: &Schema, object: &Map, place: &ValuePlace<'_>, found: &mut Vec<ConformError>) {
    for (name, child) in object {
        let path = ParentPath { before: place.path, step: PathElement::Field(name) };
        match schema.child(name) {
            Some(_) if is_closed(schema, name) => {
                place.below(schema, &path).note(found, "field not declared in schema")
            }
            // Native objects declare all fields.
            Some(node) => {
                let below = place.below(schema, &path);
                value(node, child, ValuePlace { open: !node.native && below.open, ..below }, found);
            }
            None if place.open
                || schema.preserve_unknown
                || schema.kind == Kind::Any
                || is_undeclared(schema) => {}
            None if place.type_meta
                && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") => {}
            None => place.below(schema, &path).note(found, "field not declared in schema"),
        }
    }
}

fn value(schema: &Schema, value: &Value, place: ValuePlace<'_>, found: &mut Vec<ConformError>) {
    if place.depth > MAX_WALK {
        return place.note(found, "nested too deep");
    }
    match (schema.kind, value) {
        (_, Value::Null) => {}
        (Kind::Object | Kind::Any, Value::Object(map)) => {
            fields(schema, map, &ValuePlace { type_meta: schema.embedded, ..place }, found)
        }
        (Kind::Array, Value::Array(items)) => list(schema, items, place, found),
        (Kind::Any, _)
        | (Kind::String, Value::String(_))
        | (Kind::Integer | Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_))
        | (Kind::IntOrString, Value::String(_) | Value::Number(_) | Value::Bool(_)) => {}
        // It has no type there, but for quantities of native kinds.
        (Kind::IntOrString, _)
            if !(schema.native && schema.format.as_deref() == Some("quantity")) => {}
        (Kind::String, Value::Number(_) | Value::Bool(_)) if is_untyped(schema) => {}
        (Kind::String, value) if is_untyped(schema) => {
            place.note(found, &unexpected(Kind::IntOrString, value))
        }
        (kind, value) => place.note(found, &unexpected(kind, value)),
    }
}

/// Worded like Go's libraries.
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

fn list(schema: &Schema, items: &[Value], place: ValuePlace<'_>, found: &mut Vec<ConformError>) {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let mut element = None;
        if schema.list_type != ListType::Atomic {
            match element::item(schema, item) {
                Err(why) => {
                    let why = format!("element {index}: {why}");
                    return place.note_as(found, &why, ConformErrorKind::Nameless);
                }
                Ok(new) => {
                    if !seen.insert(new.clone()) {
                        let why =
                            format!("duplicate entries for key {}", element::display(&[&new]));
                        place.note_as(found, &why, ConformErrorKind::Duplicate);
                    }
                    element = Some(new);
                }
            }
        }
        if let Some(node) = schema.items.as_deref() {
            let step = element.as_deref().map_or(PathElement::Index(index), PathElement::Element);
            let path = ParentPath { before: place.path, step };
            value(node, item, place.below(schema, &path), found);
        }
    }
}
