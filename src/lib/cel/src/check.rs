//! Type-checks expressions, estimates their costs and resolves names, in one walk. An expression
//! with an error has type [`Type::Error`], which fits everywhere.

mod macros;
mod messages;

use crate::admission::{Composed, ExpressionEnvironment, VARIABLES};
use crate::code::Code;
use crate::cost::Meter;
use crate::estimate::{Estimate, Operand, VariableSize, called};
use crate::failure::Failure;
use crate::library::function::Function;
use crate::library::{CallTypes, Overloads, compile_regex, format_fault, no_function, operator};
use crate::sizes::Sizes;
use crate::source::{SourceError, SourceErrors};
use crate::syntax::{Ast, ExprKind, NO_FIELD};
use crate::types::Type;
use crate::value::{Field, Map, MapKey, Text, Value, time};
use ferrokube_apimachinery::work;
use std::collections::HashMap;
use std::sync::Arc;

/// A checked expression.
pub(crate) struct Checked {
    pub(crate) code: Code,
    pub(crate) answer: Type,
    pub(crate) estimate: Estimate,
}

/// A variable in scope.
struct Variable {
    name: String,
    answer: Type,
    size: VariableSize,
}

/// The checker's state.
pub(crate) struct Checker<'s> {
    variables: Vec<Variable>,
    /// The fields of `variables`, in a policy.
    composed: Option<Arc<Composed>>,
    /// Whether there are the types `Object` and `JSONPatch`.
    patches: bool,
    sizes: &'s mut Sizes,
    /// Which of the program's own variables are used.
    pub(crate) used: Vec<bool>,
    /// Whether list and map literals may mix types, as the arguments of `format` do.
    mixed: bool,
    /// Malformed macros; they hide all other errors.
    macros: SourceErrors,
    types: SourceErrors,
    /// Errors that are only reported if there are no type errors.
    late: SourceErrors,
    /// A pattern that does not compile or a constant that cannot be converted; reported if
    /// everything else compiles.
    pub(crate) unplanned: Option<String>,
    /// Types of the expressions inside `format` arguments, by address.
    noted: HashMap<usize, String>,
}

/// Names before a dot that are not variables.
const NAMESPACES: [&str; 7] = ["optional", "sets", "format", "ip", "lists", "strings", "cel"];
/// Type names, as values.
const TYPES: [&str; 12] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
];

impl<'s> Checker<'s> {
    /// All variables are at the root of the declared sizes.
    pub(crate) fn new(
        variables: &[(&str, Type)],
        environment: &ExpressionEnvironment,
        sizes: &'s mut Sizes,
    ) -> Self {
        Self {
            composed: environment.composed.clone(),
            patches: environment.patches,
            variables: variables
                .iter()
                .map(|(name, given)| Variable {
                    name: (*name).to_owned(),
                    answer: given.clone(),
                    size: VariableSize::at(sizes.root()),
                })
                .collect(),
            sizes,
            used: vec![false; variables.len()],
            mixed: false,
            macros: SourceErrors::default(),
            types: SourceErrors::default(),
            late: SourceErrors::default(),
            unplanned: None,
            noted: HashMap::new(),
        }
    }

    /// The errors of the first of cel-go's passes that finds any.
    pub(crate) fn faults(&mut self) -> Option<SourceErrors> {
        [&mut self.macros, &mut self.types, &mut self.late]
            .into_iter()
            .find(|faults| !faults.is_empty())
            .map(std::mem::take)
    }

    /// Adds a type error; the expression gets type [`Type::Error`].
    fn fault(&mut self, at: usize, why: impl Into<String>) -> Checked {
        self.types.push(SourceError { at, why: why.into() });
        unknown()
    }

    pub(crate) fn check(&mut self, ast: &Ast) -> Checked {
        work::count(1);
        let checked = self.typed(ast);
        if self.mixed {
            self.noted.insert(std::ptr::from_ref(ast).addr(), checked.answer.runtime_name());
        }
        checked
    }

