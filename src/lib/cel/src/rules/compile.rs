//! Compiles rules: syntax, types, costs, and their other fields.

use super::{CompiledRule, RuleNode};
use crate::admission::ExpressionEnvironment;
use crate::check::is_a;
use crate::cost::{MAX_RULE, MAX_SCHEMA};
use crate::program::{CompileError, Program};
use crate::sizes::Sizes;
use crate::types::{ObjectRole, Type};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::{FieldError, FieldReason, FormattedValue, Word};
use ferrokube_apimachinery::work;
use ferrokube_schema::custom::field_path;
use ferrokube_schema::validate::Checks;
use ferrokube_schema::{Kind, ListType, Schema};
use std::collections::HashSet;
use std::sync::Arc;

/// Max collected errors.
const MAX_ERRORS: usize = 50;
/// Max contributors listed if the total cost is too high.
const MAX_NAMED: usize = 4;
/// Max schema depth.
const MAX_DEPTH: usize = 250;
const REASONS: [(&str, FieldReason); 4] = [
    ("FieldValueDuplicate", FieldReason::Duplicate),
    ("FieldValueForbidden", FieldReason::Forbidden),
    ("FieldValueInvalid", FieldReason::Invalid),
    ("FieldValueRequired", FieldReason::Required),
];

/// Whether a schema has rules.
pub(super) fn has_rules(schema: &Schema, depth: usize) -> bool {
    if depth > MAX_DEPTH || schema.native {
        return false;
    }
    let of = |node: &Schema| has_rules(node, depth + 1);
    schema.checks.as_deref().is_some_and(|checks| {
        let nested = [&checks.all_of, &checks.any_of, &checks.one_of];
        !checks.rules.is_empty()
            || nested.into_iter().flatten().any(|node| of(node))
            || checks.not.as_deref().is_some_and(of)
    }) || schema.properties.values().any(|property| of(&property.schema))
        || schema.items.as_deref().is_some_and(of)
        || schema.additional.as_deref().is_some_and(of)
}

