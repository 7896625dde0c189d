//! Label selectors: the query form, the object form (`matchLabels`, `matchExpressions`) and
//! matching.

use super::lexer::{Lexer, SelectorToken};
use super::{MAX_TERMS, MAX_VALUES, SelectorError};
use crate::document::Value;
use crate::field::quote;
use crate::name;
use crate::work;
use std::fmt;

/// A parsed label selector; the empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// All must hold.
    pub requirements: Vec<LabelRequirement>,
}

/// One of the terms that a comma separates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    /// Label key.
    pub key: String,
    /// Condition on its value.
    pub operator: LabelOperator,
}

/// Condition of a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelOperator {
    /// `k`
    Exists,
    /// `!k`
    DoesNotExist,
    /// `k=v`, `k==v`, `k in (v, w)`; sorted.
    In(Vec<String>),
    /// `k!=v`, `k notin (v, w)`; sorted; also holds without the label.
    NotIn(Vec<String>),
    /// `k>1`: holds when both are integers.
    GreaterThan(i64),
    /// `k<1`
    LessThan(i64),
}

impl LabelSelector {
    /// Parses the query form (`a=b,c in (d,e),!f`).
    ///
    /// # Errors
    /// A malformed selector, key or value, or more than 1,000 terms.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        SelectorParser { lexer: Lexer::new(text), values: 0 }.selector()
    }

    /// Object form, a `metav1.LabelSelector`. Null matches nothing, an empty object everything.
    ///
    /// # Errors
    /// Another type, an unknown operator, a malformed key or value, or more than 1,000 terms.
    pub fn from_document(value: &Value) -> Result<Self, SelectorError> {
        let selector = match value {
            Value::Null => return Ok(Self::nothing()),
            Value::Object(selector) => selector,
            _ => return Err(refuse("a label selector must be an object")),
        };
        let mut requirements = Vec::new();
        match selector.get("matchLabels") {
            None | Some(Value::Null) => {}
            Some(Value::Object(labels)) => {
                for (key, value) in labels {
                    let value =
                        value.as_str().ok_or_else(|| refuse("matchLabels must hold strings"))?;
                    requirements.push(LabelRequirement::new(
                        key,
                        LabelOperator::In(vec![value.to_owned()]),
                    )?);
                }
            }
            Some(_) => return Err(refuse("matchLabels must be an object")),
        }
        match selector.get("matchExpressions") {
            None | Some(Value::Null) => {}
            Some(Value::Array(expressions)) => {
                for expression in expressions {
                    requirements.push(from_expression(expression)?);
                }
            }
            Some(_) => return Err(refuse("matchExpressions must be a list")),
        }
        Self { requirements }.bounded()
    }

    /// A selector that matches no object.
    pub fn nothing() -> Self {
        Self {
            requirements: vec![LabelRequirement {
                key: String::new(),
                operator: LabelOperator::In(Vec::new()),
            }],
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these labels matches; `get` looks one up.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| {
            work::count(1);
            requirement.operator.holds(get(&requirement.key))
        })
    }

    /// Whether an object with these labels matches: the value of `metadata.labels`, missing or null
    /// for none.
    pub fn matches_value(&self, labels: Option<&Value>) -> bool {
        self.matches(|key| labels?.get(key)?.as_str())
    }

    /// Sorts by key, and enforces the limits.
    fn bounded(mut self) -> Result<Self, SelectorError> {
        let values: usize =
            self.requirements.iter().map(|requirement| requirement.operator.values().len()).sum();
        if self.requirements.len() > MAX_TERMS || values > MAX_VALUES {
            return Err(too_many());
        }
        self.requirements.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(self)
    }
}

impl LabelRequirement {
    /// Validates key and values, and sorts the values.
    ///
    /// # Errors
    /// An invalid key or value, or no value where one is required.
    pub fn new(key: &str, operator: LabelOperator) -> Result<Self, SelectorError> {
        check_key(key)?;
        let operator = match operator {
            LabelOperator::In(values) => LabelOperator::In(checked_values(key, values)?),
            LabelOperator::NotIn(values) => LabelOperator::NotIn(checked_values(key, values)?),
            other => other,
        };
        Ok(Self { key: key.to_owned(), operator })
    }
}

