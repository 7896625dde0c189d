//! A row of the rules, and the field that it checks.

use crate::checks::{FieldErrors, TextForm};
use crate::conditions::{Conditions, is_given, is_set};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, Shown};

/// A check of one field.
#[derive(Clone, Debug)]
pub(crate) struct RuleRow {
    /// Where errors place it: [`FieldPath::placed`].
    pub(super) place: &'static str,
    pub(super) is_indexed: bool,
    pub(super) path: Vec<&'static str>,
    /// Whether it checks each item (`[]`) or each key (`{}`) instead.
    pub(super) each: Each,
    pub(super) when: Conditions,
    /// Whether it holds of new objects, and of a list that got its second item, alone: `(grown)`
    /// before the conditions.
    pub(super) is_of_grown: bool,
    pub(super) word: &'static str,
    pub(super) check: CheckFn,
    pub(super) argument: &'static str,
    pub(super) form: Option<TextForm>,
    pub(super) detail: &'static str,
    /// Whether the error about a repeated item names the field that is the same.
    pub(super) names_key: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Each {
    No,
    Item,
    Key,
}

/// Appends errors if a field breaks a rule.
pub(super) type CheckFn = fn(&RuledField<'_>, &mut FieldErrors);

/// The field that a rule checks.
pub(super) struct RuledField<'a> {
    pub(super) rule: &'a RuleRow,
    /// The object that has the field.
    pub(super) object: &'a Map,
    pub(super) old: Option<&'a Map>,
    /// The field's value; `None` for rules on the object itself.
    pub(super) value: Option<&'a Value>,
    pub(super) path: FieldPath<'a>,
}

impl RuledField<'_> {
    /// The value if it is set.
    pub(super) fn set(&self) -> Option<&Value> {
        self.value.filter(|value| is_set(value))
    }

    /// The value if it was given.
    pub(super) fn given(&self) -> Option<&Value> {
        self.value.filter(|value| is_given(value))
    }

    pub(super) fn text(&self) -> &str {
        self.value.and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    pub(super) fn items(&self) -> &[Value] {
        self.value.and_then(Value::as_array).map_or(&[], |list| list.as_slice())
    }

    /// The row's message, or the usual one.
    pub(super) fn detail<'b>(&'b self, usual: &'b str) -> &'b str {
        if self.rule.detail.is_empty() { usual } else { self.rule.detail }
    }

    /// Names in the argument.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.rule.argument.split(',')
    }

    /// The number in the argument.
    pub(super) fn bound(&self) -> i64 {
        self.rule.argument.parse().unwrap_or_default()
    }

    /// The value of another field, 0 if unset.
    pub(super) fn other(&self) -> i64 {
        self.object.get(self.rule.argument).and_then(Value::as_i64).unwrap_or_default()
    }
}

/// Values as shown in a message.
pub(super) fn listed(it: &RuledField<'_>, shown: impl Shown, errors: &mut FieldErrors) {
    errors.push(|| FieldError::not_supported(it.path, shown, it.names()));
}
