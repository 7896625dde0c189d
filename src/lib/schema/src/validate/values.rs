//! Value validations of custom resources.

use super::composition;
use super::embedded;
use super::formats;
use super::path::Path;
use crate::apply::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Number, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Shown, quote};
use ferrokube_apimachinery::work;
use std::collections::HashMap;
use std::fmt::Display;

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
    /// A value that is refused, as kube-apiserver says it: where it is stands in the detail once more.
    fn invalid(&mut self, path: &Path<'_>, value: impl Shown, why: impl Display) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::invalid(path.to_string(), value, format!("{path} in body {why}")));
        }
    }

    /// A value that is not what it should be: of another type, which it shows, or without the form of a format.
    fn misfit(&mut self, path: &Path<'_>, shown: &str, wanted: &str) {
        if self.errors.len() < MAX_ERRORS {
            let detail = format!("{path} in body must be of type {wanted}: {}", quote(shown));
            self.errors.push(FieldError::type_invalid(path.to_string(), shown, detail));
        }
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
            0 => vec![FieldError::invalid_unshown(NOWHERE, format!("its validation takes more than {MAX_STEPS} steps"))],
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
            self.errors.push(FieldError::invalid(NOWHERE, "", why.to_string()));
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
            let allowed = schema.enumeration.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            self.push(FieldError::not_supported(path.to_string(), value, allowed));
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
        self.misfit(path, given_type(value), type_name(kind));
    }

    fn object(&mut self, schema: &Schema, map: &Map, old: Option<&Map>, path: &Path<'_>) {
        if schema.embedded {
            embedded::check(self, map, path);
        }
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_properties, map.len(), "properties", path);
            self.at_most(checks.max_properties, map.len(), path);
            // Each that is not missing is in the map, and of those that are only some are reported.
            work::count(checks.required.len().min(MAX_ERRORS + map.len()));
            let missing = checks.required.iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS);
            missing.for_each(|name| self.push(FieldError::required(path.field(name).to_string(), "")));
        }
        work::count(schema.required().len().min(MAX_ERRORS + map.len()));
        for name in schema.required().iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS) {
            if !schema.properties[name].schema.native {
                self.push(FieldError::required(path.field(name).to_string(), ""));
            }
        }
        for (name, child) in map {
            let old = old.and_then(|old| old.get(name));
            match (schema.properties.get(&**name), schema.additional.as_deref()) {
                (Some(property), _) => self.value(&property.schema, child, old, &path.field(name)),
                (None, Some(_)) if schema.checks.as_deref().is_some_and(|checks| checks.closed) => {
                    self.invalid(path, name.as_str(), "is a forbidden property");
                }
                (None, Some(values)) => self.value(values, child, old, &path.key(name)),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], old: Option<&Value>, path: &Path<'_>) {
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_items, items.len(), "items", path);
            self.at_most(checks.max_items, items.len(), path);
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
            let why = "must be an object for an array of list-type map";
            self.repeated.push(FieldError::invalid(path.index(index).bracketed(), &items[index], why));
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
                let place = path.index(index).bracketed();
                self.repeated.push(match keys {
                    None => FieldError::duplicate(place, item),
                    Some(keys) => {
                        let present = keys.iter().filter_map(|key| Some((key.to_string(), item.get(key)?.clone())));
                        FieldError::duplicate(place, Value::Object(present.collect()))
                    }
                });
            }
        }
    }

    fn at_least(&mut self, bound: Option<u64>, count: usize, what: &str, path: &Path<'_>) {
        if let Some(bound) = bound.filter(|bound| (count as u64) < *bound) {
            self.invalid(path, count, format_args!("should have at least {bound} {what}"));
        }
    }

    fn at_most(&mut self, bound: Option<u64>, count: usize, path: &Path<'_>) {
        if let Some(bound) = bound.filter(|bound| (count as u64) > *bound) {
            self.push(FieldError::too_many(path.to_string(), count, usize::try_from(bound).unwrap_or(usize::MAX)));
        }
    }

    fn string(&mut self, schema: &Schema, text: &str, path: &Path<'_>) {
        if let Some(format) = schema.format.as_deref()
            && schema.kind == Kind::String
            && !formats::fits(format, text)
        {
            self.misfit(path, text, format);
        }
        let Some(checks) = schema.checks.as_deref() else {
            return;
        };
        let length = || text.chars().count() as u64;
        // Only the first of these is told, as upstream does.
        if let Some(bound) = checks.max_length.filter(|bound| length() > *bound) {
            // Counted in characters, and called bytes.
            self.push(FieldError::too_long(path.to_string(), usize::try_from(bound).unwrap_or(usize::MAX)));
        } else if let Some(bound) = checks.min_length.filter(|bound| length() < *bound) {
            self.invalid(path, text, format_args!("should be at least {bound} chars long"));
        } else if let Some(pattern) = checks.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            self.invalid(path, text, format_args!("should match '{}'", pattern.as_str()));
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
            self.invalid(
                path,
                Value::from(*number),
                format_args!("should be greater than{} {low}", if checks.exclusive_minimum { "" } else { " or equal to" }),
            );
        }
        if let Some(high) = high.filter(|high| value > *high || (checks.exclusive_maximum && value >= *high)) {
            self.invalid(path, Value::from(*number), format_args!("should be less than{} {high}", if checks.exclusive_maximum { "" } else { " or equal to" }));
        }
        if let Some(step) = step.filter(|step| !is_multiple(value, *step)) {
            self.invalid(path, Value::from(*number), format_args!("should be a multiple of {step}"));
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

fn given_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
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