impl LabelOperator {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::In(values) => value.is_some_and(|value| is_among(values, value)),
            Self::NotIn(values) => value.is_none_or(|value| !is_among(values, value)),
            Self::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Self::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }

    fn values(&self) -> &[String] {
        match self {
            Self::In(values) | Self::NotIn(values) => values,
            _ => &[],
        }
    }
}

/// Binary search among sorted values.
pub(super) fn is_among(values: &[String], value: &str) -> bool {
    values.binary_search_by(|one| one.as_str().cmp(value)).is_ok()
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.operator {
            LabelOperator::Exists => f.write_str(key),
            LabelOperator::DoesNotExist => write!(f, "!{key}"),
            LabelOperator::In(values) => match values.as_slice() {
                [value] => write!(f, "{key}={value}"),
                values => write!(f, "{key} in ({})", values.join(",")),
            },
            LabelOperator::NotIn(values) => match values.as_slice() {
                [value] => write!(f, "{key}!={value}"),
                values => write!(f, "{key} notin ({})", values.join(",")),
            },
            LabelOperator::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            LabelOperator::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

impl std::str::FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

fn refuse(why: impl Into<String>) -> SelectorError {
    SelectorError(why.into())
}

fn too_many() -> SelectorError {
    refuse(format!("more than {MAX_TERMS} requirements or {MAX_VALUES} values"))
}

fn unexpected(found: SelectorToken<'_>, wanted: &str) -> SelectorError {
    refuse(format!("found '{}', expected: {wanted}", shorten(found.text())))
}

/// Truncates a client's text for messages.
fn shorten(text: &str) -> String {
    const SHOWN: usize = 1024;
    if text.chars().count() <= SHOWN {
        text.to_owned()
    } else {
        text.chars().take(SHOWN).chain("...".chars()).collect()
    }
}

fn check_key(key: &str) -> Result<(), SelectorError> {
    let errors = name::qualified_name(key);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(refuse(format!(
            "<nil>: Invalid value: {}: {}",
            quote(&shorten(key)),
            errors.join("; ")
        )))
    }
}

/// Sorts and deduplicates the values.
fn checked_values(key: &str, mut values: Vec<String>) -> Result<Vec<String>, SelectorError> {
    if values.is_empty() {
        return Err(refuse(format!("the requirement on \"{}\" needs a value", shorten(key))));
    }
    work::count(values.len());
    values.sort_unstable();
    values.dedup();
    match values.iter().enumerate().find_map(|(index, value)| malformed_value(key, index, value)) {
        Some(why) => Err(refuse(why)),
        None => Ok(values),
    }
}

fn malformed_value(key: &str, index: usize, value: &str) -> Option<String> {
    let errors = name::label_value(value);
    (!errors.is_empty()).then(|| {
        format!(
            "values[{index}][{}]: Invalid value: {}: {}",
            shorten(key),
            quote(&shorten(value)),
            errors.join("; ")
        )
    })
}

fn from_expression(expression: &Value) -> Result<LabelRequirement, SelectorError> {
    let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or_default();
    let values = match expression.get("values") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => {
            let strings: Option<Vec<String>> =
                values.iter().map(|value| value.as_str().map(str::to_owned)).collect();
            strings.ok_or_else(|| refuse("values must be strings"))?
        }
        Some(_) => return Err(refuse("values must be a list")),
    };
    let operator = match text("operator") {
        "In" => LabelOperator::In(values),
        "NotIn" => LabelOperator::NotIn(values),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            return Err(refuse("Exists and DoesNotExist take no values"));
        }
        "Exists" => LabelOperator::Exists,
        "DoesNotExist" => LabelOperator::DoesNotExist,
        other => {
            return Err(refuse(format!("\"{}\" is not a label selector operator", shorten(other))));
        }
    };
    LabelRequirement::new(text("key"), operator)
}

struct SelectorParser<'a> {
    lexer: Lexer<'a>,
    values: usize,
}

