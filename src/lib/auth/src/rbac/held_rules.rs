//! Compares the rules that a user holds with the rules that it wants to grant.

use super::rule::{PolicyRule, path_matches, text_cost};
use ferrokube_apimachinery::work;
use std::cell::OnceCell;
use std::collections::HashSet;

/// Max lookups of one check: about half a second. One of a long word counts as several.
pub(super) const MAX_LOOKUPS: usize = 20_000_000;

/// Max rules of a user that are compared, and words of them in sets: about 35 MB. Who may write
/// roles in a namespace makes them large, and binds whom it likes.
const MAX_RULES: usize = 50_000;
const MAX_WORDS: usize = 500_000;

/// The cost of a set insertion, in lookups.
const SET_INSERT_COST: usize = 4;

/// A user's rules with their words in lazily built sets, so that the cost of a comparison depends
/// on the wanted rule alone. Building a set is charged as well.
pub(crate) struct HeldRules<'a> {
    rules: Vec<(&'a PolicyRule, OnceCell<Words<'a>>)>,
    /// Whether the user holds more rules than these.
    has_more: bool,
    /// Lookups.
    left: usize,
    /// Words that still fit into sets.
    room: usize,
}

/// Stands for a rule that is too large to index.
static EMPTY_RULE: PolicyRule = PolicyRule {
    verbs: Vec::new(),
    groups: Vec::new(),
    resources: Vec::new(),
    names: Vec::new(),
    urls: Vec::new(),
};

struct Words<'a> {
    verbs: HashSet<&'a str>,
    groups: HashSet<&'a str>,
    resources: HashSet<&'a str>,
    names: HashSet<&'a str>,
    urls: HashSet<&'a str>,
    /// Paths that end with `*`.
    url_patterns: Vec<&'a str>,
}

impl<'a> HeldRules<'a> {
    pub(crate) fn new(rules: impl IntoIterator<Item = &'a PolicyRule>) -> Self {
        let mut all = rules.into_iter();
        let rules = all.by_ref().take(MAX_RULES).map(|rule| (rule, OnceCell::new())).collect();
        Self { rules, has_more: all.next().is_some(), left: MAX_LOOKUPS, room: MAX_WORDS }
    }

    /// Whether a single held rule covers all of `wanted`; `None` if finding out takes too many
    /// lookups, or too much memory.
    pub(crate) fn cover(&mut self, wanted: &PolicyRule) -> Option<bool> {
        let Self { rules, has_more, left, room } = self;
        let covered = rules.iter().any(|(rule, words)| {
            work::breathe();
            *left > 0 && words.get_or_init(|| Words::of(rule, left, room)).covers(wanted, left)
        });
        (*left > 0 && (covered || !*has_more)).then_some(covered)
    }
}

fn charge(lookups: usize, left: &mut usize) {
    work::count(lookups);
    *left = left.saturating_sub(lookups);
}

fn covers_words(wanted: &[String], held: &HashSet<&str>, left: &mut usize) -> bool {
    charge(1, left);
    held.contains("*")
        || wanted.iter().all(|word| {
            charge(text_cost(word), left);
            held.contains(word.as_str())
        })
}

impl<'a> Words<'a> {
    /// Empty, and no lookups are left, if there are too few or there is no room.
    fn of(rule: &'a PolicyRule, left: &mut usize, room: &mut usize) -> Self {
        let (words, cost) = (rule.texts(), SET_INSERT_COST * rule.texts());
        let rule = if cost < *left && words <= *room {
            charge(cost, left);
            *room -= words;
            rule
        } else {
            *left = 0;
            &EMPTY_RULE
        };
        let set = |words: &'a [String]| words.iter().map(String::as_str).collect();
        let url_patterns =
            rule.urls.iter().map(String::as_str).filter(|url| url.ends_with('*')).collect();
        Self {
            verbs: set(&rule.verbs),
            groups: set(&rule.groups),
            resources: set(&rule.resources),
            names: set(&rule.names),
            urls: set(&rule.urls),
            url_patterns,
        }
    }

    fn covers(&self, wanted: &PolicyRule, left: &mut usize) -> bool {
        if !covers_words(&wanted.verbs, &self.verbs, left)
            || !wanted.urls.iter().all(|url| self.covers_url(url, left))
        {
            return false;
        }
        if wanted.resources.is_empty() {
            return true;
        }
        covers_words(&wanted.groups, &self.groups, left)
            && wanted.resources.iter().all(|resource| self.covers_resource(resource, left))
            && (self.names.is_empty()
                || (!wanted.names.is_empty() && covers_names(&wanted.names, &self.names, left)))
    }

    fn covers_url(&self, url: &str, left: &mut usize) -> bool {
        charge(text_cost(url), left);
        self.urls.contains(url)
            || self.url_patterns.iter().any(|pattern| {
                charge(text_cost(url), left);
                path_matches(pattern, url)
            })
    }

    fn covers_resource(&self, resource: &str, left: &mut usize) -> bool {
        charge(text_cost(resource), left);
        self.resources.contains("*")
            || self.resources.contains(resource)
            || resource.split_once('/').is_some_and(|(_, subresource)| {
                self.resources.contains(format!("*/{subresource}").as_str())
            })
    }
}

/// Resource names have no wildcard.
fn covers_names(wanted: &[String], held: &HashSet<&str>, left: &mut usize) -> bool {
    wanted.iter().all(|name| {
        charge(text_cost(name), left);
        held.contains(name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_34_long_words_cost_as_much_as_they_are_long() {
        let rule = |name: &str| PolicyRule {
            verbs: vec!["get".to_owned()],
            groups: vec![String::new()],
            resources: vec!["secrets".to_owned()],
            names: vec![name.to_owned()],
            ..PolicyRule::default()
        };
        // 10,000 rules that differ from the wanted one in the name only, which is hashed for each.
        let held = vec![rule("a"); 10_000];
        assert_eq!(HeldRules::new(&held).cover(&rule("b")), Some(false));
        let (covered, lookups) =
            work::counted(|| HeldRules::new(&held).cover(&rule(&"b".repeat(1 << 20))));
        assert_eq!(covered, None);
        assert!(lookups < MAX_LOOKUPS as u64 + 100_000, "{lookups}");
    }
}
