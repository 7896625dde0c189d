//! Which requests a schema matches.

use super::config::{FlowRule, FlowSubject, Names, PathRule, ResourceRule};
use ferrokube_apimachinery::user::UserInfo;
use std::fmt;

/// The action of a request, as schemas see it.
pub trait FlowAction: Send + Sync + fmt::Debug {
    /// As authorizers see it.
    fn verb(&self) -> &str;
    /// Decoded.
    fn path(&self) -> &str;
    /// `None` for other paths.
    fn resource(&self) -> Option<FlowResource<'_>>;
}

/// A request for a resource.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowResource<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `v1`.
    pub version: &'a str,
    /// Such as `configmaps`.
    pub plural: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster scope and all namespaces.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

/// The action of a request, read once for all rules.
#[derive(Clone, Copy)]
pub(super) struct MatchedAction<'a> {
    verb: &'a str,
    path: &'a str,
    resource: Option<FlowResource<'a>>,
}

impl<'a> MatchedAction<'a> {
    pub(super) fn of(action: &'a dyn FlowAction) -> Self {
        Self { verb: action.verb(), path: action.path(), resource: action.resource() }
    }
}

impl FlowRule {
    pub(super) fn matches(&self, user: &UserInfo, action: &MatchedAction<'_>) -> bool {
        // The cheaper and more selective side first: most rules have no paths, or few subjects.
        let has_rules = match action.resource {
            Some(_) => !self.resources.is_empty(),
            None => !self.paths.is_empty(),
        };
        has_rules
            && self.subjects.iter().any(|subject| subject.matches(user))
            && match action.resource {
                Some(resource) => {
                    let matches = |rule: &ResourceRule| rule.matches(action.verb, resource);
                    self.resources.iter().any(matches)
                }
                None => self.paths.iter().any(|rule| rule.matches(action.verb, action.path)),
            }
    }
}

impl FlowSubject {
    fn matches(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) => name == "*" || *name == user.name,
            Self::Group(name) => name == "*" || user.groups.contains(name),
            Self::ServiceAccount(namespace, name) => user
                .name
                .strip_prefix("system:serviceaccount:")
                .and_then(|rest| rest.strip_prefix(namespace.as_str()))
                .and_then(|rest| rest.strip_prefix(':'))
                .is_some_and(|account| name == "*" || name == account),
        }
    }
}

impl ResourceRule {
    fn matches(&self, verb: &str, resource: FlowResource<'_>) -> bool {
        let in_scope = if resource.namespace.is_empty() {
            self.cluster_scope
        } else {
            self.namespaces.has(resource.namespace)
        };
        let is_resource = |name: &String| match name.strip_prefix(resource.plural) {
            Some("") => resource.subresource.is_empty(),
            Some(rest) => rest
                .strip_prefix('/')
                .is_some_and(|part| !part.is_empty() && part == resource.subresource),
            None => false,
        };
        in_scope
            && self.verbs.has(verb)
            && (self.resources.is_all || self.resources.names.iter().any(is_resource))
            && self.groups.has(resource.group)
    }
}

impl PathRule {
    fn matches(&self, verb: &str, path: &str) -> bool {
        let is_path = |pattern: &String| {
            let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
            path == pattern
                || path
                    .strip_prefix(prefix)
                    .is_some_and(|rest| prefix.ends_with('/') || rest.starts_with('/'))
        };
        self.verbs.has(verb) && (self.paths.is_all || self.paths.names.iter().any(is_path))
    }
}

impl Names {
    fn has(&self, name: &str) -> bool {
        self.is_all || self.names.iter().any(|known| known == name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::priority::config::{FlowConfig, LevelConfig, SchemaConfig};
    use ferrokube_apimachinery::document::{Document, Value, json};

    #[derive(Clone, Debug, Default)]
    pub(in crate::priority) struct TestAction {
        pub(in crate::priority) verb: &'static str,
        pub(in crate::priority) path: &'static str,
        /// Group, resource, subresource, namespace.
        pub(in crate::priority) resource: Option<[&'static str; 4]>,
    }

    impl FlowAction for TestAction {
        fn verb(&self) -> &str {
            self.verb
        }

        fn path(&self) -> &str {
            self.path
        }

        fn resource(&self) -> Option<FlowResource<'_>> {
            let [group, plural, subresource, namespace] = self.resource?;
            Some(FlowResource { group, plural, subresource, namespace, ..FlowResource::default() })
        }
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
    }

    fn get(resource: [&'static str; 4]) -> TestAction {
        TestAction { verb: "get", resource: Some(resource), ..TestAction::default() }
    }

    fn path(verb: &'static str, path: &'static str) -> TestAction {
        TestAction { verb, path, resource: None }
    }

    fn config(schemas: &[Value]) -> FlowConfig {
        let document = |value: &Value| Document::from_value(value.clone()).unwrap();
        let schemas = schemas.iter().map(|schema| SchemaConfig::read(&document(schema)));
        let level = document(
            &json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}}),
        );
        FlowConfig::new(schemas, LevelConfig::read(&level))
    }