impl SelectorParser<'_> {
    fn selector(mut self) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        match self.lexer.peek() {
            SelectorToken::End => return Ok(LabelSelector::default()),
            SelectorToken::Word(_) | SelectorToken::Not => {}
            other => return Err(unexpected(other, "!, identifier, or 'end of string'")),
        }
        loop {
            let requirement = self
                .requirement()
                .map_err(|error| refuse(format!("unable to parse requirement: {error}")))?;
            requirements.push(requirement);
            if requirements.len() > MAX_TERMS {
                return Err(too_many());
            }
            match self.lexer.next() {
                SelectorToken::End => return LabelSelector { requirements }.bounded(),
                SelectorToken::Comma => {}
                other => return Err(unexpected(other, "',' or 'end of string'")),
            }
            match self.lexer.peek() {
                SelectorToken::Word(_) | SelectorToken::Not => {}
                other => return Err(unexpected(other, "identifier after ','")),
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        let negated = self.lexer.peek() == SelectorToken::Not;
        if negated {
            self.lexer.next();
        }
        let key = match self.lexer.next() {
            SelectorToken::Word(word) => word,
            other => return Err(unexpected(other, "identifier")),
        };
        check_key(key)?;
        let operator = match self.lexer.peek() {
            _ if negated => LabelOperator::DoesNotExist,
            SelectorToken::End | SelectorToken::Comma => LabelOperator::Exists,
            _ => self.operator(key)?,
        };
        LabelRequirement::new(key, operator)
    }

    fn operator(&mut self, key: &str) -> Result<LabelOperator, SelectorError> {
        Ok(match self.lexer.next() {
            SelectorToken::Equals | SelectorToken::DoubleEquals => {
                LabelOperator::In(vec![self.exact_value()?])
            }
            SelectorToken::NotEquals => LabelOperator::NotIn(vec![self.exact_value()?]),
            SelectorToken::Greater => LabelOperator::GreaterThan(self.integer(key)?),
            SelectorToken::Less => LabelOperator::LessThan(self.integer(key)?),
            SelectorToken::Word("in") => LabelOperator::In(self.value_set()?),
            SelectorToken::Word("notin") => LabelOperator::NotIn(self.value_set()?),
            other => return Err(unexpected(other, "in, notin, =, ==, !=, gt, lt")),
        })
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.lexer.peek(), SelectorToken::End | SelectorToken::Comma) {
            return Ok(String::new());
        }
        match self.lexer.next() {
            SelectorToken::Word(word) => Ok(word.to_owned()),
            other => Err(unexpected(other, "identifier")),
        }
    }

    fn integer(&mut self, key: &str) -> Result<i64, SelectorError> {
        let text = self.exact_value()?;
        // A label value has no sign.
        let digits = text.starts_with(|first: char| first.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(|| {
            let no_integer = format!("values[0]: Invalid value: {}: for 'Gt', 'Lt' operators, the value must be an integer", quote(&shorten(&text)));
            match malformed_value(key, 0, &text) {
                None => refuse(no_integer),
                Some(malformed) => refuse(format!("[{no_integer}, {malformed}]")),
            }
        })
    }

    /// `(a, b)`: nothing between commas is the empty value.
    fn value_set(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.lexer.next() {
            SelectorToken::Open => {}
            other => {
                return Err(refuse(format!("found '{}' expected: '('", shorten(other.text()))));
            }
        }
        if !matches!(
            self.lexer.peek(),
            SelectorToken::Word(_) | SelectorToken::Comma | SelectorToken::Close
        ) {
            return Err(unexpected(self.lexer.peek(), "',', ')' or identifier"));
        }
        let mut values = Vec::new();
        loop {
            let word = match self.lexer.peek() {
                SelectorToken::Word(word) => {
                    self.lexer.next();
                    word
                }
                _ => "",
            };
            self.values += 1;
            if self.values > MAX_VALUES {
                return Err(too_many());
            }
            values.push(word.to_owned());
            match self.lexer.next() {
                SelectorToken::Comma => {}
                SelectorToken::Close => return Ok(values),
                other => {
                    return Err(unexpected(
                        other,
                        if word.is_empty() { "',', or identifier" } else { "',' or ')'" },
                    ));
                }
            }
        }
    }
}
