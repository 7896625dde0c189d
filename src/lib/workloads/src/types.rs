//! The rows of `defaults.tsv` and `rules.tsv`, resolved for a type and all that it contains: built
//! per type at first use, without the types below which there are no rows.
//!
//! Rows belong to types, as in kube-apiserver: what a row says of a container holds in pods and
//! in the templates of all controllers.

use crate::checks::FieldErrors;
use crate::conditions::{Conditions, find};
use crate::paths::FieldPath;
use crate::rows;
use crate::rules::RuleRow;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::json;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Rows of fields whose feature is off: dropped unless the stored object has them.
const OFF: &str = "off";
/// Rows that warn.
const WARN: &str = "warn";
/// Rows that say when a field is looked into, if not always.
const INSPECT: &str = "inspect";
/// Rows that say where errors place what a field contains; of `FIELD[]`, without indices.
const PLACE: &str = "place:";
/// No type of the tables is that deep; a guard against recursion.
const MAX_DEPTH: usize = 24;

/// Rows of a type, and the fields below which there are more.
#[derive(Debug, Default)]
pub(crate) struct TypeRules {
    defaults: Vec<DefaultRow>,
    rules: Vec<RuleRow>,
    warnings: Vec<RuleRow>,
    /// Fields of features that are off.
    off: Vec<&'static str>,
    /// Fields of which only the first that is set is looked into.
    choices: Vec<&'static str>,
    /// Fields of the union that are validated regardless of the choice.
    besides: Vec<&'static str>,
    /// Fields of which none is looked into if several are given.
    exclusive: Vec<&'static str>,
    children: Vec<Child>,
}

#[derive(Debug)]
struct Child {
    field: &'static str,
    contents: Contents,
    is_always: bool,
    /// Where errors place it: as `@` in `rules.tsv`.
    shown: &'static str,
    is_indexed: bool,
    /// When its contents are checked: if one of these holds.
    when: Vec<Conditions>,
    plan: Arc<TypeRules>,
    has_defaults: bool,
    has_rules: bool,
    has_warnings: bool,
    has_off: bool,
}

/// Whether a field holds one object of a type, or several.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Contents {
    One,
    List,
    Map,
}

/// A default: set where the field is absent and the conditions hold.
#[derive(Clone, Debug)]
struct DefaultRow {
    when: Conditions,
    field: Vec<&'static str>,
    value: Value,
    /// Min bytes that it adds to the encoded object.
    bytes: usize,
}

/// Room for defaults, in encoded bytes: more than any object may have. What a megabyte of empty
/// containers would need is not made: the object is refused anyway, as it is invalid or too large.
#[derive(Debug)]
pub(crate) struct DefaultsRoom(usize);

impl Default for DefaultsRoom {
    fn default() -> Self {
        Self(2 << 20)
    }
}

impl DefaultsRoom {
    pub(crate) fn is_used_up(&self) -> bool {
        self.0 == 0
    }

    /// Whether there is room for this many bytes, which are then taken.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// Rows by the name of their type, without `io.k8s.api.`.
type TypeRows = HashMap<&'static str, Vec<[&'static str; 4]>>;

fn by_type(text: &'static str) -> TypeRows {
    let mut rows = TypeRows::new();
    let mut name = "";
    for line in text.lines().skip(1) {
        let mut columns = [""; 5];
        for (slot, column) in columns.iter_mut().zip(line.split('\t')) {
            *slot = column;
        }
        let [first, rest @ ..] = columns;
        if !first.is_empty() {
            name = first;
        }
        if rest[0].is_empty() && rest[2].is_empty() {
            continue;
        }
        rows.entry(name).or_default().push(rest);
    }
    rows
}

static DEFAULTS: LazyLock<TypeRows> =
    LazyLock::new(|| by_type(include_str!("../data/defaults.tsv")));
static RULES: LazyLock<TypeRows> = LazyLock::new(|| by_type(include_str!("../data/rules.tsv")));

