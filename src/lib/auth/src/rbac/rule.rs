//! A policy rule and its matching.

use ferrokube_apimachinery::document::{Map, Value};

/// The group of the RBAC kinds.
pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

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

    /// Number of texts in its lists.
    pub(crate) fn texts(&self) -> usize {
        let lists = [&self.verbs, &self.groups, &self.resources, &self.names, &self.urls];
        lists.iter().map(|list| list.len()).sum()
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
    /// `None` if there are more than `limit`.
    pub(crate) fn single_permissions(&self, limit: usize) -> Option<Vec<Self>> {
        let names = self.names.len().max(1);
        let resources = self.groups.len().checked_mul(self.resources.len())?.checked_mul(names)?;
        if resources.checked_add(self.urls.len())?.checked_mul(self.verbs.len())? > limit {
            return None;
        }
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
