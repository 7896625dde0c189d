//! A row of `rules.tsv`: a field of a type, the condition for the row, the rule, and the message if
//! it is not the usual one. `FIELD[]` is each item, `FIELD{}` each key, `FIELD@PLACE` a field whose
//! errors are reported elsewhere ([`FieldPath::placed`]). The functions are in `rules/`, by
//! subject:
//!
//! | rule | holds if the field |
//! |---|---|
//! | `required`, `filled`, `given` | is set; is set and not an empty object; is not null |
//! | `absent`, `never`, `never-empty`, `never-null`, `never-object`, `never-unshown`, `forbidden-self` | (never holds: the conditions say it all) |
//! | `forbidden`, `invalid` | is not given |
//! | `nonempty`, `provisioner`, `containerresource` | is not an empty text; is a qualified name in any case; the name of a container's resource |
//! | `enum:A,B`, `enum?:A,B`, `enum!:A,B` | has one of the values, if it is set; if it is given; always |
//! | `form:F`, `form?:F`, `form!:F` | has the form ([`checks::form`]), likewise |
//! | `min:N`, `most:N`, `range:M-N`, `positive`, `positive0`, `port`, `port!`, `nonzero` | is such a number; with `0` or `!` also if it is not set |
//! | `atmost:F`, `atleast:F`, `above:F` | compares with another field |
//! | `grows`, `immutable`, `immutable-text`, `immutable-once`, `immutable-forbidden` | compares with the stored one |
//! | `atmostitems:N`, `maxlength:N`, `maxitems:N`, `maxitems!:N`, `maxcidrs`, `unique:F`, `unique-portname:F`, `unique-item:F`, `unique-all:F`, `unique-label:F` | is not too long, and its items are unique; those without the field, too, for `-item` and `-all`; the first of each is a label for `-label`; with `!`, more items are not looked into |
//! | `conditions` | is a list of `metav1.Condition`s |
//! | `quantity`, `quantity-positive`, `quantity-forbidden`, `storagecapacity`, `mindomains`, `scaletozero`, `percent`, `percent100` | is such an amount |
//! | `labels`, `annotations`, `selector` | is made of labels |
//! | `exactlyone:F,G`, `envsource:F,G`, `handler:F,G`, `volume`, `pvsource`, `metric`, `exactlyonerequest` | (of the object) chooses one of several fields |
//! | `noneofmany:F,G` | (of the object; always holds) is looked into only if no other one is given |
//! | `firstof:F,G` | (of the object; always holds) is looked into only if those before it are not given |
//! | `inspect` | (always holds) is looked into only if the conditions of such a row hold |
//! | `group:F,G` | is the name of an API group, unless one of these fields was stored with one |
//! | `notofroot:F` | (never holds) is given, where that field is the path of the root |

pub(crate) mod addresses;
mod choices;
pub(crate) mod devices;
mod field;
pub(crate) mod numbers;
pub(crate) mod references;
mod schedules;
pub(crate) mod selectors;
pub(crate) mod status_conditions;
pub(crate) mod texts;

use crate::checks::{self, FieldErrors};
use crate::conditions::{Conditions, find, is_given, is_set};
use crate::paths::FieldPath;
use crate::warnings::{self, Warnings};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
pub(crate) use field::RuleRow;
use field::{CheckFn, Each, RuledField};
use std::collections::HashSet;

impl RuleRow {
    /// # Panics
    /// If the rule is unknown; the committed table is tested.
    pub(crate) fn parse(
        field: &'static str,
        when: &'static str,
        rule: &'static str,
        detail: &'static str,
    ) -> Self {
        let (field, place) = field.split_once('@').map_or((field, None), |(a, b)| (a, Some(b)));
        let (name, each) = match (field.strip_suffix("[]"), field.strip_suffix("{}")) {
            (Some(name), _) => (name, Each::Item),
            (_, Some(name)) => (name, Each::Key),
            _ => (field, Each::No),
        };
        let (word, argument) = rule.split_once(':').unwrap_or((rule, ""));
        let form =
            word.starts_with("form").then(|| checks::form(argument).expect("a known form: tested"));
        Self {
            place: place.unwrap_or(name),
            is_indexed: place.is_none(),
            path: name.split('.').filter(|part| !part.is_empty()).collect(),
            each,
            when: Conditions::parse(when.strip_prefix(GROWN).unwrap_or(when)),
            is_of_grown: when.starts_with(GROWN),
            check: match warnings::function(word) {
                Some(_) => |_, _| {},
                None => function(word).unwrap_or_else(|| panic!("no rule {rule:?}")),
            },
            word,
            argument,
            form,
            detail,
            names_key: word != "unique-item",
        }
    }

