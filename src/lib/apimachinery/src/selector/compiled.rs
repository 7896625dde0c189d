//! A label selector compiled for matching many objects.
//!
//! The cost of a match depends on the object's labels, hardly on the terms: requirements are merged
//! by key, and each label is looked up among the keys. Only requirements that need their label are
//! counted; whether others hold without it is constant.

use super::label::is_among;
use super::{LabelOperator, LabelSelector};
use crate::json::scan;
use crate::work;
use std::ops::Range;

/// A compiled [`LabelSelector`]. A watch keeps it, so its strings share an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledLabels {
    /// All keys and values.
    text: Box<str>,
    /// Sorted by key.
    rules: Box<[Rule]>,
    /// Values of all rules; contiguous and sorted for each rule.
    values: Box<[TextRange]>,
    /// Number of requirements that need their label.
    needed: usize,
    /// Whether the requirements contradict each other.
    is_never: bool,
}

/// A range of the shared string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextRange {
    at: u32,
    length: u32,
}

/// All requirements on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    key: TextRange,
    /// Whether the label must exist; otherwise the rest applies if it does.
    is_needed: bool,
    /// Whether the label must not exist.
    is_forbidden: bool,
    /// Allowed values, if limited.
    allowed: Option<Range<u32>>,
    /// Excluded values.
    denied: Range<u32>,
    /// An integer above this one.
    above: Option<i64>,
    /// An integer below this one.
    below: Option<i64>,
}

impl CompiledLabels {
    /// Compiles a selector.
    pub fn new(selector: &LabelSelector) -> Self {
        let mut requirements: Vec<_> = selector.requirements.iter().collect();
        requirements.sort_by(|one, other| one.key.cmp(&other.key));
        let mut parts = CompilerState::default();
        let mut rules = Vec::new();
        for same in requirements.chunk_by(|one, other| one.key == other.key) {
            rules.push(
                parts.rule(&same[0].key, same.iter().map(|requirement| &requirement.operator)),
            );
        }
        let needed = rules.iter().filter(|rule| rule.is_needed).count();
        let is_never = rules.iter().any(|rule| {
            rule.is_needed
                && (rule.is_forbidden || rule.allowed.as_ref().is_some_and(Range::is_empty))
        });
        Self {
            text: parts.text.into(),
            rules: rules.into(),
            values: parts.values.into(),
            needed,
            is_never,
        }
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether an object matches, by canonical bytes that start with its labels object
    /// ([`crate::json::forms::labels`]); with the number of labels inspected.
    pub fn matches(&self, labels: Option<&[u8]>) -> (bool, usize) {
        if self.is_never || self.rules.is_empty() {
            return (!self.is_never, 0);
        }
        let (mut met, mut found, mut seen) = (0, 0, 0);
        for (key, value) in labels.into_iter().flat_map(scan::labels) {
            work::count(1);
            seen += 1;
            let Ok(at) = self.rules.binary_search_by(|rule| self.text(rule.key).cmp(&key)) else {
                continue;
            };
            let rule = &self.rules[at];
            if !self.holds(rule, &value) {
                return (false, seen);
            }
            met += usize::from(rule.is_needed);
            found += 1;
            if found == self.rules.len() {
                break;
            }
        }
        (met == self.needed, seen)
    }

    fn text(&self, span: TextRange) -> &str {
        &self.text[span.at as usize..(span.at + span.length) as usize]
    }

    fn holds(&self, rule: &Rule, value: &str) -> bool {
        let is_among = |range: &Range<u32>| {
            let values = &self.values[range.start as usize..range.end as usize];
            values.binary_search_by(|one| self.text(*one).cmp(value)).is_ok()
        };
        !rule.is_forbidden
            && rule.allowed.as_ref().is_none_or(is_among)
            && !is_among(&rule.denied)
            && (rule.above.is_none() && rule.below.is_none()
                || value.parse().is_ok_and(|number| rule.is_between(number)))
    }
}

impl Rule {
    fn is_between(&self, number: i64) -> bool {
        self.above.is_none_or(|above| number > above)
            && self.below.is_none_or(|below| number < below)
    }
}

/// Parts of a selector being compiled.
#[derive(Default)]
struct CompilerState {
    text: String,
    values: Vec<TextRange>,
}

impl CompilerState {
    fn rule<'a>(&mut self, key: &str, operators: impl Iterator<Item = &'a LabelOperator>) -> Rule {
        let key = self.put(key);
        let (mut is_needed, mut is_forbidden) = (false, false);
        let (mut above, mut below): (Option<i64>, Option<i64>) = (None, None);
        let (mut allowed, mut denied): (Option<Vec<&str>>, Vec<&str>) = (None, Vec::new());
        for operator in operators {
            is_needed |= !matches!(operator, LabelOperator::DoesNotExist | LabelOperator::NotIn(_));
            match operator {
                LabelOperator::Exists => {}
                LabelOperator::DoesNotExist => is_forbidden = true,
                LabelOperator::In(values) => match &mut allowed {
                    None => allowed = Some(values.iter().map(String::as_str).collect()),
                    Some(before) => {
                        work::count(before.len());
                        before.retain(|value| is_among(values, value));
                    }
                },
                LabelOperator::NotIn(values) => denied.extend(values.iter().map(String::as_str)),
                LabelOperator::GreaterThan(bound) => above = above.max(Some(*bound)),
                LabelOperator::LessThan(bound) => {
                    below = Some(below.map_or(*bound, |before| before.min(*bound)))
                }
            }
        }
        Rule {
            key,
            is_needed,
            is_forbidden,
            allowed: allowed.map(|values| self.put_all(values)),
            denied: self.put_all(denied),
            above,
            below,
        }
    }