    fn typed(&mut self, ast: &Ast) -> Checked {
        match &ast.kind {
            ExprKind::Null => constant(Value::Null, Type::Null),
            ExprKind::Bool(flag) => constant(Value::Bool(*flag), Type::Bool),
            ExprKind::Int(number) => Checked {
                estimate: Estimate::integer(*number),
                ..constant(Value::Int(*number), Type::Int)
            },
            ExprKind::Uint(number) => constant(Value::Uint(*number), Type::Uint),
            ExprKind::Double(number) => constant(Value::Double(*number), Type::Double),
            ExprKind::Text(text) => Checked {
                estimate: Estimate::literal(text.chars().count() as u64),
                ..constant(Value::String(Text::Own(text.as_str().into())), Type::String)
            },
            ExprKind::Bytes(bytes) => Checked {
                estimate: Estimate::literal(bytes.len() as u64),
                ..constant(Value::Bytes(bytes.as_slice().into()), Type::Bytes)
            },
            ExprKind::Name(name) => self.variable(name, ast.at),
            ExprKind::Select { operand, field, optional } => {
                self.select(operand, field, ast.at, *optional)
            }
            ExprKind::Index { operand, index, optional } => {
                self.index(operand, index, *optional, ast.at)
            }
            ExprKind::Call { target, name, args } => {
                self.call(target.as_deref(), name, ast.at, args)
            }
            ExprKind::And(all) => self.logical(all, Code::And),
            ExprKind::Or(all) => self.logical(all, Code::Or),
            ExprKind::Conditional(parts) => self.conditional(parts, ast.at),
            ExprKind::List(items) => self.list(items),
            ExprKind::Map(entries) => self.map(entries),
            ExprKind::Message(name, fields) => self.message(name, ast.at, fields),
        }
    }

    fn undeclared(&mut self, name: &str, at: usize) -> Checked {
        self.fault(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn variable(&mut self, whole: &str, at: usize) -> Checked {
        let name = whole.strip_prefix('.').unwrap_or(whole);
        if let Some(place) = self.variables.iter().rposition(|known| known.name == name) {
            if let Some(used) = self.used.get_mut(place) {
                *used = true;
            }
            let Variable { answer, size, .. } = &self.variables[place];
            return Checked {
                code: Code::Variable(place),
                answer: answer.clone(),
                estimate: Estimate::variable(size, answer, self.sizes),
            };
        }
        match TYPES.into_iter().find(|known| *known == name) {
            Some(name) => self.type_constant(name),
            None => self.undeclared(whole, at),
        }
    }

    fn is_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|known| known.name == name)
    }

    /// A variable whose name has a dot.
    fn dotted(&mut self, operand: &Ast, field: &str, optional: bool) -> Option<Checked> {
        let ExprKind::Name(name) = &operand.kind else { return None };
        let is_named = |variable: &Variable| {
            variable
                .name
                .strip_prefix(name.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|rest| rest == field)
        };
        let place = self.variables.iter().position(is_named).filter(|_| !optional)?;
        let Variable { answer, size, .. } = &self.variables[place];
        Some(Checked {
            code: Code::Variable(place),
            answer: answer.clone(),
            estimate: Estimate::variable(size, answer, self.sizes),
        })
    }

    /// `variables.NAME` of a policy; `None` for anything else.
    ///
    /// # Errors
    /// There is no such variable, which has been noted.
    fn composed(&mut self, operand: &Ast, field: &str, at: usize) -> Result<Option<Checked>, ()> {
        let is_root = matches!(&operand.kind, ExprKind::Name(name) if name == "variables");
        let Some(composed) = self.composed.as_ref().filter(|_| is_root) else { return Ok(None) };
        // A loop may have a variable of that name.
        let last = self.variables.iter().rposition(|known| known.name == "variables");
        if last != Some(VARIABLES) {
            return Ok(None);
        }
        match composed.find(field) {
            Some((place, answer)) => {
                let estimate = Estimate::literal(1);
                Ok(Some(Checked { code: Code::Composed(place), answer, estimate }))
            }
            None => {
                self.fault(at, format!("undefined field '{field}'"));
                Err(())
            }
        }
    }

    /// A dotted name that is not a field of a variable.
    fn qualified(&self, ast: &Ast) -> Option<String> {
        match &ast.kind {
            ExprKind::Name(name) if !self.is_variable(name) => Some(name.clone()),
            ExprKind::Select { operand, field, optional: false } => {
                Some(format!("{}.{field}", self.qualified(operand)?))
            }
            _ => None,
        }
    }