/// Collects the nodes with rules in or below them, by address, in one pass: searching below each
/// node would be quadratic in the depth.
fn mark(schema: &Schema, depth: usize, with_rules: &mut HashSet<usize>) -> bool {
    work::count(1);
    if depth > MAX_DEPTH || schema.native {
        return false;
    }
    let mut found = false;
    let mut of = |node: &Schema| found |= mark(node, depth + 1, with_rules);
    if let Some(checks) = schema.checks.as_deref() {
        [&checks.all_of, &checks.any_of, &checks.one_of]
            .into_iter()
            .flatten()
            .for_each(|node| of(node));
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

/// Returns the rules' errors; `refused` are those of the schema itself.
pub(super) fn compile(
    schema: &Arc<Schema>,
    path: &str,
    refused: &[FieldError],
    is_structural: bool,
) -> Result<RuleNode, Vec<FieldError>> {
    let mut with_rules = HashSet::new();
    mark(schema, 0, &mut with_rules);
    let mut compiler = Compiler {
        errors: Vec::new(),
        of_defaults: Vec::new(),
        malformed: 0,
        total: 0,
        costs: Vec::new(),
        with_rules,
        sizes: Sizes::default(),
        refused,
        is_structural,
    };
    let root = compiler.node(
        schema,
        path,
        &NodePosition { cardinality: Some(1), apart: None, root: true, in_map: false, depth: 0 },
    );
    if !compiler.of_defaults.is_empty() {
        // A schema whose defaults are invalid is not structural: no expression is compiled.
        compiler.errors.retain(|error| !is_of_expression(error));
        compiler.errors.append(&mut compiler.of_defaults);
        return Err(compiler.errors);
    }
    if compiler.total > MAX_SCHEMA {
        compiler.costs.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, field) in std::mem::take(&mut compiler.costs)
            .into_iter()
            .take(MAX_NAMED)
            .filter(|(cost, _)| *cost >= MAX_SCHEMA / 100)
        {
            compiler.push(FieldError::forbidden(field, "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"));
        }
        let why = too_costly(
            "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema",
            compiler.total,
            MAX_SCHEMA,
        );
        compiler.push(FieldError::forbidden(path, why));
    }
    if compiler.errors.is_empty() { Ok(root) } else { Err(compiler.errors) }
}

/// Whether an error is that of a compiled expression.
fn is_of_expression(error: &FieldError) -> bool {
    error.reason != FieldReason::Required
        && [".rule", ".messageExpression", ".optionalOldSelf"]
            .iter()
            .any(|end| error.field.ends_with(end))
}

/// Whether a field belongs to the node at a path, or is below it.
fn is_at_or_below(field: &str, path: &str) -> bool {
    field.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The path of the node that has the rule at a path.
fn node_of(path: &str) -> &str {
    path.rsplit_once(".x-kubernetes-validations[").map_or(path, |(node, _)| node)
}

/// Errors about items that are reported on their list.
const DEMANDS: [&str; 5] = [
    "if parent array's x-kubernetes-list-type is map",
    "when x-kubernetes-list-type is map",
    "when x-kubernetes-list-type is set",
    "as item of a list with x-kubernetes-list-type=set",
    "this property is in x-kubernetes-list-map-keys",
];

/// The field of an error; what a list demands of its items is an error of the list.
fn refused_by(error: &FieldError) -> &str {
    let is_demanded = DEMANDS.iter().any(|demand| error.message.contains(demand));
    match error.field.rsplit_once(".items.") {
        Some((list, _)) if is_demanded => &error.field[..list.len() + ".items".len()],
        _ => &error.field,
    }
}

#[derive(Clone, Copy)]
struct NodePosition<'a> {
    /// Max values per object; `None` if only limited by the object's size.
    cardinality: Option<u64>,
    /// The outermost list above whose items have no old values.
    apart: Option<&'a str>,
    root: bool,
    /// Below `additionalProperties`, where kube-apiserver does not check defaults.
    in_map: bool,
    depth: usize,
}

impl<'a> NodePosition<'a> {
    fn below(self, times: Option<u64>, list: Option<&'a str>) -> Self {
        let cardinality =
            self.cardinality.zip(times).map(|(outer, inner)| outer.saturating_mul(inner));
        Self {
            cardinality,
            apart: self.apart.or(list),
            root: false,
            in_map: self.in_map,
            depth: self.depth + 1,
        }
    }
}

/// The message for a cost above a limit.
fn too_costly(what: &str, cost: u64, limit: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        many if many > 100.0 => "more than 100x".to_owned(),
        few if few < 1.5 => format!("{few:.6}x"),
        some => format!("{some:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and \
         strings are declared)"
    )
}

struct Compiler<'e> {
    errors: Vec<FieldError>,
    /// Errors at the defaults of nodes whose rules do not compile.
    of_defaults: Vec<FieldError>,
    /// Rules with invalid fields other than their expressions; expressions above them are not
    /// compiled.
    malformed: usize,
    total: u64,
    /// The cost of each expression, with its path.
    costs: Vec<(u64, String)>,
    with_rules: HashSet<usize>,
    sizes: Sizes,
    /// The errors of the schema itself.
    refused: &'e [FieldError],
    is_structural: bool,
}

