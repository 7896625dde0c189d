//! Value validations of custom resources.

use super::composition;
use super::embedded;
use super::formats;
use super::path::Path;
use super::types::json_type;
use crate::apply::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Number, Value};
use ferrokube_apimachinery::field::{FieldError, FieldReason, MAX_ERRORS};
use ferrokube_apimachinery::work;
use std::collections::HashMap;

/// At most so many nodes of a schema are held against the values of one object: compositions hold many against each. About 300 ms, and five times what the
/// largest object takes without them.
const MAX_STEPS: usize = 2_000_000;
/// Errors that upstream reports without a place.
const NOWHERE: &str = "<nil>";

/// Value validations, for custom resources: types, required, enums, bounds, formats.
pub fn validate(schema: &Schema, object: &Document) -> Vec<FieldError> {
    validate_update(schema, None, object)
}

/// The same for an update: values that did not change are not refused (ratcheting), so that a schema may become stricter over stored objects.
pub fn validate_update(schema: &Schema, old: Option<&Document>, object: &Document) -> Vec<FieldError> {
    let mut sink = Sink::default();
    sink.object(schema, object.fields(), old.map(Document::fields), &Path::ROOT);
    if let Some(node) = schema.checks.as_ref().and_then(|checks| checks.metadata.as_deref())
        && let Some(metadata) = object.get(&["metadata"])
    {
        sink.value(node, metadata, old.and_then(|old| old.get(&["metadata"])), &Path::ROOT.field("metadata"));
    }
    sink.checks_of_object(schema, object, old);
    sink.finish(schema, old)
}

/// The same for a write through the `status` subresource: nothing but the status is looked at.
pub fn validate_status(schema: &Schema, old: &Document, object: &Document) -> Vec<FieldError> {
    let mut sink = Sink::default();
    if let (Some(node), Some(status)) = (schema.child("status"), object.get(&["status"])) {
        sink.value(node, status, old.get(&["status"]), &Path::ROOT.field("status"));
    }
    // Embedded objects were checked when they were written otherwise.
    sink.finish(schema, Some(old))
}

/// Validates a value that is part of no object, such as a default.
pub(crate) fn validate_value(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut sink = Sink::default();
    sink.value(schema, value, None, &Path::ROOT);
    sink.judged()
}

/// Collects errors, at most [`MAX_ERRORS`], and counts steps.
pub(super) struct Sink {
    pub(super) errors: Vec<FieldError>,
    /// Members that sets and keyed lists have twice.
    repeated: Vec<FieldError>,
    left: usize,
}

impl Default for Sink {
    fn default() -> Self {
        Self { errors: Vec::new(), repeated: Vec::new(), left: MAX_STEPS }
    }
}

