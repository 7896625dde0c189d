//! The rules that a user holds, held against the rules that it wants to grant.

use super::rule::{Rule, path_matches};
use ferrokube_apimachinery::work;
use std::cell::OnceCell;
use std::collections::HashSet;

/// At most so many words are looked up for one check: about half a second.
pub(super) const MAX_LOOKUPS: usize = 20_000_000;

/// Lookups that one insertion into a set counts as.
const SET: usize = 4;

/// The rules, their words in sets: what it takes to compare two rules follows the wanted one alone.
/// Sets are built, and charged, at first use.
pub(crate) struct Held<'a> {
    rules: Vec<(&'a Rule, OnceCell<Words<'a>>)>,
    left: usize,
}

/// A rule without words.
static NOTHING: Rule = Rule {
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
    /// Paths with a `*` at the end.
    url_patterns: Vec<&'a str>,
}

impl<'a> Held<'a> {
    pub(crate) fn new(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        Self {
            rules: rules.into_iter().map(|rule| (rule, OnceCell::new())).collect(),
            left: MAX_LOOKUPS,
        }
    }

    /// Whether the holder of some one rule may do everything that another allows; `None`: that
    /// takes too many lookups.
    pub(crate) fn cover(&mut self, wanted: &Rule) -> Option<bool> {
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

fn all(wanted: &[String], held: &HashSet<&str>, left: &mut usize) -> bool {
    charge(1, left);
    held.contains("*")
        || wanted.iter().all(|word| {
            charge(1, left);
            held.contains(word.as_str())
        })
}

impl<'a> Words<'a> {
    /// Without words when too few lookups are left.
    fn of(rule: &'a Rule, left: &mut usize) -> Self {
        let lists = [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.urls];
        let cost = SET * lists.into_iter().map(Vec::len).sum::<usize>();
        let rule = if cost < *left { rule } else { &NOTHING };
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

    fn covers(&self, wanted: &Rule, left: &mut usize) -> bool {
        if !all(&wanted.verbs, &self.verbs, left)
            || !wanted.urls.iter().all(|url| self.covers_url(url, left))
        {
            return false;
        }
        if wanted.resources.is_empty() {
            return true;
        }
        all(&wanted.groups, &self.groups, left)
            && wanted.resources.iter().all(|resource| self.covers_resource(resource, left))
            && (self.names.is_empty()
                || (!wanted.names.is_empty() && all_names(&wanted.names, &self.names, left)))
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

/// Names have no wildcard.
fn all_names(wanted: &[String], held: &HashSet<&str>, left: &mut usize) -> bool {
    wanted.iter().all(|name| {
        charge(1, left);
        held.contains(name.as_str())
    })
}