    /// The field and the items that it may have, if nothing else of a longer one is checked.
    pub(crate) fn bound(&self) -> Option<(&'static str, usize)> {
        let field = self.path.first().filter(|_| self.word == BOUND)?;
        Some((*field, self.argument.parse().ok()?))
    }

    /// Restricts a rule to lists within the bound of its field.
    pub(crate) fn restrict(&mut self, bounds: &[(&'static str, usize)]) {
        let is_own = |(field, _): &&(&'static str, usize)| self.path == [*field];
        if self.word != BOUND
            && let Some((field, most)) = bounds.iter().find(is_own).copied()
        {
            self.when.and_at_most(field, most);
        }
    }

    /// Fields of which the first one set is chosen.
    pub(crate) fn choices(&self) -> Vec<&'static str> {
        choices::order(self.word, self.argument)
    }

    /// Fields among these that are validated regardless of the choice.
    pub(crate) fn besides(&self) -> Vec<&'static str> {
        choices::besides(self.word)
    }

    /// Fields that are validated only if no other of them is given.
    pub(crate) fn exclusive(&self) -> Vec<&'static str> {
        choices::exclusive(self.word, self.argument)
    }

    /// Adds warnings for a field of an object at a path.
    pub(crate) fn warn(&self, object: &Map, path: FieldPath<'_>, out: &mut Warnings) {
        let Some(warn) = warnings::function(self.word).filter(|_| self.when.hold(object)) else {
            return;
        };
        let value = if self.path.is_empty() { None } else { find(object, &self.path) };
        let (start, rest) = path.placed(self.place);
        let below = start.field(rest);
        if self.each == Each::No {
            return warn(value, below, self.detail, out);
        }
        let items = value.and_then(Value::as_array).map_or(&[][..], |list| list.as_slice());
        for (at, item) in items.iter().enumerate().take(MAX_ITEMS) {
            warn(Some(item), below.index(at), self.detail, out);
        }
    }

    /// Checks the field of an object at a path.
    pub(crate) fn check(
        &self,
        object: &Map,
        old: Option<&Map>,
        path: FieldPath<'_>,
        errors: &mut FieldErrors,
    ) {
        if !self.when.hold(object) {
            return;
        }
        let value = if self.path.is_empty() { None } else { find(object, &self.path) };
        let is_second = |old: &Map| count(find(old, &self.path)) == 1 && count(value) == 2;
        if self.is_of_grown && old.is_some_and(|old| !is_second(old)) {
            return;
        }
        let (start, rest) = path.placed(self.place);
        let below = start.field(rest);
        let run = |value: Option<&Value>, path: FieldPath<'_>, errors: &mut FieldErrors| {
            (self.check)(&RuledField { rule: self, object, old, value, path }, errors);
        };
        match self.each {
            Each::No => run(value, below, errors),
            Each::Item => {
                let items = value.and_then(Value::as_array).map_or(&[][..], |list| list.as_slice());
                for (at, item) in items.iter().enumerate() {
                    if errors.is_full() {
                        return;
                    }
                    run(Some(item), if self.is_indexed { below.index(at) } else { below }, errors);
                }
            }
            Each::Key => {
                for (key, _) in value.and_then(Value::as_object).into_iter().flatten() {
                    if errors.is_full() {
                        return;
                    }
                    run(Some(&Value::from(key.as_str())), below, errors);
                }
            }
        }
    }
}

/// The first condition of a row that concerns new objects and lists that got their second item.
const GROWN: &str = "(grown)";
/// A rule on the length of a list or map, of which nothing else is checked if it is longer.
const BOUND: &str = "maxitems!";
/// Max list items checked for warnings.
const MAX_ITEMS: usize = 10_000;

fn count(list: Option<&Value>) -> usize {
    list.and_then(Value::as_array).map_or(0, |list| list.len())
}

fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "required" => |it, errors| {
            if it.set().is_none() {
                errors.required(it.path, it.detail(""));
            }
        },
        "filled" => |it, errors| {
            if it.set().is_none_or(|value| value.as_object().is_some_and(Map::is_empty)) {
                errors.required(it.path, it.detail(""));
            }
        },
        "given" => |it, errors| {
            if it.value.is_none_or(Value::is_null) {
                errors.required(it.path, it.detail(""));
            }
        },
        "absent" => |it, errors| errors.required(it.path, it.detail("")),
        "never" => |it, errors| match it.value {
            None if it.rule.path.is_empty() => {
                errors.invalid(it.path, Value::Object(it.object.clone()), it.detail(""));
            }
            None => errors.invalid(it.path, "", it.detail("")),
            value => errors.invalid(it.path, value, it.detail("")),
        },
        "never-empty" => |it, errors| errors.invalid(it.path, "", it.detail("")),
        "never-null" => |it, errors| errors.invalid(it.path, Value::Null, it.detail("")),
        "never-object" => |it, errors| {
            errors.invalid(it.path, Value::Object(it.object.clone()), it.detail(""));
        },
        "never-unshown" => {
            |it, errors| errors.push(|| FieldError::invalid_unshown(it.path, it.detail("")))
        }
        "forbidden-self" => |it, errors| errors.forbidden(it.path, it.detail("")),
        "forbidden" => |it, errors| {
            if it.given().is_some() {
                errors.forbidden(it.path, it.detail(""));
            }
        },
        "invalid" => |it, errors| {
            if let Some(value) = it.given() {
                errors.invalid(it.path, value, it.detail(""));
            }
        },
        word => return compared(word),
    })
}

/// Rules that compare with the stored object, or items with each other.
fn compared(word: &str) -> Option<CheckFn> {
    Some(match word {
        "immutable" => |it, errors| {
            if changed(it) {
                errors.invalid(it.path, it.value, it.detail("field is immutable"));
            }
        },
        // Of a text that Go has no null for.
        "immutable-text" => |it, errors| {
            if changed(it) {
                errors.invalid(it.path, it.text(), "field is immutable");
            }
        },
        "immutable-once" => |it, errors| {
            let was = it.old.and_then(|old| find(old, &it.rule.path));
            if was.is_some_and(is_given) && it.given().is_some() && changed(it) {
                errors.invalid(it.path, it.value, it.detail("field is immutable"));
            }
        },
        "immutable-forbidden" => |it, errors| {
            if changed(it) {
                errors.forbidden(it.path, it.detail(""));
            }
        },
        "maxitems" | BOUND => |it, errors| {
            let entries = it.value.and_then(Value::as_object).map_or(0, Map::len);
            let most = usize::try_from(it.bound()).unwrap_or_default();
            let items = it.items().len() + entries;
            if items > most {
                errors.push(|| FieldError::too_many(it.path, items, most));
            }
        },
        "unique" | "unique-portname" | "unique-item" | "unique-all" | "unique-label" => unique,
        "atmostitems" => |it, errors| {
            if it.items().len() > usize::try_from(it.bound()).unwrap_or_default() {
                errors.invalid(it.path, it.value, it.detail(""));
            }
        },
        "unique-here" => |it, errors| {
            let mut seen = HashSet::new();
            for text in it.items().iter().filter_map(Value::as_str) {
                if !seen.insert(text)
                    && !errors.is_full()
                    && let FieldPath::Field(parent, _) = it.path
                {
                    errors.duplicate(*parent, text);
                }
            }
        },
        "jsonobject" => |it, errors| {
            if it.given().is_some_and(|value| !value.is_object()) {
                errors.invalid(it.path, "<value omitted>", "must be a valid JSON object");
            }
        },
        "notblank" => |it, errors| {
            if it.value.and_then(Value::as_str).is_some_and(str::is_empty) {
                errors.required(it.path, it.detail(""));
            }
        },
        "notblank-new" => |it, errors| {
            if it.old.is_none() && it.value.and_then(Value::as_str) == Some("") {
                errors.required(it.path, it.detail(""));
            }
        },
        "never-true" => |it, errors| errors.invalid(it.path, true, it.detail("")),
        "nosysadmin" => |it, errors| {
            let added = find(it.object, &["capabilities", "add"]).and_then(Value::as_array);
            let mut added = added.into_iter().flat_map(|list| list.iter());
            if added.any(|capability| capability.as_str() == Some("CAP_SYS_ADMIN")) {
                errors.invalid(it.path, Value::Object(it.object.clone()), it.detail(""));
            }
        },
        "never-resource" => |it, errors| errors.invalid(it.path, "resource", it.detail("")),
        "only" => |it, errors| {
            // Of the numbers in metadata, this one may be given as 0.
            const GRACE: &str = "deletionGracePeriodSeconds";
            let is_given =
                |field: &str, value: &Value| is_set(value) || field == GRACE && !value.is_null();
            let fields = it.value.and_then(Value::as_object).into_iter().flatten();
            for (field, _) in fields.filter(|(field, value)| is_given(field, value)) {
                if !it.names().any(|name| name == field.as_str()) {
                    // As Go spells the fields of metadata.
                    let shown = if field == "uid" { "uID" } else { field };
                    errors.forbidden(it.path.field(shown), it.detail("cannot be set"));
                }
            }
        },
        _ => return by_subject(word),
    })
}