    fn put_all(&mut self, mut values: Vec<&str>) -> Range<u32> {
        work::count(values.len());
        values.sort_unstable();
        values.dedup();
        let start = position(self.values.len());
        for value in values {
            let value = self.put(value);
            self.values.push(value);
        }
        start..position(self.values.len())
    }

    fn put(&mut self, text: &str) -> TextRange {
        let span = TextRange { at: position(self.text.len()), length: position(text.len()) };
        self.text.push_str(text);
        span
    }
}

/// Selectors are bounded far below u32.
fn position(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Map, Value};
    use crate::json;
    use proptest::prelude::*;

    fn compiled(text: &str) -> CompiledLabels {
        CompiledLabels::new(&LabelSelector::parse(text).expect("a selector"))
    }

    #[test]
    fn the_cost_of_a_match_depends_on_the_labels() {
        let terms: Vec<String> = (0..1000).map(|number| format!("k{number}!=v")).collect();
        let selector = compiled(&terms.join(","));
        assert_eq!(selector.matches(None), (true, 0));
        assert_eq!(selector.matches(Some(br#"{"a":"b","k7":"w"}"#)), (true, 2));
        assert_eq!(selector.matches(Some(br#"{"a":"b","k7":"v","z":"z"}"#)), (false, 2));
        let values: Vec<String> = (0..1000).map(|number| format!("k!=v{number}")).collect();
        assert_eq!(compiled(&values.join(",")).rules.len(), 1, "requirements on one label are one");
    }

    #[test]
    fn impossible_selectors_cost_nothing() {
        for text in ["a,!a", "a=b,a=c", "a in (b,c),a in (d)"] {
            assert_eq!(compiled(text).matches(Some(br#"{"a":"b"}"#)), (false, 0), "{text}");
        }
        assert_eq!(CompiledLabels::new(&LabelSelector::nothing()).matches(None), (false, 0));
        assert_eq!(CompiledLabels::default().matches(None), (true, 0));
    }

    proptest! {
        #[test]
        fn agrees_with_the_selector_itself(terms in proptest::collection::vec("!?[abc]|[abc](=|!=)[012]?|[abc] (in|notin) \\([012](,[012]){0,2}\\)|[abc][<>][012]", 1..6),
            labels in proptest::collection::btree_map("[abcd]", "[0123]?", 0..4)) {
            let Ok(selector) = LabelSelector::parse(&terms.join(",")) else { return Ok(()) };
            let labels = Value::Object(labels.into_iter().map(|(key, value)| (key, Value::from(value))).collect::<Map>());
            let bytes = json::to_vec(&labels);
            prop_assert_eq!(CompiledLabels::new(&selector).matches(Some(&bytes)).0, selector.matches_value(Some(&labels)), "{} {}", selector, labels);
        }
    }
}