impl Sink {
    fn report(&mut self, reason: FieldReason, path: &Path<'_>, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::new(reason, path.to_string(), message));
        }
    }

    fn invalid(&mut self, path: &Path<'_>, why: impl std::fmt::Display) {
        self.report(FieldReason::Invalid, path, format!("Invalid value: {why}"));
    }

    pub(super) fn extend(&mut self, errors: Vec<FieldError>) {
        errors.into_iter().for_each(|error| self.push(error));
    }

    pub(super) fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    /// One step; false: there have been too many, or enough is wrong.
    fn step(&mut self) -> bool {
        work::count(1);
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.errors.len() < MAX_ERRORS
    }

    /// The errors of a value against another node, by the same count of steps.
    pub(super) fn errors_of(&mut self, node: &Schema, value: &Value, path: &Path<'_>) -> Vec<FieldError> {
        let mut inner = Self { left: self.left, ..Self::default() };
        inner.value(node, value, None, path);
        self.left = inner.left;
        inner.errors
    }

    /// The errors, or that they cannot be known.
    fn judged(self) -> Vec<FieldError> {
        match self.left {
            0 => vec![FieldError::new(FieldReason::Invalid, NOWHERE, format!("Invalid value: its validation takes more than {MAX_STEPS} steps"))],
            _ => self.errors,
        }
    }

    /// All errors. Repeated members pass in an object that had some before.
    fn finish(mut self, schema: &Schema, old: Option<&Document>) -> Vec<FieldError> {
        let had_some = |old: &Document| {
            let mut before = Self::default();
            before.object(schema, old.fields(), None, &Path::ROOT);
            !before.repeated.is_empty()
        };
        if !self.repeated.is_empty() && !old.is_some_and(had_some) {
            self.errors.append(&mut self.repeated);
        }
        self.judged()
    }

    pub(super) fn nowhere(&mut self, why: impl std::fmt::Display) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::new(FieldReason::Invalid, NOWHERE, format!("Invalid value: {why}")));
        }
    }

    /// The compositions of the root.
    fn checks_of_object(&mut self, schema: &Schema, object: &Document, old: Option<&Document>) {
        let Some(checks) = schema.checks.as_deref().filter(|checks| checks.composes()) else {
            return;
        };
        if old.is_none_or(|old| old.fields() != object.fields()) {
            let value = Value::Object(object.fields().clone());
            composition::check(self, checks, &value, &Path::ROOT);
        }
    }

    /// A value, unless it is what it was.
    pub(super) fn value(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, path: &Path<'_>) {
        if schema.native || path.depth() > MAX_WALK || !self.step() || old == Some(value) {
            return;
        }
        if matches!(schema.list_type, ListType::Map(_)) && old.is_some_and(|old| is_unchanged(schema, old, value)) {
            return;
        }
        if value.is_null() {
            if !schema.nullable && schema.kind != Kind::Any {
                self.wrong_type(schema.kind, value, path);
            }
            return;
        }
        if !fits(schema.kind, value) {
            self.wrong_type(schema.kind, value, path);
        }
        if !schema.allows(value) {
            let allowed: Vec<String> = schema.enumeration.iter().map(Value::to_string).collect();
            self.report(FieldReason::NotSupported, path, format!("Unsupported value: supported values: {}", allowed.join(", ")));
        }
        match value {
            Value::Object(map) => self.object(schema, map, old.and_then(Value::as_object), path),
            Value::Array(items) => self.array(schema, items, old, path),
            Value::String(text) => self.string(schema, text, path),
            Value::Number(number) => self.number(schema, number, path),
            Value::Bool(_) | Value::Null => {}
        }
        if let Some(checks) = schema.checks.as_deref() {
            composition::check(self, checks, value, path);
        }
    }

    fn wrong_type(&mut self, kind: Kind, value: &Value, path: &Path<'_>) {
        let wanted = type_name(kind);
        self.report(FieldReason::TypeInvalid, path, format!("Invalid value: must be of type {wanted}: it is {}", json_type(value)));
    }

    fn object(&mut self, schema: &Schema, map: &Map, old: Option<&Map>, path: &Path<'_>) {
        if schema.embedded {
            embedded::check(self, map, path);
        }
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_properties, map.len(), "properties", path);
            self.at_most(checks.max_properties, map.len(), "properties", path);
            // Each that is not missing is in the map, and of those that are only some are reported.
            work::count(checks.required.len().min(MAX_ERRORS + map.len()));
            let missing = checks.required.iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS);
            missing.for_each(|name| self.report(FieldReason::Required, &path.field(name), "Required value"));
        }
        work::count(schema.required().len().min(MAX_ERRORS + map.len()));
        for name in schema.required().iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS) {
            if !schema.properties[name].schema.native {
                self.report(FieldReason::Required, &path.field(name), "Required value");
            }
        }
        for (name, child) in map {
            let old = old.and_then(|old| old.get(name));
            match (schema.properties.get(&**name), schema.additional.as_deref()) {
                (Some(property), _) => self.value(&property.schema, child, old, &path.field(name)),
                (None, Some(_)) if schema.checks.as_deref().is_some_and(|checks| checks.closed) => {
                    self.invalid(path, format_args!("{name} is a forbidden property"));
                }
                (None, Some(values)) => self.value(values, child, old, &path.key(name)),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], old: Option<&Value>, path: &Path<'_>) {
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_items, items.len(), "items", path);
            self.at_most(checks.max_items, items.len(), "items", path);
        }
        let keyed = matches!(schema.list_type, ListType::Map(_));
        let before: Vec<(String, &Value)> = match old {
            Some(Value::Array(old)) if keyed => old.iter().filter_map(|item| element::item(schema, item).ok().map(|name| (name, item))).collect(),
            _ => Vec::new(),
        };
        let before: HashMap<String, &Value> = before.into_iter().collect();
        for (index, item) in items.iter().enumerate() {
            let name = if keyed { element::item(schema, item).ok() } else { None };
            let stored = name.and_then(|name| before.get(&name)).copied();
            if let Some(node) = schema.items.as_deref() {
                self.value(node, item, stored, &path.index(index));
            }
        }
        self.members(schema, items, path);
    }

    /// Members of sets and keyed lists are there once; of one that is there more often the second is told.
    fn members(&mut self, schema: &Schema, items: &[Value], path: &Path<'_>) {
        let keys = match &schema.list_type {
            ListType::Atomic => return,
            ListType::Set => None,
            ListType::Map(keys) => Some(keys),
        };
        let malformed = items.iter().position(|item| keys.is_some() && !item.is_object() && !item.is_null());
        if let Some(index) = malformed {
            let why = "Invalid value: must be an object for an array of list-type map";
            self.repeated.push(FieldError::new(FieldReason::Invalid, path.index(index).bracketed(), why));
            return;
        }
        let mut seen: HashMap<String, usize> = HashMap::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let member = match keys {
                None => item.to_string(),
                Some(keys) => keys.iter().filter_map(|key| Some(format!("{key}:{},", item.get(key)?))).collect(),
            };
            let times = seen.entry(member).or_default();
            *times += 1;
            if *times == 2 && self.repeated.len() < MAX_ERRORS {
                self.repeated.push(FieldError::new(FieldReason::Duplicate, path.index(index).bracketed(), "Duplicate value"));
            }
        }
    }

    fn at_least(&mut self, bound: Option<u64>, count: usize, what: &str, path: &Path<'_>) {
        if let Some(bound) = bound.filter(|bound| (count as u64) < *bound) {
            self.invalid(path, format_args!("should have at least {bound} {what}"));
        }
    }

    fn at_most(&mut self, bound: Option<u64>, count: usize, what: &str, path: &Path<'_>) {
        if let Some(bound) = bound.filter(|bound| (count as u64) > *bound) {
            self.report(FieldReason::TooMany, path, format!("Too many: {count}: must have at most {bound} {what}"));
        }
    }

    fn string(&mut self, schema: &Schema, text: &str, path: &Path<'_>) {
        if let Some(format) = schema.format.as_deref()
            && schema.kind == Kind::String
            && !formats::fits(format, text)
        {
            self.report(FieldReason::TypeInvalid, path, format!("Invalid value: must be of type {format}"));
        }
        let Some(checks) = schema.checks.as_deref() else {
            return;
        };
        let length = || text.chars().count() as u64;
        // Only the first of these is told, as upstream does.
        if let Some(bound) = checks.max_length.filter(|bound| length() > *bound) {
            self.report(FieldReason::TooLong, path, format!("Too long: may not be more than {bound} characters"));
        } else if let Some(bound) = checks.min_length.filter(|bound| length() < *bound) {
            self.invalid(path, format_args!("should be at least {bound} characters long"));
        } else if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            self.invalid(path, format_args!("should match '{}'", pattern.as_str()));
        }
    }

    fn number(&mut self, schema: &Schema, number: &Number, path: &Path<'_>) {
        let Some(value) = number.as_f64() else { return };
        if schema.kind == Kind::Integer && !in_range(schema.format.as_deref().unwrap_or_default(), number, value) {
            // Reported beside a wrong type, and without a place, as upstream does.
            self.nowhere("the value is no integer of the format");
        }
        let Some(checks) = schema.checks.as_deref() else { return };
        let bound = |bound: &Option<Number>| bound.as_ref().and_then(Number::as_f64);
        let (low, high, step) = (bound(&checks.minimum), bound(&checks.maximum), bound(&checks.multiple_of));
        if let Some(low) = low.filter(|low| value < *low || (checks.exclusive_minimum && value <= *low)) {
            self.invalid(path, format_args!("should be greater than{} {low}", if checks.exclusive_minimum { "" } else { " or equal to" }));
        }
        if let Some(high) = high.filter(|high| value > *high || (checks.exclusive_maximum && value >= *high)) {
            self.invalid(path, format_args!("should be less than{} {high}", if checks.exclusive_maximum { "" } else { " or equal to" }));
        }
        if let Some(step) = step.filter(|step| !is_multiple(value, *step)) {
            self.invalid(path, format_args!("should be a multiple of {step}"));
        }
    }
}

