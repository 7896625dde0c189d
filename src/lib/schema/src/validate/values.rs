//! Value validations of custom resources.

use super::checks::Pattern;
use super::composition;
use super::embedded;
use super::formats;
use super::numbers;
use super::path::Path;
use crate::apply::element;
use crate::pattern::StepsExhausted;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, Shown, quote};
use ferrokube_apimachinery::work;
use std::collections::HashMap;
use std::fmt::Display;

/// Max schema nodes checked against the values of one object: compositions check many per value.
/// About 300 ms, and five times what the largest object without compositions takes.
const MAX_STEPS: usize = 2_000_000;
/// Steps of matching a pattern that take as long as checking a node.
const MATCH_STEPS: u64 = 32;
/// kube-apiserver's path of errors about the whole object.
const NO_PATH: &str = "<nil>";

/// Validates a custom object: types, required fields, enumerations, bounds, formats.
pub fn validate(schema: &Schema, object: &Document) -> Vec<FieldError> {
    validate_update(schema, None, object)
}

/// Validates an update: unchanged values are not refused (ratcheting), so that a schema may become
/// stricter than stored objects.
pub fn validate_update(
    schema: &Schema,
    old: Option<&Document>,
    object: &Document,
) -> Vec<FieldError> {
    let mut collector = ErrorCollector::below("");
    collector.object(schema, object.fields(), old.map(Document::fields), &Path::ROOT);
    if let Some(node) = schema.checks.as_ref().and_then(|checks| checks.metadata.as_deref())
        && let Some(metadata) = object.get(&["metadata"])
    {
        collector.value(
            node,
            metadata,
            old.and_then(|old| old.get(&["metadata"])),
            &Path::ROOT.field("metadata"),
        );
    }
    collector.checks_of_object(schema, object, old);
    collector.finish(schema, old)
}

/// Validates a write of the `status` subresource: only the status.
pub fn validate_status(schema: &Schema, old: &Document, object: &Document) -> Vec<FieldError> {
    // Embedded resources were checked by the write that stored them.
    let mut collector = ErrorCollector { embedded: false, ..ErrorCollector::below("status") };
    if let (Some(node), Some(status)) = (schema.child("status"), object.get(&["status"])) {
        collector.value(node, status, old.get(&["status"]), &Path::ROOT);
    }
    collector.finish(schema, Some(old))
}

/// Validates only embedded resources and the uniqueness of set and keyed list items, for objects
/// that are not validated otherwise.
pub fn validate_members(
    schema: &Schema,
    old: Option<&Document>,
    object: &Document,
) -> Vec<FieldError> {
    let mut collector = ErrorCollector::below("");
    collector.object(schema, object.fields(), old.map(Document::fields), &Path::ROOT);
    collector.errors.clear();
    object.fields().iter().for_each(|(name, value)| {
        embedded::walk(&mut collector, schema.child(name), value, &Path::ROOT.field(name))
    });
    collector.finish(schema, old)
}

/// Validates a value outside of an object, such as a default.
pub(crate) fn validate_value(schema: &Schema, value: &Value, place: &str) -> Vec<FieldError> {
    let mut collector = ErrorCollector { any_format: true, ..ErrorCollector::below(place) };
    collector.value(schema, value, None, &Path::ROOT);
    collector.into_alternative()
}

/// Collects at most [`MAX_ERRORS`] errors and counts steps.
pub(super) struct ErrorCollector<'a> {
    pub(super) errors: Vec<FieldError>,
    /// How much matches, in kube-apiserver's units; selects the closest of several alternatives.
    pub(super) matched: usize,
    /// Duplicate items of sets and keyed lists.
    repeated: Vec<FieldError>,
    left: usize,
    /// The field that paths are relative to in `FieldError::field`; messages name paths below it.
    prefix: &'a str,
    /// Whether embedded resources are checked.
    embedded: bool,
    /// Whether to report formats that are unknown for their type.
    any_format: bool,
}

impl<'a> ErrorCollector<'a> {
    fn below(prefix: &'a str) -> Self {
        Self {
            errors: Vec::new(),
            matched: 0,
            repeated: Vec::new(),
            left: MAX_STEPS,
            prefix,
            embedded: true,
            any_format: false,
        }
    }

    fn joined(&self, below: String) -> String {
        match (self.prefix, &*below) {
            ("", "") => NO_PATH.to_owned(),
            ("", _) => below,
            (prefix, "") => prefix.to_owned(),
            (prefix, _) => format!("{prefix}.{below}"),
        }
    }