/// Fields that refer to types, by type.
static TYPES: LazyLock<HashMap<&'static str, Vec<TypedField>>> = LazyLock::new(|| {
    let mut types: HashMap<&'static str, Vec<TypedField>> = HashMap::new();
    let mut name = "";
    for line in rows::SCHEMAS.lines().skip(1) {
        let mut columns = line.split('\t');
        let first = columns.next().unwrap_or_default();
        if !first.is_empty() {
            name = first;
        }
        let (field, kind) = (columns.next(), columns.next());
        let is_always = columns.nth(1) == Some("a");
        if let (Some(name_of), Some(kind)) = (field, kind.filter(|kind| kind.contains("ref:"))) {
            let field = TypedField { name: name_of, kind, is_always };
            types.entry(short(name)).or_default().push(field);
        }
    }
    types
});

/// A field that refers to a type.
struct TypedField {
    name: &'static str,
    /// As in `schema.tsv`.
    kind: &'static str,
    /// Written even if it is empty: its type has defaults then, too.
    is_always: bool,
}

/// Plans made so far, by type; `None`: no rows.
static PLANS: LazyLock<Mutex<Plans>> = LazyLock::new(Mutex::default);

type Plans = HashMap<&'static str, Option<Arc<TypeRules>>>;

fn short(definition: &'static str) -> &'static str {
    definition
        .strip_prefix("io.k8s.api.")
        .or_else(|| definition.strip_prefix("io.k8s.apimachinery.pkg.apis."))
        .unwrap_or(definition)
}

/// Rules of a type such as `core.v1.Pod`.
pub(crate) fn of(name: &str) -> Option<Arc<TypeRules>> {
    // A type that refers to no other one has rows only.
    let known = TYPES.get_key_value(name).map(|(name, _)| name);
    let name = *known.or_else(|| RULES.get_key_value(name).map(|(name, _)| name))?;
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    build(name, 0, &mut plans)
}

fn build(name: &'static str, depth: usize, plans: &mut Plans) -> Option<Arc<TypeRules>> {
    if let Some(made) = plans.get(name) {
        return made.clone();
    }
    let rows = rows_of(&RULES, name).iter();
    let (placed, checked): (Vec<&[&'static str; 4]>, Vec<&[&'static str; 4]>) =
        rows.partition(|row| row[2].starts_with(PLACE));
    let (inspected, checked): (Vec<&[&'static str; 4]>, Vec<&[&'static str; 4]>) =
        checked.into_iter().partition(|row| row[2] == INSPECT);
    let (off, checked): (Vec<&[&'static str; 4]>, Vec<&[&'static str; 4]>) =
        checked.into_iter().partition(|row| row[2] == OFF);
    let (warnings, checked): (Vec<&[&'static str; 4]>, Vec<&[&'static str; 4]>) =
        checked.into_iter().partition(|row| row[2].starts_with(WARN));
    let parsed = |rows: Vec<&[&'static str; 4]>| -> Vec<RuleRow> {
        let parse = |row: &[&'static str; 4]| RuleRow::parse(row[0], row[1], row[2], row[3]);
        rows.into_iter().map(parse).collect()
    };
    let mut rules = parsed(checked);
    let bounds: Vec<(&'static str, usize)> = rules.iter().filter_map(RuleRow::bound).collect();
    rules.iter_mut().for_each(|rule| rule.restrict(&bounds));
    let inspected = |field: &'static str| {
        let rows = inspected.iter().filter(|row| row[0] == field);
        let mut when: Vec<Conditions> = rows.map(|row| Conditions::parse(row[1])).collect();
        if when.is_empty() {
            when.push(Conditions::default());
        }
        for (_, most) in bounds.iter().filter(|(bounded, _)| *bounded == field) {
            when.iter_mut().for_each(|when| when.and_at_most(field, *most));
        }
        when
    };
    let mut plan = TypeRules {
        defaults: rows_of(&DEFAULTS, name).iter().map(default_row).collect(),
        choices: rules.iter().flat_map(RuleRow::choices).collect(),
        besides: rules.iter().flat_map(RuleRow::besides).collect(),
        exclusive: rules.iter().flat_map(RuleRow::exclusive).collect(),
        rules,
        warnings: parsed(warnings),
        off: off.iter().map(|row| row[0]).collect(),
        children: Vec::new(),
    };
    if depth < MAX_DEPTH {
        for TypedField { name: field, kind, is_always } in TYPES.get(name).into_iter().flatten() {
            let contents = match kind.split_once('<') {
                None => Contents::One,
                Some(("list", _)) => Contents::List,
                Some(_) => Contents::Map,
            };
            let Some((_, inner)) = kind.split_once("ref:") else { continue };
            let below = build(short(inner.trim_end_matches('>')), depth + 1, plans);
            plan.children.extend(below.map(|below| {
                Child {
                    field,
                    contents,
                    shown: placed
                        .iter()
                        .find(|row| row[0].trim_end_matches("[]") == *field)
                        .map_or(*field, |row| &row[2][PLACE.len()..]),
                    is_indexed: !placed.iter().any(|row| row[0].strip_suffix("[]") == Some(*field)),
                    when: inspected(field),
                    is_always: *is_always && contents == Contents::One,
                    has_defaults: below.has_defaults(),
                    has_rules: below.has_rules(),
                    has_warnings: below.has_warnings(),
                    has_off: below.has_off(),
                    plan: below,
                }
            }));
        }
    }
    let has_rows = plan.has_defaults() || plan.has_rules() || plan.has_warnings() || plan.has_off();
    let made = has_rows.then(|| Arc::new(plan));
    plans.insert(name, made.clone());
    made
}

fn rows_of(table: &'static TypeRows, name: &str) -> &'static [[&'static str; 4]] {
    table.get(name).map_or(&[], Vec::as_slice)
}

fn default_row([when, field, value, _]: &[&'static str; 4]) -> DefaultRow {
    DefaultRow {
        when: Conditions::parse(when),
        field: field.split('.').collect(),
        bytes: field.len() + value.len(),
        value: json::read_value(value.as_bytes())
            .expect("a default of the committed table is JSON: tested"),
    }
}

impl DefaultRow {
    fn apply(&self, object: &mut Map, room: &mut DefaultsRoom) {
        let is_absent = find(object, &self.field).is_none_or(Value::is_null);
        if !is_absent || !self.when.hold(object) || !room.take(self.bytes) {
            return;
        }
        let Some((last, parents)) = self.field.split_last() else { return };
        let mut map = object;
        for field in parents {
            let slot = map.entry(*field).or_insert_with(|| Value::Object(Map::new()));
            if slot.is_null() {
                *slot = Value::Object(Map::new());
            }
            let Some(inner) = slot.as_object_mut() else { return };
            map = inner;
        }
        map.insert(*last, self.value.clone());
    }
}

impl TypeRules {
    fn has_defaults(&self) -> bool {
        !self.defaults.is_empty() || self.children.iter().any(|child| child.has_defaults)
    }

    fn has_rules(&self) -> bool {
        !self.rules.is_empty() || self.children.iter().any(|child| child.has_rules)
    }

    fn has_warnings(&self) -> bool {
        !self.warnings.is_empty() || self.children.iter().any(|child| child.has_warnings)
    }

    fn has_off(&self) -> bool {
        !self.off.is_empty() || self.children.iter().any(|child| child.has_off)
    }

    /// Warnings of an API object: of all but its status, or of that alone.
    pub(crate) fn warn_object(&self, object: &Map, of_status: bool, out: &mut Warnings) {
        if !of_status {
            self.warnings.iter().for_each(|row| row.warn(object, FieldPath::Root, out));
        }
        for child in self.children.iter().filter(|child| of_status == (child.field == "status")) {
            child.warn(object, FieldPath::Root, out);
        }
    }

    /// Warnings of an object of the type at a path.
    fn warn(&self, object: &Map, path: FieldPath<'_>, out: &mut Warnings) {
        self.warnings.iter().for_each(|row| row.warn(object, path, out));
        self.children.iter().for_each(|child| child.warn(object, path, out));
    }

    /// Drops fields of features that are off, where the stored object has none either.
    pub(crate) fn drop_off(&self, object: &mut Map, old: Option<&Map>) {
        for field in &self.off {
            if old.is_none_or(|old| !old.contains_key(field)) {
                object.remove(field);
            }
        }
        for child in self.children.iter().filter(|child| child.has_off) {
            let before = old.and_then(|old| old.get(child.field));
            let Some(value) = object.get_mut(child.field) else { continue };
            match (child.contents, value) {
                (Contents::One, Value::Object(map)) => {
                    let was_empty = map.is_empty();
                    child.plan.drop_off(map, before.and_then(Value::as_object));
                    // Nothing but these fields: the parent goes with them.
                    if !was_empty && map.is_empty() && !child.is_always {
                        object.remove(child.field);
                    }
                }
                (Contents::List, Value::Array(items)) => {
                    for (at, map) in items.iter_mut().enumerate() {
                        let before = before.and_then(Value::as_array);
                        let before = before.and_then(|list| list.as_slice().get(at)?.as_object());
                        if let Some(map) = map.as_object_mut() {
                            child.plan.drop_off(map, before);
                        }
                    }
                }
                (Contents::Map, Value::Object(map)) => {
                    for (key, value) in map.iter_mut() {
                        let before = before.and_then(|before| before.get(key.as_str()));
                        if let Some(map) = value.as_object_mut() {
                            child.plan.drop_off(map, before.and_then(Value::as_object));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Sets the defaults of an object and of what it contains.
    pub(crate) fn default(&self, object: &mut Map, room: &mut DefaultsRoom) {
        if room.is_used_up() {
            return;
        }
        self.defaults.iter().for_each(|row| row.apply(object, room));
        for child in self.children.iter().filter(|child| child.has_defaults) {
            let Some(value) = object.get_mut(child.field) else {
                let mut made = Map::new();
                if child.is_always {
                    child.plan.default(&mut made, room);
                }
                if !made.is_empty() {
                    object.insert(child.field, Value::Object(made));
                }
                continue;
            };
            match (child.contents, value) {
                (Contents::One, Value::Object(map)) => child.plan.default(map, room),
                (Contents::List, Value::Array(items)) => {
                    items
                        .iter_mut()
                        .filter_map(Value::as_object_mut)
                        .for_each(|map| child.plan.default(map, room));
                }
                (Contents::Map, Value::Object(map)) => {
                    map.values_mut()
                        .filter_map(Value::as_object_mut)
                        .for_each(|map| child.plan.default(map, room));
                }
                _ => {}
            }
        }
    }

    /// Checks an API object: all but its status, or its status alone. `old` is the stored object,
    /// if there is one.
    pub(crate) fn check_object(
        &self,
        object: &Map,
        old: Option<&Map>,
        of_status: bool,
        errors: &mut FieldErrors,
    ) {
        if !of_status {
            self.rules.iter().for_each(|rule| rule.check(object, old, FieldPath::Root, errors));
        }
        for child in self.children.iter().filter(|child| of_status == (child.field == "status")) {
            child.check(object, old, FieldPath::Root, errors);
        }
    }

    /// Checks an object of the type at a path. `old` is the stored one, if there is one.
    pub(crate) fn check(
        &self,
        object: &Map,
        old: Option<&Map>,
        path: FieldPath<'_>,
        errors: &mut FieldErrors,
    ) {
        if errors.is_full() {
            return;
        }
        self.rules.iter().for_each(|rule| rule.check(object, old, path, errors));
        let is_given = |field: &&&str| object.get(field).is_some_and(|value| !value.is_null());
        let chosen = self.choices.iter().find(is_given);
        let is_chosen = |child: &&Child| {
            let of_many = || self.choices.contains(&child.field);
            let is_exempt = || self.besides.contains(&child.field);
            chosen.is_none_or(|first| *first == child.field || !of_many() || is_exempt())
        };
        let is_many = self.exclusive.iter().filter(is_given).count() > 1;
        let is_alone = |child: &&Child| !is_many || !self.exclusive.contains(&child.field);
        let children = self.children.iter().filter(is_chosen).filter(is_alone);
        children.for_each(|child| child.check(object, old, path, errors));
    }
}

impl Child {
    fn warn(&self, object: &Map, path: FieldPath<'_>, out: &mut Warnings) {
        let Some(value) = object.get(self.field).filter(|_| self.has_warnings) else { return };
        let below = path.field(self.field);
        match (self.contents, value) {
            (Contents::One, Value::Object(map)) => self.plan.warn(map, below, out),
            (Contents::List, Value::Array(items)) => {
                for (at, map) in items.iter().enumerate() {
                    if let Some(map) = map.as_object() {
                        self.plan.warn(map, below.index(at), out);
                    }
                }
            }
            _ => {}
        }
    }

    fn check(
        &self,
        object: &Map,
        old: Option<&Map>,
        path: FieldPath<'_>,
        errors: &mut FieldErrors,
    ) {
        let Some(value) = object.get(self.field).filter(|_| self.has_rules) else { return };
        if !self.when.iter().any(|when| when.hold(object)) {
            return;
        }
        let (start, shown) = path.placed(self.shown);
        let below = start.field(shown);
        match (self.contents, value) {
            (Contents::One, Value::Object(map)) => {
                let old = old.and_then(|old| old.get(self.field)).and_then(Value::as_object);
                self.plan.check(map, old, below, errors);
            }
            (Contents::List, Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    if let Some(map) = item.as_object() {
                        let item = if self.is_indexed { below.index(at) } else { below };
                        self.plan.check(map, None, item, errors);
                    }
                }
            }
            (Contents::Map, Value::Object(map)) => {
                for (key, item) in map {
                    if let Some(map) = item.as_object() {
                        self.plan.check(map, None, below.key(key), errors);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn every_row_belongs_to_a_type_with_that_field() {
        let fields = |name: &str| {
            let mut rows = rows::SCHEMAS.lines().skip(1).skip_while(|line| {
                line.split('\t').next().is_none_or(|first| short_name(first) != name)
            });
            let first = rows.next().map(|line| line.split('\t').nth(1).unwrap_or_default());
            let rest = rows.take_while(|line| line.starts_with('\t'));
            first
                .into_iter()
                .chain(rest.map(|line| line.split('\t').nth(1).unwrap_or_default()))
                .map(str::to_owned)
                .collect::<Vec<String>>()
        };
        for (table, at) in [(&*DEFAULTS, 1), (&*RULES, 0)] {
            for (name, rows) in table {
                if name.starts_with("meta.") {
                    continue;
                }
                let known = fields(name);
                assert!(!known.is_empty(), "no type {name}");
                for row in rows {
                    let field = row[at].split(['.', '[', '{', ' ', '@']).next().unwrap_or_default();
                    assert!(
                        field.is_empty() || known.iter().any(|one| one == field),
                        "{name} has no {field}"
                    );
                }
            }
        }
        for name in TYPES.keys() {
            let _ = of(name);
        }
    }

    fn short_name(definition: &str) -> &str {
        definition.strip_prefix("io.k8s.api.").unwrap_or(definition)
    }

    #[test]
    fn defaults_reach_templates() {
        let mut object = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 1}}}]}}}});
        of("apps.v1.Deployment")
            .unwrap()
            .default(object.as_object_mut().unwrap(), &mut DefaultsRoom::default());
        let spec = &object["spec"];
        assert_eq!(
            spec["strategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
        );
        let pod = &spec["template"]["spec"];
        assert_eq!(pod["dnsPolicy"], "ClusterFirst");
        assert_eq!(pod["containers"][0]["readinessProbe"]["httpGet"]["path"], "/");
        assert_eq!(pod["containers"][0]["readinessProbe"]["periodSeconds"], 10);
    }
}