/// Whether a value of a custom object is what it was, but for the order of keyed lists.
pub fn is_unchanged(schema: &Schema, old: &Value, value: &Value) -> bool {
    unchanged(schema, old, value, 0)
}

fn unchanged(schema: &Schema, old: &Value, value: &Value, depth: usize) -> bool {
    if old == value || depth > MAX_WALK {
        return old == value;
    }
    match (old, value, &schema.list_type) {
        (Value::Object(old), Value::Object(map), _) => {
            let same = |name: &str, value: &Value| match (old.get(name), schema.child(name)) {
                (Some(old), Some(node)) => unchanged(node, old, value, depth + 1),
                (old, _) => old == Some(value),
            };
            old.len() == map.len() && map.iter().all(|(name, value)| same(name, value))
        }
        (Value::Array(old), Value::Array(items), ListType::Map(_)) if old.len() == items.len() => {
            let named: HashMap<String, &Value> = old.iter().filter_map(|item| element::item(schema, item).ok().map(|name| (name, item))).collect();
            let same = |item: &Value| match (element::item(schema, item).ok().and_then(|name| named.get(&name)), schema.items.as_deref()) {
                (Some(old), Some(node)) => unchanged(node, old, item, depth + 1),
                _ => false,
            };
            named.len() == items.len() && items.iter().all(same)
        }
        _ => false,
    }
}