    fn select(&mut self, operand: &Ast, field: &str, at: usize, optional: bool) -> Checked {
        let whole = self.qualified(operand).map(|prefix| format!("{prefix}.{field}"));
        if let Some(name) = whole.and_then(|whole| TYPES.into_iter().find(|known| *known == whole))
        {
            return self.type_constant(name);
        }
        if let Some(found) = self.dotted(operand, field, optional) {
            return found;
        }
        let operand = match self.composed(operand, field, at) {
            Ok(Some(found)) if optional => {
                let answer = Type::optional(found.answer);
                return Checked { code: Code::Present(Box::new(found.code)), answer, ..found };
            }
            Ok(Some(found)) => return found,
            Ok(None) => self.check(operand),
            Err(()) if optional => return constant(Value::Null, Type::optional(Type::Error)),
            Err(()) => return unknown(),
        };
        let wrap = |found: Type| if optional { Type::optional(found) } else { found };
        let answer = match operand.answer.field(field) {
            Ok(found) => wrap(found),
            Err(why) => {
                self.fault(at, why);
                // A value without declared fields could have any.
                let has_fields = matches!(operand.answer, Type::Object(..) | Type::Library(_));
                return constant(
                    Value::Null,
                    wrap(if has_fields { Type::Error } else { Type::Dyn }),
                );
            }
        };
        let code =
            Code::Select { operand: Box::new(operand.code), field: Field::new(field), optional };
        let estimate = if optional {
            Estimate::select_optional(&operand.estimate, &answer)
        } else {
            Estimate::select(&operand.estimate, &operand.answer, field, &answer, self.sizes)
        };
        Checked { code, answer, estimate }
    }

    /// `has(a.b)`
    fn has(&mut self, arg: &Ast, at: usize) -> Checked {
        let ExprKind::Select { operand, field, optional: false } = &arg.kind else {
            self.macros.push(SourceError { at: arg.at, why: NO_FIELD.to_owned() });
            return unknown();
        };
        match self.composed(operand, field, at) {
            Ok(None) => {}
            // A policy's variables are always there.
            Ok(Some(_)) => return constant(Value::Bool(true), Type::Bool),
            Err(()) => return Checked { answer: Type::Bool, ..unknown() },
        }
        let operand = self.check(operand);
        if let Err(why) = operand.answer.field(field) {
            return Checked { answer: Type::Bool, ..self.fault(at, why) };
        }
        let code = Code::Has { operand: Box::new(operand.code), field: Field::new(field) };
        Checked { code, answer: Type::Bool, estimate: Estimate::has(&operand.estimate) }
    }

    fn index(&mut self, operand: &Ast, index: &Ast, optional: bool, at: usize) -> Checked {
        let operand = self.check(operand);
        let index = self.check(index);
        let (inner, chained) = match &operand.answer {
            Type::Optional(inner) => ((**inner).clone(), true),
            // Null may be an optional.
            Type::Null => (Type::Dyn, true),
            plain => (plain.clone(), false),
        };
        let found = match (&inner, &index.answer) {
            (Type::List(item), Type::Int | Type::Dyn | Type::Var | Type::Error) => (**item).clone(),
            (Type::Map(key, value), given) if key.fits(given) => (**value).clone(),
            (Type::Dyn | Type::Var | Type::Error, _) => Type::Dyn,
            _ => {
                let name = if optional { "_[?_]" } else { "_[_]" };
                return self.fault(at, no_match(name, false, &[operand.answer, index.answer]));
            }
        };
        let as_optional = optional || chained;
        let may_be_list = matches!(index.answer, Type::Int | Type::Dyn | Type::Var | Type::Error);
        let answer = match (&operand.answer, &inner) {
            (Type::Null, _) => Type::Dyn,
            // A list or a map, optional or not: forms with different results.
            (_, Type::Dyn) if !chained || may_be_list => Type::Dyn,
            _ if as_optional => Type::optional(found),
            _ => found,
        };
        let estimate =
            Estimate::index(&operand.estimate, &index.estimate, as_optional, &answer, self.sizes);
        Checked {
            code: Code::Index {
                operand: Box::new(operand.code),
                index: Box::new(index.code),
                optional,
            },
            answer,
            estimate,
        }
    }

    fn call(&mut self, target: Option<&Ast>, name: &str, at: usize, args: &[Ast]) -> Checked {
        if let Some(found) = self.expand(target, name, at, args) {
            return found;
        }
        let Some(target) = target else { return self.function(None, name, at, args) };
        if let ExprKind::Name(prefix) = &target.kind
            && (NAMESPACES.contains(&prefix.as_str()) || self.patches && prefix == "jsonpatch")
            && !self.is_variable(prefix)
        {
            let whole = format!("{prefix}.{name}");
            if CallTypes::exists(&whole) {
                return self.function(None, &whole, at, args);
            }
        }
        self.function(Some(target), name, at, args)
    }

