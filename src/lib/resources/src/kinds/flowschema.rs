//! FlowSchema: assigns requests to priority levels.

mod maintained;
mod rules;

use super::flowcontrol;
use crate::cells;
use crate::checks::{all_invalid, is_full, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, FormattedValue, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, MaintainedObject};
use std::sync::Arc;
use std::time::SystemTime;

const DEFAULT_PRECEDENCE: i64 = 1000;
const MAX_PRECEDENCE: i64 = 10_000;
const PRECEDENCE_PATH: [&str; 2] = ["spec", "matchingPrecedence"];
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];

pub(crate) fn body() -> KindBody {
    const COLUMNS: &[NativeColumn] = &[
        NativeColumn::NAME,
        NativeColumn::text(
            "PriorityLevel",
            "`name` is the name of the priority level configuration being referenced Required.",
        ),
        NativeColumn::text(
            "MatchingPrecedence",
            "`matchingPrecedence` is used to choose among the FlowSchemas that match a given request. The chosen FlowSchema is among those with the numerically lowest (which we take to be logically highest) MatchingPrecedence.  Each MatchingPrecedence value must be ranged in [1,10000]. Note that if the precedence is not specified, it will be set to 1000 as default.",
        ),
        NativeColumn::text(
            "DistinguisherMethod",
            "`distinguisherMethod` defines how to compute the flow distinguisher for requests that match this schema. `nil` specifies that the distinguisher is disabled and thus will always be the empty string.",
        ),
        NativeColumn::AGE,
        NativeColumn::text(
            "MissingPL",
            "references a broken or non-existent PriorityLevelConfiguration",
        ),
    ];
    let mut body = flowcontrol::body("flowschemas", COLUMNS, Arc::new(FlowSchema));
    body.policy.table_order = Some(precedence);
    body
}

fn precedence(object: &Document) -> i64 {
    object.get(&PRECEDENCE_PATH).and_then(Value::as_i64).unwrap_or(0)
}

#[derive(Debug)]
struct FlowSchema;

impl Hooks for FlowSchema {
    fn default(&self, _version: &str, object: &mut Document) {
        if precedence(object) == 0 {
            object.set(&PRECEDENCE_PATH, DEFAULT_PRECEDENCE);
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        flowcontrol::prepare(change, object);
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if change.subresource != "status" {
            errors.extend(specification(object));
            let fixed = self.maintained().iter().find(|fixed| fixed.is(object.name()));
            if let Some(fixed) = fixed.filter(|fixed| fixed.is_mandatory)
                && fixed.object.get(&["spec"]) != object.get(&["spec"])
            {
                let detail = format!("spec of '{}' must equal the fixed value", object.name());
                errors.push(FieldError::invalid("spec", object.get(&["spec"]), detail));
            }
        }
        errors.extend(flowcontrol::conditions(object));
        errors
    }

    fn maintained(&self) -> &[MaintainedObject] {
        &maintained::SCHEMAS
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let spec = |path: &[&str]| object.get(path).cloned().unwrap_or(Value::Null);
        let method = object.str(&["spec", "distinguisherMethod", "type"]).unwrap_or("<none>");
        let dangling = object
            .list(&["status", "conditions"])
            .iter()
            .find(|condition| text(condition, "type") == "Dangling");
        vec![
            Value::from(object.name()),
            spec(&["spec", "priorityLevelConfiguration", "name"]),
            spec(&["spec", "matchingPrecedence"]),
            Value::from(method),
            Value::from(cells::age(object, now)),
            Value::from(dangling.map_or("?", |condition| text(condition, "status"))),
        ]
    }
}

fn specification(object: &Document) -> Vec<FieldError> {
    const PRECEDENCE: &str = "spec.matchingPrecedence";
    const LEVEL: &str = "spec.priorityLevelConfiguration.name";
    let mut errors = Vec::new();
    let precedence =
        object.get(&["spec", "matchingPrecedence"]).and_then(Value::as_i64).unwrap_or(0);
    if precedence <= 0 {
        errors.push(FieldError::invalid(PRECEDENCE, precedence, "must be a positive value"));
    }
    if precedence > MAX_PRECEDENCE {
        let detail = format!("must not be greater than {MAX_PRECEDENCE}");
        errors.push(FieldError::invalid(PRECEDENCE, precedence, detail));
    }
    if precedence == 1 && object.name() != "exempt" {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(PRECEDENCE, precedence, detail));
    }
    if let Some(method) = object.get(&["spec", "distinguisherMethod"]) {
        let kind = text(method, "type");
        if !METHODS.contains(&kind) {
            let shown = FormattedValue::object([("Type", FormattedValue::new(Word(kind)))]);
            let field = "spec.distinguisherMethod.type";
            errors.push(FieldError::not_supported(field, shown, METHODS));
        }
    }
    let level = object.str(&["spec", "priorityLevelConfiguration", "name"]).unwrap_or_default();
    if level.is_empty() {
        errors.push(FieldError::required(LEVEL, "must reference a priority level"));
    } else {
        errors.extend(all_invalid(LEVEL, level, name::dns1123_subdomain(level)));
    }
    for (index, rule) in object.list(&["spec", "rules"]).iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(rules::validate(rule, &format!("spec.rules[{index}]")));
    }
    errors
}
