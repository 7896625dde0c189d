//! Label and field selectors: parsed once, bounded, matched against pairs.

/// A parsed label selector; the empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// All must hold.
    pub requirements: Vec<LabelRequirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// What must hold for it.
    pub operator: LabelOperator,
}

/// What a requirement asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelOperator {
    /// `k`
    Exists,
    /// `!k`
    DoesNotExist,
    /// `k=v`, `k==v`, `k in (v, w)`
    In(Vec<String>),
    /// `k!=v`, `k notin (v, w)`; also holds without the label.
    NotIn(Vec<String>),
    /// `k>1`: holds when both are integers.
    GreaterThan(i64),
    /// `k<1`
    LessThan(i64),
}

/// Why a selector is refused.
#[derive(Debug, thiserror::Error)]
#[error("unable to parse the selector: {0}")]
pub struct SelectorError(pub String);

impl LabelSelector {
    /// Parses the query form (`a=b,c in (d,e),!f`).
    ///
    /// # Errors
    /// A malformed selector, key or value, or more than 1,000 terms.
    pub fn parse(_text: &str) -> Result<Self, SelectorError> {
        unimplemented!("apimachinery owner")
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object with these labels is selected; `get` looks one label up.
    pub fn matches<'a>(&self, _get: impl Fn(&str) -> Option<&'a str>) -> bool {
        unimplemented!("apimachinery owner")
    }
}

/// A parsed field selector: exact matches only, as the API defines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// All must hold.
    pub terms: Vec<FieldTerm>,
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// Such as `metadata.name`.
    pub field: String,
    /// The value.
    pub value: String,
    /// `!=` instead of `=`.
    pub negated: bool,
}

impl FieldSelector {
    /// Parses the query form (`a=b,c!=d`, with `\` escapes).
    ///
    /// # Errors
    /// A malformed selector or more than 1,000 terms.
    pub fn parse(_text: &str) -> Result<Self, SelectorError> {
        unimplemented!("apimachinery owner")
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether an object is selected; `get` gives a declared field's value (`""` when the object has none).
    pub fn matches<'a>(&self, _get: impl Fn(&str) -> &'a str) -> bool {
        unimplemented!("apimachinery owner")
    }

    /// The value that `field` must have, if an `=` term asks for one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| !term.negated && term.field == field).map(|term| term.value.as_str())
    }
}