impl Compiler<'_> {
    /// Whether the schema is valid at a path and below it.
    fn is_sound(&self, path: &str) -> bool {
        !self.refused.iter().any(|error| is_at_or_below(refused_by(error), path))
    }

    /// Whether a structural schema can be made of a node, valid or not. kube-apiserver looks up
    /// field paths in that, and accepts any if there is none.
    fn is_convertible(&self, path: &str) -> bool {
        let unsupported = |error: &FieldError| {
            ["is not supported", "and not an array", "must be true or undefined"]
                .into_iter()
                .any(|end| error.message.ends_with(end))
        };
        !self.refused.iter().any(|error| unsupported(error) && is_at_or_below(&error.field, path))
    }

    fn push(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    fn has_rules(&self, schema: &Schema) -> bool {
        self.with_rules.contains(&std::ptr::from_ref(schema).addr())
    }

    fn node(&mut self, schema: &Arc<Schema>, path: &str, at: &NodePosition<'_>) -> RuleNode {
        let mut branch = RuleNode::default();
        if !self.has_rules(schema) {
            return branch;
        }
        work::count(1 + path.len());
        work::breathe();
        let malformed = self.malformed;
        for (name, property) in &schema.properties {
            if !self.has_rules(&property.schema) {
                continue;
            }
            let below = self.node(
                property.schema.shared(),
                &format!("{path}.properties[{name}]"),
                &at.below(Some(1), None),
            );
            if !below.is_empty() {
                branch.properties.insert(Arc::clone(name), below);
            }
        }
        let checks = schema.checks.as_deref();
        if let Some(items) = &schema.items {
            let times = checks.and_then(|checks| checks.max_items);
            let list = (!matches!(schema.list_type, ListType::Map(_))).then_some(path);
            branch.items =
                Some(self.node(items.shared(), &format!("{path}.items"), &at.below(times, list)))
                    .filter(|below| !below.is_empty())
                    .map(Box::new);
        }
        if let Some(values) = &schema.additional {
            let times = checks.and_then(|checks| checks.max_properties);
            branch.values = Some(self.node(
                values.shared(),
                &format!("{path}.additionalProperties"),
                &NodePosition { in_map: true, ..at.below(times, None) },
            ))
            .filter(|below| !below.is_empty())
            .map(Box::new);
        }
        checks.into_iter().for_each(|checks| self.compositions(checks, path));
        let rules = rules_of(schema, path);
        let stated: Vec<RuleSource<'_>> =
            rules.iter().map(|(rule, path)| self.stated(schema, rule, path)).collect();
        if stated.is_empty()
            || self.malformed != malformed
            || !self.is_structural
            || !self.is_sound(path)
        {
            return branch;
        }
        if at.root || Type::of(schema).is_some() {
            branch.rules =
                stated.into_iter().filter_map(|stated| self.rule(schema, stated, at)).collect();
        } else {
            let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL \
                       declarations";
            self.push(FieldError::internal(format!("{path}.x-kubernetes-validations"), why));
        }
        branch
    }

    /// Rules in compositions are not compiled, but their fields are checked.
    fn compositions(&mut self, checks: &Checks, path: &str) {
        let lists =
            [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)];
        for (name, nodes) in lists {
            nodes
                .iter()
                .enumerate()
                .for_each(|(index, node)| self.nested(node, &format!("{path}.{name}[{index}]")));
        }
        checks
            .not
            .as_deref()
            .into_iter()
            .for_each(|node| self.nested(node, &format!("{path}.not")));
    }

    fn nested(&mut self, schema: &Schema, path: &str) {
        if !self.has_rules(schema) {
            return;
        }
        work::count(1 + path.len());
        for (name, property) in &schema.properties {
            self.nested(&property.schema, &format!("{path}.properties[{name}]"));
        }
        schema
            .items
            .as_deref()
            .into_iter()
            .for_each(|items| self.nested(items, &format!("{path}.items")));
        schema.checks.as_deref().into_iter().for_each(|checks| self.compositions(checks, path));
        for (rule, path) in rules_of(schema, path) {
            self.stated(schema, rule, &path);
        }
    }

    fn malformed(&mut self, error: FieldError) {
        self.malformed += 1;
        self.push(error);
    }

    /// Parses a rule and checks its fields other than expressions.
    fn stated<'a>(&mut self, schema: &Schema, rule: &'a Value, path: &'a str) -> RuleSource<'a> {
        let text = |field: &str| rule.get(field).and_then(Value::as_str).unwrap_or_default();
        let given = text("rule");
        let source = given.trim();
        let message_source = text("messageExpression");
        if source.is_empty() {
            self.malformed(FieldError::required(format!("{path}.rule"), "rule is not specified"));
        } else {
            self.message(text("message"), source, path);
        }
        if !message_source.is_empty() && message_source.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.malformed(FieldError::required(format!("{path}.messageExpression"), why));
        }
        RuleSource {
            reason: self.reason(text("reason"), path),
            field_path: self.field_path(schema, text("fieldPath"), path),
            source: given,
            message: text("message").trim(),
            message_source,
            optional_old: rule.get("optionalOldSelf").and_then(Value::as_bool),
            path,
            rule,
        }
    }

    fn rule(
        &mut self,
        schema: &Arc<Schema>,
        stated: RuleSource<'_>,
        at: &NodePosition<'_>,
    ) -> Option<CompiledRule> {
        let (before, path) = (self.errors.len(), stated.path);
        let optional_old = stated.optional_old == Some(true);
        let program = self.program(schema, &stated, at, optional_old);
        let uses_old = program.as_ref().is_some_and(|program| program.uses(OLD));
        // A rule that does not compile uses nothing.
        if stated.optional_old.is_some() && !uses_old {
            self.push(FieldError::invalid(
                format!("{path}.optionalOldSelf"),
                optional_old,
                "may not be set if oldSelf is not used in rule",
            ));
        }
        let program = program?;
        let message_program = match stated.message_source {
            "" => None,
            _ => Some(self.message_program(schema, &stated, at, optional_old)?),
        };
        (self.errors.len() == before).then(|| CompiledRule {
            source: stated.source.trim().into(),
            program,
            message: Some(stated.message).filter(|message| !message.is_empty()).map(Arc::from),
            message_program,
            message_source: stated.message_source.into(),
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
                self.malformed(FieldError::not_supported(
                    format!("{path}.reason"),
                    given,
                    REASONS.map(|(name, _)| name),
                ));
                FieldReason::Invalid
            }
        }
    }

    fn message(&mut self, given: &str, source: &str, path: &str) {
        let breaks = |text: &str| text.contains(['\n', '\r']);
        let (field, trimmed) = (format!("{path}.message"), given.trim());
        if !given.is_empty() && trimmed.is_empty() {
            self.malformed(FieldError::invalid(field, given, "must be non-empty if specified"));
        } else if breaks(trimmed) {
            self.malformed(FieldError::invalid(field, given, "must not contain line breaks"));
        } else if breaks(source) && trimmed.is_empty() {
            self.malformed(FieldError::required(
                field,
                "message must be specified if rule contains line breaks",
            ));
        }
    }

    /// A field path must lead to a declared field, by field names and map keys.
    fn field_path(&mut self, schema: &Schema, given: &str, path: &str) -> Arc<str> {
        if given.is_empty() {
            return given.into();
        }
        let refuse = |compiler: &mut Self, why: &str| {
            compiler.malformed(FieldError::invalid(format!("{path}.fieldPath"), given, why));
        };
        if given.trim().is_empty() {
            refuse(self, "must be non-empty if specified");
        }
        if given.contains(['\n', '\r']) {
            refuse(self, "must not contain line breaks");
        }
        match field_path(schema, given, true) {
            Ok((found, _)) => found.into(),
            Err(_) if !self.is_convertible(node_of(path)) => given.into(),
            Err(_) => {
                refuse(self, "must be a valid path");
                given.into()
            }
        }
    }

    fn program(
        &mut self,
        schema: &Arc<Schema>,
        stated: &RuleSource<'_>,
        at: &NodePosition<'_>,
        optional_old: bool,
    ) -> Option<Program> {
        let path = format!("{}.rule", stated.path);
        let program =
            self.compiled(schema, stated.source, at, optional_old, &Type::Bool).map_err(|why| {
                match why {
                    ProgramError::Source(why) => format!("compilation failed: {why}"),
                    ProgramError::Program(why) => format!("program instantiation failed: {why}"),
                    ProgramError::Type => "cel expression must evaluate to a bool".to_owned(),
                }
            });
        let program = program.map_err(|why| {
            if schema.default.is_some() && !at.in_map && self.of_defaults.len() < MAX_ERRORS {
                let why = format!("rule compile error: {why}");
                let field = format!("{}.default", node_of(stated.path));
                self.of_defaults.push(FieldError::invalid(field, schema.kind.name(), why));
            }
            self.push(FieldError::invalid(path.as_str(), stated.shown(), why));
        });
        let program = program.ok()?;
        let times = at.cardinality.unwrap_or_else(|| self.sizes.occurrences(schema));
        let cost = program.cost().saturating_mul(times);
        self.charge(cost, "estimated rule cost", path.clone());
        if let Some(list) = at.apart.filter(|_| program.uses(OLD)) {
            let why = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
            );
            self.push(FieldError::invalid(path, stated.source, why));
        }
        Some(program)
    }

    fn message_program(
        &mut self,
        schema: &Arc<Schema>,
        stated: &RuleSource<'_>,
        at: &NodePosition<'_>,
        optional_old: bool,
    ) -> Option<Program> {
        let path = format!("{}.messageExpression", stated.path);
        let program = self
            .compiled(schema, stated.message_source, at, optional_old, &Type::String)
            .map_err(|why| match why {
                ProgramError::Source(why) => format!("messageExpression compilation failed: {why}"),
                ProgramError::Program(why) => {
                    format!("messageExpression instantiation failed: {why}")
                }
                ProgramError::Type => "messageExpression must evaluate to a string".to_owned(),
            });
        let program = program
            .map_err(|why| self.push(FieldError::invalid(path.as_str(), stated.shown(), why)))
            .ok()?;
        // A message is built once, however many values fail.
        self.charge(program.cost(), "estimated messageExpression cost", path);
        Some(program)
    }

    fn compiled(
        &mut self,
        schema: &Arc<Schema>,
        source: &str,
        at: &NodePosition<'_>,
        optional_old: bool,
        answer: &Type,
    ) -> Result<Program, ProgramError> {
        let is_resource = (at.root && schema.kind == Kind::Object) || schema.embedded;
        let role = if is_resource { ObjectRole::Resource } else { ObjectRole::Inner };
        self.sizes.start_at(schema, role);
        let own = match (at.root, schema.kind) {
            (true, Kind::Object) => Type::resource(schema),
            _ => Type::of(schema).ok_or_else(|| {
                ProgramError::Source("rules cannot see values of this schema".to_owned())
            })?,
        };
        let old = if optional_old { Type::Optional(Arc::new(own.clone())) } else { own.clone() };
        let variables = [("self", own), ("oldSelf", old)];
        let program = Program::compile(
            source,
            &variables,
            &ExpressionEnvironment::default(),
            &mut self.sizes,
        )
        .map_err(|error| match error {
            CompileError::Source(why) => ProgramError::Source(why),
            CompileError::Program(why, given) if is_answer(&given, answer) => {
                ProgramError::Program(why)
            }
            CompileError::Program(..) => ProgramError::Type,
        })?;
        if is_answer(program.answer(), answer) { Ok(program) } else { Err(ProgramError::Type) }
    }

    fn charge(&mut self, cost: u64, what: &str, path: String) {
        if cost > MAX_RULE {
            self.push(FieldError::forbidden(path.as_str(), too_costly(what, cost, MAX_RULE)));
        }
        self.total = self.total.saturating_add(cost);
        self.costs.push((cost, path));
    }
}

