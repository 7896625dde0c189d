//! Evaluates rules on the values of their nodes.

use super::{CompiledRule, RuleNode};
use crate::cost::Meter;
use crate::failure::Failure;
use crate::value::{JsonShape, Value};
use ferrokube_apimachinery::document::{Array, Document, Map as JsonMap, Value as Json};
use ferrokube_apimachinery::field::{FieldError, FieldReason, quote};
use ferrokube_apimachinery::work;
use ferrokube_schema::validate::is_unchanged;
use ferrokube_schema::{Kind, ListType, Schema};
use std::collections::HashMap;
use std::sync::Arc;

/// Max collected errors.
const MAX_ERRORS: usize = 100;
/// Max bytes of a messageExpression's result.
const MAX_MESSAGE: usize = 5 * 1024;

/// Findings of rules in an object.
#[derive(Debug, Default)]
pub struct RuleFindings {
    /// Why it is refused.
    pub errors: Vec<FieldError>,
    /// Failures of rules on unchanged values (ratcheting), for the client.
    pub warnings: Vec<String>,
}

pub(super) fn check(
    root: &RuleNode,
    schema: &Schema,
    old: Option<&Document>,
    object: &Document,
) -> RuleFindings {
    let mut evaluation = Evaluation::default();
    let shape = JsonShape::Node(schema, true);
    let value = Value::of_fields(object.fields(), shape);
    let before = old.map(|old| Value::of_fields(old.fields(), shape));
    let unchanged = old.is_some_and(|old| old == object);
    evaluation.rules(
        root,
        &value,
        before.as_ref(),
        &Location { path: "", kind: "object", value: None, unchanged },
    );
    let fields = Compared { value: object.fields(), old: old.map(Document::fields), unchanged };
    evaluation.object(root, schema, fields, "");
    evaluation.verdict
}

/// Checks each default with the rules of its own node.
pub(super) fn validate_defaults(root: &RuleNode, schema: &Schema, path: &str) -> Vec<FieldError> {
    // All defaults share one object's budget.
    let mut evaluation = Evaluation::default();
    let mut below = vec![(root, schema, path.to_owned())];
    while let Some((branch, schema, path)) = below.pop() {
        work::count(1 + path.len());
        if let Some(default) = &schema.default {
            let alone = Compared { value: default, old: None, unchanged: false };
            evaluation.node(branch, schema, alone, &format!("{path}.default"));
        }
        for (name, branch) in &branch.properties {
            below.extend(
                schema.properties.get(name).map(|property| {
                    (branch, &*property.schema, format!("{path}.properties[{name}]"))
                }),
            );
        }
        let lists = branch.items.as_deref().zip(schema.items.as_deref());
        below.extend(lists.map(|(branch, items)| (branch, items, format!("{path}.items"))));
    }
    evaluation.verdict.errors
}

/// The key of a list map's item.
fn named(item: &Json, keys: &[String]) -> Vec<Option<String>> {
    keys.iter().map(|key| item.get(key).map(Json::to_string)).collect()
}

/// The first item of each key.
fn by_keys(items: &[Json], keys: &[String]) -> HashMap<Vec<Option<String>>, usize> {
    work::count(items.len());
    items.iter().enumerate().rev().map(|(place, item)| (named(item, keys), place)).collect()
}

#[derive(Default)]
struct Evaluation {
    verdict: RuleFindings,
    meter: Meter,
}

