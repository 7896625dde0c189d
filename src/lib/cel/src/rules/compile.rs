//! Compiling: syntax, types, costs, and everything that is said beside a rule.

use super::{Branch, Rule};
use crate::check::expect;
use crate::cost::{MAX_RULE, MAX_SCHEMA};
use crate::program::Program;
use crate::types::{Type, occurrences};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_apimachinery::work;
use ferrokube_schema::custom::field_path;
use ferrokube_schema::{Kind, ListType, Schema};
use std::collections::HashSet;
use std::sync::Arc;

/// At most so many errors are collected.
const MAX_ERRORS: usize = 50;
/// Of a total that is too high so many contributors are named.
const MAX_NAMED: usize = 4;
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

/// Notes the nodes that have rules in them or below them, by their addresses: asked for at each level, they would be looked for as often as they are deep.
fn mark(schema: &Schema, depth: usize, with_rules: &mut HashSet<usize>) -> bool {
    work::count(1);
    if depth > MAX_DEPTH || schema.native {
        return false;
    }
    let mut found = false;
    let mut of = |node: &Schema| found |= mark(node, depth + 1, with_rules);
    if let Some(checks) = schema.checks.as_deref() {
        [&checks.all_of, &checks.any_of, &checks.one_of].into_iter().flatten().for_each(|node| of(node));
        checks.not.as_deref().into_iter().for_each(&mut of);
    }
    schema.properties.values().for_each(|property| of(&property.schema));
    schema.items.as_deref().into_iter().for_each(&mut of);
    schema.additional.as_deref().into_iter().for_each(&mut of);
    found |= schema.checks.as_deref().is_some_and(|checks| !checks.rules.is_empty());
    if found {
        with_rules.insert(std::ptr::from_ref(schema).addr());
    }
    found
}