    fn schema(name: &str, precedence: i64, rule: Value) -> Value {
        json!({"metadata": {"name": name, "uid": "u"}, "spec": {
            "priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": precedence, "rules": [rule],
        }})
    }

    fn matching(config: &FlowConfig, user: &UserInfo, action: &TestAction) -> Option<String> {
        let action = MatchedAction::of(action);
        let matches = |rule: &FlowRule| rule.matches(user, &action);
        let found = config.schemas.iter().find(|schema| schema.rules.iter().any(matches));
        found.map(|schema| schema.name.clone())
    }

    #[test]
    fn subjects() {
        let alice = user("alice", &["devs"]);
        let account = user("system:serviceaccount:ns:a", &["system:serviceaccounts"]);
        for (subject, matches) in [
            (json!({"kind": "User", "user": {"name": "alice"}}), [true, false]),
            (json!({"kind": "User", "user": {"name": "*"}}), [true, true]),
            (json!({"kind": "Group", "group": {"name": "devs"}}), [true, false]),
            (json!({"kind": "Group", "group": {"name": "*"}}), [true, true]),
            (json!({"kind": "Group", "group": {"name": "dev"}}), [false, false]),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "ns", "name": "a"}}),
                [false, true],
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "ns", "name": "*"}}),
                [false, true],
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": "*"}}),
                [false, false],
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "ns", "name": "b"}}),
                [false, false],
            ),
            (json!({"kind": "Moon"}), [false, false]),
        ] {
            let subject = FlowSubject::read(&subject);
            let found = [&alice, &account]
                .map(|user| subject.as_ref().is_some_and(|subject| subject.matches(user)));
            assert_eq!(found, matches, "{subject:?}");
        }
    }

    #[test]
    fn resources_and_scopes() {
        let rule = json!({"subjects": [{"kind": "Group", "group": {"name": "*"}}], "resourceRules": [
            {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "nodes/status"], "namespaces": ["a", "b"]},
            {"verbs": ["*"], "apiGroups": ["x"], "resources": ["*"], "clusterScope": true},
        ]});
        let config = config(&[schema("s", 5, rule)]);
        let anyone = user("u", &[]);
        for (resource, matches) in [
            (["", "pods", "", "a"], true),
            (["", "pods", "", "c"], false),
            (["", "pods", "", ""], false),
            (["", "pods", "status", "a"], false),
            (["", "nodes", "status", "b"], true),
            (["", "nodes", "", "b"], false),
            (["", "podsx", "", "a"], false),
            (["y", "pods", "", "a"], false),
            (["x", "pods", "log", ""], true),
            (["x", "pods", "log", "a"], false),
        ] {
            assert_eq!(
                matching(&config, &anyone, &get(resource)).is_some(),
                matches,
                "{resource:?}"
            );
        }
        let create = TestAction { verb: "create", ..get(["", "pods", "", "a"]) };
        assert_eq!(matching(&config, &anyone, &create), None);
        assert_eq!(matching(&config, &anyone, &path("get", "/pods")), None);
    }

    #[test]
    fn paths() {
        let rule = json!({"subjects": [{"kind": "User", "user": {"name": "*"}}], "nonResourceRules": [
            {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/debug/*"]},
        ]});
        let config = config(&[schema("s", 5, rule)]);
        let anyone = user("u", &[]);
        for (url, matches) in [
            ("/healthz", true),
            ("/healthz/ping", true),
            ("/healthzz", false),
            ("/debug/pprof", true),
            ("/debug/", true),
            ("/debug", false),
            ("/", false),
        ] {
            assert_eq!(matching(&config, &anyone, &path("get", url)).is_some(), matches, "{url}");
        }
        assert_eq!(matching(&config, &anyone, &path("post", "/healthz")), None);
    }

    #[test]
    fn the_lowest_precedence_then_the_first_name_wins() {
        let all = json!({"subjects": [{"kind": "User", "user": {"name": "*"}}], "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]},
        ]});
        let schemas =
            [schema("c", 7, all.clone()), schema("b", 7, all.clone()), schema("a", 9, all)];
        let config = config(&schemas);
        let action = get(["", "pods", "", "a"]);
        assert_eq!(matching(&config, &user("u", &[]), &action).as_deref(), Some("b"));
        let master = user("u", &["system:masters"]);
        assert_eq!(matching(&config, &master, &action).as_deref(), Some("exempt"));
    }

    #[test]
    fn mandatory_levels_need_no_objects() {
        let config = FlowConfig::new([], []);
        let names: Vec<&str> = config.schemas.iter().map(|schema| &*schema.name).collect();
        assert_eq!(names, ["exempt", "catch-all"]);
        let someone = user("u", &["system:authenticated"]);
        assert_eq!(matching(&config, &someone, &path("get", "/")).as_deref(), Some("catch-all"));
    }
}