    fn function(
        &mut self,
        target: Option<&Ast>,
        written: &str,
        at: usize,
        args: &[Ast],
    ) -> Checked {
        // With a leading dot: no macro, otherwise the function.
        let name = written.strip_prefix('.').unwrap_or(written);
        let mut codes = Vec::with_capacity(args.len() + 1);
        let mut types = Vec::with_capacity(args.len() + 1);
        let mut estimates = Vec::with_capacity(args.len() + 1);
        for ast in target.into_iter().chain(args) {
            let outer = self.mixed;
            self.mixed |= name == "format";
            let checked = self.check(ast);
            self.mixed = outer;
            codes.push(checked.code);
            types.push(checked.answer);
            estimates.push(checked.estimate);
        }
        let asts: Vec<&Ast> = target.into_iter().chain(args).collect();
        self.literals(name, at, &codes, &asts);
        let Some(Overloads { rows, answer }) =
            (CallTypes { name, method: target.is_some(), types: &types }).find()
        else {
            return match CallTypes::exists(name) {
                true => {
                    self.fault(at, no_match(operator(name, args.len()), target.is_some(), &types))
                }
                false => self.undeclared(written, at),
            };
        };
        let operands: Vec<Operand<'_>> = types
            .iter()
            .zip(&estimates)
            .map(|(answer, estimate)| Operand { answer, estimate })
            .collect();
        let estimate = called(&rows, &operands, &answer, self.sizes);
        Checked { code: self.folded(name, rows, codes), answer, estimate }
    }

    /// A call, or a constant if it converts one.
    fn folded(&mut self, name: &str, rows: Vec<&'static Function>, codes: Vec<Code>) -> Code {
        if matches!(name, "or" | "orValue") && codes.len() == 2 {
            let [one, other] = <[Code; 2]>::try_from(codes).expect("of this length");
            return Code::OrElse(Box::new([one, other]), name == "orValue");
        }
        // Nothing is in an empty list; the item is not evaluated.
        if let ("in", [_, Code::Constant(Value::List(list))]) = (name, &codes[..])
            && list.len() == 0
        {
            return Code::Constant(Value::Bool(false));
        }
        let [Code::Constant(value)] = &codes[..] else { return Code::Call(rows, codes) };
        if !CONVERSIONS.contains(&name) {
            return Code::Call(rows, codes);
        }
        match convert(&rows, value.clone()) {
            Ok(value) => Code::Constant(value),
            Err(failure) => {
                self.unplanned.get_or_insert_with(|| failure.to_string());
                Code::Call(rows, codes)
            }
        }
    }

    fn logical(&mut self, all: &[Ast], code: fn(Vec<Code>) -> Code) -> Checked {
        let mut codes = Vec::with_capacity(all.len());
        let mut estimates = Vec::with_capacity(all.len());
        let mut answer = Type::Bool;
        for ast in all {
            let checked = self.check(ast);
            if !is_a(&checked.answer, &Type::Bool) {
                answer = self.fault(ast.at, mismatch(&Type::Bool, &checked.answer)).answer;
            }
            codes.push(checked.code);
            estimates.push(checked.estimate);
        }
        let estimate = Estimate::logical(estimates.iter());
        Checked { code: code(codes), answer, estimate }
    }

    fn conditional(&mut self, parts: &[Ast; 3], at: usize) -> Checked {
        let [condition, yes, no] = [&parts[0], &parts[1], &parts[2]].map(|part| self.check(part));
        if !is_a(&condition.answer, &Type::Bool) || !yes.answer.fits(&no.answer) {
            return self
                .fault(at, no_match("_?_:_", false, &[condition.answer, yes.answer, no.answer]));
        }
        let answer = yes.answer.join(&no.answer);
        let estimate = Estimate::conditional(&condition.estimate, &yes.estimate, &no.estimate);
        Checked {
            code: Code::Conditional(Box::new([condition.code, yes.code, no.code])),
            answer,
            estimate,
        }
    }

    fn expect(&mut self, given: &Type, wanted: &Type, at: usize) {
        if !is_a(given, wanted) {
            self.fault(at, mismatch(wanted, given));
        }
    }

