//! Value validations as data.

use crate::pattern::{Expression, StepsExhausted, compile, compile_within};
use crate::schema::Node;
use ferrokube_apimachinery::document::{Number, Value};
use std::sync::{Arc, OnceLock};

/// Value validations of a node, loaded from a custom resource's schema.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// `minimum`
    pub minimum: Option<Number>,
    /// `exclusiveMinimum`
    pub exclusive_minimum: bool,
    /// `maximum`
    pub maximum: Option<Number>,
    /// `exclusiveMaximum`
    pub exclusive_maximum: bool,
    /// `multipleOf`
    pub multiple_of: Option<Number>,
    /// `minLength`, in characters
    pub min_length: Option<u64>,
    /// `maxLength`, in characters
    pub max_length: Option<u64>,
    /// `pattern`
    pub pattern: Option<Pattern>,
    /// `minItems`
    pub min_items: Option<u64>,
    /// `maxItems`
    pub max_items: Option<u64>,
    /// `minProperties`
    pub min_properties: Option<u64>,
    /// `maxProperties`
    pub max_properties: Option<u64>,
    /// Required fields that are not declared properties of this node.
    pub required: Vec<Arc<str>>,
    /// `allOf`
    pub all_of: Vec<Node>,
    /// `anyOf`
    pub any_of: Vec<Node>,
    /// `oneOf`
    pub one_of: Vec<Node>,
    /// `not`
    pub not: Option<Node>,
    /// `additionalProperties: false`
    pub closed: bool,
    /// The root's schemas for `metadata.name` and `metadata.generateName`.
    pub metadata: Option<Node>,
    /// `x-kubernetes-validations`, as given.
    pub rules: Vec<Value>,
}

/// A regular expression, compiled on first use.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Arc<str>,
    expression: OnceLock<Option<Expression>>,
}

impl Pattern {
    /// Charges the compiled size to `room`.
    ///
    /// # Errors
    /// The text is not a regular expression, or compiles to too much.
    pub fn new(text: &str, room: &mut usize) -> Result<Self, String> {
        compile_within(text, room)?;
        Ok(Self { text: text.into(), expression: OnceLock::new() })
    }

    /// The pattern as given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches anywhere in a text. Charges long searches to `steps`.
    ///
    /// # Errors
    /// The steps are used up.
    pub fn matches(&self, text: &str, steps: &mut u64) -> Result<bool, StepsExhausted> {
        match self.expression.get_or_init(|| compile(&self.text).ok()) {
            Some(expression) => expression.is_match(text, steps),
            None => Ok(true),
        }
    }
}

impl Checks {
    /// Whether there are no checks.
    pub fn is_empty(&self) -> bool {
        let counts = [
            self.min_length,
            self.max_length,
            self.min_items,
            self.max_items,
            self.min_properties,
            self.max_properties,
        ];
        let numbers = [&self.minimum, &self.maximum, &self.multiple_of];
        let flags = [self.exclusive_minimum, self.exclusive_maximum, self.closed];
        let nothing = counts.iter().all(Option::is_none)
            && numbers.iter().all(|number| number.is_none())
            && !flags.contains(&true);
        nothing
            && self.pattern.is_none()
            && self.metadata.is_none()
            && self.required.is_empty()
            && self.rules.is_empty()
            && !self.composes()
    }

    /// Whether there are compositions.
    pub(super) fn composes(&self) -> bool {
        self.not.is_some()
            || [&self.all_of, &self.any_of, &self.one_of].iter().any(|nodes| !nodes.is_empty())
    }
}