/// A float is an integer for JSON up to here.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// Whether a number is one of an integer format, which is `int64` where it is none.
fn in_range(format: &str, number: &Number, value: f64) -> bool {
    let whole = number.as_i64().or_else(|| (value.fract() == 0.0 && value.abs() < 9.2e18).then_some(value as i64));
    match format {
        "int32" => whole.is_some_and(|whole| i32::try_from(whole).is_ok()),
        "uint32" => whole.is_some_and(|whole| u32::try_from(whole).is_ok()),
        "uint64" => number.as_u64().is_some() || whole.is_some_and(|whole| whole >= 0),
        _ => whole.is_some(),
    }
}

fn is_multiple(value: f64, step: f64) -> bool {
    let quotient = value / step;
    step > 0.0 && (quotient - quotient.round()).abs() < 1e-9
}

fn fits(kind: Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::Integer, Value::Number(number)) => number.is_i64() || number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() <= MAX_EXACT),
        (Kind::Any, _)
        | (Kind::Object, Value::Object(_))
        | (Kind::Array, Value::Array(_))
        | (Kind::String, Value::String(_))
        | (Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_)) => true,
        (Kind::IntOrString, Value::Number(_)) => fits(Kind::Integer, value),
        (Kind::IntOrString, Value::String(_)) => true,
        _ => false,
    }
}

fn type_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Any => "any",
        Kind::Object => "object",
        Kind::Array => "array",
        Kind::String => "string",
        Kind::Integer => "integer",
        Kind::Number => "number",
        Kind::Boolean => "boolean",
        Kind::IntOrString => "integer or string",
    }
}