    /// A list item or map value; an optional one is unwrapped.
    fn part(&mut self, ast: &Ast, optional: bool) -> Checked {
        let checked = self.check(ast);
        match (&checked.answer, optional) {
            (Type::Optional(inner), true) => Checked { answer: (**inner).clone(), ..checked },
            (Type::Dyn | Type::Var | Type::Error, true) | (_, false) => checked,
            (other, true) => {
                let why = mismatch(&Type::Optional(Arc::new(other.clone())), other);
                self.fault(ast.at, why)
            }
        }
    }

    /// Joins the types of a literal's elements: the first one's type. A literal with mixed types is
    /// refused later, and is `dyn` until then.
    fn together(&mut self, before: Option<ElementType>, next: &Type, at: usize) -> ElementType {
        match before {
            None => ElementType { first: next.clone(), of_all: true },
            Some(ElementType { first, of_all })
                if first.fits(next)
                    && (self.mixed
                        || !of_all
                        || matches!(first, Type::Dyn) == matches!(next, Type::Dyn)) =>
            {
                let joined =
                    if matches!(first, Type::Null) { next.clone() } else { first.join(next) };
                ElementType { first: joined, of_all }
            }
            Some(_) if self.mixed => ElementType { first: Type::Dyn, of_all: true },
            Some(ElementType { first, .. }) => {
                self.late.push(SourceError { at, why: mismatch(&first, next) });
                ElementType { first, of_all: false }
            }
        }
    }

    fn list(&mut self, items: &[(Ast, bool)]) -> Checked {
        let mut codes = Vec::with_capacity(items.len());
        let mut estimates = Vec::with_capacity(items.len());
        let mut item = None;
        for (ast, optional) in items {
            let checked = self.part(ast, *optional);
            item = Some(self.together(item, &checked.answer, ast.at));
            codes.push((checked.code, *optional));
            estimates.push(checked.estimate);
        }
        let answer = Type::List(Arc::new(ElementType::answer(item)));
        let estimate = Estimate::list(estimates.iter());
        Checked { code: folded_list(codes), answer, estimate }
    }

    fn map(&mut self, entries: &[(Ast, Ast, bool)]) -> Checked {
        let mut codes = Vec::with_capacity(entries.len());
        let (mut keys, mut values) = (None, None);
        let mut estimates = Vec::with_capacity(entries.len());
        for (key_ast, value_ast, optional) in entries {
            let (key, value) = (self.check(key_ast), self.part(value_ast, *optional));
            keys = Some(self.together(keys, &key.answer, key_ast.at));
            values = Some(self.together(values, &value.answer, value_ast.at));
            codes.push((key.code, value.code, *optional));
            estimates.push((key.estimate, value.estimate));
        }
        let answer =
            Type::Map(Arc::new(ElementType::answer(keys)), Arc::new(ElementType::answer(values)));
        Checked { code: folded_map(codes), answer, estimate: Estimate::map(&estimates) }
    }

    /// A type name as a value.
    fn type_constant(&mut self, name: &'static str) -> Checked {
        let shown = match name {
            "null_type" => "null",
            "list" => "list(dyn)",
            "map" => "map(dyn, dyn)",
            "google.protobuf.Duration" => "duration",
            "google.protobuf.Timestamp" => "timestamp",
            plain => plain,
        };
        Checked {
            estimate: Estimate::type_name(self.sizes),
            ..constant(Value::Type(name), Type::Type(shown.into()))
        }
    }

