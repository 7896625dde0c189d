//! Compiling: syntax, types, costs, and everything that is said beside a rule.

use super::{Branch, Rule};
use crate::check::expect;
use crate::cost::{MAX_RULE, MAX_SCHEMA};
use crate::program::Program;
use crate::types::{Type, capacity, occurrences};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_schema::{Kind, ListType, Schema};
use std::sync::Arc;

/// At most so many errors are collected.
const MAX_ERRORS: usize = 50;
/// Of a total that is too high so many contributors are named.
const MAX_NAMED: usize = 5;
/// No walk goes deeper into a schema.
const MAX_DEPTH: usize = 250;
const REASONS: [(&str, FieldReason); 4] = [
    ("FieldValueInvalid", FieldReason::Invalid),
    ("FieldValueForbidden", FieldReason::Forbidden),
    ("FieldValueRequired", FieldReason::Required),
    ("FieldValueDuplicate", FieldReason::Duplicate),
];

/// Whether there is any rule.
pub(super) fn has_rules(schema: &Schema, depth: usize) -> bool {
    if depth > MAX_DEPTH || schema.native {
        return false;
    }
    let of = |node: &Schema| has_rules(node, depth + 1);
    schema.checks.as_deref().is_some_and(|checks| {
        let nested = [&checks.all_of, &checks.any_of, &checks.one_of];
        !checks.rules.is_empty() || nested.into_iter().flatten().any(|node| of(node)) || checks.not.as_deref().is_some_and(of)
    }) || schema.properties.values().any(|property| of(&property.schema))
        || schema.items.as_deref().is_some_and(of)
        || schema.additional.as_deref().is_some_and(of)
}

pub(super) fn compile(schema: &Arc<Schema>, path: &str) -> Result<Branch, Vec<FieldError>> {
    let mut compiler = Compiler { errors: Vec::new(), total: 0, costs: Vec::new() };
    let root = compiler.node(schema, path, &At { cardinality: Some(1), correlates: true, root: true, depth: 0 });
    if compiler.total > MAX_SCHEMA {
        compiler.costs.sort_unstable_by(|one, other| other.cmp(one));
        for (cost, field) in std::mem::take(&mut compiler.costs).into_iter().take(MAX_NAMED).filter(|(cost, _)| *cost > MAX_SCHEMA / 100) {
            compiler.report(FieldReason::Forbidden, field, format!("Forbidden: contributes {cost} to an estimated cost of all rules that may be {MAX_SCHEMA}"));
        }
        compiler.report(FieldReason::Forbidden, path.to_owned(), "Forbidden: the rules of the schema may cost too much together: bound lists, maps and texts");
    }
    if compiler.errors.is_empty() { Ok(root) } else { Err(compiler.errors) }
}

/// Where a node is.
#[derive(Clone, Copy)]
struct At {
    /// How often it may be in an object; `None`: as often as it finds room.
    cardinality: Option<u64>,
    /// Whether it has an old value.
    correlates: bool,
    root: bool,
    depth: usize,
}

impl At {
    fn below(self, times: Option<u64>, correlates: bool) -> Self {
        let cardinality = self.cardinality.zip(times).map(|(outer, inner)| outer.saturating_mul(inner));
        Self { cardinality, correlates: self.correlates && correlates, root: false, depth: self.depth + 1 }
    }
}

struct Compiler {
    errors: Vec<FieldError>,
    total: u64,
    /// What each expression contributes, and where it is.
    costs: Vec<(u64, String)>,
}