/// A value to check.
struct Compared<'a, T: ?Sized, O: ?Sized = T> {
    value: &'a T,
    /// If known.
    old: Option<&'a O>,
    /// Between `old` and `value`; without `old`, in the nearest ancestor that has one.
    unchanged: bool,
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl Evaluation {
    fn node(
        &mut self,
        branch: &RuleNode,
        schema: &Schema,
        compared: Compared<'_, Json>,
        path: &str,
    ) {
        let Compared { value, old, unchanged: same_above } = compared;
        if self.verdict.errors.len() >= MAX_ERRORS || self.meter.is_spent() || value.is_null() {
            return;
        }
        let shape = JsonShape::Node(schema, schema.embedded);
        // Reordering a keyed list is no change; compared only where it matters.
        let unchanged = old.map_or(same_above, |old| {
            if branch.rules.is_empty() { old == value } else { is_unchanged(schema, old, value) }
        });
        if !branch.rules.is_empty() {
            let before = old.map(|old| Value::of_json(old, shape));
            let kind = schema.kind.name();
            let shown = Some(value).filter(|_| !matches!(schema.kind, Kind::Object | Kind::Array));
            self.rules(
                branch,
                &Value::of_json(value, shape),
                before.as_ref(),
                &Location { path, kind, value: shown, unchanged },
            );
        }
        match value {
            Json::Object(map) => {
                let old = old.and_then(Json::as_object);
                self.object(branch, schema, Compared { value: map, old, unchanged }, path);
            }
            Json::Array(items) => {
                self.list(branch, schema, Compared { value: &**items, old, unchanged }, path);
            }
            _ => {}
        }
    }

    fn object(
        &mut self,
        branch: &RuleNode,
        schema: &Schema,
        compared: Compared<'_, JsonMap>,
        path: &str,
    ) {
        let Compared { value: map, old, unchanged } = compared;
        let before = |name: &str| old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
        // A new field of an object that has an old value is a change.
        let same_above = unchanged && old.is_none();
        for (name, below) in &branch.properties {
            if let (Some(value), Some(property)) = (map.get(name), schema.properties.get(name)) {
                let field = Compared { value, old: before(name), unchanged: same_above };
                self.node(below, &property.schema, field, &join(path, name));
            }
        }
        if let (Some(below), Some(values)) = (&branch.values, schema.additional.as_deref()) {
            for (name, value) in map {
                let entry = Compared { value, old: before(name), unchanged: same_above };
                self.node(below, values, entry, &format!("{path}[{name}]"));
            }
        }
    }

    fn list(
        &mut self,
        branch: &RuleNode,
        schema: &Schema,
        compared: Compared<'_, [Json], Json>,
        path: &str,
    ) {
        let Compared { value: items, old, unchanged } = compared;
        let (Some(below), Some(node)) = (&branch.items, schema.items.as_deref()) else { return };
        let before = old.and_then(Json::as_array).map_or(&[][..], Array::as_slice);
        let mut places = None;
        for (index, value) in items.iter().enumerate() {
            let old = match &schema.list_type {
                // Fast path: a list map is rarely reordered.
                ListType::Map(keys) => {
                    work::count(1);
                    let same = |old: &&Json| keys.iter().all(|key| old.get(key) == value.get(key));
                    let moved = || {
                        places
                            .get_or_insert_with(|| by_keys(before, keys))
                            .get(&named(value, keys))
                            .map(|place| &before[*place])
                    };
                    before.get(index).filter(same).or_else(moved)
                }
                _ => None,
            };
            self.node(below, node, Compared { value, old, unchanged }, &format!("{path}[{index}]"));
        }
    }

    fn rules(
        &mut self,
        branch: &RuleNode,
        value: &Value<'_>,
        old: Option<&Value<'_>>,
        location: &Location<'_>,
    ) {
        for rule in &branch.rules {
            let skipped = rule.uses_old && old.is_none() && !rule.optional_old;
            if !skipped && !self.meter.is_spent() {
                self.rule(rule, value, old, location);
            }
        }
    }

    fn rule(
        &mut self,
        rule: &CompiledRule,
        value: &Value<'_>,
        old: Option<&Value<'_>>,
        location: &Location<'_>,
    ) {
        let variables = || {
            let before = match rule.optional_old {
                true => Value::Optional(old.cloned().map(Arc::new)),
                false => old.cloned().unwrap_or(Value::Null),
            };
            vec![value.clone(), before]
        };
        let named = rule.message.as_deref().unwrap_or(&rule.source);
        let why = match rule.program.evaluate(variables(), &mut self.meter) {
            Ok(Value::Bool(true)) => return,
            Ok(Value::Bool(false)) => return self.fails(rule, variables(), location),
            Ok(_) => format!("rule {:?} gave no bool", rule.source),
            Err(Failure::Budget) if self.meter.is_spent() => {
                "validation failed due to running out of cost budget, no further validation rules will be run".to_owned()
            }
            Err(Failure::Budget) => {
                self.meter.exhaust();
                format!("'{}': no further validation rules will be run due to call cost exceeds limit for rule: {named}", Failure::Budget)
            }
            Err(Failure::Failed(why)) if why.starts_with("no such overload") => {
                format!("'{why}': call arguments did not match a supported operator, function or macro signature for rule: {named}")
            }
            Err(Failure::Failed(why)) => format!("{why} evaluating rule: {named}"),
        };
        self.verdict.errors.push(FieldError::invalid(location.field(""), location.kind, why));
    }

    /// Reports a failed rule.
    fn fails(&mut self, rule: &CompiledRule, variables: Vec<Value<'_>>, location: &Location<'_>) {
        let field = location.field(&rule.field_path);
        let error = match (self.message(rule, variables), rule.reason, location.value) {
            (Err(why), ..) => FieldError::invalid(field, location.kind, why),
            (Ok(_), FieldReason::Duplicate, Some(value)) => FieldError::duplicate(field, value),
            (Ok(_), FieldReason::Duplicate, None) => {
                FieldError::unshown(FieldReason::Duplicate, field, "")
            }
            (Ok(message), FieldReason::Invalid, Some(value)) => {
                FieldError::invalid(field, value, message)
            }
            (Ok(message), reason, _) => FieldError::unshown(reason, field, message),
        };
        // Ratcheting: an unchanged value is not refused.
        if location.unchanged && !rule.uses_old {
            self.verdict.warnings.push(format!("{}: {}", error.field, error.message));
        } else {
            self.verdict.errors.push(error);
        }
    }

    /// A failed rule's message: the messageExpression's result, else the message, else the rule.
    ///
    /// # Errors
    /// The messageExpression used up the budget: stop evaluating.
    fn message(
        &mut self,
        rule: &CompiledRule,
        variables: Vec<Value<'_>>,
    ) -> Result<String, String> {
        let plain = || {
            rule.message
                .as_deref()
                .map_or_else(|| format!("failed rule: {}", rule.source), str::to_owned)
        };
        let Some(program) = &rule.message_program else { return Ok(plain()) };
        match program.evaluate(variables, &mut self.meter) {
            Ok(Value::String(text)) if fits(text.trim()) => Ok(text.trim().to_owned()),
            Ok(_) | Err(Failure::Failed(_)) => Ok(plain()),
            Err(Failure::Budget) if self.meter.is_spent() => {
                Err("messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run".to_owned())
            }
            Err(Failure::Budget) => {
                self.meter.exhaust();
                let source = quote(&rule.message_source);
                Err(format!("no further validation rules will be run due to call cost exceeds limit for messageExpression: {source}"))
            }
        }
    }
}

fn fits(message: &str) -> bool {
    !message.is_empty() && message.len() <= MAX_MESSAGE && !message.contains('\n')
}

/// Location at which a rule is evaluated.
struct Location<'a> {
    path: &'a str,
    /// The schema's type.
    kind: &'static str,
    /// The value for errors; none for objects and arrays.
    value: Option<&'a Json>,
    unchanged: bool,
}

impl Location<'_> {
    /// The path of this location, or of a field below it.
    fn field(&self, below: &str) -> String {
        match (self.path, below) {
            ("", "") => "<nil>".to_owned(),
            (path, "") => path.to_owned(),
            (path, below) => join(path, below),
        }
    }
}