    /// Adds errors for literals that can never be evaluated.
    fn literals(&mut self, name: &str, at: usize, codes: &[Code], asts: &[&Ast]) {
        match (name, asts) {
            ("duration" | "timestamp", [arg]) if arg.is_literal() => {
                let is_sound = match &codes[0] {
                    Code::Constant(Value::String(text)) if name == "duration" => {
                        time::duration(text).is_some()
                    }
                    Code::Constant(Value::String(text)) => {
                        time::timestamp(text).is_some_and(|time| time::in_range(time).is_ok())
                    }
                    Code::Constant(Value::Int(seconds)) => {
                        name == "timestamp" && time::from_seconds(*seconds).is_ok()
                    }
                    Code::Constant(Value::Null) => false,
                    _ => true,
                };
                if !is_sound {
                    let why = format!("invalid {name} argument");
                    self.late.push(SourceError { at: arg.at, why });
                }
            }
            ("matches" | "find" | "findAll", [_, pattern, ..]) => {
                let Some(Code::Constant(Value::String(text))) = codes.get(1) else { return };
                let Err(failure) = compile_regex(text) else { return };
                if name == "matches" && pattern.is_literal() {
                    let why = "invalid matches argument".to_owned();
                    self.late.push(SourceError { at: pattern.at, why });
                }
                self.unplanned.get_or_insert_with(|| failure.to_string());
            }
            (
                "format",
                [Ast { kind: ExprKind::Text(text), .. }, Ast { kind: ExprKind::List(items), .. }],
            ) => {
                let noted = &self.noted;
                let mismatch =
                    |place: usize, types: &[&str]| format_mismatch(noted, &items[place].0, types);
                if let Some((place, why)) = format_fault(text, items.len(), mismatch) {
                    self.late.push(SourceError { at: place.unwrap_or(at), why });
                }
            }
            _ => {}
        }
    }
}

/// The first part of a `format` argument that has none of these types: its position and type.
fn format_mismatch(
    noted: &HashMap<usize, String>,
    ast: &Ast,
    types: &[&str],
) -> Option<(usize, String)> {
    let name = noted.get(&std::ptr::from_ref(ast).addr())?;
    if name != "dyn" && !types.contains(&name.as_str()) {
        return Some((ast.at, name.clone()));
    }
    let below = |ast: &Ast| format_mismatch(noted, ast, types);
    match &ast.kind {
        ExprKind::List(items) => items.iter().find_map(|(item, _)| below(item)),
        ExprKind::Map(entries) => {
            entries.iter().find_map(|(key, value, _)| below(key).or_else(|| below(value)))
        }
        _ => None,
    }
}

/// Functions evaluated at compile time if their argument is constant.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// A list literal, as a constant if its items are.
fn folded_list(codes: Vec<(Code, bool)>) -> Code {
    let constant = |(code, optional): &(Code, bool)| match code {
        Code::Constant(value) if !optional => Some(value.clone()),
        _ => None,
    };
    match codes.iter().map(constant).collect() {
        Some(values) => Code::Constant(Value::list(values)),
        None => Code::List(codes),
    }
}

fn folded_map(codes: Vec<(Code, Code, bool)>) -> Code {
    let constant = |(key, value, optional): &(Code, Code, bool)| match (key, value) {
        (Code::Constant(key), Code::Constant(value)) if !optional => {
            Some((MapKey::of(key)?, value.clone()))
        }
        _ => None,
    };
    match codes.iter().map(constant).collect() {
        Some(entries) => Code::Constant(Value::Map(Map::of(entries))),
        None => Code::Map(codes),
    }
}

fn convert(rows: &[&'static Function], value: Value<'static>) -> Result<Value<'static>, Failure> {
    let values = [value];
    match rows.iter().find(|row| row.takes_values(&values)) {
        Some(row) => row.call(&mut Meter::default(), &values),
        None => Err(no_function(rows, &values)),
    }
}

/// The joined type of a literal's elements so far.
struct ElementType {
    first: Type,
    of_all: bool,
}

impl ElementType {
    fn answer(parts: Option<Self>) -> Type {
        match parts {
            None => Type::Var,
            Some(Self { first, of_all: true }) => first,
            Some(_) => Type::Dyn,
        }
    }
}

fn constant(value: Value<'static>, answer: Type) -> Checked {
    Checked { code: Code::Constant(value), answer, estimate: Estimate::literal(1) }
}

/// Replaces an expression with an error.
fn unknown() -> Checked {
    constant(Value::Null, Type::Error)
}

/// Whether a type may be another one, as far as is known.
pub(crate) fn is_a(given: &Type, wanted: &Type) -> bool {
    given.is_dyn() || given.name() == wanted.name()
}

fn mismatch(wanted: &Type, given: &Type) -> String {
    format!("expected type '{}' but found '{}'", wanted.shown(), given.shown())
}

fn no_match(name: &str, method: bool, types: &[Type]) -> String {
    let names: Vec<String> = types.iter().map(Type::shown).collect();
    let signature = match (method, names.split_first()) {
        (true, Some((target, args))) => format!("{target}.({})", args.join(", ")),
        _ => format!("({})", names.join(", ")),
    };
    format!("found no matching overload for '{name}' applied to '{signature}'")
}
