//! A policy rule and its matching.

use ferrokube_apimachinery::document::{Map, Value};

/// The group of the RBAC kinds.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
/// Max bytes of the texts of the single permissions that one check expands rules into: each repeats
/// its texts.
const MAX_PERMISSION_BYTES: usize = 8 << 20;
/// Bytes that cost as much to compare or hash as one short text.
const TEXT_BYTES: usize = 64;

/// A policy rule, with its lists as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// `*` matches all.
    pub verbs: Vec<String>,
    /// `*` matches all.
    pub groups: Vec<String>,
    /// With the subresource, as `pods/log`; `*` matches all, `*/scale` that subresource of all.
    pub resources: Vec<String>,
    /// Resource names; empty matches all.
    pub names: Vec<String>,
    /// Non-resource paths; a trailing `*` matches any suffix.
    pub urls: Vec<String>,
}

/// The parts of a resource request that rules match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceQuestion<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    /// `pods`, or `pods/log`.
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) name: &'a str,
}

impl PolicyRule {
    /// Reads a rule of a stored role; a list of the wrong type counts as empty.
    pub fn from_value(value: &Value) -> Self {
        let list = |field| strings(value.get(field));
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// Reads the rules of a stored role.
    pub fn list(value: Option<&Value>) -> Vec<Self> {
        value
            .and_then(Value::as_array)
            .map(|rules| rules.iter().map(Self::from_value).collect())
            .unwrap_or_default()
    }

    /// As stored in a role: verbs always, other lists unless empty.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        let value = |words: &[String]| {
            Value::Array(words.iter().map(|word| Value::from(word.as_str())).collect())
        };
        map.insert("verbs", value(&self.verbs));
        let optional = [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.urls),
        ];
        for (field, words) in optional.into_iter().filter(|(_, words)| !words.is_empty()) {
            map.insert(field, value(words));
        }
        Value::Object(map)
    }

    /// Number of texts in its lists, by their [cost](text_cost).
    pub(crate) fn texts(&self) -> usize {
        let lists = [&self.verbs, &self.groups, &self.resources, &self.names, &self.urls];
        lists.into_iter().flatten().map(|text| text_cost(text)).sum()
    }

    pub(crate) fn allows_resource(&self, question: &ResourceQuestion<'_>) -> bool {
        has(&self.verbs, question.verb)
            && has(&self.groups, question.group)
            && self.names_resource(question.resource, question.subresource)
            && (self.names.is_empty() || self.names.iter().any(|name| name == question.name))
    }

    fn names_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|pattern| {
            pattern == "*"
                || pattern == resource
                || (!subresource.is_empty()
                    && pattern.strip_prefix("*/").is_some_and(|rest| rest == subresource))
        })
    }

    pub(crate) fn allows_path(&self, verb: &str, path: &str) -> bool {
        has(&self.verbs, verb) && self.urls.iter().any(|pattern| path_matches(pattern, path))
    }

    /// Expands the rule into rules of one verb, group, resource and name, or one verb and path;
    /// `None` if they are too many or too long.
    pub(crate) fn single_permissions(&self, left: &mut PermissionBudget) -> Option<Vec<Self>> {
        left.take(self)?;
        let mut permissions = Vec::new();
        for verb in &self.verbs {
            let verbs = vec![verb.clone()];
            for group in &self.groups {
                for resource in &self.resources {
                    let permission = Self {
                        verbs: verbs.clone(),
                        groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Self::default()
                    };
                    if self.names.is_empty() {
                        permissions.push(permission);
                    } else {
                        permissions.extend(
                            self.names.iter().map(|name| Self {
                                names: vec![name.clone()],
                                ..permission.clone()
                            }),
                        );
                    }
                }
            }
            permissions.extend(self.urls.iter().map(|url| Self {
                verbs: verbs.clone(),
                urls: vec![url.clone()],
                ..Self::default()
            }));
        }
        Some(permissions)
    }
}

/// Limits of the single permissions that remain to be expanded.
#[derive(Debug)]
pub(crate) struct PermissionBudget {
    permissions: usize,
    /// Bytes of their texts.
    bytes: usize,
}