pub(super) fn compile(schema: &Arc<Schema>, path: &str) -> Result<Branch, Vec<FieldError>> {
    let mut with_rules = HashSet::new();
    mark(schema, 0, &mut with_rules);
    let mut compiler = Compiler { errors: Vec::new(), malformed: 0, total: 0, costs: Vec::new(), with_rules };
    let root = compiler.node(schema, path, &At { cardinality: Some(1), correlates: true, root: true, depth: 0 });
    if compiler.total > MAX_SCHEMA {
        compiler.costs.sort_unstable_by(|one, other| other.cmp(one));
        for (cost, field) in std::mem::take(&mut compiler.costs).into_iter().take(MAX_NAMED).filter(|(cost, _)| *cost >= MAX_SCHEMA / 100) {
            compiler.report(FieldReason::Forbidden, field, format!("contributes {cost} to an estimated cost of all rules that may be {MAX_SCHEMA}"));
        }
        compiler.report(FieldReason::Forbidden, path.to_owned(), "the rules of the schema may cost too much together: bound lists, maps and texts");
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
    /// Rules with something wrong beside their expressions; no expression above one of those is compiled.
    malformed: usize,
    total: u64,
    /// What each expression contributes, and where it is.
    costs: Vec<(u64, String)>,
    with_rules: HashSet<usize>,
}

impl Compiler {
    fn report(&mut self, reason: FieldReason, field: String, detail: impl AsRef<str>) {
        self.push(FieldError::unshown(reason, field, detail));
    }

    fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    fn has_rules(&self, schema: &Schema) -> bool {
        self.with_rules.contains(&std::ptr::from_ref(schema).addr())
    }

    fn node(&mut self, schema: &Arc<Schema>, path: &str, at: &At) -> Branch {
        let mut branch = Branch::default();
        if !self.has_rules(schema) {
            return branch;
        }
        work::count(1 + path.len());
        let malformed = self.malformed;
        for (name, property) in &schema.properties {
            if !self.has_rules(&property.schema) {
                continue;
            }
            let below = self.node(property.schema.shared(), &format!("{path}.properties[{name}]"), &at.below(Some(1), true));
            if !below.is_empty() {
                branch.properties.insert(Arc::clone(name), below);
            }
        }
        let checks = schema.checks.as_deref();
        if let Some(items) = &schema.items {
            let times = checks.and_then(|checks| checks.max_items);
            let correlates = matches!(schema.list_type, ListType::Map(_));
            branch.items =
                Some(self.node(items.shared(), &format!("{path}.items"), &at.below(times, correlates))).filter(|below| !below.is_empty()).map(Box::new);
        }
        if let Some(values) = &schema.additional {
            let times = checks.and_then(|checks| checks.max_properties);
            branch.values = Some(self.node(values.shared(), &format!("{path}.additionalProperties"), &at.below(times, true)))
                .filter(|below| !below.is_empty())
                .map(Box::new);
        }
        let rules: Vec<(&Value, String)> = checks
            .map_or(&[][..], |checks| &checks.rules)
            .iter()
            .enumerate()
            .map(|(index, rule)| (rule, format!("{path}.x-kubernetes-validations[{index}]")))
            .collect();
        let stated: Vec<Stated<'_>> = rules.iter().map(|(rule, path)| self.stated(schema, rule, path)).collect();
        let visible = at.root || stated.is_empty() || Type::of(schema).is_some();
        if !visible && self.malformed == malformed {
            self.report(FieldReason::Internal, format!("{path}.x-kubernetes-validations"), "rules cannot see values of this schema");
        } else if self.malformed == malformed {
            branch.rules = stated.into_iter().filter_map(|stated| self.rule(schema, stated, at)).collect();
        }
        branch
    }

    fn malformed(&mut self, reason: FieldReason, field: String, detail: impl AsRef<str>) {
        self.malformed += 1;
        self.report(reason, field, detail);
    }

    /// What is said beside the expressions of a rule.
    fn stated<'a>(&mut self, schema: &Schema, rule: &'a Value, path: &'a str) -> Stated<'a> {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).unwrap_or_default();
        let source = text("rule").trim();
        let message_source = text("messageExpression");
        if source.is_empty() {
            self.malformed(FieldReason::Required, format!("{path}.rule"), "rule is not specified");
        } else {
            self.message(text("message"), source, path);
        }
        if !message_source.is_empty() && message_source.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.malformed(FieldReason::Required, format!("{path}.messageExpression"), why);
        }
        Stated {
            reason: self.reason(text("reason"), path),
            field_path: self.field_path(schema, text("fieldPath"), path),
            source,
            message: text("message").trim(),
            message_source: message_source.trim(),
            optional_old: rule.get("optionalOldSelf").and_then(Value::as_bool),
            path,
        }
    }

    fn rule(&mut self, schema: &Arc<Schema>, stated: Stated<'_>, at: &At) -> Option<Rule> {
        let (before, path) = (self.errors.len(), stated.path);
        let optional_old = stated.optional_old == Some(true);
        let program = self.program(schema, stated.source, &format!("{path}.rule"), at, (optional_old, &Type::Bool));
        let uses_old = program.as_ref().is_some_and(|program| program.uses(OLD));
        // A rule that does not compile uses nothing.
        if stated.optional_old.is_some() && !uses_old {
            self.report(FieldReason::Invalid, format!("{path}.optionalOldSelf"), "may not be set if oldSelf is not used in rule");
        }
        let program = program?;
        let message_program = match stated.message_source {
            "" => None,
            source => Some(self.program(schema, source, &format!("{path}.messageExpression"), at, (optional_old, &Type::String(0)))?),
        };
        (self.errors.len() == before).then(|| Rule {
            source: stated.source.into(),
            program,
            message: Some(stated.message).filter(|message| !message.is_empty()).map(Arc::from),
            message_program,
            reason: stated.reason,
            field_path: stated.field_path,
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
                self.malformed(FieldReason::NotSupported, format!("{path}.reason"), format!("{given:?}: supported values: {}", names.join(", ")));
                FieldReason::Invalid
            }
        }
    }

    fn message(&mut self, given: &str, source: &str, path: &str) {
        let breaks = |text: &str| text.contains(['\n', '\r']);
        let (field, trimmed) = (format!("{path}.message"), given.trim());
        if !given.is_empty() && trimmed.is_empty() {
            self.malformed(FieldReason::Invalid, field, "message must be non-empty if specified");
        } else if breaks(trimmed) {
            self.malformed(FieldReason::Invalid, field, "message must not contain line breaks");
        } else if breaks(source) && trimmed.is_empty() {
            self.malformed(FieldReason::Required, field, "message must be specified if rule contains line breaks");
        }
    }

    /// A field path leads to a declared field, by names and keys of maps.
    fn field_path(&mut self, schema: &Schema, given: &str, path: &str) -> Arc<str> {
        if given.is_empty() {
            return given.into();
        }
        let refuse = |compiler: &mut Self, why: &str| {
            compiler.malformed(FieldReason::Invalid, format!("{path}.fieldPath"), format!("{given:?}: {why}"));
        };
        if given.trim().is_empty() {
            refuse(self, "fieldPath must be non-empty if specified");
        }
        if given.contains(['\n', '\r']) {
            refuse(self, "fieldPath must not contain line breaks");
        }
        match field_path(schema, given, true) {
            Some((found, _)) => found.into(),
            None => {
                refuse(self, "fieldPath must be a valid path");
                given.into()
            }
        }
    }

    fn program(&mut self, schema: &Arc<Schema>, source: &str, path: &str, at: &At, answer: (bool, &Type)) -> Option<Program> {
        match check(schema, source, at, answer) {
            Ok(program) => {
                // A message is made once, whatever the rule that fails.
                let times = if matches!(answer.1, Type::Bool) { at.cardinality.unwrap_or_else(|| occurrences(schema)) } else { 1 };
                let cost = program.cost().saturating_mul(times);
                if cost > MAX_RULE {
                    let why =
                        format!("the estimated cost of the expression exceeds the budget by a factor of {}: bound lists, maps and texts", cost / MAX_RULE + 1);
                    self.report(FieldReason::Forbidden, path.to_owned(), why);
                }
                self.total = self.total.saturating_add(cost);
                self.costs.push((cost, path.to_owned()));
                if program.uses(OLD) && !at.correlates && matches!(answer.1, Type::Bool) {
                    let why = "oldSelf cannot be used where old values cannot be told apart: the list above is no list map";
                    self.report(FieldReason::Invalid, path.to_owned(), why);
                }
                Some(program)
            }
            Err(why) => {
                self.push(FieldError::invalid(path, source, format!("compilation failed: {why}")));
                None
            }
        }
    }
}

/// A rule as it is given.
struct Stated<'a> {
    source: &'a str,
    message: &'a str,
    message_source: &'a str,
    reason: FieldReason,
    field_path: Arc<str>,
    optional_old: Option<bool>,
    path: &'a str,
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
    Ok(program)
}