impl Compiler {
    fn report(&mut self, reason: FieldReason, field: String, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(FieldError::new(reason, field, message));
        }
    }

    fn node(&mut self, schema: &Arc<Schema>, path: &str, at: &At) -> Branch {
        let mut branch = Branch::default();
        if at.depth > MAX_DEPTH || schema.native || !has_rules(schema, at.depth) {
            return branch;
        }
        self.refuse_nested(schema, path);
        let rules = schema.checks.as_deref().map_or(&[][..], |checks| &checks.rules);
        branch.rules =
            rules.iter().enumerate().filter_map(|(index, rule)| self.rule(schema, rule, &format!("{path}.x-kubernetes-validations[{index}]"), at)).collect();
        for (name, property) in &schema.properties {
            let below = self.node(property.schema.shared(), &format!("{path}.properties[{name}]"), &at.below(Some(1), true));
            if !below.is_empty() {
                branch.properties.insert(Arc::clone(name), below);
            }
        }
        let checks = schema.checks.as_deref();
        if let Some(items) = &schema.items {
            let times = checks.and_then(|checks| checks.max_items).map(|_| capacity(schema));
            let correlates = matches!(schema.list_type, ListType::Map(_));
            branch.items =
                Some(self.node(items.shared(), &format!("{path}.items"), &at.below(times, correlates))).filter(|below| !below.is_empty()).map(Box::new);
        }
        if let Some(values) = &schema.additional {
            let times = checks.and_then(|checks| checks.max_properties).map(|_| capacity(schema));
            branch.values = Some(self.node(values.shared(), &format!("{path}.additionalProperties"), &at.below(times, true)))
                .filter(|below| !below.is_empty())
                .map(Box::new);
        }
        branch
    }

    /// Rules inside compositions would never be asked.
    fn refuse_nested(&mut self, schema: &Schema, path: &str) {
        let Some(checks) = schema.checks.as_deref() else { return };
        let groups = [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)];
        for (name, nodes) in groups {
            for (index, _) in nodes.iter().enumerate().filter(|(_, node)| has_rules(node, 0)) {
                self.report(FieldReason::Forbidden, format!("{path}.{name}[{index}].x-kubernetes-validations"), "Forbidden: must be empty to be structural");
            }
        }
        if checks.not.as_deref().is_some_and(|node| has_rules(node, 0)) {
            self.report(FieldReason::Forbidden, format!("{path}.not.x-kubernetes-validations"), "Forbidden: must be empty to be structural");
        }
    }

    fn rule(&mut self, schema: &Arc<Schema>, rule: &Value, path: &str, at: &At) -> Option<Rule> {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).unwrap_or_default();
        let before = self.errors.len();
        let reason = self.reason(text("reason"), path);
        self.message(text("message"), path);
        self.field_path(schema, text("fieldPath"), path);
        let source = text("rule").trim();
        if source.is_empty() {
            self.report(FieldReason::Required, format!("{path}.rule"), "Required value: rule is not specified");
            return None;
        }
        let optional_old = rule.get("optionalOldSelf").and_then(Value::as_bool) == Some(true);
        let program = self.program(schema, source, &format!("{path}.rule"), at, (optional_old, &Type::Bool))?;
        let uses_old = program.uses(OLD);
        if optional_old && !uses_old {
            self.report(
                FieldReason::Invalid,
                format!("{path}.optionalOldSelf"),
                "Invalid value: true: may not be set to true when the rule does not use oldSelf",
            );
        }
        let message_source = text("messageExpression").trim();
        let message_program = match message_source {
            "" => None,
            source => Some(self.program(schema, source, &format!("{path}.messageExpression"), at, (optional_old, &Type::String(0)))?),
        };
        (self.errors.len() == before).then(|| Rule {
            source: source.into(),
            program,
            message: Some(text("message").trim()).filter(|message| !message.is_empty()).map(Arc::from),
            message_program,
            reason,
            field_path: text("fieldPath").trim().into(),
            uses_old,
            optional_old,
        })
    }

    fn reason(&mut self, given: &str, path: &str) -> FieldReason {
        if given.is_empty() {
            return FieldReason::Invalid;
        }
        match REASONS.iter().find(|(name, _)| *name == given) {
            Some((_, reason)) => *reason,
            None => {
                let names: Vec<&str> = REASONS.iter().map(|(name, _)| *name).collect();
                self.report(
                    FieldReason::NotSupported,
                    format!("{path}.reason"),
                    format!("Unsupported value: {given:?}: supported values: {}", names.join(", ")),
                );
                FieldReason::Invalid
            }
        }
    }

    fn message(&mut self, given: &str, path: &str) {
        if given.contains(['\n', '\r']) {
            self.report(FieldReason::Invalid, format!("{path}.message"), "Invalid value: message must not contain line breaks");
        } else if !given.is_empty() && given.trim().is_empty() {
            self.report(FieldReason::Invalid, format!("{path}.message"), "Invalid value: message must be non-empty if specified");
        }
    }

    /// A field path leads to a declared field; it is of names only.
    fn field_path(&mut self, schema: &Schema, given: &str, path: &str) {
        let given = given.trim();
        if given.is_empty() {
            return;
        }
        let found = given.strip_prefix('.').and_then(|rest| rest.split('.').try_fold(schema, |node, name| node.child(name)));
        if found.is_none() {
            self.report(FieldReason::Invalid, format!("{path}.fieldPath"), format!("Invalid value: {given:?}: must be a valid path of fields of the schema"));
        }
    }

    fn program(&mut self, schema: &Arc<Schema>, source: &str, path: &str, at: &At, answer: (bool, &Type)) -> Option<Program> {
        match check(schema, source, at, answer) {
            Ok(program) => {
                let cost = program.cost();
                if cost > MAX_RULE {
                    let why = format!(
                        "Forbidden: the estimated cost of the expression exceeds the budget by a factor of {}: bound lists, maps and texts",
                        cost / MAX_RULE + 1
                    );
                    self.report(FieldReason::Forbidden, path.to_owned(), why);
                }
                let share = cost.saturating_mul(at.cardinality.unwrap_or_else(|| occurrences(schema)));
                self.total = self.total.saturating_add(share);
                self.costs.push((share, path.to_owned()));
                Some(program)
            }
            Err(why) => {
                self.report(FieldReason::Invalid, path.to_owned(), format!("Invalid value: {source:?}: compilation failed: {why}"));
                None
            }
        }
    }
}

/// The place of `oldSelf` among the variables.
pub(super) const OLD: usize = 1;

fn check(schema: &Arc<Schema>, source: &str, at: &At, (optional_old, answer): (bool, &Type)) -> Result<Program, String> {
    let own = match (at.root, schema.kind) {
        (true, Kind::Object) => Type::resource(schema),
        _ => Type::of(schema).ok_or("rules cannot see values of this schema")?,
    };
    let old = if optional_old { Type::Optional(Arc::new(own.clone())) } else { own.clone() };
    let program = Program::compile(source, &[("self", own), ("oldSelf", old)])?;
    expect(program.answer(), answer)?;
    if program.uses(OLD) && !at.correlates {
        return Err("oldSelf cannot be used where old values cannot be told apart: the list above is no list map".to_owned());
    }
    Ok(program)
}