impl PermissionBudget {
    pub(crate) fn new(permissions: usize) -> Self {
        Self { permissions, bytes: MAX_PERMISSION_BYTES }
    }

    fn take(&mut self, rule: &PolicyRule) -> Option<()> {
        let mut objects = Combinations::ONE.with(&rule.groups)?.with(&rule.resources)?;
        if !rule.names.is_empty() {
            objects = objects.with(&rule.names)?;
        }
        let paths = Combinations::ONE.with(&rule.urls)?;
        let number = objects.number.checked_add(paths.number)?;
        let bytes = objects.bytes.checked_add(paths.bytes)?;
        let all = Combinations { number, bytes }.with(&rule.verbs)?;
        self.permissions = self.permissions.checked_sub(all.number)?;
        self.bytes = self.bytes.checked_sub(all.bytes)?;
        Some(())
    }
}

/// Combinations of one text of each of several lists.
#[derive(Clone, Copy)]
struct Combinations {
    number: usize,
    /// Bytes of the texts of all of them.
    bytes: usize,
}

impl Combinations {
    /// The one combination of no lists.
    const ONE: Self = Self { number: 1, bytes: 0 };

    fn with(self, words: &[String]) -> Option<Self> {
        let own = words.iter().map(String::len).sum::<usize>().checked_mul(self.number)?;
        let number = self.number.checked_mul(words.len())?;
        Some(Self { number, bytes: self.bytes.checked_mul(words.len())?.checked_add(own)? })
    }
}

/// How many short texts cost as much as this one.
pub(super) fn text_cost(text: &str) -> usize {
    1 + text.len() / TEXT_BYTES
}

impl std::fmt::Display for PolicyRule {
    /// As kube-apiserver's messages: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lists = [
            ("NonResourceURLs", &self.urls),
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ];
        f.write_str("{")?;
        let mut separator = "";
        for (name, words) in lists.into_iter().filter(|(_, words)| !words.is_empty()) {
            let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            write!(f, "{separator}{name}:[{}]", words.join(" "))?;
            separator = ", ";
        }
        f.write_str("}")
    }
}

fn has(words: &[String], word: &str) -> bool {
    words.iter().any(|candidate| candidate == "*" || candidate == word)
}

pub(super) fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == "*"
        || pattern == path
        || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}

pub(crate) fn strings(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .map(|items| items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_34_permissions_are_expanded_within_a_budget_of_bytes() {
        let words = |number: usize, length: usize| vec!["x".repeat(length); number];
        let rule = |verbs, names, urls| PolicyRule {
            verbs,
            groups: words(2, 5),
            resources: words(3, 7),
            names,
            urls,
        };
        let expanded = |rule: &PolicyRule, left: &mut PermissionBudget| {
            let before = left.bytes;
            let permissions = rule.single_permissions(left)?;
            let texts = permissions.iter().flat_map(|one| {
                [&one.verbs, &one.groups, &one.resources, &one.names, &one.urls]
                    .into_iter()
                    .flatten()
            });
            assert_eq!(texts.map(String::len).sum::<usize>(), before - left.bytes);
            Some(permissions.len())
        };
        let left = || PermissionBudget::new(1000);
        let small = rule(words(2, 3), words(5, 11), words(4, 13));
        assert_eq!(expanded(&small, &mut left()), Some(2 * (2 * 3 * 5 + 4)));
        assert_eq!(expanded(&rule(words(2, 3), Vec::new(), Vec::new()), &mut left()), Some(12));
        assert_eq!(expanded(&rule(words(40, 3), words(5, 1), Vec::new()), &mut left()), None);
        // A megabyte, a hundred times.
        let long = rule(words(17, 3), words(1, 1 << 20), Vec::new());
        assert_eq!(expanded(&long, &mut left()), None);
        // The budget is that of all rules.
        let third = rule(words(1, 3), words(1, MAX_PERMISSION_BYTES / 20), Vec::new());
        let mut left = left();
        let all = [(); 4].map(|()| expanded(&third, &mut left).is_some());
        assert_eq!(all, [true, true, true, false]);
    }
}