/// The rules of a node with their paths.
fn rules_of<'a>(schema: &'a Schema, path: &str) -> Vec<(&'a Value, String)> {
    let rules = schema.checks.as_deref().map_or(&[][..], |checks| &checks.rules);
    rules
        .iter()
        .enumerate()
        .map(|(index, rule)| (rule, format!("{path}.x-kubernetes-validations[{index}]")))
        .collect()
}

/// A rule as given.
struct RuleSource<'a> {
    source: &'a str,
    message: &'a str,
    message_source: &'a str,
    reason: FieldReason,
    field_path: Arc<str>,
    optional_old: Option<bool>,
    path: &'a str,
    /// The given JSON.
    rule: &'a Value,
}

impl RuleSource<'_> {
    /// The whole rule, as kube-apiserver's errors print it.
    fn shown(&self) -> FormattedValue {
        let field = |name: &str| self.rule.get(name).filter(|value| !value.is_null());
        let text = |name: &str| {
            FormattedValue::new(Word(field(name).and_then(Value::as_str).unwrap_or_default()))
        };
        let fields = [
            ("Rule", text("rule")),
            ("Message", text("message")),
            ("MessageExpression", text("messageExpression")),
            ("Reason", FormattedValue::new(field("reason"))),
            ("FieldPath", text("fieldPath")),
            ("OptionalOldSelf", FormattedValue::new(field("optionalOldSelf"))),
        ];
        FormattedValue::object(fields)
    }
}

/// Why an expression is refused.
enum ProgramError {
    /// It does not compile, with these errors.
    Source(String),
    /// It fails after type checking, with this error.
    Program(String),
    /// It returns the wrong type.
    Type,
}

/// The variable index of `oldSelf`.
pub(super) const OLD: usize = 1;

fn is_answer(given: &Type, wanted: &Type) -> bool {
    is_a(given, wanted) && !given.is_dyn()
}