    /// The full path of a position.
    fn field(&self, path: &Path<'_>) -> String {
        self.joined(path.to_string())
    }

    /// The same with map keys in brackets, as some errors print them.
    pub(super) fn bracketed(&self, path: &Path<'_>) -> String {
        self.joined(path.bracketed())
    }

    /// Adds an invalid value, as kube-apiserver words it: the detail repeats the path.
    pub(super) fn invalid(&mut self, path: &Path<'_>, value: impl Shown, why: impl Display) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::invalid(
                self.field(path),
                value,
                format!("{path} in body {why}"),
            ));
        }
    }

    /// Adds an invalid value with a complete message.
    pub(super) fn invalid_as(&mut self, path: &Path<'_>, value: impl Shown, why: &str) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::invalid(self.field(path), value, why));
        }
    }

    /// Adds a value of the wrong type (shown) or without its format.
    fn mismatch(&mut self, path: &Path<'_>, shown: &str, wanted: &str) {
        if self.errors.len() < MAX_ERRORS {
            let detail = format!("{path} in body must be of type {wanted}: {}", quote(shown));
            self.errors.push(FieldError::type_invalid(self.field(path), shown, detail));
        }
    }

    /// Adds errors, without duplicates.
    pub(super) fn extend(&mut self, errors: Vec<FieldError>) {
        for error in errors {
            if !self.errors.contains(&error) {
                self.push(error);
            }
        }
    }

    pub(super) fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    /// Counts a step; `false` if there were too many, or enough errors.
    fn step(&mut self) -> bool {
        work::count(1);
        work::breathe();
        self.left = self.left.saturating_sub(1);
        self.left > 0 && self.errors.len() < MAX_ERRORS
    }

    /// The errors of a value against another node, within the same step budget, and how much of it
    /// matches.
    pub(super) fn errors_of(
        &mut self,
        node: &Schema,
        value: &Value,
        path: &Path<'_>,
    ) -> (Vec<FieldError>, usize) {
        let mut inner = ErrorCollector {
            left: self.left,
            embedded: self.embedded,
            any_format: self.any_format,
            ..ErrorCollector::below(self.prefix)
        };
        inner.node(node, value, None, path);
        self.left = inner.left;
        (inner.errors, inner.matched)
    }

    /// The errors, or one error if the step budget ran out.
    fn into_alternative(self) -> Vec<FieldError> {
        match self.left {
            0 => vec![FieldError::invalid_unshown(
                NO_PATH,
                format!("its validation takes more than {MAX_STEPS} steps"),
            )],
            _ => self.errors,
        }
    }

    /// All errors. Duplicate items pass if the old object had some.
    fn finish(mut self, schema: &Schema, old: Option<&Document>) -> Vec<FieldError> {
        let had_some = |old: &Document| {
            let mut before = ErrorCollector::below("");
            before.object(schema, old.fields(), None, &Path::ROOT);
            !before.repeated.is_empty()
        };
        if !self.repeated.is_empty() && !old.is_some_and(had_some) {
            self.errors.append(&mut self.repeated);
        }
        self.into_alternative()
    }

    /// Adds an error that kube-apiserver reports without a path, once.
    pub(super) fn pathless(&mut self, why: impl Display) {
        let error = FieldError::invalid(self.joined(String::new()), "", why.to_string());
        self.extend(vec![error]);
    }

    /// Checks the root's compositions.
    fn checks_of_object(&mut self, schema: &Schema, object: &Document, old: Option<&Document>) {
        let Some(checks) = schema.checks.as_deref().filter(|checks| checks.composes()) else {
            return;
        };
        if old.is_none_or(|old| old.fields() != object.fields()) {
            let value = Value::Object(object.fields().clone());
            composition::check(self, checks, &value, &Path::ROOT);
        }
    }

    /// Checks a value, unless it is unchanged.
    pub(super) fn value(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
    ) {
        if old == Some(value) {
            return;
        }
        if matches!(schema.list_type, ListType::Map(_))
            && old.is_some_and(|old| is_unchanged(schema, old, value))
        {
            return;
        }
        self.node(schema, value, old, path);
    }

    /// Checks a value against a node, even if it is unchanged.
    fn node(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, path: &Path<'_>) {
        if schema.native || path.depth() > MAX_WALK || !self.step() {
            return;
        }
        self.kind(schema, value, path);
        // Null is never in an enumeration, even if it is listed.
        if !(schema.allows(value) || is_listed_when_cut(schema, value))
            || (value.is_null() && !schema.enumeration.is_empty())
        {
            let allowed = schema
                .enumeration
                .iter()
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            self.push(FieldError::not_supported(self.field(path), value, allowed));
        }
        match value {
            Value::Null => return,
            Value::Object(map) => self.object(schema, map, old.and_then(Value::as_object), path),
            Value::Array(items) => self.array(schema, items, old, path),
            Value::String(text) => self.string(schema, text, path),
            Value::Number(number) => numbers::check(self, schema, *number, path),
            Value::Bool(_) => {}
        }
        self.matched += 5;
        if let Some(checks) = schema.checks.as_deref() {
            composition::check(self, checks, value, path);
        }
    }

    /// Checks the type, or the format that replaces it.
    fn kind(&mut self, schema: &Schema, value: &Value, path: &Path<'_>) {
        let fits = fits(schema.kind, value);
        let format = match &schema.format {
            None => None,
            Some(format) if self.any_format => Some(&**format),
            Some(_) => formats::of(schema),
        };
        // Any default fits an int-or-string.
        if self.any_format && schema.kind == Kind::IntOrString {
            return;
        }
        let is_typed = schema.kind != Kind::Any || format.is_some();
        if value.is_null() {
            let holds = schema.kind == Kind::Any || schema.nullable;
            self.matched += usize::from(holds);
            if !holds {
                self.mismatch(path, "null", type_name(schema.kind));
            }
            return;
        }
        self.matched += usize::from(is_typed);
        match (format, value) {
            _ if !is_typed => return,
            // Such a format replaces the type.
            (Some(_), Value::String(_) | Value::Array(_))
                if matches!(schema.kind, Kind::String | Kind::Any) => {}
            (Some(format), Value::Bool(_) | Value::Number(_) | Value::Object(_))
                if schema.kind == Kind::Any || !fits =>
            {
                return self.mismatch(path, format_of(value), format);
            }
            _ if !fits => return self.mismatch(path, given_type(value), type_name(schema.kind)),
            _ => {}
        }
        self.matched += 1;
    }

    fn object(&mut self, schema: &Schema, map: &Map, old: Option<&Map>, path: &Path<'_>) {
        self.matched += 1;
        if schema.embedded && self.embedded {
            embedded::check(self, schema, map, path);
        }
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_properties, map.len(), "properties", path);
            self.at_most(checks.max_properties, map.len(), path);
            // Fields that are present are counted by the map; of missing ones only some are
            // reported.
            work::count(checks.required.len().min(MAX_ERRORS + map.len()));
            let missing =
                checks.required.iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS);
            missing.for_each(|name| {
                self.push(FieldError::required(self.field(&path.field(name)), ""))
            });
        }
        work::count(schema.required().len().min(MAX_ERRORS + map.len()));
        for name in schema.required().iter().filter(|name| !map.contains_key(name)).take(MAX_ERRORS)
        {
            if !schema.properties[name].schema.native {
                self.push(FieldError::required(self.field(&path.field(name)), ""));
            }
        }
        for (name, child) in map {
            let old = old.and_then(|old| old.get(name));
            match (schema.properties.get(name), schema.additional.as_deref()) {
                (Some(property), _) => self.value(&property.schema, child, old, &path.field(name)),
                (None, Some(_)) if schema.checks.as_deref().is_some_and(|checks| checks.closed) => {
                    self.invalid_as(
                        path,
                        name.as_str(),
                        &format!("{path}.{name} in body is a forbidden property"),
                    );
                }
                (None, Some(values)) => self.value(values, child, old, &path.key(name)),
                (None, None) => {}
            }
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], old: Option<&Value>, path: &Path<'_>) {
        self.matched += 2;
        if let Some(checks) = schema.checks.as_deref() {
            self.at_least(checks.min_items, items.len(), "items", path);
            self.at_most(checks.max_items, items.len(), path);
        }
        let keyed = matches!(schema.list_type, ListType::Map(_));
        let before: Vec<(String, &Value)> = match old {
            Some(Value::Array(old)) if keyed => old
                .iter()
                .filter_map(|item| element::item(schema, item).ok().map(|name| (name, item)))
                .collect(),
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

    /// Items of sets and keyed lists must be unique; of duplicates the second is reported.
    fn members(&mut self, schema: &Schema, items: &[Value], path: &Path<'_>) {
        let keys = match &schema.list_type {
            ListType::Atomic => return,
            ListType::Set => None,
            ListType::Map(keys) => Some(keys),
        };
        let malformed =
            items.iter().position(|item| keys.is_some() && !item.is_object() && !item.is_null());
        if let Some(index) = malformed {
            let why = "must be an object for an array of list-type map";
            self.repeated.push(FieldError::invalid(
                self.bracketed(&path.index(index)),
                &items[index],
                why,
            ));
            return;
        }
        let mut seen: HashMap<String, usize> = HashMap::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let member = match keys {
                None => item.to_string(),
                Some(keys) => keys
                    .iter()
                    .filter_map(|key| Some(format!("{key}:{},", item.get(key)?)))
                    .collect(),
            };
            let times = seen.entry(member).or_default();
            *times += 1;
            if *times == 2 && self.repeated.len() < MAX_ERRORS {
                let place = self.bracketed(&path.index(index));
                self.repeated.push(match keys {
                    None => FieldError::duplicate(place, item),
                    Some(keys) => {
                        let present = keys
                            .iter()
                            .filter_map(|key| Some((key.to_string(), item.get(key)?.clone())));
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
            self.push(FieldError::too_many(
                self.field(path),
                count,
                usize::try_from(bound).unwrap_or(usize::MAX),
            ));
        }
    }

    fn string(&mut self, schema: &Schema, text: &str, path: &Path<'_>) {
        self.matched += 1;
        if let Some(format) = schema.format.as_deref()
            && matches!(schema.kind, Kind::String | Kind::IntOrString | Kind::Any)
        {
            self.matched += 1;
            if !formats::fits(format, text) {
                self.mismatch(path, text, format);
            }
        }
        let Some(checks) = schema.checks.as_deref() else {
            return;
        };
        let length = || text.chars().count() as u64;
        // As kube-apiserver, report only the first.
        if let Some(bound) = checks.max_length.filter(|bound| length() > *bound) {
            // Counted in characters, but called bytes.
            self.push(FieldError::too_long(
                self.field(path),
                usize::try_from(bound).unwrap_or(usize::MAX),
            ));
        } else if let Some(bound) = checks.min_length.filter(|bound| length() < *bound) {
            self.invalid(path, text, format_args!("should be at least {bound} chars long"));
        } else if let Some(pattern) = &checks.pattern
            && !self.matches(pattern, text)
        {
            self.invalid(path, text, format_args!("should match '{}'", pattern.as_str()));
        }
    }

    /// Whether a pattern matches, within the step budget.
    fn matches(&mut self, pattern: &Pattern, text: &str) -> bool {
        let mut steps = self.left as u64 * MATCH_STEPS;
        let matches = pattern.matches(text, &mut steps);
        self.left = match matches {
            Ok(_) => usize::try_from(steps / MATCH_STEPS).unwrap_or(self.left),
            Err(StepsExhausted) => 0,
        };
        matches.unwrap_or(false)
    }
}

/// Whether a custom object's value is unchanged, disregarding the order of keyed lists.
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
            let named: HashMap<String, &Value> = old
                .iter()
                .filter_map(|item| element::item(schema, item).ok().map(|name| (name, item)))
                .collect();
            let same = |item: &Value| match (
                element::item(schema, item).ok().and_then(|name| named.get(&name)),
                schema.items.as_deref(),
            ) {
                (Some(old), Some(node)) => unchanged(node, old, item, depth + 1),
                _ => false,
            };
            named.len() == items.len() && items.iter().all(same)
        }
        _ => false,
    }
}

/// As kube-apiserver converts a float to the type of a listed integer: `1.5` becomes 1.
fn is_listed_when_cut(schema: &Schema, value: &Value) -> bool {
    let float = value.as_f64().filter(|_| value.is_number() && !value.is_i64());
    float.is_some_and(|float| schema.allows(&Value::from(numbers::truncate(float))))
}

fn fits(kind: Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::Integer, Value::Number(number)) => {
            number.is_i64() || number.as_f64().is_some_and(numbers::is_whole)
        }
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
        Value::Number(number) if number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The format that a value has by itself.
fn format_of(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        _ => "",
    }
}

fn type_name(kind: Kind) -> &'static str {
    if kind == Kind::IntOrString { "integer,string" } else { kind.name() }
}