fn by_subject(word: &str) -> Option<CheckFn> {
    numbers::function(word)
        .or_else(|| references::function(word))
        .or_else(|| selectors::function(word))
        .or_else(|| texts::function(word))
        .or_else(|| addresses::function(word))
        .or_else(|| devices::function(word))
        .or_else(|| schedules::function(word))
        .or_else(|| status_conditions::function(word))
        .or_else(|| choices::function(word))
}

/// Whether an update changes the field.
fn changed(it: &RuledField<'_>) -> bool {
    it.old.is_some_and(|old| !same(find(old, &it.rule.path), it.value))
}

/// Whether two values are equal; null and an empty list are as good as none. Of what an object
/// holds besides, zero values are given: those of fields that cannot be none are dropped when it is
/// decoded.
pub(crate) fn same(one: Option<&Value>, other: Option<&Value>) -> bool {
    is_kept(one, other, is_none)
}

/// [`same`] for a new object that lacks the fields that are always written, while they are zero.
pub(crate) fn same_before_completion(old: Option<&Value>, new: Option<&Value>) -> bool {
    is_kept(old, new, is_zero)
}

/// Whether nothing was changed; `may_go` tells which values of the old one may be missing.
fn is_kept(old: Option<&Value>, new: Option<&Value>, may_go: fn(&Value) -> bool) -> bool {
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            old.iter().all(|(name, value)| is_kept(Some(value), new.get(name), may_go))
                && new.iter().all(|(name, value)| old.contains_key(name) || is_none(value))
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            let mut pairs = old.iter().zip(new.iter());
            old.as_slice().len() == new.as_slice().len()
                && pairs.all(|(old, new)| is_kept(Some(old), Some(new), may_go))
        }
        (Some(old), Some(new)) => old == new || (is_none(old) && is_none(new)),
        (None, new) => new.is_none_or(is_none),
        (Some(old), None) => may_go(old),
    }
}

fn is_none(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.as_slice().is_empty(),
        _ => false,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_zero),
        value => !is_set(value),
    }
}

fn unique(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let key = it.rule.argument;
    let (mut seen, nothing) = (HashSet::new(), Value::from(""));
    for (at, item) in it.items().iter().enumerate() {
        let value = if key.is_empty() { item } else { item.get(key).unwrap_or(&nothing) };
        let text = match value {
            Value::String(text) => text.to_string(),
            Value::Null => continue,
            other => other.to_string(),
        };
        if errors.is_full() {
            return;
        }
        let counts = match it.rule.word {
            "unique" | "unique-label" => !text.is_empty(),
            // A name that is none is not compared.
            "unique-portname" => checks::port_name(&text).is_empty(),
            _ => true,
        };
        if !counts {
            continue;
        }
        let list_item = it.path.index(at);
        let place = list_item.field(if it.rule.names_key { key } else { "" });
        if seen.contains(&text) {
            errors.duplicate(place, value);
            continue;
        }
        if it.rule.word == "unique-label" {
            errors.all_invalid(place, &text, name::dns1123_label(&text));
        }
        seen.insert(text);
    }
}
