//! Compares the rules that a user holds with the rules that it wants to grant.

use super::rule::{PolicyRule, path_matches};
use ferrokube_apimachinery::work;
use std::cell::OnceCell;
use std::collections::HashSet;

/// Max lookups of one check: about half a second.
pub(super) const MAX_LOOKUPS: usize = 20_000_000;

/// The cost of a set insertion, in lookups.
const SET_INSERT_COST: usize = 4;

/// A user's rules with their words in lazily built sets, so that the cost of a comparison depends
/// on the wanted rule alone. Building a set is charged as well.
pub(crate) struct HeldRules<'a> {
    rules: Vec<(&'a PolicyRule, OnceCell<Words<'a>>)>,
    left: usize,
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
        Self {
            rules: rules.into_iter().map(|rule| (rule, OnceCell::new())).collect(),
            left: MAX_LOOKUPS,
        }
    }

    /// Whether a single held rule covers all of `wanted`; `None` if finding out takes too many
    /// lookups.
    pub(crate) fn cover(&mut self, wanted: &PolicyRule) -> Option<bool> {
        let Self { rules, left } = self;
        let covered = rules.iter().any(|(rule, words)| {
            *left > 0 && words.get_or_init(|| Words::of(rule, left)).covers(wanted, left)
        });
        (*left > 0).then_some(covered)
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
            charge(1, left);
            held.contains(word.as_str())
        })
}

impl<'a> Words<'a> {
    /// Empty if too few lookups are left.
    fn of(rule: &'a PolicyRule, left: &mut usize) -> Self {
        let lists = [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.urls];
        let cost = SET_INSERT_COST * lists.into_iter().map(Vec::len).sum::<usize>();
        let rule = if cost < *left { rule } else { &EMPTY_RULE };
        charge(cost.min(*left), left);
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
        charge(1, left);
        self.urls.contains(url)
            || self.url_patterns.iter().any(|pattern| {
                charge(1, left);
                path_matches(pattern, url)
            })
    }

    fn covers_resource(&self, resource: &str, left: &mut usize) -> bool {
        charge(1, left);
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
        charge(1, left);
        held.contains(name.as_str())
    })
}
